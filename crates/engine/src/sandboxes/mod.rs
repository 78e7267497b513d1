//! Sandboxes: where agents and their programs run. Agents decide when theirs is started and ended; `standalone` has the
//! sandboxes that belong to no agent.

pub(crate) mod messages;
pub(crate) mod standalone;

use lodge_core::AgentId;
use lodge_core::agent::AgentState;
use lodge_core::record::AgentRow;

use self::messages::{JobOrder, SandboxEffect, SandboxObservation, SandboxPlan, SandboxSettings, StartMode};
use crate::agents::Agent;
use crate::{Effect, Engine};

/// Users of sandboxes start here, above the ranges that distributions and systemd hand out.
const UID_BASE: u32 = 1_900_000_000;

impl SandboxPlan {
    /// The sandbox that an agent has now.
    fn of(row: &AgentRow) -> SandboxPlan {
        SandboxPlan {
            sandbox: row.sandbox.clone(),
            incarnation: row.incarnation,
            agent: row.id.clone(),
            run: row.runs,
            was_ready: row.state == AgentState::Ready,
            name: row.name.clone(),
            image: row.image.clone(),
            image_digest: row.image_digest.clone(),
            uid: row.uid,
            settings: SandboxSettings::from(&row.spec),
        }
    }
}

impl Agent {
    /// Work in its sandbox.
    pub(crate) fn in_sandbox(&self, what: SandboxEffect) -> Effect {
        Effect::Sandbox { sandbox: self.row.sandbox.clone(), agent: self.row.id.clone(), what }
    }
}

impl Engine {
    pub(crate) fn observe_sandbox(&mut self, seen: SandboxObservation) {
        match seen {
            SandboxObservation::NotDown { agent, run, detail } => self.agent_not_down(&agent, run, detail),
            SandboxObservation::Down { agent, run } => self.agent_down(&agent, run),
            SandboxObservation::Cleared { agent } => self.agent_cleared(&agent),
            SandboxObservation::NotCleared { agent, detail } => self.agent_not_cleared(&agent, detail),
        }
    }

    /// Orders work in the sandbox of an agent, after the commit. A removed agent has none.
    pub(crate) fn in_sandbox(&mut self, agent: &AgentId, what: SandboxEffect) {
        if let Some(owner) = self.agents.get(agent) {
            self.step.act(owner.in_sandbox(what));
        }
    }

    /// Orders work on a job, in the sandbox of its agent.
    pub(crate) fn job_in_sandbox(&mut self, agent: &AgentId, order: JobOrder) {
        self.in_sandbox(agent, SandboxEffect::Job(order));
    }

    /// The user of a new sandbox, which no earlier sandbox had: files that it leaves in a mount belong to no other
    /// sandbox. `None`: sandboxes run as the daemon's user.
    pub(crate) fn new_user(&mut self) -> Option<u32> {
        if self.host.own_uids {
            self.last_uid = Some(self.last_uid.map_or(UID_BASE, |uid| uid + 1));
            self.last_uid
        } else {
            None
        }
    }

    /// Orders the start of the agent's current sandbox, or its adoption.
    pub(crate) fn up(&mut self, agent: &AgentId, how: StartMode) {
        let Some(owner) = self.agents.get(agent) else { return };
        let plan = Box::new(SandboxPlan::of(&owner.row));
        self.in_sandbox(agent, SandboxEffect::Up { plan, how });
    }

    /// Orders the end of the agent's current sandbox.
    pub(crate) fn down(&mut self, agent: &AgentId) {
        let Some(owner) = self.agents.get(agent) else { return };
        let (run, incarnation) = (owner.row.runs, owner.row.incarnation);
        self.in_sandbox(agent, SandboxEffect::Down { run, incarnation });
    }
}
