//! What the engine remembers of agents.

use lodge_core::liveness::Liveness;
use lodge_core::record::{AgentRow, LineageRow};

use crate::Caller;
use crate::answer::Answer;

/// A caller that waits until an agent's sandbox is gone.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub caller: Caller,
    /// The agent's run when it asked: the end of an earlier one is not what it waits for.
    pub run: u32,
    /// The newest event when that was decided: a store that does not have it lost the decision.
    pub seq: u64,
    /// What it is answered then, and what its request has as answer from now on.
    pub answer: Answer,
}

#[derive(Debug)]
pub(crate) struct Agent {
    pub row: AgentRow,
    pub stopping: Vec<Waiting>,
    /// Turns that run now.
    pub running: usize,
    pub lineage: LineageRow,
    pub liveness: Liveness,
    /// The newest order to bring what it needs, while nobody knows how that ended.
    pub pull: Option<u64>,
}

impl Agent {
    pub(crate) fn new(row: AgentRow, lineage: LineageRow) -> Self {
        Agent { row, stopping: Vec::new(), running: 0, lineage, liveness: Liveness::Active, pull: None }
    }
}
