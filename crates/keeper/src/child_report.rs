//! What a child reports between `fork` and `execve`.
//!
//! Owns: the messages on the report socket, on both of its ends. Never: starting the child (see `spawn`).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use lodge_link::StartExec;

use crate::sockets;
use crate::sys;

/// Where a child reports to, once its descriptors are arranged.
pub(crate) const REPORT_FD: RawFd = 3;
/// Length of what a child reports: the step and the error.
const REPORT_LEN: usize = 5;

/// The report of a child that replaced itself or failed to, and the program that it should become.
#[derive(Debug)]
pub(crate) struct ChildReport {
    pub(crate) socket: OwnedFd,
    /// What it calls, once it has given that.
    pub(crate) calls: Option<OwnedFd>,
    /// When it has had its time.
    pub(crate) until: Instant,
    /// How many repeated requests arrived meanwhile. Each is answered.
    pub(crate) asked_again: u32,
    program: OsString,
    cwd: PathBuf,
}

/// What a child says about replacing itself.
pub(crate) enum ProgramReplacement {
    Yes,
    NotYet,
    Failed { step: u8, errno: i32 },
}

impl ChildReport {
    pub(crate) fn new(socket: OwnedFd, until: Instant, start: &StartExec) -> ChildReport {
        let program = start.argv.first().cloned().unwrap_or_default();
        ChildReport { socket, calls: None, until, asked_again: 0, program, cwd: start.cwd.clone() }
    }

    /// What the child says, if it is known by now or the child had its time.
    pub(crate) fn poll_report(&mut self, now: Instant) -> Option<ProgramReplacement> {
        loop {
            return match receive_message(&self.socket) {
                Ok(ChildMessage::Calls(calls)) => {
                    self.calls = Some(calls);
                    continue;
                }
                Ok(ChildMessage::Replacement(went)) => Some(went),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    (now >= self.until).then_some(ProgramReplacement::NotYet)
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
                Err(_) => Some(ProgramReplacement::Yes),
            };
        }
    }

    /// Why there is no program.
    pub(crate) fn failed(&self, step: u8, errno: i32) -> SpawnError {
        not_spawned(&self.program, &self.cwd, step, errno)
    }
}

/// Why there is no child.
#[derive(Debug)]
pub(crate) struct SpawnError {
    pub(crate) errno: i32,
    pub(crate) why: String,
}

/// What a child was about to do when it failed.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum ChildStep {
    Streams = 1,
    User = 2,
    Directory = 3,
    Program = 4,
    Hold = 5,
}

/// Reports a failure to the keeper and ends the child.
pub(crate) fn report_failure(step: ChildStep, error: io::Error, report: RawFd) -> ! {
    let errno = error.raw_os_error().unwrap_or(libc::EIO).to_le_bytes();
    let message = [step as u8, errno[0], errno[1], errno[2], errno[3]];
    // Before the descriptors are arranged it lies where the keeper opened it; then 3 is a directory.
    for fd in [REPORT_FD, report] {
        if sys::write(sys::numbered(fd), &message).is_ok() {
            break;
        }
    }
    // SAFETY: ends the child at once. If nothing could be written, the exit code says as much.
    unsafe { libc::_exit(127) }
}

/// Waits for the child to replace itself, which closes the socket, or to say why not.
pub(crate) fn await_program(report: &OwnedFd, until: Instant) -> (ProgramReplacement, Option<OwnedFd>) {
    let mut calls = None;
    loop {
        match receive_message(report) {
            Ok(ChildMessage::Calls(given)) => calls = Some(given),
            Ok(ChildMessage::Replacement(went)) => return (went, calls),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return (ProgramReplacement::NotYet, calls);
                }
                let left_ms = i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX);
                // Cut short, it only means to look once more.
                drop(sys::wait_readable(report.as_fd(), left_ms));
            }
            Err(_) => return (ProgramReplacement::Yes, calls),
        }
    }
}

/// One message of a child.
enum ChildMessage {
    /// Where its calls are answered.
    Calls(OwnedFd),
    Replacement(ProgramReplacement),
}

/// Receives one message of a child.
fn receive_message(report: &OwnedFd) -> io::Result<ChildMessage> {
    let mut message = [0; REPORT_LEN];
    match sockets::receive_packet(report.as_fd(), &mut message)? {
        (_, Some(calls)) => Ok(ChildMessage::Calls(calls)),
        (len, None) => Ok(ChildMessage::Replacement(parse_report(message, len))),
    }
}

/// A child that replaced itself closed the socket without a word.
fn parse_report(message: [u8; REPORT_LEN], len: usize) -> ProgramReplacement {
    let [step, errno @ ..] = message;
    if len == REPORT_LEN {
        ProgramReplacement::Failed { step, errno: i32::from_le_bytes(errno) }
    } else {
        ProgramReplacement::Yes
    }
}

pub(crate) fn not_spawned(program: &OsStr, cwd: &Path, step: u8, errno: i32) -> SpawnError {
    let cause = io::Error::from_raw_os_error(errno);
    let program = program.to_string_lossy();
    let why = if step == ChildStep::Program as u8 && errno == libc::ENOENT {
        format!("no program `{program}`")
    } else if step == ChildStep::Program as u8 {
        format!("cannot run `{program}`: {cause}")
    } else if step == ChildStep::Directory as u8 {
        format!("cannot enter {}: {cause}", cwd.display())
    } else if step == ChildStep::User as u8 {
        format!("cannot become the sandbox's user: {cause}")
    } else if step == ChildStep::Hold as u8 {
        format!("cannot hold its processes together: {cause}")
    } else {
        format!("cannot arrange its streams: {cause}")
    };
    SpawnError { errno, why }
}
