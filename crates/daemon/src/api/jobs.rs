//! `job/…`: submitted, listed, read, waited for, cancelled.

pub(super) mod output;
pub(super) mod raw;
pub(super) mod submit;

use std::sync::Arc;
use std::time::Duration;

use lodge_core::job::JobState;
use lodge_core::limits::JOB_LABELS_MAX;
use lodge_core::{AgentId, JobId};
use lodge_proto::{
    ApiMethod, CancelJob, ErrorBody, GetJob, JobList, JobListParams, JobView, JobWaitParams, ListJobs,
    ReadJobOutput, SubmitJob, WaitForJob, error_code,
};
use lodge_store::{JobFilter, JobSummary};
use serde_json::Value;

use super::methods::{
    Reply, changed, find_agent_ever, internal, is_id_prefix, no_method, page, recorded_id, reply, session_id,
    unique_id,
};
use super::params;
use crate::auth::{ApiCaller, rights};
use crate::jobs::written;
use crate::read_view::ReadView;
use crate::shell::Shell;
use crate::view;
use lodge_engine::{Answer, Command, JobCommand, RequestKey};

const WAIT_DEFAULT_MS: u64 = 30_000;
const WAIT_MAX_MS: u64 = 60_000;
/// How long a cancelled job is waited for: everything of it gets SIGKILL.
const CANCEL_WITHIN: Duration = Duration::from_secs(10);

pub(super) async fn call(
    shell: &Arc<Shell>,
    who: &ApiCaller,
    key: Option<RequestKey>,
    method: &str,
    given: Value,
) -> Reply {
    match method {
        SubmitJob::NAME => {
            let given = params::<SubmitJob>(given)?;
            let who = who.clone();
            let new = shell.read_few(move |at| submit::read(at, &who, given)).await?;
            changed::<SubmitJob>(&shell.ask(key, Command::Job(JobCommand::Submit(Box::new(new)))).await?)
        }
        ListJobs::NAME => {
            let given = params::<ListJobs>(given)?;
            shell.read(move |at| reply::<ListJobs>(list(at, &given))).await
        }
        GetJob::NAME => {
            let given = params::<GetJob>(given)?;
            shell.read_few(move |at| reply::<GetJob>(get(at, &given.job))).await
        }
        WaitForJob::NAME => reply::<WaitForJob>(wait(shell, who, params::<WaitForJob>(given)?).await),
        CancelJob::NAME => {
            let given = params::<CancelJob>(given)?;
            let id = job_id(shell, given.job).await?;
            let answer = shell.ask(key, Command::Job(JobCommand::Cancel { id })).await?;
            cancelled(shell, answer).await
        }
        ReadJobOutput::NAME => {
            reply::<ReadJobOutput>(output::output(shell, who, params::<ReadJobOutput>(given)?).await)
        }
        _other => Err(no_method(method)),
    }
}

fn get(at: &ReadView<'_>, given: &str) -> Result<JobView, ErrorBody> {
    Ok(job_view(at, &one(at, &find(at, given, None)?)?))
}

/// Labels of a filter. A job has fewer, so that more of them fit none, and each costs a lookup.
const FILTER_LABELS_MAX: usize = 2 * JOB_LABELS_MAX;

fn list(at: &ReadView<'_>, given: &JobListParams) -> Result<JobList, ErrorBody> {
    if given.labels.len() > FILTER_LABELS_MAX {
        return Err(ErrorBody::new(
            "params.invalid",
            format!(
                "a filter has at most {FILTER_LABELS_MAX} labels, and this one has {}",
                given.labels.len()
            ),
        )
        .hint("give fewer labels: no job can have that many"));
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
    Ok(JobList { jobs, next: found.next })
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
            .hint("`before` is the `next` of the page before, or a job's id; without it, the newest jobs are listed")
    })
}

async fn wait(shell: &Arc<Shell>, who: &ApiCaller, given: JobWaitParams) -> Result<JobView, ErrorBody> {
    let id = job_id(shell, given.job).await?;
    let within = Duration::from_millis(given.timeout_ms.unwrap_or(WAIT_DEFAULT_MS).min(WAIT_MAX_MS));
    tokio::select! {
        over = until_over(shell, &id, within) => {
            let over = over?.ok_or_else(|| view::no_job(id.as_str()))?;
            Ok(job_view(shell, &over))
        }
        _ = who.over() => Err(refused(who, WaitForJob::NAME)),
    }
}

/// The answer to a recorded cancel: the job after its end, which follows soon.
pub(super) async fn cancelled(shell: &Arc<Shell>, answer: Answer) -> Reply {
    let id = match &answer {
        Answer::Job(job) => Some(job.row.id.clone()),
        answer => recorded_id(&view::rendered(answer)),
    };
    let over = match id {
        Some(id) => until_over(shell, &id, CANCEL_WITHIN).await?,
        None => None,
    };
    match over {
        Some(over) => reply::<CancelJob>(Ok(job_view(shell, &over))),
        // The job was deleted meanwhile: retention took it.
        None => changed::<CancelJob>(&answer),
    }
}

/// The job as it is when it is over, when the time is, or when the daemon is about to stop. None: it was forgotten.
async fn until_over(
    shell: &Arc<Shell>,
    id: &JobId,
    within: Duration,
) -> Result<Option<JobSummary>, ErrorBody> {
    // Before the row is read: an end that is recorded in between is not missed.
    let mut changed = shell.job_changed(id);
    let found = recorded(shell, id).await?;
    if found.as_ref().is_none_or(|found| !found.row.progress.state.is_open()) {
        return Ok(found);
    }
    tokio::select! {
        _over_or_gone = changed.wait_for(|written| written.ended) => {}
        () = tokio::time::sleep(within) => {}
        () = shell.stop.cancelled() => {}
    }
    recorded(shell, id).await
}

async fn recorded(shell: &Arc<Shell>, id: &JobId) -> Result<Option<JobSummary>, ErrorBody> {
    let id = id.clone();
    shell.read_few(move |at| at.store.job_summary(&id).map_err(internal)).await
}

/// Why a caller whose token was good when it came is sent away now.
fn refused(who: &ApiCaller, method: &str) -> ErrorBody {
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

/// The job that an id or a unique prefix of one means, of this agent or of any.
pub(super) fn find(at: &ReadView<'_>, given: &str, agent: Option<&AgentId>) -> Result<JobId, ErrorBody> {
    if !is_id_prefix(given, JobId::PREFIX) {
        return Err(view::no_job(given));
    }
    let found = at.store.find_jobs(given, agent).map_err(internal)?;
    unique_id(found, given, error_code!("job.ambiguous"), "jobs")?.ok_or_else(|| view::no_job(given))
}

pub(super) fn one(at: &ReadView<'_>, id: &JobId) -> Result<JobSummary, ErrorBody> {
    at.store.job_summary(id).map_err(internal)?.ok_or_else(|| view::no_job(id.as_str()))
}

/// The current state of a job.
pub(super) fn job_view(shell: &Shell, found: &JobSummary) -> JobView {
    let mut view = view::job(&found.row, &found.agent_name);
    if let Some(written) = written(shell, found) {
        (view.stdout_bytes, view.stderr_bytes) = (written.stdout.end, written.stderr.end);
        view.dropped_bytes = written.stdout.dropped() + written.stderr.dropped();
        view.truncated = view.dropped_bytes > 0;
    }
    view
}
