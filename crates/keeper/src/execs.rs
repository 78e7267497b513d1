//! Execs on disk and running: the claim, the running exec, the exit record.
//!
//! Owns: the layout of `exec/<id>` and the order in which it is written. The claim comes before the start, the record
//! before the report.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::Instant;

use lodge_link::{
    EXEC_DIR, EXIT_FILE, ExecKind, ExecState, ExitOutcome, ExitRecord, KnownExec, LimitHit, ResourceUsage,
    STDERR_FILE, STDOUT_FILE, StreamCount, is_valid_id, limits, stderr_log, stdout_log,
};

use crate::captured::StreamCapture;
use crate::child_report::ChildReport;
use crate::disk::WriteSpace;
use crate::job::JobCapture;
use crate::kills::ProcessHold;
use crate::relay::{LineSplitter, PipeFeed};
use crate::spares::{SpareDirs, SpareResult};
use crate::sys;
use crate::watch::CountersAtStart;

/// Contains the claim of an exec while it runs, with space for the exit record that replaces it.
const EXIT_NEW: &str = "exit.new";
/// The longest claim fits into this many bytes.
const CLAIM_MAX: usize = limits::ID_MAX + 16;
const EXIT_TEMPORARY: &CStr = c"exit.new";

/// The directory that holds one directory for each claimed exec.
#[derive(Debug)]
pub(crate) struct ExecDirs {
    dir: OwnedFd,
    spares: SpareDirs,
    /// The directory for the output of commands.
    logs: Option<OwnedFd>,
}

/// How claiming an exec went.
#[derive(Debug)]
pub(crate) enum ExecClaim {
    /// It is ours to start.
    New(ClaimedExec),
    /// It was claimed before.
    Taken,
}

/// A claimed exec, with everything taken that its end will need.
#[derive(Debug)]
pub(crate) struct ClaimedExec {
    pub(crate) dir: Rc<OwnedFd>,
    /// As long as a record can be: what will be written there has its room on the disk.
    pub(crate) record: File,
    pub(crate) output: OutputTarget,
}

/// Where the streams of an exec go.
#[derive(Debug)]
pub(crate) enum OutputTarget {
    /// A tool's or a command's, each to a file.
    Files { stdout: File, stderr: File },
    /// A job's, to files that are made as they are needed.
    Parts { dir: Rc<OwnedFd> },
    /// A runtime's, apart from the lines that are relayed.
    Log,
}

/// An exec whose main process runs or ended a moment ago.
#[derive(Debug)]
pub(crate) struct RunningExec {
    pub(crate) id: String,
    /// Names it among descriptors, because pids come back.
    pub(crate) serial: u64,
    pub(crate) kind: ExecKind,
    /// The main process, if it was seen.
    pub(crate) pid: Option<i32>,
    pub(crate) held: ProcessHold,
    pub(crate) dir: Rc<OwnedFd>,
    pub(crate) room: File,
    pub(crate) started_ms: u64,
    pub(crate) stdin: PipeFeed,
    pub(crate) stdout: StreamCapture,
    pub(crate) stderr: StreamCapture,
    pub(crate) lines: LineSplitter,
    /// What a job has beyond that.
    pub(crate) job: Option<JobCapture>,
    /// Its program is not known to run yet: this report decides.
    pub(crate) starting: Option<ChildReport>,
    pub(crate) stage: ExecStage,
    /// Its record could not be written: not before this moment is that tried again.
    pub(crate) retry_at: Option<Instant>,
    pub(crate) note: String,
    /// The limit that it ran into, once it is known.
    pub(crate) cause: Option<LimitHit>,
    /// When its time is over, and how long that was.
    pub(crate) deadline: Option<Instant>,
    pub(crate) timeout_ms: u64,
    /// Most that it may write; 0: anything.
    pub(crate) output_max: u64,
    /// What the kernel had counted when it began.
    pub(crate) before: CountersAtStart,
    /// Whether it may write files.
    pub(crate) space: WriteSpace,
    /// The CPU time that it was seen to use.
    pub(crate) cpu_us: u64,
}

/// Where an exec is between its start and its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExecStage {
    Alive,
    /// The main process ended; what others still write counts until then.
    Draining {
        ended: ExitOutcome,
        usage: ResourceUsage,
        finished_ms: u64,
        until: Instant,
    },
}

impl RunningExec {
    /// The main process as it is reported.
    pub(crate) fn shown_pid(&self) -> u32 {
        self.pid.unwrap_or_default().cast_unsigned()
    }

    pub(crate) fn record(
        &self,
        ended: ExitOutcome,
        usage: ResourceUsage,
        finished_ms: u64,
        cause: Option<LimitHit>,
    ) -> ExitRecord {
        let mut note = self.note.clone();
        for (stream, captured) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if let Some(trouble) = &captured.trouble
                && captured.counted.seen > captured.counted.kept
            {
                let StreamCount { seen, kept } = captured.counted;
                note.push_str(&format!("{} bytes of its {stream} were dropped: {trouble}. ", seen - kept));
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
            cause,
        }
    }
}

impl ExecDirs {
    pub(crate) fn open(keeper_dir: &OwnedFd, logs: Option<OwnedFd>) -> io::Result<ExecDirs> {
        let name = c_name(EXEC_DIR)?;
        match sys::mkdir_at(keeper_dir.as_fd(), &name, 0o700) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let dir = open_dir(keeper_dir, &name)?;
        Ok(ExecDirs { spares: SpareDirs::open(&dir)?, dir, logs })
    }

    /// Claims an exec: from here on it was either started by this call or never will be by another.
    pub(crate) fn claim(&mut self, exec: &str, kind: ExecKind) -> io::Result<ExecClaim> {
        let name = c_name(exec)?;
        let given = match self.spares.give(&self.dir, &name) {
            SpareResult::Taken => return Ok(ExecClaim::Taken),
            SpareResult::Ready(dir, record) => Some((dir, record)),
            SpareResult::None => match sys::mkdir_at(self.dir.as_fd(), &name, 0o700) {
                Ok(()) => None,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(ExecClaim::Taken),
                Err(error) => return Err(error),
            },
        };
        let equipped = match given {
            Some((dir, record)) => Ok((dir, record)),
            None => self.reserve_record(&name),
        };
        match equipped.and_then(|(dir, record)| {
            record.write_all_at(&kind.claim(exec), 0)?;
            Ok(ClaimedExec { output: self.make_output(&dir, exec, kind)?, dir, record })
        }) {
            Ok(claimed) => Ok(ExecClaim::New(claimed)),
            Err(error) => {
                // It did not run: without its claim it can be requested again.
                self.take_back(exec)?;
                Err(error)
            }
        }
    }

    fn make_output(&self, dir: &Rc<OwnedFd>, exec: &str, kind: ExecKind) -> io::Result<OutputTarget> {
        Ok(match kind {
            ExecKind::Tool => OutputTarget::Files {
                stdout: create_output(dir, STDOUT_FILE)?.into(),
                stderr: create_output(dir, STDERR_FILE)?.into(),
            },
            ExecKind::Job => OutputTarget::Parts { dir: dir.clone() },
            ExecKind::Command => {
                let Some(logs) = &self.logs else {
                    return Err(io::Error::other("the sandbox has no directory for the output of commands"));
                };
                OutputTarget::Files {
                    stdout: create_log(logs, &stdout_log(exec))?.into(),
                    stderr: create_log(logs, &stderr_log(exec))?.into(),
                }
            }
            ExecKind::Runtime => OutputTarget::Log,
        })
    }

    /// Takes the room for the record before anything runs, so that what ran can be recorded on a full disk.
    fn reserve_record(&self, name: &CStr) -> io::Result<(Rc<OwnedFd>, File)> {
        let dir = Rc::new(open_dir(&self.dir, name)?);
        let record = File::from(create_output(&dir, EXIT_NEW)?);
        record.write_all_at(&[0; limits::RECORD_MAX], 0)?;
        Ok((dir, record))
    }

    /// Removes the claim of an exec that was not started, for which no descriptor may be left.
    fn take_back(&self, exec: &str) -> io::Result<()> {
        for file in [STDOUT_FILE, STDERR_FILE, EXIT_NEW] {
            match sys::unlink_at(self.dir.as_fd(), &c_name(&format!("{exec}/{file}"))?, 0) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        sys::unlink_at(self.dir.as_fd(), &c_name(exec)?, libc::AT_REMOVEDIR)
    }

    /// Whether an exec was claimed and not forgotten.
    pub(crate) fn is_claimed(&self, exec: &str) -> bool {
        c_name(exec).is_ok_and(|name| open_dir(&self.dir, &name).is_ok())
    }

    /// The beginning of a file of an exec.
    fn read(&self, exec: &str, file: &str, len_max: usize) -> Option<Vec<u8>> {
        let dir = open_dir(&self.dir, &c_name(exec).ok()?).ok()?;
        let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = File::from(sys::open_at(dir.as_fd(), &c_name(file).ok()?, flags, 0).ok()?);
        let mut bytes = Vec::new();
        file.take(len_max as u64).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Keeps what is open of an exec that ended and left nothing but its record, for when it is forgotten.
    pub(crate) fn keep_open(&mut self, exec: &str, dir: Rc<OwnedFd>, record: File) {
        // Without it, the directory is opened again.
        if let Ok(name) = c_name(exec) {
            self.spares.keep_open(name, dir, record);
        }
    }

    /// Removes an exec's directory. One that is not there was removed before.
    pub(crate) fn forget(&mut self, exec: &str) -> io::Result<()> {
        let (name, record) = (c_name(exec)?, c_name(EXIT_FILE)?);
        if self.spares.take_open(&self.dir, &name, &record, EXIT_TEMPORARY)? {
            return Ok(());
        }
        let mut dir = match open_dir(&self.dir, &name) {
            Ok(dir) => Rc::new(dir),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        // The record is removed last: an interrupted removal still has the outcome.
        let mut files = sys::names(dir.as_fd())?;
        if files == [record.as_c_str()] {
            match self.spares.take(&self.dir, &name, dir, &record, EXIT_TEMPORARY)? {
                None => return Ok(()),
                Some(given_back) => dir = given_back,
            }
        }
        files.sort_by_key(|file| file.as_bytes() == EXIT_FILE.as_bytes());
        for file in files {
            match sys::unlink_at(dir.as_fd(), &file, 0) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        sys::unlink_at(self.dir.as_fd(), &name, libc::AT_REMOVEDIR)
    }

    /// Every claimed exec, with its state according to `running` and the records.
    pub(crate) fn list_execs(&self, running: &[RunningExec]) -> Vec<KnownExec> {
        let path = format!("/proc/self/fd/{}", self.dir.as_raw_fd());
        let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter(|name| is_valid_id(name))
            .take(limits::WELCOME_EXECS_MAX)
            .map(|exec| self.look_up(exec, running))
            .collect()
    }

    /// What is known of a claimed exec.
    pub(crate) fn look_up(&self, exec: String, running: &[RunningExec]) -> KnownExec {
        if let Some(one) = running.iter().find(|one| one.id == exec) {
            return KnownExec { exec, kind: one.kind, state: ExecState::Running { pid: one.shown_pid() } };
        }
        let record = self.read(&exec, EXIT_FILE, limits::RECORD_MAX);
        let (kind, state) = match record.and_then(|bytes| ExitRecord::unseal(&bytes, &exec).ok()) {
            Some((record, kind)) => (kind, ExecState::Exited(record)),
            None => {
                let claim = self.read(&exec, EXIT_NEW, CLAIM_MAX);
                (claim.and_then(|bytes| ExecKind::of_claim(&bytes, &exec)), ExecState::Lost)
            }
        };
        KnownExec { kind: kind.unwrap_or_else(|| ExecKind::of_id(&exec)), exec, state }
    }
}

/// Writes the exit record into its room, so that it is there whole or not at all.
pub(crate) fn write_record(
    (dir, room): (&OwnedFd, &File),
    (exec, kind): (&str, ExecKind),
    record: &ExitRecord,
) -> io::Result<()> {
    // What is behind the record says nothing: it may stay.
    room.write_all_at(&record.seal(exec, kind), 0)?;
    sys::rename_at(dir.as_fd(), EXIT_TEMPORARY, &c_name(EXIT_FILE)?)
}

/// Creates a file of the exec. It must not exist.
pub(crate) fn create_output(dir: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    sys::open_at(dir.as_fd(), &c_name(name)?, flags, 0o600)
}

/// Creates a file for the output of a command, which programs of the sandbox may read. A file that a claim left which
/// was taken back is emptied.
fn create_log(dir: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_NOFOLLOW;
    sys::open_at(dir.as_fd(), &c_name(name)?, flags, 0o644)
}

fn open_dir(parent: &OwnedFd, name: &CStr) -> io::Result<OwnedFd> {
    sys::open_at(parent.as_fd(), name, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0)
}

fn c_name(name: &str) -> io::Result<CString> {
    CString::new(name).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}
