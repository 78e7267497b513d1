//! What a keeper does when it is told to.
//!
//! Owns: carrying out each command once, however often it arrives.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use lodge_link::{
    Command, Ended, Event, ExecKind, ExecState, ExitRecord, STDERR_FILE, STDOUT_FILE, Start, Usage,
    is_valid_id,
};

use crate::captured::{Captured, Place};
use crate::disk::{Room, Space};
use crate::execs::{self, Claim, Claimed, Output, Running, Stage};
use crate::files::Holding;
use crate::group::Group;
use crate::job::Job;
use crate::keep::Keeper;
use crate::kills::Held;
use crate::notify::Supervisor;
use crate::parts::{Layout, Parts};
use crate::relay::{Feed, Lines, WhenEmpty};
use crate::spawn::{self, Hold, NotSpawned, Progress, Replaced, Spawned};
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
            Ok(mut begun) => {
                self.supervise(begun.calls.take());
                let (mut running, went) = begun.running(start, serial, dir, room, started_ms);
                running.before = before;
                running.space = space;
                running.note = space.note(self.confined.bounds.limits.disk_bytes);
                self.running.push(running);
                self.watch_from(Instant::now());
                self.began(serial, went);
            }
            Err(error) => self.did_not_begin(start.exec, (&dir, &room), started_ms, error),
        }
    }

    /// Tells of a program that runs, or may do so.
    fn began(&mut self, serial: u64, went: Went) {
        let Some(one) = self.running.iter().find(|one| one.serial == serial) else { return };
        let (exec, pid, kind) = (one.id.clone(), one.shown_pid(), one.kind);
        match went {
            Went::Unknown => return,
            Went::Well | Went::Late => self.fail_at("keeper.after_spawn", kind),
        }
        self.runtime_works(Instant::now());
        self.record_guardians();
        self.tell(&Event::Started { exec, pid });
        if went == Went::Late {
            self.condemn(serial, "it was held up before it could begin. ");
        }
    }

    fn did_not_begin(
        &mut self,
        exec: String,
        (dir, room): (&OwnedFd, &File),
        started_ms: u64,
        error: NotSpawned,
    ) {
        let NotSpawned { errno, why } = error;
        let ended = Ended::NotStarted { errno, why: why.clone() };
        let recorded = self.record_not_started(&exec, (dir, room), ended, started_ms).is_some();
        // It did not run and nothing says so: without its claim it can be asked for again.
        if !recorded {
            self.forget(&exec);
        }
        self.tell(&Event::Refused { exec, why, recorded });
    }

    /// Hears from children that are on their way to become their programs, as far as they have something to say.
    pub(crate) fn hear_starts(&mut self, now: Instant) {
        let mut at = 0;
        while at < self.running.len() {
            let one = &mut self.running[at];
            let (serial, said) = (one.serial, one.starting.as_mut().and_then(|report| report.look(now)));
            let went = match said {
                None => {
                    at += 1;
                    continue;
                }
                Some(Replaced::Yes) => Went::Well,
                Some(Replaced::NotYet) => Went::Late,
                Some(Replaced::Failed { step, errno }) => {
                    let one = self.running.swap_remove(at);
                    self.gave_up(one, step, errno);
                    continue;
                }
            };
            let (exec, report) = (one.id.clone(), one.starting.take());
            let (asked_again, calls) = report.map_or((0, None), |report| (report.asked_again, report.calls));
            self.supervise(calls);
            self.began(serial, went);
            (0..asked_again).for_each(|_| self.tell_state(&exec));
            at += 1;
        }
    }

    /// Answers what an exec calls, from here on.
    fn supervise(&mut self, calls: Option<OwnedFd>) {
        if let (Some(supervisor), Some(calls)) = (&mut self.supervisor, calls) {
            supervisor.add(calls);
        }
    }

    /// Gives up waiting for those that had their time.
    pub(crate) fn hear_overdue_starts(&mut self, now: Instant) {
        if self.running.iter().any(|one| one.starting.as_ref().is_some_and(|report| report.until <= now)) {
            self.hear_starts(now);
        }
    }

    /// Clears up after a child that could not become its program.
    fn gave_up(&mut self, one: Running, step: u8, errno: i32) {
        let Some(report) = &one.starting else { return };
        let error = report.failed(step, errno);
        if let Some(pid) = one.pid.filter(|_| one.stage == Stage::Alive) {
            spawn::collect(pid);
        }
        if let Held::Group(group) = &one.held {
            self.remove_group(&one.id, group);
        }
        self.did_not_begin(one.id.clone(), (&one.dir, &one.room), one.started_ms, error);
        (0..report.asked_again).for_each(|_| self.tell_not_running(&one.id));
    }

    fn remove_group(&self, exec: &str, group: &Group) {
        if let Some(groups) = &self.confined.groups
            && !groups.remove(group)
        {
            self.log.say(&format!("the cgroup of {exec} stays"));
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
        let calls = self.supervisor.as_ref().map_or(0, Supervisor::descriptors);
        Holding { execs: self.running.len(), rest: self.left_behind() + self.leftovers.len() + calls }
    }

    fn spawn(&self, start: &Start, serial: u64, output: Output, space: Space) -> Result<Begun, NotSpawned> {
        let failed = |cause: std::io::Error| NotSpawned {
            errno: cause.raw_os_error().unwrap_or(libc::EIO),
            why: format!("cannot prepare it: {cause}"),
        };
        let groups = self.confined.groups.as_ref();
        let group = groups.map(|groups| groups.make(&start.exec, serial)).transpose().map_err(failed)?;
        let (out_place, err_place, given) = match output {
            Output::Files { stdout, stderr } => {
                let place = |file| Place::File { file, cap: start.output_cap };
                (place(stdout), place(stderr), None)
            }
            Output::Parts { dir } => {
                let layout = Layout { head: start.job_head, segment: start.job_segment };
                let place = |name| Place::Parts(Parts::new(dir.clone(), name, layout));
                (place(STDOUT_FILE), place(STDERR_FILE), None)
            }
            Output::Log => (Place::Nowhere, Place::Nowhere, Some(self.log.duplicate().map_err(failed)?)),
        };
        let hold = match &group {
            Some(group) => Hold::Group(group),
            None => Hold::Guardian { lock: self.lock.as_raw_fd(), others: self.guardians().len() as u64 },
        };
        let spawned = spawn::spawn(start, &self.confined, hold, given, space);
        let Spawned { pid, guard, stdin, stdout, stderr, progress, calls } = match spawned {
            Ok(spawned) => spawned,
            Err(error) => {
                if let Some(group) = &group {
                    self.remove_group(&start.exec, group);
                }
                return Err(error);
            }
        };
        let held = match (group, guard) {
            (Some(group), _) => Held::Group(group),
            (None, Some(guard)) => Held::Guard(guard),
            (None, None) => return Err(failed(std::io::Error::from_raw_os_error(libc::ECHILD))),
        };
        let (stdout, stderr) = (Captured::new(Some(stdout), out_place), Captured::new(stderr, err_place));
        Ok(Begun { pid, held, stdin, stdout, stderr, progress, calls })
    }

    fn record_not_started(
        &self,
        exec: &str,
        (dir, room): (&OwnedFd, &File),
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
        match execs::write_record(dir, room, exec, &record) {
            Ok(()) => Some(record),
            Err(error) => {
                self.log.say(&format!("could not record an exec that did not start: {error}"));
                None
            }
        }
    }

    pub(crate) fn tell_state(&mut self, exec: &str) {
        let starting = self.running.iter_mut().filter(|one| one.id == exec);
        if let Some(report) = starting.filter_map(|one| one.starting.as_mut()).next() {
            // It is on its way: this is answered when it is known how that went.
            report.asked_again = report.asked_again.saturating_add(1);
            return;
        }
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

/// How a start went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Went {
    /// It is on its way.
    Unknown,
    Well,
    /// Somebody holds it up, longer than anybody waits.
    Late,
}

/// An exec that was just spawned.
struct Begun {
    pid: Option<i32>,
    held: Held,
    stdin: OwnedFd,
    stdout: Captured,
    stderr: Captured,
    progress: Progress,
    /// What it calls, where that is known already.
    calls: Option<OwnedFd>,
}

impl Begun {
    fn running(
        self,
        start: Start,
        serial: u64,
        dir: Rc<OwnedFd>,
        room: File,
        started_ms: u64,
    ) -> (Running, Went) {
        let (starting, went) = match self.progress {
            Progress::Begun(report) => (Some(report), Went::Unknown),
            Progress::Runs => (None, Went::Well),
            Progress::Late => (None, Went::Late),
        };
        let job = match start.kind {
            ExecKind::Job => Some(Job::new(dir.clone(), start.keep_free)),
            ExecKind::Tool | ExecKind::Runtime => None,
        };
        let when_empty = match start.kind {
            ExecKind::Tool | ExecKind::Job => WhenEmpty::Close,
            ExecKind::Runtime => WhenEmpty::StayOpen,
        };
        let running = Running {
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
            job,
            starting,
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
        };
        (running, went)
    }
}
