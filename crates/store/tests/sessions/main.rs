//! Sessions: their paths, copies, ends, listings, and what is found in them.

mod pages;
mod search;

use std::path::PathBuf;

use lodge_core::agent::AgentState;
use lodge_core::epoch::{EpochRow, Strategy, Summary};
use lodge_core::event::DaemonStarted;
use lodge_core::record::{
    AgentRow, AgentSpec, AgentWrite, EventRow, ImageRecord, ImageRow, ImageWrite, MessageBody, MessageRow,
    Role, SessionRow, SessionWrite, StartRetry, TurnRow, TurnWrite, Usage, Write,
};
use lodge_core::session::{Fork, ForkPoint, PathChange, TurnLinks};
use lodge_core::turn::TurnState;
use lodge_core::{AgentId, IdSource, LineageId, SandboxId, SessionId, Timestamp, TurnId};
use lodge_store::{
    OpenedDatabase, Query, Search, SearchRequest, SessionCursor, TurnCursor, TurnScope, TurnSelectionError,
    TurnSelector, open,
};

/// A store with one agent, and the numbers that an engine would keep.
struct SessionsWorld {
    dir: tempfile::TempDir,
    store: OpenedDatabase,
    ids: IdSource,
    agent: AgentId,
    now: i64,
    seq: u64,
}

impl SessionsWorld {
    fn new() -> SessionsWorld {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir.path().join("daemon.db"), &[7; 64]).unwrap();
        let mut ids = IdSource::new(5);
        let at = Timestamp::from_ms(1_000);
        let row = AgentRow {
            id: AgentId::new(&mut ids, at),
            name: "one".into(),
            image: "a:latest".into(),
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
        let mut world = SessionsWorld { dir, store, ids, agent: row.id.clone(), now: 1_000, seq: 0 };
        let image = ImageRow::agent("sha256:0".into(), "a:latest".into(), 0, ImageRecord::default());
        let image = Write::Image(ImageWrite::Here(Box::new(image)));
        world.commit(&[image, Write::Agent(AgentWrite::New(Box::new(row)))]);
        world
    }

    fn commit(&mut self, writes: &[Write]) {
        self.seq += 1;
        let event = Write::Event(EventRow {
            seq: self.seq,
            stream: "daemon".into(),
            stream_seq: self.seq,
            at: Timestamp::from_ms(self.now),
            body: DaemonStarted::default().into(),
        });
        let all: Vec<&Write> = writes.iter().chain([&event]).collect();
        self.store.writer.commit(all, ()).unwrap().into_inner();
    }

    fn tick(&mut self) -> Timestamp {
        self.now += 1;
        Timestamp::from_ms(self.now)
    }

    fn session(&mut self, id: &str) -> SessionId {
        let id: SessionId = id.parse().unwrap();
        let row = SessionRow {
            id: id.clone(),
            agent: self.agent.clone(),
            sender: None,
            created_at: self.tick(),
            forked: None,
        };
        self.commit(&[Write::Session(SessionWrite::New(row))]);
        id
    }

    /// A finished turn at the end of a session's path: the message and the answer.
    fn turn(&mut self, session: &SessionId, asked: &str, answered: &str) -> TurnId {
        let writes = self.turn_writes(session, asked, answered);
        let Write::Turn(TurnWrite::New(row)) = &writes[0] else { panic!("a turn comes first") };
        let id = row.id.clone();
        self.commit(&writes);
        id
    }

    fn turn_writes(&mut self, session: &SessionId, asked: &str, answered: &str) -> Vec<Write> {
        let at = self.tick();
        let fact = self.store.reader.here(|snapshot| snapshot.session_fact(session)).unwrap().unwrap();
        let id = TurnId::new(&mut self.ids, at);
        let (number, first) = (fact.turns + 1, fact.messages + 1);
        let usage = Usage { input_tokens: 5, output_tokens: 7, ..Usage::default() };
        let row = TurnRow {
            id: id.clone(),
            session: session.clone(),
            agent: self.agent.clone(),
            number,
            place: TurnLinks { parent: fact.tip, ..TurnLinks::default() },
            state: TurnState::Done,
            first_event: 1,
            first_message: first,
            created_at: at,
            ended_at: Some(at),
            usage,
            failure: None,
            park: None,
        };
        let message = |seq, role, step, text: &str| {
            Write::Turn(TurnWrite::Message(MessageRow {
                session: session.clone(),
                seq,
                turn: id.clone(),
                number,
                step,
                role,
                at,
                body: MessageBody { text: text.into(), ..MessageBody::default() },
            }))
        };
        vec![
            Write::Turn(TurnWrite::New(row)),
            message(first, Role::User, 0, asked),
            message(first + 1, Role::Assistant, 1, answered),
            Write::Turn(TurnWrite::State {
                id: id.clone(),
                state: TurnState::Done,
                ended_at: Some(at),
                usage,
                failure: None,
            }),
        ]
    }

    fn rewind(&mut self, session: &SessionId, to: u32) {
        let (standing, plan) = self
            .store
            .reader
            .here(|snapshot| snapshot.rewind_plan(session, &TurnSelector::Number(to)))
            .unwrap()
            .unwrap();
        let (plan, at) = (plan.unwrap(), self.tick());
        let change = PathChange {
            session: session.clone(),
            cut: standing.fact.cuts + 1,
            from: plan.from,
            restored: plan.restored,
            at,
        };
        self.commit(&[Write::Session(SessionWrite::Path(change))]);
        let fact = self.store.reader.here(|snapshot| snapshot.session_fact(session)).unwrap().unwrap();
        assert_eq!((fact.turns, fact.tip, fact.epoch), (plan.turns, plan.tip, plan.epoch));
    }

    fn activate(&mut self, session: &SessionId, turn: &TurnId) {
        let (standing, plan) =
            self.store.reader.here(|snapshot| snapshot.branch_plan(session, turn)).unwrap().unwrap();
        let (plan, at) = (plan.unwrap(), self.tick());
        let change = PathChange {
            session: session.clone(),
            cut: standing.fact.cuts + 1,
            from: plan.from,
            restored: plan.restored,
            at,
        };
        self.commit(&[Write::Session(SessionWrite::Path(change))]);
        let fact = self.store.reader.here(|snapshot| snapshot.session_fact(session)).unwrap().unwrap();
        assert_eq!((fact.turns, fact.tip, fact.epoch), (plan.turns, plan.tip, plan.epoch));
    }

    fn fork(&mut self, session: &SessionId, to: &str, turn: u32) -> SessionId {
        let (_, plan) = self
            .store
            .reader
            .here(|snapshot| snapshot.fork_plan(session, &TurnSelector::Number(turn)))
            .unwrap()
            .unwrap();
        let (plan, at) = (plan.unwrap(), self.tick());
        let copies: Vec<TurnId> = plan.turns.iter().map(|_| TurnId::new(&mut self.ids, at)).collect();
        let id: SessionId = to.parse().unwrap();
        let row = SessionRow {
            id: id.clone(),
            agent: self.agent.clone(),
            sender: None,
            created_at: at,
            forked: Some(ForkPoint { session: session.clone(), turn }),
        };
        let fork = Fork { row, turns: plan.turns.into_iter().zip(copies).collect() };
        self.commit(&[Write::Session(SessionWrite::Fork(Box::new(fork)))]);
        let fact = self.store.reader.here(|snapshot| snapshot.session_fact(&id)).unwrap().unwrap();
        assert_eq!((fact.turns, fact.messages, fact.epoch), (turn, plan.messages, plan.epoch));
        id
    }

    /// What a model would read with the next turn.
    fn context(&self, session: &SessionId) -> Vec<String> {
        let found = self.store.reader.here(|snapshot| snapshot.context(session, 1, u32::MAX)).unwrap();
        found.into_iter().map(|message| message.body.text).collect()
    }

    fn messages(&self, session: &SessionId, which: TurnScope) -> Vec<(String, bool)> {
        let (found, more) =
            self.store.reader.here(|snapshot| snapshot.messages(session, which, None, 1_000)).unwrap();
        assert!(!more);
        found.into_iter().map(|told| (told.row.body.text, told.active)).collect()
    }

    fn search(&self) -> Search {
        Search::new(&self.index(), &self.store.meta.log)
    }

    fn index(&self) -> PathBuf {
        self.dir.path().join("search.db")
    }

    fn hits(&self, query: &str) -> Vec<(String, String)> {
        self.hits_in(query, None)
    }

    fn hits_in(&self, query: &str, session: Option<&SessionId>) -> Vec<(String, String)> {
        let query = Query::parse(query).unwrap();
        let wanted = SearchRequest { query: &query, agent: None, session, after: None, limit: 100 };
        let hits = self.search().search(&self.store.reader, wanted).unwrap();
        hits.into_iter().map(|hit| (hit.message.session.to_string(), hit.message.body.text)).collect()
    }
}

#[test]
fn a_rewind_leaves_the_path_up_to_its_turn_and_deletes_nothing() {
    let mut world = SessionsWorld::new();
    let s = world.session("s");
    for n in 1..=3 {
        world.turn(&s, &format!("q{n}"), &format!("a{n}"));
    }
    world.rewind(&s, 1);
    assert_eq!(world.context(&s), ["q1", "a1"]);
    world.turn(&s, "q2b", "a2b");
    assert_eq!(world.context(&s), ["q1", "a1", "q2b", "a2b"]);
    assert_eq!(world.messages(&s, TurnScope::Path).len(), 4);
    let all = world.messages(&s, TurnScope::All);
    assert_eq!(all.iter().filter(|(_, active)| !active).count(), 4);
    let (turns, _) = world
        .store
        .reader
        .here(|snapshot| snapshot.turns(&s, TurnScope::All, &TurnCursor::default(), 100))
        .unwrap();
    let numbers: Vec<(u32, bool)> =
        turns.iter().map(|turn| (turn.row.number, turn.row.place.dropped == 0)).collect();
    assert_eq!(numbers, [(1, true), (2, false), (2, true), (3, false)]);
    let texts: Vec<&str> = turns.iter().map(|turn| turn.text.as_str()).collect();
    assert_eq!(texts, ["a1", "a2", "a2b", "a3"]);
    // To before the first, and what comes then is the first.
    world.rewind(&s, 0);
    assert!(world.context(&s).is_empty());
    world.turn(&s, "q1c", "a1c");
    assert_eq!(world.context(&s), ["q1c", "a1c"]);
    let nowhere = world
        .store
        .reader
        .here(|snapshot| snapshot.rewind_plan(&s, &TurnSelector::Number(9)))
        .unwrap()
        .unwrap()
        .1;
    assert_eq!(nowhere.unwrap_err(), TurnSelectionError::Unknown);
}

#[test]
fn a_branch_comes_back_with_those_before_it_and_those_that_followed_it() {
    let mut world = SessionsWorld::new();
    let s = world.session("s");
    let a: Vec<TurnId> = (1..=4).map(|n| world.turn(&s, &format!("q{n}"), &format!("a{n}"))).collect();
    world.rewind(&s, 3);
    let b4 = world.turn(&s, "q4b", "a4b");
    world.rewind(&s, 1);
    let c2 = world.turn(&s, "q2c", "a2c");
    // The first fourth turn stood on turns that left the path after it did.
    world.activate(&s, &a[3]);
    assert_eq!(world.context(&s), ["q1", "a1", "q2", "a2", "q3", "a3", "q4", "a4"]);
    world.activate(&s, &c2);
    assert_eq!(world.context(&s), ["q1", "a1", "q2c", "a2c"]);
    // The second turn was on the path last with the first fourth behind it.
    world.activate(&s, &a[1]);
    assert_eq!(world.context(&s), ["q1", "a1", "q2", "a2", "q3", "a3", "q4", "a4"]);
    world.activate(&s, &b4);
    assert_eq!(world.context(&s), ["q1", "a1", "q2", "a2", "q3", "a3", "q4b", "a4b"]);
    // What is there already changes nothing.
    let (standing, plan) =
        world.store.reader.here(|snapshot| snapshot.branch_plan(&s, &a[0])).unwrap().unwrap();
    let plan = plan.unwrap();
    assert!(plan.restored.is_empty() && plan.from > standing.fact.turns);
    world.turn(&s, "q5", "a5");
    assert_eq!(world.context(&s).len(), 10);
    let stranger = TurnId::new(&mut world.ids, Timestamp::from_ms(1));
    let none = world.store.reader.here(|snapshot| snapshot.branch_plan(&s, &stranger)).unwrap().unwrap().1;
    assert_eq!(none.unwrap_err(), TurnSelectionError::Unknown);
}

#[test]
fn a_fork_reads_as_its_origin_and_goes_its_own_way() {
    let mut world = SessionsWorld::new();
    let s = world.session("s");
    let dropped = world.turn(&s, "old", "old");
    world.rewind(&s, 0);
    for n in 1..=3 {
        world.turn(&s, &format!("q{n}"), &format!("a{n}"));
    }
    let f = world.fork(&s, "f", 2);
    assert_eq!(world.context(&f), ["q1", "a1", "q2", "a2"]);
    world.turn(&f, "q3f", "a3f");
    world.rewind(&f, 1);
    assert_eq!(world.context(&f), ["q1", "a1"]);
    assert_eq!(world.context(&s).len(), 6, "the origin is as it was");
    let (copies, _) = world
        .store
        .reader
        .here(|snapshot| snapshot.turns(&f, TurnScope::All, &TurnCursor::default(), 10))
        .unwrap();
    assert_eq!(copies[0].row.usage, Usage::default(), "what was used was used once");
    assert_eq!(copies[0].text, "a1");
    let summary = world.store.reader.here(|snapshot| snapshot.session(&f)).unwrap().unwrap();
    assert_eq!(summary.row.forked, Some(ForkPoint { session: s.clone(), turn: 2 }));
    // A turn that left the path cannot be where a fork begins.
    let refused = world
        .store
        .reader
        .here(|snapshot| snapshot.fork_plan(&s, &TurnSelector::Id(dropped)))
        .unwrap()
        .unwrap()
        .1;
    assert_eq!(refused.unwrap_err(), TurnSelectionError::Inactive);
    // The origin goes, and the copy stays.
    world.commit(&[Write::Session(SessionWrite::Deleted { id: s.clone() })]);
    assert!(world.store.reader.here(|snapshot| snapshot.session(&s)).unwrap().is_none());
    world.turn(&f, "more", "more");
    assert_eq!(world.context(&f), ["q1", "a1", "more", "more"]);
}

#[test]
fn a_deleted_session_leaves_nothing_and_its_name_can_be_used_again() {
    let mut world = SessionsWorld::new();
    let s = world.session("s");
    world.turn(&s, "q", "a");
    world.commit(&[Write::Session(SessionWrite::Deleted { id: s.clone() })]);
    assert!(world.store.reader.here(|snapshot| snapshot.session_fact(&s)).unwrap().is_none());
    let path = world.dir.path().join("daemon.db");
    let raw = rusqlite::Connection::open(path).unwrap();
    for table in ["sessions", "turns", "steps", "messages", "epochs"] {
        let left: u32 =
            raw.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap();
        assert_eq!(left, 0, "{table}");
    }
    drop(raw);
    let s = world.session("s");
    world.turn(&s, "again", "again");
    assert_eq!(world.context(&s), ["again", "again"]);
}

/// Lets the file grow by a page more each time: a change of a session is there whole, or it is not there.
#[test]
fn a_change_of_a_session_is_on_disk_whole_or_not_at_all() {
    for pages in 0.. {
        let mut world = SessionsWorld::new();
        let s = world.session("s");
        for n in 0..4 {
            world.turn(&s, &format!("q{n}"), &"x".repeat(6_000));
        }
        let before = world.store.reader.here(|snapshot| snapshot.session_fact(&s)).unwrap();
        let (_, plan) =
            world.store.reader.here(|snapshot| snapshot.fork_plan(&s, &TurnSelector::Last)).unwrap().unwrap();
        let plan = plan.unwrap();
        let at = world.tick();
        let copies: Vec<TurnId> = plan.turns.iter().map(|_| TurnId::new(&mut world.ids, at)).collect();
        let row = SessionRow {
            id: "f".parse().unwrap(),
            agent: world.agent.clone(),
            sender: None,
            created_at: at,
            forked: Some(ForkPoint { session: s.clone(), turn: 4 }),
        };
        let writes = [
            Write::Session(SessionWrite::Path(PathChange {
                session: s.clone(),
                cut: 1,
                from: 5,
                restored: vec![],
                at,
            })),
            Write::Session(SessionWrite::Fork(Box::new(Fork {
                row,
                turns: plan.turns.into_iter().zip(copies).collect(),
            }))),
        ];
        let now: u32 = {
            let raw = rusqlite::Connection::open(world.dir.path().join("daemon.db")).unwrap();
            raw.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap()
        };
        world.store.writer.limit_pages(now + pages);
        let acked = world.store.writer.commit(&writes, ()).is_ok();
        let path = world.dir.path().join("daemon.db");
        drop(world.store);
        let again = open(&path, &[7; 64]).unwrap();
        let fork = again.reader.here(|snapshot| snapshot.session_fact(&"f".parse().unwrap())).unwrap();
        assert_eq!(acked, fork.is_some(), "with {pages} pages");
        let cuts = again.reader.here(|snapshot| snapshot.session_fact(&s)).unwrap().map(|fact| fact.cuts);
        assert_eq!(cuts, Some(u32::from(acked)), "with {pages} pages");
        assert_eq!(again.reader.here(|snapshot| snapshot.integrity()).unwrap(), "ok");
        if acked {
            assert!(pages > 0, "the fault must have struck at least once");
            assert_eq!(fork.map(|fact| fact.messages), before.map(|fact| fact.messages));
            return;
        }
    }
}

#[test]
fn an_epoch_is_weighed_by_its_messages_alone_and_keeps_the_summary_that_it_does_not_replace() {
    let mut world = SessionsWorld::new();
    let session = world.session("s");
    for number in 1..=5 {
        world.turn(&session, &"q".repeat(number * 100), "a");
    }
    let epoch = |number, turn, from_turn, strategy, summary| EpochRow {
        session: session.clone(),
        number,
        turn,
        from_turn,
        strategy,
        summary,
        at: Timestamp::from_ms(1_000),
    };
    let before =
        world.store.reader.here(|snapshot| snapshot.session_fact(&session)).unwrap().unwrap().epoch.weight(5);
    assert_eq!((before.number, before.from_turn, before.messages, before.turns.len()), (1, 1, 9, 5));
    let first = epoch(2, 3, 3, Strategy::Summarize, Summary::Text("what was said".into()));
    world.commit(&[Write::Session(SessionWrite::Epoch(first))]);
    let weight =
        world.store.reader.here(|snapshot| snapshot.session_fact(&session)).unwrap().unwrap().epoch.weight(5);
    assert_eq!((weight.number, weight.messages, &weight.turns[..]), (2, 5, &before.turns[2..]));
    assert_eq!(weight.bytes, "what was said".len() as u64 + before.turns[2..].iter().sum::<u64>());
    world.commit(&[Write::Session(SessionWrite::Epoch(epoch(3, 5, 5, Strategy::Sliding, Summary::Kept)))]);
    let reader = &world.store.reader;
    assert_eq!(
        reader.here(|snapshot| snapshot.summary(&session, 3)).unwrap().as_deref(),
        Some("what was said")
    );
    assert_eq!(reader.here(|snapshot| snapshot.session(&session)).unwrap().unwrap().epoch, 3);
    let places = |from, upto| {
        let found = reader.here(|snapshot| snapshot.epochs(&session, from, upto)).unwrap();
        found.iter().map(|epoch| (epoch.row.number, epoch.seq)).collect::<Vec<_>>()
    };
    assert_eq!(places(1, 5), [(2, 5), (3, 9)]);
    assert_eq!(places(4, 5), [(3, 9)]);
}
