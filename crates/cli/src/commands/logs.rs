//! `logs`.

use std::time::Duration;

use lodge_proto::{AgentLogsParams, ReadAgentLogs, error_code};
use tokio::time::sleep;

use super::CommandContext;
use crate::args::LogsArgs;
use crate::failure::CommandFailure;
use crate::words::put;

/// How often a growing log is looked at.
const LOOK_PAUSE: Duration = Duration::from_millis(300);

pub(super) async fn logs(context: &CommandContext, args: LogsArgs) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let params =
        AgentLogsParams { agent: args.agent.clone(), lines: args.lines, after: None, debug: args.debug };
    let mut part = daemon.call::<ReadAgentLogs>(params).await?;
    if !args.follow {
        return if context.words.json { context.words.json(&part) } else { put(&part.text) };
    }
    loop {
        if !part.text.is_empty() {
            if context.words.json {
                context.words.json_line(&part)?;
            } else {
                put(&part.text)?;
            }
        } else {
            sleep(LOOK_PAUSE).await;
        }
        let params = AgentLogsParams {
            agent: args.agent.clone(),
            lines: None,
            after: Some(part.end),
            debug: args.debug,
        };
        part = match daemon.call_without_start::<ReadAgentLogs>(params).await {
            Ok(part) => part,
            // The agent was removed meanwhile: its log is at its end.
            Err(failure) if failure.is(error_code!("agent.not_found")) => return Ok(()),
            Err(failure) => return Err(failure),
        };
    }
}
