//! Agents that leave the engine's memory, and are read when somebody names them.

use lodge_core::AgentId;
use lodge_engine::{AgentLookup, AgentSeen, Seen};

use crate::plan::Mutation;
use crate::world::{SimEvent, SimWorld};

impl SimWorld {
    /// Tells the engine what is on disk.
    pub fn settled(&mut self, requests: u64, rest: bool) {
        let early = self.mutation == Mutation::EarlyRest;
        let seq = if early { u64::MAX } else { self.cursor };
        self.tell(Seen::Settled { requests, seq, rest });
    }

    /// The engine hears what is on disk at a moment at which nobody rests.
    pub fn agents_rest(&mut self) {
        if let Some(told) = self.daemon.as_ref().map(|daemon| daemon.writer.told) {
            self.settled(told, false);
        }
    }

    pub fn look_up_later(&mut self, agent: &AgentId, ask: u64) {
        let (life, agent) = (self.life, agent.clone());
        let pause = self.rng.delay(self.plan.disk_ms);
        self.after(pause, SimEvent::LookUp { life, agent, ask });
    }

    /// An agent is read, and what was read arrives a moment later.
    pub fn look_up(&mut self, agent: AgentId, ask: u64) {
        self.tally.looked_up += 1;
        let found = match self.disk.agent_fact(&agent) {
            _ if self.store.is_missed() => AgentLookup::Unreadable,
            Some(fact) => AgentLookup::Found(Box::new(fact)),
            None => AgentLookup::NotThere,
        };
        let (life, pause) = (self.life, self.rng.delay(self.plan.disk_ms));
        self.after(
            pause,
            SimEvent::LookedUp { life, seen: Box::new(AgentSeen::LookedUp { agent, ask, found }) },
        );
    }
}
