//! `session`: which command is which, and `ls` and `show`.

use lodge_proto::{
    GetSession, ListMessages, ListSessions, ListTurns, MessageView, PAGE_MAX, QuarantineView, SessionDetail,
    SessionListParams, SessionMessagesParams, SessionRef, SessionView, TurnListParams, TurnView,
    TurnWaitView,
};
use serde::Serialize;
use serde_json::Value;

use super::agents::usage_cells;
use super::sessions_repeat::RepeatConsent;
use super::{CommandContext, sessions_change, sessions_find};
use crate::answer::WayToContinue;
use crate::args::SessionCommand;
use crate::failure::CommandFailure;
use crate::follow::DaemonClient;
use crate::render::{self, ago, now_s, or_dash};
use crate::words::{Words, put};

/// The default number of messages of a conversation.
const MESSAGES_SHOWN: u32 = 100;
/// How much of a tool's output is shown; `--json` has all.
const TOOL_LINES_SHOWN: usize = 20;

pub(super) async fn session(context: &CommandContext, command: SessionCommand) -> Result<(), CommandFailure> {
    match command {
        SessionCommand::Ls { agent, limit } => list(context, agent, limit).await,
        SessionCommand::Show { session, messages, all, full } => {
            let lines_max = if full { usize::MAX } else { TOOL_LINES_SHOWN };
            show(context, session, messages.unwrap_or(MESSAGES_SHOWN), all, lines_max).await
        }
        SessionCommand::Search(args) => sessions_find::search(context, args).await,
        SessionCommand::Export { session } => sessions_find::export(context, session).await,
        SessionCommand::Fork { session, at, to } => sessions_change::fork(context, session, at, to).await,
        SessionCommand::Rewind { session, turn } => sessions_change::rewind(context, session, turn).await,
        SessionCommand::Regenerate { session, turn, detach, yes } => {
            let consent = if yes { RepeatConsent::Given } else { RepeatConsent::Ask };
            sessions_change::regenerate(context, session, turn, detach, consent).await
        }
        SessionCommand::Activate { session, turn } => sessions_change::activate(context, session, turn).await,
        SessionCommand::Rm { sessions } => sessions_change::remove(context, sessions).await,
    }
}

async fn list(
    context: &CommandContext,
    agent: Option<String>,
    limit: Option<u32>,
) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let wanted = limit.map_or(usize::MAX, |limit| limit as usize);
    let mut sessions: Vec<SessionView> = Vec::new();
    let mut after = None;
    loop {
        let missing = u32::try_from(wanted - sessions.len()).unwrap_or(u32::MAX);
        let params = SessionListParams { agent: agent.clone(), after, limit: Some(missing.min(PAGE_MAX)) };
        let page = daemon.call::<ListSessions>(params).await?;
        sessions.extend(page.sessions);
        after = page.next;
        if after.is_none() || sessions.len() >= wanted {
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
    let row = |session: &SessionView| {
        let [tokens, cost] = usage_cells(session.usage.as_ref());
        vec![
            session.id.clone(),
            agent_name(session),
            or_dash(session.sender.as_deref()),
            session.turns.to_string(),
            tokens,
            cost,
            ago(&session.last_active, now),
            or_dash(session.title.as_deref()),
        ]
    };
    let rows: Vec<Vec<String>> = sessions.iter().map(row).collect();
    context.put_table(&["ID", "AGENT", "SENDER", "TURNS", "TOKENS", "COST", "LAST ACTIVE", "BEGINS"], &rows)
}

pub(super) fn turns_text(turns: u64) -> String {
    render::counted(usize::try_from(turns).unwrap_or(usize::MAX), "turn")
}

fn agent_name(session: &SessionView) -> String {
    let removed = if session.agent_removed { " (removed)" } else { "" };
    format!("{}{removed}", session.agent_name)
}

/// A session with its conversation, as `--json` prints it.
#[derive(Serialize)]
struct Conversation {
    #[serde(flatten)]
    session: SessionDetail,
    messages: Vec<MessageView>,
    /// Of those messages, and of turns that have none.
    turn_list: Vec<TurnView>,
}

async fn show(
    context: &CommandContext,
    session: String,
    wanted: u32,
    all: bool,
    tool_lines_max: usize,
) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let view = daemon.call::<GetSession>(SessionRef { session }).await?;
    let session = view.session.id.clone();
    let (messages, older) = newest(&mut daemon, &session, wanted, all).await?;
    let turns = turns(&mut daemon, &session, all || view.inactive_turns > 0).await?;
    if context.words.json {
        let turn_list = if all { turns } else { turns.into_iter().filter(|turn| turn.active).collect() };
        return context.words.json(&Conversation { session: view, messages, turn_list });
    }
    if older {
        context
            .words
            .print_dimmed_note(&format!("older messages are left out; `-n` shows more than {wanted}"));
    }
    let mut blocks = vec![head(&view, &context.words)];
    for (at, message) in messages.iter().enumerate() {
        let turn = turns.iter().find(|turn| turn.id == message.turn);
        blocks.push(block(message, &context.words, tool_lines_max));
        let last_of_turn = messages.get(at + 1).is_none_or(|next| next.turn != message.turn);
        if let (true, Some(turn)) = (last_of_turn, turn) {
            // What there is of an answer is a message, unless the turn still runs or ended before that was so.
            let told = message.role == "assistant" && message.text == turn.text;
            let turn = if told { &TurnView { text: String::new(), ..turn.clone() } } else { turn };
            blocks.extend(ending(turn, &turns));
            blocks.extend(retry_hint(turn, &view.session));
        }
    }
    put(&blocks.join("\n"))
}

/// The header of a session, before its messages.
fn head(view: &SessionDetail, words: &Words) -> String {
    let session = &view.session;
    let mut text = format!("{}  {}", words.bold(&session.id), agent_name(session));
    if let Some(sender) = &session.sender {
        text.push_str(&format!("  with {}", render::one_line(sender)));
    }
    text.push_str(&format!("  {}\n", turns_text(session.turns)));
    if let Some(fork) = &session.forked_from {
        text.push_str(&format!("  forked from {} at turn {}\n", fork.session, fork.turn));
    }
    if let Some(running) = &session.running {
        text.push_str(&format!("  running: {running}\n"));
    }
    if !session.queued.is_empty() {
        text.push_str(&format!("  queued: {}\n", session.queued.join(", ")));
    }
    for work in &session.quarantine {
        let (what, step) = (render::quarantined(work), render::quarantine_step(&work.id));
        text.push_str(&format!("  in quarantine: {what} ({step})\n"));
    }
    if view.inactive_turns > 0 {
        let are = if view.inactive_turns == 1 { "is" } else { "are" };
        text.push_str(&format!("  {} {are} on other branches\n", turns_text(view.inactive_turns)));
    }
    text
}

/// The lines after a turn: a partial answer, how it ended, and its other branches.
fn ending(turn: &TurnView, turns: &[TurnView]) -> Option<String> {
    let mut text = String::new();
    if turn.status != "done" {
        if !turn.text.is_empty() {
            text.push_str("  (what there is of the answer)\n");
            text.push_str(&indented(&turn.text, usize::MAX));
        }
        text.push_str(&match (&turn.error, &turn.quarantine) {
            (Some(error), _) => {
                format!("{}: {} ({})\n", turn.status, render::one_line(&error.message), error.code)
            }
            (None, Some(work)) => format!("{}: {}\n", turn.status, quarantine_note(turn, work)),
            (None, None) => {
                format!("{}{}\n", turn.status, turn.waiting.as_ref().map(wait_note).unwrap_or_default())
            }
        });
    }
    let siblings: Vec<&str> = turns
        .iter()
        .filter(|other| other.number == turn.number && other.id != turn.id)
        .map(|other| other.id.as_str())
        .collect();
    if !turn.active {
        text.push_str(&format!("  turn {} ({}) is not on the path\n", turn.number, turn.id));
    } else if !siblings.is_empty() {
        text.push_str(&format!("  turn {} has other branches: {}\n", turn.number, siblings.join(", ")));
    }
    (!text.is_empty()).then_some(text)
}

/// How to continue the last turn of a session, if it ended early.
fn retry_hint(turn: &TurnView, session: &SessionView) -> Option<String> {
    let is_last = WayToContinue::of(turn, session) == WayToContinue::Retry;
    is_last.then(|| continue_hint(turn, session)).flatten()
}

/// How to continue a turn, if it ended early.
pub(super) fn continue_hint(turn: &TurnView, session: &SessionView) -> Option<String> {
    let ended_early = matches!(turn.status.as_str(), "failed" | "interrupted");
    let way = WayToContinue::of(turn, session);
    (ended_early && !session.agent_removed).then(|| format!("hint: run {}\n", way.steps(turn)))
}

/// What a parked turn waits for, and when that is tried again.
pub(super) fn wait_note(wait: &TurnWaitView) -> String {
    let what = wait.provider.as_ref().unwrap_or(&wait.reason);
    let mut note = format!(" for `{}`: {}", render::one_line(what), render::one_line(&wait.message));
    if let Some(next_at) = &wait.next_at {
        note.push_str(&format!("; next try at {}", render::one_line(next_at)));
    }
    note
}

/// Why a turn cannot go on before an operator has decided.
fn quarantine_note(turn: &TurnView, work: &QuarantineView) -> String {
    match work.turn.as_deref() {
        Some(other) if other != turn.id => {
            format!("behind {}, which is in quarantine ({})", render::one_line(other), work.id)
        }
        Some(_) | None => format!("in quarantine ({})", work.id),
    }
}

/// All turns of a session, or those on its path.
async fn turns(
    daemon: &mut DaemonClient<'_>,
    session: &str,
    all: bool,
) -> Result<Vec<TurnView>, CommandFailure> {
    let mut turns = Vec::new();
    let mut after = None;
    loop {
        let params = TurnListParams {
            session: session.to_owned(),
            all,
            after,
            limit: Some(PAGE_MAX),
            ..TurnListParams::default()
        };
        let page = daemon.call::<ListTurns>(params).await?;
        turns.extend(page.turns);
        after = page.next;
        if after.is_none() {
            return Ok(turns);
        }
    }
}

/// The newest messages, oldest of them first, and whether there are older ones.
async fn newest(
    daemon: &mut DaemonClient<'_>,
    session: &str,
    wanted: u32,
    all: bool,
) -> Result<(Vec<MessageView>, bool), CommandFailure> {
    let mut pages: Vec<Vec<MessageView>> = Vec::new();
    let (mut count, mut before) = (0, None);
    let in_order = |pages: Vec<Vec<MessageView>>| pages.into_iter().rev().flatten().collect();
    loop {
        let missing = wanted.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
        if missing == 0 {
            return Ok((in_order(pages), before.is_some()));
        }
        let limit = Some(missing.min(PAGE_MAX));
        let params = SessionMessagesParams { session: session.to_owned(), all, before, limit };
        let page = daemon.call::<ListMessages>(params).await?;
        count += page.messages.len();
        pages.push(page.messages);
        before = page.next;
        if before.is_none() {
            return Ok((in_order(pages), false));
        }
    }
}

fn block(message: &MessageView, words: &Words, tool_lines_max: usize) -> String {
    let heading = words.bold(&message.role).into_owned();
    let mut text = format!("{heading}  {}", message.at);
    if message.role == "user" {
        text.push_str(&format!("  turn {} ({})", message.number, message.turn));
    }
    if message.partial {
        text.push_str("  (broke off)");
    }
    text.push('\n');
    if let Some(note) = &message.note {
        text.push_str(&indented(note, usize::MAX));
    }
    let lines_max = if message.role == "tool" { tool_lines_max } else { usize::MAX };
    text.push_str(&indented(&message.text, lines_max));
    for call in &message.calls {
        let call = render::tool_call(&call.name, &Value::String(call.arguments.clone()));
        text.push_str(&format!("  ⚙ {call}\n"));
    }
    text
}

fn indented(text: &str, lines_max: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut indented = String::new();
    for line in lines.iter().take(lines_max) {
        indented.push_str(format!("  {line}").trim_end());
        indented.push('\n');
    }
    if lines.len() > lines_max {
        indented.push_str(&format!("  … {} more lines (`--full` shows them)\n", lines.len() - lines_max));
    }
    indented
}

#[cfg(test)]
mod tests {
    use super::*;
    use lodge_proto::{ForkView, ToolCallView, UsageView};

    fn plain() -> Words {
        Words::new(false, false)
    }

    fn message(role: &str, text: &str, calls: Vec<ToolCallView>) -> MessageView {
        MessageView {
            seq: 1,
            turn: "trn_1".into(),
            number: 1,
            active: true,
            role: role.into(),
            text: text.into(),
            note: None,
            calls,
            call: None,
            partial: false,
            at: "2025-03-01T00:00:00.000Z".to_owned(),
        }
    }

    fn turn(id: &str, status: &str, text: &str) -> TurnView {
        TurnView {
            id: id.into(),
            session: "s".into(),
            agent: "agt_1".into(),
            number: 2,
            active: true,
            replaces: None,
            status: status.into(),
            waits_for: None,
            quarantine: None,
            message: None,
            since: None,
            waiting: None,
            text: text.into(),
            partial: status != "done",
            steps: Vec::new(),
            usage: UsageView { input_tokens: 0, output_tokens: 0, cached_tokens: 0, cost_usd: None },
            error: None,
            created_at: String::new(),
            ended_at: None,
        }
    }

    #[test]
    fn a_message_shows_its_text_and_then_its_calls() {
        let call =
            ToolCallView { id: "c".into(), name: "sh".into(), arguments: r#"{"args":["-c","date"]}"#.into() };
        let block = block(&message("assistant", "let me\n\nsee", vec![call]), &plain(), TOOL_LINES_SHOWN);
        assert_eq!(block, "assistant  2025-03-01T00:00:00.000Z\n  let me\n\n  see\n  ⚙ sh -c date\n");
    }

    #[test]
    fn a_users_message_tells_the_number_and_the_id_of_its_turn() {
        let block = block(&message("user", "hello", Vec::new()), &plain(), TOOL_LINES_SHOWN);
        assert_eq!(block, "user  2025-03-01T00:00:00.000Z  turn 1 (trn_1)\n  hello\n");
    }

    #[test]
    fn a_long_tool_output_is_cut_and_says_so() {
        let block = block(&message("tool", &"x\n".repeat(25), Vec::new()), &plain(), TOOL_LINES_SHOWN);
        assert_eq!(block.lines().count(), 22);
        assert!(block.ends_with("  … 5 more lines (`--full` shows them)\n"));
        let whole = super::block(&message("tool", &"x\n".repeat(25), Vec::new()), &plain(), usize::MAX);
        assert_eq!(whole.lines().count(), 26);
    }

    #[test]
    fn a_turn_that_broke_off_shows_what_there_is_and_how_it_ended() {
        let broken = turn("trn_1", "interrupted", "half an ans");
        let text = ending(&broken, std::slice::from_ref(&broken)).unwrap();
        assert_eq!(text, "  (what there is of the answer)\n  half an ans\ninterrupted\n");
        let done = turn("trn_1", "done", "whole");
        assert_eq!(ending(&done, std::slice::from_ref(&done)), None);
    }

    fn work(turn: &str) -> QuarantineView {
        QuarantineView {
            id: "wrk_1".into(),
            kind: "model_call".into(),
            status: "quarantined".into(),
            agent: Some("agt_1".into()),
            turn: Some(turn.into()),
            detail: None,
            deaths: 3,
            since: String::new(),
        }
    }

    #[test]
    fn a_turn_that_waits_for_its_provider_says_why_and_until_when() {
        let wait = TurnWaitView {
            reason: "provider".into(),
            provider: Some("work".into()),
            code: "model.status".into(),
            message: "status 503".into(),
            hint: None,
            attempt: 3,
            since: "2026-01-01T00:00:00.000Z".into(),
            next_at: Some("2026-01-01T00:00:04.000Z".into()),
            until: Some("2026-01-01T00:10:00.000Z".into()),
        };
        let turn = TurnView { waiting: Some(wait), ..turn("trn_1", "waiting", "") };
        let shown = "waiting for `work`: status 503; next try at 2026-01-01T00:00:04.000Z\n";
        assert_eq!(ending(&turn, &[]).as_deref(), Some(shown));
    }

    #[test]
    fn a_turn_in_quarantine_and_one_behind_it_say_what_they_wait_for() {
        let mut turn = turn("trn_1", "waiting", "");
        turn.quarantine = Some(work("trn_1"));
        assert_eq!(ending(&turn, &[]).unwrap(), "waiting: in quarantine (wrk_1)\n");
        turn.quarantine = Some(work("trn_0"));
        assert_eq!(ending(&turn, &[]).unwrap(), "waiting: behind trn_0, which is in quarantine (wrk_1)\n");
    }

    #[test]
    fn branches_are_reported_at_the_turn_that_has_them() {
        let (path, mut other) = (turn("trn_2", "done", "new"), turn("trn_1", "done", "old"));
        other.active = false;
        let both = [other.clone(), path.clone()];
        assert_eq!(ending(&path, &both).unwrap(), "  turn 2 has other branches: trn_1\n");
        assert_eq!(ending(&other, &both).unwrap(), "  turn 2 (trn_1) is not on the path\n");
    }

    #[test]
    fn the_head_says_where_a_fork_came_from_and_what_waits() {
        let session = SessionView {
            id: "f".into(),
            agent: "agt_1".into(),
            agent_name: "coder".into(),
            agent_removed: true,
            sender: None,
            title: None,
            turns: 2,
            running: Some("trn_8".into()),
            queued: vec!["trn_9".into()],
            forked_from: Some(ForkView { session: "s".into(), turn: 1 }),
            last_active: String::new(),
            created_at: String::new(),
            context_state: None,
            context_used_pct: None,
            generation: 1,
            epoch: 1,
            usage: None,
            quarantine: vec![work("trn_8")],
        };
        let head = head(&SessionDetail { session, inactive_turns: 3, open_jobs: 0 }, &plain());
        assert_eq!(
            head,
            "f  coder (removed)  2 turns\n  forked from s at turn 1\n  running: trn_8\n  queued: trn_9\n  \
             in quarantine: wrk_1: the model call of trn_8 killed the daemon 3 times in a row \
             (`lodge quarantine retry wrk_1` tries again, `lodge quarantine drop wrk_1` drops it)\n  \
             3 turns are on other branches\n"
        );
    }
}
