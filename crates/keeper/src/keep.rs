//! The loop of a keeper: one thread, one `poll`, nothing that waits for anything else.
//!
//! Owns: which descriptors are watched and for how long to sleep. Commands are carried out in
//! `commands`, endings in `ends`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lodge_link::{ExecKind, KeeperEvent, KeeperSpec, RefusalReason, VERSION, Welcome, keeper_proof};

use crate::captured::{PipeFlow, SplicePipes, StreamCapture};
use crate::confine::ConfinedSandbox;
use crate::disk::RootDisk;
use crate::execs::{ExecDirs, ExecStage, RunningExec};
use crate::kills::{EndedExec, PendingKill, ProcessHold, StraySearch};
use crate::log::KeeperLog;
use crate::notify::{Supervisor, WatchedDescriptor};
use crate::peers::{
    self, ConnectionLost, DaemonPeer, HandshakeResult, OUT_HARD_MAX, OUT_SOFT_MAX, STRANGERS_MAX,
    UnprovenPeer,
};
use crate::relay::{LineSplitter, LineTooLong};
use crate::sys;
use crate::watch::LimitWatch;

/// How often a keeper without a daemon looks whether it is still wanted.
const LOOK_AROUND_EVERY: Duration = Duration::from_secs(60);
/// How long a keeper without a daemon and without work lives on.
const ALONE_MAX: Duration = Duration::from_secs(600);
/// The grace when the keeper ends by itself.
const ALONE_GRACE: Duration = Duration::from_secs(5);
/// A failpoint that does not kill: once a daemon has left, the time alone passes in no time.
const ALONE_AT_ONCE: &str = "keeper.alone_at_once";
const READ_MAX: usize = 8 * 1024;

/// A keeper and everything it keeps.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) spec: KeeperSpec,
    pub(crate) dir: OwnedFd,
    /// Locked while this process or a guardian lives; never read.
    pub(crate) lock: OwnedFd,
    pub(crate) log: KeeperLog,
    listener: UnixListener,
    host_pid: Option<u32>,
    pub(crate) confined: ConfinedSandbox,
    pub(crate) shelf: ExecDirs,
    pub(crate) signals: OwnedFd,
    pub(crate) ways: Rc<SplicePipes>,
    strangers: Vec<UnprovenPeer>,
    pub(crate) daemon: Option<DaemonPeer>,
    /// The highest epoch that was ever served.
    epoch: u64,
    pub(crate) running: Vec<RunningExec>,
    pub(crate) doomed: Vec<PendingKill>,
    /// Execs that ended: what they left behind can still be killed by their names.
    pub(crate) past: Vec<EndedExec>,
    pub(crate) strays: Option<StraySearch>,
    /// Pipes that outlived their exec. They are drained, so that their writers do not block.
    pub(crate) leftovers: Vec<StreamCapture>,
    pub(crate) ending: Option<SandboxEnd>,
    alone_since: Instant,
    looked_around: Instant,
    pub(crate) serial: u64,
    pub(crate) watch: LimitWatch,
    pub(crate) disk: RootDisk,
    /// Where calls of programs are answered here.
    pub(crate) supervisor: Option<Supervisor>,
}

/// The end of the sandbox, once it has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SandboxEnd {
    /// All processes got SIGTERM.
    Asked {
        until: Instant,
    },
    /// All processes got SIGKILL. After this moment the keeper exits without them.
    Forced {
        again: Instant,
        until: Instant,
    },
    Over,
}

/// Whose descriptor woke the loop.
#[derive(Debug, Clone, Copy)]
enum WakeSource {
    Signals,
    Listener,
    Stranger(u64),
    Daemon,
    Stdin(u64),
    Stdout(u64),
    Stderr(u64),
    Guard(u64),
    Starts,
    Leftovers,
    Count,
    Net(WatchedDescriptor),
}

impl Keeper {
    pub(crate) fn new(
        spec: KeeperSpec,
        dir: OwnedFd,
        lock: OwnedFd,
        log: KeeperLog,
        listener: UnixListener,
        host_pid: Option<u32>,
        mut confined: ConfinedSandbox,
    ) -> io::Result<Keeper> {
        let now = Instant::now();
        let user = confined.user;
        let control = confined.net.gate.as_mut().filter(|_| confined.net.supervised.is_some());
        let control = control.and_then(|gate| gate.control.take());
        let supervised = confined.net.supervised.take();
        let descriptors = confined.files.own();
        let supervisor =
            supervised.map(|with| Supervisor::new(with, control, user, descriptors)).transpose()?;
        Ok(Keeper {
            shelf: ExecDirs::open(&dir, confined.logs.take())?,
            signals: crate::ends::signals()?,
            ways: SplicePipes::open()?,
            strangers: Vec::new(),
            daemon: None,
            epoch: 0,
            running: Vec::new(),
            doomed: Vec::new(),
            past: Vec::new(),
            strays: None,
            leftovers: Vec::new(),
            ending: None,
            alone_since: now,
            looked_around: now,
            serial: 0,
            watch: LimitWatch::default(),
            disk: RootDisk::default(),
            supervisor,
            lock,
            spec,
            dir,
            log,
            listener,
            host_pid,
            confined,
        })
    }

    /// Keeps the sandbox until it is ended, or can no longer be needed.
    pub(crate) fn run(mut self) {
        self.log.write_line(&format!("keeps {} incarnation {}", self.spec.sandbox, self.spec.incarnation));
        let (mut polled, mut sources) = (Vec::new(), Vec::new());
        while self.ending != Some(SandboxEnd::Over) {
            self.watch(&mut polled, &mut sources);
            let timeout_ms = self.sleep_ms(Instant::now());
            // SAFETY: the list is as long as is announced and outlives the call.
            let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout_ms) };
            if ready > 0 {
                for (polled, source) in polled.iter().zip(&sources) {
                    if polled.revents != 0 {
                        self.serve(*source, polled.revents);
                    }
                }
            }
            self.keep_time(Instant::now());
        }
        if let Some(groups) = &self.confined.groups
            && let Err(error) = groups.remove_all()
        {
            self.log.write_line(&format!("its cgroup stays: {error}"));
        }
        if let Err(error) = self.confined.bounds.leave() {
            self.log.write_line(&format!("a cgroup of its limits stays: {error}"));
        }
        self.log.write_line("ends");
    }

    fn watch(&self, polled: &mut Vec<libc::pollfd>, sources: &mut Vec<WakeSource>) {
        polled.clear();
        sources.clear();
        let mut add = |fd: RawFd, events: libc::c_short, source: WakeSource| {
            polled.push(libc::pollfd { fd, events, revents: 0 });
            sources.push(source);
        };
        add(self.signals.as_raw_fd(), libc::POLLIN, WakeSource::Signals);
        add(self.listener.as_raw_fd(), libc::POLLIN, WakeSource::Listener);
        for stranger in &self.strangers {
            add(stranger.stream.as_raw_fd(), libc::POLLIN, WakeSource::Stranger(stranger.serial));
        }
        let behind = self.daemon.as_ref().map_or(0, DaemonPeer::behind);
        if let Some(daemon) = &self.daemon {
            let reads = if behind < OUT_HARD_MAX { libc::POLLIN } else { 0 };
            let writes = if behind > 0 { libc::POLLOUT } else { 0 };
            add(daemon.stream.as_raw_fd(), reads | writes, WakeSource::Daemon);
        }
        for one in &self.running {
            if let ProcessHold::Guard(guard) = &one.held
                && let Some(status) = guard.watched()
            {
                add(status.as_raw_fd(), libc::POLLIN, WakeSource::Guard(one.serial));
            }
            if let Some(report) = &one.starting {
                add(report.socket.as_raw_fd(), libc::POLLIN, WakeSource::Starts);
            }
            if let Some(pipe) = one.stdin.waiting() {
                add(pipe.as_raw_fd(), libc::POLLOUT, WakeSource::Stdin(one.serial));
            }
            let is_held_back = one.kind == ExecKind::Runtime && behind > OUT_SOFT_MAX;
            if let Some(pipe) = one.stdout.pipe.as_ref().filter(|_| !is_held_back) {
                add(pipe.as_raw_fd(), libc::POLLIN, WakeSource::Stdout(one.serial));
            }
            if let Some(pipe) = &one.stderr.pipe {
                add(pipe.as_raw_fd(), libc::POLLIN, WakeSource::Stderr(one.serial));
            }
        }
        if let Some(answer) = self.count_answer() {
            add(answer.as_raw_fd(), libc::POLLIN, WakeSource::Count);
        }
        for pipe in self.leftovers.iter().filter_map(|leftover| leftover.pipe.as_ref()) {
            add(pipe.as_raw_fd(), libc::POLLIN, WakeSource::Leftovers);
        }
        // After everything else: programs that call often must not delay the rest.
        if let Some(supervisor) = &self.supervisor {
            supervisor.watch(|fd, events, watched| add(fd, events, WakeSource::Net(watched)));
        }
    }

    fn serve(&mut self, source: WakeSource, events: libc::c_short) {
        match source {
            WakeSource::Signals => self.take_signals(),
            WakeSource::Listener => self.accept(),
            WakeSource::Stranger(serial) => self.read_unproven(serial),
            WakeSource::Daemon => self.serve_daemon(events),
            WakeSource::Stdin(serial) => {
                if let Some(one) = self.find(serial) {
                    one.stdin.pump();
                }
            }
            WakeSource::Stdout(serial) => self.read_stdout(serial),
            WakeSource::Stderr(serial) => self.read_stderr(serial),
            WakeSource::Count => self.receive_count(Instant::now()),
            WakeSource::Guard(serial) => self.read_guardian(serial),
            WakeSource::Starts => self.poll_starts(Instant::now()),
            WakeSource::Net(watched) => {
                if let Some(supervisor) = &mut self.supervisor {
                    supervisor.serve(watched, events);
                }
            }
            WakeSource::Leftovers => {
                self.leftovers.retain_mut(|leftover| leftover.pump(&self.ways) != PipeFlow::Ended)
            }
        }
    }

    // What a pump or a relay found is seen again, or not, by the next poll.
    fn read_stdout(&mut self, serial: u64) {
        let ways = self.ways.clone();
        let Some(one) = self.find(serial) else { return };
        match one.kind {
            ExecKind::Tool => {
                one.stdout.pump(&ways);
                self.check_output(serial);
            }
            ExecKind::Job | ExecKind::Command => drop(self.pump_job(serial)),
            ExecKind::Runtime => drop(self.relay(serial)),
        }
    }

    fn read_stderr(&mut self, serial: u64) {
        let ways = self.ways.clone();
        let Some(one) = self.find(serial) else { return };
        match one.kind {
            ExecKind::Tool | ExecKind::Runtime => {
                one.stderr.pump(&ways);
                self.check_output(serial);
            }
            ExecKind::Job | ExecKind::Command => drop(self.pump_job(serial)),
        }
    }

    fn find(&mut self, serial: u64) -> Option<&mut RunningExec> {
        self.running.iter_mut().find(|one| one.serial == serial)
    }

    pub(crate) fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.strangers.len() >= STRANGERS_MAX {
                peers::refuse(&stream, RefusalReason::TooManyWaiting);
                continue;
            }
            let serial = self.next_serial();
            if let Ok(stranger) = UnprovenPeer::challenge(stream, serial, Instant::now()) {
                self.strangers.push(stranger);
            }
        }
    }

    fn read_unproven(&mut self, serial: u64) {
        let Some(at) = self.strangers.iter().position(|stranger| stranger.serial == serial) else { return };
        let met = self.strangers[at].read(&self.spec.secret);
        if matches!(met, HandshakeResult::Waiting) {
            return;
        }
        let stranger = self.strangers.swap_remove(at);
        match met {
            HandshakeResult::Waiting | HandshakeResult::Gone => {}
            HandshakeResult::Liar => {
                // After a restart, the daemon first tries the secret of the next incarnation.
                self.log.write_line("debug turned away a peer with another secret");
                stranger.refuse(RefusalReason::BadProof);
            }
            HandshakeResult::Proven(_, hello) if hello.epoch < self.epoch => {
                stranger.refuse(RefusalReason::OldEpoch { current: self.epoch });
            }
            HandshakeResult::Proven(challenge, hello) => {
                let welcome = Welcome {
                    proof: keeper_proof(&self.spec.secret, &challenge, &hello),
                    version: VERSION,
                    incarnation: self.spec.incarnation,
                    host_pid: self.host_pid,
                    layers: self.confined.layers.list.clone(),
                    execs: self.shelf.list_execs(&self.running),
                    limits: self.confined.limits_in_force(),
                };
                let mut bytes = Vec::new();
                welcome.append_to(&mut bytes);
                self.epoch = hello.epoch;
                // This drops the older connection with its unread bytes.
                self.daemon = Some(stranger.into_daemon(hello.epoch, bytes));
                self.log.write_line(&format!("serves the daemon of epoch {}", hello.epoch));
                self.serve_daemon(libc::POLLIN | libc::POLLOUT);
            }
        }
    }

    fn serve_daemon(&mut self, events: libc::c_short) {
        let can_read = events & !libc::POLLOUT != 0;
        let kept = match &mut self.daemon {
            None => return,
            Some(daemon) if can_read => daemon.read().and_then(|()| daemon.write()),
            Some(daemon) => daemon.write(),
        };
        let obeyed = self.apply_commands();
        if kept.and(obeyed).is_err() {
            self.drop_daemon();
        }
    }

    /// Carries out every whole command that arrived, even from a daemon that is gone since.
    fn apply_commands(&mut self) -> Result<(), ConnectionLost> {
        while let Some(daemon) = &mut self.daemon {
            match daemon.next_command()? {
                Some(command) => self.apply_command(command),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    pub(crate) fn drop_daemon(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            self.log.write_line(&format!("lost the daemon of epoch {}", daemon.epoch));
            self.alone_since = Instant::now();
        }
    }

    /// Reports to the daemon, if it is connected. The exec's directory has events that it misses.
    pub(crate) fn report(&mut self, event: &KeeperEvent) {
        if let Some(daemon) = &mut self.daemon {
            daemon.queue(event);
            if daemon.write().is_err() {
                self.drop_daemon();
            }
        }
    }

    /// Passes the runtime's lines on. Without a daemon they are dropped: the runtime says them again.
    pub(crate) fn relay(&mut self, serial: u64) -> PipeFlow {
        let mut chunk = [0; READ_MAX];
        let Some(one) = self.running.iter_mut().find(|one| one.serial == serial) else {
            return PipeFlow::Ended;
        };
        let Some(pipe) = &one.stdout.pipe else { return PipeFlow::Ended };
        let len = match sys::read(pipe.as_fd(), &mut chunk) {
            Ok(0) => {
                one.stdout.pipe = None;
                return PipeFlow::Ended;
            }
            Ok(len) => len,
            Err(_) => return PipeFlow::Dry,
        };
        one.stdout.counted.seen += len as u64;
        self.runtime_works(Instant::now());
        let Some(one) = self.running.iter_mut().find(|one| one.serial == serial) else {
            return PipeFlow::Ended;
        };
        let daemon = &mut self.daemon;
        let cut = one.lines.push(&chunk[..len], |line| {
            if let Some(daemon) = daemon {
                KeeperEvent::append_runtime_line(line, &mut daemon.out);
            }
        });
        if let Err(LineTooLong) = cut {
            self.kill_for_breach(serial, "wrote a line longer than a line may be. ");
            // Closed only after the kill, so that the record has the kill and not a broken pipe.
            if let Some(one) = self.find(serial) {
                one.stdout.pipe = None;
                one.lines = LineSplitter::default();
            }
        }
        if let Some(daemon) = &mut self.daemon
            && daemon.write().is_err()
        {
            self.drop_daemon();
        }
        PipeFlow::More
    }

    /// Milliseconds until something is due, or -1 for none.
    fn sleep_ms(&self, now: Instant) -> i32 {
        let strangers = self.strangers.iter().map(|stranger| stranger.until);
        let drains = self.running.iter().filter_map(|one| match one.stage {
            ExecStage::Alive => None,
            ExecStage::Draining { until, .. } => Some(one.retry_at.unwrap_or(until)),
        });
        let doomed = self.doomed.iter().map(|doomed| doomed.at);
        let ending = self.ending.and_then(|ending| match ending {
            SandboxEnd::Asked { until } => Some(until),
            SandboxEnd::Forced { again, until } => Some(again.min(until)),
            SandboxEnd::Over => None,
        });
        let alone = self.daemon.is_none().then_some(self.liveness_due());
        let delayed = self.daemon.as_ref().and_then(DaemonPeer::delayed_until);
        let strays = self.strays.map(|strays| strays.at);
        let alive = self.running.iter().filter(|one| one.stage == ExecStage::Alive);
        let starts = self.running.iter().filter_map(|one| Some(one.starting.as_ref()?.until));
        let watches = alive.filter_map(|one| one.deadline).chain(self.watch.at).chain(starts);
        let due =
            strangers.chain(drains).chain(doomed).chain(strays).chain(ending).chain(alone).chain(delayed);
        let calls = self.supervisor.as_ref().and_then(Supervisor::due);
        let due = due.chain(watches).chain(self.report_at()).chain(calls).min();
        let Some(due) = due else { return -1 };
        // Rounded up: waking a moment early would only mean to sleep again.
        i32::try_from(due.saturating_duration_since(now).as_millis() + 1).unwrap_or(i32::MAX)
    }

    fn keep_time(&mut self, now: Instant) {
        self.strangers.retain(|stranger| stranger.until > now);
        if let Some(supervisor) = &mut self.supervisor {
            supervisor.keep_time(now);
        }
        self.report_outputs(now);
        self.tell_delayed(now);
        self.expire_starts(now);
        self.finish_drained(now);
        self.end_overdue(now);
        self.check_limits(now);
        self.kill_due(now);
        self.kill_strays(now);
        self.continue_ending(now);
        if self.daemon.is_none() && now >= self.liveness_due() {
            self.looked_around = now;
            self.check_liveness(now);
        }
    }

    fn liveness_due(&self) -> Instant {
        self.looked_around + self.scaled_wait(LOOK_AROUND_EVERY)
    }

    /// A wait of the keeper's solitude, as long as it really takes here.
    fn scaled_wait(&self, wait: Duration) -> Duration {
        let is_sped_up = self.epoch > 0 && self.spec.failpoint == ALONE_AT_ONCE;
        if is_sped_up { Duration::from_millis(20) } else { wait }
    }

    fn check_liveness(&mut self, now: Instant) {
        let is_vanished = sys::stat(self.dir.as_fd()).is_ok_and(|stat| stat.st_nlink == 0);
        if is_vanished {
            self.log.write_line("its directory vanished");
            self.end(Duration::ZERO, now);
        } else if now >= self.alone_since + self.scaled_wait(ALONE_MAX) && !self.has_work() {
            self.log.write_line("nothing to do and no daemon");
            // The loop ends once every exec has its record, so that of the runtime is not missing either.
            self.end(ALONE_GRACE, now);
        }
    }
}
