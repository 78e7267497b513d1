//! The commands of the daemon.
//!
//! Owns: carrying out each command once, however often it arrives.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use lodge_link::{
    ExecKind, ExecState, ExitOutcome, ExitRecord, KeeperCommand, KeeperEvent, KnownExec, ResourceUsage,
    STDERR_FILE, STDOUT_FILE, StartExec, is_valid_id,
};

use crate::captured::{StreamCapture, StreamTarget};
use crate::child_report::{ProgramReplacement, SpawnError};
use crate::disk::{DiskVerdict, WriteSpace};
use crate::execs::{self, ClaimedExec, ExecClaim, ExecStage, OutputTarget, RunningExec};
use crate::files::OpenDescriptors;
use crate::group::ExecCgroup;
use crate::job::JobCapture;
use crate::keep::Keeper;
use crate::kills::ProcessHold;
use crate::notify::Supervisor;
use crate::parts::{StreamFiles, StreamLayout};
use crate::relay::{LineSplitter, PipeFeed, WhenEmpty};
use crate::spawn::{self, SpawnHold, SpawnProgress, SpawnedChild};
use crate::sys;
use crate::watch::CountersAtStart;

/// Most execs at a time in one sandbox.
const RUNNING_MAX: usize = 256;

impl Keeper {
    pub(crate) fn apply_command(&mut self, command: KeeperCommand) {
        match command {
            KeeperCommand::Start(start) => self.start(start),
            KeeperCommand::Kill { exec, grace_ms } => {
                self.kill(&exec, Duration::from_millis(grace_ms.into()))
            }
            KeeperCommand::Forget { exec } => self.forget(&exec),
            KeeperCommand::RuntimeLine(line) => self.feed_runtime(&line),
            KeeperCommand::End { grace_ms } => {
                self.end(Duration::from_millis(grace_ms.into()), Instant::now())
            }
            KeeperCommand::Ping { token } => self.report(&KeeperEvent::Pong { token }),
        }
    }

    fn start(&mut self, start: StartExec) {
        if let Some(why) = self.refusal(&start) {
            return self.refuse(start.exec, start.kind, why);
        }
        match self.room(&start, Instant::now()) {
            DiskVerdict::Known(space) => self.begin(start, space),
            DiskVerdict::Wait => {}
        }
    }

    pub(crate) fn begin(&mut self, start: StartExec, space: WriteSpace) {
        let claimed = match self.shelf.claim(&start.exec, start.kind) {
            Ok(ExecClaim::New(claimed)) => claimed,
            Ok(ExecClaim::Taken) => return self.report_state(&start.exec),
            Err(error) => {
                return self.refuse(start.exec, start.kind, &format!("cannot claim it: {error}"));
            }
        };
        self.fail_at("keeper.after_claim", start.kind);
        let (serial, started_ms, before) = (self.next_serial(), sys::now_ms(), self.before());
        let ClaimedExec { dir, record: room, output } = claimed;
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
            Err(error) => self.did_not_begin((start.exec, start.kind), (&dir, &room), started_ms, error),
        }
    }

    /// Reports a program that runs or may run.
    fn began(&mut self, serial: u64, went: StartResult) {
        let Some(one) = self.running.iter().find(|one| one.serial == serial) else { return };
        let (exec, pid, kind) = (one.id.clone(), one.shown_pid(), one.kind);
        match went {
            StartResult::Unknown => return,
            StartResult::Well | StartResult::Late => self.fail_at("keeper.after_spawn", kind),
        }
        self.runtime_works(Instant::now());
        self.record_guardians();
        let started = KeeperEvent::Started { exec, kind, pid };
        match kind {
            ExecKind::Job => self.report_started(&started),
            ExecKind::Tool | ExecKind::Command | ExecKind::Runtime => self.report(&started),
        }
        if went == StartResult::Late {
            self.kill_for_breach(serial, "it was delayed before it could start. ");
        }
    }

    fn did_not_begin(
        &mut self,
        (exec, kind): (String, ExecKind),
        (dir, room): (&OwnedFd, &File),
        started_ms: u64,
        error: SpawnError,
    ) {
        let SpawnError { errno, why } = error;
        let ended = ExitOutcome::NotStarted { errno, why: why.clone() };
        let recorded = self.record_not_started((&exec, kind), (dir, room), ended, started_ms).is_some();
        // It did not run and has no record: without its claim it can be requested again.
        if !recorded {
            self.forget(&exec);
        }
        self.report(&KeeperEvent::Refused { exec, kind, why, recorded });
    }

    /// Reads the reports of children that are about to become their programs.
    pub(crate) fn poll_starts(&mut self, now: Instant) {
        let mut at = 0;
        while at < self.running.len() {
            let one = &mut self.running[at];
            let (serial, said) =
                (one.serial, one.starting.as_mut().and_then(|report| report.poll_report(now)));
            let went = match said {
                None => {
                    at += 1;
                    continue;
                }
                Some(ProgramReplacement::Yes) => StartResult::Well,
                Some(ProgramReplacement::NotYet) => StartResult::Late,
                Some(ProgramReplacement::Failed { step, errno }) => {
                    let one = self.running.swap_remove(at);
                    self.record_failed_start(one, step, errno);
                    continue;
                }
            };
            let (exec, report) = (one.id.clone(), one.starting.take());
            let (asked_again, calls) = report.map_or((0, None), |report| (report.asked_again, report.calls));
            self.supervise(calls);
            self.began(serial, went);
            (0..asked_again).for_each(|_| self.report_state(&exec));
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
    pub(crate) fn expire_starts(&mut self, now: Instant) {
        if self.running.iter().any(|one| one.starting.as_ref().is_some_and(|report| report.until <= now)) {
            self.poll_starts(now);
        }
    }

    /// Clears up after a child that could not become its program.
    fn record_failed_start(&mut self, one: RunningExec, step: u8, errno: i32) {
        let Some(report) = &one.starting else { return };
        let error = report.failed(step, errno);
        if let Some(pid) = one.pid.filter(|_| one.stage == ExecStage::Alive) {
            spawn::collect(pid);
        }
        if let ProcessHold::Group(group) = &one.held {
            self.remove_group(&one.id, group);
        }
        self.did_not_begin((one.id.clone(), one.kind), (&one.dir, &one.room), one.started_ms, error);
        (0..report.asked_again).for_each(|_| self.report_not_running(&one.id));
    }

    fn remove_group(&self, exec: &str, group: &ExecCgroup) {
        if let Some(groups) = &self.confined.groups
            && !groups.remove(group)
        {
            self.log.write_line(&format!("the cgroup of {exec} stays"));
        }
    }

    pub(crate) fn refuse(&mut self, exec: String, kind: ExecKind, why: &str) {
        self.report(&KeeperEvent::Refused { exec, kind, why: why.to_owned(), recorded: false });
    }

    /// Why an exec is refused before a claim.
    pub(crate) fn refusal(&self, start: &StartExec) -> Option<&'static str> {
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

    fn holding(&self) -> OpenDescriptors {
        let calls = self.supervisor.as_ref().map_or(0, Supervisor::descriptors);
        OpenDescriptors { execs: self.running.len(), rest: self.left_behind() + self.leftovers.len() + calls }
    }

    fn spawn(
        &self,
        start: &StartExec,
        serial: u64,
        output: OutputTarget,
        space: WriteSpace,
    ) -> Result<SpawnedExec, SpawnError> {
        let failed = |cause: std::io::Error| SpawnError {
            errno: cause.raw_os_error().unwrap_or(libc::EIO),
            why: format!("cannot prepare it: {cause}"),
        };
        let groups = self.confined.groups.as_ref();
        let mut group = groups.map(|groups| groups.make(&start.exec, serial)).transpose().map_err(failed)?;
        if let Some(group) = group.as_mut().filter(|_| self.confined.bounds.limits.cpu_ms.is_some()) {
            group.reset_cpu();
        }
        let (out_place, err_place, given) = match output {
            OutputTarget::Files { stdout, stderr } => {
                let place = |file| StreamTarget::File { file, cap: start.output_cap };
                (place(stdout), place(stderr), None)
            }
            OutputTarget::Parts { dir } => {
                let layout = StreamLayout { head: start.job_head, segment: start.job_segment };
                let place = |name| StreamTarget::Parts(StreamFiles::new(dir.clone(), name, layout));
                (place(STDOUT_FILE), place(STDERR_FILE), None)
            }
            OutputTarget::Log => {
                (StreamTarget::Nowhere, StreamTarget::Nowhere, Some(self.log.duplicate().map_err(failed)?))
            }
        };
        let hold = match &group {
            Some(group) => SpawnHold::Group(group),
            None => {
                SpawnHold::Guardian { lock: self.lock.as_raw_fd(), others: self.guardians().len() as u64 }
            }
        };
        let spawned = spawn::spawn(start, &self.confined, hold, given, space);
        let SpawnedChild { pid, guard, stdin, stdout, stderr, progress, calls } = match spawned {
            Ok(spawned) => spawned,
            Err(error) => {
                if let Some(group) = &group {
                    self.remove_group(&start.exec, group);
                }
                return Err(error);
            }
        };
        let held = match (group, guard) {
            (Some(group), _) => ProcessHold::Group(group),
            (None, Some(guard)) => ProcessHold::Guard(guard),
            (None, None) => return Err(failed(std::io::Error::from_raw_os_error(libc::ECHILD))),
        };
        let (stdout, stderr) =
            (StreamCapture::new(Some(stdout), out_place), StreamCapture::new(stderr, err_place));
        Ok(SpawnedExec { pid, held, stdin, stdout, stderr, progress, calls })
    }

    fn record_not_started(
        &self,
        (exec, kind): (&str, ExecKind),
        (dir, room): (&OwnedFd, &File),
        ended: ExitOutcome,
        started_ms: u64,
    ) -> Option<ExitRecord> {
        let record = ExitRecord {
            ended,
            started_ms,
            finished_ms: sys::now_ms(),
            stdout: Default::default(),
            stderr: Default::default(),
            usage: ResourceUsage::default(),
            note: String::new(),
            cause: None,
        };
        match execs::write_record((dir, room), (exec, kind), &record) {
            Ok(()) => Some(record),
            Err(error) => {
                self.log.write_line(&format!("could not record an exec that did not start: {error}"));
                None
            }
        }
    }

    pub(crate) fn report_state(&mut self, exec: &str) {
        let starting = self.running.iter_mut().filter(|one| one.id == exec);
        if let Some(report) = starting.filter_map(|one| one.starting.as_mut()).next() {
            // It is on its way: this is answered when it is known how that went.
            report.asked_again = report.asked_again.saturating_add(1);
            return;
        }
        let KnownExec { exec, kind, state } = self.shelf.look_up(exec.to_owned(), &self.running);
        self.report(&match state {
            ExecState::Running { pid } => KeeperEvent::Started { exec, kind, pid },
            ExecState::Exited(record) => KeeperEvent::Exited { exec, kind, record },
            ExecState::Lost => KeeperEvent::Lost { exec, kind },
        });
    }

    fn kill(&mut self, exec: &str, grace: Duration) {
        self.stop_waiting(exec);
        if self.is_killable(exec) { self.schedule_kill(exec, grace) } else { self.report_not_running(exec) }
    }

    /// Answers for an exec that cannot be signalled, so that the daemon does not wait for its end.
    fn report_not_running(&mut self, exec: &str) {
        if is_valid_id(exec) && self.shelf.is_claimed(exec) {
            self.report_state(exec);
        } else {
            self.refuse(exec.to_owned(), ExecKind::of_id(exec), "it was never started");
        }
    }

    pub(crate) fn forget(&mut self, exec: &str) {
        // A running exec has no outcome that could have been recorded.
        if !is_valid_id(exec) || self.running.iter().any(|one| one.id == exec) {
            return;
        }
        self.forget_past(exec);
        if let Err(error) = self.shelf.forget(exec) {
            self.log.write_line(&format!("could not forget {exec}: {error}"));
        }
    }

    fn feed_runtime(&mut self, line: &[u8]) {
        self.runtime_works(Instant::now());
        let Some(one) = self.running.iter_mut().find(|one| one.kind == ExecKind::Runtime) else { return };
        if !one.stdin.line(line) {
            let serial = one.serial;
            self.kill_for_breach(serial, "did not read what it was sent. ");
        }
    }

    /// Dies here, if the spec names this point for this kind. Pid 1 cannot kill itself by a signal, but its exit has
    /// the same effect.
    pub(crate) fn fail_at(&self, point: &str, kind: ExecKind) {
        if self.spec.failpoint == point && kind != ExecKind::Runtime {
            // SAFETY: ends the process at once, without running anything of it.
            unsafe { libc::_exit(137) }
        }
    }
}

/// How a start went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartResult {
    /// It is on its way.
    Unknown,
    Well,
    /// It is delayed beyond the bound.
    Late,
}

/// An exec that was just spawned.
struct SpawnedExec {
    pid: Option<i32>,
    held: ProcessHold,
    stdin: OwnedFd,
    stdout: StreamCapture,
    stderr: StreamCapture,
    progress: SpawnProgress,
    /// What it calls, where that is known already.
    calls: Option<OwnedFd>,
}

impl SpawnedExec {
    fn running(
        self,
        start: StartExec,
        serial: u64,
        dir: Rc<OwnedFd>,
        room: File,
        started_ms: u64,
    ) -> (RunningExec, StartResult) {
        let (starting, went) = match self.progress {
            SpawnProgress::Begun(report) => (Some(report), StartResult::Unknown),
            SpawnProgress::Runs => (None, StartResult::Well),
            SpawnProgress::Late => (None, StartResult::Late),
        };
        let job = match start.kind {
            ExecKind::Job => Some(JobCapture::new(dir.clone(), start.keep_free)),
            ExecKind::Command => Some(JobCapture::without_order(dir.clone(), start.keep_free)),
            ExecKind::Tool | ExecKind::Runtime => None,
        };
        let when_empty = match start.kind {
            ExecKind::Tool | ExecKind::Job | ExecKind::Command => WhenEmpty::Close,
            ExecKind::Runtime => WhenEmpty::StayOpen,
        };
        let running = RunningExec {
            id: start.exec,
            serial,
            kind: start.kind,
            pid: self.pid,
            held: self.held,
            dir,
            room,
            started_ms,
            stdin: PipeFeed::new(self.stdin, start.stdin, when_empty),
            stdout: self.stdout,
            stderr: self.stderr,
            lines: LineSplitter::default(),
            job,
            starting,
            stage: ExecStage::Alive,
            retry_at: None,
            note: String::new(),
            cause: None,
            deadline: (start.timeout_ms > 0)
                .then(|| Instant::now().checked_add(Duration::from_millis(start.timeout_ms)))
                .flatten(),
            timeout_ms: start.timeout_ms,
            output_max: start.output_max,
            before: CountersAtStart::default(),
            space: WriteSpace::Left,
            cpu_us: 0,
        };
        (running, went)
    }
}
