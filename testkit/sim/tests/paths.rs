//! Paths of sessions in the simulated store equal those of the real one, after any rewind, fork and activation.

use lodge_core::agent::AgentState;
use lodge_core::epoch::{EpochRow, Strategy, Summary};
use lodge_core::record::{
    AgentRow, AgentSpec, AgentWrite, ImageRecord, ImageRow, ImageWrite, MessageBody, MessageRow, Role,
    SessionFact, SessionRow, SessionWrite, StartRetry, TurnRow, TurnWrite, Usage, Write,
};
use lodge_core::session::{Fork, ForkPoint, PathChange, PathPlan, TurnLinks};
use lodge_core::turn::TurnState;
use lodge_core::{AgentId, IdSource, LineageId, SandboxId, SessionId, Timestamp, TurnId};
use lodge_sim::SimDisk;
use lodge_store::{OpenedDatabase, TurnSelector, open};

struct DiskPair {
    disk: SimDisk,
    real: OpenedDatabase,
    ids: IdSource,
    agent: AgentId,
    now: i64,
    chance: u64,
}

impl DiskPair {
    fn new(seed: u64, path: &std::path::Path) -> DiskPair {
        let real = open(path, &[7; 64]).unwrap();
        let (mut ids, at) = (IdSource::new(seed), Timestamp::from_ms(1));
        let row = AgentRow {
            id: AgentId::new(&mut ids, at),
            name: "a".into(),
            image: "a".into(),
            image_digest: "sha256:0".into(),
            lineage: LineageId::new(&mut ids, at),
            sandbox: SandboxId::new(&mut ids, at),
            state: AgentState::Ready,
            failure_detail: None,
            incarnation: 1,
            runs: 1,
            uid: None,
            created_at: at,
            started_at: None,
            spec: AgentSpec::default(),
            retry: StartRetry::default(),
            next: None,
        };
        let agent = row.id.clone();
        let mut both = DiskPair { disk: SimDisk::default(), real, ids, agent, now: 1, chance: seed };
        let image = ImageRow::agent("sha256:0".to_owned(), "a".to_owned(), 0, ImageRecord::default());
        both.commit(vec![
            Write::Image(ImageWrite::Here(Box::new(image))),
            Write::Agent(AgentWrite::New(Box::new(row))),
        ]);
        both
    }

    fn below(&mut self, end: u32) -> u32 {
        self.chance =
            self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.chance >> 33) % u64::from(end.max(1))).unwrap()
    }

    fn tick(&mut self) -> Timestamp {
        self.now += 1;
        Timestamp::from_ms(self.now)
    }

    fn commit(&mut self, writes: Vec<Write>) {
        self.disk.commit(&writes).unwrap_or_else(|broken| panic!("{broken}"));
        self.real.writer.commit(&writes, ()).unwrap_or_else(|error| panic!("{error:?}")).into_inner();
    }

    fn fact(&self, id: &SessionId) -> SessionFact {
        let fact = self.real.reader.here(|snapshot| snapshot.session_fact(id)).unwrap().unwrap();
        assert_eq!(self.disk.session(id), Some(&fact));
        fact
    }

    fn session(&mut self, id: &str) -> SessionId {
        let (id, created_at): (SessionId, _) = (id.parse().unwrap(), self.tick());
        let (agent, sender, forked) = (self.agent.clone(), None, None);
        self.commit(vec![Write::Session(SessionWrite::New(SessionRow {
            id: id.clone(),
            agent,
            sender,
            created_at,
            forked,
        }))]);
        id
    }

    /// A turn that sometimes begins an epoch.
    fn turn(&mut self, session: &SessionId) {
        let (fact, at) = (self.fact(session), self.tick());
        let id = TurnId::new(&mut self.ids, at);
        let (number, first_message) = (fact.turns + 1, fact.messages + 1);
        let row = TurnRow {
            id: id.clone(),
            session: session.clone(),
            agent: self.agent.clone(),
            number,
            place: TurnLinks { parent: fact.tip, ..TurnLinks::default() },
            state: TurnState::Queued,
            first_event: 1,
            first_message,
            created_at: at,
            ended_at: None,
            usage: Usage::default(),
            failure: None,
            park: None,
        };
        let state = |state: TurnState, ended_at| {
            Write::Turn(TurnWrite::State {
                id: id.clone(),
                state,
                ended_at,
                usage: Usage::default(),
                failure: None,
            })
        };
        let message = |seq, role, step, text: String| {
            let body = MessageBody { text, ..MessageBody::default() };
            let (session, turn) = (session.clone(), id.clone());
            Write::Turn(TurnWrite::Message(MessageRow { session, seq, turn, number, step, role, at, body }))
        };
        let size = self.below(40) as usize;
        let mut writes = vec![
            Write::Turn(TurnWrite::New(row)),
            message(first_message, Role::User, 0, "q".repeat(size)),
            state(TurnState::Running, None),
        ];
        if number > fact.epoch.from_turn && self.below(4) == 0 {
            let from_turn = fact.epoch.from_turn + 1 + self.below(number - fact.epoch.from_turn);
            writes.push(Write::Session(SessionWrite::Epoch(EpochRow {
                session: session.clone(),
                number: fact.epoch.newest + 1,
                turn: number,
                from_turn,
                strategy: Strategy::Summarize,
                summary: match size % 3 {
                    0 => Summary::Nothing,
                    1 => Summary::Kept,
                    _ => Summary::Text("s".repeat(size)),
                },
                at,
            })));
        }
        writes.push(message(first_message + 1, Role::Assistant, 1, "a".repeat(size)));
        writes.push(state(TurnState::Done, Some(at)));
        self.commit(writes);
    }

    /// Applies a plan that both stores made.
    fn cut(&mut self, session: &SessionId, simulated: (SessionFact, PathPlan), real: PathPlan) {
        let (fact, plan) = simulated;
        assert_eq!(plan, real);
        let PathPlan { from, restored, turns, tip, epoch } = plan;
        let at = self.tick();
        let change = PathChange { session: session.clone(), cut: fact.cuts + 1, from, restored, at };
        self.commit(vec![Write::Session(SessionWrite::Path(change))]);
        let now = self.fact(session);
        assert_eq!((now.turns, now.tip, now.epoch), (turns, tip, epoch), "it is what it was said to be");
    }

    fn rewind(&mut self, session: &SessionId) {
        let turns = self.below(self.fact(session).turns + 1);
        let real = self
            .real
            .reader
            .here(|snapshot| snapshot.rewind_plan(session, &TurnSelector::Number(turns)))
            .unwrap()
            .unwrap();
        self.cut(session, self.disk.rewind_plan(session, turns).unwrap(), real.1.unwrap());
    }

    fn activate(&mut self, session: &SessionId) {
        let branches = self.disk.branches(session);
        let Some(turn) = branches.get(self.below(u32::try_from(branches.len()).unwrap()) as usize) else {
            return;
        };
        let real = self.real.reader.here(|snapshot| snapshot.branch_plan(session, turn)).unwrap().unwrap();
        self.cut(session, self.disk.branch_plan(session, turn).unwrap(), real.1.unwrap());
    }

    /// What a turn that continues the last one takes over.
    fn retry(&self, session: &SessionId) {
        let Some(tip) = self.fact(session).tip else { return };
        let real = self.real.reader.here(|snapshot| snapshot.retry_plan(session, &tip)).unwrap().unwrap();
        let (real, simulated) = (real.1.unwrap(), self.disk.retry_plan(session, &tip).unwrap());
        assert_eq!(simulated.turn, real.turn);
        assert_eq!((simulated.steps, simulated.messages), (real.steps, real.messages));
        assert_eq!((simulated.epoch, simulated.plan), (real.epoch, real.plan));
    }

    fn fork(&mut self, session: &SessionId, to: &str) -> Option<SessionId> {
        let turn = 1 + self.below(self.fact(session).turns);
        let real = self
            .real
            .reader
            .here(|snapshot| snapshot.fork_plan(session, &TurnSelector::Number(turn)))
            .unwrap()
            .unwrap()
            .1
            .ok()?;
        let (_, plan) = self.disk.fork_plan(session, turn).unwrap();
        assert_eq!(plan, real);
        let (id, created_at): (SessionId, _) = (to.parse().unwrap(), self.tick());
        let forked = Some(ForkPoint { session: session.clone(), turn });
        let (agent, sender) = (self.agent.clone(), None);
        let row = SessionRow { id: id.clone(), agent, sender, created_at, forked };
        let copy = |turn| (turn, TurnId::new(&mut self.ids, created_at));
        let turns = plan.turns.into_iter().map(copy).collect();
        self.commit(vec![Write::Session(SessionWrite::Fork(Box::new(Fork { row, turns })))]);
        let fact = self.fact(&id);
        assert_eq!((fact.turns, fact.messages, fact.epoch), (turn, plan.messages, plan.epoch));
        Some(id)
    }
}

#[test]
fn both_stores_agree_on_every_path_and_every_plan_of_a_change() {
    let mut made = 0;
    for seed in 0..6 {
        let dir = tempfile::tempdir().unwrap();
        let mut both = DiskPair::new(seed, &dir.path().join("daemon.db"));
        let mut sessions = vec![both.session("s")];
        for step in 0..120 {
            let count = u32::try_from(sessions.len()).unwrap();
            let at = both.below(count) as usize;
            let session = sessions[at].clone();
            match both.below(12) {
                0..6 => both.turn(&session),
                6..8 => both.rewind(&session),
                8..10 => both.activate(&session),
                10 => sessions.extend(both.fork(&session, &format!("f{step}"))),
                _ if count > 1 => {
                    both.commit(vec![Write::Session(SessionWrite::Deleted { id: session.clone() })]);
                    assert!(both.disk.session(&session).is_none());
                    assert!(
                        both.real.reader.here(|snapshot| snapshot.session_fact(&session)).unwrap().is_none()
                    );
                    sessions.remove(at);
                }
                _ => sessions.push(both.session(&format!("n{step}"))),
            }
            for session in &sessions {
                both.fact(session);
                both.retry(session);
            }
            made += 1;
        }
        assert_eq!(both.real.reader.here(|snapshot| snapshot.integrity()).unwrap(), "ok");
    }
    assert_eq!(made, 6 * 120);
}
