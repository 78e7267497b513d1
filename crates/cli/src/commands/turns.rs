//! `turn`: which command is which, which turn is meant, and `ls`, `wait`, `attach` and `interrupt`.

use lodge_proto::{
    GetSession, GetTurn, InterruptTurn, ListTurns, PAGE_MAX, RetryTurn, SessionRef, TurnInterruptParams,
    TurnListParams, TurnRef, TurnRetryParams, TurnView,
};

use super::prompt::{print_detached_turn, rejoin_turn, show_turn};
use super::{CommandContext, request_id, turns_show};
use crate::answer::{PromptedAgent, ShownSteps};
use crate::args::{TurnCommand, TurnListArgs, TurnRetryArgs, TurnSelectArgs};
use crate::failure::CommandFailure;
use crate::follow::{DaemonClient, FollowScope};
use crate::render::{ago, counted, now_s, one_line, or_dash};
use crate::words::put;

/// The statuses of turns that have not ended, in the order in which they are looked for.
const OPEN: [&str; 3] = ["running", "waiting", "queued"];

pub(super) async fn turn(context: &CommandContext, command: TurnCommand) -> Result<(), CommandFailure> {
    match command {
        TurnCommand::Ls(args) => list(context, args).await,
        TurnCommand::Show(args) => show(context, args).await,
        TurnCommand::Wait(args) => {
            follow(context, args, TurnPreference::RunningOrNewest, ShownSteps::Steps).await
        }
        TurnCommand::Attach(args) => follow(context, args, TurnPreference::Running, ShownSteps::All).await,
        TurnCommand::Interrupt(args) => interrupt(context, args).await,
        TurnCommand::Retry(args) => retry(context, args).await,
    }
}

/// Which turn of a session or an agent is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnPreference {
    Running,
    RunningOrNewest,
    Newest,
}

async fn list(context: &CommandContext, args: TurnListArgs) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let wanted = args.limit as usize;
    let mut params = TurnListParams {
        session: args.session.unwrap_or_default(),
        agent: args.agent,
        status: args.status,
        newest_first: true,
        all: args.all,
        ..TurnListParams::default()
    };
    let mut turns: Vec<TurnView> = Vec::new();
    loop {
        let missing = u32::try_from(wanted - turns.len()).unwrap_or(u32::MAX);
        params.limit = Some(missing.min(PAGE_MAX));
        let page = daemon.call::<ListTurns>(params.clone()).await?;
        turns.extend(page.turns);
        params.after = page.next;
        if params.after.is_none() || turns.len() >= wanted {
            break;
        }
    }
    if context.words.json {
        return context.words.json(&turns);
    }
    if context.words.quiet {
        return put(&turns.iter().map(|turn| format!("{}\n", turn.id)).collect::<String>());
    }
    let now = now_s();
    let row = |turn: &TurnView| {
        let place = if turn.active { "" } else { " (off the path)" };
        vec![
            turn.id.clone(),
            turn.session.clone(),
            format!("{}{place}", turn.status),
            turn.steps.len().to_string(),
            ago(&turn.created_at, now),
            or_dash(turn.message.as_deref().map(one_line).as_deref()),
        ]
    };
    let rows: Vec<Vec<String>> = turns.iter().map(row).collect();
    context.put_table(&["ID", "SESSION", "STATUS", "STEPS", "SENT", "MESSAGE"], &rows)?;
    if params.after.is_some() {
        context.words.print_dimmed_note("there are more; `-n` shows more");
    }
    Ok(())
}

async fn show(context: &CommandContext, args: TurnSelectArgs) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let turn = select(&mut daemon, args, TurnPreference::RunningOrNewest).await?;
    if context.words.json {
        return context.words.json(&turn);
    }
    let session = daemon.call::<GetSession>(SessionRef { session: turn.session.clone() }).await?.session;
    put(&turns_show::text(&turn, &session, &context.words))
}

/// `wait` and `attach`.
async fn follow(
    context: &CommandContext,
    args: TurnSelectArgs,
    wanted: TurnPreference,
    show: ShownSteps,
) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let turn = select(&mut daemon, args, wanted).await?;
    let agent = agent_of(&mut daemon, &turn).await?;
    rejoin_turn(context, &mut daemon, &agent, turn, show).await
}

async fn interrupt(context: &CommandContext, args: TurnSelectArgs) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let turn = select(&mut daemon, args, TurnPreference::Running).await?;
    let params = TurnInterruptParams { turn: turn.id, request_id: Some(request_id()?) };
    let turn = daemon.call::<InterruptTurn>(params).await?;
    if context.words.json {
        return context.words.json(&turn);
    }
    put(&format!("{}\n", turn.id))?;
    context.words.print_note("interrupted; what it did so far is kept");
    Ok(())
}

async fn retry(context: &CommandContext, args: TurnRetryArgs) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let old = select(&mut daemon, args.select, TurnPreference::Newest).await?;
    let agent = agent_of(&mut daemon, &old).await?;
    let params = TurnRetryParams { turn: old.id, request_id: Some(request_id()?) };
    if args.detach {
        let turn = daemon.call::<RetryTurn>(params).await?;
        return print_detached_turn(context, &turn);
    }
    // Attached before asking, so that the turn's first event cannot be missed.
    daemon.watch(FollowScope::Agent(agent.id.clone()), None).await?;
    let turn = daemon.call::<RetryTurn>(params).await?;
    context.words.print_dimmed_note(&taken_over(&turn));
    show_turn(context, &mut daemon, &agent, turn, ShownSteps::All).await
}

/// What a continued turn begins with.
pub(crate) fn taken_over(turn: &TurnView) -> String {
    let finished = |kind: &str| turn.steps.iter().filter(|step| step.kind == kind).count();
    let (answers, calls) = (finished("model"), finished("tool"));
    let id = &turn.id;
    match (answers, calls) {
        (0, _) => format!("{id} starts again: no step was finished"),
        (_, 0) => format!("{id} continues after {}", counted(answers, "model call")),
        (_, _) => format!(
            "{id} continues after {} and {}, which are not repeated",
            counted(answers, "model call"),
            counted(calls, "tool call")
        ),
    }
}

/// The agent of a turn, which may be removed.
pub(super) async fn agent_of(
    daemon: &mut DaemonClient<'_>,
    turn: &TurnView,
) -> Result<PromptedAgent, CommandFailure> {
    let session = daemon.call::<GetSession>(SessionRef { session: turn.session.clone() }).await?.session;
    Ok(PromptedAgent { id: session.agent, name: session.agent_name, stays: !session.agent_removed })
}

/// The turn that the arguments mean.
pub(super) async fn select(
    daemon: &mut DaemonClient<'_>,
    args: TurnSelectArgs,
    wanted: TurnPreference,
) -> Result<TurnView, CommandFailure> {
    let TurnSelectArgs { turn, session, agent } = args;
    if let Some(turn) = turn {
        return daemon.call::<GetTurn>(TurnRef { turn }).await;
    }
    let given = match (&session, &agent) {
        (Some(session), _) => format!("session {session}"),
        (None, Some(agent)) => format!("agent {agent}"),
        (None, None) => "any agent".to_owned(),
    };
    let session = session.unwrap_or_default();
    let params = TurnListParams { session, agent, newest_first: true, ..TurnListParams::default() };
    let running = match wanted {
        TurnPreference::Running | TurnPreference::RunningOrNewest => {
            open_turn(daemon, &params, &given).await?
        }
        TurnPreference::Newest => None,
    };
    let found = match running {
        Some(turn) => turn,
        None => {
            let page = daemon.call::<ListTurns>(TurnListParams { limit: Some(1), ..params }).await?;
            match page.turns.into_iter().next() {
                Some(newest) if wanted != TurnPreference::Running => newest,
                newest => return Err(none_runs(&given, newest.as_ref())),
            }
        }
    };
    daemon.call::<GetTurn>(TurnRef { turn: found.id }).await
}

/// The turn that runs, or else waits, or else is the next one.
async fn open_turn(
    daemon: &mut DaemonClient<'_>,
    params: &TurnListParams,
    given: &str,
) -> Result<Option<TurnView>, CommandFailure> {
    for status in OPEN {
        let params =
            TurnListParams { status: Some(status.to_owned()), limit: Some(PAGE_MAX), ..params.clone() };
        let mut found = daemon.call::<ListTurns>(params).await?.turns;
        let one_session = found.windows(2).all(|two| two[0].session == two[1].session);
        if found.is_empty() || one_session {
            match found.pop() {
                // Of several turns that wait in one session, the oldest is the next one.
                Some(oldest) => return Ok(Some(oldest)),
                None => continue,
            }
        }
        let ids: Vec<&str> = found.iter().map(|turn| turn.id.as_str()).collect();
        return Err(CommandFailure::refused(format!("{} turns of {given} are {status}", found.len()))
            .hint(format!("name one of them: {}", ids.join(", ")))
            .with_code("turn.ambiguous"));
    }
    Ok(None)
}

fn none_runs(given: &str, newest: Option<&TurnView>) -> CommandFailure {
    let failure = CommandFailure::refused(format!("no turn of {given} is running"));
    match newest {
        Some(turn) => failure
            .because(format!("the newest one, {}, is {}", turn.id, turn.status))
            .hint(format!("`lodge turn show {}` shows it", turn.id)),
        None => failure.because("it has no turns").hint("`lodge turn ls` lists turns"),
    }
}
