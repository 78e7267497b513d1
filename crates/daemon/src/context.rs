//! What a model reads of a conversation: rows in, rows out, such that the strictest provider takes them.
//!
//! Turns end in many ways, and their records show how. A provider accepts less: alternating messages, every call
//! directly followed by its result, nothing empty. So gaps are filled with fixed texts: within an epoch each request
//! begins with the bytes of the one before it, so the provider's cache applies.

use std::collections::{HashMap, HashSet};

use lodge_core::epoch::Strategy;
use lodge_core::record::{MessageBody, MessageRow, Role};

/// Messages that are read for a summary; more are left out, the oldest first.
pub const SUMMARY_READ_BYTES_MAX: u64 = 1024 * 1024;

const NO_ANSWER: &str = "[no answer: the turn ended early]";
const EMPTY_ANSWER: &str = "[empty answer]";
const CUT_SHORT: &str = "[the answer ends here: the turn ended early]";
const NO_RESULT: &str = "[no result: the turn ended before this call had one]";
const EMPTY_RESULT: &str = "[empty result]";
const NOTE_HEAD: &str = "[A note of the system, not from the user.]";
const SUMMARY_HEAD: &str = "[The conversation before this point is left out. What you wrote down of it:]";
const SUMMARY_READ: &str = "[read]";

/// Messages as a model reads them: turn `number` is the one that asks, and those before it are over.
pub fn readable(rows: Vec<MessageRow>, number: u32) -> Vec<MessageRow> {
    let mut read = ConversationBuilder { rows: Vec::with_capacity(rows.len() + 2), ids: CallIds::default() };
    let mut rows = rows.into_iter().peekable();
    while let Some(row) = rows.next() {
        match row.role {
            Role::User => {
                read.end_turn(&row);
                read.rows.push(noted(row));
            }
            Role::Assistant => {
                let mut results = Vec::new();
                while let Some(result) = rows.next_if(|next| next.role == Role::Tool) {
                    results.push(result);
                }
                read.answer(row, results);
            }
            // Results follow the answer that requested them, and were taken with it.
            Role::Tool => {}
        }
    }
    if let Some(last) = read.rows.last().cloned().filter(|last| last.number < number) {
        read.end_turn(&last);
    }
    read.rows
}

/// The same with the text before the messages of an epoch.
pub fn after_summary(summary: &str, rows: Vec<MessageRow>) -> Vec<MessageRow> {
    let Some(first) = rows.first() else { return rows };
    let head = said(first, Role::User, format!("{SUMMARY_HEAD}\n\n{summary}"));
    let read = said(first, Role::Assistant, SUMMARY_READ.to_owned());
    let mut all = vec![head, read];
    all.extend(rows);
    all
}

/// The newest turns that a summary is written from: as many as there is room for, and one at least.
pub fn summed_up(mut rows: Vec<MessageRow>) -> Vec<MessageRow> {
    let (mut bytes, mut first) = (0, None);
    for turn in rows.chunk_by(|one, next| one.number == next.number).rev() {
        bytes += turn.iter().map(|row| row.body.weight()).sum::<u64>();
        if first.is_some() && bytes > SUMMARY_READ_BYTES_MAX {
            break;
        }
        first = turn.first().map(|row| row.number);
    }
    rows.retain(|row| first.is_none_or(|first| row.number >= first));
    rows
}

/// The messages that are about to be left out, and behind them what is wanted of the model.
pub fn asked_for_summary(mut rows: Vec<MessageRow>, strategy: Strategy) -> Vec<MessageRow> {
    if let Some(last) = rows.last() {
        let asked = said(last, Role::User, instruction(strategy).to_owned());
        rows.push(asked);
    }
    rows
}

fn instruction(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::Sliding | Strategy::Summarize => {
            "[This is not from the user. The conversation above is about to be left out to make room.] Write the \
             summary that will stand in its place. Keep what the user wants and decided; facts, names, paths and \
             numbers that matter later; what was done with tools and what came of it; what is still open. Leave out \
             the rest. Answer with the summary alone, as plain text of at most 500 words, and call no tools."
        }
        Strategy::Handoff => {
            "[This is not from the user. The conversation above is about to be left out.] Write the handoff document \
             for a successor who will know of it only what you write now: the goal; where the work stands; decisions \
             and their reasons; files, commands and facts that matter; what was tried and did not work; what comes \
             next, in order; open questions. Answer with the document alone, as plain text, and call no tools."
        }
    }
}

/// A user's message behind what the system has to say first.
fn noted(mut row: MessageRow) -> MessageRow {
    if let Some(note) = row.body.note.take() {
        row.body.text = format!("{NOTE_HEAD}\n{note}\n\n{}", row.body.text);
    }
    row
}

/// A generated message, at the position of another.
fn said(at: &MessageRow, role: Role, text: String) -> MessageRow {
    let body = MessageBody { text, ..MessageBody::default() };
    MessageRow { role, body, session: at.session.clone(), turn: at.turn.clone(), ..*at }
}

struct ConversationBuilder {
    rows: Vec<MessageRow>,
    ids: CallIds,
}

impl ConversationBuilder {
    /// Puts an answer where a turn has none. `at` is where the next message comes, or the last one.
    fn end_turn(&mut self, at: &MessageRow) {
        let open = self.rows.last().is_some_and(|last| match last.role {
            Role::User | Role::Tool => true,
            Role::Assistant => !last.body.calls.is_empty(),
        });
        if open {
            self.rows.push(said(at, Role::Assistant, NO_ANSWER.to_owned()));
        }
    }

    /// An answer, and behind it the result of every call in the order of the calls.
    fn answer(&mut self, mut row: MessageRow, mut results: Vec<MessageRow>) {
        if row.body.partial {
            row.body.text = format!("{}\n\n{CUT_SHORT}", row.body.text.trim_end());
        } else if row.body.calls.is_empty() && row.body.text.trim().is_empty() {
            row.body.text = EMPTY_ANSWER.to_owned();
        }
        let mut paired = Vec::with_capacity(row.body.calls.len());
        let mut calls = std::mem::take(&mut row.body.calls);
        for call in &mut calls {
            let found = results.iter().position(|result| result.body.call.as_ref() == Some(&call.id));
            let mut result = match found {
                Some(found) => results.remove(found),
                None => said(&row, Role::Tool, NO_RESULT.to_owned()),
            };
            result.body.failed |= found.is_none();
            if result.body.text.is_empty() {
                result.body.text = EMPTY_RESULT.to_owned();
            }
            call.id = self.ids.own(&call.id);
            result.body.call = Some(call.id.clone());
            paired.push(result);
        }
        row.body.calls = calls;
        self.rows.push(row);
        self.rows.extend(paired);
    }
}

/// Some models give the calls of every answer the same ids, and some providers want each to be the only one.
#[derive(Default)]
struct CallIds {
    used: HashSet<String>,
    copies: HashMap<String, u32>,
}

impl CallIds {
    fn own(&mut self, given: &str) -> String {
        let mut id = given.to_owned();
        while !self.used.insert(id.clone()) {
            let copy = self.copies.entry(given.to_owned()).or_insert(1);
            *copy += 1;
            id = format!("{given}_{copy}");
        }
        id
    }
}

#[cfg(test)]
mod tests;
