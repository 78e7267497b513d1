//! What runtimes ask for, and what else is observed of turns.

use lodge_core::{AgentId, TurnId};

use super::messages::{RuntimeAnswer, RuntimeCall, RuntimeCallId, TurnObservation};
use super::refusal::{RuntimeCallRefusal, TurnFault};
use super::{ModelCallRequest, compact, execs};
use crate::{Engine, SandboxEffect, jobs};

impl Engine {
    pub(crate) fn observe_turn(&mut self, seen: TurnObservation) {
        match seen {
            // A runtime has a say about turns of its own agent alone.
            TurnObservation::Refused { agent, turn, .. } if !self.is_live(&agent, &turn) => {}
            TurnObservation::Refused { turn, why, .. } => {
                self.fail_turn(&turn, TurnFault::RuntimeRefused { why }.record());
            }
            TurnObservation::Asked { agent, id, ask } => self.route_runtime_call(&agent, id, ask),
            TurnObservation::ExecsFound { agent, running, ended } => self.execs_found(&agent, running, ended),
            TurnObservation::ExecEnded { exec, end } => self.exec_ended(&exec, end),
            TurnObservation::ModelText { turn, step, attempt, offset, text } => {
                self.model_text(&turn, (step, attempt), offset, text);
            }
            TurnObservation::ModelAnswered { turn, step, attempt, answer } => {
                self.model_answered(&turn, (step, attempt), answer);
            }
            TurnObservation::ModelFailed { turn, step, attempt, failure } => {
                self.model_failed(&turn, (step, attempt), failure);
            }
            TurnObservation::ProviderDue { provider, wake } => self.provider_due(&provider, wake),
        }
    }

    /// Routes what a runtime asks, when the turn is still its business.
    fn route_runtime_call(&mut self, agent: &AgentId, id: RuntimeCallId, ask: RuntimeCall) {
        if !self.is_live(agent, ask.turn()) {
            return self.refuse_runtime_call(agent, id, RuntimeCallRefusal::TurnGone);
        }
        match ask {
            RuntimeCall::Model { turn, step, context, from_turn } => {
                self.request_model(&turn, step, ModelCallRequest { id, context, from_turn });
            }
            RuntimeCall::Exec { turn, step, call, bin, args, stdin, timeout_ms } => {
                let wanted = execs::ToolExecRequest { turn, step, call, bin, args, stdin, timeout_ms };
                self.request_exec(id, &wanted);
            }
            RuntimeCall::Compact { turn, from_turn, strategy } => {
                self.request_compaction(id, &compact::CompactionRequest { turn, from_turn, strategy });
            }
            RuntimeCall::Answer { turn, step, call, text, error } => {
                self.tool_answered(id, &turn, step, &call, text, error);
            }
            RuntimeCall::Job { turn, step, call, wish } => {
                self.request_job_tool(id, &jobs::ToolCallRef { turn, step, call }, wish);
            }
            RuntimeCall::Finish { turn, code, message } => {
                self.fail_turn(&turn, TurnFault::EndedByRuntime { code, message }.record());
                self.in_sandbox(agent, SandboxEffect::Answer { id, answer: Ok(RuntimeAnswer::Done) });
            }
        }
    }

    pub(crate) fn refuse_runtime_call(
        &mut self,
        agent: &AgentId,
        id: RuntimeCallId,
        refusal: RuntimeCallRefusal,
    ) {
        self.in_sandbox(agent, SandboxEffect::Answer { id, answer: Err(refusal) });
        self.step.mark_urgent();
    }

    /// Whether a turn is this agent's, and running.
    fn is_live(&self, agent: &AgentId, turn: &TurnId) -> bool {
        self.turns.get(turn).is_some_and(|turn| turn.row.agent == *agent && turn.is_running())
    }
}
