//! The engine's memory, as values that can be counted and compared.
//!
//! Owns: nothing. A view for tests, to prove that the engine's memory is bounded, consistent, and equal to what a
//! restart loads.

use std::collections::{BTreeMap, BTreeSet};

use lodge_core::agent::AgentState;
use lodge_core::epoch::Epoch;
use lodge_core::job::JobRow;
use lodge_core::quarantine::QuarantineRow;
use lodge_core::record::{AgentFact, AgentRow, ImageFact, ImageRefRow, LineageRow, SessionFact, TurnRow};
use lodge_core::sandbox::{SandboxExecRow, SandboxRow};
use lodge_core::token::TokenRow;
use lodge_core::turn::StepState;
use lodge_core::{AgentId, ExecId, JobId, SandboxId, SessionId, TokenId, TurnId, WorkId};

use crate::Engine;
use crate::sessions::Session;
use crate::turns::compact::SUMMARY_STEP;
use crate::turns::{Phase, Turn};

/// The size of everything in memory that may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    pub agents: usize,
    pub sessions: usize,
    pub idle_sessions: usize,
    pub turns: usize,
    pub execs: usize,
    pub jobs: JobSizes,
    pub requests: usize,
    pub streams: usize,
    /// Requests that wait for agents or sandboxes at rest.
    pub lookups: usize,
    /// Standalone sandboxes, and the execs in them.
    pub sandboxes: usize,
    pub sandbox_execs: usize,
    /// Agents that have a slot.
    pub working: usize,
    pub max_concurrent: usize,
}

/// How many jobs are in memory: pending, running, ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobSizes {
    pub held: usize,
    pub pending: usize,
    pub running: usize,
    /// Jobs that may run.
    pub max: usize,
    /// Ended, and not in the archive.
    pub unarchived: usize,
    /// Ended jobs that are not reported to their sessions.
    pub untold: usize,
}

/// Everything that a restart must load again, normalised. State that a crash may lose is left out.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    pub seq: u64,
    /// Of the daemon, and of `agents`.
    pub streams: BTreeMap<String, u64>,
    /// Agents that are not at rest.
    pub agents: BTreeMap<AgentId, AgentFacts>,
    /// The names of all agents.
    pub names: BTreeSet<String>,
    /// How many agents have each image.
    pub image_users: BTreeMap<String, u64>,
    /// Sessions with a live turn.
    pub sessions: BTreeMap<SessionId, SessionFacts>,
    pub turns: BTreeMap<TurnId, TurnFacts>,
    /// Turns that wait only for jobs.
    pub asleep: BTreeSet<TurnId>,
    /// Tool calls without an outcome, with the turn that waits for them.
    pub execs: BTreeMap<ExecId, TurnId>,
    /// Jobs that are open, not archived or not reported.
    pub jobs: BTreeMap<JobId, JobRow>,
    pub last_uid: Option<u32>,
    /// Tokens that are not revoked and may not have expired.
    pub tokens: BTreeMap<TokenId, TokenRow>,
    pub image_refs: BTreeMap<String, ImageRefRow>,
    pub images: BTreeMap<String, ImageFact>,
    /// Work in quarantine.
    pub quarantine: BTreeMap<WorkId, QuarantineRow>,
    /// Standalone sandboxes that are not at rest.
    pub sandboxes: BTreeMap<SandboxId, SandboxRow>,
    /// The open execs in them.
    pub sandbox_execs: BTreeMap<ExecId, SandboxExecRow>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct AgentFacts {
    pub row: AgentRow,
    pub lineage: LineageRow,
    pub running: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFacts {
    pub agent: AgentId,
    pub turns: u32,
    pub messages: u64,
    pub cuts: u32,
    pub tip: Option<TurnId>,
    pub epoch: Epoch,
    pub live: Vec<TurnId>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TurnFacts {
    pub row: TurnRow,
    /// The newest model step whose answer is known; 0 before the first.
    pub answered: u32,
    /// The model step that is requested and has no answer, and its attempt.
    pub asked: Option<(u32, u32)>,
    /// Calls of the newest answer without a result, and the exec of those that were started.
    pub open: Vec<(String, Option<ExecId>)>,
    /// Answers that did not match the schema.
    pub misfits: usize,
}

impl Engine {
    pub fn sizes(&self) -> Sizes {
        let (sandboxes, sandbox_execs, lookups) = self.standalones.sizes();
        Sizes {
            agents: self.agents.len(),
            sessions: self.sessions.len(),
            idle_sessions: self.idle_sessions.len(),
            turns: self.turns.len(),
            execs: self.execs.len(),
            jobs: self.job_sizes(),
            requests: self.requests.len(),
            streams: self.streams.len(),
            lookups: self.lookups.len() + lookups,
            sandboxes,
            sandbox_execs,
            working: self.working,
            max_concurrent: self.host.settings.max_concurrent,
        }
    }

    fn job_sizes(&self) -> JobSizes {
        JobSizes {
            held: self.jobs.len(),
            pending: self.jobs.pending(),
            running: self.jobs.running(),
            max: self.host.settings.max_jobs,
            unarchived: self.jobs.unarchived(),
            untold: self.jobs.unreported(),
        }
    }

    /// Turns that wait for their provider, apart from the one of each provider that may try it.
    pub fn held_turns(&self) -> BTreeSet<TurnId> {
        let held = self.turns.values().filter(|turn| self.is_held(turn));
        held.map(|turn| turn.row.id.clone()).collect()
    }

    /// The model that a turn calls, if the turn has not ended.
    pub fn model_of_live_turn(&self, id: &TurnId) -> Option<&str> {
        let turn = self.turns.get(id)?;
        self.agents.get(&turn.row.agent).map(|agent| agent.row.spec.model.as_str())
    }

    /// Callers that wait for the end of an agent.
    pub fn waiting_callers(&self) -> usize {
        self.agents.values().map(|agent| agent.stopping.len()).sum()
    }

    /// Agents that are stopped.
    pub fn stopped_agents(&self) -> BTreeSet<AgentId> {
        let stopped = self.agents.values().filter(|agent| agent.row.state == AgentState::Stopped);
        stopped.map(|agent| agent.row.id.clone()).collect()
    }

    pub fn facts(&self) -> Facts {
        let resting = self.resting_agents();
        let live = self.agents.iter().filter(|(id, _)| !resting.contains(id));
        let agents = live.map(|(id, agent)| {
            (
                id.clone(),
                AgentFacts { row: agent.row.clone(), lineage: agent.lineage.clone(), running: agent.running },
            )
        });
        let resting_sandboxes = self.standalones.resting();
        let rests = |stream: &str| {
            resting.iter().any(|agent| agent.as_str() == stream)
                || resting_sandboxes.iter().any(|sandbox| sandbox.as_str() == stream)
        };
        let streams = self.streams.iter().filter(|(stream, _)| !rests(stream));
        let live = self.sessions.iter().filter(|(_, session)| !session.live.is_empty());
        let sessions = live.map(|(id, session)| {
            let facts = SessionFacts {
                agent: session.row.agent.clone(),
                turns: session.turns,
                messages: session.messages,
                cuts: session.cuts,
                tip: session.tip.clone(),
                epoch: session.epoch.clone(),
                live: session.live.iter().cloned().collect(),
            };
            (id.clone(), facts)
        });
        let asleep = self.turns.values().filter(|turn| self.waits_only_for_jobs(turn));
        Facts {
            seq: self.seq,
            streams: streams.map(|(stream, newest)| (stream.clone(), newest.head)).collect(),
            agents: agents.collect(),
            names: self.names.iter().map(|name| name.to_string()).collect(),
            image_users: self.image_users(),
            sessions: sessions.collect(),
            turns: self.turns.iter().map(|(id, turn)| (id.clone(), turn_facts(turn))).collect(),
            asleep: asleep.map(|turn| turn.row.id.clone()).collect(),
            execs: self.execs.iter().map(|(exec, turn)| (exec.clone(), turn.clone())).collect(),
            jobs: self.jobs.all().map(|row| (row.id.clone(), row.clone())).collect(),
            last_uid: self.last_uid,
            tokens: self.tokens.clone(),
            image_refs: self.image_refs.clone(),
            images: self.images.clone(),
            quarantine: self.quarantine.clone(),
            sandboxes: self
                .standalones
                .rows()
                .filter(|row| !resting_sandboxes.contains(&row.id))
                .map(|row| (row.id.clone(), row.clone()))
                .collect(),
            sandbox_execs: self
                .standalones
                .exec_rows()
                .filter(|row| row.progress.state.is_open())
                .map(|row| (row.id.clone(), row.clone()))
                .collect(),
        }
    }

    fn image_users(&self) -> BTreeMap<String, u64> {
        let mut users = self.resting_images.clone();
        for agent in self.agents.values() {
            for digest in agent.row.images().collect::<BTreeSet<_>>() {
                *users.entry(digest.to_owned()).or_insert(0) += 1;
            }
        }
        users
    }

    /// Every agent in memory, as the store should have it once everything is recorded.
    pub fn agent_facts(&self) -> BTreeMap<AgentId, AgentFact> {
        let facts = self.agents.iter().map(|(id, agent)| {
            let head = self.streams.get(id.as_str()).map_or(0, |newest| newest.head);
            let (row, lineage) = (agent.row.clone(), agent.lineage.clone());
            (id.clone(), AgentFact { row, lineage, head })
        });
        facts.collect()
    }

    /// Every session in memory, as the store should have it once everything is recorded; `None` if it was deleted.
    pub fn session_facts(&self) -> BTreeMap<SessionId, Option<SessionFact>> {
        let facts = self.sessions.iter().map(|(id, session)| {
            let fact = SessionFact {
                row: session.row.clone(),
                turns: session.turns,
                messages: session.messages,
                cuts: session.cuts,
                tip: session.tip.clone(),
                epoch: session.epoch.clone(),
            };
            (id.clone(), (!session.gone).then_some(fact))
        });
        facts.collect()
    }

    /// Sessions in memory that would never be released.
    pub fn stray_sessions(&self) -> Vec<SessionId> {
        let idle: BTreeSet<&SessionId> = self.idle_sessions.iter().collect();
        let stray = |session: &(&SessionId, &Session)| session.1.live.is_empty() && !idle.contains(session.0);
        self.sessions.iter().filter(stray).map(|(id, _)| id.clone()).collect()
    }
}

fn turn_facts(turn: &Turn) -> TurnFacts {
    let (row, misfits) = (turn.row.clone(), turn.misfits);
    let cut = turn.cut.as_ref().map(|cut| cut.at);
    let summary = turn.summary.as_ref().filter(|row| row.state == StepState::Intent);
    let summary = summary.map(|row| (row.step, row.attempt));
    match &turn.phase {
        Phase::Thinking => {
            TurnFacts { row, answered: turn.step, asked: summary.or(cut), open: Vec::new(), misfits }
        }
        Phase::Summary(compaction) => {
            let asked = Some((SUMMARY_STEP, compaction.attempt));
            TurnFacts { row, answered: turn.step, asked, open: Vec::new(), misfits }
        }
        Phase::Model { attempt, .. } => TurnFacts {
            row,
            answered: turn.step - 1,
            asked: Some((turn.step, *attempt)),
            open: Vec::new(),
            misfits,
        },
        Phase::Tools { calls } => {
            let open = calls.iter().filter(|call| call.result.is_none()).map(|call| {
                let exec = call.step.as_ref().and_then(|step| step.target.exec().cloned());
                (call.record.id.clone(), exec)
            });
            TurnFacts { row, answered: turn.step, asked: cut, open: open.collect(), misfits }
        }
    }
}
