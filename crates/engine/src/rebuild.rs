//! Continues after decisions that could not be recorded: memory is rebuilt from the store, in the same way as at
//! startup.

use std::collections::HashSet;

use lodge_core::agent::AgentState;
use lodge_core::record::{ResidentIds, StoredState};
use lodge_core::{AgentId, SessionId, Timestamp};

use crate::agents::{EndWaiter, RetryPauses};
use crate::batch::Step;
use crate::{Batch, DAEMON_STREAM, Effect, Engine, PullEffect, Refusal, StartEvent};

/// A caller and the id of its request.
pub type RequestName = (String, String);

impl Engine {
    /// The agents and sessions in memory. A rebuilt engine needs the same ones: a caller may wait for the end of an
    /// agent, and a request in flight may rely on an older state of a session.
    pub fn resident_ids(&self) -> ResidentIds {
        let mut sessions: Vec<SessionId> = self.sessions.keys().cloned().collect();
        sessions.sort();
        let sandboxes = self.standalones.rows().map(|row| row.id.clone()).collect();
        ResidentIds { agents: self.agents.keys().cloned().collect(), sessions, sandboxes }
    }

    /// Replaces the memory with the recorded state. The first batch adopts sandboxes as after a start, and hands out
    /// open work again.
    ///
    /// `unrecorded` are the requests whose answers were never recorded. They are forgotten and may be repeated. Callers
    /// that wait for a recorded end continue to wait; the others are refused.
    pub fn rebuild(
        self,
        loaded: StoredState,
        unrecorded: &HashSet<RequestName>,
        now: Timestamp,
    ) -> (Engine, Batch) {
        let Engine {
            host,
            ids,
            mut requests,
            agents,
            sessions,
            turns,
            started,
            asks,
            quarantined,
            lookups,
            standalones,
            ..
        } = self;
        requests.forget_unrecorded(unrecorded);
        let idle: Vec<SessionId> = loaded.sessions.iter().map(|fact| fact.row.id.clone()).collect();
        let mut engine = Engine::from_stored_state(loaded, host, ids, now);
        engine.requests = requests;
        // An answer to an earlier order may still arrive.
        engine.asks = asks;
        for caller in lookups.into_callers().chain(standalones.into_callers()) {
            engine.step.refuse(caller.ticket, Refusal::NotRecorded);
        }
        idle.iter().for_each(|session| engine.rest_session(session));
        // Deleted sessions stay known: a request in flight may have read them before.
        for (id, session) in sessions.into_iter().filter(|(_, session)| session.gone) {
            engine.sessions.entry(id.clone()).or_insert(session);
            engine.rest_session(&id);
        }
        // The answer to a call whose intent was lost may still arrive. It must not count as the answer to another call.
        for (id, before) in turns {
            if let Some(turn) = engine.turns.get_mut(&id) {
                turn.spent = before.newest_call();
            }
        }
        engine.started = started;
        engine.record_daemon_start();
        for (id, agent) in agents {
            engine.keep_waiting(&id, agent.stopping);
        }
        let pulling = engine.agents.values().filter(|agent| agent.row.state == AgentState::Pulling);
        let pulling: Vec<AgentId> = pulling.map(|agent| agent.row.id.clone()).collect();
        // Also work that ended or was released since: that was not recorded either.
        let lost = quarantined.into_iter().filter(|(seq, _)| *seq > engine.seq);
        engine.quarantine(lost.map(|(_, suspect)| suspect).collect());
        engine.adopt_all(RetryPauses::Keep);
        engine.park_quarantined();
        engine.resume_outages();
        // A pull for one of these agents may have finished, and no agent waits for it.
        let waits = |id: &AgentId| engine.agents.get(id).is_some_and(|agent| agent.pull.is_some());
        let dropped: Vec<AgentId> = pulling.into_iter().filter(|id| !waits(id)).collect();
        for agent in dropped {
            engine.step.act(Effect::Pull(PullEffect::Drop { agent }));
        }
        let batch = engine.step.take();
        (engine, batch)
    }

    /// Records the start of the daemon again, if the disk was full before.
    fn record_daemon_start(&mut self) {
        let lost = self.started.take_if(|started| started.seq > self.seq);
        if let Some(StartEvent { body, .. }) = lost {
            self.event(DAEMON_STREAM, body.clone());
            self.started = Some(StartEvent { seq: self.seq, body });
        }
    }

    fn keep_waiting(&mut self, id: &AgentId, waiting: Vec<EndWaiter>) {
        // A caller whose decision is not recorded must not be answered as if it were.
        let (recorded, lost): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|one| one.seq <= self.seq);
        refuse(&mut self.step, lost);
        let ending = self.agents.get_mut(id).filter(|agent| match agent.row.state {
            AgentState::Stopped | AgentState::Removing => true,
            AgentState::Pulling
            | AgentState::Starting
            | AgentState::Ready
            | AgentState::Failed(_)
            | AgentState::Removed => false,
        });
        let Some(agent) = ending else { return refuse(&mut self.step, recorded) };
        let waits = !recorded.is_empty();
        agent.stopping = recorded;
        if waits && agent.row.state == AgentState::Stopped {
            self.down(id);
        }
    }
}

fn refuse(step: &mut Step, waiting: Vec<EndWaiter>) {
    for one in waiting {
        step.refuse(one.caller.ticket, Refusal::NotRecorded);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lodge_core::lineage::Policy;
    use lodge_core::record::{AgentSpec, AgentWrite, ImageRecord, ImageRow, TurnWrite, Write};
    use lodge_core::retry::Backoff;
    use lodge_core::{EventKind, IdSource};

    use super::*;
    use crate::{
        AgentCommand, BatchOutput, Command, Effect, Host, Input, NameChoice, NewAgent, NewImage, NewTurn,
        RenderedAnswer, RequestKey, RunningJobs, SandboxEffect, SandboxObservation, SessionChoice, Settings,
        StartMode, TurnCommand,
    };

    const NOW: Timestamp = Timestamp::from_ms(1_000);

    /// An engine, and a store with its recorded state.
    struct RebuildWorld {
        engine: Engine,
        loaded: StoredState,
    }

    impl RebuildWorld {
        fn new() -> RebuildWorld {
            let backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(30) };
            let settings = Settings {
                policy: Policy::Revive,
                backoff,
                max_concurrent: 10,
                max_jobs: 10,
                job_output: 1 << 20,
            };
            let host =
                Host { boot: "boot-1".into(), own_uids: false, settings, render: crate::tests::rendered };
            let (engine, _) = Engine::boot(StoredState::default(), host, IdSource::new(1), "0", NOW);
            RebuildWorld { engine, loaded: StoredState::default() }
        }

        fn ask(&mut self, ticket: u64, request: &str, command: Command) -> Batch {
            let key = RequestKey { caller: "me".into(), request_id: request.into(), digest: [0; 32] };
            self.engine.step([Input::Api { ticket, request: Some(key), command }], NOW)
        }

        fn create(&mut self, request: &str) -> AgentId {
            let new = NewAgent {
                name: NameChoice::Like("a".into()),
                called: "a:latest".into(),
                image: NewImage {
                    row: ImageRow::agent("sha256:0".into(), "a:latest".into(), 0, ImageRecord::default()),
                    with: Vec::new(),
                    tags: Vec::new(),
                },
                spec: AgentSpec::default(),
            };
            let batch = self.ask(1, request, Command::Agent(AgentCommand::Create(Box::new(new))));
            let made = batch.writes.iter().find_map(|write| match write {
                Write::Agent(AgentWrite::New(row)) => Some(row.id.clone()),
                _ => None,
            });
            made.unwrap()
        }

        /// The engine's memory of agents is on disk from here on.
        fn record(&mut self) {
            self.loaded.agents = self.engine.agents.values().map(|agent| agent.row.clone()).collect();
            let heads = self.engine.streams.iter().map(|(stream, newest)| (stream.clone(), newest.head));
            (self.loaded.seq, self.loaded.streams) = (self.engine.seq, heads.collect());
        }

        fn rebuilt(self, unrecorded: &[&str]) -> (RebuildWorld, Batch) {
            let names = unrecorded.iter().map(|request| ("me".to_owned(), (*request).to_owned())).collect();
            let (engine, batch) = self.engine.rebuild(self.loaded.clone(), &names, NOW);
            (RebuildWorld { engine, loaded: self.loaded }, batch)
        }
    }

    fn refused(batch: &Batch) -> Vec<u64> {
        let refused = batch.after.iter().filter_map(|out| match out {
            BatchOutput::Reply { ticket, reply: Err(Refusal::NotRecorded) } => Some(*ticket),
            _ => None,
        });
        refused.collect()
    }

    fn acts(batch: &Batch) -> Vec<&Effect> {
        batch
            .after
            .iter()
            .filter_map(|out| if let BatchOutput::Act(effect) = out { Some(effect) } else { None })
            .collect()
    }

    #[test]
    fn what_was_not_recorded_is_forgotten_and_its_request_may_be_asked_again() {
        let mut world = RebuildWorld::new();
        let kept = world.create("recorded");
        world.record();
        let (seq, lost) = (world.engine.seq, world.create("lost"));
        let (mut world, batch) = world.rebuilt(&["lost"]);
        assert_eq!(world.engine.agents.keys().collect::<Vec<_>>(), [&kept]);
        assert_eq!(world.engine.seq, seq, "the numbers of events that nobody saw are used again");
        assert!(batch.writes.is_empty(), "nothing is said that did not happen: {:?}", batch.writes);
        assert!(matches!(
            acts(&batch)[..],
            [Effect::Sandbox { what: SandboxEffect::Up { how: StartMode::Adopt, .. }, .. }]
        ));
        let again = world.ask(3, "recorded", Command::Keep { answer: RenderedAnswer("null".into()) });
        assert!(again.writes.is_empty(), "it is answered from memory");
        assert_ne!(world.create("lost"), lost, "no id is given twice");
    }

    #[test]
    fn who_waits_for_a_recorded_end_waits_on_and_who_waits_for_one_that_is_not_is_refused() {
        let mut world = RebuildWorld::new();
        let (ended, alive) = (world.create("a"), world.create("b"));
        world.ask(
            7,
            "c",
            Command::Agent(AgentCommand::Stop { id: ended.clone(), jobs: RunningJobs::Cancel }),
        );
        world.record();
        world.ask(8, "d", Command::Agent(AgentCommand::Stop { id: alive, jobs: RunningJobs::Cancel }));
        let (mut world, batch) = world.rebuilt(&["d"]);
        assert_eq!(refused(&batch), [8]);
        assert!(
            acts(&batch).iter().any(|effect| matches!(effect, Effect::Sandbox { agent, what: SandboxEffect::Down { .. }, .. } if *agent == ended))
        );
        let down = world.engine.step(
            [Input::Seen(crate::Observation::Sandbox(SandboxObservation::Down { agent: ended, run: 1 }))],
            NOW,
        );
        assert!(down.after.iter().any(|out| matches!(out, BatchOutput::Reply { ticket: 7, reply: Ok(_) })));
    }

    #[test]
    fn a_session_at_rest_is_remembered_so_that_a_late_request_does_not_number_its_turn_twice() {
        let mut world = RebuildWorld::new();
        let agent = world.create("a");
        world.record();
        let id: SessionId = "s".parse().unwrap();
        let send = |world: &mut RebuildWorld, request: &str| {
            let session = SessionChoice::Named { id: id.clone(), fact: None };
            let new =
                NewTurn { agent: agent.clone(), session, sender: None, text: "hi".into(), schema: None };
            let batch = world.ask(1, request, Command::Turn(TurnCommand::Send(Box::new(new))));
            let turn = batch.writes.iter().find_map(|write| match write {
                Write::Turn(TurnWrite::New(row)) => Some(row.clone()),
                _ => None,
            });
            turn.unwrap()
        };
        let first = send(&mut world, "b");
        world.ask(2, "c", Command::Turn(TurnCommand::Interrupt { id: first.id }));
        assert_eq!(world.engine.resident_ids().sessions, std::slice::from_ref(&id));
        let session = &world.engine.sessions[&id];
        let (row, turns, messages) = (session.row.clone(), session.turns, session.messages);
        let (cuts, tip, epoch) = (session.cuts, session.tip.clone(), session.epoch.clone());
        let fact = lodge_core::record::SessionFact { row, turns, messages, cuts, tip, epoch };
        world.loaded.sessions = vec![fact];
        let (mut world, _) = world.rebuilt(&[]);
        assert_eq!(send(&mut world, "d").number, first.number + 1);
        assert_eq!(world.engine.idle_sessions, std::slice::from_ref(&id));
    }

    #[test]
    fn a_start_for_which_there_was_no_room_is_reported_once_there_is() {
        let started =
            |batch: &Batch| batch.events().filter(|row| row.body.kind() == EventKind::DaemonStarted).count();
        let RebuildWorld { engine, loaded } = RebuildWorld::new();
        let (engine, batch) = engine.rebuild(loaded, &HashSet::new(), NOW);
        assert_eq!(started(&batch), 1);
        let recorded = StoredState { seq: 1, ..StoredState::default() };
        let (_, batch) = engine.rebuild(recorded, &HashSet::new(), NOW);
        assert_eq!(started(&batch), 0);
    }
}
