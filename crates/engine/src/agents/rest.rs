//! Agents at rest: released when all their events are on disk, and looked up when a command names them.
//!
//! Nothing is in flight for an agent that is not in memory: it was released after its last change was on disk, and only
//! this engine changes it. So a row that is read after a command arrived is current. Only that command waits for the
//! lookup.

use std::collections::{BTreeMap, BTreeSet};

use lodge_core::AgentId;
use lodge_core::agent::AgentState;
use lodge_core::limits::LOOKUPS_MAX;
use lodge_core::record::{AgentFact, AgentRow};

use super::Agent;
use crate::batch::EarlyEffect;
use crate::{AgentCommand, AgentLookup, Caller, Command, Engine, JobCommand, Refusal};
use crate::{NewTokenHolder, StreamHead, TokenCommand, TurnCommand};

/// Commands that wait for the lookup of their agents.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    agents: BTreeMap<AgentId, PendingLookup>,
    /// The number of waiting commands of all agents.
    commands: usize,
}

#[derive(Debug)]
struct PendingLookup {
    /// Distinguishes the answer to this order from answers to earlier ones.
    ask: u64,
    commands: Vec<(Caller, Command)>,
}

impl Lookups {
    pub(crate) fn len(&self) -> usize {
        self.commands
    }

    /// The callers of waiting commands, when no lookup will answer.
    pub(crate) fn into_callers(self) -> impl Iterator<Item = Caller> {
        self.agents.into_values().flat_map(|lookup| lookup.commands).map(|(caller, _)| caller)
    }
}

impl Engine {
    /// The agent that a command is about, if it has to be looked up first.
    pub(crate) fn absent_agent(&self, command: &Command) -> Option<AgentId> {
        agent_of(command).filter(|id| !self.agents.contains_key(id)).cloned()
    }

    /// Makes a command wait for the lookup of its agent.
    pub(crate) fn order_lookup(&mut self, caller: Caller, command: Command, id: AgentId) {
        if self.lookups.commands >= LOOKUPS_MAX {
            return self.step.refuse(caller.ticket, Refusal::Unread);
        }
        self.lookups.commands += 1;
        if let Some(lookup) = self.lookups.agents.get_mut(&id) {
            return lookup.commands.push((caller, command));
        }
        self.asks += 1;
        let ask = self.asks;
        self.lookups.agents.insert(id.clone(), PendingLookup { ask, commands: vec![(caller, command)] });
        self.step.act_early(EarlyEffect::LookUp { agent: id, ask });
    }

    /// Decides the commands that waited for an agent, in order of arrival.
    pub(crate) fn finish_lookup(&mut self, id: &AgentId, ask: u64, found: AgentLookup) {
        if self.lookups.agents.get(id).is_none_or(|lookup| lookup.ask != ask) {
            return;
        }
        let Some(lookup) = self.lookups.agents.remove(id) else { return };
        self.lookups.commands -= lookup.commands.len();
        match found {
            AgentLookup::Found(fact) => self.hold(*fact),
            // Commands that need the agent are refused. Commands about its sessions are decided without it.
            AgentLookup::NotThere => {}
            AgentLookup::Unreadable => {
                for (caller, _) in lookup.commands {
                    self.step.refuse(caller.ticket, Refusal::Unread);
                }
                return;
            }
        }
        for (caller, command) in lookup.commands {
            self.decide(caller, command);
        }
    }

    fn hold(&mut self, fact: AgentFact) {
        let AgentFact { row, lineage, head } = fact;
        match row.state {
            // Its removal was decided, and the store does not show it yet: until then the agent is always in memory.
            AgentState::Removing | AgentState::Removed => return,
            AgentState::Pulling
            | AgentState::Starting
            | AgentState::Ready
            | AgentState::Stopped
            | AgentState::Failed(_) => {}
        }
        for digest in row.images().collect::<BTreeSet<_>>() {
            if let Some(count) = self.resting_images.get_mut(digest) {
                *count -= 1;
                if *count == 0 {
                    self.resting_images.remove(digest);
                }
            }
        }
        self.streams.insert(row.id.to_string(), StreamHead { head, seq: 0 });
        self.agents.insert(row.id.clone(), Agent::new(row, lineage));
    }

    /// Removes agents at rest from memory if all of their events are on disk, which has the events up to `seq`.
    pub(crate) fn release_resting_agents(&mut self, seq: u64) {
        let resting = self.resting_agents();
        let goes = |id: &AgentId| {
            let on_disk = self.streams.get(id.as_str()).is_none_or(|stream| stream.seq <= seq);
            on_disk
                && self.agents.get(id).is_some_and(|agent| agent.stopping.is_empty() && agent.pull.is_none())
        };
        let gone: Vec<AgentId> = resting.into_iter().filter(|id| goes(id)).cloned().collect();
        for id in gone {
            let Some(Agent { row, .. }) = self.agents.remove(&id) else { continue };
            self.streams.remove(id.as_str());
            for digest in row.images().collect::<BTreeSet<_>>() {
                match self.resting_images.get_mut(digest) {
                    Some(count) => *count += 1,
                    None => drop(self.resting_images.insert(digest.to_owned(), 1)),
                }
            }
        }
    }

    /// Agents in memory that a restart would not load.
    pub(crate) fn resting_agents(&self) -> BTreeSet<&AgentId> {
        let rests = |row: &AgentRow| {
            // Files of jobs are removed in its sandbox.
            row.is_at_rest() && !self.jobs.has_files(&row.id)
        };
        let mut resting: BTreeSet<&AgentId> = self
            .agents
            .values()
            .map(|agent| &agent.row)
            .filter(|row| rests(row))
            .map(|row| &row.id)
            .collect();
        let turns = self.turns.values().map(|turn| &turn.row.agent);
        let aside = self.quarantine.values().filter_map(|row| row.agent.as_ref());
        for agent in turns.chain(aside) {
            resting.remove(agent);
        }
        resting
    }
}

/// The agent that a command names. Commands about turns and jobs that are open need no agent that may be at rest.
fn agent_of(command: &Command) -> Option<&AgentId> {
    match command {
        Command::Agent(
            AgentCommand::Start { id }
            | AgentCommand::Restart { id, .. }
            | AgentCommand::Stop { id, .. }
            | AgentCommand::Kill { id }
            | AgentCommand::Remove { id, .. },
        ) => Some(id),
        Command::Agent(AgentCommand::Update(update)) => Some(&update.agent),
        Command::Agent(AgentCommand::SettleLineage(settlement)) => Some(&settlement.agent),
        Command::Turn(TurnCommand::Send(new)) => Some(&new.agent),
        Command::Session(change) => Some(&change.fact.row.agent),
        Command::Job(JobCommand::Submit(new)) => Some(&new.agent),
        Command::Token(TokenCommand::Issue(new)) => match &new.holder {
            NewTokenHolder::Agent(agent) => Some(agent),
            NewTokenHolder::Credentials | NewTokenHolder::Operator => None,
        },
        Command::Again { agent, .. } => agent.as_ref(),
        Command::Agent(AgentCommand::Create(_))
        | Command::Turn(TurnCommand::Interrupt { .. })
        | Command::Job(JobCommand::Cancel { .. })
        | Command::Token(TokenCommand::Revoke { .. })
        | Command::Sandbox(_)
        | Command::Image(_)
        | Command::Work(_)
        | Command::Reloaded { .. }
        | Command::Keep { .. } => None,
    }
}
