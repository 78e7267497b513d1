//! Directories of forgotten execs, kept for later execs.
//!
//! For thousands of small jobs, creating and removing two files for each costs more than running them: some file
//! systems search for an inode number that was not used recently. Only directories that contained nothing but a
//! record are kept, and not under their old names: a concurrent reader has to check that the name still exists. A
//! record names its exec, so that old contents of the space are never taken for an outcome.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use lodge_link::limits;

use crate::sys;

/// Most directories that wait, or will as soon as their exec is forgotten. Each has two descriptors open.
const SPARES_MAX: usize = 4;
/// How their names begin, which that of no exec does.
const PREFIX: &str = ".spare-";

/// The directories that wait.
#[derive(Debug, Default)]
pub(crate) struct SpareDirs {
    waiting: Vec<SpareDir>,
    ended: VecDeque<EndedDir>,
    made: u64,
}

/// The directory of an exec that ended and left nothing but its record. It is kept open for the moment when the exec is
/// forgotten, which is mostly the next one.
#[derive(Debug)]
struct EndedDir {
    exec: CString,
    dir: Rc<OwnedFd>,
    record: File,
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

    /// Keeps the directory of an exec open that ended and left nothing but its record.
    pub(crate) fn keep_open(&mut self, exec: CString, dir: Rc<OwnedFd>, record: File) {
        if self.waiting.len() + self.ended.len() >= SPARES_MAX {
            self.ended.pop_front();
        }
        if self.waiting.len() + self.ended.len() < SPARES_MAX {
            self.ended.push_back(EndedDir { exec, dir, record });
        }
    }

    /// As [`SpareDirs::take`], for an exec whose directory was kept open. False: it was not.
    pub(crate) fn take_open(
        &mut self,
        shelf: &OwnedFd,
        exec: &CStr,
        record: &CStr,
        room: &CStr,
    ) -> io::Result<bool> {
        let found = self.ended.iter().position(|ended| ended.exec.as_c_str() == exec);
        let Some(EndedDir { dir, record: file, .. }) = found.and_then(|at| self.ended.remove(at)) else {
            return Ok(false);
        };
        self.put(shelf, (exec, dir, file), record, room)
    }

    /// Takes over the directory of an exec, which is forgotten with that, or gives it back.
    pub(crate) fn take(
        &mut self,
        shelf: &OwnedFd,
        exec: &CStr,
        dir: Rc<OwnedFd>,
        record: &CStr,
        room: &CStr,
    ) -> io::Result<Option<Rc<OwnedFd>>> {
        if self.waiting.len() >= SPARES_MAX {
            return Ok(Some(dir));
        }
        let file: File = sys::open_at(dir.as_fd(), record, libc::O_WRONLY | libc::O_NOFOLLOW, 0)?.into();
        // One that was cut short has no room, and is of a keeper that did not name the exec in it.
        if file.metadata()?.len() != limits::RECORD_MAX as u64 {
            return Ok(Some(dir));
        }
        match self.put(shelf, (exec, dir.clone(), file), record, room)? {
            true => Ok(None),
            false => Ok(Some(dir)),
        }
    }

    /// False: the directory has its old name.
    fn put(
        &mut self,
        shelf: &OwnedFd,
        (exec, dir, file): (&CStr, Rc<OwnedFd>, File),
        record: &CStr,
        room: &CStr,
    ) -> io::Result<bool> {
        self.made += 1;
        let name = CString::new(format!("{PREFIX}{}", self.made))?;
        if sys::rename_new(shelf.as_fd(), exec, &name).is_err() {
            return Ok(false);
        }
        match sys::rename_at(dir.as_fd(), record, room) {
            Ok(()) => self.waiting.push(SpareDir { name, dir, record: file }),
            Err(_) => remove(shelf, &name)?,
        }
        Ok(true)
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
