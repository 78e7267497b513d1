//! Invariants after every step, after every commit, and at rest.

use std::collections::{BTreeMap, BTreeSet};

use lodge_core::agent::AgentState;
use lodge_core::job::{JobRow, JobState, JobWrite};
use lodge_core::limits::{IDLE_SESSIONS_MAX, LIVE_TURNS_MAX, LOOKUPS_MAX, RECENT_REQUESTS_MAX};
use lodge_core::record::{AgentRow, AgentWrite, EventRow, Role, TurnRow, TurnWrite, Write};
use lodge_core::turn::StepState;
use lodge_core::{AgentId, EventBody, EventKind, IdSource};
use lodge_engine::{AgentCommand, Batch, Command, Engine, Facts, Input, Observation};
use lodge_exec::ExecName;

use crate::facts::{check_indexes, check_slots, describe_difference};
use crate::jobs::most_jobs;
use crate::world::SimWorld;

/// All of the engine's memory is checked every this many steps; its sizes are checked after each.
const AUDIT_EVERY: u64 = 61;
/// How often, in a thousand steps, an engine is compared with its restart.
const REBUILD_PER_MILLE: u64 = 10;
/// The most tool calls of one turn at a time that the simulated model makes.
const CALLS_MAX: usize = 4;
/// The most requests that are decided and not on disk yet: all queued batches, each full.
const UNSETTLED_MAX: usize = 2 * 64 * 128;

/// No more jobs run than there are slots. While the shared slots are taken, an agent can start only its first job.
fn job_slots_are_shared(engine: &Engine, before: &EngineBefore, batch: &Batch) -> Result<(), String> {
    let running = engine.sizes().jobs.running;
    let most = before.jobs.max(most_jobs(before.max_jobs));
    if running > most {
        return Err(format!("{running} jobs run, of {most}"));
    }
    if running <= before.max_jobs {
        return Ok(());
    }
    let started = |write: &Write| match write {
        Write::Job(JobWrite::Progress { id, progress }) if progress.state == JobState::Running => {
            progress.cancel.is_none().then(|| id.clone())
        }
        _ => None,
    };
    // At least as many jobs ran when the last one started, so it is in an extra slot.
    let Some(last) = batch.writes.iter().rev().find_map(started) else { return Ok(()) };
    let facts = engine.facts();
    let Some(row) = facts.jobs.get(&last) else { return Ok(()) };
    let runs = |other: &&JobRow| other.agent == row.agent && other.progress.state == JobState::Running;
    let own = facts.jobs.values().filter(runs).count();
    if own > 1 {
        return Err(format!("{last} starts beside {running} jobs, and its agent has {own}"));
    }
    Ok(())
}

/// An engine before a step.
#[derive(Debug, Default)]
pub struct EngineBefore {
    working: usize,
    /// The most that may work at any moment of the step.
    max_concurrent: usize,
    /// The same for jobs.
    jobs: usize,
    max_jobs: usize,
    stopped: BTreeSet<AgentId>,
    /// Agents that a request of this step starts.
    asked: BTreeSet<AgentId>,
}

impl SimWorld {
    pub fn check_step(&mut self) {
        let Some(daemon) = &self.daemon else { return };
        let sizes = daemon.engine.sizes();
        let bounded = sizes.turns <= LIVE_TURNS_MAX
            && sizes.idle_sessions <= IDLE_SESSIONS_MAX
            && sizes.sessions <= sizes.turns + IDLE_SESSIONS_MAX
            && sizes.execs <= sizes.turns * CALLS_MAX
            && sizes.lookups <= LOOKUPS_MAX
            && sizes.requests <= RECENT_REQUESTS_MAX + UNSETTLED_MAX;
        if !bounded {
            return self.fail(format!("the engine holds more than its limits: {sizes:?}"));
        }
        if self.tally.steps.is_multiple_of(AUDIT_EVERY)
            && let Err(broken) =
                check_indexes(&daemon.engine.facts()).and_then(|()| check_slots(&daemon.engine))
        {
            self.fail(broken);
        }
    }

    /// No step lets more agents work than allowed, or starts a stopped agent.
    pub fn check_slots(&mut self, before: EngineBefore, batch: &Batch) {
        let Some(daemon) = &self.daemon else { return };
        let sizes = daemon.engine.sizes();
        let most = before.working.max(before.max_concurrent);
        if sizes.working > most {
            return self.fail(format!("{} agents work, of {}", sizes.working, sizes.max_concurrent));
        }
        if let Err(broken) = job_slots_are_shared(&daemon.engine, &before, batch) {
            return self.fail(broken);
        }
        let starts = |write: &Write| match write {
            Write::Agent(AgentWrite::State { id, state: AgentState::Pulling, .. }) => {
                (before.stopped.contains(id) && !before.asked.contains(id)).then(|| id.clone())
            }
            _ => None,
        };
        if let Some(id) = batch.writes.iter().find_map(starts) {
            self.fail(format!("{id} was stopped, and is started although nobody asked"));
        }
    }

    /// Records the state of the engine before it handles these inputs.
    pub fn before_step(&self, inputs: &[Input]) -> EngineBefore {
        let Some(daemon) = &self.daemon else { return EngineBefore::default() };
        let asked =
            inputs.iter().filter_map(|input| match input {
                Input::Api {
                    command:
                        Command::Agent(AgentCommand::Start { id })
                        | Command::Agent(AgentCommand::Restart { id, .. }),
                    ..
                } => Some(id.clone()),
                Input::Api { .. } | Input::Seen(_) => None,
            });
        let (sizes, stopped) = (daemon.engine.sizes(), daemon.engine.stopped_agents());
        // The number of slots may change in the middle of the step, and again.
        let given = inputs.iter().filter_map(|input| match input {
            Input::Seen(Observation::Configured(settings)) => {
                Some((settings.max_concurrent, settings.max_jobs))
            }
            Input::Seen(_) | Input::Api { .. } => None,
        });
        let most = |(a, b): (usize, usize), (c, d): (usize, usize)| (a.max(c), b.max(d));
        let (max_concurrent, max_jobs) = given.fold((sizes.max_concurrent, sizes.jobs.max), most);
        let (working, jobs) = (sizes.working, sizes.jobs.running);
        EngineBefore { working, max_concurrent, jobs, max_jobs, stopped, asked: asked.collect() }
    }

    /// Occasionally, when all decisions are on disk: a restart would load the engine's memory.
    pub fn check_rebuild(&mut self) {
        let settled = self.daemon.as_ref().is_some_and(crate::daemon::SimDaemon::is_settled);
        if settled && self.rng.chance(REBUILD_PER_MILLE) {
            self.rebuild();
        }
    }

    fn rebuild(&mut self) {
        let Some(daemon) = &self.daemon else { return };
        let facts = daemon.engine.facts();
        // A boot does not wait for the end of a pause before a revival or a retry, so its state would differ.
        let pauses = |row: &AgentRow| row.state == AgentState::Pulling || row.retry.at.is_some();
        if facts.agents.values().any(|agent| pauses(&agent.row)) {
            return;
        }
        self.tally.rebuilt += 1;
        let (loaded, ids) = (self.disk.peek(), IdSource::new(1));
        // Use the engine's current settings: a change may be queued.
        let mut host = self.host();
        host.settings.max_concurrent = daemon.engine.sizes().max_concurrent;
        host.settings.max_jobs = daemon.engine.sizes().jobs.max;
        let (engine, _) = Engine::boot(loaded, host, ids, "sim", self.wall());
        let mut found = engine.facts();
        // A boot records its event, and streams of removed agents are dropped by the step that removed them.
        found.seq -= 1;
        found.streams.entry(lodge_engine::DAEMON_STREAM.to_owned()).and_modify(|head| *head -= 1);
        found.streams.retain(|stream, _| facts.streams.contains_key(stream));
        if found != facts {
            return self.fail(describe_difference(&facts, &found));
        }
        self.check_agents();
        self.check_memory();
    }

    /// Agents in memory are what the store has, also those that a restart would not load.
    fn check_agents(&mut self) {
        let Some(daemon) = &self.daemon else { return };
        let mut memory = daemon.engine.agent_facts().into_iter();
        let differs = memory.find(|(id, memory)| self.disk.agent_fact(id).as_ref() != Some(memory));
        if let Some((id, memory)) = differs {
            let found = self.disk.agent_fact(&id);
            self.fail(format!("of {id} the engine remembers {memory:?}, and the store has {found:?}"));
        }
    }

    /// An agent with a write that is not on disk yet is in memory, unless it was removed.
    fn check_in_memory(&mut self, id: &AgentId) {
        let Some(daemon) = &self.daemon else { return };
        let removed = |batch: &Batch| {
            batch.writes.iter().any(|write| {
                matches!(write, Write::Agent(AgentWrite::State { id: gone, state: AgentState::Removed, .. }) if gone == id)
            })
        };
        let is_there = self.disk.agent_fact(id).is_some();
        if is_there && !daemon.engine.agent_facts().contains_key(id) && !daemon.channel.iter().any(removed) {
            self.fail(format!("{id} left memory before it was on disk"));
        }
    }

    /// The engine's memory of sessions equals the store, and no session is remembered without limit.
    pub fn check_memory(&mut self) {
        let Some(daemon) = &self.daemon else { return };
        let mut memory = daemon.engine.session_facts().into_iter();
        let differs = memory.find(|(id, memory)| memory.as_ref() != self.disk.session(id));
        let strays = daemon.engine.stray_sessions();
        if let Some((id, memory)) = differs {
            let found = self.disk.session(&id);
            self.fail(format!(
                "of session {id} the engine remembers {memory:?}, and the store has {found:?}"
            ));
        } else if !strays.is_empty() {
            self.fail(format!("sessions that nothing lets go: {strays:?}"));
        }
    }

    pub fn check_commit(&mut self, writes: &[Write]) {
        for write in writes {
            match write {
                Write::Turn(TurnWrite::Message(row)) if row.role == Role::User => {
                    self.check_once(&row.body.text);
                }
                Write::Turn(TurnWrite::Message(row)) => self.check_read(row),
                Write::Turn(TurnWrite::Note { turn, note }) => self.check_note(turn, note),
                Write::Job(write) => self.check_job_write(write),
                Write::Turn(TurnWrite::StepState {
                    turn,
                    step,
                    ordinal,
                    state: StepState::Interrupted,
                    ..
                }) => {
                    self.check_cut(turn, *step, *ordinal);
                }
                Write::Agent(AgentWrite::New(row)) => self.check_once(&row.image),
                Write::Agent(AgentWrite::State { id, .. } | AgentWrite::Spec { id, .. }) => {
                    self.check_in_memory(id);
                }
                Write::Agent(AgentWrite::Lineage(row)) => self.check_in_memory(&row.agent),
                Write::Event(row) => self.count(row),
                Write::Turn(TurnWrite::State { id, failure: Some(failure), .. }) => {
                    let lied = failure.code == "runtime.refused" && !self.clients.refused.contains(id);
                    if lied {
                        self.fail(format!("{id} failed because another agent's runtime said so"));
                    }
                }
                Write::Image(_)
                | Write::Sandbox(_)
                | Write::Session(_)
                | Write::Turn(_)
                | Write::Request(_)
                | Write::Token(_)
                | Write::Work(_) => {}
            }
        }
    }

    fn count(&mut self, row: &EventRow) {
        self.tally.events += 1;
        self.tally.revived += u64::from(row.body.kind() == EventKind::LineageRevived);
        self.tally.quarantined += u64::from(row.body.kind() == EventKind::WorkQuarantined);
        self.tally.ended += u64::from(row.body.kind() == EventKind::LineageEnded);
        self.tally.updated += u64::from(row.body.kind() == EventKind::AgentUpdated);
        self.tally.edited += u64::from(matches!(
            row.body.kind(),
            EventKind::SessionRewound
                | EventKind::SessionBranchActivated
                | EventKind::SessionForked
                | EventKind::SessionDeleted
        ));
        let again = matches!(&row.body, EventBody::AgentPulling(pulling) if pulling.attempt.is_some());
        self.tally.retried += u64::from(again);
    }

    /// A subscriber reads every event once, in order and in its final form.
    pub fn publish<'e>(&mut self, events: impl Iterator<Item = &'e EventRow>) {
        for event in events {
            if event.seq <= self.cursor {
                return self.fail(format!("event {} was published twice", event.seq));
            }
            // Events that a dead daemon committed and did not publish are read from the store.
            for seq in self.cursor + 1..event.seq {
                match self.disk.print(seq) {
                    Some(print) => self.prints.push(print),
                    None => return self.fail(format!("event {seq} is missing")),
                }
            }
            self.cursor = event.seq;
            self.prints.push((event.stream_seq, event.body.kind().code(), event.at.ms()));
        }
    }

    /// Every published event is stored and unchanged.
    pub fn check_published(&mut self) {
        for at in 0..self.prints.len() {
            let seq = at as u64 + 1;
            if self.disk.print(seq) != Some(self.prints[at]) {
                return self.fail(format!("event {seq} changed or vanished after it was published"));
            }
        }
    }

    /// Checks the state at rest: faults stopped, and all scheduled events ran.
    pub fn check_rest(&mut self) {
        self.check_published();
        let Some(daemon) = &self.daemon else { return self.fail("at rest, and there is no daemon") };
        if !daemon.is_settled() || !daemon.inputs.is_empty() {
            return self.fail("at rest, and the daemon has something to do");
        }
        if self.clients.is_waiting() || daemon.engine.waiting_callers() > 0 {
            let waiting = daemon.engine.waiting_callers();
            let asks: Vec<_> =
                self.clients.callers.iter().filter_map(|caller| caller.asks.as_ref()).collect();
            let what = format!("at rest, and callers wait: {asks:?}, {waiting} of them in the engine");
            return self.fail(what);
        }
        self.rebuild();
        self.check_deleted();
        let rest = self.turns_wait_for_a_reason().and_then(|()| self.nothing_is_left_behind());
        let rest = rest.and_then(|()| self.jobs_are_settled());
        let rest = rest.and_then(|()| self.images_are_referenced());
        if let Err(broken) = rest.and_then(|()| self.tokens_end_with_their_agent()) {
            self.fail(broken);
        }
    }

    /// The first live turn of its session waits for an operator, and so do those behind it.
    fn is_behind_quarantine(&self, turn: &TurnRow) -> bool {
        let mut live = self.disk.live_turns().filter(|live| live.row.session == turn.session);
        live.any(|live| live.row.number <= turn.number && self.disk.quarantined(&live.row.id))
    }

    fn tokens_end_with_their_agent(&self) -> Result<(), String> {
        for row in self.disk.tokens().filter(|row| row.revoked_at.is_none()) {
            let state = row.holder.agent().map(|agent| self.disk.agent(agent).map(|row| row.state));
            match state {
                Some(None | Some(AgentState::Removing | AgentState::Removed)) => {
                    return Err(format!("at rest, and {} is good for an agent that is {state:?}", row.id));
                }
                None
                | Some(Some(
                    AgentState::Pulling
                    | AgentState::Starting
                    | AgentState::Ready
                    | AgentState::Stopped
                    | AgentState::Failed(_),
                )) => {}
            }
        }
        Ok(())
    }

    fn turns_wait_for_a_reason(&self) -> Result<(), String> {
        for row in self.disk.agents() {
            if row.retry.at.is_some() || row.next.is_some() && row.state.takes_turns() {
                return Err(format!("at rest, and {} waits to be another: {row:?}", row.id));
            }
            match row.state {
                AgentState::Pulling | AgentState::Starting => {
                    return Err(format!("at rest, and {} is {}", row.id, row.state));
                }
                AgentState::Ready
                | AgentState::Stopped
                | AgentState::Failed(_)
                | AgentState::Removing
                | AgentState::Removed => {}
            }
        }
        // Jobs without a slot wait, and so do the turns that wait for them.
        let facts =
            self.daemon.as_ref().filter(|_| self.places_are_taken()).map(|daemon| daemon.engine.facts());
        let is_held_up = |turn: &TurnRow| {
            let first = |facts: &Facts| facts.sessions.get(&turn.session)?.live.first().cloned();
            facts.as_ref().is_some_and(|facts| first(facts).is_some_and(|id| facts.asleep.contains(&id)))
        };
        for turn in self.disk.live_turns() {
            let agent = self.disk.agent(&turn.row.agent).map(|row| row.state);
            match agent {
                // Its agent does not run. The turn continues after a start.
                Some(AgentState::Stopped | AgentState::Failed(_)) => {}
                Some(AgentState::Ready) if is_held_up(&turn.row) || self.is_behind_quarantine(&turn.row) => {}
                Some(
                    AgentState::Pulling
                    | AgentState::Starting
                    | AgentState::Ready
                    | AgentState::Removing
                    | AgentState::Removed,
                )
                | None => {
                    let (id, word) = (&turn.row.id, turn.row.state.word());
                    let around = self.live_turns_in_words();
                    return Err(format!("at rest, and {id} is {word} while its agent is {agent:?}{around}"));
                }
            }
        }
        Ok(())
    }

    /// One line for each live turn, with what it may wait for.
    fn live_turns_in_words(&self) -> String {
        let Some(daemon) = &self.daemon else { return String::new() };
        let (facts, sizes) = (daemon.engine.facts(), daemon.engine.sizes());
        let mut lines =
            format!("\n{} of {} agents work; jobs {:?}", sizes.working, sizes.max_concurrent, sizes.jobs);
        for (id, turn) in &facts.turns {
            let agent = facts.agents.get(&turn.row.agent);
            let session = facts.sessions.get(&turn.row.session);
            lines.push_str(&format!(
                "\n{id} {} of {} ({:?}, {:?} turns run, next {}) in {} (live {:?}), asleep {}, open {:?}",
                turn.row.state.word(),
                turn.row.agent,
                agent.map(|agent| agent.row.state),
                agent.map(|agent| agent.running),
                agent.is_some_and(|agent| agent.row.next.is_some()),
                turn.row.session,
                session.map(|session| &session.live),
                facts.asleep.contains(id),
                turn.open,
            ));
        }
        for (id, job) in &facts.jobs {
            lines.push_str(&format!("\n{id} {} of {}", job.progress.state.word(), job.agent));
        }
        lines.push_str(&format!("\nset aside: {:?}", facts.quarantine.keys()));
        lines
    }

    /// No agent has a sandbox that it should not have, and no program runs without open work.
    fn nothing_is_left_behind(&self) -> Result<(), String> {
        let states: BTreeMap<_, _> = self.disk.agents().iter().map(|row| (&row.id, row.state)).collect();
        for (id, sandbox) in &self.machine.sandboxes {
            let Some(keeper) = &sandbox.keeper else { continue };
            let state = states.get(&sandbox.agent).copied();
            if state != Some(AgentState::Ready) && !sandbox.given_up {
                return Err(format!("at rest, and {id} lives while its agent is {state:?}"));
            }
            for exec in keeper.running.keys() {
                let ExecName::Tool(exec) = exec else { continue };
                let waits = self.disk.intent(exec).and_then(|(turn, _, _)| self.disk.turn(turn));
                if waits.is_none_or(|turn| !turn.row.state.is_live()) {
                    return Err(format!("at rest, and {exec} runs for nobody"));
                }
            }
        }
        Ok(())
    }
}
