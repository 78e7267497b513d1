//! What may be written at all: every lifecycle moves along its table, every message has its place.

use std::collections::HashSet;
use std::sync::OnceLock;

use lodge_core::agent::{AgentEvent, AgentState, FailReason};
use lodge_core::limits::REVIVALS_MAX;
use lodge_core::lineage::{LineageEvent, LineageState};
use lodge_core::record::{AgentRow, LineageRow, MessageRow, Role, StepKind, StepRow};
use lodge_core::turn::{StepEvent, StepState, TurnEvent, TurnState};

use crate::disk::Kept;

/// A law that did not hold, in words.
pub type Broken = String;

pub fn agent_moves(row: &AgentRow, next: AgentState, incarnation: u32, runs: u32) -> Result<(), Broken> {
    if !agent_table().contains(&(row.state, next)) {
        return Err(format!("{} moved from {} to {next}", row.id, row.state));
    }
    if incarnation != row.incarnation && incarnation != row.incarnation + 1 {
        return Err(format!("{} went from incarnation {} to {incarnation}", row.id, row.incarnation));
    }
    if runs != row.runs && runs != row.runs + 1 {
        return Err(format!("{} went from run {} to {runs}", row.id, row.runs));
    }
    Ok(())
}

/// Every move that one event makes, and a removal by force, which is a stop and a removal at once.
fn agent_table() -> &'static HashSet<(AgentState, AgentState)> {
    static TABLE: OnceLock<HashSet<(AgentState, AgentState)>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut states = vec![
            AgentState::Pulling,
            AgentState::Starting,
            AgentState::Ready,
            AgentState::Stopped,
            AgentState::Removing,
            AgentState::Removed,
        ];
        states.extend(FailReason::ALL.map(AgentState::Failed));
        let events = [
            AgentEvent::StartAsked,
            AgentEvent::ImageReady,
            AgentEvent::ImageFailed,
            AgentEvent::SpawnFailed,
            AgentEvent::ProbeAnswered,
            AgentEvent::ProbeTimedOut,
            AgentEvent::Died,
            AgentEvent::Exited { clean: true },
            AgentEvent::Exited { clean: false },
            AgentEvent::StopAsked,
            AgentEvent::RemoveAsked,
            AgentEvent::Cleared,
        ];
        let mut table = HashSet::new();
        for state in states {
            table.extend(events.iter().filter_map(|event| Some((state, state.next(*event).ok()?))));
            if state.next(AgentEvent::StopAsked).is_ok() {
                table.insert((state, AgentState::Removing));
            }
        }
        table
    })
}

/// A lineage moves along its table, is revived a bounded number of times in a row, and nothing moves one that is over.
pub fn lineage_moves(before: Option<&LineageRow>, row: &LineageRow) -> Result<(), Broken> {
    let id = &row.id;
    let Some(before) = before else {
        let fresh = row.state == LineageState::Active && row.revivals == 0 && row.deaths == 0;
        return if fresh { Ok(()) } else { Err(format!("lineage {id} begins as {row:?}")) };
    };
    let events = [
        LineageEvent::Died,
        LineageEvent::Revived,
        LineageEvent::Asked,
        LineageEvent::Reaped,
        LineageEvent::Stopped,
        LineageEvent::Exhausted,
        LineageEvent::Killed,
        LineageEvent::Removed,
    ];
    let same = before.state == row.state && !before.state.is_over();
    if !same && !events.iter().any(|event| before.state.next(*event) == Ok(row.state)) {
        return Err(format!("lineage {id} moved from {} to {}", before.state, row.state));
    }
    let revived = before.state != LineageState::Active && row.state == LineageState::Active;
    if row.revivals != before.revivals && !(revived && row.revivals == before.revivals + 1) {
        return Err(format!("lineage {id} counts {} revivals after {}", row.revivals, before.revivals));
    }
    if row.deaths > REVIVALS_MAX + 1 {
        return Err(format!("lineage {id} died {} times in a row", row.deaths));
    }
    Ok(())
}

pub fn turn_moves(kept: &Kept, next: TurnState) -> Result<(), Broken> {
    let events = [
        TurnEvent::Started,
        TurnEvent::Parked,
        TurnEvent::Resumed,
        TurnEvent::Answered,
        TurnEvent::Failed,
        TurnEvent::InterruptAsked,
    ];
    let from = kept.row.state;
    // A running turn is written again with what an answer cost.
    let moves = (from == next && from == TurnState::Running)
        || events.iter().any(|event| from.next(*event) == Ok(next));
    if !moves {
        return Err(format!("{} moved from {} to {}", kept.row.id, from.word(), next.word()));
    }
    if !next.is_live() {
        if let Some(call) = open_calls(kept).first() {
            return Err(format!("{} ended, and its call {call} has no result", kept.row.id));
        }
        if let Some(step) = kept.steps.iter().find(|step| step.state == StepState::Intent) {
            return Err(format!("{} ended, and step {}.{} did not", kept.row.id, step.step, step.ordinal));
        }
    }
    Ok(())
}

pub fn step_moves(row: &StepRow, next: StepState, attempt: u32) -> Result<(), Broken> {
    let events = [
        StepEvent::Succeeded,
        StepEvent::Failed,
        StepEvent::Interrupted,
        StepEvent::Lost,
        StepEvent::Fenced,
        StepEvent::Restarted,
    ];
    if !events.iter().any(|event| row.state.next(*event) == Ok(next)) {
        let (turn, step, ordinal) = (&row.turn, row.step, row.ordinal);
        return Err(format!(
            "{turn} step {step}.{ordinal} moved from {} to {}",
            row.state.word(),
            next.word()
        ));
    }
    if next == StepState::Intent && attempt != row.attempt + 1 || attempt < row.attempt {
        return Err(format!("{} step {} went from attempt {} to {attempt}", row.turn, row.step, row.attempt));
    }
    Ok(())
}

pub fn step_begins(kept: &Kept, row: &StepRow) -> Result<(), Broken> {
    let id = &row.turn;
    if kept.row.state != TurnState::Running {
        return Err(format!("{id} is {} and begins step {}", kept.row.state.word(), row.step));
    }
    if kept.steps.iter().any(|known| (known.step, known.ordinal) == (row.step, row.ordinal)) {
        return Err(format!("{id} begins step {}.{} twice", row.step, row.ordinal));
    }
    let models = kept.steps.iter().filter(|step| step.kind == StepKind::Model);
    match row.kind {
        StepKind::Model => {
            let newest = models.map(|step| step.step).max().unwrap_or(0);
            if row.step != newest + 1 || row.ordinal != 0 || !open_calls(kept).is_empty() {
                return Err(format!("{id} begins model step {} after {newest}", row.step));
            }
        }
        StepKind::Tool => {
            let asked =
                models.rev().take(1).any(|step| step.step == row.step && step.state == StepState::Done);
            let open = open_calls(kept);
            if !asked || row.call.as_ref().is_none_or(|call| !open.contains(&call.as_str())) {
                return Err(format!("{id} begins tool step {row:?}, which nobody asked for"));
            }
        }
    }
    Ok(())
}

/// Calls and results stay paired: an answer comes when every call before it has its result, and a result has a call.
pub fn message_fits(kept: &Kept, row: &MessageRow) -> Result<(), Broken> {
    let id = &row.turn;
    let fits = match row.role {
        Role::User => kept.messages.is_empty(),
        Role::Assistant => {
            let again = |message: &MessageRow| message.role == Role::Assistant && message.step == row.step;
            if kept.messages.iter().any(again) {
                return Err(format!("{id} has two answers for step {}", row.step));
            }
            kept.row.state == TurnState::Running && open_calls(kept).is_empty()
        }
        Role::Tool => {
            let call = row.body.call.as_deref().unwrap_or_default();
            kept.row.state.is_live() && open_calls(kept).contains(&call)
        }
    };
    if fits { Ok(()) } else { Err(format!("message {row:?} does not fit into {id}")) }
}

/// The calls of the newest answer that have no result message.
pub fn open_calls(kept: &Kept) -> Vec<&str> {
    let Some(at) = kept.messages.iter().rposition(|message| message.role == Role::Assistant) else {
        return Vec::new();
    };
    let mut open: Vec<&str> = kept.messages[at].body.calls.iter().map(|call| call.id.as_str()).collect();
    for message in &kept.messages[at + 1..] {
        let result = message.body.call.as_deref();
        if let Some(found) = open.iter().position(|call| Some(*call) == result) {
            open.remove(found);
        }
    }
    open
}
