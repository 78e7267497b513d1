//! Short descriptions of inputs, effects and replies for the trace.

use lodge_engine::{
    AgentCommand, Command, Effect, Input, ModelEffect, Observation, PullEffect, RuntimeAnswer, RuntimeCallId,
    RuntimeCallRefusal, SandboxEffect, SessionChoice, SessionOperation, TurnCommand, TurnObservation,
};
use lodge_exec::KeeperCommand;
use lodge_proto::ErrorBody;
use serde_json::Value;

pub fn input(input: &Input) -> String {
    match input {
        Input::Api { ticket, request, command } => {
            let id = request.as_ref().map_or("-", |request| request.request_id.as_str());
            format!("ticket {ticket} {id} {}", self::command(command))
        }
        Input::Seen(Observation::Turn(TurnObservation::Asked { ask, .. })) => format!("{ask:?}"),
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
            SessionOperation::Rewind(plan) => format!("rewind {} to {}", change.fact.row.id, plan.turns),
            SessionOperation::Activate { turn, .. } => format!("activate {turn}"),
            SessionOperation::Fork { plan, .. } => {
                format!("fork {} at {}", change.fact.row.id, plan.turns.len())
            }
            SessionOperation::Regenerate(again) => format!("regenerate {}", again.turn),
            SessionOperation::Retry(again) => format!("retry {}", again.turn.id),
            SessionOperation::Delete => format!("delete {}", change.fact.row.id),
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

pub fn command_line(command: &KeeperCommand) -> String {
    match command {
        KeeperCommand::RuntimeLine(line) => String::from_utf8_lossy(line).into_owned(),
        KeeperCommand::Start(start) => format!("Start {}", start.exec),
        KeeperCommand::Kill { .. }
        | KeeperCommand::Forget { .. }
        | KeeperCommand::End { .. }
        | KeeperCommand::Ping { .. } => format!("{command:?}"),
    }
}

fn answer_line(
    RuntimeCallId(id): &RuntimeCallId,
    answer: &Result<RuntimeAnswer, RuntimeCallRefusal>,
) -> String {
    match answer {
        Ok(answer) => format!("Answer {id} {answer:?}"),
        Err(refusal) => format!("Answer {id} {}", refusal.code()),
    }
}

pub fn reply(reply: &Result<Value, ErrorBody>) -> String {
    match reply {
        Ok(answer) => format!("{} is {}", answer["id"], answer["status"]),
        Err(refusal) => format!("{}: {}", refusal.data.code, refusal.message),
    }
}
