//! `session ls` and `session show`.

use std::collections::BTreeMap;

use lodge_proto::{
    AgentList, AgentListParams, MessageList, MessageView, PAGE_MAX, SessionList, SessionListParams,
    SessionMessagesParams, SessionRef, SessionView, TurnList, TurnListParams,
};
use serde::Serialize;
use serde_json::Value;

use super::Context;
use crate::args::SessionCommand;
use crate::failure::Failure;
use crate::follow::Daemon;
use crate::render::{self, ago, now_s, or_dash, table};
use crate::words::{Words, put};

/// How much of a conversation is shown unless told otherwise.
const MESSAGES_SHOWN: u32 = 100;
/// How much of a tool's output is shown; `--json` has all.
const TOOL_LINES_SHOWN: usize = 20;

pub(super) async fn session(context: &Context, command: SessionCommand) -> Result<(), Failure> {
    match command {
        SessionCommand::Ls { agent } => list(context, agent).await,
        SessionCommand::Show { session, messages } => {
            show(context, session, messages.unwrap_or(MESSAGES_SHOWN)).await
        }
    }
}

async fn list(context: &Context, agent: Option<String>) -> Result<(), Failure> {
    let mut daemon = context.daemon().await?;
    let mut sessions: Vec<SessionView> = Vec::new();
    let mut after = None;
    loop {
        let params = SessionListParams { agent: agent.clone(), after, limit: Some(PAGE_MAX) };
        let page: SessionList = daemon.call("session/list", params).await?;
        sessions.extend(page.sessions);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if context.words.json {
        return context.words.json(&sessions);
    }
    if context.words.quiet {
        return put(&sessions.iter().map(|session| format!("{}\n", session.id)).collect::<String>());
    }
    let now = now_s();
    sessions.sort_by(|a, b| a.last_active.cmp(&b.last_active));
    let names = agent_names(&mut daemon).await?;
    let row = |session: &SessionView| {
        vec![
            session.id.clone(),
            names.get(&session.agent).cloned().unwrap_or_else(|| format!("{} (removed)", session.agent)),
            or_dash(session.sender.as_deref()),
            session.turns.to_string(),
            format!("{} ({} %)", session.context_state, session.context_used_pct),
            ago(&session.last_active, now),
        ]
    };
    let rows: Vec<Vec<String>> = sessions.iter().map(row).collect();
    put(&table(&["ID", "AGENT", "SENDER", "TURNS", "CONTEXT", "LAST ACTIVE"], &rows))
}

/// The names of all agents by their ids.
async fn agent_names(daemon: &mut Daemon<'_>) -> Result<BTreeMap<String, String>, Failure> {
    let mut names = BTreeMap::new();
    let mut after = None;
    loop {
        let params =
            AgentListParams { all: true, after, limit: Some(PAGE_MAX), ..AgentListParams::default() };
        let page: AgentList = daemon.call("agent/list", params).await?;
        names.extend(page.agents.into_iter().map(|agent| (agent.id, agent.name)));
        after = page.next;
        if after.is_none() {
            return Ok(names);
        }
    }
}

/// A session with its conversation, as `--json` prints it.
#[derive(Serialize)]
struct Conversation {
    #[serde(flatten)]
    session: SessionView,
    messages: Vec<MessageView>,
}

async fn show(context: &Context, session: String, wanted: u32) -> Result<(), Failure> {
    let mut daemon = context.daemon().await?;
    let view: SessionView = daemon.call("session/get", SessionRef { session: session.clone() }).await?;
    let (messages, older) = newest(&mut daemon, &session, wanted).await?;
    if context.words.json {
        return context.words.json(&Conversation { session: view, messages });
    }
    if older {
        context.words.murmur(&format!("older messages are left out; `-n` shows more than {wanted}"));
    }
    let broken = broken_turns(&mut daemon, &session).await?;
    let mut blocks: Vec<String> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        blocks.push(block(message, &context.words));
        let last_of_turn = messages[at + 1..].iter().all(|later| later.turn != message.turn);
        if let (true, Some(how)) = (last_of_turn, broken.get(&message.turn)) {
            blocks.push(format!("{how}\n"));
        }
    }
    put(&blocks.join("\n"))
}

/// How turns ended that have no answer, or why they have none yet.
async fn broken_turns(daemon: &mut Daemon<'_>, session: &str) -> Result<BTreeMap<String, String>, Failure> {
    let mut broken = BTreeMap::new();
    let mut after = None;
    loop {
        let params = TurnListParams { session: session.to_owned(), after, limit: Some(PAGE_MAX) };
        let page: TurnList = daemon.call("turn/list", params).await?;
        for turn in page.turns.into_iter().filter(|turn| turn.status != "done") {
            let how = match turn.error {
                Some(error) => format!("{}: {} ({})", turn.status, error.message, error.code),
                None => turn.status,
            };
            broken.insert(turn.id, how);
        }
        after = page.next;
        if after.is_none() {
            return Ok(broken);
        }
    }
}

/// The newest messages, oldest of them first, and whether there are older ones.
async fn newest(
    daemon: &mut Daemon<'_>,
    session: &str,
    wanted: u32,
) -> Result<(Vec<MessageView>, bool), Failure> {
    let mut messages: Vec<MessageView> = Vec::new();
    let mut before = None;
    loop {
        let missing = wanted.saturating_sub(u32::try_from(messages.len()).unwrap_or(u32::MAX));
        if missing == 0 {
            return Ok((messages, before.is_some()));
        }
        let limit = Some(missing.min(PAGE_MAX));
        let params = SessionMessagesParams { session: session.to_owned(), before, limit };
        let page: MessageList = daemon.call("session/messages", params).await?;
        messages.extend(page.messages);
        messages.sort_by_key(|message| message.seq);
        before = page.next;
        if before.is_none() {
            return Ok((messages, false));
        }
    }
}

fn block(message: &MessageView, words: &Words) -> String {
    let heading = words.bold(&message.role).into_owned();
    let mut text = format!("{heading}  {}\n", message.at);
    let shown = words.shown(&message.text);
    let lines: Vec<&str> = shown.lines().collect();
    let lines_max = if message.role == "tool" { TOOL_LINES_SHOWN } else { usize::MAX };
    for line in lines.iter().take(lines_max) {
        text.push_str(format!("  {line}").trim_end());
        text.push('\n');
    }
    if lines.len() > lines_max {
        text.push_str(&format!("  … {} more lines\n", lines.len() - lines_max));
    }
    for call in &message.calls {
        let call = render::tool_call(&call.name, &Value::String(call.arguments.clone()));
        text.push_str(&format!("  ⚙ {call}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use lodge_proto::ToolCallView;

    fn message(role: &str, text: &str, calls: Vec<ToolCallView>) -> MessageView {
        let at = "2025-03-01T00:00:00.000Z".to_owned();
        MessageView {
            seq: 1,
            turn: "trn_1".into(),
            role: role.into(),
            text: text.into(),
            calls,
            call: None,
            at,
        }
    }

    #[test]
    fn a_message_shows_its_text_and_then_its_calls() {
        let call =
            ToolCallView { id: "c".into(), name: "sh".into(), arguments: r#"{"args":["-c","date"]}"#.into() };
        let block = block(&message("assistant", "let me\n\nsee", vec![call]), &Words::new(false, false));
        assert_eq!(block, "assistant  2025-03-01T00:00:00.000Z\n  let me\n\n  see\n  ⚙ sh -c date\n");
    }

    #[test]
    fn a_long_tool_output_is_cut_and_says_so() {
        let block = block(&message("tool", &"x\n".repeat(25), Vec::new()), &Words::new(false, false));
        assert_eq!(block.lines().count(), 22);
        assert!(block.ends_with("  … 5 more lines\n"));
    }
}
