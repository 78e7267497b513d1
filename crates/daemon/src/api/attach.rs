//! A client's view of what happens: the state now, then every event after a cursor, once and in order.

use lodge_core::job::JobState;
use lodge_core::sandbox::SandboxExecState;
use lodge_core::{AgentId, SandboxId, SessionId};
use lodge_proto::{AttachParams, AttachState, Attached, ErrorBody, ExecView, JobView};
use lodge_store::{ExecFilter, JobFilter, JobSummary};

use super::{agents, execs, jobs, methods, sandboxes, scope};
use crate::auth::ApiCaller;
use crate::hub::EventFilter;
use crate::read_view::ReadView;
use crate::view;

/// Turns that an attach shows at most; the rest can be listed.
const STATE_TURNS_MAX: u32 = 256;
/// Sandboxes and execs that an attach shows at most; the rest can be listed.
const STATE_SANDBOXES_MAX: u32 = 256;
const STATE_EXECS_MAX: u32 = 256;
/// Jobs that an attach shows at most; the rest can be listed.
const STATE_JOBS_MAX: u32 = 256;

/// Checks an attach and answers it. Everything after `Attached::seq` is for the follower.
pub(super) fn attach(
    at: &ReadView<'_>,
    who: &ApiCaller,
    attachment: u64,
    given: AttachParams,
) -> Result<(Attached, EventFilter), ErrorBody> {
    let given = scope::attach(at, who, given)?;
    let named = [
        given.agent.is_some(),
        given.session.is_some(),
        given.job.is_some(),
        given.sandbox.is_some(),
        given.all,
    ];
    if named.into_iter().filter(|named| *named).count() != 1 {
        let message = "attach names exactly one of agent, session, job, sandbox or all";
        return Err(ErrorBody::new("attach.bad_target", message));
    }
    if given.log.as_ref().is_some_and(|log| *log != at.log) {
        return Err(ErrorBody::new("cursor.other_log", "that cursor is of another log")
            .hint("attach without `since`"));
    }
    // Of the same snapshot as the state: what follows after it is not in the state, and what is in the state does not follow.
    let head = at.store.head().map_err(methods::internal)?;
    let seq = given.since.unwrap_or(head);
    if seq > head {
        return Err(methods::future(seq, head));
    }
    let (state, filter) = match (&given.job, &given.sandbox) {
        (Some(job), _) => one_job(at, job)?,
        (None, Some(sandbox)) => one_sandbox(at, sandbox)?,
        (None, None) => everything(at, &given)?,
    };
    let attached = Attached { attachment, epoch: at.epoch, log: at.log.clone(), seq, state };
    Ok((attached, scope::events(who, filter)))
}

fn one_job(at: &ReadView<'_>, given: &str) -> Result<(AttachState, EventFilter), ErrorBody> {
    let found = jobs::one(at, &jobs::find(at, given, None)?)?;
    let state = AttachState { jobs: vec![jobs::job_view(at, &found)], ..AttachState::default() };
    let JobSummary { row, .. } = found;
    // Its events are all in its agent's stream, which is read the faster.
    let (stream, job) = (Some(row.agent.to_string()), Some(row.id.to_string()));
    Ok((state, EventFilter { stream, session: None, job, kind: None }))
}

/// Of a sandbox that belongs to no agent. Its events are those of its stream.
fn one_sandbox(at: &ReadView<'_>, given: &str) -> Result<(AttachState, EventFilter), ErrorBody> {
    let id = sandboxes::find(at, given)?;
    let execs = running_execs(at, Some(&id))?;
    let state = AttachState { sandboxes: vec![sandboxes::one(at, &id)?], execs, ..AttachState::default() };
    Ok((state, EventFilter { stream: Some(id.to_string()), ..EventFilter::default() }))
}

fn running_execs(at: &ReadView<'_>, sandbox: Option<&SandboxId>) -> Result<Vec<ExecView>, ErrorBody> {
    let filter = ExecFilter { sandbox, state: Some(SandboxExecState::Running), before: None };
    let rows = at.store.execs(filter, STATE_EXECS_MAX).map_err(methods::internal)?;
    Ok(rows.iter().map(|row| execs::shown(at, row)).collect())
}

/// Of an agent, of a session, or all there is.
fn everything(at: &ReadView<'_>, given: &AttachParams) -> Result<(AttachState, EventFilter), ErrorBody> {
    let agent = given.agent.as_deref().map(|agent| methods::one_agent(at, agent)).transpose()?;
    let session = given.session.as_deref().map(methods::session_id).transpose()?;
    let id = agent.as_ref().map(|found| found.row.id.clone());
    let turns =
        at.store.live_turns(id.as_ref(), session.as_ref(), STATE_TURNS_MAX).map_err(methods::internal)?;
    let agents = match (&agent, given.all) {
        (Some(found), _) => vec![agents::agent_view(at, found)],
        (None, true) => {
            let all = at.store.agents(None, lodge_proto::PAGE_MAX).map_err(methods::internal)?;
            all.iter().map(|found| agents::agent_view(at, found)).collect()
        }
        (None, false) => Vec::new(),
    };
    let jobs = open_jobs(at, id.as_ref(), session.as_ref())?;
    let (sandboxes, execs) = match given.all {
        true => (sandboxes::live(at, STATE_SANDBOXES_MAX)?, running_execs(at, None)?),
        false => (Vec::new(), Vec::new()),
    };
    let turns = turns.into_iter().map(view::full_turn).collect();
    let state = AttachState { agents, turns, jobs, sandboxes, execs };
    let (stream, session) = (id.map(|id| id.to_string()), session.map(|session| session.to_string()));
    Ok((state, EventFilter { stream, session, job: None, kind: None }))
}

fn open_jobs(
    at: &ReadView<'_>,
    agent: Option<&AgentId>,
    session: Option<&SessionId>,
) -> Result<Vec<JobView>, ErrorBody> {
    let (labels, states) = (Default::default(), [JobState::Pending, JobState::Running]);
    let filter = JobFilter { agent, session, states: &states, labels: &labels, before: None };
    let open = at.store.newest_jobs(filter, STATE_JOBS_MAX).map_err(methods::internal)?;
    Ok(open.iter().map(|open| jobs::job_view(at, open)).collect())
}
