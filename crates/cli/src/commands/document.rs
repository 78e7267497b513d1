//! A snapshot as one JSON document on stdout, written in pieces: a conversation may be larger than memory.
//!
//! The same snapshot gives the same bytes, whether it comes from the daemon or from a file.

use lodge_proto::{SessionBoundary, Snapshot, SnapshotHead, SnapshotMessage, TokenUsage};
use serde::Serialize;

use crate::failure::CommandFailure;
use crate::words::put_json;

/// A document that is being written.
#[derive(Debug)]
pub(super) struct SessionDocument {
    sessions: usize,
    messages: usize,
}

impl SessionDocument {
    pub(super) fn begin(head: &SnapshotHead) -> Result<SessionDocument, CommandFailure> {
        let SnapshotHead { version, lineage_id, anchor_id, epoch, written_at, model, llm, config } = head;
        let fields = [
            ("version", json(version)?),
            ("lineage_id", json(lineage_id)?),
            ("anchor_id", json(anchor_id)?),
            ("epoch", json(epoch)?),
            ("written_at", json(written_at)?),
            ("model", json(model)?),
            ("llm", json(llm)?),
            ("config", json(config)?),
        ];
        let lines: Vec<String> =
            fields.iter().map(|(key, value)| format!("  \"{key}\": {value},\n")).collect();
        put_json(&format!("{{\n{}  \"sessions\": [", lines.concat()))?;
        Ok(SessionDocument { sessions: 0, messages: 0 })
    }

    pub(super) fn session(&mut self, session: &SessionBoundary) -> Result<(), CommandFailure> {
        let comma = if self.sessions == 0 { "" } else { "," };
        (self.sessions, self.messages) = (self.sessions + 1, 0);
        let SessionBoundary { id, sender, turns } = session;
        let (id, sender) = (json(id)?, json(sender)?);
        put_json(&format!(
            "{comma}\n    {{\"id\": {id}, \"sender\": {sender}, \"turns\": {turns}, \"messages\": ["
        ))
    }

    pub(super) fn messages(&mut self, messages: &[SnapshotMessage]) -> Result<(), CommandFailure> {
        let mut text = String::new();
        for message in messages {
            let comma = if self.messages == 0 { "" } else { "," };
            self.messages += 1;
            text.push_str(&format!("{comma}\n      {}", json(message)?));
        }
        put_json(&text)
    }

    pub(super) fn end_session(&mut self) -> Result<(), CommandFailure> {
        put_json(if self.messages == 0 { "]}" } else { "\n    ]}" })
    }

    pub(super) fn end(self, usage: TokenUsage) -> Result<(), CommandFailure> {
        let close = if self.sessions == 0 { "]" } else { "\n  ]" };
        put_json(&format!("{close},\n  \"usage\": {}\n}}\n", json(&usage)?))
    }

    /// A snapshot that is in memory.
    pub(super) fn print_snapshot(snapshot: &Snapshot) -> Result<(), CommandFailure> {
        let mut document = SessionDocument::begin(&snapshot.head)?;
        for session in &snapshot.sessions {
            let (id, sender, turns) = (session.id.clone(), session.sender.clone(), session.turns);
            document.session(&SessionBoundary { id, sender, turns })?;
            document.messages(&session.messages)?;
            document.end_session()?;
        }
        document.end(snapshot.usage)
    }
}

fn json<T: Serialize>(thing: &T) -> Result<String, CommandFailure> {
    serde_json::to_string(thing)
        .map_err(|cause| CommandFailure::refused("could not write the output").because(cause))
}
