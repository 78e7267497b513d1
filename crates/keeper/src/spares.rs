//! Directories of forgotten execs, kept for later execs.
//!
//! For thousands of small jobs, creating and removing two files for each costs more than running them: some file
//! systems search for an inode number that was not used recently. Only directories that contained nothing but a
//! record are kept, and not under their old names: a concurrent reader has to check that the name still exists. A
//! record names its exec, so that old contents of the space are never taken for an outcome.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use lodge_link::limits;

use crate::sys;

/// Most directories that wait. Each has two descriptors open.
const SPARES_MAX: usize = 4;
/// How their names begin, which that of no exec does.
const PREFIX: &str = ".spare-";

/// The directories that wait.
#[derive(Debug, Default)]
pub(crate) struct SpareDirs {
    waiting: Vec<SpareDir>,
    made: u64,
}

/// A directory with nothing in it but the room for a record, as every exec gets it.
#[derive(Debug)]
struct SpareDir {
    name: CString,
    dir: Rc<OwnedFd>,
    record: File,
}

/// The result of a request for a spare directory.
#[derive(Debug)]
pub(crate) enum SpareResult {
    Ready(Rc<OwnedFd>, File),
    /// The name is taken.
    Taken,
    None,
}

impl SpareDirs {
    /// Removes what an earlier keeper left of its own.
    pub(crate) fn open(shelf: &OwnedFd) -> io::Result<SpareDirs> {
        for name in sys::names(shelf.as_fd())? {
            if name.as_bytes().starts_with(PREFIX.as_bytes()) {
                remove(shelf, &name)?;
            }
        }
        Ok(SpareDirs::default())
    }

    /// Gives one the name of an exec, if there is one and the name is free.
    pub(crate) fn give(&mut self, shelf: &OwnedFd, exec: &CStr) -> SpareResult {
        let Some(spare) = self.waiting.pop() else { return SpareResult::None };
        match sys::rename_new(shelf.as_fd(), &spare.name, exec) {
            Ok(()) => SpareResult::Ready(spare.dir, spare.record),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.waiting.push(spare);
                SpareResult::Taken
            }
            // It was removed, or its disk is full: a new one is created.
            Err(_) => SpareResult::None,
        }
    }

    /// Takes over the directory of an exec, which is forgotten with that, or gives it back.
    pub(crate) fn take(
        &mut self,
        shelf: &OwnedFd,
        exec: &CStr,
        dir: OwnedFd,
        record: &CStr,
        room: &CStr,
    ) -> io::Result<Option<OwnedFd>> {
        if self.waiting.len() >= SPARES_MAX {
            return Ok(Some(dir));
        }
        let file: File = sys::open_at(dir.as_fd(), record, libc::O_WRONLY | libc::O_NOFOLLOW, 0)?.into();
        // One that was cut short has no room, and is of a keeper that did not name the exec in it.
        if file.metadata()?.len() != limits::RECORD_MAX as u64 {
            return Ok(Some(dir));
        }
        self.made += 1;
        let name = CString::new(format!("{PREFIX}{}", self.made))?;
        if sys::rename_new(shelf.as_fd(), exec, &name).is_err() {
            return Ok(Some(dir));
        }
        match sys::rename_at(dir.as_fd(), record, room) {
            Ok(()) => self.waiting.push(SpareDir { name, dir: Rc::new(dir), record: file }),
            Err(_) => remove(shelf, &name)?,
        }
        Ok(None)
    }
}

fn remove(shelf: &OwnedFd, name: &CStr) -> io::Result<()> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let dir = sys::open_at(shelf.as_fd(), name, flags, 0)?;
    for file in sys::names(dir.as_fd())? {
        sys::unlink_at(dir.as_fd(), &file, 0)?;
    }
    sys::unlink_at(shelf.as_fd(), name, libc::AT_REMOVEDIR)
}
