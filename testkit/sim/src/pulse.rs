//! Heartbeats: a working agent is checked from time to time, and its silence is reported to the engine.

use std::time::Duration;

use lodge_core::liveness::{Liveness, Silence, Thresholds};
use lodge_core::{AgentId, SandboxId};
use lodge_engine::{AgentSeen, Part, SandboxSeen, Seen};
use lodge_exec::ExecName;

use crate::actor::ActorWork;
use crate::keeper::{GRACE_MS, SimCommand};
use crate::plan::Mutation;
use crate::world::{SimEvent, SimWorld};

/// As the daemon's own.
pub const THRESHOLDS: Thresholds =
    Thresholds { stale: Duration::from_secs(30), crashed: Duration::from_secs(90) };
/// Between two looks.
const LOOK_MS: u64 = 10_000;
/// After this time, a keeper that was asked to kill its runtime is considered silent itself.
const DYING_MS: u64 = GRACE_MS + 10_000;

#[derive(Debug)]
pub struct SimPulse {
    serial: u64,
    runtime: Silence,
    keeper: Silence,
    level: Liveness,
    dying_until: Option<u64>,
}

impl SimWorld {
    /// From now on signs of life are expected.
    pub fn watch(&mut self, agent: &AgentId) {
        let (serial, life) = (self.serial(), self.life);
        let Some(actor) = self.actor(agent).filter(|actor| actor.pulse.is_none()) else { return };
        actor.pulse = Some(SimPulse {
            serial,
            runtime: Silence::default(),
            keeper: Silence::default(),
            level: Liveness::Active,
            dying_until: None,
        });
        self.after(LOOK_MS, SimEvent::Look { life, agent: agent.clone(), pulse: serial });
    }

    /// One look. Whether a ping would be answered is known without sending one.
    pub fn look(&mut self, agent: &AgentId, serial: u64) {
        let (now, life) = (self.now, self.life);
        let turns = self.disk.live_turns().any(|turn| turn.row.agent == *agent);
        let Some(actor) = self.actor(agent) else { return };
        let Some(up) = &actor.up else { return };
        let (waits, sandbox, run) = (turns || up.probe.is_some(), up.plan.sandbox.clone(), up.plan.run);
        if actor.pulse.as_ref().is_none_or(|pulse| pulse.serial != serial) {
            return;
        }
        let keeper = self.machine.keeper(&sandbox);
        let keeper_hung = keeper.as_ref().is_none_or(|keeper| keeper.hung);
        let runtime_hung = keeper.and_then(|keeper| keeper.runtime.as_ref()).is_none_or(|one| one.hung);
        let Some(actor) = self.actor(agent) else { return };
        if !waits {
            actor.pulse = None;
            return;
        }
        let Some(pulse) = &mut actor.pulse else { return };
        let since = Duration::from_millis(LOOK_MS);
        let level = if keeper_hung || runtime_hung {
            pulse.runtime.look(since, THRESHOLDS)
        } else {
            pulse.runtime.broken();
            Liveness::Active
        };
        let keeper = if keeper_hung { pulse.keeper.look(since, THRESHOLDS) } else { Liveness::Active };
        if !keeper_hung {
            pulse.keeper.broken();
        }
        let part = if keeper == Liveness::Active { Part::Runtime } else { Part::Sandbox };
        let told = match pulse.dying_until {
            Some(until) if now >= until => Some((Liveness::Crashed, Part::Sandbox)),
            Some(_) => None,
            None => (level != pulse.level).then_some((level, part)),
        };
        pulse.level = level;
        self.after(LOOK_MS, SimEvent::Look { life, agent: agent.clone(), pulse: serial });
        if let Some((level, part)) = told {
            self.tell(Seen::Agent(AgentSeen::Silent { agent: agent.clone(), run, level, part }));
        }
    }

    /// Ends a runtime that gives no sign of life. Its keeper tells of its death.
    pub fn kill_runtime(&mut self, agent: &AgentId, run: u32) {
        let until = self.now + DYING_MS;
        if self.actor(agent).and_then(|actor| actor.up.as_ref()).is_none_or(|up| up.plan.run != run) {
            return;
        }
        self.watch(agent);
        if let Some(pulse) = self.actor(agent).and_then(|actor| actor.pulse.as_mut()) {
            pulse.dying_until = Some(until);
        }
        if self.mutation == Mutation::HastyDeath {
            self.report_death(agent, run, Part::Runtime);
        }
        self.send(agent, SimCommand::Kill { exec: ExecName::Runtime { run } });
    }

    /// Ends a keeper that gives no sign of life, and everything with it.
    pub fn kill_sandbox(&mut self, agent: &AgentId, sandbox: SandboxId, run: u32) {
        let Some(actor) = self.actor(agent) else { return };
        (actor.up, actor.pulse) = (None, None);
        self.busy(agent, 10, ActorWork::Killing { sandbox, run });
    }

    pub fn killed(&mut self, agent: &AgentId, sandbox: &SandboxId, run: u32) {
        let found = self.machine.sandbox(sandbox, agent);
        if found.keeper.is_some() && found.sticks > 0 {
            found.sticks -= 1;
            found.given_up = true;
            let detail = "it could not be killed".to_owned();
            return self.tell(Seen::Sandbox(SandboxSeen::NotDown { agent: agent.clone(), run, detail }));
        }
        if found.keeper.is_some() {
            self.keeper_dies(sandbox, "it gave no sign of life");
        }
        self.report_death(agent, run, Part::Sandbox);
    }
}
