//! What an engine holds, as values that can be counted and compared.
//!
//! Owns: nothing. A reader's view, so that whoever drives an engine can prove that its memory is bounded, agrees with
//! itself, and is what a restart would find.

use std::collections::BTreeMap;

use lodge_core::record::{AgentRow, LineageRow, TurnRow};
use lodge_core::{AgentId, ExecId, SessionId, TurnId};

use super::Engine;
use super::state::{Phase, Turn};

/// How much an engine holds of everything that may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    pub agents: usize,
    pub sessions: usize,
    pub idle_sessions: usize,
    pub turns: usize,
    pub execs: usize,
    pub requests: usize,
    pub streams: usize,
}

/// Everything that a restart has to find again, normalised: what a crash forgets on purpose is left out.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    pub seq: u64,
    pub streams: BTreeMap<String, u64>,
    pub agents: BTreeMap<AgentId, AgentFacts>,
    pub names: BTreeMap<String, AgentId>,
    /// Those with a live turn.
    pub sessions: BTreeMap<SessionId, SessionFacts>,
    pub turns: BTreeMap<TurnId, TurnFacts>,
    /// Tool calls without an outcome, with the turn that waits for them.
    pub execs: BTreeMap<ExecId, TurnId>,
    pub last_uid: Option<u32>,
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
    pub live: Vec<TurnId>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TurnFacts {
    pub row: TurnRow,
    /// The newest model step whose answer is known; 0 before the first.
    pub answered: u32,
    /// The model step that was asked for and has no answer, and its attempt.
    pub asked: Option<(u32, u32)>,
    /// Calls of the newest answer that have no result, and the exec of those that were started.
    pub open: Vec<(String, Option<ExecId>)>,
}

impl Engine {
    pub fn sizes(&self) -> Sizes {
        Sizes {
            agents: self.agents.len(),
            sessions: self.sessions.len(),
            idle_sessions: self.idle_sessions.len(),
            turns: self.turns.len(),
            execs: self.execs.len(),
            requests: self.recent.len().max(self.recent_order.len()),
            streams: self.streams.len(),
        }
    }

    /// Callers that wait for the end of an agent.
    pub fn waiting_callers(&self) -> usize {
        self.agents.values().map(|agent| agent.stopping.len()).sum()
    }

    pub fn facts(&self) -> Facts {
        let agents = self.agents.iter().map(|(id, agent)| {
            (
                id.clone(),
                AgentFacts { row: agent.row.clone(), lineage: agent.lineage.clone(), running: agent.running },
            )
        });
        let live = self.sessions.iter().filter(|(_, session)| !session.live.is_empty());
        let sessions = live.map(|(id, session)| {
            let facts = SessionFacts {
                agent: session.row.agent.clone(),
                turns: session.turns,
                messages: session.messages,
                live: session.live.iter().cloned().collect(),
            };
            (id.clone(), facts)
        });
        Facts {
            seq: self.seq,
            streams: self.streams.clone(),
            agents: agents.collect(),
            names: self.names.iter().map(|(name, id)| (name.clone(), id.clone())).collect(),
            sessions: sessions.collect(),
            turns: self.turns.iter().map(|(id, turn)| (id.clone(), turn_facts(turn))).collect(),
            execs: self.execs.iter().map(|(exec, turn)| (exec.clone(), turn.clone())).collect(),
            last_uid: self.last_uid,
        }
    }
}

fn turn_facts(turn: &Turn) -> TurnFacts {
    let row = turn.row.clone();
    let cut = turn.cut.as_ref().map(|cut| (cut.step, cut.attempt));
    match &turn.phase {
        Phase::Thinking => TurnFacts { row, answered: turn.step, asked: cut, open: Vec::new() },
        Phase::Model { attempt, .. } => {
            TurnFacts { row, answered: turn.step - 1, asked: Some((turn.step, *attempt)), open: Vec::new() }
        }
        Phase::Tools { calls } => {
            let open = calls.iter().filter(|call| call.result.is_none()).map(|call| {
                let exec = call.step.as_ref().and_then(|step| step.exec.clone());
                (call.record.id.clone(), exec)
            });
            TurnFacts { row, answered: turn.step, asked: cut, open: open.collect() }
        }
    }
}
