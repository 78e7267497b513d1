//! Jobs in a chat: those of its session, and a line when one of them ends.

use lodge_proto::{EventBody, JobListParams, JobView};
use tokio::sync::mpsc;

use crate::args::STATUSES;
use crate::commands::CommandContext;
use crate::commands::jobs::{cancel_one, newest, one};
use crate::commands::jobs_output::{JobOutputStream, last_lines};
use crate::connect::{Autostart, DaemonAddress};
use crate::failure::CommandFailure;
use crate::follow::{DaemonClient, FollowScope, FollowedItem};
use crate::job;
use crate::render::{self, now_ms};
use crate::words::{Words, put};

/// How many jobs are listed.
const JOBS_SHOWN: usize = 20;
/// How much is shown of what one wrote.
const LINES_SHOWN: u64 = 10;
/// Ends of jobs that wait to be printed; beyond these the watcher waits.
pub(super) const ENDS_MAX: usize = 16;

/// The newest jobs of a session.
pub(super) async fn list(
    context: &CommandContext,
    session: Option<&str>,
    status: Option<String>,
) -> Result<(), CommandFailure> {
    if let Some(word) = status.as_ref().filter(|word| !STATUSES.contains(&word.as_str())) {
        let failure = CommandFailure::refused(format!("`{word}` is not the status of a job"));
        return Err(failure.hint(format!("use one of {}", STATUSES.join(", "))));
    }
    let Some(session) = session else {
        context.words.print_message("there are no jobs: this session has not started");
        return Ok(());
    };
    let mut daemon = context.daemon().await?;
    let params = JobListParams { session: Some(session.to_owned()), status, ..JobListParams::default() };
    let (jobs, more) = newest(&mut daemon, params, JOBS_SHOWN).await?;
    let now = now_ms();
    let row = |view: &JobView| {
        vec![
            view.id.clone(),
            job::command(view),
            job::status(view),
            job::ended_with(view),
            job::run_time(view, now),
            job::output(view),
        ]
    };
    let rows: Vec<Vec<String>> = jobs.iter().map(row).collect();
    context.put_table(&["ID", "BIN", "STATUS", "EXIT", "TIME", "OUTPUT"], &rows)?;
    if more {
        context.words.print_dimmed_note(&format!("`lodge jobs ls --session {session}` lists all of them"));
    }
    Ok(())
}

/// The state of a job, and the end of its output.
pub(super) async fn show(
    context: &CommandContext,
    session: Option<&str>,
    given: &str,
) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let view = of_session(&mut daemon, session, given).await?;
    put(&format!("{}\n", context.words.bold(&line(&view))))?;
    if view.output_removed {
        context.words.print_message("its output was removed by the retention settings");
        return Ok(());
    }
    for (stream, name) in [(JobOutputStream::Stdout, "stdout"), (JobOutputStream::Stderr, "stderr")] {
        let lines = last_lines(context, &view, stream, LINES_SHOWN).await?;
        if lines.is_empty() {
            continue;
        }
        put(&format!("{name}:\n"))?;
        for shown in lines {
            put(&format!("  {}\n", render::one_line(&shown)))?;
        }
    }
    context.words.print_dimmed_note(&format!("`lodge jobs logs {}` shows all of it", view.id));
    Ok(())
}

pub(super) async fn cancel(
    context: &CommandContext,
    session: Option<&str>,
    given: &str,
) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let view = of_session(&mut daemon, session, given).await?;
    let ended = cancel_one(&mut daemon, &view.id).await?;
    context.words.print_message(&line(&ended));
    Ok(())
}

/// A typing error must not cancel the job of another conversation.
async fn of_session(
    daemon: &mut DaemonClient<'_>,
    session: Option<&str>,
    given: &str,
) -> Result<JobView, CommandFailure> {
    let view = one(daemon, given).await?;
    if view.session.as_deref() == session && session.is_some() {
        return Ok(view);
    }
    let failure = CommandFailure::refused(format!("{} is not a job of this session", view.id));
    let whose = view.session.map_or("none".to_owned(), |session| format!("session {session}"));
    Err(failure.hint(format!("it belongs to {whose}; `lodge jobs inspect {}` shows it", view.id)))
}

/// A job in one line.
pub(super) fn line(view: &JobView) -> String {
    format!("{} {}: {}", view.id, job::command(view), job::standing(view, now_ms()))
}

/// Reports every job of the agent that ends. It neither starts a daemon nor prints errors: the next call does.
pub(super) async fn ends(context: &CommandContext, agent: &str, told: mpsc::Sender<JobView>) {
    let address = DaemonAddress { autostart: Autostart::Forbidden, ..context.address.clone() };
    let words = Words::new(true, false);
    let Ok(mut daemon) = DaemonClient::open(&address, &words).await else { return };
    if daemon.watch(FollowScope::Agent(agent.to_owned()), None).await.is_err() {
        return;
    }
    loop {
        let Ok(seen) = daemon.next().await else { return };
        let FollowedItem::Event(event) = seen else { continue };
        let id = match event.body() {
            Some(EventBody::JobFinished(ended)) => ended.job,
            Some(EventBody::JobCancelled(ended)) => ended.job,
            Some(_) | None => continue,
        };
        let Ok(view) = one(&mut daemon, &id).await else { continue };
        if told.send(view).await.is_err() {
            return;
        }
    }
}
