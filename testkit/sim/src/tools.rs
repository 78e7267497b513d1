//! An agent's tool calls, as its task handles them: asked of the keeper, settled by the ledger, told to the engine.

use lodge_core::ledger::{self, Doubt, Repeat, Settle};
use lodge_core::record::ExecRequest;
use lodge_core::{AgentId, ExecId};
use lodge_engine::{ExecEnd, ExecHow, Seen, TurnSeen};
use lodge_exec::ExecName;

use crate::keeper::SimCommand;
use crate::plan::Mutation;
use crate::world::SimWorld;

impl SimWorld {
    pub fn start_exec(
        &mut self,
        agent: &AgentId,
        exec: &ExecId,
        request: ExecRequest,
        repeat: Repeat,
        resumed: bool,
    ) {
        let boot = self.host().boot;
        let Some(up) = self.linked(agent) else { return };
        let (other_boot, sandbox) = (request.boot != boot, up.plan.sandbox.clone());
        up.open.insert(exec.clone(), (request, repeat));
        let name = ExecName::Tool(exec.clone());
        let claimed =
            self.machine.sandboxes.get(&sandbox).is_some_and(|found| found.shelf.contains_key(&name));
        if resumed && other_boot && !claimed && ledger::settle(Doubt::OtherBoot, repeat) == Settle::Unknown {
            return self.report_lost(agent, exec);
        }
        self.send(agent, SimCommand::Start { exec: name });
    }

    /// Claimed by a keeper that died, without an outcome.
    pub fn tool_lost(&mut self, agent: &AgentId, exec: &ExecId) {
        let blind = self.mutation == Mutation::BlindRerun;
        let Some(up) = self.linked(agent) else { return };
        let Some((request, repeat)) = up.open.get(exec).cloned() else { return };
        match ledger::settle(Doubt::ClaimedOnly, repeat) {
            Settle::Unknown if !blind => self.report_lost(agent, exec),
            Settle::Rerun | Settle::Unknown => {
                self.send(agent, SimCommand::Forget { exec: ExecName::Tool(exec.clone()) });
                self.start_exec(agent, exec, request, repeat, false);
            }
        }
    }

    fn report_lost(&mut self, agent: &AgentId, exec: &ExecId) {
        self.linked(agent).into_iter().for_each(|up| drop(up.open.remove(exec)));
        self.tally.unknown += 1;
        self.report_end(exec, ExecHow::Lost);
    }

    pub fn report_end(&mut self, exec: &ExecId, how: ExecHow) {
        let end = ExecEnd { how, cause: None, text: "out".into(), stdout_bytes: 3, stderr_bytes: 0 };
        self.tell(Seen::Turn(TurnSeen::ExecEnded { exec: exec.clone(), end }));
    }
}
