//! The engine as a pure function: inputs in, batches out; no disk, no processes, no clock.

mod compact;
mod images;
mod jobs;
mod lineages;
mod misfits;
mod pulls;
mod quarantine;
mod restarts;
mod retries;
mod sessions;
mod slots;
mod updates;

use std::time::Duration;

use lodge_core::agent::AgentState;
use lodge_core::limits::RECENT_REQUESTS_MAX;
use lodge_core::record::{
    AgentSpec, CallRecord, FailureRecord, ImageRecord, ImageRow, LiveTurn, Loaded, SessionFact, StepKind,
    StepRow, ToolRecord, TurnRow, TurnWrite, Usage, Write,
};
use lodge_core::turn::{StepState, TurnState};
use lodge_core::{AgentId, EventKind, ExecId, IdSource, Timestamp, TurnId};
use serde_json::{Value, json};

use super::*;
use crate::{AgentCommand, AgentSeen, ModelEffect, SandboxEffect, TurnCommand, TurnSeen};

const NOW: Timestamp = Timestamp::from_ms(1_000);

fn new_image(digest: &str, tags: Vec<String>) -> NewImage {
    let row = ImageRow::agent(digest.into(), "a:latest".into(), 7, ImageRecord::default());
    NewImage { row, with: Vec::new(), tags }
}

/// An engine with everything it ever wrote, as a store would hold it.
struct EngineWorld {
    engine: Engine,
    written: Vec<Write>,
    tickets: u64,
}

fn settings(max_concurrent: usize) -> Settings {
    let backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(30) };
    Settings { policy: Policy::Revive, backoff, max_concurrent, max_jobs: 10, job_output: 1 << 20 }
}

pub(crate) fn rendered(answer: &Answer) -> Rendered {
    match answer {
        Answer::Rendered(rendered) => rendered.clone(),
        answer => Rendered(format!("{answer:?}").into()),
    }
}

fn host() -> Host {
    Host { boot: "boot-1".into(), own_uids: true, settings: settings(10), render: rendered }
}

impl EngineWorld {
    fn new() -> EngineWorld {
        let (engine, batch) = Engine::boot(Loaded::default(), host(), IdSource::new(1), "0", NOW);
        let mut world = EngineWorld { engine, written: Vec::new(), tickets: 0 };
        world.keep(&batch);
        world
    }

    fn keep(&mut self, batch: &Batch) {
        self.written.extend(batch.writes.iter().cloned());
    }

    fn see(&mut self, seen: Seen) -> Batch {
        let batch = self.engine.step([Input::Seen(seen)], NOW);
        self.keep(&batch);
        batch
    }

    fn ask(&mut self, request: Option<RequestKey>, command: Command) -> Batch {
        self.tickets += 1;
        let batch = self.engine.step([Input::Api { ticket: self.tickets, request, command }], NOW);
        self.keep(&batch);
        batch
    }

    fn agent(&mut self) -> AgentId {
        let tool = |name: &str, safe| ToolRecord {
            name: name.into(),
            path: format!("/usr/bin/{name}"),
            safe,
            ..ToolRecord::default()
        };
        let spec = AgentSpec {
            model: "p/m".into(),
            tools: vec![tool("sh", false), tool("date", true)],
            ..AgentSpec::default()
        };
        let new = NewAgent {
            name: NameChoice::Like("a".into()),
            called: "a:latest".into(),
            image: new_image("sha256:0", Vec::new()),
            spec,
        };
        let batch = self.ask(None, Command::Agent(AgentCommand::Create(Box::new(new))));
        let id: AgentId = reply(&batch)["id"].as_str().unwrap().parse().unwrap();
        self.ready(&id);
        id
    }

    fn ready(&mut self, agent: &AgentId) -> Batch {
        let run = self.engine.agents[agent].row.runs;
        self.see(Seen::Agent(AgentSeen::RuntimeReady {
            agent: agent.clone(),
            run,
            adopted: false,
            running: Vec::new(),
        }))
    }

    fn send(&mut self, agent: &AgentId, session: &str, text: &str) -> Batch {
        let session = SessionChoice::Named { id: session.parse().unwrap(), fact: None };
        let new = NewTurn { agent: agent.clone(), session, sender: None, text: text.into(), schema: None };
        self.ask(None, Command::Turn(TurnCommand::Send(Box::new(new))))
    }

    fn ask_model(&mut self, agent: &AgentId, turn: &TurnId, step: u32) -> Batch {
        let ask = Ask::Model { turn: turn.clone(), step, context: "c".into(), from_turn: 1 };
        self.see(Seen::Turn(TurnSeen::Asked {
            agent: agent.clone(),
            id: AskId(json!(format!("m{step}"))),
            ask,
        }))
    }

    fn answer(
        &mut self,
        turn: &TurnId,
        step: u32,
        attempt: u32,
        text: &str,
        calls: &[(&str, &str)],
    ) -> Batch {
        let calls = calls
            .iter()
            .map(|(id, name)| CallRecord { id: (*id).into(), name: (*name).into(), arguments: "{}".into() })
            .collect();
        let usage = Usage { input_tokens: 3, output_tokens: 2, ..Usage::default() };
        let answer = ModelAnswer { text: text.into(), calls, usage, reasoning: None, misfit: None };
        self.see(Seen::Turn(TurnSeen::ModelAnswered { turn: turn.clone(), step, attempt, answer }))
    }

    fn exec(&mut self, agent: &AgentId, turn: &TurnId, call: &str, bin: &str) -> Batch {
        let ask = Ask::Exec {
            turn: turn.clone(),
            step: 1,
            call: call.into(),
            bin: bin.into(),
            args: vec!["x".into()],
            stdin: Vec::new(),
            timeout_ms: 0,
        };
        self.see(Seen::Turn(TurnSeen::Asked {
            agent: agent.clone(),
            id: AskId(json!(format!("t{call}"))),
            ask,
        }))
    }

    fn state(&self, turn: &TurnId) -> TurnState {
        let mut states = self.written.iter().filter_map(|write| match write {
            Write::Turn(TurnWrite::New(row)) if row.id == *turn => Some(row.state),
            Write::Turn(TurnWrite::State { id, state, .. }) if id == turn => Some(*state),
            _ => None,
        });
        states.next_back().expect("the turn was recorded")
    }
}

/// A session as a store would tell it.
fn fact(session: &Session) -> SessionFact {
    SessionFact {
        row: session.row.clone(),
        turns: session.turns,
        messages: session.messages,
        cuts: session.cuts,
        tip: session.tip.clone(),
        epoch: session.epoch.clone(),
    }
}

/// What tests look at in an answer, by the names that clients know.
fn reply(batch: &Batch) -> Value {
    match answer(batch) {
        Answer::Agent(agent) => {
            let (turns, jobs) = match &agent.in_force {
                Some(InForce::After { turns, jobs }) => (turns.clone(), jobs.clone()),
                Some(InForce::Now | InForce::NextStart) | None => (Vec::new(), Vec::new()),
            };
            let ready = agent.row.state == AgentState::Ready;
            json!({
                "id": agent.row.id.as_str(),
                "status": if ready && agent.at_work { "working" } else { agent.row.state.word() },
                "model": agent.row.spec.model,
                "in_force": agent.in_force.as_ref().map(InForce::word),
                "after_turns": turns.iter().map(TurnId::as_str).collect::<Vec<_>>(),
                "after_jobs": jobs.iter().map(lodge_core::JobId::as_str).collect::<Vec<_>>(),
            })
        }
        Answer::Lineage(lineage) => json!({"status": lineage.row.state.word()}),
        Answer::Turn(turn) => {
            let waits_for = turn.around.as_ref().map(|around| around.waits_for(&turn.row.id));
            let replaces = turn.row.place.replaces.as_ref().map(TurnId::as_str);
            let mut shown = json!({"id": turn.row.id.as_str(), "waits_for": waits_for, "replaces": replaces});
            if let Some(work) = turn.around.and_then(|around| around.quarantine) {
                shown["quarantine"] = json!({"turn": work.work.subject});
            }
            shown
        }
        Answer::Session(session) => {
            let forked = session.row.forked.as_ref();
            let forked = forked.map(|fork| json!({"session": fork.session.as_str(), "turn": fork.turn}));
            json!({"turns": session.turns, "forked_from": forked})
        }
        Answer::SessionDeleted(id) => json!({"session": id.as_str(), "deleted": true}),
        Answer::Job(job) => json!({
            "id": job.row.id.as_str(),
            "status": job.row.progress.state.word(),
            "labels": job.row.labels(),
            "cancelling": job.row.progress.state.is_open() && job.row.progress.cancel.is_some(),
        }),
        Answer::Image(image) => json!({
            "digest": image.digest, "refs": image.refs, "named": image.named, "size_bytes": image.bytes,
            "agents": image.agents, "complete": image.complete,
            "used": image.bin.as_ref().map(|bin| bin.users),
            "name": image.bin.as_ref().map(|bin| bin.record.name.clone()),
        }),
        Answer::ImageRemoved(gone) => {
            json!({"digest": gone.digest, "untagged": gone.untagged, "removed": gone.removed})
        }
        Answer::Token(token) => json!({"id": token.row.id.as_str()}),
        Answer::Work(work) => json!({"status": work.release.word(), "turn": work.row.work.subject}),
        Answer::Rendered(text) => Value::from(text.0.as_ref()),
    }
}

fn answer(batch: &Batch) -> Answer {
    let mut replies = batch.after.iter().filter_map(|out| match out {
        Out::Reply { reply, .. } => Some(reply.clone()),
        Out::Act(_) => None,
    });
    replies.next_back().expect("there is a reply").unwrap_or_else(|error| panic!("refused: {error:?}"))
}

fn refusal(batch: &Batch) -> String {
    let mut codes = batch.after.iter().filter_map(|out| match out {
        Out::Reply { reply: Err(error), .. } => Some(error.code().to_owned()),
        Out::Reply { .. } | Out::Act(_) => None,
    });
    codes.next_back().expect("there is a refusal")
}

fn turn_of(batch: &Batch) -> TurnId {
    reply(batch)["id"].as_str().unwrap().parse().unwrap()
}

fn acts(batch: &Batch) -> Vec<&Effect> {
    batch
        .after
        .iter()
        .filter_map(|out| if let Out::Act(effect) = out { Some(effect) } else { None })
        .collect()
}

fn started_exec(batch: &Batch) -> Vec<ExecId> {
    let execs = acts(batch).into_iter().filter_map(|effect| match effect {
        Effect::Sandbox { what: SandboxEffect::StartExec { exec, .. }, .. } => Some(exec.clone()),
        _ => None,
    });
    execs.collect()
}

fn kinds(batch: &Batch) -> Vec<EventKind> {
    batch.events().map(|event| event.body.kind()).collect()
}

fn ended(text: &str) -> ExecEnd {
    ExecEnd {
        how: ExecHow::Exited { code: 0 },
        cause: None,
        text: text.into(),
        stdout_bytes: 1,
        stderr_bytes: 0,
    }
}

#[test]
fn a_turn_without_tools_waits_for_two_commits() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let accepted = world.send(&agent, "s", "hi");
    let turn = turn_of(&accepted);
    let asked = world.ask_model(&agent, &turn, 1);
    let answered = world.answer(&turn, 1, 1, "hello", &[]);
    assert_eq!([accepted.urgent, asked.urgent, answered.urgent], [true, false, true]);
    assert_eq!(world.state(&turn), TurnState::Done);
    // The call leaves before its intent is on disk; nothing else of the turn does.
    assert!(matches!(asked.early[..], [Effect::Model(ModelEffect::Call(_))]));
    assert!(accepted.early.is_empty() && answered.early.is_empty());
}

#[test]
fn a_program_starts_only_after_the_batch_that_holds_its_intent() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    world.ask_model(&agent, &turn, 1);
    world.answer(&turn, 1, 1, "", &[("c1", "sh")]);
    let batch = world.exec(&agent, &turn, "c1", "sh");
    assert!(batch.urgent && batch.early.is_empty());
    let intent = batch.writes.iter().any(|write| {
        matches!(write, Write::Turn(TurnWrite::Step(step)) if step.kind() == StepKind::Tool && step.state == StepState::Intent && step.target.exec().is_some())
    });
    assert!(intent);
    assert_eq!(started_exec(&batch).len(), 1);
}

#[test]
fn asking_twice_for_the_same_step_starts_nothing_twice() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    world.ask_model(&agent, &turn, 1);
    assert!(world.ask_model(&agent, &turn, 1).early.is_empty());
    world.answer(&turn, 1, 1, "", &[("c1", "sh")]);
    assert!(
        world.ask_model(&agent, &turn, 1).early.is_empty(),
        "a stored answer is told again, not asked for again"
    );
    let exec = started_exec(&world.exec(&agent, &turn, "c1", "sh")).remove(0);
    assert!(started_exec(&world.exec(&agent, &turn, "c1", "sh")).is_empty());
    world.see(Seen::Turn(TurnSeen::ExecEnded { exec: exec.clone(), end: ended("out") }));
    assert!(
        world.see(Seen::Turn(TurnSeen::ExecEnded { exec, end: ended("out") })).writes.is_empty(),
        "an end counts once"
    );
    assert!(started_exec(&world.exec(&agent, &turn, "c1", "sh")).is_empty());
}

#[test]
fn turns_of_one_session_never_interleave_and_those_of_two_do() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let first = turn_of(&world.send(&agent, "s", "1"));
    let second = turn_of(&world.send(&agent, "s", "2"));
    let other = turn_of(&world.send(&agent, "t", "3"));
    assert_eq!(
        [&first, &second, &other].map(|turn| world.state(turn)),
        [TurnState::Running, TurnState::Queued, TurnState::Running]
    );
    world.ask_model(&agent, &first, 1);
    let done = world.answer(&first, 1, 1, "a", &[]);
    assert_eq!(world.state(&second), TurnState::Running);
    assert!(!kinds(&done).contains(&EventKind::AgentReady), "it still works");
}

#[test]
fn a_failing_model_is_tried_a_bounded_number_of_times_and_the_message_can_be_sent_again() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    world.ask_model(&agent, &turn, 1);
    let record = FailureRecord { code: "model.status".into(), message: "500".into(), hint: None };
    let mut tries = 1;
    loop {
        let failure = ModelFailure { record: record.clone(), retryable: true, after_ms: None };
        let batch = world.see(Seen::Turn(TurnSeen::ModelFailed {
            turn: turn.clone(),
            step: 1,
            attempt: tries,
            failure,
        }));
        if batch.early.is_empty() {
            break;
        }
        assert!(kinds(&batch).contains(&EventKind::TurnStepRestarted));
        tries += 1;
    }
    assert_eq!(tries, lodge_core::limits::MODEL_ATTEMPTS_MAX);
    assert_eq!(world.state(&turn), TurnState::Failed);
    let again = turn_of(&world.send(&agent, "s", "hi"));
    assert_eq!(world.state(&again), TurnState::Running);
}

#[test]
fn an_answer_of_an_attempt_that_was_given_up_is_ignored() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    world.ask_model(&agent, &turn, 1);
    let record = FailureRecord { code: "model.cut".into(), message: "cut".into(), hint: None };
    let failure = ModelFailure { record, retryable: true, after_ms: None };
    world.see(Seen::Turn(TurnSeen::ModelFailed { turn: turn.clone(), step: 1, attempt: 1, failure }));
    assert!(world.answer(&turn, 1, 1, "late", &[]).writes.is_empty());
    world.answer(&turn, 1, 2, "good", &[]);
    assert_eq!(world.state(&turn), TurnState::Done);
}

#[test]
fn stopping_an_agent_breaks_its_turns_off_and_pairs_every_call_with_a_result() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    let queued = turn_of(&world.send(&agent, "s", "later"));
    world.ask_model(&agent, &turn, 1);
    world.answer(&turn, 1, 1, "", &[("c1", "sh"), ("c2", "date")]);
    world.exec(&agent, &turn, "c1", "sh");
    let batch =
        world.ask(None, Command::Agent(AgentCommand::Stop { id: agent.clone(), jobs: RunningJobs::Cancel }));
    assert_eq!([&turn, &queued].map(|turn| world.state(turn)), [TurnState::Interrupted; 2]);
    let results = batch.writes.iter().filter(
        |write| matches!(write, Write::Turn(TurnWrite::Message(message)) if message.body.call.is_some()),
    );
    assert_eq!(results.count(), 2);
    assert!(
        !batch.after.iter().any(|out| matches!(out, Out::Reply { .. })),
        "the answer waits until nothing is left"
    );
    assert_eq!(reply(&world.see(Seen::Sandbox(SandboxSeen::Down { agent, run: 1 })))["status"], "stopped");
}

#[test]
fn a_resend_is_one_change_with_one_answer_and_other_parameters_are_refused() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let key =
        |digest: u8| Some(RequestKey { caller: "o".into(), request_id: "r".into(), digest: [digest; 32] });
    let send = |agent: &AgentId| {
        let new = NewTurn {
            agent: agent.clone(),
            session: SessionChoice::Fresh,
            sender: None,
            text: "hi".into(),
            schema: None,
        };
        Command::Turn(TurnCommand::Send(Box::new(new)))
    };
    let first = world.ask(key(1), send(&agent));
    let second = world.ask(key(1), send(&agent));
    assert_eq!(rendered(&answer(&first)), rendered(&answer(&second)));
    assert!(second.writes.is_empty());
    assert_eq!(refusal(&world.ask(key(2), send(&agent))), "request.reused");
}

#[test]
fn an_answer_is_remembered_until_its_commit_has_settled_and_no_longer() {
    let mut world = EngineWorld::new();
    let key = |id: &str| Some(RequestKey { caller: "o".into(), request_id: id.into(), digest: [1; 32] });
    let keep = || Command::Keep { answer: Rendered("done".into()) };
    assert_eq!(world.ask(key("one"), keep()).requests(), 1);
    assert_eq!(world.ask(key("two"), keep()).requests(), 1);
    // The second was decided after the writer went to rest, and may not be on disk.
    let batch = world.see(Seen::Settled { requests: 1, rest: true });
    assert!(batch.writes.is_empty() && batch.after.is_empty() && batch.early.is_empty(), "rest wakes nobody");
    assert_eq!(world.ask(key("two"), keep()).requests(), 0, "still known");
    assert_eq!(world.engine.requests.len(), 1);
    world.see(Seen::Settled { requests: 2, rest: true });
    assert!(world.engine.requests.len() == 0);
    let many = RECENT_REQUESTS_MAX + 10;
    for number in 0..many {
        world.ask(key(&number.to_string()), keep());
    }
    assert_eq!(world.engine.requests.len(), many, "none of them is known to be on disk");
    world.see(Seen::Settled { requests: 12, rest: false });
    world.ask(key("last"), keep());
    assert_eq!(world.engine.requests.len(), many + 1 - 10, "only those that are on disk are forgotten");
}

#[test]
fn a_session_of_another_agent_is_refused_and_nothing_changes() {
    let mut world = EngineWorld::new();
    let (one, two) = (world.agent(), world.agent());
    world.send(&one, "s", "hi");
    let batch = world.send(&two, "s", "hi");
    assert_eq!(refusal(&batch), "session.other_agent");
    assert!(batch.writes.is_empty());
}

#[test]
fn a_turn_is_taken_while_the_agent_starts_and_refused_when_it_is_stopped() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.ask(None, Command::Agent(AgentCommand::Stop { id: agent.clone(), jobs: RunningJobs::Cancel }));
    assert_eq!(refusal(&world.send(&agent, "s", "hi")), "agent.not_running");
    world.see(Seen::Sandbox(SandboxSeen::Down { agent: agent.clone(), run: 1 }));
    world.ask(None, Command::Agent(AgentCommand::Start { id: agent.clone() }));
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    assert_eq!(world.state(&turn), TurnState::Queued);
    world.ready(&agent);
    assert_eq!(world.state(&turn), TurnState::Running);
}

#[test]
fn what_an_earlier_process_reports_is_ignored() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.ask(None, Command::Agent(AgentCommand::Stop { id: agent.clone(), jobs: RunningJobs::Cancel }));
    world.see(Seen::Sandbox(SandboxSeen::Down { agent: agent.clone(), run: 1 }));
    world.ask(None, Command::Agent(AgentCommand::Start { id: agent.clone() }));
    let stale = Seen::Agent(AgentSeen::Died {
        agent: agent.clone(),
        run: 1,
        part: Part::Sandbox,
        detail: "old".into(),
    });
    assert!(world.see(stale).writes.is_empty());
    assert_eq!(world.engine.agents[&agent].row.state, AgentState::Starting);
}

/// Boots a second engine from a turn whose tool call was in flight.
fn after_a_crash(answered: bool) -> (EngineWorld, AgentId, TurnId, ExecId) {
    let mut old = EngineWorld::new();
    let agent = old.agent();
    let turn = turn_of(&old.send(&agent, "s", "hi"));
    old.ask_model(&agent, &turn, 1);
    old.answer(&turn, 1, 1, "", &[("c1", "sh"), ("c2", "date")]);
    let exec = started_exec(&old.exec(&agent, &turn, "c1", "sh")).remove(0);
    let rows: Vec<StepRow> = old
        .written
        .iter()
        .filter_map(
            |write| if let Write::Turn(TurnWrite::Step(step)) = write { Some(step.clone()) } else { None },
        )
        .map(|mut step| {
            if step.kind() == StepKind::Model || answered {
                step.state = StepState::Done;
            }
            step
        })
        .collect();
    let row: TurnRow = old.engine.turns[&turn].row.clone();
    let session = &old.engine.sessions[&row.session];
    let calls = ["c1", "c2"].map(|id| CallRecord {
        id: id.into(),
        name: if id == "c1" { "sh" } else { "date" }.into(),
        arguments: "{}".into(),
    });
    let loaded = Loaded {
        epoch: 2,
        seq: old.engine.seq,
        streams: old.engine.streams.clone(),
        agents: vec![old.engine.agents[&agent].row.clone()],
        lineages: vec![old.engine.agents[&agent].lineage.clone()],
        last_uid: None,
        sessions: vec![fact(session)],
        turns: vec![LiveTurn {
            row,
            steps: rows,
            calls: calls.into(),
            answered: if answered { vec!["c1".into()] } else { Vec::new() },
            note: None,
        }],
        ..Loaded::default()
    };
    let (engine, batch) = Engine::boot(loaded, host(), IdSource::new(2), "0", NOW);
    assert!(acts(&batch).iter().any(|effect| matches!(
        effect,
        Effect::Sandbox { what: SandboxEffect::Up { how: Up::Adopt, .. }, .. }
    )));
    let mut world = EngineWorld { engine, written: old.written, tickets: 0 };
    world.keep(&batch);
    (world, agent, turn, exec)
}

#[test]
fn after_a_crash_the_call_in_flight_is_asked_for_under_its_old_id_and_the_open_ones_go_to_the_runtime() {
    let (mut world, agent, turn, exec) = after_a_crash(false);
    let batch = world.ready(&agent);
    assert_eq!(started_exec(&batch), [exec]);
    let run = acts(&batch).into_iter().find_map(|effect| match effect {
        Effect::Sandbox { what: SandboxEffect::RunTurn { turn, step, calls, .. }, .. } => {
            Some((turn.clone(), *step, calls.len()))
        }
        _ => None,
    });
    assert_eq!(run, Some((turn.clone(), 2, 2)));
    // A runtime that outlived the daemon has the turn already and is left alone.
    let again = Seen::Agent(AgentSeen::RuntimeReady {
        agent: agent.clone(),
        run: 1,
        adopted: true,
        running: vec![turn],
    });
    assert!(
        !acts(&world.see(again))
            .iter()
            .any(|effect| matches!(effect, Effect::Sandbox { what: SandboxEffect::RunTurn { .. }, .. }))
    );
}

#[test]
fn after_a_crash_a_stored_result_is_used_and_its_program_is_not_asked_for() {
    let (mut world, agent, turn, _) = after_a_crash(true);
    let batch = world.ready(&agent);
    assert!(started_exec(&batch).is_empty());
    let told = world.exec(&agent, &turn, "c1", "sh");
    assert!(started_exec(&told).is_empty());
    assert!(acts(&told).iter().any(|effect| matches!(
        effect,
        Effect::Sandbox { what: SandboxEffect::Answer { answer: Ok(_), .. }, .. }
    )));
}

#[test]
fn events_are_numbered_without_gaps_in_the_log_and_in_every_stream() {
    let mut world = EngineWorld::new();
    let (one, two) = (world.agent(), world.agent());
    for agent in [&one, &two] {
        let turn = turn_of(&world.send(agent, if *agent == one { "s" } else { "t" }, "hi"));
        world.ask_model(agent, &turn, 1);
        world.answer(&turn, 1, 1, "x", &[]);
    }
    let events: Vec<_> = world
        .written
        .iter()
        .filter_map(|write| if let Write::Event(event) = write { Some(event) } else { None })
        .collect();
    let mut heads = std::collections::BTreeMap::new();
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event.seq, at as u64 + 1);
        let head = heads.entry(&event.stream).or_insert(0);
        *head += 1;
        assert_eq!(event.stream_seq, *head);
    }
}
