//! Runs small helper programs, such as credential helpers.
//!
//! Owns: that such a program ends in time with everything that it started, and that only a limited amount of its
//! output is read. Never: the question, or the meaning of the answer.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::open_files;

/// What one look at an open stream takes.
const PIECE: usize = 4_096;
/// The longest wait for a program that closed its streams and has not ended.
const END_PAUSE: Duration = Duration::from_millis(2);

/// A question for a program. The program gets exactly this environment.
#[derive(Debug, Clone)]
pub struct Helper {
    pub program: PathBuf,
    pub args: Vec<String>,
    pub env: Vec<(OsString, OsString)>,
    /// For all of it.
    pub within: Duration,
    /// Of each of its streams.
    pub output_max: usize,
}

/// What a program answered. It may be a secret, so it is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct HelperAnswer {
    /// Absent when a signal ended it.
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl std::fmt::Debug for HelperAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Helped").field("code", &self.code).finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    #[error("{} could not be run", program.display())]
    NotRun {
        program: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("{} did not answer within {within_s} s", program.display())]
    TooSlow { program: PathBuf, within_s: u64 },
    #[error("{} wrote more than {max} bytes", program.display())]
    TooLong { program: PathBuf, max: usize },
}

impl Helper {
    /// Runs the program with `input` as its stdin and waits until it ends. Blocks. Every process that it started ends
    /// with it.
    pub fn ask(&self, input: &[u8]) -> Result<HelperAnswer, HelperError> {
        let not_run = |cause| HelperError::NotRun { program: self.program.clone(), cause };
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear().envs(self.env.iter().cloned()).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Its own process group, so that every process that it started ends with it.
        command.process_group(0);
        let lower_limit = || {
            open_files::lower_in_child();
            Ok(())
        };
        // SAFETY: it makes only system calls, and allocates nothing.
        unsafe { command.pre_exec(lower_limit) };
        let mut running = HelperProcess { child: command.spawn().map_err(not_run)?, ended: None };
        let (stdout, stderr) = self.exchange(&mut running.child, input)?;
        let status = running.end().map_err(not_run)?;
        Ok(HelperAnswer { code: status.code(), stdout, stderr })
    }

    /// All that it says, once it has ended.
    fn exchange(&self, child: &mut Child, input: &[u8]) -> Result<(Vec<u8>, Vec<u8>), HelperError> {
        let not_run = |cause| HelperError::NotRun { program: self.program.clone(), cause };
        let until = Instant::now() + self.within;
        if let Some(mut stdin) = child.stdin.take() {
            // The program may end without reading its input. Its answer shows whether that matters. A question always
            // fits into the pipe.
            drop(stdin.write_all(input));
        }
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
        while out.is_some() || err.is_some() {
            let left = self.time_left(until)?;
            let (out_ready, err_ready) = ready(&out, &err, left).map_err(not_run)?;
            if out_ready && take(&mut out, &mut stdout).map_err(not_run)? == PipeState::Ended {
                out = None;
            }
            if err_ready && take(&mut err, &mut stderr).map_err(not_run)? == PipeState::Ended {
                err = None;
            }
            if stdout.len().max(stderr.len()) > self.output_max {
                return Err(HelperError::TooLong { program: self.program.clone(), max: self.output_max });
            }
        }
        while !has_ended(child).map_err(not_run)? {
            std::thread::sleep(self.time_left(until)?.min(END_PAUSE));
        }
        Ok((stdout, stderr))
    }

    fn time_left(&self, until: Instant) -> Result<Duration, HelperError> {
        until.checked_duration_since(Instant::now()).ok_or_else(|| HelperError::TooSlow {
            program: self.program.clone(),
            within_s: self.within.as_secs(),
        })
    }
}

/// The first program of that name in the directories of a `PATH`.
pub fn find_program(path: &std::ffi::OsStr, name: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    if name.is_empty() || name.contains('/') {
        return None;
    }
    let runs = |path: &PathBuf| {
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    let directories = std::env::split_paths(path).filter(|dir: &PathBuf| Path::is_absolute(dir));
    directories.map(|dir| dir.join(name)).find(runs)
}

/// A program that is killed with its process group when this is dropped.
struct HelperProcess {
    child: Child,
    ended: Option<ExitStatus>,
}

impl HelperProcess {
    /// Kills what is left of the group. The number cannot be reused before the wait, which comes after the signal.
    fn end(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.ended {
            return Ok(status);
        }
        if let Some(group) = pid_of(&self.child) {
            match kill_process_group(group, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH | Errno::PERM) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let status = self.child.wait()?;
        self.ended = Some(status);
        Ok(status)
    }
}

impl Drop for HelperProcess {
    fn drop(&mut self) {
        // The caller already gets another error.
        drop(self.end());
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// Whether it has ended. It is not waited for: its number stays its own.
fn has_ended(child: &Child) -> io::Result<bool> {
    let Some(pid) = pid_of(child) else { return Ok(true) };
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    match waitid(WaitId::Pid(pid), look) {
        Ok(found) => Ok(found.is_some()),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[derive(PartialEq, Eq)]
enum PipeState {
    Open,
    Ended,
}

/// Which of the streams have something to say.
fn ready(out: &Option<impl AsFd>, err: &Option<impl AsFd>, within: Duration) -> io::Result<(bool, bool)> {
    let fds = [out.as_ref().map(AsFd::as_fd), err.as_ref().map(AsFd::as_fd)];
    let mut asked: Vec<PollFd<'_>> =
        fds.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = Timespec::try_from(within).map_err(io::Error::other)?;
    match poll(&mut asked, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let mut said = asked.iter().map(|fd| !fd.revents().is_empty());
    let out_ready = out.is_some() && said.next().unwrap_or(false);
    Ok((out_ready, err.is_some() && said.next().unwrap_or(false)))
}

fn take(stream: &mut Option<impl Read>, into: &mut Vec<u8>) -> io::Result<PipeState> {
    let Some(stream) = stream else { return Ok(PipeState::Ended) };
    let mut piece = [0; PIECE];
    match stream.read(&mut piece) {
        Ok(0) => Ok(PipeState::Ended),
        Ok(read) => {
            into.extend_from_slice(&piece[..read]);
            Ok(PipeState::Open)
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(PipeState::Open),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn shell(script: &str) -> Helper {
        Helper {
            program: "/bin/sh".into(),
            args: vec!["-c".to_owned(), script.to_owned()],
            env: vec![("PATH".into(), "/usr/bin:/bin".into()), ("ONLY".into(), "this".into())],
            within: Duration::from_secs(20),
            output_max: 1_000,
        }
    }

    #[test]
    fn a_helper_gets_its_question_and_no_environment_but_what_it_was_given() {
        let answer = shell("read line; echo \"got $line $ONLY ${HOME-none}\"; echo why >&2; exit 3");
        let answer = answer.ask(b"registry.example\n").unwrap();
        assert_eq!(
            (answer.code, answer.stdout.as_slice()),
            (Some(3), &b"got registry.example this none\n"[..])
        );
        assert_eq!(
            (answer.stderr.as_slice(), format!("{answer:?}").contains("registry")),
            (&b"why\n"[..], false)
        );
        assert_eq!(shell("kill -9 $$").ask(b"").unwrap().code, None);
    }

    #[test]
    fn a_helper_that_does_not_end_is_ended_with_what_it_started() {
        for script in ["sleep 1000 & wait", "sleep 1000 & exit 0"] {
            let dir = tempfile::tempdir().unwrap();
            let fifo = dir.path().join("held");
            rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
            let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
            let held = rustix::fs::open(&fifo, flags, rustix::fs::Mode::empty()).unwrap();
            let script = format!("exec 3>{}; echo x >&3; {script}", fifo.display());
            let slow = Helper { within: Duration::from_millis(300), ..shell(&script) };
            assert!(matches!(slow.ask(b""), Err(HelperError::TooSlow { .. })), "{script}");
            // The last one that could write is gone, after what was written.
            let mut held = Some(File::from(held));
            let mut said = Vec::new();
            while held.is_some() {
                let (ready, _) = ready(&held, &None::<File>, Duration::from_secs(20)).unwrap();
                assert!(ready, "somebody holds it still: {script}");
                if take(&mut held, &mut said).unwrap() == PipeState::Ended {
                    held = None;
                }
            }
            assert_eq!(said, b"x\n");
        }
    }

    #[test]
    fn a_helper_that_says_too_much_or_is_not_there_is_an_error() {
        let endless = shell("while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done");
        assert!(matches!(endless.ask(b""), Err(HelperError::TooLong { max: 1_000, .. })));
        let missing = Helper { program: "/nowhere/x".into(), ..shell("") };
        assert!(matches!(missing.ask(b""), Err(HelperError::NotRun { .. })));
    }

    #[test]
    fn a_program_is_found_by_its_name_in_absolute_directories_alone() {
        let path = std::ffi::OsStr::new("relative:/nowhere:/bin:/usr/bin");
        assert_eq!(find_program(path, "sh"), Some("/bin/sh".into()));
        for name in ["", "../bin/sh", "/bin/sh", "no-such-program-here"] {
            assert_eq!(find_program(path, name), None, "{name}");
        }
    }
}
