//! What a keeper does when it is told to.
//!
//! Owns: carrying out each command once, however often it arrives.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use lodge_link::{Command, Ended, Event, ExecKind, ExecState, ExitRecord, Start, Usage, is_valid_id};

use crate::captured::Captured;
use crate::disk::{Room, Space};
use crate::execs::{self, Claim, Claimed, Output, Running, Stage};
use crate::files::Holding;
use crate::keep::Keeper;
use crate::kills::Held;
use crate::relay::{Feed, Lines, WhenEmpty};
use crate::spawn::{self, Hold, NotSpawned, Progress, Spawned};
use crate::sys;
use crate::watch::Before;

/// Most execs at a time in one sandbox.
const RUNNING_MAX: usize = 256;

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
            return self.refuse(start.exec, why);
        }
        match self.room(&start, Instant::now()) {
            Room::Known(space) => self.begin(start, space),
            Room::Wait => {}
        }
    }

    pub(crate) fn begin(&mut self, start: Start, space: Space) {
        let claimed = match self.shelf.claim(&start.exec, start.kind) {
            Ok(Claim::New(claimed)) => claimed,
            Ok(Claim::Taken) => return self.tell_state(&start.exec),
            Err(error) => return self.refuse(start.exec, &format!("cannot claim it: {error}")),
        };
        self.fail_at("keeper.after_claim", start.kind);
        let (serial, started_ms, before) = (self.next_serial(), sys::now_ms(), self.before());
        let Claimed { dir, record: room, output } = claimed;
        match self.spawn(&start, serial, output, space) {
            Ok(begun) => {
                self.fail_at("keeper.after_spawn", start.kind);
                let id = start.exec.clone();
                let progress = begun.progress;
                let mut running = begun.running(start, serial, dir, room, started_ms);
                running.before = before;
                running.space = space;
                running.note = space.note(self.confined.bounds.limits.disk_bytes);
                let pid = running.shown_pid();
                self.running.push(running);
                self.watch_from(Instant::now());
                self.runtime_works(Instant::now());
                self.record_guardians();
                self.tell(&Event::Started { exec: id, pid });
                match progress {
                    Progress::Runs => {}
                    Progress::Late => self.condemn(serial, "it was held up before it could begin. "),
                }
            }
            Err(NotSpawned { errno, why }) => {
                let ended = Ended::NotStarted { errno, why: why.clone() };
                let recorded = self.record_not_started(&dir, &room, ended, started_ms).is_some();
                // It did not run and nothing says so: without its claim it can be asked for again.
                if !recorded {
                    self.forget(&start.exec);
                }
                self.tell(&Event::Refused { exec: start.exec, why, recorded });
            }
        }
    }

    pub(crate) fn refuse(&mut self, exec: String, why: &str) {
        self.tell(&Event::Refused { exec, why: why.to_owned(), recorded: false });
    }

    /// Why an exec is not even claimed.
    pub(crate) fn refusal(&self, start: &Start) -> Option<&'static str> {
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
        } else if !self.confined.files.suffice(self.holding()) {
            Some("too many execs are running or left something, for the descriptors that the keeper may have")
        } else if start.kind == ExecKind::Runtime && has_runtime {
            Some("a runtime is running already")
        } else {
            None
        }
    }

    fn holding(&self) -> Holding {
        Holding { execs: self.running.len(), rest: self.left_behind() + self.leftovers.len() }
    }

    fn spawn(
        &self,
        start: &Start,
        serial: u64,
        output: Option<Output>,
        space: Space,
    ) -> Result<Begun, NotSpawned> {
        let failed = |cause: std::io::Error| NotSpawned {
            errno: cause.raw_os_error().unwrap_or(libc::EIO),
            why: format!("cannot prepare it: {cause}"),
        };
        let groups = self.confined.groups.as_ref();
        let group = groups.map(|groups| groups.make(&start.exec, serial)).transpose().map_err(failed)?;
        let (out_file, err_file, given) = match output {
            Some(Output { stdout, stderr }) => (Some(stdout), Some(stderr), None),
            None => (None, None, Some(self.log.duplicate().map_err(failed)?)),
        };
        let hold = match &group {
            Some(group) => Hold::Group(group),
            None => Hold::Guardian { lock: self.lock.as_raw_fd(), others: self.guardians().len() as u64 },
        };
        let spawned = spawn::spawn(start, &self.confined, hold, given, space);
        let Spawned { pid, guard, stdin, stdout, stderr, progress } = match spawned {
            Ok(spawned) => spawned,
            Err(error) => {
                if let (Some(groups), Some(group)) = (groups, &group)
                    && !groups.remove(group)
                {
                    self.log.say(&format!("the cgroup of {} stays", start.exec));
                }
                return Err(error);
            }
        };
        let held = match (group, guard) {
            (Some(group), _) => Held::Group(group),
            (None, Some(guard)) => Held::Guard(guard),
            (None, None) => return Err(failed(std::io::Error::from_raw_os_error(libc::ECHILD))),
        };
        let cap = start.output_cap;
        let stdout = Captured::new(Some(stdout), out_file, cap);
        Ok(Begun { pid, held, stdin, stdout, stderr: Captured::new(stderr, err_file, cap), progress })
    }

    fn record_not_started(
        &self,
        dir: &OwnedFd,
        room: &File,
        ended: Ended,
        started_ms: u64,
    ) -> Option<ExitRecord> {
        let record = ExitRecord {
            ended,
            started_ms,
            finished_ms: sys::now_ms(),
            stdout: Default::default(),
            stderr: Default::default(),
            usage: Usage::default(),
            note: String::new(),
            cause: None,
        };
        match execs::write_record(dir, room, &record) {
            Ok(()) => Some(record),
            Err(error) => {
                self.log.say(&format!("could not record an exec that did not start: {error}"));
                None
            }
        }
    }

    pub(crate) fn tell_state(&mut self, exec: &str) {
        let state = self.shelf.state(exec, &self.running);
        let exec = exec.to_owned();
        self.tell(&match state {
            ExecState::Running { pid } => Event::Started { exec, pid },
            ExecState::Exited(record) => Event::Exited { exec, record },
            ExecState::Lost => Event::Lost { exec },
        });
    }

    fn kill(&mut self, exec: &str, grace: Duration) {
        self.stop_waiting(exec);
        if self.is_killable(exec) { self.doom(exec, grace) } else { self.tell_not_running(exec) }
    }

    /// Answers for an exec that cannot be signalled, so that nobody waits for its end.
    fn tell_not_running(&mut self, exec: &str) {
        if is_valid_id(exec) && self.shelf.is_claimed(exec) {
            self.tell_state(exec);
        } else {
            self.refuse(exec.to_owned(), "it was never started");
        }
    }

    pub(crate) fn forget(&mut self, exec: &str) {
        // A running exec has no outcome that could have been recorded.
        if !is_valid_id(exec) || self.running.iter().any(|one| one.id == exec) {
            return;
        }
        self.forget_past(exec);
        if let Err(error) = self.shelf.forget(exec) {
            self.log.say(&format!("could not forget {exec}: {error}"));
        }
    }

    fn feed_runtime(&mut self, line: &[u8]) {
        self.runtime_works(Instant::now());
        let Some(one) = self.running.iter_mut().find(|one| one.kind == ExecKind::Runtime) else { return };
        if !one.stdin.line(line) {
            let serial = one.serial;
            self.condemn(serial, "did not read what it was sent. ");
        }
    }

    /// Dies here, if the spec says so and it is not the runtime's turn. Pid 1 cannot kill itself by a signal, but its
    /// exit is the same death.
    pub(crate) fn fail_at(&self, point: &str, kind: ExecKind) {
        if self.spec.failpoint == point && kind != ExecKind::Runtime {
            // SAFETY: ends the process at once, without running anything of it.
            unsafe { libc::_exit(137) }
        }
    }
}

/// An exec that was just spawned.
struct Begun {
    pid: Option<i32>,
    held: Held,
    stdin: OwnedFd,
    stdout: Captured,
    stderr: Captured,
    progress: Progress,
}

impl Begun {
    fn running(self, start: Start, serial: u64, dir: OwnedFd, room: File, started_ms: u64) -> Running {
        let when_empty = match start.kind {
            ExecKind::Tool => WhenEmpty::Close,
            ExecKind::Runtime => WhenEmpty::StayOpen,
        };
        Running {
            id: start.exec,
            serial,
            kind: start.kind,
            pid: self.pid,
            held: self.held,
            dir,
            room,
            started_ms,
            stdin: Feed::new(self.stdin, start.stdin, when_empty),
            stdout: self.stdout,
            stderr: self.stderr,
            lines: Lines::default(),
            stage: Stage::Alive,
            retry_at: None,
            note: String::new(),
            cause: None,
            deadline: (start.timeout_ms > 0)
                .then(|| Instant::now().checked_add(Duration::from_millis(start.timeout_ms)))
                .flatten(),
            timeout_ms: start.timeout_ms,
            output_max: start.output_max,
            before: Before::default(),
            space: Space::Left,
            cpu_us: 0,
        }
    }
}
