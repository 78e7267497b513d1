//! The engine's memory of agents.

use lodge_core::liveness::Liveness;
use lodge_core::record::{AgentRow, LineageRow};

use crate::Caller;
use crate::answer::Answer;

/// A caller that waits until an agent's sandbox is gone.
#[derive(Debug)]
pub(crate) struct EndWaiter {
    pub caller: Caller,
    /// The agent's run at the time of the request: the end of an earlier run does not count.
    pub run: u32,
    /// The newest event at the time of the decision: a store without it lost the decision.
    pub seq: u64,
    /// The answer at the end, which is also recorded for the request.
    pub answer: Answer,
}

#[derive(Debug)]
pub(crate) struct Agent {
    pub row: AgentRow,
    pub stopping: Vec<EndWaiter>,
    /// Turns that run now.
    pub running: usize,
    pub lineage: LineageRow,
    pub liveness: Liveness,
    /// The newest pull order, until its result is known.
    pub pull: Option<u64>,
}

impl Agent {
    pub(crate) fn new(row: AgentRow, lineage: LineageRow) -> Self {
        Agent { row, stopping: Vec::new(), running: 0, lineage, liveness: Liveness::Active, pull: None }
    }
}
