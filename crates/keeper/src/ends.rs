//! Ends of processes, execs, scheduled kills, and the sandbox.
//!
//! Owns: reaping, and the order "output drained, record written, daemon informed".

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use lodge_link::{ExecKind, ExitOutcome, KeeperEvent, ResourceUsage};

use crate::captured::{PipeFlow, StreamCapture, StreamTarget};
use crate::execs::{self, ExecStage, RunningExec};
use crate::fence::Namespaces;
use crate::group::SandboxCgroup;
use crate::guardian::{self, ProgramDeath};
use crate::keep::{Keeper, SandboxEnd};
use crate::sys;
use crate::tree::{self, ExcludedProcesses, PidUse, ProcessTree};

/// How long output of an exec's other processes counts after its main process ended.
const DRAIN: Duration = Duration::from_millis(100);
/// How long killed processes may take to be gone before the keeper goes without them.
const FORCED_WITHIN: Duration = Duration::from_secs(5);
/// Between two rounds of killing: where processes are found by walking, one round may miss what just forked.
const FORCE_AGAIN_AFTER: Duration = Duration::from_millis(5);
/// The grace when the host, not the daemon, asks the keeper to end.
const HOST_GRACE: Duration = Duration::from_secs(5);
/// Most pipes that are emptied for processes which outlived their exec.
const LEFTOVERS_MAX: usize = 256;
/// Between two attempts to write a record for which there was no room.
const RECORD_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Most rounds of draining one stream when its exec ends.
const LAST_ROUNDS_MAX: usize = 64;

/// The signals that a keeper reads from a descriptor. They are blocked; children unblock them.
pub(crate) fn signals() -> io::Result<OwnedFd> {
    // SAFETY: the set is plain data, initialised by the calls, and outlives them; the descriptor is new.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGPIPE] {
            libc::sigaddset(&mut set, signal);
        }
        let mut blocked = set;
        // Unblocked by the watchdog alone.
        libc::sigaddset(&mut blocked, libc::SIGALRM);
        sys::check(libc::sigprocmask(libc::SIG_SETMASK, &blocked, std::ptr::null_mut()))?;
        let fd = sys::check(libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

impl Keeper {
    pub(crate) fn take_signals(&mut self) {
        let mut asked = false;
        loop {
            let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
            match sys::read(self.signals.as_fd(), &mut info) {
                Ok(len) if len == info.len() => {}
                Ok(_) | Err(_) => break,
            }
            // SAFETY: the kernel filled a whole structure of plain data.
            let info: libc::signalfd_siginfo = unsafe { std::ptr::read_unaligned(info.as_ptr().cast()) };
            let is_request = matches!(info.ssi_signo.cast_signed(), libc::SIGTERM | libc::SIGINT);
            // A sender outside of the namespace has no pid in it; one inside has no say.
            let is_from_host = info.ssi_pid == 0 || self.confined.namespaces == Namespaces::Host;
            asked |= is_request && is_from_host;
        }
        self.reap();
        if asked && self.ending.is_none() {
            self.log.write_line("the host asks to end");
            self.end(HOST_GRACE, Instant::now());
        }
    }

    /// Collects every process that ended, be it an exec's or an orphan.
    fn reap(&mut self) {
        loop {
            let mut status = 0;
            // SAFETY: `rusage` is plain data, for which zeroes are a valid value; both outlive the call.
            let (pid, usage) = unsafe {
                let mut usage: libc::rusage = std::mem::zeroed();
                (libc::wait4(-1, &mut status, libc::WNOHANG, &mut usage), usage)
            };
            if pid <= 0 {
                // A process that ended has reported how its start went.
                return self.poll_starts(Instant::now());
            }
            let died = if libc::WIFSIGNALED(status) {
                ProgramDeath::Signal(libc::WTERMSIG(status))
            } else {
                ProgramDeath::Code(libc::WEXITSTATUS(status))
            };
            let main =
                self.running.iter_mut().find(|one| one.pid == Some(pid) && one.stage == ExecStage::Alive);
            match main {
                Some(one) => one.ended(died.into(), guardian::from_rusage(&usage)),
                None if self.confined.net.gate.as_ref().is_some_and(|gate| gate.pid == pid) => {
                    self.gate_died(died)
                }
                None => self.collected(pid, died),
            }
        }
    }

    /// Without its gate a sandbox would wait for a network that never answers, and it cannot get another gate.
    fn gate_died(&mut self, died: ProgramDeath) {
        self.close_gate();
        self.log.write_line(&format!("its gate died ({died:?}), so it ends"));
        // Programs did not end by themselves, so nothing is recorded of how they did: they are lost, as with the keeper.
        self.ending = Some(SandboxEnd::Over);
    }

    /// Lets the gate end.
    fn close_gate(&mut self) {
        self.confined.net.gate = None;
        if let Some(supervisor) = &mut self.supervisor {
            supervisor.stock = None;
        }
    }

    /// Ends each exec whose main process is gone and whose output is, too, or has had its time.
    pub(crate) fn finish_drained(&mut self, now: Instant) {
        let mut at = 0;
        while at < self.running.len() {
            let due = match self.running[at].stage {
                ExecStage::Alive => None,
                // The result of the start is reported before the end.
                ExecStage::Draining { .. } if self.running[at].starting.is_some() => None,
                ExecStage::Draining { .. } if self.running[at].retry_at.is_some_and(|again| now < again) => {
                    None
                }
                ExecStage::Draining { until, .. } => Some(now >= until),
            };
            match due {
                Some(is_late) if self.drain(at) == PipeFlow::Ended || is_late => self.finish(at),
                Some(_) | None => at += 1,
            }
        }
    }

    /// Takes what is in the pipes of an exec now.
    fn drain(&mut self, at: usize) -> PipeFlow {
        let (ways, serial) = (self.ways.clone(), self.running[at].serial);
        for _ in 0..LAST_ROUNDS_MAX {
            let stdout = match self.running[at].kind {
                ExecKind::Tool => self.running[at].stdout.pump(&ways),
                ExecKind::Runtime => self.relay(serial),
                ExecKind::Job | ExecKind::Command => match self.pump_job(serial) {
                    PipeFlow::More => continue,
                    both @ (PipeFlow::Dry | PipeFlow::Ended) => return both,
                },
            };
            self.check_output(serial);
            let stderr = match &self.running[at].stderr.pipe {
                Some(_) => self.running[at].stderr.pump(&ways),
                None => PipeFlow::Ended,
            };
            match (stdout, stderr) {
                (PipeFlow::Ended, PipeFlow::Ended) => return PipeFlow::Ended,
                (PipeFlow::More, _) | (_, PipeFlow::More) => {}
                (PipeFlow::Dry, PipeFlow::Dry | PipeFlow::Ended) | (PipeFlow::Ended, PipeFlow::Dry) => {
                    return PipeFlow::Dry;
                }
            }
        }
        PipeFlow::More
    }

    fn finish(&mut self, at: usize) {
        let mut one = self.running.swap_remove(at);
        let (ended, usage, finished_ms) = match &one.stage {
            ExecStage::Draining { ended, usage, finished_ms, .. } => (ended.clone(), *usage, *finished_ms),
            ExecStage::Alive => return self.running.push(one),
        };
        let cause = self.cause_of(&one, &ended);
        let record = one.record(ended, usage, finished_ms, cause);
        self.fail_at("keeper.before_exit_record", one.kind);
        let mut is_recorded = false;
        match execs::write_record((&one.dir, &one.room), (&one.id, one.kind), &record) {
            Ok(()) => is_recorded = true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.log.write_line(&format!("the directory of {} is gone, its end is not recorded", one.id));
            }
            Err(error) => {
                // An end that a crash could undo is not reported, so a full disk delays it.
                if one.retry_at.is_none() {
                    self.log.write_line(&format!("could not record how {} ended: {error}", one.id));
                }
                one.retry_at = Some(Instant::now() + RECORD_AGAIN_AFTER);
                return self.running.push(one);
            }
        }
        self.fail_at("keeper.after_exit_record", one.kind);
        for stream in [&mut one.stdout, &mut one.stderr] {
            if let Some(pipe) = stream.pipe.take()
                && self.leftovers.len() < LEFTOVERS_MAX
            {
                self.leftovers.push(StreamCapture::new(Some(pipe), StreamTarget::Nowhere));
            }
        }
        // A file is made with the first byte for it.
        let is_silent = one.stdout.counted.seen + one.stderr.counted.seen == 0;
        if is_recorded && is_silent && one.kind == ExecKind::Job {
            self.shelf.keep_open(&one.id, one.dir, one.room);
        }
        self.remember(one.id.clone(), one.pid, one.held);
        if let Some(cause) = record.cause {
            self.explained(cause.resource);
            // What it left behind is part of what ran into the limit.
            self.schedule_kill(&one.id, Duration::ZERO);
        }
        self.report(&KeeperEvent::Exited { exec: one.id, kind: one.kind, record });
    }

    /// Starts the end of the sandbox, or brings its deadline forward.
    pub(crate) fn end(&mut self, grace: Duration, now: Instant) {
        let until = now + grace;
        match self.ending {
            None => {
                let alive = self.running.iter_mut().filter(|one| one.stage == ExecStage::Alive);
                for one in alive {
                    one.note.push_str("ended by Lodge, with its sandbox: what it did may be half done. ");
                }
                self.terminate_all();
                self.ending = Some(SandboxEnd::Asked { until });
            }
            Some(SandboxEnd::Asked { until: before }) => {
                self.ending = Some(SandboxEnd::Asked { until: before.min(until) });
            }
            Some(SandboxEnd::Forced { .. } | SandboxEnd::Over) => {}
        }
    }

    pub(crate) fn continue_ending(&mut self, now: Instant) {
        let is_empty = self.ending.is_some() && self.is_empty();
        match self.ending {
            None | Some(SandboxEnd::Over) => {}
            Some(SandboxEnd::Asked { .. } | SandboxEnd::Forced { .. }) if is_empty => {
                self.ending = Some(SandboxEnd::Over);
            }
            Some(SandboxEnd::Asked { until }) if now >= until => {
                self.kill_remaining();
                self.ending =
                    Some(SandboxEnd::Forced { again: now + FORCE_AGAIN_AFTER, until: now + FORCED_WITHIN });
            }
            Some(SandboxEnd::Forced { until, .. }) if now >= until => {
                self.log.write_line("some processes did not end");
                self.ending = Some(SandboxEnd::Over);
            }
            Some(SandboxEnd::Forced { again, until }) if now >= again => {
                self.kill_remaining();
                self.ending = Some(SandboxEnd::Forced { again: now + FORCE_AGAIN_AFTER, until });
            }
            Some(SandboxEnd::Asked { .. } | SandboxEnd::Forced { .. }) => {}
        }
    }

    /// Whether no process is left, and every exec has its record.
    fn is_empty(&mut self) -> bool {
        self.reap();
        if !self.running.is_empty() {
            return false;
        }
        // No process is left to use the gate, and it is a process as well.
        self.close_gate();
        // SAFETY: `siginfo_t` is plain data, for which zeroes are a valid value, and outlives the call.
        let any = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            sys::check(libc::waitid(libc::P_ALL, 0, &mut info, options))
        };
        any.is_err_and(|error| error.raw_os_error() == Some(libc::ECHILD))
    }

    /// Kills all who are left, and whom they forked meanwhile.
    fn kill_remaining(&self) {
        let by_group = self.confined.groups.as_ref().map(SandboxCgroup::kill);
        match by_group {
            Some(Ok(())) => {}
            Some(Err(_)) | None => self.kill_walking(),
        }
    }

    fn kill_walking(&self) {
        match self.confined.namespaces {
            // For pid 1 of a namespace these are all other processes in it. ESRCH means that none is left.
            Namespaces::Own => drop(sys::kill(-1, libc::SIGKILL)),
            Namespaces::Host => {
                let (own, guardians) = (std::process::id().cast_signed(), self.guardians());
                // Without its guardian, a program that forks all the time could not be found any longer. A guardian
                // ends by itself once it is alone, and outlives the keeper until then.
                ProcessTree::now().kill_descendants(
                    own,
                    ExcludedProcesses::Themselves(&guardians),
                    PidUse::Processes,
                );
                // A stopped guardian would never see that it is alone.
                guardians.into_iter().for_each(|guardian| drop(sys::kill(guardian, libc::SIGCONT)));
            }
        }
    }

    /// Sends SIGTERM to all processes. A guardian ignores it, and ends with its exec.
    fn terminate_all(&self) {
        match self.confined.namespaces {
            Namespaces::Own => drop(sys::kill(-1, libc::SIGTERM)),
            Namespaces::Host => {
                for process in ProcessTree::now().descendants(std::process::id().cast_signed()) {
                    // One that ended in the meantime is what was wanted.
                    if !process.is_zombie && tree::signal(&process, libc::SIGTERM).is_err() {}
                }
            }
        }
    }

    /// Whether anything runs that is not the runtime, which has nothing to do without a daemon.
    pub(crate) fn has_work(&self) -> bool {
        if self.running.iter().any(|one| one.kind.is_called()) {
            return true;
        }
        self.left_behind() > 0
    }
}

impl RunningExec {
    /// The main process ended: what others still write counts for a moment.
    pub(crate) fn ended(&mut self, ended: ExitOutcome, usage: ResourceUsage) {
        let until = Instant::now() + DRAIN;
        self.stage = ExecStage::Draining { ended, usage, finished_ms: sys::now_ms(), until };
    }
}
