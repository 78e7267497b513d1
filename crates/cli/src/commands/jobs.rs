//! `jobs`: which command is which, and `run`, `ls`, `inspect`, `wait` and `cancel`.

use std::collections::BTreeMap;
use std::time::Duration;

use lodge_proto::{
    CancelJob, GetJob, JobCancelParams, JobListParams, JobRef, JobSubmitParams, JobView, JobWaitParams,
    ListJobs, PAGE_MAX, SubmitJob, WaitForJob, base64,
};
use tokio::time::Instant;

use super::jobs_output::{self, ShownStreams};
use super::results::ResultList;
use super::stdin::read_bytes;
use super::{CommandContext, request_id};
use crate::args::{JobListArgs, JobRunArgs, JobWaitArgs, JobsCommand};
use crate::failure::{CommandExit, CommandFailure};
use crate::follow::DaemonClient;
use crate::job;
use crate::render::{self, now_ms};
use crate::words::put;

/// The longest wait of one request for the end of a job. It is repeated.
const ASK_MAX: Duration = Duration::from_secs(30);

pub(super) async fn jobs(context: &CommandContext, command: JobsCommand) -> Result<(), CommandFailure> {
    match command {
        JobsCommand::Run(args) => run(context, args).await,
        JobsCommand::Ls(args) => list(context, args).await,
        JobsCommand::Inspect(refs) => inspect(context, refs.jobs).await,
        JobsCommand::Logs(args) => jobs_output::logs(context, args).await,
        JobsCommand::Wait(args) => wait(context, args).await,
        JobsCommand::Cancel(refs) => cancel(context, refs.jobs).await,
    }
}

async fn run(context: &CommandContext, args: JobRunArgs) -> Result<(), CommandFailure> {
    let mut command = args.command.into_iter();
    let Some(bin) = command.next() else {
        return Err(CommandFailure::usage("there is no bin to run").hint(format!(
            "name one of the agent's tools: `lodge jobs run {} -- BIN ARGS…`; `lodge inspect {0}` lists them",
            args.agent
        )));
    };
    let labels = labels(args.label)?;
    let (stdin, stdin_base64) = match args.stdin {
        Some(given) => stdin(given).await?,
        None => (None, None),
    };
    let params = JobSubmitParams {
        agent: args.agent,
        session: args.session,
        bin,
        args: command.collect(),
        stdin,
        stdin_base64,
        timeout: args.timeout,
        priority: args.priority,
        output: args.output,
        labels,
        request_id: Some(request_id()?),
    };
    let submitted = DaemonClient::ask::<SubmitJob>(&context.address, &context.words, params).await?;
    let id = submitted.id.clone();
    if !args.wait {
        return if context.words.json { context.words.json(&submitted) } else { put(&format!("{id}\n")) };
    }
    context.set_interrupt_note(format!("detached; the job is still running: lodge jobs logs -f {id}"));
    context.words.progress(&format!("{id}: {}", job::command(&submitted)));
    if !context.words.json {
        jobs_output::follow(context, &id, ShownStreams::Both).await?;
    }
    let mut daemon = context.daemon().await?;
    let ended = end_of(&mut daemon, &id, None).await?;
    if context.words.json {
        context.words.json(&ended)?;
    }
    exit_like_job(context, &ended)
}

/// What a job is to read: text as it is, and other bytes in letters.
async fn stdin(given: String) -> Result<(Option<String>, Option<String>), CommandFailure> {
    let bytes = match given.strip_prefix('@') {
        Some(path) => {
            let named = path.to_owned();
            read_bytes(&format!("`{path}`"), move || std::fs::File::open(named)).await?
        }
        None if given == "-" => read_bytes("stdin", || Ok(std::io::stdin())).await?,
        None => given.into_bytes(),
    };
    Ok(letters(bytes))
}

/// Text goes as it is, unless it has bytes that JSON writes six times as long: those would not fit a call.
pub(super) fn letters(bytes: Vec<u8>) -> (Option<String>, Option<String>) {
    let is_long = |byte: &u8| byte.is_ascii_control() && !matches!(byte, b'\n' | b'\t' | b'\r');
    match String::from_utf8(bytes) {
        Ok(text) if !text.as_bytes().iter().any(is_long) => (Some(text), None),
        Ok(text) => (None, Some(base64::encode(text.as_bytes()))),
        Err(error) => (None, Some(base64::encode(error.as_bytes()))),
    }
}

/// A job has one value for a key: a second one is a mistake, and not more of the same.
fn labels(given: Vec<(String, String)>) -> Result<BTreeMap<String, String>, CommandFailure> {
    let mut labels = BTreeMap::new();
    for (key, value) in given {
        if let Some(first) = labels.get(&key) {
            return Err(CommandFailure::usage(format!("`--label {key}=…` is given twice"))
                .hint(format!("a label has one value: `{key}={first}` or `{key}={value}`")));
        }
        labels.insert(key, value);
    }
    Ok(labels)
}

async fn list(context: &CommandContext, args: JobListArgs) -> Result<(), CommandFailure> {
    let labels = labels(args.label)?;
    let mut daemon = context.daemon().await?;
    let params = JobListParams {
        agent: args.agent,
        status: args.status,
        session: args.session,
        labels,
        ..JobListParams::default()
    };
    let wanted = args.limit.map_or(usize::MAX, |limit| limit as usize);
    let (jobs, _) = newest(&mut daemon, params, wanted).await?;
    if context.words.json {
        return context.words.json(&jobs);
    }
    if context.words.quiet {
        return put(&jobs.iter().map(|job| format!("{}\n", job.id)).collect::<String>());
    }
    let now = now_ms();
    let rows: Vec<Vec<String>> = jobs.iter().map(|view| job::row(view, now)).collect();
    context.put_table(&job::TITLES, &rows)
}

/// The newest jobs, and whether there are more.
pub(crate) async fn newest(
    daemon: &mut DaemonClient<'_>,
    params: JobListParams,
    wanted: usize,
) -> Result<(Vec<JobView>, bool), CommandFailure> {
    let mut jobs: Vec<JobView> = Vec::new();
    let mut before = None;
    loop {
        let missing = u32::try_from(wanted - jobs.len()).unwrap_or(u32::MAX);
        let params = JobListParams { before, limit: Some(missing.min(PAGE_MAX)), ..params.clone() };
        let page = daemon.call_without_start::<ListJobs>(params).await?;
        jobs.extend(page.jobs);
        before = page.next;
        if before.is_none() || jobs.len() >= wanted {
            return Ok((jobs, before.is_some()));
        }
    }
}

async fn inspect(context: &CommandContext, jobs: Vec<String>) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let mut batch = ResultList::new(&context.words, jobs.len());
    for given in jobs {
        match one(&mut daemon, &given).await {
            Ok(view) => batch.done(&view, || job::detail(&view, now_ms()))?,
            Err(failure) => batch.failed(failure)?,
        }
    }
    batch.finish()
}

/// A job by its id or a beginning of it.
pub(crate) async fn one(daemon: &mut DaemonClient<'_>, given: &str) -> Result<JobView, CommandFailure> {
    daemon.call_without_start::<GetJob>(JobRef { job: given.to_owned() }).await
}

async fn wait(context: &CommandContext, args: JobWaitArgs) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let (given, timeout) = (args.refs.jobs, args.timeout_ms.map(Duration::from_millis));
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let mut batch = ResultList::new(&context.words, given.len());
    let mut first = CommandExit::Done;
    for given in given {
        let ended = match one(&mut daemon, &given).await {
            Ok(view) => end_of(&mut daemon, &view.id, deadline).await,
            Err(failure) => Err(failure),
        };
        let exit = match ended {
            Ok(view) if job::is_open(&view) => {
                let waited = render::length(timeout.map_or(0, |waited| waited.as_millis() as i64));
                let failure =
                    CommandFailure::refused(format!("{} is still {} after {waited}", view.id, view.status));
                batch.failed(failure.hint(format!("`lodge jobs wait {}` continues to wait", view.id)))?;
                CommandExit::Refused
            }
            Ok(view) => {
                batch.done(&view, String::new)?;
                match exit_like_job(context, &view) {
                    Ok(()) => CommandExit::Done,
                    Err(CommandFailure::Silent(exit)) => exit,
                    Err(failure) => {
                        batch.failed(failure)?;
                        CommandExit::Refused
                    }
                }
            }
            Err(failure) if failure.exit() == CommandExit::NoDaemon => return Err(failure),
            Err(failure) => {
                batch.failed(failure)?;
                CommandExit::Refused
            }
        };
        if first == CommandExit::Done {
            first = exit;
        }
    }
    match (batch.finish(), first) {
        (_, CommandExit::Program(code)) => Err(CommandFailure::Silent(CommandExit::Program(code))),
        (finished, _) => finished,
    }
}

/// Waits until a job is over or the time is. The daemon may come and go meanwhile.
pub(super) async fn end_of(
    daemon: &mut DaemonClient<'_>,
    id: &str,
    deadline: Option<Instant>,
) -> Result<JobView, CommandFailure> {
    loop {
        let left = deadline.map_or(ASK_MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout_ms = u64::try_from(left.min(ASK_MAX).as_millis()).ok();
        let view: JobView =
            daemon.call_without_start::<WaitForJob>(JobWaitParams { job: id.to_owned(), timeout_ms }).await?;
        if !job::is_open(&view) || left.is_zero() {
            return Ok(view);
        }
    }
}

/// Ends as the job did, and says why where a number does not.
fn exit_like_job(context: &CommandContext, ended: &JobView) -> Result<(), CommandFailure> {
    let what = format!("{} {}", ended.id, job::standing(ended, now_ms()));
    match (job::exit(ended), ended.signal) {
        (CommandExit::Done, _) => Ok(()),
        (exit @ CommandExit::Program(_), signal) => {
            if signal.is_some() && ended.exit_code.is_none() {
                context.words.print_note(&what);
            }
            Err(CommandFailure::Silent(exit))
        }
        (CommandExit::Refused | CommandExit::Usage | CommandExit::NoDaemon | CommandExit::Interrupted, _) => {
            Err(broken(ended))
        }
    }
}

/// A job that did not come to an end of its own.
fn broken(ended: &JobView) -> CommandFailure {
    let failure = match ended.status.as_str() {
        "cancelled" => CommandFailure::refused(format!("{} was cancelled", ended.id)),
        _ => CommandFailure::refused(format!("{} failed", ended.id)),
    };
    let failure = match &ended.error {
        Some(why) => failure.because(why),
        None => failure,
    };
    if ended.stdout_bytes + ended.stderr_bytes == 0 {
        return failure;
    }
    failure.hint(format!("`lodge jobs logs {}` shows what it wrote", ended.id))
}

async fn cancel(context: &CommandContext, jobs: Vec<String>) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let mut batch = ResultList::new(&context.words, jobs.len());
    for given in jobs {
        match cancel_one(&mut daemon, &given).await {
            Ok(view) => {
                batch.done(&view, || format!("{}\n", view.id))?;
                if job::is_open(&view) && !context.words.json {
                    context.words.print_note(&format!("{} has not ended yet: it is being killed", view.id));
                }
            }
            Err(failure) if failure.exit() == CommandExit::NoDaemon => return Err(failure),
            Err(failure) => batch.failed(failure)?,
        }
    }
    batch.finish()
}

pub(crate) async fn cancel_one(
    daemon: &mut DaemonClient<'_>,
    given: &str,
) -> Result<JobView, CommandFailure> {
    let params = JobCancelParams { job: given.to_owned(), request_id: Some(request_id()?) };
    daemon.call::<CancelJob>(params).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_json_would_write_six_times_as_long_goes_in_letters() {
        assert_eq!(letters(b"a\tb\r\n\xc3\xbc".to_vec()), (Some("a\tb\r\n\u{fc}".into()), None));
        assert_eq!(letters(vec![0, 1]), (None, Some("AAE=".into())));
        assert_eq!(letters(vec![0xff]), (None, Some("/w==".into())));
        let most = letters(vec![0; 1 << 20]);
        assert!(serde_json::to_string(&most).unwrap().len() < lodge_proto::REQUEST_BYTES_MAX);
    }
}
