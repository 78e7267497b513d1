//! The engine as a pure function: inputs in, batches out; no disk, no processes, no clock.

mod compact;
mod images;
mod jobs;
mod lineages;
mod misfits;
mod outages;
mod pulls;
mod quarantine;
mod rest;
mod restarts;
mod retries;
mod sessions;
mod slots;
mod standalone;
mod turn_retries;
mod turns;
mod updates;

use std::time::Duration;

use lodge_core::agent::AgentState;
use lodge_core::limits::RECENT_REQUESTS_MAX;
use lodge_core::record::{
    AgentFact, AgentSpec, CallRecord, FailureRecord, ImageRecord, ImageRow, LiveTurn, SessionFact, StepKind,
    StepRow, StoredState, ToolRecord, TurnRow, TurnWrite, Usage, Write,
};
use lodge_core::turn::{StepState, TurnState};
use lodge_core::{AgentId, EventKind, ExecId, IdSource, Timestamp, TurnId};
use serde_json::{Value, json};

use super::*;
use crate::{AgentCommand, AgentObservation, ModelEffect, SandboxEffect, TurnCommand, TurnObservation};

const NOW: Timestamp = Timestamp::from_ms(1_000);

fn new_image(digest: &str, tags: Vec<String>) -> NewImage {
    let row = ImageRow::agent(digest.into(), "a:latest".into(), 7, ImageRecord::default());
    NewImage { row, with: Vec::new(), tags }
}

/// An engine with everything it ever wrote, as a store would hold it.
struct EngineWorld {
    engine: Engine,
    written: Vec<Write>,
    /// Agents as they were when everything was on disk.
    stored: BTreeMap<AgentId, AgentFact>,
    tickets: u64,
}

fn settings(max_concurrent: usize) -> Settings {
    let backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(30) };
    Settings { policy: Policy::Revive, backoff, max_concurrent, max_jobs: 10, job_output: 1 << 20 }
}

pub(crate) fn rendered(answer: &Answer) -> RenderedAnswer {
    match answer {
        Answer::Rendered(rendered) => rendered.clone(),
        answer => RenderedAnswer(format!("{answer:?}").into()),
    }
}

fn heads(engine: &Engine) -> BTreeMap<String, u64> {
    engine.streams.iter().map(|(stream, newest)| (stream.clone(), newest.head)).collect()
}

fn host() -> Host {
    Host { boot: "boot-1".into(), own_uids: true, settings: settings(10), render: rendered }
}

impl EngineWorld {
    fn new() -> EngineWorld {
        let (engine, batch) = Engine::boot(StoredState::default(), host(), IdSource::new(1), "0", NOW);
        let mut world = EngineWorld { engine, written: Vec::new(), stored: BTreeMap::new(), tickets: 0 };
        world.keep(&batch);
        world
    }

    /// Everything is on disk, and agents at rest are let go.
    fn flush(&mut self) {
        self.stored.extend(self.engine.agent_facts());
        self.see(Observation::Settled { requests: 0, seq: self.engine.seq, rest: true });
    }

    /// Answers lookups from what was stored, and returns what is decided then.
    fn answer_lookups(&mut self, mut batch: Batch) -> Batch {
        for effect in std::mem::take(&mut batch.early) {
            let Effect::Agent(AgentEffect::LookUp { agent, ask }) = effect else {
                batch.early.push(effect);
                continue;
            };
            let found = self.stored.get(&agent).cloned();
            let found = found.map_or(AgentLookup::NotThere, |fact| AgentLookup::Found(Box::new(fact)));
            return self.see(Observation::Agent(AgentObservation::LookedUp { agent, ask, found }));
        }
        batch
    }

    fn keep(&mut self, batch: &Batch) {
        self.written.extend(batch.writes.iter().cloned());
    }

    fn see(&mut self, seen: Observation) -> Batch {
        let batch = self.engine.step([Input::Seen(seen)], NOW);
        self.keep(&batch);
        batch
    }

    fn ask(&mut self, request: Option<RequestKey>, command: Command) -> Batch {
        self.tickets += 1;
        let batch = self.engine.step([Input::Api { ticket: self.tickets, request, command }], NOW);
        self.keep(&batch);
        self.answer_lookups(batch)
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
        self.see(Observation::Agent(AgentObservation::RuntimeReady {
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
        let ask = RuntimeCall::Model { turn: turn.clone(), step, context: "c".into(), from_turn: 1 };
        self.see(Observation::Turn(TurnObservation::Asked {
            agent: agent.clone(),
            id: RuntimeCallId(json!(format!("m{step}"))),
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
        self.see(Observation::Turn(TurnObservation::ModelAnswered {
            turn: turn.clone(),
            step,
            attempt,
            answer,
        }))
    }

    fn exec(&mut self, agent: &AgentId, turn: &TurnId, call: &str, bin: &str) -> Batch {
        let ask = RuntimeCall::Exec {
            turn: turn.clone(),
            step: 1,
            call: call.into(),
            bin: bin.into(),
            args: vec!["x".into()],
            stdin: Vec::new(),
            timeout_ms: 0,
        };
        self.see(Observation::Turn(TurnObservation::Asked {
            agent: agent.clone(),
            id: RuntimeCallId(json!(format!("t{call}"))),
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

/// A session as a store would return it.
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
        Answer::Agent(AgentAnswer::Agent(agent)) => {
            let (turns, jobs) = match &agent.in_force {
                Some(UpdateTiming::After { turns, jobs }) => (turns.clone(), jobs.clone()),
                Some(UpdateTiming::Now | UpdateTiming::NextStart) | None => (Vec::new(), Vec::new()),
            };
            let ready = agent.row.state == AgentState::Ready;
            json!({
                "id": agent.row.id.as_str(),
                "status": if ready && agent.at_work { "working" } else { agent.row.state.word() },
                "model": agent.row.spec.model,
                "in_force": agent.in_force.as_ref().map(UpdateTiming::word),
                "after_turns": turns.iter().map(TurnId::as_str).collect::<Vec<_>>(),
                "after_jobs": jobs.iter().map(lodge_core::JobId::as_str).collect::<Vec<_>>(),
            })
        }
        Answer::Agent(AgentAnswer::Lineage(lineage)) => json!({"status": lineage.row.state.word()}),
        Answer::Turn(turn) => {
            let waits_for =
                turn.wait_reasons.as_ref().map(|wait_reasons| wait_reasons.waits_for(&turn.row.id));
            let replaces = turn.row.place.replaces.as_ref().map(TurnId::as_str);
            let mut shown = json!({"id": turn.row.id.as_str(), "waits_for": waits_for, "replaces": replaces});
            if let Some(work) = turn.wait_reasons.and_then(|wait_reasons| wait_reasons.quarantine) {
                shown["quarantine"] = json!({"turn": work.work.subject});
            }
            shown
        }
        Answer::Session(SessionAnswer::Session(session)) => {
            let forked = session.row.forked.as_ref();
            let forked = forked.map(|fork| json!({"session": fork.session.as_str(), "turn": fork.turn}));
            json!({"turns": session.turns, "forked_from": forked})
        }
        Answer::Session(SessionAnswer::Deleted(id)) => json!({"session": id.as_str(), "deleted": true}),
        Answer::Job(job) => json!({
            "id": job.row.id.as_str(),
            "status": job.row.progress.state.word(),
            "labels": job.row.labels(),
            "cancelling": job.row.progress.state.is_open() && job.row.progress.cancel.is_some(),
        }),
        Answer::Sandbox(row) => json!({"id": row.id.as_str(), "status": row.state.word()}),
        Answer::SandboxExec(row) => {
            json!({"id": row.id.as_str(), "status": row.progress.state.word()})
        }
        Answer::Image(ImageAnswer::Image(image)) => json!({
            "digest": image.digest, "refs": image.refs, "named": image.named, "size_bytes": image.bytes,
            "agents": image.agents, "complete": image.complete,
            "used": image.bin.as_ref().map(|bin| bin.users),
            "name": image.bin.as_ref().map(|bin| bin.record.name.clone()),
        }),
        Answer::Image(ImageAnswer::Removed(gone)) => {
            json!({"digest": gone.digest, "untagged": gone.untagged, "removed": gone.removed})
        }
        Answer::Token(token) => json!({"id": token.row.id.as_str()}),
        Answer::Work(work) => json!({"status": work.release.word(), "turn": work.row.work.subject}),
        Answer::Rendered(text) => Value::from(text.0.as_ref()),
    }
}

fn answer(batch: &Batch) -> Answer {
    let mut replies = batch.after.iter().filter_map(|out| match out {
        BatchOutput::Reply { reply, .. } => Some(reply.clone()),
        BatchOutput::Act(_) => None,
    });
    replies.next_back().expect("there is a reply").unwrap_or_else(|error| panic!("refused: {error:?}"))
}

fn refusal(batch: &Batch) -> String {
    let mut codes = batch.after.iter().filter_map(|out| match out {
        BatchOutput::Reply { reply: Err(error), .. } => Some(error.code().to_owned()),
        BatchOutput::Reply { .. } | BatchOutput::Act(_) => None,
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
        .filter_map(|out| if let BatchOutput::Act(effect) = out { Some(effect) } else { None })
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
        how: ExecOutcome::Exited { code: 0 },
        cause: None,
        text: text.into(),
        stdout_bytes: 1,
        stderr_bytes: 0,
    }
}
