//! A runtime is started and asked whether it is ready, and never beside another one.

use lodge_core::AgentId;
use lodge_engine::{AgentSeen, Seen};
use lodge_exec::ExecName;

use crate::keeper::{SimCommand, SimExit};
use crate::runtime::LineToRuntime;
use crate::world::{SimEvent, SimWorld};

const PROBE_MS: u64 = 60_000;

impl SimWorld {
    pub fn start_runtime(&mut self, agent: &AgentId, run: u32) {
        self.send(agent, SimCommand::Start { exec: ExecName::Runtime { run } });
        self.probe(agent);
    }

    /// A runtime that was given up lives: this one is started when that one has ended.
    pub fn start_after(&mut self, agent: &AgentId, earlier: u32) {
        let life = self.life;
        let Some(up) = self.linked(agent) else { return };
        // No probe has this number.
        let (link, probe) = (up.link, 0);
        (up.probe, up.follows) = (Some(probe), Some(earlier));
        self.after(PROBE_MS, SimEvent::ProbeOver { life, agent: agent.clone(), link, probe });
        self.send(agent, SimCommand::Kill { exec: ExecName::Runtime { run: earlier } });
    }

    /// The current runtime ended, or the one that the current runtime has to wait for.
    pub fn runtime_exited(&mut self, agent: &AgentId, run: u32, ended: SimExit) {
        let Some(up) = self.linked(agent) else { return };
        let current = up.plan.run;
        if run == current {
            self.runtime_ended(agent, ended);
        } else if up.follows.take_if(|earlier| *earlier == run).is_some() {
            self.start_runtime(agent, current);
        }
    }

    fn probe(&mut self, agent: &AgentId) {
        let (epoch, life) = (self.disk.epoch(), self.life);
        let Some(up) = self.linked(agent) else { return };
        up.probes += 1;
        up.probe = Some(up.probes);
        let (link, probe, was_ready) = (up.link, up.probes, up.plan.was_ready);
        // One that was ready before has no deadline: its silence is counted.
        if was_ready {
            self.watch(agent);
        } else {
            self.after(PROBE_MS, SimEvent::ProbeOver { life, agent: agent.clone(), link, probe });
        }
        self.line(agent, LineToRuntime::Initialize { probe: (link, probe), epoch });
    }

    pub fn probe_over(&mut self, agent: &AgentId, link: u64, probe: u32) {
        let Some(up) = self.linked(agent).filter(|up| up.link == link && up.probe == Some(probe)) else {
            return;
        };
        up.probe = None;
        let (agent, run) = (agent.clone(), up.plan.run);
        self.tell(Seen::Agent(AgentSeen::ProbeTimedOut { agent, run }));
    }
}
