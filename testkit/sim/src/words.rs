//! What happened, in few enough words to read a page of it.

use lodge_core::record::FailureRecord;
use lodge_engine::{
    AgentCommand, AskId, Command, Effect, Input, ModelEffect, PullEffect, RuntimeAnswer, SandboxEffect, Seen,
    SessionChoice, SessionWhat, TurnCommand, TurnSeen,
};
use lodge_proto::ErrorBody;
use serde_json::Value;

use crate::keeper;
use crate::runtime::LineToRuntime;

pub fn input(input: &Input) -> String {
    match input {
        Input::Api { ticket, request, command } => {
            let id = request.as_ref().map_or("-", |request| request.request_id.as_str());
            format!("ticket {ticket} {id} {}", self::command(command))
        }
        Input::Seen(Seen::Turn(TurnSeen::Asked { ask, .. })) => format!("{ask:?}"),
        Input::Seen(seen) => format!("{seen:?}"),
    }
}

fn command(command: &Command) -> String {
    match command {
        Command::Agent(AgentCommand::Create(new)) => format!("CreateAgent {}", new.called),
        Command::Turn(TurnCommand::Send(new)) => {
            let session = match &new.session {
                SessionChoice::Fresh => "a new session",
                SessionChoice::Named { id, .. } => id.as_str(),
            };
            format!("SendTurn {} to {} in {session}", new.text, new.agent)
        }
        Command::Session(change) => match &change.what {
            SessionWhat::Rewind(plan) => format!("rewind {} to {}", change.fact.row.id, plan.turns),
            SessionWhat::Activate { turn, .. } => format!("activate {turn}"),
            SessionWhat::Fork { plan, .. } => {
                format!("fork {} at {}", change.fact.row.id, plan.turns.len())
            }
            SessionWhat::Regenerate(again) => format!("regenerate {}", again.turn),
            SessionWhat::Delete => format!("delete {}", change.fact.row.id),
        },
        command => format!("{command:?}"),
    }
}

pub fn effect(effect: &Effect) -> String {
    match effect {
        Effect::Sandbox { what: SandboxEffect::Up { plan, how }, .. } => {
            format!(
                "Up {} {} {how:?}, incarnation {} run {}, was ready: {}",
                plan.agent, plan.sandbox, plan.incarnation, plan.run, plan.was_ready
            )
        }
        Effect::Pull(PullEffect::Begin { row, ask }) => {
            format!("Pull {} for {}, ask {ask}", row.image_digest, row.id)
        }
        Effect::Sandbox { what: SandboxEffect::Answer { id, answer, .. }, .. } => answer_line(id, answer),
        Effect::Model(ModelEffect::Call(order)) => {
            format!("CallModel {} step {} attempt {}", order.turn, order.step, order.attempt)
        }
        effect => format!("{effect:?}"),
    }
}

pub fn heard(command: &keeper::SimCommand) -> String {
    match command {
        keeper::SimCommand::Line(LineToRuntime::Answer { id, answer }) => answer_line(id, answer),
        keeper::SimCommand::Line(line) => format!("{line:?}"),
        keeper::SimCommand::Start { .. }
        | keeper::SimCommand::Kill { .. }
        | keeper::SimCommand::Forget { .. } => format!("{command:?}"),
    }
}

fn answer_line(AskId(id): &AskId, answer: &Result<RuntimeAnswer, FailureRecord>) -> String {
    match answer {
        Ok(answer) => format!("Answer {id} {answer:?}"),
        Err(failure) => format!("Answer {id} {}", failure.code),
    }
}

pub fn reply(reply: &Result<Value, ErrorBody>) -> String {
    match reply {
        Ok(answer) => format!("{} is {}", answer["id"], answer["status"]),
        Err(refusal) => format!("{}: {}", refusal.data.code, refusal.message),
    }
}
