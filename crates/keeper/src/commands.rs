//! What a keeper does when it is told to.
//!
//! Owns: carrying out each command once, however often it arrives.

use std::time::{Duration, Instant};

use lodge_link::{
    Command, Ended, Event, ExecKind, ExecState, ExitRecord, STDERR_FILE, STDOUT_FILE, Start, Usage,
    is_valid_id,
};

use crate::captured::Captured;
use crate::execs::{self, Claim, Doomed, Running, Stage};
use crate::keep::Keeper;
use crate::relay::{Feed, Lines, WhenEmpty};
use crate::spawn::{self, NotSpawned, Spawned};
use crate::sys;
use crate::tree::{self, Process};

/// Most execs at a time in one sandbox.
const RUNNING_MAX: usize = 256;
/// Most ended execs whose leftovers can still be killed by name.
const ENDED_MAX: usize = 1024;

impl Keeper {
    pub(crate) fn obey(&mut self, command: Command) {
        match command {
            Command::Start(start) => self.start(start),
            Command::Kill { exec, grace_ms } => self.kill(&exec, Duration::from_millis(grace_ms.into())),
            Command::Forget { exec } => self.forget(&exec),
            Command::RuntimeLine(line) => self.feed_runtime(&line),
            Command::End { grace_ms } => self.end(Duration::from_millis(grace_ms.into()), Instant::now()),
            Command::Ping { token } => self.tell(&Event::Pong { token }),
        }
    }

    fn start(&mut self, start: Start) {
        if let Some(why) = self.refusal(&start) {
            let exec = start.exec;
            return self.tell(&Event::Refused { exec, why: why.to_owned(), recorded: false });
        }
        let dir = match self.shelf.claim(&start.exec) {
            Ok(Claim::New(dir)) => dir,
            Ok(Claim::Taken) => return self.tell_state(&start.exec),
            Err(error) => {
                let why = format!("cannot claim it: {error}");
                return self.tell(&Event::Refused { exec: start.exec, why, recorded: false });
            }
        };
        self.fail_at("keeper.after_claim");
        let started_ms = sys::now_ms();
        match self.spawn(&start, &dir) {
            Ok((spawned, stdout, stderr)) => {
                self.fail_at("keeper.after_spawn");
                let pid = spawned;
                let id = start.exec.clone();
                let running = self.running_from(start, pid, dir, started_ms, stdout, stderr);
                // A group with this pid was empty, or the kernel would not have given it again.
                self.ended.retain(|(_, main)| *main != running.pid);
                let pid = running.pid.cast_unsigned();
                self.running.push(running);
                self.tell(&Event::Started { exec: id, pid });
            }
            Err(NotSpawned { errno, why }) => {
                let ended = Ended::NotStarted { errno, why: why.clone() };
                let recorded = self.record_not_started(&dir, ended, started_ms);
                // It did not run and nothing says so: without its claim it can be asked for again.
                if !recorded {
                    self.forget(&start.exec);
                }
                self.tell(&Event::Refused { exec: start.exec, why, recorded });
            }
        }
    }

    /// Why an exec is not even claimed.
    fn refusal(&self, start: &Start) -> Option<&'static str> {
        let is_known = self.running.iter().any(|one| one.id == start.exec);
        let has_runtime = self.running.iter().any(|one| one.kind == ExecKind::Runtime);
        if !is_valid_id(&start.exec) {
            Some("its id cannot name a directory")
        } else if is_known {
            None
        } else if self.ending.is_some() {
            Some("the sandbox is ending")
        } else if self.running.len() >= RUNNING_MAX {
            Some("too many execs are running")
        } else if start.kind == ExecKind::Runtime && has_runtime {
            Some("a runtime is running already")
        } else {
            None
        }
    }

    fn spawn(
        &mut self,
        start: &Start,
        dir: &std::os::fd::OwnedFd,
    ) -> Result<(SpawnedIn, Captured, Captured), NotSpawned> {
        let failed = |cause: std::io::Error| NotSpawned {
            errno: cause.raw_os_error().unwrap_or(libc::EIO),
            why: format!("cannot prepare its output: {cause}"),
        };
        let cap = start.output_cap;
        match start.kind {
            ExecKind::Tool => {
                let out_file = execs::create_output(dir, STDOUT_FILE).map_err(failed)?;
                let err_file = execs::create_output(dir, STDERR_FILE).map_err(failed)?;
                let Spawned { pid, stdin, stdout, stderr } = spawn::spawn(start, &self.confined, None)?;
                let stdout = Captured::new(Some(stdout), Some(out_file), cap);
                Ok((SpawnedIn { pid, stdin }, stdout, Captured::new(stderr, Some(err_file), cap)))
            }
            ExecKind::Runtime => {
                let log = self.log.duplicate().map_err(failed)?;
                let Spawned { pid, stdin, stdout, stderr } = spawn::spawn(start, &self.confined, Some(log))?;
                let stdout = Captured::new(Some(stdout), None, 0);
                Ok((SpawnedIn { pid, stdin }, stdout, Captured::new(stderr, None, 0)))
            }
        }
    }

    fn running_from(
        &mut self,
        start: Start,
        spawned: SpawnedIn,
        dir: std::os::fd::OwnedFd,
        started_ms: u64,
        stdout: Captured,
        stderr: Captured,
    ) -> Running {
        let when_empty = match start.kind {
            ExecKind::Tool => WhenEmpty::Close,
            ExecKind::Runtime => WhenEmpty::StayOpen,
        };
        Running {
            id: start.exec,
            serial: self.next_serial(),
            kind: start.kind,
            pid: spawned.pid,
            dir,
            started_ms,
            stdin: Feed::new(spawned.stdin, start.stdin, when_empty),
            stdout,
            stderr,
            lines: Lines::default(),
            stage: Stage::Alive,
            retry_at: None,
            note: String::new(),
        }
    }

    fn record_not_started(&self, dir: &std::os::fd::OwnedFd, ended: Ended, started_ms: u64) -> bool {
        let record = ExitRecord {
            ended,
            started_ms,
            finished_ms: sys::now_ms(),
            stdout: Default::default(),
            stderr: Default::default(),
            usage: Usage::default(),
            note: String::new(),
        };
        match execs::write_record(dir, &record) {
            Ok(()) => true,
            Err(error) => {
                self.log.say(&format!("could not record an exec that did not start: {error}"));
                false
            }
        }
    }

    fn tell_state(&mut self, exec: &str) {
        let state = self.shelf.state(exec, &self.running);
        let exec = exec.to_owned();
        self.tell(&match state {
            ExecState::Running { pid } => Event::Started { exec, pid },
            ExecState::Exited(record) => Event::Exited { exec, record },
            ExecState::Lost => Event::Lost { exec },
        });
    }

    fn kill(&mut self, exec: &str, grace: Duration) {
        let running = self.running.iter().find(|one| one.id == exec).map(|one| one.pid);
        let ended = self.ended.iter().find(|(id, _)| id == exec).map(|(_, main)| *main);
        match running.or(ended) {
            Some(main) => self.doom(main, grace),
            None => self.tell_not_running(exec),
        }
    }

    /// Asks an exec and its descendants to go, and sets the moment when they are not asked any more.
    pub(crate) fn doom(&mut self, main: i32, grace: Duration) {
        let known = self.signal_exec(main, &[], if grace.is_zero() { libc::SIGKILL } else { libc::SIGTERM });
        let at = Instant::now() + grace;
        match self.doomed.iter_mut().find(|doomed| doomed.main == main) {
            Some(doomed) => {
                doomed.at = doomed.at.min(at);
                doomed.known.extend(known);
            }
            None => self.doomed.push(Doomed { main, known, at }),
        }
    }

    /// Kills an exec that broke a rule, and notes which.
    pub(crate) fn condemn(&mut self, serial: u64, note: &str) {
        let Some(one) = self.running.iter_mut().find(|one| one.serial == serial) else { return };
        one.note.push_str(note);
        let main = one.pid;
        self.doom(main, Duration::ZERO);
    }

    /// Signals everything that belongs to an exec, and tells what that was.
    pub(crate) fn signal_exec(&self, main: i32, before: &[Process], signal: i32) -> Vec<Process> {
        if !self.confined.proc_is_ours {
            // The pids that `/proc` shows are not ours to signal by; the group is what is left.
            let is_ours = self.running.iter().any(|one| one.pid == main);
            if sys::kill(-main, signal).is_err() && is_ours {
                self.log.say(&format!("could not signal the group of {main}"));
            }
            return Vec::new();
        }
        let found = tree::belonging(&tree::processes(), main, before);
        for process in found.iter().filter(|process| !process.is_zombie) {
            // One that ended in the meantime is what was wanted.
            if tree::signal(process, signal).is_err() {}
        }
        found
    }

    /// Answers for an exec that cannot be signalled, so that nobody waits for its end.
    fn tell_not_running(&mut self, exec: &str) {
        if is_valid_id(exec) && self.shelf.is_claimed(exec) {
            self.tell_state(exec);
        } else {
            let why = "it was never started".to_owned();
            self.tell(&Event::Refused { exec: exec.to_owned(), why, recorded: false });
        }
    }

    fn forget(&mut self, exec: &str) {
        // A running exec has no outcome that could have been recorded.
        if !is_valid_id(exec) || self.running.iter().any(|one| one.id == exec) {
            return;
        }
        self.ended.retain(|(id, _)| id != exec);
        if let Err(error) = self.shelf.forget(exec) {
            self.log.say(&format!("could not forget {exec}: {error}"));
        }
    }

    fn feed_runtime(&mut self, line: &[u8]) {
        let Some(one) = self.running.iter_mut().find(|one| one.kind == ExecKind::Runtime) else { return };
        if !one.stdin.line(line) {
            let serial = one.serial;
            self.condemn(serial, "did not read what it was sent. ");
        }
    }

    /// Remembers an ended exec's main pid, for killing what it left behind.
    pub(crate) fn remember_ended(&mut self, exec: String, main: i32) {
        if self.ended.len() >= ENDED_MAX {
            self.ended.remove(0);
        }
        self.ended.push((exec, main));
    }

    /// Dies here, if the spec says so. Pid 1 cannot kill itself by a signal, but its exit is the same death.
    pub(crate) fn fail_at(&self, point: &str) {
        if self.spec.failpoint == point {
            // SAFETY: ends the process at once, without running anything of it.
            unsafe { libc::_exit(137) }
        }
    }
}

/// What is left of a spawned child once its output has its place.
pub(crate) struct SpawnedIn {
    pid: i32,
    stdin: std::os::fd::OwnedFd,
}
