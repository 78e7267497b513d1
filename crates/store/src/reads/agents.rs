//! Agents, as listings show them.

use std::collections::BTreeMap;

use lodge_core::AgentId;
use lodge_core::park::ParkReason;
use lodge_core::quarantine::QuarantineRow;
use lodge_core::record::{AgentFact, AgentRow, Usage};

use super::Result;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentMatch {
    One(AgentId),
    None,
    /// Several ids start with the given text.
    Many(Vec<AgentId>),
}

#[derive(Debug, Clone)]
pub struct AgentSummary {
    pub row: AgentRow,
    /// Whether a turn of it runs.
    pub working: bool,
    /// Its work in quarantine.
    pub quarantine: Vec<QuarantineRow>,
    /// Why its turns are parked, oldest turn first.
    pub parked: Vec<ParkReason>,
}

pub trait AgentReads {
    /// An agent by id, name or unique id prefix. Removed agents are found by their whole id alone.
    fn find_agent(&self, given: &str) -> Result<AgentMatch>;
    /// An agent by id, name or unique id prefix; if there is none, one that was removed.
    fn find_agent_ever(&self, given: &str) -> Result<AgentMatch>;
    fn agents(&self, after: Option<&str>, limit: u32) -> Result<Vec<AgentSummary>>;
    fn agent(&self, id: &AgentId) -> Result<Option<AgentSummary>>;
    /// An agent for an engine that does not have it in memory. None: it does not exist, or was removed.
    fn agent_fact(&self, id: &AgentId) -> Result<Option<AgentFact>>;
    /// The owner of a sandbox, unless that agent was removed.
    fn agent_of_sandbox(&self, sandbox: &str) -> Result<Option<AgentRow>>;
    /// What all turns of each agent used; agents without turns are left out.
    fn usage_of_agents(&self) -> Result<BTreeMap<AgentId, Usage>>;
    /// What all turns of an agent used.
    fn agent_usage(&self, id: &AgentId) -> Result<Usage>;
    fn agent_counts(&self) -> Result<(u64, u64, u64)>;
}
