//! Removed files that still use disk space, because a process has them open or mapped.
//!
//! Owns: finding them in `/proc`. A file that is in transit through a socket and that no process has open is not
//! seen.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// How the kernel marks what is mapped and was removed.
const DELETED: &str = " (deleted)";

/// What such files of this device take, of all processes that `/proc` shows but this one.
pub(crate) fn bytes(device: u64) -> u64 {
    let own = std::process::id().to_string();
    let is_other = |name: &OsStr| name.as_bytes().iter().all(u8::is_ascii_digit) && name != own.as_str();
    let mut files = RemovedFiles { device, ..RemovedFiles::default() };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes.filter(|entry| is_other(&entry.file_name())) {
        files.inspect_process(&process.path());
    }
    files.bytes()
}

/// What was found so far.
#[derive(Debug, Default)]
struct RemovedFiles {
    device: u64,
    /// Files that could be looked at, by their numbers.
    seen: HashSet<u64>,
    seen_bytes: u64,
    /// Files of which nothing is known but what is mapped of them.
    mapped: HashMap<u64, MappedRanges>,
}

/// The parts of one file that are mapped, by where they begin and end in it.
type MappedRanges = HashSet<(u64, u64)>;

impl RemovedFiles {
    fn inspect_process(&mut self, process: &Path) {
        let descriptors = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        for descriptor in descriptors {
            self.add(&descriptor.path());
        }
        let device = self.device;
        let maps = std::fs::read_to_string(process.join("maps")).unwrap_or_default();
        for mapping in maps.lines().filter_map(parse).filter(|mapping| mapping.device == device) {
            let RemovedMapping { inode, addresses, part, .. } = mapping;
            if !self.seen.contains(&inode) && !self.add(&process.join("map_files").join(addresses)) {
                self.mapped.entry(inode).or_default().insert(part);
            }
        }
    }

    /// Counts a removed file once. Returns whether it could be inspected: mapped files are not open to every user.
    fn add(&mut self, path: &Path) -> bool {
        let Ok(meta) = std::fs::metadata(path) else { return false };
        if meta.is_file() && meta.nlink() == 0 && meta.dev() == self.device && self.seen.insert(meta.ino()) {
            self.seen_bytes = self.seen_bytes.saturating_add(meta.blocks().saturating_mul(512));
        }
        true
    }

    fn bytes(&self) -> u64 {
        let unseen = self.mapped.iter().filter(|(inode, _)| !self.seen.contains(inode));
        unseen.fold(self.seen_bytes, |sum, (_, parts)| sum.saturating_add(length(parts)))
    }
}

/// How much of a file these parts are together.
fn length(parts: &MappedRanges) -> u64 {
    let mut parts: Vec<(u64, u64)> = parts.iter().copied().collect();
    parts.sort_unstable();
    let (mut sum, mut upto) = (0_u64, 0);
    for (from, to) in parts {
        sum = sum.saturating_add(to.saturating_sub(from.max(upto)));
        upto = upto.max(to);
    }
    sum
}

/// A mapped file that was removed.
#[derive(Debug, PartialEq, Eq)]
struct RemovedMapping<'a> {
    addresses: &'a str,
    device: u64,
    inode: u64,
    part: (u64, u64),
}

/// `from-to rights offset major:minor inode   path (deleted)`
fn parse(line: &str) -> Option<RemovedMapping<'_>> {
    let rest = line.strip_suffix(DELETED)?;
    let mut words = rest.split_ascii_whitespace();
    let (addresses, _rights, offset) = (words.next()?, words.next()?, words.next()?);
    let (device, inode) = (words.next()?, words.next()?);
    let hex = |word: &str| u64::from_str_radix(word, 16).ok();
    let (from, to) = addresses.split_once('-')?;
    let (major, minor) = device.split_once(':')?;
    let (major, minor) = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let (offset, length) = (hex(offset)?, hex(to)?.checked_sub(hex(from)?)?);
    Some(RemovedMapping {
        addresses,
        device: libc::makedev(major, minor),
        inode: inode.parse().ok()?,
        part: (offset, offset.saturating_add(length)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child of Python that has a removed file of a MiB as `program` leaves it.
    fn holder(dir: &Path, program: &str) -> std::process::Child {
        let before = "import mmap, os, sys\nf = open('file', 'w+b')\nf.write(b'x' * (1 << 20))\nf.flush()\n";
        let after = "os.unlink('file')\nprint('ready', flush=True)\nsys.stdin.read()\n";
        let mut python = std::process::Command::new("python3");
        python.args(["-c", &format!("{before}{program}\n{after}")]).current_dir(dir);
        let (input, output) = (std::process::Stdio::piped(), std::process::Stdio::piped());
        let mut child = python.stdin(input).stdout(output).spawn().unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        child
    }

    #[test]
    fn what_was_removed_counts_while_it_is_open_or_mapped() {
        let maps = "m = mmap.mmap(f.fileno(), 1 << 20)";
        for program in ["", maps, &format!("{maps}\nf.close()")] {
            let dir = std::env::temp_dir().join(format!("keeper-removed-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            let device = std::fs::metadata(&dir).unwrap().dev();
            let mut child = holder(&dir, program);
            let mut files = RemovedFiles { device, ..RemovedFiles::default() };
            files.inspect_process(&Path::new("/proc").join(child.id().to_string()));
            assert!((1 << 20..2 << 20).contains(&files.bytes()), "{program}: {files:?}");
            child.kill().unwrap();
            child.wait().unwrap();
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }

    #[test]
    fn a_file_that_may_not_be_looked_at_counts_by_what_is_mapped_of_it() {
        let line = "7f00-9f00 rw-s 00001000 fd:01 77                 /a b (deleted)";
        let part = (0x1000, 0x3000);
        let device = libc::makedev(0xfd, 1);
        assert_eq!(parse(line), Some(RemovedMapping { addresses: "7f00-9f00", device, inode: 77, part }));
        assert_eq!(parse(line.strip_suffix(DELETED).unwrap()), None);
        assert_eq!(parse("7f00-9f00 rw-s (deleted)"), None);
        assert_eq!(length(&MappedRanges::from([part, (0, 0x2000), (0x5000, 0x6000)])), 0x4000);
    }
}
