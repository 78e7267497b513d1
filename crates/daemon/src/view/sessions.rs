//! Sessions and their messages, as clients see them.

use lodge_core::epoch::Summary;
use lodge_core::record::{CallRecord, SessionRow};
use lodge_core::summary::SessionSummary;
use lodge_core::{SessionId, TurnId};
use lodge_engine::{SessionAnswer, SessionRefusal};
use lodge_proto::{
    EpochView, ErrorBody, ExportedMessage, ExportedResult, ExportedTurn, ForkView, MessageView,
    SessionDeleted, SessionHit, SessionView, SnippetMark, ToolCallView,
};
use lodge_store::{EpochPlacement, MessageExport, SearchHit, SessionMessage};

use super::answers::AnswerView;
use super::{full_turn, quarantined};

pub(super) fn answer(answer: &SessionAnswer) -> AnswerView {
    match answer {
        SessionAnswer::Session(summary) => AnswerView::Session(Box::new(session(summary))),
        SessionAnswer::Deleted(id) => {
            let deleted = SessionDeleted { session: id.to_string(), deleted: true };
            AnswerView::SessionDeleted(Box::new(deleted))
        }
    }
}

pub fn session(summary: &SessionSummary) -> SessionView {
    let SessionRow { id, agent, sender, created_at, forked } = &summary.row;
    SessionView {
        id: id.to_string(),
        agent: agent.to_string(),
        agent_name: summary.agent_name.clone(),
        agent_removed: summary.agent_removed,
        sender: sender.clone(),
        title: summary.title.clone(),
        turns: summary.turns.into(),
        running: summary.live.running.as_ref().map(TurnId::to_string),
        queued: summary.live.queued.iter().map(TurnId::to_string).collect(),
        forked_from: forked
            .as_ref()
            .map(|fork| ForkView { session: fork.session.to_string(), turn: fork.turn }),
        last_active: summary.last_active.to_string(),
        created_at: created_at.to_string(),
        context_state: None,
        context_used_pct: None,
        generation: 1,
        epoch: summary.epoch,
        usage: None,
        quarantine: summary.quarantine.iter().map(|row| quarantined(row, "quarantined")).collect(),
    }
}

/// The refusal for an unknown session.
pub fn no_session(given: &impl std::fmt::Display) -> ErrorBody {
    super::refused(SessionRefusal::NotFound { given: given.to_string() })
}

/// The refusal of a session that belongs to the agent of this name.
pub fn other_agent(id: &SessionId, owner: String) -> ErrorBody {
    super::refused(SessionRefusal::OtherAgent { session: id.clone(), owner })
}

pub fn session_exists(id: &SessionId) -> ErrorBody {
    super::refused(SessionRefusal::Exists { session: id.clone() })
}

pub fn message(SessionMessage { row, active }: SessionMessage) -> MessageView {
    MessageView {
        seq: row.seq,
        turn: row.turn.to_string(),
        number: row.number,
        active,
        role: row.role.word().to_owned(),
        text: row.body.text,
        note: row.body.note,
        calls: row.body.calls.into_iter().map(call).collect(),
        call: row.body.call,
        partial: row.body.partial,
        at: row.at.to_string(),
    }
}

pub fn epoch(EpochPlacement { row, seq }: EpochPlacement) -> EpochView {
    EpochView {
        epoch: row.number,
        seq,
        turn: row.turn,
        from_turn: row.from_turn,
        strategy: row.strategy.word().to_owned(),
        summary: match row.summary {
            Summary::Text(text) => Some(text),
            Summary::Nothing | Summary::Kept => None,
        },
        at: row.at.to_string(),
    }
}

pub fn hit(hit: SearchHit) -> SessionHit {
    let SearchHit { agent, message, active, snippet, marks, .. } = hit;
    SessionHit {
        session: message.session.to_string(),
        agent: agent.to_string(),
        turn: message.turn.to_string(),
        number: message.number,
        seq: message.seq,
        role: message.role.word().to_owned(),
        active,
        at: message.at.to_string(),
        snippet,
        marks: marks.into_iter().map(|(start, end)| SnippetMark { start, end }).collect(),
    }
}

fn call(call: CallRecord) -> ToolCallView {
    ToolCallView { id: call.id, name: call.name, arguments: call.arguments }
}

pub fn exported(
    MessageExport { told: SessionMessage { row, active }, turn, outcome }: MessageExport,
) -> ExportedMessage {
    let turn = turn.map(full_turn);
    let result = outcome.map(|step| ExportedResult {
        status: step.state.word().to_owned(),
        exit_code: step.exit_code,
        signal: step.signal,
    });
    ExportedMessage {
        seq: row.seq,
        turn: row.turn.to_string(),
        number: row.number,
        active,
        role: row.role.word().to_owned(),
        text: row.body.text,
        partial: row.body.partial,
        calls: row.body.calls.into_iter().map(call).collect(),
        call: row.body.call,
        result,
        at: row.at.to_string(),
        usage: turn.as_ref().map(|turn| turn.usage.clone()),
        outcome: turn.map(|turn| ExportedTurn {
            status: turn.status,
            error: turn.error,
            replaces: turn.replaces,
            created_at: turn.created_at,
            ended_at: turn.ended_at,
        }),
    }
}
