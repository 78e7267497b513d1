//! Sandboxes: where agents and their programs run. Agents decide when theirs is started and ended.

pub(crate) mod messages;

use lodge_core::AgentId;
use lodge_core::agent::AgentState;
use lodge_core::record::AgentRow;

use self::messages::{JobOrder, SandboxEffect, SandboxPlan, SandboxSeen, Up};
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
            spec: row.spec.clone(),
        }
    }
}

impl Agent {
    /// Something to do in its sandbox.
    pub(crate) fn in_sandbox(&self, what: SandboxEffect) -> Effect {
        Effect::Sandbox { sandbox: self.row.sandbox.clone(), agent: self.row.id.clone(), what }
    }
}

impl Engine {
    pub(crate) fn sandbox_seen(&mut self, seen: SandboxSeen) {
        match seen {
            SandboxSeen::NotDown { agent, run, detail } => self.agent_not_down(&agent, run, detail),
            SandboxSeen::Down { agent, run } => self.agent_down(&agent, run),
            SandboxSeen::Cleared { agent } => self.agent_cleared(&agent),
            SandboxSeen::NotCleared { agent, detail } => self.agent_not_cleared(&agent, detail),
        }
    }

    /// Has something done in the sandbox of an agent, after the commit. An agent that was removed has none.
    pub(crate) fn in_sandbox(&mut self, agent: &AgentId, what: SandboxEffect) {
        if let Some(owner) = self.agents.get(agent) {
            self.step.act(owner.in_sandbox(what));
        }
    }

    /// Has something done with a job, in the sandbox of its agent.
    pub(crate) fn job_in_sandbox(&mut self, agent: &AgentId, order: JobOrder) {
        self.in_sandbox(agent, SandboxEffect::Job(order));
    }

    /// The user of a new sandbox, which no other ever had: what it leaves behind in a mount belongs to nobody else. `None`:
    /// sandboxes run as the daemon's user.
    pub(crate) fn new_user(&mut self) -> Option<u32> {
        if self.host.own_uids {
            self.last_uid = Some(self.last_uid.map_or(UID_BASE, |uid| uid + 1));
            self.last_uid
        } else {
            None
        }
    }

    /// Has the sandbox started that the agent has now, or continued with.
    pub(crate) fn up(&mut self, agent: &AgentId, how: Up) {
        let Some(owner) = self.agents.get(agent) else { return };
        let plan = Box::new(SandboxPlan::of(&owner.row));
        self.in_sandbox(agent, SandboxEffect::Up { plan, how });
    }

    /// Has the sandbox ended that the agent has now.
    pub(crate) fn down(&mut self, agent: &AgentId) {
        let Some(owner) = self.agents.get(agent) else { return };
        let (run, incarnation) = (owner.row.runs, owner.row.incarnation);
        self.in_sandbox(agent, SandboxEffect::Down { run, incarnation });
    }
}
