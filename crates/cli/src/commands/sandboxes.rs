//! `sandbox`: sandboxes that belong to no agent.

use lodge_proto::{
    CreateSandbox, GetSandbox, ListSandboxes, PAGE_MAX, RemoveSandbox, ResumeSandbox, SandboxChangeParams,
    SandboxCreateParams, SandboxListParams, SandboxRef, SandboxView, StopSandbox,
};

use super::results::ResultList;
use super::{CommandContext, events, map, request_id, run};
use crate::args::{EventsArgs, SandboxCommand, SandboxCreateArgs, SandboxEventsArgs, SandboxListArgs};
use crate::failure::{CommandExit, CommandFailure};
use crate::follow::{DaemonClient, FollowScope, FollowedItem};
use crate::render::{self, now_s};
use crate::words::put;

/// What is done with each of several sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SandboxChange {
    Stop,
    Resume,
    Remove,
}

impl SandboxChange {
    /// Whether the change is over, and the sandbox is as it will stay.
    fn is_over(self, view: &SandboxView) -> bool {
        match self {
            SandboxChange::Stop => !view.stopping && view.status != "pending",
            SandboxChange::Resume => view.status != "pending",
            SandboxChange::Remove => view.status == "deleted" || view.error_code.is_some(),
        }
    }

    /// The status that was wanted.
    fn wanted(self) -> &'static str {
        match self {
            SandboxChange::Stop => "stopped",
            SandboxChange::Resume => "ready",
            SandboxChange::Remove => "deleted",
        }
    }
}

pub(super) async fn sandbox(context: &CommandContext, command: SandboxCommand) -> Result<(), CommandFailure> {
    match command {
        SandboxCommand::Create(args) => create(context, args).await,
        SandboxCommand::Ls(args) => list(context, args).await,
        SandboxCommand::Get(refs) => get(context, refs.sandboxes).await,
        SandboxCommand::Stop(refs) => change_each(context, refs.sandboxes, SandboxChange::Stop).await,
        SandboxCommand::Resume(refs) => change_each(context, refs.sandboxes, SandboxChange::Resume).await,
        SandboxCommand::Rm(refs) => change_each(context, refs.sandboxes, SandboxChange::Remove).await,
        SandboxCommand::Events(args) => {
            let SandboxEventsArgs { sandbox, follow, newest, since, kind } = args;
            let sandbox = Some(sandbox);
            events::events(context, EventsArgs { follow, newest, since, agent: None, sandbox, kind }).await
        }
    }
}

async fn create(context: &CommandContext, args: SandboxCreateArgs) -> Result<(), CommandFailure> {
    let mounts: Result<Vec<_>, _> = args.mounts.iter().map(|mount| run::mount_of(context, mount)).collect();
    let params = SandboxCreateParams {
        id: args.id,
        image: args.image,
        bins: map(args.bins),
        shell: args.shell,
        mounts: mounts?,
        env: map(args.env),
        labels: map(args.label),
        network: args.network,
        limits: map(args.limit),
        request_id: Some(request_id()?),
    };
    let mut daemon = context.daemon().await?;
    let created = daemon.call::<CreateSandbox>(params).await?;
    let shown = if args.detach {
        created
    } else {
        let note = format!("detached; the sandbox is still being started: lodge sandbox get {}", created.id);
        context.set_interrupt_note(note);
        context.words.progress(&format!("{}: starts", created.id));
        let ready = until_over(&mut daemon, &created.id, SandboxChange::Resume).await?;
        failed_or(ready, SandboxChange::Resume)?
    };
    if context.words.json { context.words.json(&shown) } else { put(&format!("{}\n", shown.id)) }
}

/// Waits until a change of a sandbox is over. The daemon may come and go meanwhile.
async fn until_over(
    daemon: &mut DaemonClient<'_>,
    id: &str,
    change: SandboxChange,
) -> Result<SandboxView, CommandFailure> {
    let state = daemon.watch(FollowScope::Sandbox(id.to_owned()), None).await?;
    if let Some(view) = state.sandboxes.into_iter().find(|view| change.is_over(view)) {
        return Ok(view);
    }
    loop {
        let FollowedItem::Event(event) = daemon.next().await? else { continue };
        if !event.kind.starts_with("sandbox.") {
            continue;
        }
        let view = one(daemon, id).await?;
        if change.is_over(&view) {
            return Ok(view);
        }
    }
}

fn failed_or(view: SandboxView, change: SandboxChange) -> Result<SandboxView, CommandFailure> {
    if view.status == change.wanted() {
        return Ok(view);
    }
    let failure = CommandFailure::refused(format!("the sandbox {} is {}", view.id, view.status));
    let failure = match &view.error {
        Some(why) => failure.because(why),
        None => failure,
    };
    Err(failure.hint(match change {
        SandboxChange::Remove => format!("`lodge sandbox rm {}` tries again", view.id),
        SandboxChange::Stop | SandboxChange::Resume => {
            format!(
                "`lodge sandbox get {}` shows its state, `lodge sandbox resume {0}` starts it again",
                view.id
            )
        }
    }))
}

/// A sandbox by its id or a beginning of it.
async fn one(daemon: &mut DaemonClient<'_>, given: &str) -> Result<SandboxView, CommandFailure> {
    daemon.call_without_start::<GetSandbox>(SandboxRef { sandbox: given.to_owned() }).await
}

async fn change_each(
    context: &CommandContext,
    sandboxes: Vec<String>,
    change: SandboxChange,
) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let mut results = ResultList::new(&context.words, sandboxes.len());
    for given in sandboxes {
        match change_one(&mut daemon, given, change).await {
            Ok(view) => results.done(&view, || format!("{}\n", view.id))?,
            Err(failure) if failure.exit() == CommandExit::NoDaemon => return Err(failure),
            Err(failure) => results.failed(failure)?,
        }
    }
    results.finish()
}

async fn change_one(
    daemon: &mut DaemonClient<'_>,
    sandbox: String,
    change: SandboxChange,
) -> Result<SandboxView, CommandFailure> {
    let params = SandboxChangeParams { sandbox, request_id: Some(request_id()?) };
    let changed = match change {
        SandboxChange::Stop => daemon.call::<StopSandbox>(params).await?,
        SandboxChange::Resume => daemon.call::<ResumeSandbox>(params).await?,
        SandboxChange::Remove => daemon.call::<RemoveSandbox>(params).await?,
    };
    let over = until_over(daemon, &changed.id, change).await?;
    failed_or(over, change)
}

async fn list(context: &CommandContext, args: SandboxListArgs) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let params = SandboxListParams {
        all: args.all,
        status: args.status,
        labels: map(args.label),
        ..SandboxListParams::default()
    };
    let wanted = args.limit.map_or(usize::MAX, |limit| limit as usize);
    let mut all: Vec<SandboxView> = Vec::new();
    let mut before = None;
    while all.len() < wanted {
        let missing = u32::try_from(wanted - all.len()).unwrap_or(u32::MAX);
        let params = SandboxListParams { before, limit: Some(missing.min(PAGE_MAX)), ..params.clone() };
        let page = daemon.call_without_start::<ListSandboxes>(params).await?;
        all.extend(page.sandboxes);
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    if context.words.json {
        return context.words.json(&all);
    }
    if context.words.quiet {
        return put(&all.iter().map(|view| format!("{}\n", view.id)).collect::<String>());
    }
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    context.put_table(&["ID", "STATUS", "BINS", "NETWORK", "CREATED", "LABELS"], &rows)
}

fn row(view: &SandboxView) -> Vec<String> {
    let bins: Vec<&str> = view.bins.iter().map(|bin| bin.name.as_str()).collect();
    vec![
        view.id.clone(),
        status(view),
        render::or_dash(Some(bins.join(" ").as_str()).filter(|bins| !bins.is_empty())),
        view.network.mode.clone(),
        render::ago(&view.created_at, now_s()),
        labels(view),
    ]
}

fn status(view: &SandboxView) -> String {
    if view.stopping { "stopping".to_owned() } else { view.status.clone() }
}

fn labels(view: &SandboxView) -> String {
    let labels: Vec<String> = view.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    labels.join(" ")
}

async fn get(context: &CommandContext, sandboxes: Vec<String>) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let mut results = ResultList::new(&context.words, sandboxes.len());
    for given in sandboxes {
        match one(&mut daemon, &given).await {
            Ok(view) => results.done(&view, || detail(&view))?,
            Err(failure) => results.failed(failure)?,
        }
    }
    results.finish()
}

/// Everything about it.
fn detail(view: &SandboxView) -> String {
    let joined = |lines: Vec<String>| lines.join(", ");
    let missing: Vec<String> = view
        .isolation
        .iter()
        .filter(|layer| !layer.in_force)
        .map(|layer| format!("{}: {}", layer.name, layer.why.clone().unwrap_or_default()))
        .collect();
    let in_force = view.isolation.iter().filter(|layer| layer.in_force).count();
    let isolation = match (view.isolation.len(), in_force) {
        (0, _) => String::new(),
        (all, held) if all == held => format!("{all} layers in force"),
        (all, held) => format!("{held} of {all} layers in force; missing: {}", missing.join("; ")),
    };
    let limits = view.limits.iter().filter_map(|limit| Some(format!("{} {}", limit.name, limit.limit?)));
    let mut rows = vec![
        ("id", view.id.clone()),
        ("status", status(view)),
        ("why", view.error.clone().unwrap_or_default()),
        ("executor", view.executor.clone()),
        ("created", view.created_at.clone()),
        ("ready", view.ready_at.clone().unwrap_or_default()),
        ("deleted", view.deleted_at.clone().unwrap_or_default()),
        ("bins", joined(view.bins.iter().map(|bin| format!("{} ({})", bin.name, bin.source)).collect())),
        (
            "mounts",
            joined(
                view.mounts
                    .iter()
                    .map(|mount| {
                        let mode = if mount.read_only { "ro" } else { "rw" };
                        format!("{}:{}:{mode}", mount.host, mount.target)
                    })
                    .collect(),
            ),
        ),
        ("env", joined(view.env.iter().map(|(key, value)| format!("{key}={value}")).collect())),
        ("network", format!("{} {}", view.network.mode, view.network.allow.join(" ")).trim_end().to_owned()),
        ("limits", limits.collect::<Vec<_>>().join(", ")),
        ("isolation", isolation),
        ("labels", labels(view)),
    ];
    rows.retain(|(_, value)| !value.is_empty());
    render::pairs(&rows)
}
