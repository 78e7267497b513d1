//! The rules of the strictest provider for a conversation, for every outcome of its turns.

use std::collections::HashSet;

use lodge_core::record::{MessageRow, Role};
use lodge_daemon::context;
use lodge_engine::ModelOrder;

use crate::disk::SimDisk;
use crate::laws::LawViolation;

/// Turns before the one that asks that are looked at: enough for every way in which two can follow each other.
const LOOK_BACK_MAX: u32 = 12;

/// A request as the model reads it: users and assistants take turns, each call has an id of its own and its result
/// right behind it, and nothing is empty.
pub fn request_is_strict(disk: &SimDisk, order: &ModelOrder) -> Result<(), LawViolation> {
    let rows = messages(disk, order)?;
    if order.summary.is_some_and(|number| !disk.has_summary(&order.session, number)) {
        return Err(format!("{} reads what was written down off its path: {order:?}", order.turn));
    }
    let rows = context::readable(rows, order.number);
    let mut ids = HashSet::new();
    let mut last = Role::Assistant;
    let mut rest = rows.iter();
    while let Some(row) = rest.next() {
        let turns = match (last, row.role) {
            (Role::Assistant, Role::User) | (Role::User | Role::Tool, Role::Assistant) => true,
            (Role::Assistant, Role::Assistant | Role::Tool)
            | (Role::User, Role::User | Role::Tool)
            | (Role::Tool, Role::User | Role::Tool) => false,
        };
        let empty = row.body.calls.is_empty() && row.body.text.trim().is_empty();
        if !turns || empty {
            return Err(format!("{} asks with {row:?} after {last:?}", order.turn));
        }
        last = row.role;
        for call in &row.body.calls {
            let result = rest.next().filter(|result| result.body.call.as_ref() == Some(&call.id));
            if result.is_none() || !ids.insert(&call.id) {
                return Err(format!("{} asks with call {} and {result:?}", order.turn, call.id));
            }
            last = Role::Tool;
        }
    }
    match last {
        Role::User | Role::Tool => Ok(()),
        Role::Assistant => Err(format!("{} asks, and nobody wants to know anything", order.turn)),
    }
}

/// The messages of the turn and of those before it, which are all on the path of their session.
fn messages(disk: &SimDisk, order: &ModelOrder) -> Result<Vec<MessageRow>, LawViolation> {
    let from = order.from_turn.max(order.number.saturating_sub(LOOK_BACK_MAX)).max(1);
    let mut turns = Vec::new();
    let mut next = disk.turn(&order.turn);
    while let Some(kept) = next.filter(|kept| kept.row.number >= from) {
        if kept.row.place.dropped > 0 || kept.row.session != order.session {
            return Err(format!("{} reads {}, which is off its path", order.turn, kept.row.id));
        }
        turns.push(kept);
        next = kept.row.place.parent.as_ref().and_then(|parent| disk.turn(parent));
    }
    let whole = turns.len() as u32 == order.number + 1 - from;
    if !whole {
        return Err(format!("{} reads from turn {from}, and {} turns are there", order.turn, turns.len()));
    }
    Ok(turns.iter().rev().flat_map(|kept| kept.messages.iter().cloned()).collect())
}
