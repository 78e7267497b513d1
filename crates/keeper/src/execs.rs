//! Execs on disk and in flight: the claim, the running one, the exit record.
//!
//! Owns: the layout of `exec/<id>` and the order in which it is written. The claim comes before the
//! start, the record before anybody is told.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use lodge_link::{
    EXEC_DIR, EXIT_FILE, Ended, ExecKind, ExecState, ExitRecord, KnownExec, STDERR_FILE, STDOUT_FILE, Usage,
    is_valid_id, limits,
};

use crate::captured::Captured;
use crate::relay::{Feed, Lines};
use crate::sys;
use crate::tree::Process;

const EXIT_TEMPORARY: &CStr = c"exit.new";

/// The directory that holds one directory for each claimed exec.
#[derive(Debug)]
pub(crate) struct Shelf {
    dir: OwnedFd,
}

/// How claiming an exec went.
#[derive(Debug)]
pub(crate) enum Claim {
    /// It is ours to start, in this directory.
    New(OwnedFd),
    /// It was claimed before.
    Taken,
}

/// An exec whose main process runs or ended a moment ago.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) id: String,
    /// Names it among descriptors, because pids come back.
    pub(crate) serial: u64,
    pub(crate) kind: ExecKind,
    pub(crate) pid: i32,
    pub(crate) dir: OwnedFd,
    pub(crate) started_ms: u64,
    pub(crate) stdin: Feed,
    pub(crate) stdout: Captured,
    pub(crate) stderr: Captured,
    pub(crate) lines: Lines,
    pub(crate) stage: Stage,
    /// Its record could not be written: not before this moment is that tried again.
    pub(crate) retry_at: Option<Instant>,
    pub(crate) note: String,
}

/// Where an exec is between its start and its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stage {
    Alive,
    /// The main process ended; what others still write counts until then.
    Draining {
        ended: Ended,
        usage: Usage,
        finished_ms: u64,
        until: Instant,
    },
}

/// A group to be killed once its grace is over, whether or not its main process still runs.
#[derive(Debug)]
pub(crate) struct Doomed {
    pub(crate) main: i32,
    /// What belonged to it when it was told to end.
    pub(crate) known: Vec<Process>,
    pub(crate) at: Instant,
}

impl Running {
    pub(crate) fn record(&self, ended: Ended, usage: Usage, finished_ms: u64) -> ExitRecord {
        let mut note = self.note.clone();
        for (stream, captured) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if let Some(trouble) = &captured.trouble {
                note.push_str(&format!("{stream} was cut: {trouble}. "));
            }
        }
        ExitRecord {
            ended,
            started_ms: self.started_ms,
            finished_ms,
            stdout: self.stdout.counted,
            stderr: self.stderr.counted,
            usage,
            note,
        }
    }
}

impl Shelf {
    pub(crate) fn open(keeper_dir: &OwnedFd) -> io::Result<Shelf> {
        let name = c_name(EXEC_DIR)?;
        match sys::mkdir_at(keeper_dir.as_raw_fd(), &name, 0o700) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        Ok(Shelf { dir: open_dir(keeper_dir, &name)? })
    }

    /// Claims an exec: from here on it was either started by this call or never will be by another.
    pub(crate) fn claim(&self, exec: &str) -> io::Result<Claim> {
        let name = c_name(exec)?;
        match sys::mkdir_at(self.dir.as_raw_fd(), &name, 0o700) {
            Ok(()) => Ok(Claim::New(open_dir(&self.dir, &name)?)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Claim::Taken),
            Err(error) => Err(error),
        }
    }

    /// Whether an exec was claimed and not forgotten.
    pub(crate) fn is_claimed(&self, exec: &str) -> bool {
        c_name(exec).is_ok_and(|name| open_dir(&self.dir, &name).is_ok())
    }

    /// The record of an exec that ended, if it left one.
    pub(crate) fn record(&self, exec: &str) -> Option<ExitRecord> {
        let dir = open_dir(&self.dir, &c_name(exec).ok()?).ok()?;
        let name = c_name(EXIT_FILE).ok()?;
        let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = File::from(sys::open_at(dir.as_raw_fd(), &name, flags, 0).ok()?);
        let mut bytes = Vec::new();
        file.take(limits::RECORD_MAX as u64).read_to_end(&mut bytes).ok()?;
        ExitRecord::decode(&bytes).ok()
    }

    /// Removes an exec's directory. One that is not there was removed before.
    pub(crate) fn forget(&self, exec: &str) -> io::Result<()> {
        let name = c_name(exec)?;
        let dir = match open_dir(&self.dir, &name) {
            Ok(dir) => dir,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        // The record goes last: half a removal still tells how the exec ended.
        for file in [STDOUT_FILE, STDERR_FILE, "exit.new", EXIT_FILE] {
            match sys::unlink_at(dir.as_raw_fd(), &c_name(file)?, 0) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        sys::unlink_at(self.dir.as_raw_fd(), &name, libc::AT_REMOVEDIR)
    }

    /// Every claimed exec, with its state as far as `running` and the records tell.
    pub(crate) fn known(&self, running: &[Running]) -> Vec<KnownExec> {
        let path = format!("/proc/self/fd/{}", self.dir.as_raw_fd());
        let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter(|name| is_valid_id(name))
            .take(limits::WELCOME_EXECS_MAX)
            .map(|exec| KnownExec { state: self.state(&exec, running), exec })
            .collect()
    }

    pub(crate) fn state(&self, exec: &str, running: &[Running]) -> ExecState {
        match running.iter().find(|one| one.id == exec) {
            Some(one) => ExecState::Running { pid: one.pid.cast_unsigned() },
            None => self.record(exec).map_or(ExecState::Lost, ExecState::Exited),
        }
    }
}

/// Writes the exit record so that it is there whole or not at all.
pub(crate) fn write_record(dir: &OwnedFd, record: &ExitRecord) -> io::Result<()> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_NOFOLLOW;
    let mut file = File::from(sys::open_at(dir.as_raw_fd(), EXIT_TEMPORARY, flags, 0o600)?);
    file.write_all(&record.encode())?;
    sys::rename_at(dir.as_raw_fd(), EXIT_TEMPORARY, &c_name(EXIT_FILE)?)
}

/// Creates the file that a stream of the exec goes to.
pub(crate) fn create_output(dir: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    sys::open_at(dir.as_raw_fd(), &c_name(name)?, flags, 0o600)
}

fn open_dir(parent: &OwnedFd, name: &CStr) -> io::Result<OwnedFd> {
    sys::open_at(parent.as_raw_fd(), name, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0)
}

fn c_name(name: &str) -> io::Result<CString> {
    CString::new(name).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}
