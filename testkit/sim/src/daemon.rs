//! The shell around the engine, simulated: its queue, its writer, its death.
//!
//! Owns: the order of decide, commit, release. It mirrors the daemon's own shell and writer; the engine is the real one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use lodge_core::job::{JobState, JobWrite};
use lodge_core::record::{SessionWrite, StepKind, TurnWrite, Write};
use lodge_core::retry::Backoff;
use lodge_core::token::TokenRow;
use lodge_core::{AgentId, IdSource, TokenId, TurnId};
use lodge_daemon::view;
use lodge_engine::jobs::JobEffect;
use lodge_engine::{
    Batch, Effect, Engine, Host, Input, ModelEffect, Out, PullEffect, SandboxEffect, Seen, Settings, Ticket,
    Timer,
};

use crate::actor::SimActor;
use crate::client::shown;
use crate::images::SimPulls;
use crate::jobs::{SimArchiver, SimRead};
use crate::model::SimModelCall;
use crate::plan::{CommitPoint, Mutation};
use crate::room::LostDecisions;
use crate::words;
use crate::world::{DiskGroup, SimEvent, SimWorld};

/// As in the daemon: batches that may wait for the disk, inputs in one step, and how long nobody's writes wait.
const BATCHES_MAX: usize = 64;
const STEP_MAX: u64 = 128;
const ENGINE_QUEUE_MAX: usize = 1_024;
const LAZY_MS: u64 = 250;
const TELL_EVERY: u64 = 128;

#[derive(Debug)]
pub struct SimDaemon {
    pub life: u64,
    pub engine: Engine,
    pub inputs: VecDeque<Input>,
    pub deciding: bool,
    pub channel: VecDeque<Batch>,
    pub writer: SimWriter,
    pub actors: BTreeMap<AgentId, SimActor>,
    /// The call that a cancellation would reach.
    pub models: BTreeMap<TurnId, u64>,
    pub calls: BTreeMap<u64, SimModelCall>,
    /// Which caller waits, and with which of its requests.
    pub tickets: BTreeMap<Ticket, (usize, u64)>,
    pub archiver: SimArchiver,
    pub pulls: SimPulls,
    /// The tokens that let somebody in.
    pub doors: BTreeSet<TokenId>,
    /// Set while nothing can be recorded.
    pub halted: Option<LostDecisions>,
}

#[derive(Debug, Default)]
pub struct SimWriter {
    pub waiting: Vec<Batch>,
    pub doing: WriterState,
    oldest: Option<u64>,
    /// Names the newest wait, so that an earlier timer means nothing.
    wait: u64,
    asleep: bool,
    pub requests: u64,
    pub told: u64,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum WriterState {
    #[default]
    Waiting,
    Writing,
    Releasing,
}

impl SimDaemon {
    /// Whether everything that was decided is on disk and has left.
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
        if self.mutation == Mutation::LostTold {
            self.disk.untell();
        }
        let loaded = self.disk.load();
        if let Some(kept) = &mut self.kept {
            kept.push(DiskGroup::Opened);
        }
        let (life, epoch) = (self.life, loaded.epoch);
        self.say(|| format!("daemon {life} starts, epoch {epoch}"));
        let ids = IdSource::new(self.rng.next());
        let doors = loaded.tokens.iter().map(|row| row.id.clone()).collect();
        let convicted = self.convicted();
        let (host, now) = (self.host(), self.wall());
        let (engine, mut first) = Engine::boot_without(loaded, convicted, host, ids, "sim", now);
        if self.mutation == Mutation::LostPull {
            first.after.retain(|out| !matches!(out, Out::Act(Effect::Pull(PullEffect::Begin { .. }))));
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
            actors: BTreeMap::new(),
            models: BTreeMap::new(),
            calls: BTreeMap::new(),
            tickets: BTreeMap::new(),
            archiver: SimArchiver::default(),
            pulls: SimPulls::default(),
            doors,
            halted: None,
        });
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

    /// Killed, at this very moment.
    pub fn daemon_dies(&mut self, why: &str) {
        if self.daemon.take().is_none() {
            return;
        }
        let life = self.life;
        self.say(|| format!("daemon {life} dies: {why}"));
        self.unexplained_death();
        (self.die_at, self.disk_fails, self.disk_full) = (None, false, false);
        self.store.forget_writer();
        self.asked.clear();
        self.callers_lose_daemon();
        let pause = self.rng.delay(20);
        self.after(pause, SimEvent::DaemonStarts);
    }

    /// Tells the engine, as soon as it listens.
    pub fn tell(&mut self, seen: Seen) {
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
        self.trace.say(self.now, || {
            inputs.iter().map(words::input).fold("step:".to_owned(), |all, one| all + " " + &one)
        });
        let before = self.before_step(&inputs);
        let Some(daemon) = &mut self.daemon else { return };
        let batch = daemon.engine.step(inputs, now);
        self.tally.steps += 1;
        self.check_step();
        self.check_slots(before, &batch);
        if self.die_at == Some(CommitPoint::Decided) {
            return self.daemon_dies("right after a decision");
        }
        self.pass_on(batch);
    }

    /// Does at once what may be done at once, and hands the rest to the writer.
    pub fn pass_on(&mut self, mut batch: Batch) {
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

    fn mutate(&mut self, batch: &mut Batch) {
        match self.mutation {
            Mutation::EarlyRelease => {
                let early = std::mem::take(&mut batch.after);
                self.release_outs(early);
            }
            Mutation::LostIntent => {
                let starts = |out: &Out| {
                    matches!(
                        out,
                        Out::Act(Effect::Sandbox {
                            what: SandboxEffect::StartExec { resumed: false, .. },
                            ..
                        })
                    )
                };
                if batch.after.iter().any(starts) {
                    let is_tool = |write: &Write| matches!(write, Write::Turn(TurnWrite::Step(step)) if step.kind() == StepKind::Tool);
                    batch.writes.retain(|write| !is_tool(write));
                }
            }
            Mutation::LostStart => batch.writes.retain(|write| match write {
                Write::Job(JobWrite::Progress { progress, .. }) => {
                    progress.state != JobState::Running || progress.cancel.is_some()
                }
                _ => true,
            }),
            Mutation::LostCut => {
                batch.writes.retain(|write| !matches!(write, Write::Session(SessionWrite::Path(_))))
            }
            Mutation::None
            | Mutation::NoResend
            | Mutation::BlindRerun
            | Mutation::DeafActor
            | Mutation::DeafDoors
            | Mutation::HastyDeath
            | Mutation::EarlyForget
            | Mutation::LostTold
            | Mutation::LostPull
            | Mutation::LoosePull
            | Mutation::GreedyCollection
            | Mutation::AwayIsWritten
            | Mutation::EarlyRest
            | Mutation::LostClaims => {}
        }
    }

    /// The writer takes what waits, if it is free.
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
                return self.after_and_go(LAZY_MS, SimEvent::LazyOver { life, wait });
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

    fn after_and_go(&mut self, delay_ms: u64, next: SimEvent) {
        self.after(delay_ms, next);
        self.run_writer();
    }

    pub fn lazy_over(&mut self, wait: u64) {
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

    /// The moment of truth: the whole group is on disk, or nothing of it.
    pub fn written(&mut self) {
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
            return self.no_room();
        }
        let fails = std::mem::take(&mut self.disk_fails);
        // After an error nobody knows whether the group is there: either may be found.
        if fails && self.rng.chance(500) {
            return self.daemon_dies("the disk failed, and wrote nothing");
        }
        // A batch that was written when the connection broke is not written again.
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

    /// Puts the group on disk. Its writes stay with its first batch.
    pub fn record_group(&mut self) {
        let Some(daemon) = &mut self.daemon else { return };
        let writes: Vec<Write> =
            daemon.writer.waiting.iter_mut().flat_map(|batch| std::mem::take(&mut batch.writes)).collect();
        self.tally.commits += 1;
        self.trace.say(self.now, || format!("committed {} writes", writes.len()));
        if let Err(broken) = self.disk.commit(&writes) {
            self.fail(broken);
        }
        self.check_commit(&writes);
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
        for batch in group {
            self.publish(batch.events());
            outs.extend(batch.after);
        }
        if self.die_at == Some(CommitPoint::HalfReleased) && !outs.is_empty() {
            outs.truncate(self.rng.index(outs.len()));
            self.release_outs(outs);
            return self.daemon_dies("in the middle of a release");
        }
        self.release_outs(outs);
        let Some(daemon) = &mut self.daemon else { return };
        daemon.writer.doing = WriterState::Waiting;
        let (requests, told) = (daemon.writer.requests, daemon.writer.told);
        if requests - told >= TELL_EVERY {
            daemon.writer.told = requests;
            self.settled(requests, false);
        }
        self.run_writer();
    }

    fn release_outs(&mut self, outs: Vec<Out>) {
        for out in outs {
            match out {
                Out::Reply { ticket, reply } => {
                    let reply = reply.map(|answer| shown(&answer)).map_err(view::refused);
                    self.answer(ticket, reply);
                }
                Out::Act(effect) => self.act(effect),
            }
        }
    }

    fn token(&mut self, row: &TokenRow) {
        let deaf = self.mutation == Mutation::DeafDoors;
        let Some(daemon) = &mut self.daemon else { return };
        match row.revoked_at {
            None => drop(daemon.doors.insert(row.id.clone())),
            Some(_) if deaf => {}
            Some(_) => drop(daemon.doors.remove(&row.id)),
        }
    }

    fn act(&mut self, effect: Effect) {
        let agent = match &effect {
            Effect::Model(ModelEffect::Call(order)) => return self.call_model(order.as_ref().clone()),
            Effect::Model(ModelEffect::Cancel { turn }) => return self.cancel_model(turn),
            Effect::Timer(Timer::Revival { agent, run, delay_ms }) => {
                let (life, agent, run) = (self.life, agent.clone(), *run);
                return self.after(*delay_ms, SimEvent::Revival { life, agent, run });
            }
            Effect::Timer(Timer::Retry { agent, run, delay_ms }) => {
                let (life, agent, run) = (self.life, agent.clone(), *run);
                return self.after(*delay_ms, SimEvent::Retry { life, agent, run });
            }
            Effect::LookUp { agent, ask } => return self.look_up_later(agent, *ask),
            Effect::Token(row) => return self.token(row),
            Effect::Pull(PullEffect::Begin { row, ask }) => return self.pull_begins(row, *ask),
            Effect::Pull(PullEffect::Drop { agent }) => return self.pull_ends(agent),
            Effect::Pull(PullEffect::Collect) => return self.collect_images(),
            // Nobody reads a log here.
            Effect::Sandbox { what: SandboxEffect::NoteFailure { .. }, .. } => return,
            Effect::RemoveOutput { jobs } => return self.remove_outputs(jobs),
            Effect::Quarantine { work, .. } => return self.work_decided(work),
            Effect::Job(JobEffect::Archive { job }) => return self.archive_all(job),
            Effect::Job(JobEffect::Read { asked, agent, session, wish }) => {
                let (asked, session, wish) = (asked.clone(), session.clone(), wish.clone());
                return self.read_later(SimRead { asked, agent: agent.clone(), session, wish });
            }
            Effect::Sandbox { agent, .. } => agent.clone(),
        };
        self.trace.say(self.now, || format!("act {}", words::effect(&effect)));
        let Some(daemon) = &mut self.daemon else { return };
        daemon.actors.entry(agent.clone()).or_default().effects.push_back(effect);
        self.actor_runs(&agent);
    }
}
