//! `info`, `reap`, `reload` and `shutdown`.

use std::time::{Duration, Instant};

use lodge_proto::{
    Empty, GetInfo, Info, Overridden, ReapParams, ReapSandboxes, Reaped, ReloadParams, ReloadSettings,
    Reloaded, SettingChange, ShutDownDaemon, ShutdownParams, StorageView,
};
use serde_json::Value;
use tokio::time::timeout;

use super::{CommandContext, request_id};
use crate::connect::{Autostart, DaemonAddress};
use crate::failure::{CommandExit, CommandFailure};
use crate::follow::DaemonClient;
use crate::render::{or_dash, pairs, table};
use crate::words::put;

/// How long a daemon may take to end before we stop watching it.
const END_MAX: Duration = Duration::from_secs(30);

pub(super) async fn info(context: &CommandContext) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let info = daemon.call::<GetInfo>(Empty {}).await?;
    if context.words.json { context.words.json(&info) } else { put(&info_text(&info)) }
}

fn info_text(info: &Info) -> String {
    let agents = &info.agents;
    let counts = format!("{} ({} running, {} working)", agents.total, agents.running, agents.working);
    let mut rows = vec![
        ("version", info.version.clone()),
        ("pid", info.pid.to_string()),
        ("started", info.started_at.clone()),
        ("epoch", info.epoch.to_string()),
        ("executor", info.executor.clone()),
        ("socket", info.socket.clone()),
        ("http", http_text(info)),
        ("state", info.data_dir.clone()),
        ("config file", or_dash(info.config_file.as_deref())),
        ("agents", counts),
        ("storage", storage_text(&info.storage)),
    ];
    rows.extend(info.isolation.iter().map(|layer| {
        let why = layer.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        (
            "isolation",
            format!("{} {}{why}", layer.name, if layer.in_force { "holds" } else { "does not hold" }),
        )
    }));
    rows.extend(info.warnings.iter().map(|warning| ("warning", warning.clone())));
    let config: Vec<Vec<String>> = info
        .config
        .iter()
        .map(|(key, setting)| vec![key.clone(), value_text(&setting.value), setting.source.clone()])
        .collect();
    let mut text = pairs(&rows);
    if !config.is_empty() {
        text.push('\n');
        text.push_str(&table(&["SETTING", "VALUE", "SOURCE"], &config));
    }
    text
}

fn http_text(info: &Info) -> String {
    let Info { http, http_addr, .. } = info;
    match (&http.addr, http.reason.as_deref()) {
        (Some(addr), Some(reason)) if http.state == "taken" => format!("{addr} is taken: {reason}"),
        (Some(addr), Some(reason)) => format!("{addr} is not served: {reason}"),
        (Some(_) | None, _) => or_dash(http.url.as_deref().or(http_addr.as_deref())),
    }
}

fn storage_text(storage: &StorageView) -> String {
    const MIB: u64 = 1 << 20;
    let (free, reserve) = (storage.free_bytes / MIB, storage.reserve_bytes / MIB);
    let since = storage.since.as_ref().map(|since| format!(" since {since}")).unwrap_or_default();
    format!("{}{since} ({free} MiB free, {reserve} MiB kept back)", storage.state)
}

fn value_text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

pub(super) async fn reap(context: &CommandContext) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let reaped = daemon.call::<ReapSandboxes>(ReapParams { request_id: Some(request_id()?) }).await?;
    if context.words.json {
        return context.words.json(&reaped);
    }
    if context.words.quiet {
        return put(&reaped.pruned.iter().map(|pruned| format!("{}\n", pruned.sandbox)).collect::<String>());
    }
    let rows: Vec<Vec<String>> = reaped
        .pruned
        .iter()
        .map(|pruned| vec![pruned.sandbox.clone(), or_dash(pruned.agent.as_deref()), pruned.why.clone()])
        .collect();
    if !rows.is_empty() {
        context.put_table(&["PRUNED", "AGENT", "WHY"], &rows)?;
    }
    let Reaped { probed, alive, kept, pruned, dead, .. } = &reaped;
    let counts = [(*kept, "dead and still in use"), (pruned.len() as u64, "pruned")];
    let mut told = format!("{alive} alive");
    for (count, what) in counts.iter().filter(|(count, _)| *count > 0) {
        told.push_str(&format!(", {count} {what}"));
    }
    let plural = if *probed == 1 { "sandbox" } else { "sandboxes" };
    context.words.print_note(&format!("{probed} {plural}: {told}"));
    for agent in dead {
        context
            .words
            .print_note(&format!("{agent} was found dead; its revival policy decides what comes next"));
    }
    for failed in &reaped.failed {
        context.words.print_note(&format!("{} could not be cleaned up: {}", failed.sandbox, failed.detail));
    }
    Ok(())
}

pub(super) async fn reload(context: &CommandContext) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let reloaded = daemon.call::<ReloadSettings>(ReloadParams { request_id: Some(request_id()?) }).await?;
    if context.words.json {
        return context.words.json(&reloaded);
    }
    let Reloaded { file, changed, needs_restart, overridden } = &reloaded;
    let row = |change: &SettingChange, when: &str| {
        vec![change.key.clone(), value_text(&change.from), value_text(&change.to), when.to_owned()]
    };
    let mut rows: Vec<Vec<String>> = changed.iter().map(|change| row(change, "now")).collect();
    rows.extend(needs_restart.iter().map(|change| row(change, "next start of the daemon")));
    if !rows.is_empty() {
        context.put_table(&["SETTING", "FROM", "TO", "IN EFFECT"], &rows)?;
    }
    for Overridden { key, by, value, file } in overridden {
        let place = if by == "flag" { "a flag" } else { "the environment" };
        context.words.print_note(&format!(
            "{key}: {} in the file is overridden: {place} says {}",
            value_text(file),
            value_text(value)
        ));
    }
    let file = file.as_deref().unwrap_or("no configuration file");
    context.words.print_note(&match changed.len() {
        0 if !needs_restart.is_empty() => format!("{file}: nothing changed yet"),
        0 => format!("{file}: nothing changed"),
        1 => format!("{file}: 1 setting changed"),
        more => format!("{file}: {more} settings changed"),
    });
    Ok(())
}

pub(super) async fn shutdown(context: &CommandContext, agents: bool) -> Result<(), CommandFailure> {
    // A daemon is not started only to be shut down.
    let address = DaemonAddress { autostart: Autostart::Forbidden, ..context.address.clone() };
    let mut daemon = DaemonClient::open(&address, &context.words).await.map_err(|failure| match failure {
        CommandFailure::Told(report) if report.exit == CommandExit::NoDaemon => {
            CommandFailure::new(CommandExit::NoDaemon, report.what).because(report.because.join("\n"))
        }
        other => other,
    })?;
    let info = daemon.call::<GetInfo>(Empty {}).await?;
    let process = daemon.process(info.pid);
    let done = daemon.call_once::<ShutDownDaemon>(ShutdownParams { agents, request_id: None }).await?;
    let asked = Instant::now();
    let is_closed = timeout(END_MAX, daemon.wait_until_closed()).await.is_ok();
    // It finishes some things after it closed the connection; its directory may be removed when this command is done.
    let is_gone = match process {
        Some(process) => process.ended_within(END_MAX.saturating_sub(asked.elapsed())).await,
        None => is_closed,
    };
    if !is_gone {
        let failure =
            CommandFailure::refused(format!("the daemon is still there after {} s", END_MAX.as_secs()));
        return Err(failure.hint("see `lodge info`"));
    }
    if context.words.json {
        return context.words.json(&done);
    }
    context.words.print_note(if agents {
        "the daemon and its agents ended"
    } else {
        "the daemon ended; its agents keep running"
    });
    Ok(())
}
