//! An agent's tool calls, as its task handles them: asked of the keeper, settled by the ledger, told to the engine.

use lodge_core::AgentId;
use lodge_core::ledger::{self, Doubt, Repeat, Settle};
use lodge_core::record::ExecRequest;
use lodge_engine::{ExecEnd, ExecHow, Part, Seen, TurnSeen};

use crate::actor::runtime_exec;
use crate::keeper::SimCommand;
use crate::plan::Mutation;
use crate::world::SimWorld;

impl SimWorld {
    pub fn start_exec(
        &mut self,
        agent: &AgentId,
        exec: &str,
        request: ExecRequest,
        repeat: Repeat,
        resumed: bool,
    ) {
        let boot = self.host().boot;
        let Some(up) = self.linked(agent) else { return };
        let (other_boot, sandbox) = (request.boot != boot, up.row.sandbox.clone());
        up.open.insert(exec.to_owned(), (request, repeat));
        let claimed =
            self.machine.sandboxes.get(&sandbox).is_some_and(|found| found.shelf.contains_key(exec));
        if resumed && other_boot && !claimed && ledger::settle(Doubt::OtherBoot, repeat) == Settle::Unknown {
            return self.report_lost(agent, exec);
        }
        self.send(agent, SimCommand::Start { exec: exec.to_owned() });
    }

    /// Claimed by a keeper that died, without an outcome.
    pub fn lost(&mut self, agent: &AgentId, exec: &str) {
        let blind = self.mutation == Mutation::BlindRerun;
        let Some(up) = self.linked(agent) else { return };
        if exec == runtime_exec(up.row.runs) {
            let run = up.row.runs;
            return self.report_death(agent, run, Part::Runtime);
        }
        let Some((request, repeat)) = up.open.get(exec).cloned() else { return };
        match ledger::settle(Doubt::ClaimedOnly, repeat) {
            Settle::Unknown if !blind => self.report_lost(agent, exec),
            Settle::Rerun | Settle::Unknown => {
                self.send(agent, SimCommand::Forget { exec: exec.to_owned() });
                self.start_exec(agent, exec, request, repeat, false);
            }
        }
    }

    fn report_lost(&mut self, agent: &AgentId, exec: &str) {
        self.linked(agent).into_iter().for_each(|up| drop(up.open.remove(exec)));
        self.tally.unknown += 1;
        self.report_end(exec, ExecHow::Lost);
    }

    pub fn report_end(&mut self, exec: &str, how: ExecHow) {
        if let Ok(exec) = exec.parse() {
            let end = ExecEnd { how, cause: None, text: "out".into(), stdout_bytes: 3, stderr_bytes: 0 };
            self.tell(Seen::Turn(TurnSeen::ExecEnded { exec, end }));
        }
    }
}
