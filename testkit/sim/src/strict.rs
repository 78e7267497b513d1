//! The rules of the strictest provider for a conversation, for every outcome of its turns.

use std::collections::HashSet;

use lodge_engine::ModelOrder;
use lodge_model::{ModelMessage, ModelRequest};

use crate::disk::SimDisk;
use crate::laws::LawViolation;

/// The number of earlier turns that are checked: enough for every combination of two outcomes.
const LOOK_BACK_MAX: u32 = 12;

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speaker {
    User,
    Assistant,
    Tool,
}

/// The rules of a request: users and assistants alternate, each call has a unique id and is followed by its result, and no
/// message is empty.
pub fn request_is_strict(order: &ModelOrder, request: &ModelRequest) -> Result<(), LawViolation> {
    let mut ids = HashSet::new();
    let mut last = Speaker::Assistant;
    let mut rest = request.messages.iter();
    while let Some(message) = rest.next() {
        let (speaker, text, calls) = match message {
            ModelMessage::User { text } => (Speaker::User, text, &[][..]),
            ModelMessage::Assistant { text, calls, .. } => (Speaker::Assistant, text, &calls[..]),
            ModelMessage::ToolResult { text, .. } => (Speaker::Tool, text, &[][..]),
        };
        let follows = match (last, speaker) {
            (Speaker::Assistant, Speaker::User) | (Speaker::User | Speaker::Tool, Speaker::Assistant) => true,
            (Speaker::Assistant, Speaker::Assistant | Speaker::Tool)
            | (Speaker::User, Speaker::User | Speaker::Tool)
            | (Speaker::Tool, Speaker::User | Speaker::Tool) => false,
        };
        if !follows || calls.is_empty() && text.trim().is_empty() {
            return Err(format!("{} asks with {message:?} after {last:?}", order.turn));
        }
        last = speaker;
        for call in calls {
            let is_result = |result: &&ModelMessage| matches!(result, ModelMessage::ToolResult { call_id, .. } if *call_id == call.id);
            let result = rest.next().filter(is_result);
            if result.is_none() || !ids.insert(&call.id) {
                return Err(format!("{} asks with call {} and {result:?}", order.turn, call.id));
            }
            last = Speaker::Tool;
        }
    }
    match last {
        Speaker::User | Speaker::Tool => Ok(()),
        Speaker::Assistant => Err(format!("{} asks, and the last word is the model's own", order.turn)),
    }
}

/// A request has what the person asked for in this turn.
pub fn asks_for_its_turn(
    disk: &SimDisk,
    order: &ModelOrder,
    request: &ModelRequest,
) -> Result<(), LawViolation> {
    let asked = disk.turn(&order.turn).and_then(|kept| kept.messages.first());
    let asked = asked.map(|message| message.body.text.as_str()).unwrap_or_default();
    let is_asked = request.messages.iter().any(|message| match message {
        ModelMessage::User { text } => text.contains(asked),
        ModelMessage::Assistant { .. } | ModelMessage::ToolResult { .. } => false,
    });
    if is_asked { Ok(()) } else { Err(format!("{} asks without `{asked}`", order.turn)) }
}

/// The turns that a model reads are all on the path of their session.
pub fn reads_its_path(disk: &SimDisk, order: &ModelOrder) -> Result<(), LawViolation> {
    if order.summary.is_some_and(|number| !disk.has_summary(&order.session, number)) {
        return Err(format!("{} reads a summary off its path: {order:?}", order.turn));
    }
    let from = order.from_turn.max(order.number.saturating_sub(LOOK_BACK_MAX)).max(1);
    let mut count = 0;
    let mut next = disk.turn(&order.turn);
    while let Some(kept) = next.filter(|kept| kept.row.number >= from) {
        if kept.row.place.dropped > 0 || kept.row.session != order.session {
            return Err(format!("{} reads {}, which is off its path", order.turn, kept.row.id));
        }
        count += 1;
        next = kept.row.place.parent.as_ref().and_then(|parent| disk.turn(parent));
    }
    if count != order.number + 1 - from {
        return Err(format!("{} reads from turn {from}, and {count} turns are there", order.turn));
    }
    Ok(())
}
