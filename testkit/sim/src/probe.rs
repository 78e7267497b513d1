//! A runtime is started and asked whether it is ready, and never beside another one.

use lodge_core::AgentId;
use lodge_core::agent::AgentState;
use lodge_engine::{AgentSeen, Seen};

use crate::keeper::SimCommand;
use crate::runtime::LineToRuntime;
use crate::world::{SimEvent, SimWorld};

const PROBE_MS: u64 = 60_000;

impl SimWorld {
    pub fn start_runtime(&mut self, agent: &AgentId, runtime: String) {
        self.send(agent, SimCommand::StartRuntime { exec: runtime });
        self.probe(agent);
    }

    /// A runtime that was given up lives: this one is started when that one has ended.
    pub fn start_after(&mut self, agent: &AgentId, earlier: String) {
        let life = self.life;
        let Some(up) = self.linked(agent) else { return };
        // No probe has this number.
        let (link, probe) = (up.link, 0);
        (up.probe, up.follows) = (Some(probe), Some(earlier.clone()));
        self.after(PROBE_MS, SimEvent::ProbeOver { life, agent: agent.clone(), link, probe });
        self.send(agent, SimCommand::Kill { exec: earlier });
    }

    fn probe(&mut self, agent: &AgentId) {
        let (epoch, life) = (self.disk.epoch(), self.life);
        let Some(up) = self.linked(agent) else { return };
        up.probes += 1;
        up.probe = Some(up.probes);
        let (link, probe, was_ready) = (up.link, up.probes, up.row.state == AgentState::Ready);
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
        let (agent, run) = (agent.clone(), up.row.runs);
        self.tell(Seen::Agent(AgentSeen::ProbeTimedOut { agent, run }));
    }
}
