//! What `session regenerate` would run a second time, and whether the user wants that.

use std::collections::BTreeSet;

use lodge_proto::{
    AgentRef, GetAgent, GetTurn, ListTurns, SessionView, ToolView, TurnListParams, TurnRef, TurnView,
    error_code,
};

use super::{CommandContext, can_ask, read_line};
use crate::failure::CommandFailure;
use crate::follow::DaemonClient;
use crate::words::prompt_for;

/// Tools of every agent that change something.
const JOB_TOOLS: [&str; 2] = ["job_submit", "job_cancel"];

/// Whether tools may run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RepeatConsent {
    Given,
    Ask,
}

/// Asks before tools that are not declared safe may run again. Without a terminal, refuses and names them.
pub(super) async fn confirm(
    context: &CommandContext,
    daemon: &mut DaemonClient<'_>,
    session: &SessionView,
    turn: Option<&str>,
) -> Result<(), CommandFailure> {
    // The daemon refuses a turn or an agent that cannot be found, in its own words.
    let Some(turn) = find(daemon, session, turn).await? else { return Ok(()) };
    let given = AgentRef { agent: session.agent.clone(), request_id: None };
    let agent = match daemon.call::<GetAgent>(given).await {
        Ok(agent) => agent,
        Err(failure) if failure.is(error_code!("agent.not_found")) => return Ok(()),
        Err(failure) => return Err(failure),
    };
    let repeated = unsafe_tools(&turn, &agent.tools);
    if repeated.is_empty() {
        return Ok(());
    }
    let tools = repeated.iter().map(|tool| format!("`{tool}`")).collect::<Vec<_>>().join(", ");
    let are = if repeated.len() == 1 { "is" } else { "are" };
    let what = format!("turn {} ran {tools}, which {are} not declared safe", turn.id);
    if !can_ask(&context.words) {
        let failure = CommandFailure::refused("tools that are not declared safe may run again")
            .because(&what)
            .hint("`--yes` allows it");
        return Err(match turn.status.as_str() {
            "failed" | "interrupted" => failure.and_hint(&format!(
                "`lodge turn retry {}` continues the turn without repeating them",
                turn.id
            )),
            _ => failure,
        });
    }
    context.words.print_message(&what);
    prompt_for("send the message again, so that they may run again? [y/N] ");
    let answer = read_line().await?.unwrap_or_default();
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(CommandFailure::refused("not sent again: you did not answer `y`")),
    }
}

/// The turn that is done again.
async fn find(
    daemon: &mut DaemonClient<'_>,
    session: &SessionView,
    turn: Option<&str>,
) -> Result<Option<TurnView>, CommandFailure> {
    let number = match turn {
        None => Some(u32::try_from(session.turns).unwrap_or(u32::MAX)),
        Some(given) => given.parse().ok(),
    };
    match (number, turn) {
        (Some(number), _) => {
            let params = TurnListParams {
                session: session.id.clone(),
                after: number.checked_sub(1).map(|before| before.to_string()),
                limit: Some(1),
                ..TurnListParams::default()
            };
            let page = daemon.call::<ListTurns>(params).await?;
            Ok(page.turns.into_iter().next().filter(|found| found.number == number))
        }
        (None, Some(given)) => match daemon.call::<GetTurn>(TurnRef { turn: given.to_owned() }).await {
            Ok(turn) => Ok(Some(turn)),
            Err(failure)
                if [error_code!("turn.not_found"), error_code!("turn.ambiguous")]
                    .into_iter()
                    .any(|code| failure.is(code)) =>
            {
                Ok(None)
            }
            Err(failure) => Err(failure),
        },
        (None, None) => Ok(None),
    }
}

/// The tools that a turn ran, and that its agent still has without the word `safe`.
fn unsafe_tools(turn: &TurnView, tools: &[ToolView]) -> BTreeSet<String> {
    let repeats = |name: &str| match tools.iter().find(|tool| tool.name == name) {
        Some(tool) => !tool.safe,
        None => JOB_TOOLS.contains(&name),
    };
    let ran = turn.steps.iter().filter(|step| step.kind == "tool" && repeats(&step.name));
    ran.map(|step| step.name.clone()).collect()
}
