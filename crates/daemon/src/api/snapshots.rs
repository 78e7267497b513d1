//! `lineage/snapshot` and `lineage/messages`: a lineage at its last turn boundary, in pages.
//!
//! Assembled from records on request: a turn writes nothing for it.

use lodge_core::record::{ImageRecord, MessageRow};
use lodge_proto::{
    ErrorBody, LineageMessages, LineageMessagesParams, LineageSnapshot, LineageSnapshotParams,
    SNAPSHOT_VERSION, SessionBoundary, SnapshotConfig, SnapshotHead, SnapshotLimits, SnapshotMessage,
    SnapshotPermissions, SnapshotTool, TokenUsage, ToolCallView,
};
use lodge_store::{LineageBoundary, MessageCursor, MessageRange};

use super::lineages;
use super::methods::{internal, page, session_id};
use crate::read_view::ReadView;
use crate::shell::Shell;
use crate::view;
use lodge_engine::DAEMON_STREAM;

/// A page of messages ends with the one that reaches this.
const PAGE_BYTES_MAX: usize = 1024 * 1024;
/// The CONFIG values that say how a model picks its words.
const SAMPLING: [&str; 6] =
    ["frequency-penalty", "max-tokens", "presence-penalty", "temperature", "top-k", "top-p"];

pub(super) fn snapshot(
    at: &ReadView<'_>,
    given: &LineageSnapshotParams,
) -> Result<LineageSnapshot, ErrorBody> {
    let id = lineages::find(at, &given.lineage)?;
    let limit = page(given.limit);
    let found = at.store.at_boundary(&id, DAEMON_STREAM, given.after.as_deref(), limit).map_err(internal)?;
    let found = found.ok_or_else(|| lineages::no_lineage(&given.lineage))?;
    let image = at.store.image(&found.agent.image_digest).map_err(internal)?.unwrap_or_default();
    let sessions: Vec<SessionBoundary> = found
        .sessions
        .iter()
        .map(|boundary| SessionBoundary {
            id: boundary.session.id.to_string(),
            sender: boundary.session.sender.clone(),
            turns: boundary.turns,
        })
        .collect();
    let next = if found.more { sessions.last().map(|last| last.id.clone()) } else { None };
    Ok(LineageSnapshot { head: head(at, &found, image), sessions, next })
}

fn head(shell: &Shell, found: &LineageBoundary, image: ImageRecord) -> SnapshotHead {
    let spec = &found.agent.spec;
    let mut env_keys: Vec<String> = image.env.iter().map(|var| var.key.clone()).collect();
    env_keys.extend(spec.env.keys().cloned());
    env_keys.sort();
    env_keys.dedup();
    let mounts = spec.mounts.iter().map(view::mount);
    let tools = spec.tools.iter().map(|tool| SnapshotTool {
        name: tool.name.clone(),
        description: tool.description.clone(),
        source: tool.source.clone(),
        digest: Some(tool.digest.clone()),
        safe: tool.safe,
    });
    let sampling = |key: &&String| SAMPLING.contains(&key.as_str());
    SnapshotHead {
        version: SNAPSHOT_VERSION,
        lineage_id: found.lineage.id.to_string(),
        anchor_id: shell.log.clone(),
        epoch: found.epoch,
        written_at: found.written_at.to_string(),
        model: spec.model.clone(),
        llm: image
            .configs
            .iter()
            .filter(|(key, _)| sampling(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        config: SnapshotConfig {
            tools: tools.collect(),
            permissions: SnapshotPermissions {
                executor: Some(shell.config.settings().executor.word().to_owned()),
                mounts: mounts.collect(),
                env_keys,
            },
            limits: SnapshotLimits {
                revival_policy: spec.policy(shell.config.settings().revival_policy).word().to_owned(),
            },
            configs: image.configs,
        },
    }
}

pub(super) fn messages(
    at: &ReadView<'_>,
    given: &LineageMessagesParams,
) -> Result<LineageMessages, ErrorBody> {
    let id = lineages::find(at, &given.lineage)?;
    let session = session_id(&given.session)?;
    let wanted = MessageRange {
        turns_max: given.turns.unwrap_or(u32::MAX),
        after: given.after.as_deref().map_or(Ok(MessageCursor::default()), place)?,
        messages_max: page(given.limit),
        bytes_max: PAGE_BYTES_MAX,
    };
    let found = at.store.boundary_messages(&id, &session, wanted).map_err(internal)?;
    let found = found.ok_or_else(|| {
        ErrorBody::new("session.not_found", format!("lineage {id} has no session `{session}`"))
            .hint("`lineage/snapshot` lists its sessions")
    })?;
    let usage =
        TokenUsage { input_tokens: found.usage.input_tokens, output_tokens: found.usage.output_tokens };
    let next = found.next.map(|place| format!("{}.{}", place.number, place.seq));
    let messages = found.messages.into_iter().map(message).collect();
    Ok(LineageMessages { messages, usage, next })
}

fn message(row: MessageRow) -> SnapshotMessage {
    let calls = row.body.calls.into_iter();
    SnapshotMessage {
        turn: row.number,
        role: row.role.word().to_owned(),
        text: row.body.text,
        calls: calls
            .map(|call| ToolCallView { id: call.id, name: call.name, arguments: call.arguments })
            .collect(),
        call: row.body.call,
        at: Some(row.at.to_string()),
    }
}

/// The cursor of an earlier page: a turn's number and a message's sequence.
fn place(given: &str) -> Result<MessageCursor, ErrorBody> {
    let parsed = given.split_once('.').and_then(|(number, seq)| {
        Some(MessageCursor { number: number.parse().ok()?, seq: seq.parse().ok()? })
    });
    parsed.ok_or_else(|| ErrorBody::new("params.invalid", "`after` is the `next` of an earlier page"))
}
