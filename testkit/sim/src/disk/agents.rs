//! Agents in the simulated store, and which of them a boot reads.

use std::collections::{BTreeMap, BTreeSet};

use lodge_core::AgentId;
use lodge_core::agent::AgentState;
use lodge_core::record::{AgentFact, AgentRow, DAEMON_STREAM, LineageRow, StoredState};

use super::SimDisk;

impl SimDisk {
    /// Agents that were not removed.
    fn agents_there(&self) -> impl Iterator<Item = &AgentRow> {
        self.agents.iter().filter(|row| row.state != AgentState::Removed)
    }

    /// The agents that a boot loads, and those that are `remembered`.
    pub(super) fn load_agents(&self, remembered: &[AgentId]) -> StoredState {
        let turns = self.live_turns().map(|turn| &turn.row.agent);
        let aside = self.quarantine.values().filter_map(|row| row.agent.as_ref());
        let needed: BTreeSet<&AgentId> = turns.chain(aside).chain(remembered).collect();
        let (mut live, rest): (Vec<&AgentRow>, Vec<&AgentRow>) = self.agents_there().partition(|row| {
            !row.is_at_rest() || needed.contains(&row.id) || self.has_unarchived_job(&row.id)
        });
        live.sort_by(|a, b| a.id.cmp(&b.id));
        let streams = live.iter().map(|row| row.id.as_str()).chain([DAEMON_STREAM]);
        let heads = streams.filter_map(|stream| Some((stream.to_owned(), *self.streams.get(stream)?)));
        let mut names: Vec<String> = self.agents_there().map(|row| row.name.clone()).collect();
        names.sort();
        let mut resting_images = BTreeMap::new();
        for digest in rest.iter().flat_map(|row| row.images().collect::<BTreeSet<_>>()) {
            *resting_images.entry(digest.to_owned()).or_insert(0) += 1;
        }
        StoredState {
            streams: heads.collect(),
            lineages: live.iter().filter_map(|row| self.lineages.get(&row.lineage)).cloned().collect(),
            agents: live.into_iter().cloned().collect(),
            names,
            resting_images,
            ..StoredState::default()
        }
    }

    /// An agent for an engine that does not have it in memory.
    pub fn agent_fact(&self, id: &AgentId) -> Option<AgentFact> {
        let row = self.agent(id).filter(|row| row.state != AgentState::Removed)?.clone();
        let lineage = self.lineages.get(&row.lineage)?.clone();
        Some(AgentFact { row, lineage, head: self.streams.get(id.as_str()).copied().unwrap_or(0) })
    }

    pub fn lineage(&self, agent: &AgentId) -> Option<&LineageRow> {
        self.lineages.get(&self.agent(agent)?.lineage)
    }
}
