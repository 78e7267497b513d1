//! Jobs: who runs when, how they end, and what is left of them when daemons and agents come and go.

mod agents;
mod ends;
mod notes;
mod pool;
mod tools;

use std::collections::BTreeMap;

use lodge_core::job::{JobRow, JobState, JobStreamBytes, JobWrite};
use lodge_core::record::{MessageRow, Role, TurnWrite};
use lodge_core::{JobId, SessionId};

use super::*;
use crate::jobs::{
    JobEffect, JobEnd, JobObservation, JobReport, JobSpec, JobToolRequest, NewJob, ToolCallRef,
};
use crate::{JobCommand, TurnObservation};

pub(super) fn work(bin: &str) -> JobSpec {
    JobSpec {
        bin: bin.into(),
        args: vec!["x".into()],
        stdin: b"in".to_vec(),
        timeout_ms: 0,
        priority: 0,
        output_bytes: 0,
        labels: BTreeMap::new(),
    }
}

pub(super) fn exited(code: i32) -> JobEnd {
    let stdout = JobStreamBytes { seen: 5, kept: 5 };
    JobEnd {
        how: ExecOutcome::Exited { code },
        cause: None,
        detail: None,
        stdout,
        stderr: JobStreamBytes::default(),
    }
}

pub(super) fn silent(how: ExecOutcome) -> JobEnd {
    JobEnd { how, stdout: JobStreamBytes::default(), ..exited(0) }
}

impl EngineWorld {
    fn submit_job(&mut self, agent: &AgentId, session: Option<&str>, work: JobSpec) -> Batch {
        let session = session.map(|session| session.parse().unwrap());
        let new = NewJob { agent: agent.clone(), session, work };
        self.ask(None, Command::Job(JobCommand::Submit(Box::new(new))))
    }

    fn job(&mut self, agent: &AgentId) -> JobId {
        job_of(&self.submit_job(agent, None, work("sh")))
    }

    fn job_in(&mut self, agent: &AgentId, session: &str) -> JobId {
        job_of(&self.submit_job(agent, Some(session), work("sh")))
    }

    fn cancel_job(&mut self, job: &JobId) -> Batch {
        self.ask(None, Command::Job(JobCommand::Cancel { id: job.clone() }))
    }

    fn job_ends(&mut self, job: &JobId, end: JobEnd) -> Batch {
        self.see(Observation::Job(JobObservation::Ended { job: job.clone(), end }))
    }

    fn job_archived(&mut self, job: &JobId) -> Batch {
        self.see(Observation::Job(JobObservation::Archived { job: job.clone() }))
    }

    /// Ends it, archives it, and takes it for granted.
    fn job_done(&mut self, job: &JobId) {
        self.job_ends(job, exited(0));
        self.job_archived(job);
    }

    /// What a store would hold of all jobs.
    fn stored(&self) -> BTreeMap<JobId, JobRow> {
        let mut rows = BTreeMap::new();
        for write in &self.written {
            let Write::Job(write) = write else { continue };
            let change = |rows: &mut BTreeMap<JobId, JobRow>, id: &JobId, change: &dyn Fn(&mut JobRow)| {
                change(rows.get_mut(id).expect("it was recorded before"));
            };
            match write {
                JobWrite::New { row, .. } => assert!(rows.insert(row.id.clone(), *row.clone()).is_none()),
                JobWrite::Progress { id, progress } => {
                    change(&mut rows, id, &|row| row.progress = *progress.clone());
                }
                JobWrite::Archived { id } => change(&mut rows, id, &|row| {
                    assert!(!row.progress.state.is_open() && !row.archived);
                    row.archived = true;
                }),
                JobWrite::Told { id } => change(&mut rows, id, &|row| {
                    assert!(!row.told, "nobody is told twice");
                    row.told = true;
                }),
                JobWrite::OutputRemoved { id } => change(&mut rows, id, &|row| row.output_removed = true),
                JobWrite::Gone { id } => drop(rows.remove(id)),
            }
        }
        rows
    }

    fn job_row(&self, job: &JobId) -> JobRow {
        self.stored()[job].clone()
    }

    fn job_state(&self, job: &JobId) -> JobState {
        self.job_row(job).progress.state
    }

    fn states(&self, jobs: &[JobId]) -> Vec<&'static str> {
        let stored = self.stored();
        jobs.iter().map(|job| stored[job].progress.state.word()).collect()
    }

    /// Everything that a store would give to another engine.
    fn loaded(&self) -> StoredState {
        let engine = &self.engine;
        let unsettled = |row: &JobRow| {
            row.progress.state.is_open() || !row.archived || (!row.told && row.session.is_some())
        };
        // As the store has them.
        let mut turns: Vec<LiveTurn> = engine.turns.values().map(|turn| self.live(&turn.row)).collect();
        turns.sort_by_key(|live| live.row.number);
        StoredState {
            epoch: engine.epoch + 1,
            seq: engine.seq,
            streams: heads(engine),
            agents: engine.agents.values().map(|agent| agent.row.clone()).collect(),
            lineages: engine.agents.values().map(|agent| agent.lineage.clone()).collect(),
            sessions: engine.sessions.values().filter(|session| !session.gone).map(fact).collect(),
            turns,
            jobs: self.stored().into_values().filter(unsettled).collect(),
            ..StoredState::default()
        }
    }

    fn live(&self, row: &TurnRow) -> LiveTurn {
        let mut steps: BTreeMap<(u32, u32), StepRow> = BTreeMap::new();
        let (mut messages, mut note): (Vec<&MessageRow>, _) = (Vec::new(), None);
        for write in &self.written {
            match write {
                Write::Turn(TurnWrite::Step(step)) if step.turn == row.id => {
                    steps.insert((step.step, step.ordinal), step.clone());
                }
                Write::Turn(TurnWrite::StepState { turn, step, ordinal, state, .. }) if *turn == row.id => {
                    steps.get_mut(&(*step, *ordinal)).expect("it has an intent").state = *state;
                }
                Write::Turn(TurnWrite::Message(message)) if message.turn == row.id => {
                    note = note.or_else(|| message.body.note.clone());
                    messages.push(message);
                }
                Write::Turn(TurnWrite::Note { turn, note: told }) if *turn == row.id => {
                    note = Some(told.clone())
                }
                _ => {}
            }
        }
        let newest = messages.iter().rposition(|message| message.role == Role::Assistant);
        let after = newest.map_or(&messages[..], |at| &messages[at..]);
        LiveTurn {
            row: row.clone(),
            steps: steps.into_values().collect(),
            calls: newest.map(|at| messages[at].body.calls.clone()).unwrap_or_default(),
            answered: after.iter().filter_map(|message| message.body.call.clone()).collect(),
            note,
        }
    }

    /// The daemon dies after its last commit, and another takes over.
    pub(super) fn reboot(self) -> (EngineWorld, Batch) {
        let host = Host { settings: self.engine.host.settings, ..host() };
        let (engine, batch) = Engine::boot(self.loaded(), host, IdSource::new(self.tickets + 77), "0", NOW);
        assert_eq!(engine.facts().jobs, self.engine.facts().jobs, "what was held is found again");
        assert_eq!(engine.sizes().jobs, self.engine.sizes().jobs);
        let mut world =
            EngineWorld { engine, written: self.written, stored: BTreeMap::new(), tickets: self.tickets };
        world.keep(&batch);
        (world, batch)
    }

    /// A turn of a session that called one tool, which the runtime has not requested yet.
    fn calling(&mut self, agent: &AgentId, session: &str, tool: &str) -> TurnId {
        let turn = turn_of(&self.send(agent, session, "hi"));
        self.ask_model(agent, &turn, 1);
        self.answer(&turn, 1, 1, "", &[("c1", tool)]);
        turn
    }

    fn wish(&mut self, agent: &AgentId, turn: &TurnId, wish: JobToolRequest) -> Batch {
        let ask = RuntimeCall::Job { turn: turn.clone(), step: 1, call: "c1".into(), wish };
        self.see(Observation::Turn(TurnObservation::Asked {
            agent: agent.clone(),
            id: RuntimeCallId(json!("j1")),
            ask,
        }))
    }

    fn read_answers(&mut self, asked: ToolCallRef, text: &str, told: &[&JobId]) -> Batch {
        let told = told.iter().map(|job| (*job).clone()).collect();
        let answer = JobReport { text: text.into(), error: false, told };
        self.see(Observation::Job(JobObservation::Read { asked, answer }))
    }
}

fn job_of(batch: &Batch) -> JobId {
    reply(batch)["id"].as_str().unwrap().parse().unwrap()
}

/// Something to be done about a job.
#[derive(Debug, PartialEq, Eq)]
enum JobAct {
    InSandbox(JobOrder),
    Elsewhere(JobEffect),
}

/// The effects about jobs.
fn job_acts(batch: &Batch) -> Vec<JobAct> {
    let whats = acts(batch).into_iter().filter_map(|effect| match effect {
        Effect::Sandbox { what: SandboxEffect::Job(order), .. } => Some(JobAct::InSandbox(order.clone())),
        Effect::Job(what) => Some(JobAct::Elsewhere(what.clone())),
        _ => None,
    });
    whats.collect()
}

/// The effects about jobs are exactly these, in any order.
#[track_caller]
fn does(batch: &Batch, expected: &[JobAct]) {
    let sorted = |mut whats: Vec<String>| {
        whats.sort();
        whats
    };
    let words = |whats: &[JobAct]| whats.iter().map(|what| format!("{what:?}")).collect();
    assert_eq!(sorted(words(&job_acts(batch))), sorted(words(expected)));
}

fn started(batch: &Batch) -> Vec<JobId> {
    let jobs = job_acts(batch).into_iter().filter_map(|what| match what {
        JobAct::InSandbox(JobOrder::Start { job, resumed: false }) => Some(job),
        _ => None,
    });
    jobs.collect()
}

fn start(job: &JobId, resumed: bool) -> JobAct {
    JobAct::InSandbox(JobOrder::Start { job: job.clone(), resumed })
}

fn kill(job: &JobId) -> JobAct {
    JobAct::InSandbox(JobOrder::Kill { job: job.clone() })
}

fn archive(job: &JobId) -> JobAct {
    JobAct::Elsewhere(JobEffect::Archive { job: job.clone() })
}

fn forget(job: &JobId) -> JobAct {
    JobAct::InSandbox(JobOrder::Forget { job: job.clone() })
}

/// The texts of tool results.
fn results(batch: &Batch) -> Vec<(String, bool)> {
    let told = batch.writes.iter().filter_map(|write| match write {
        Write::Turn(TurnWrite::Message(message)) if message.role == Role::Tool => {
            Some((message.body.text.clone(), message.body.failed))
        }
        _ => None,
    });
    told.collect()
}

fn session(name: &str) -> SessionId {
    name.parse().unwrap()
}
