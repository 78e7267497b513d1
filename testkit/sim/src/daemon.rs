//! The shell around the engine, simulated: its queue, its writer, its death.
//!
//! Owns: the order of decide, commit, release. It mirrors the daemon's own shell and writer; the engine is the real one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lodge_core::IdSource;
use lodge_core::record::Write;
use lodge_core::retry::Backoff;
use lodge_daemon::act::ports::Access;
use lodge_daemon::view;
use lodge_engine::{
    Batch, BatchOutput, Effect, Engine, Host, Input, Observation, PullEffect, SandboxEffect, Settings, Ticket,
};

use crate::client::shown;
use crate::images::SimPulls;
use crate::jobs::SimArchiver;
use crate::life::LifeOrder;
use crate::plan::{CommitPoint, SimMutation};
use crate::room::LostDecisions;
use crate::words;
use crate::world::{DiskGroup, SimEvent, SimWorld};

/// As in the daemon: batches that may wait for the disk, inputs of one step, and how long a batch waits that no caller waits for.
const BATCHES_MAX: usize = 64;
const STEP_MAX: u64 = 128;
const ENGINE_QUEUE_MAX: usize = 1_024;
const LAZY_MS: u64 = 250;
const REPORT_EVERY: u64 = 128;

#[derive(Debug)]
pub struct SimDaemon {
    pub life: u64,
    pub engine: Engine,
    pub inputs: VecDeque<Input>,
    pub deciding: bool,
    pub channel: VecDeque<Batch>,
    pub writer: SimWriter,
    /// Which caller waits, and with which of its requests.
    pub tickets: BTreeMap<Ticket, (usize, u64)>,
    pub archiver: SimArchiver,
    pub pulls: SimPulls,
    /// Tokens that are valid now.
    pub access: Arc<Access>,
    /// Decisions that were lost to a full disk. Set while nothing can be recorded.
    pub halted: Option<LostDecisions>,
}

#[derive(Debug, Default)]
pub struct SimWriter {
    pub waiting: Vec<Batch>,
    pub doing: WriterState,
    oldest: Option<u64>,
    /// The number of the newest wait. Timers of earlier waits are ignored.
    wait: u64,
    asleep: bool,
    pub requests: u64,
    pub reported: u64,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum WriterState {
    #[default]
    Waiting,
    Writing,
    Releasing,
}

impl SimDaemon {
    /// Whether all decisions are on disk and released.
    pub fn is_settled(&self) -> bool {
        self.halted.is_none()
            && self.writer.doing == WriterState::Waiting
            && self.writer.waiting.is_empty()
            && self.channel.is_empty()
    }
}

impl SimWorld {
    pub fn daemon_starts(&mut self) {
        if self.daemon.is_some() {
            return;
        }
        self.life += 1;
        self.tally.lives += 1;
        if self.mutation == SimMutation::LostEndReport {
            self.disk.forget_reports();
        }
        if self.mutation == SimMutation::LostWait {
            self.disk.forget_waits();
        }
        let loaded = self.disk.load();
        if let Some(kept) = &mut self.kept {
            kept.push(DiskGroup::Opened);
        }
        let (life, epoch) = (self.life, loaded.epoch);
        self.trace_line(|| format!("daemon {life} starts, epoch {epoch}"));
        let ids = IdSource::new(self.rng.next());
        let access = Arc::new(Access::of(loaded.tokens.iter().cloned(), self.wall()));
        let convicted = self.convicted();
        let (host, now) = (self.host(), self.wall());
        let (engine, mut first) = Engine::boot_with_suspects(loaded, convicted, host, ids, "sim", now);
        if self.mutation == SimMutation::LostPull {
            first
                .after
                .retain(|out| !matches!(out, BatchOutput::Act(Effect::Pull(PullEffect::Begin { .. }))));
        }
        if !first.early.is_empty() {
            self.fail("a boot asks for effects before its commit");
        }
        self.daemon = Some(SimDaemon {
            life,
            engine,
            inputs: VecDeque::new(),
            deciding: false,
            channel: VecDeque::from([first]),
            writer: SimWriter::default(),
            tickets: BTreeMap::new(),
            archiver: SimArchiver::default(),
            pulls: SimPulls::default(),
            access,
            halted: None,
        });
        self.order(LifeOrder::Start);
        self.end_stray_sandboxes();
        self.sweep();
        self.collect_images();
        self.run_writer();
    }

    pub fn host(&self) -> Host {
        let backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(30) };
        let boot = format!("boot-{}", self.machine.boot);
        let settings = Settings {
            policy: self.plan.policy,
            backoff,
            max_concurrent: self.plan.max_concurrent,
            max_jobs: self.plan.max_jobs,
            job_output: 64 << 20,
        };
        Host { boot, own_uids: true, settings, render: view::rendered }
    }

    fn end_stray_sandboxes(&mut self) {
        let strays: Vec<Effect> = self
            .disk
            .agents()
            .iter()
            .filter(|row| row.state.codes().0 < 7 && !row.state.wants_sandbox() && row.retry.at.is_none())
            .filter(|row| self.machine.is_held(&row.sandbox))
            .map(|row| Effect::Sandbox {
                sandbox: row.sandbox.clone(),
                agent: row.id.clone(),
                what: SandboxEffect::Down { run: row.runs, incarnation: row.incarnation },
            })
            .collect();
        strays.into_iter().for_each(|stray| self.act(stray));
    }

    /// Kills the daemon now.
    pub fn daemon_dies(&mut self, why: &str) {
        if self.daemon.take().is_none() {
            return;
        }
        let life = self.life;
        self.trace_line(|| format!("daemon {life} dies: {why}"));
        self.order(LifeOrder::Kill);
        self.unexplained_death();
        (self.die_at, self.disk_fails, self.disk_full) = (None, false, false);
        self.store.forget_writer();
        self.asked.clear();
        self.waits_are_read_again();
        self.callers_lose_daemon();
        let pause = self.rng.delay(20);
        self.after(pause, SimEvent::DaemonStarts);
    }

    /// Reports an observation to the engine.
    pub fn report(&mut self, seen: Observation) {
        self.input(Input::Seen(seen));
    }

    pub fn input(&mut self, input: Input) {
        let Some(daemon) = &mut self.daemon else { return };
        let closed = daemon.halted.is_some() || self.store.is_missed();
        if closed && matches!(input, Input::Api { .. }) {
            return self.refuse_input(&input);
        }
        if daemon.inputs.len() >= ENGINE_QUEUE_MAX && matches!(input, Input::Api { .. }) {
            return self.refuse_input(&input);
        }
        daemon.inputs.push_back(input);
        self.engine_wakes();
    }

    fn engine_wakes(&mut self) {
        let Some(daemon) = &mut self.daemon else { return };
        let full = daemon.channel.len() >= BATCHES_MAX;
        if daemon.deciding || daemon.inputs.is_empty() || full || daemon.halted.is_some() {
            return;
        }
        daemon.deciding = true;
        let life = daemon.life;
        let pause = if self.rng.chance(200) { self.rng.delay(1) } else { 0 };
        self.after(pause, SimEvent::Decide { life });
    }

    pub fn decide(&mut self) {
        self.check_rebuild();
        let now = self.wall();
        let most = if self.rng.chance(self.plan.crowd) { self.rng.between(1, STEP_MAX) } else { 1 };
        let Some(daemon) = &mut self.daemon else { return };
        daemon.deciding = false;
        if daemon.halted.is_some() {
            return;
        }
        let count = daemon.inputs.len().min(usize::try_from(most).unwrap_or(1));
        let inputs: Vec<Input> = daemon.inputs.drain(..count).collect();
        self.trace.trace_line(self.now, || {
            inputs.iter().map(words::input).fold("step:".to_owned(), |all, one| all + " " + &one)
        });
        let before = self.before_step(&inputs);
        self.watch_call_ends(&inputs);
        self.watch_retries(&inputs);
        let Some(daemon) = &mut self.daemon else { return };
        let batch = daemon.engine.step(inputs, now);
        self.tally.steps += 1;
        self.check_step();
        self.check_slots(before, &batch);
        if self.die_at == Some(CommitPoint::Decided) {
            return self.daemon_dies("right after a decision");
        }
        self.dispatch_batch(batch);
    }

    /// Releases what need not wait for the commit, and queues the rest for the writer.
    pub fn dispatch_batch(&mut self, mut batch: Batch) {
        self.watch_waits(&batch);
        self.watch_new_turns(&batch);
        for effect in std::mem::take(&mut batch.early) {
            self.act(effect);
        }
        self.mutate(&mut batch);
        if let Some(daemon) = &mut self.daemon
            && !(batch.writes.is_empty() && batch.after.is_empty())
        {
            daemon.channel.push_back(batch);
        }
        self.run_writer();
        self.engine_wakes();
    }

    /// Starts the writer on the queued batches, if it is idle.
    fn run_writer(&mut self) {
        let now = self.now;
        let Some(daemon) = &mut self.daemon else { return };
        let (life, writer) = (daemon.life, &mut daemon.writer);
        while writer.doing == WriterState::Waiting {
            let Some(batch) = daemon.channel.pop_front() else { break };
            let urgent = batch.urgent;
            writer.waiting.push(batch);
            if urgent {
                return self.write_group();
            }
            if writer.oldest.is_none() {
                writer.oldest = Some(now);
                writer.wait += 1;
                let wait = writer.wait;
                return self.schedule_and_run_writer(LAZY_MS, SimEvent::LazyOver { life, wait });
            }
        }
        let rests = writer.doing == WriterState::Waiting && writer.oldest.is_none() && !writer.asleep;
        if rests {
            writer.wait += 1;
            let wait = writer.wait;
            let pause = self.plan.rest_ms;
            self.after(pause, SimEvent::Rest { life, wait });
        }
    }

    fn schedule_and_run_writer(&mut self, delay_ms: u64, next: SimEvent) {
        self.after(delay_ms, next);
        self.run_writer();
    }

    pub fn lazy_wait_ends(&mut self, wait: u64) {
        let Some(daemon) = &mut self.daemon else { return };
        let writer = &daemon.writer;
        if writer.wait == wait && writer.oldest.is_some() && writer.doing == WriterState::Waiting {
            self.write_group();
        }
    }

    pub fn rest(&mut self, wait: u64) {
        let Some(daemon) = &mut self.daemon else { return };
        let writer = &mut daemon.writer;
        if writer.wait != wait || writer.doing != WriterState::Waiting || writer.oldest.is_some() {
            return;
        }
        writer.asleep = true;
        let requests = writer.requests;
        self.settled(requests, true);
    }

    fn write_group(&mut self) {
        let Some(daemon) = &mut self.daemon else { return };
        let writer = &mut daemon.writer;
        while writer.waiting.len() < BATCHES_MAX
            && let Some(batch) = daemon.channel.pop_front()
        {
            writer.waiting.push(batch);
        }
        (writer.oldest, writer.asleep) = (None, false);
        writer.wait += 1;
        let written = writer.waiting.iter().map(|batch| batch.requests() as u64).sum::<u64>();
        writer.requests += written;
        let life = daemon.life;
        if writer.waiting.iter().all(|batch| batch.writes.is_empty()) {
            writer.doing = WriterState::Releasing;
            self.after(0, SimEvent::Release { life });
        } else {
            writer.doing = WriterState::Writing;
            let pause = self.rng.delay(self.plan.disk_ms);
            self.after(pause, SimEvent::Written { life });
        }
        self.engine_wakes();
    }

    /// Ends a write: the complete group is on disk, or nothing of it.
    pub fn finish_write(&mut self) {
        if self.daemon.is_none() {
            return;
        }
        if self.store.is_fenced {
            self.store.is_fenced = false;
            return self.daemon_dies("another daemon owns the store");
        }
        if self.store.is_away() {
            return self.try_again_later();
        }
        if self.disk_full && !self.store.is_unsure() {
            return self.roll_back_group();
        }
        let fails = std::mem::take(&mut self.disk_fails);
        // After an error the group may be on disk or not.
        if fails && self.rng.chance(500) {
            return self.daemon_dies("the disk failed, and wrote nothing");
        }
        // The batch may have been written before the connection broke. It is not written twice.
        if !self.store.is_back() {
            self.record_group();
        }
        let Some(daemon) = &mut self.daemon else { return };
        let life = daemon.life;
        daemon.writer.doing = WriterState::Releasing;
        if fails {
            return self.daemon_dies("the disk failed, after it wrote");
        }
        if self.die_at == Some(CommitPoint::Committed) {
            return self.daemon_dies("between commit and reply");
        }
        self.after(0, SimEvent::Release { life });
    }

    /// Writes the group to disk. Its writes stay in its first batch.
    pub fn record_group(&mut self) {
        let Some(daemon) = &mut self.daemon else { return };
        let writes: Vec<Write> =
            daemon.writer.waiting.iter_mut().flat_map(|batch| std::mem::take(&mut batch.writes)).collect();
        self.tally.commits += 1;
        self.trace.trace_line(self.now, || format!("committed {} writes", writes.len()));
        if let Err(broken) = self.disk.commit(&writes) {
            self.fail(broken);
        }
        self.check_commit(&writes);
        self.waits_are_recorded(&writes);
        self.check_contents();
        if let Some(kept) = &mut self.kept {
            kept.push(DiskGroup::Writes(writes.clone()));
        }
        if let Some(first) = self.daemon.as_mut().and_then(|daemon| daemon.writer.waiting.first_mut()) {
            first.writes = writes;
        }
    }

    pub fn release(&mut self) {
        let Some(daemon) = &mut self.daemon else { return };
        let group = std::mem::take(&mut daemon.writer.waiting);
        let mut outs = Vec::new();
        let mut newest = None;
        for batch in group {
            self.publish(batch.events());
            newest = batch.events().last().cloned().or(newest);
            outs.extend(batch.after);
        }
        if let Some(newest) = newest {
            self.order(LifeOrder::Publish(Box::new(newest)));
        }
        if self.die_at == Some(CommitPoint::HalfReleased) && !outs.is_empty() {
            outs.truncate(self.rng.index(outs.len()));
            self.release_outs(outs);
            return self.order(LifeOrder::Die("in the middle of a release"));
        }
        self.release_outs(outs);
        let Some(daemon) = &mut self.daemon else { return };
        daemon.writer.doing = WriterState::Waiting;
        let (requests, reported) = (daemon.writer.requests, daemon.writer.reported);
        if requests - reported >= REPORT_EVERY {
            daemon.writer.reported = requests;
            self.settled(requests, false);
        }
        self.run_writer();
    }

    pub fn release_outs(&mut self, outs: Vec<BatchOutput>) {
        for out in outs {
            match out {
                BatchOutput::Reply { ticket, reply } => {
                    let reply = reply.map(|answer| shown(&answer)).map_err(view::refused);
                    self.order(LifeOrder::Reply { ticket, reply });
                }
                BatchOutput::Act(effect) => self.act(effect),
            }
        }
    }
}
