//! `job/…`: submitted, listed, read, waited for, cancelled.

mod output;
pub(super) mod raw;
mod submit;

use std::sync::Arc;
use std::time::Duration;

use lodge_core::job::JobState;
use lodge_core::limits::JOB_LABELS_MAX;
use lodge_core::{AgentId, JobId};
use lodge_proto::{
    ApiMethod, CancelJob, ErrorBody, GetJob, JobList, JobListParams, JobView, JobWaitParams, ListJobs,
    ReadJobOutput, SubmitJob, WaitForJob,
};
use lodge_store::{JobFilter, JobSummary};
use serde_json::Value;

use super::methods::{Answer, find_agent_ever, internal, no_method, page, session_id};
use super::params;
use crate::auth::{Who, rights};
use crate::jobs::written;
use crate::read_view::ReadView;
use crate::shell::Shell;
use crate::view;
use lodge_engine::{Command, JobCommand, RequestKey};

const WAIT_DEFAULT_MS: u64 = 30_000;
const WAIT_MAX_MS: u64 = 60_000;
/// How long a cancelled job is waited for: everything of it gets SIGKILL.
const CANCEL_WITHIN: Duration = Duration::from_secs(10);

pub(super) async fn call(
    shell: &Arc<Shell>,
    who: &Who,
    key: Option<RequestKey>,
    method: &str,
    given: Value,
) -> Answer {
    match method {
        SubmitJob::NAME => {
            let given = params::<SubmitJob>(given)?;
            let who = who.clone();
            let new = shell.read_few(move |at| submit::read(at, &who, given)).await?;
            shell.ask(key, Command::Job(JobCommand::Submit(Box::new(new)))).await
        }
        ListJobs::NAME => {
            let given = params::<ListJobs>(given)?;
            shell.read(move |at| list(at, &given)).await
        }
        GetJob::NAME => {
            let given = params::<GetJob>(given)?;
            shell.read_few(move |at| Ok(shown(at, &one(at, &find(at, &given.job, None)?)?))).await
        }
        WaitForJob::NAME => wait(shell, who, params::<WaitForJob>(given)?).await,
        CancelJob::NAME => {
            let given = params::<CancelJob>(given)?;
            let id = job_id(shell, given.job).await?;
            let answer = shell.ask(key, Command::Job(JobCommand::Cancel { id })).await?;
            cancelled(shell, answer).await
        }
        ReadJobOutput::NAME => output::output(shell, who, params::<ReadJobOutput>(given)?).await,
        _other => Err(no_method(method)),
    }
}

/// Labels of a filter. A job has fewer, so that more of them fit none, and each costs a lookup.
const FILTER_LABELS_MAX: usize = 2 * JOB_LABELS_MAX;

fn list(at: &ReadView<'_>, given: &JobListParams) -> Answer {
    if given.labels.len() > FILTER_LABELS_MAX {
        return Err(ErrorBody::new(
            "params.invalid",
            format!(
                "a filter has at most {FILTER_LABELS_MAX} labels, and this one has {}",
                given.labels.len()
            ),
        )
        .hint("give fewer labels: no job has so many"));
    }
    let agent = given.agent.as_deref().map(|agent| find_agent_ever(at, agent)).transpose()?;
    let session = given.session.as_deref().map(session_id).transpose()?;
    let state = given.status.as_deref().map(state).transpose()?;
    let before = given.before.as_deref().map(place).transpose()?;
    let filter = JobFilter {
        agent: agent.as_ref(),
        session: session.as_ref(),
        states: state.as_slice(),
        labels: &given.labels,
        before: before.as_ref().map(JobId::as_str),
    };
    let found = at.store.jobs(filter, page(given.limit)).map_err(internal)?;
    let jobs = found.jobs.iter().map(|found| job_view(at, found)).collect();
    Ok(view::json(&JobList { jobs, next: found.next }))
}

fn state(word: &str) -> Result<JobState, ErrorBody> {
    JobState::from_word(word).ok_or_else(|| {
        let words = JobState::ALL.map(JobState::word).join(", ");
        ErrorBody::new("params.invalid", format!("`{word}` is not the status of a job"))
            .hint(format!("those are {words}"))
    })
}

fn place(given: &str) -> Result<JobId, ErrorBody> {
    given.parse().map_err(|_| {
        ErrorBody::new("params.invalid", format!("`{given}` is no place in a listing of jobs"))
            .hint("`before` is the `next` of the page before, or a job's id; without it the newest come")
    })
}

async fn wait(shell: &Arc<Shell>, who: &Who, given: JobWaitParams) -> Answer {
    let id = job_id(shell, given.job).await?;
    let within = Duration::from_millis(given.timeout_ms.unwrap_or(WAIT_DEFAULT_MS).min(WAIT_MAX_MS));
    tokio::select! {
        over = until_over(shell, &id, within) => Ok(shown(shell, &over?)),
        _ = who.over() => Err(refused(who, WaitForJob::NAME)),
    }
}

/// The answer to a cancellation that was recorded: the job as it stands once it is over, which is soon.
pub(super) async fn cancelled(shell: &Arc<Shell>, answer: Value) -> Answer {
    let Some(id) = answer.get("id").and_then(Value::as_str).and_then(|id| id.parse().ok()) else {
        return Ok(answer);
    };
    match until_over(shell, &id, CANCEL_WITHIN).await {
        Ok(over) => Ok(shown(shell, &over)),
        // Its time was over meanwhile, and it was forgotten.
        Err(error) if error.data.code == "job.not_found" => Ok(answer),
        Err(error) => Err(error),
    }
}

/// The job as it is when it is over, when the time is, or when the daemon is about to stop.
async fn until_over(shell: &Arc<Shell>, id: &JobId, within: Duration) -> Result<JobSummary, ErrorBody> {
    // Before the row is read: an end that is recorded in between is not missed.
    let mut changed = shell.job_changed(id);
    let found = job_now(shell, id).await?;
    if !found.row.progress.state.is_open() {
        return Ok(found);
    }
    tokio::select! {
        _over_or_gone = changed.wait_for(|written| written.ended) => {}
        () = tokio::time::sleep(within) => {}
        () = shell.stop.cancelled() => {}
    }
    job_now(shell, id).await
}

/// Why a caller whose token was good when it came is sent away now.
fn refused(who: &Who, method: &str) -> ErrorBody {
    match rights::admit(who, method) {
        Err(error) => error,
        Ok(_) => ErrorBody::new("auth.revoked", "the token was revoked"),
    }
}

pub(super) async fn job_id(shell: &Arc<Shell>, given: String) -> Result<JobId, ErrorBody> {
    shell.read_few(move |at| find(at, &given, None)).await
}

pub(super) async fn job_now(shell: &Arc<Shell>, id: &JobId) -> Result<JobSummary, ErrorBody> {
    let id = id.clone();
    shell.read_few(move |at| one(at, &id)).await
}

/// The job that an id or a unique beginning of one means, of this agent or of any.
pub(super) fn find(at: &ReadView<'_>, given: &str, agent: Option<&AgentId>) -> Result<JobId, ErrorBody> {
    let prefixed =
        given.strip_prefix(JobId::PREFIX).is_some_and(|rest| rest.len() > 1 && rest.starts_with('_'));
    let found = if prefixed { at.store.find_job(given, agent).map_err(internal)? } else { Vec::new() };
    match found.as_slice() {
        [] => Err(view::no_job(given)),
        [one] => Ok(one.clone()),
        several => match several.iter().find(|id| id.as_str() == given) {
            Some(exactly) => Ok(exactly.clone()),
            None => {
                let ids: Vec<String> = several.iter().map(ToString::to_string).collect();
                Err(ErrorBody::new("job.ambiguous", format!("several jobs start with `{given}`"))
                    .hint(format!("give more of the id: {}", ids.join(", "))))
            }
        },
    }
}

pub(super) fn one(at: &ReadView<'_>, id: &JobId) -> Result<JobSummary, ErrorBody> {
    at.store.job_summary(id).map_err(internal)?.ok_or_else(|| view::no_job(id.as_str()))
}

/// A job as it stands.
pub(super) fn job_view(shell: &Shell, found: &JobSummary) -> JobView {
    let mut view = view::job(&found.row, &found.agent_name);
    if let Some(written) = written(shell, found) {
        (view.stdout_bytes, view.stderr_bytes) = (written.stdout.end, written.stderr.end);
        view.dropped_bytes = written.stdout.dropped() + written.stderr.dropped();
        view.truncated = view.dropped_bytes > 0;
    }
    view
}

fn shown(shell: &Shell, found: &JobSummary) -> Value {
    view::json(&job_view(shell, found))
}
