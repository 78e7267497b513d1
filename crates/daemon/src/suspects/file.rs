//! The mapped file. Its room is taken when it is made, so that no store to it can fail later.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::AtomicU32;

use rustix::fs::{FallocateFlags, Mode, OFlags};

use super::record::{
    AGE_AT, COMPUTING_AT, DEATHS_AT, FILE_BYTES, HEADER_BYTES, SLOT_BYTES, SLOTS, SlotRecord, header,
};

pub const NAME: &str = "suspects";

/// What the last daemon left; nothing where it left nothing that could be ours.
pub fn read(path: &Path) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES as u64 + 1).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// A file that is mapped and that this process alone writes: the state directory is its own, and locked.
#[derive(Debug)]
pub struct SuspectFile {
    base: *mut u8,
}

// SAFETY: the mapping lives as long as the process. Marks, counts and the age are only ever accessed as atomics, and all
// other bytes of a slot only by the holder of the lock of all slots.
unsafe impl Send for SuspectFile {}
// SAFETY: as above.
unsafe impl Sync for SuspectFile {}

impl SuspectFile {
    /// An empty file, of a daemon that has just started.
    pub fn create(path: &Path, boot: &str) -> io::Result<SuspectFile> {
        // A new file: no other process has it open, and the old contents stay untouched.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, FILE_BYTES as u64)?;
        // SAFETY: a new mapping that overlaps nothing; the file has that length, and is never truncated.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                FILE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapped = SuspectFile { base: base.cast() };
        let header = header(boot);
        // SAFETY: the header is within the mapping, and no other thread knows it yet.
        unsafe { std::ptr::copy_nonoverlapping(header.as_ptr(), mapped.base, HEADER_BYTES) };
        Ok(mapped)
    }

    pub fn age(&self) -> &AtomicU32 {
        self.number(AGE_AT)
    }

    /// How many threads compute the work of a slot.
    pub fn computing(&self, slot: usize) -> &AtomicU32 {
        self.number(at(slot) + COMPUTING_AT)
    }

    pub fn deaths(&self, slot: usize) -> &AtomicU32 {
        self.number(at(slot) + DEATHS_AT)
    }

    /// Fills a slot that is free. The caller holds the lock of all slots.
    pub fn write(&self, slot: usize, record: &SlotRecord) {
        // SAFETY: `at` stays within the mapping, and the lock keeps others from this slot.
        unsafe { std::ptr::copy_nonoverlapping(record.0.as_ptr(), self.base.add(at(slot)), SLOT_BYTES) };
    }

    /// Frees a slot. The caller has the lock of all slots, and no thread computes its work.
    pub fn clear(&self, slot: usize) {
        self.write(slot, &SlotRecord([0; SLOT_BYTES]));
    }

    fn number(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `at` is within the mapping and a multiple of four, and so aligned; only atomics access it while others may.
        unsafe { AtomicU32::from_ptr(self.base.add(at).cast()) }
    }
}

fn at(slot: usize) -> usize {
    assert!(slot < SLOTS, "a slot that there is");
    HEADER_BYTES + slot * SLOT_BYTES
}
