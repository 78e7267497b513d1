//! What runtimes ask for, and what else is observed of turns.

use lodge_core::{AgentId, TurnId};

use super::messages::{Ask, AskId, RuntimeAnswer, TurnSeen};
use super::{Wish, compact, execs};
use crate::{Engine, SandboxEffect, failure, jobs};

impl Engine {
    pub(crate) fn turn_seen(&mut self, seen: TurnSeen) {
        match seen {
            // A runtime has a say about turns of its own agent alone.
            TurnSeen::Refused { agent, turn, .. } if !self.is_live(&agent, &turn) => {}
            TurnSeen::Refused { turn, why, .. } => self.fail_turn(&turn, failure("runtime.refused", &why)),
            TurnSeen::Asked { agent, id, ask } => self.asked(&agent, id, ask),
            TurnSeen::ExecsFound { agent, running, ended } => self.execs_found(&agent, running, ended),
            TurnSeen::ExecEnded { exec, end } => self.exec_ended(&exec, end),
            TurnSeen::ModelText { turn, step, attempt, offset, text } => {
                self.model_text(&turn, (step, attempt), offset, text);
            }
            TurnSeen::ModelAnswered { turn, step, attempt, answer } => {
                self.model_answered(&turn, (step, attempt), answer);
            }
            TurnSeen::ModelFailed { turn, step, attempt, failure } => {
                self.model_failed(&turn, (step, attempt), failure);
            }
        }
    }

    /// Routes what a runtime asks, when the turn is still its business.
    fn asked(&mut self, agent: &AgentId, id: AskId, ask: Ask) {
        if !self.is_live(agent, ask.turn()) {
            let gone = failure("turn.gone", "that turn is over");
            self.in_sandbox(agent, SandboxEffect::Answer { id, answer: Err(gone) });
            self.step.hurry();
            return;
        }
        match ask {
            Ask::Model { turn, step, context, from_turn } => {
                self.ask_model(&turn, step, Wish { id, context, from_turn });
            }
            Ask::Exec { turn, step, call, bin, args, stdin, timeout_ms } => {
                let wanted = execs::ExecAsk { turn, step, call, bin, args, stdin, timeout_ms };
                self.ask_exec(id, &wanted);
            }
            Ask::Compact { turn, from_turn, strategy } => {
                self.ask_compact(id, &compact::CompactAsk { turn, from_turn, strategy });
            }
            Ask::Answer { turn, step, call, text, error } => {
                self.tool_answered(id, &turn, step, &call, text, error);
            }
            Ask::Job { turn, step, call, wish } => {
                self.ask_job(id, &jobs::ToolCallRef { turn, step, call }, wish);
            }
            Ask::Finish { turn, code, message } => {
                self.fail_turn(&turn, failure(&code, &message));
                self.in_sandbox(agent, SandboxEffect::Answer { id, answer: Ok(RuntimeAnswer::Done) });
            }
        }
    }

    /// Whether a turn is this agent's, and running.
    fn is_live(&self, agent: &AgentId, turn: &TurnId) -> bool {
        self.turns.get(turn).is_some_and(|turn| turn.row.agent == *agent && turn.is_running())
    }
}
