//! `lineage ls`, `lineage show` and `lineage resolve`.

use std::io::Read;
use std::path::Path;

use lodge_proto::{
    GetLineage, LineageDetail, LineageListParams, LineageMessagesParams, LineageRef, LineageResolveParams,
    LineageSnapshot, LineageSnapshotParams, LineageView, ListLineageMessages, ListLineages, PAGE_MAX,
    ResolveLineage, SNAPSHOT_VERSION, SessionBoundary, Snapshot, SnapshotLineage, TokenUsage, TurnView,
    error_code,
};

use super::document::SessionDocument;
use super::{CommandContext, request_id};
use crate::args::{LineageCommand, LineageShowArgs, ResolveArgs};
use crate::failure::{CommandFailure, io_words};
use crate::follow::DaemonClient;
use crate::render::{ago, counted, next_step, now_s, one_line, or_dash, pairs, quarantine_step};
use crate::words::put;

/// The largest snapshot that is read from a file.
const FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// The most lineages that are listed one by one; for more there is a listing.
const WAITING_TOLD_MAX: usize = 5;

pub(super) async fn lineage(context: &CommandContext, command: LineageCommand) -> Result<(), CommandFailure> {
    match command {
        LineageCommand::Ls { agent, status } => list(context, agent, status).await,
        LineageCommand::Show(LineageShowArgs { file: Some(file), snapshot, .. }) => {
            show_file(context, &file, snapshot)
        }
        LineageCommand::Show(LineageShowArgs { lineage, snapshot, file: None }) => {
            let lineage = lineage.unwrap_or_default();
            if snapshot { show_snapshot(context, &lineage).await } else { show(context, lineage).await }
        }
        LineageCommand::Resolve(args) => resolve(context, args).await,
    }
}

async fn list(
    context: &CommandContext,
    agent: Option<String>,
    status: Option<String>,
) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let lineages = all(&mut daemon, agent, status).await?;
    if context.words.json {
        return context.words.json(&lineages);
    }
    if context.words.quiet {
        return put(&lineages.iter().map(|lineage| format!("{}\n", lineage.id)).collect::<String>());
    }
    let rows: Vec<Vec<String>> = lineages.iter().map(row).collect();
    context.put_table(&["LINEAGE", "AGENT", "STATUS", "POLICY", "REVIVALS", "LAST TURN"], &rows)?;
    let waiting = lineages.into_iter().filter(|lineage| lineage.status == ASK_PENDING).collect::<Vec<_>>();
    print_waiting(context, &waiting);
    Ok(())
}

fn row(lineage: &LineageView) -> Vec<String> {
    vec![
        lineage.id.clone(),
        lineage.agent_name.clone(),
        status_text(lineage),
        lineage.policy.clone(),
        lineage.revivals.to_string(),
        or_dash(lineage.last_turn.as_deref()),
    ]
}

fn status_text(lineage: &LineageView) -> String {
    match &lineage.ended_reason {
        Some(reason) => format!("{} ({reason})", lineage.status),
        None => lineage.status.clone(),
    }
}

const ASK_PENDING: &str = "ask_pending";
const ORPHANED: &str = "orphaned";

async fn all(
    daemon: &mut DaemonClient<'_>,
    agent: Option<String>,
    status: Option<String>,
) -> Result<Vec<LineageView>, CommandFailure> {
    let mut lineages = Vec::new();
    let mut after = None;
    loop {
        let params =
            LineageListParams { agent: agent.clone(), status: status.clone(), after, limit: Some(PAGE_MAX) };
        let page = daemon.call::<ListLineages>(params).await?;
        lineages.extend(page.lineages);
        after = page.next;
        if after.is_none() {
            return Ok(lineages);
        }
    }
}

/// Every lineage that waits for a decision.
pub(super) async fn waiting(daemon: &mut DaemonClient<'_>) -> Result<Vec<LineageView>, CommandFailure> {
    list_visible(daemon, ASK_PENDING).await
}

/// Every lineage whose process died and is about to be replaced.
pub(super) async fn orphaned(daemon: &mut DaemonClient<'_>) -> Result<Vec<LineageView>, CommandFailure> {
    list_visible(daemon, ORPHANED).await
}

/// The lineages with a status that the caller may see: an agent's token sees its agent but no lineages.
async fn list_visible(
    daemon: &mut DaemonClient<'_>,
    status: &str,
) -> Result<Vec<LineageView>, CommandFailure> {
    match all(daemon, None, Some(status.to_owned())).await {
        Err(failure) if failure.is(error_code!("auth.forbidden")) => Ok(Vec::new()),
        lineages => lineages,
    }
}

/// What a listing of agents says of a lineage whose process died.
pub(super) fn standing(lineage: &LineageView) -> String {
    if lineage.status == ASK_PENDING {
        return "waits for your decision".to_owned();
    }
    let died = lineage.detail.as_deref().map_or_else(|| "died".to_owned(), one_line);
    match lineage.deaths {
        0 | 1 => format!("{died}, to be revived"),
        deaths => format!("{died} {deaths} times in a row, to be revived"),
    }
}

/// Says which lineages wait for a decision, and how it is made.
pub(super) fn print_waiting(context: &CommandContext, waiting: &[LineageView]) {
    if waiting.is_empty() {
        return;
    }
    let count = match waiting.len() {
        1 => "1 lineage waits".to_owned(),
        count => format!("{count} lineages wait"),
    };
    let told: Vec<String> = waiting.iter().take(WAITING_TOLD_MAX).map(waiting_text).collect();
    let more = if waiting.len() > WAITING_TOLD_MAX { ", …" } else { "" };
    let id = if let [only] = waiting { only.id.as_str() } else { "LINEAGE" };
    context.words.print_note(&format!("{count} for your decision: {}{more}", told.join(", ")));
    context.words.print_note(&format!("hint: {}", next_step(id)));
}

fn waiting_text(lineage: &LineageView) -> String {
    match &lineage.detail {
        Some(detail) => format!("{} ({})", lineage.agent_name, one_line(detail)),
        None => lineage.agent_name.clone(),
    }
}

async fn show(context: &CommandContext, lineage: String) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let detail = daemon.call::<GetLineage>(LineageRef { lineage }).await?;
    if context.words.json {
        return context.words.json(&detail);
    }
    put(&pairs(&rows_of(&detail, now_s())))?;
    if detail.lineage.status == ASK_PENDING {
        print_waiting(context, std::slice::from_ref(&detail.lineage));
    }
    Ok(())
}

fn rows_of(detail: &LineageDetail, now: i64) -> Vec<(&'static str, String)> {
    let view = &detail.lineage;
    let mut rows = vec![
        ("lineage", view.id.clone()),
        ("agent", format!("{} {}", view.agent_name, view.agent)),
        ("status", status_text(view)),
        ("policy", view.policy.clone()),
        ("revivals", view.revivals.to_string()),
    ];
    if view.deaths > 0 {
        rows.push(("deaths", format!("{} in a row", view.deaths)));
    }
    rows.extend(view.detail.clone().map(|detail| ("last death", detail)));
    rows.push(("last turn", or_dash(view.last_turn.as_deref())));
    rows.push(("created", view.created_at.clone()));
    rows.extend(view.ended_at.clone().map(|at| ("ended", at)));
    rows.extend(detail.since.as_ref().map(|at| ("waits since", format!("{at} ({})", ago(at, now)))));
    rows.extend(detail.open_turns.iter().map(|turn| ("open turn", open_text(turn, now))));
    rows
}

/// A turn that is not over, and what of it has no outcome yet.
fn open_text(turn: &TurnView, now: i64) -> String {
    let pending = turn.steps.iter().filter(|step| step.status == "intent");
    let pending: Vec<String> = pending
        .map(|step| format!("{} {}, begun {}", step.kind, step.name, ago(&step.started_at, now)))
        .collect();
    let pending =
        if pending.is_empty() { String::new() } else { format!("; no outcome yet: {}", pending.join(", ")) };
    let steps = counted(turn.steps.len(), "step");
    let held_up = match &turn.quarantine {
        Some(work) if work.turn.as_deref() == Some(turn.id.as_str()) => {
            format!("; in quarantine: {}", quarantine_step(&work.id))
        }
        Some(work) => format!("; behind {}, which is in quarantine", or_dash(work.turn.as_deref())),
        None => String::new(),
    };
    format!("{} ({}) in session {}: {steps}{pending}{held_up}", turn.id, turn.status, turn.session)
}

async fn resolve(context: &CommandContext, args: ResolveArgs) -> Result<(), CommandFailure> {
    let decision = if args.revive { "revive" } else { "reap" };
    let mut daemon = context.daemon().await?;
    let params = LineageResolveParams {
        lineage: args.lineage,
        decision: decision.to_owned(),
        request_id: Some(request_id()?),
    };
    let view = daemon.call::<ResolveLineage>(params).await?;
    if context.words.json {
        return context.words.json(&view);
    }
    let name = &view.agent_name;
    context.words.print_note(&if args.revive {
        format!("{name} continues its work")
    } else {
        format!("the open work of {name} is dropped; `lodge start {name}` starts new work")
    });
    put(&format!("{}\n", view.id))
}

/// Streams the document: only one page of messages is in memory at a time.
async fn show_snapshot(context: &CommandContext, lineage: &str) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let mut sessions: Vec<SessionBoundary> = Vec::new();
    let mut first = page_of(&mut daemon, lineage, None).await?;
    // By id from here on: an agent's lineage may become another one.
    let lineage = first.head.lineage_id.clone();
    sessions.append(&mut first.sessions);
    let mut after = first.next;
    while after.is_some() {
        let page = page_of(&mut daemon, &lineage, after).await?;
        sessions.extend(page.sessions);
        after = page.next;
    }
    let mut document = SessionDocument::begin(&first.head)?;
    let mut usage = TokenUsage::default();
    for session in &sessions {
        document.session(session)?;
        let mut after = None;
        loop {
            let params = LineageMessagesParams {
                lineage: lineage.clone(),
                session: session.id.clone(),
                turns: Some(session.turns),
                after,
                limit: Some(PAGE_MAX),
            };
            let page = daemon.call::<ListLineageMessages>(params).await?;
            document.messages(&page.messages)?;
            usage += page.usage;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        document.end_session()?;
    }
    document.end(usage)
}

async fn page_of(
    daemon: &mut DaemonClient<'_>,
    lineage: &str,
    after: Option<String>,
) -> Result<LineageSnapshot, CommandFailure> {
    let params = LineageSnapshotParams { lineage: lineage.to_owned(), after, limit: Some(PAGE_MAX) };
    daemon.call::<SnapshotLineage>(params).await
}

fn show_file(context: &CommandContext, file: &Path, whole: bool) -> Result<(), CommandFailure> {
    let bytes = read_file(file)?;
    let snapshot = Snapshot::read(&bytes).map_err(|error| {
        let failure = CommandFailure::refused(error.to_string()).hint(error.hint());
        match std::error::Error::source(&error) {
            Some(cause) => failure.because(cause),
            None => failure,
        }
    })?;
    if whole || context.words.json {
        return SessionDocument::print_snapshot(&snapshot);
    }
    let Snapshot { head, sessions, usage } = &snapshot;
    let tools: Vec<&str> = head.config.tools.iter().map(|tool| tool.name.as_str()).collect();
    let llm: Vec<String> = head.llm.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let mut rows = vec![
        ("lineage", head.lineage_id.clone()),
        ("version", SNAPSHOT_VERSION.to_string()),
        ("anchor", head.anchor_id.clone()),
        ("written", head.written_at.clone()),
        ("model", head.model.clone()),
        ("parameters", or_dash(Some(&llm.join(" ")))),
        ("policy", head.config.limits.revival_policy.clone()),
        ("tools", or_dash(Some(&tools.join(" ")))),
        ("usage", format!("{} tokens in, {} tokens out", usage.input_tokens, usage.output_tokens)),
    ];
    rows.extend(sessions.iter().map(|session| {
        let turns = counted(session.turns as usize, "turn");
        ("session", format!("{}: {turns}, {}", session.id, counted(session.messages.len(), "message")))
    }));
    put(&pairs(&rows))
}

fn read_file(file: &Path) -> Result<Vec<u8>, CommandFailure> {
    let could_not = |because: String| {
        CommandFailure::refused(format!("could not read `{}`", file.display())).because(because)
    };
    let opened = std::fs::File::open(file).map_err(|cause| could_not(io_words(&cause)))?;
    let mut bytes = Vec::new();
    let read = opened.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|cause| could_not(io_words(&cause)))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(could_not(format!("it has more than {} MiB", FILE_BYTES_MAX >> 20)));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pause_before_a_revival_is_reported_with_the_death_before_it() {
        let lineage = |status: &str, deaths: u32| -> LineageView {
            let view = json!({"id": "lin_1", "agent": "agt_1", "agent_name": "ada", "status": status, "ended_reason": null,
                "policy": "revive", "revivals": 2, "deaths": deaths, "detail": "its sandbox died", "last_turn": null,
                "created_at": "", "ended_at": null});
            serde_json::from_value(view).unwrap()
        };
        assert_eq!(standing(&lineage("orphaned", 1)), "its sandbox died, to be revived");
        assert_eq!(standing(&lineage("orphaned", 3)), "its sandbox died 3 times in a row, to be revived");
        assert_eq!(standing(&lineage("ask_pending", 3)), "waits for your decision");
    }
}
