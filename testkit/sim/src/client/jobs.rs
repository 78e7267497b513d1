//! Callers that submit jobs and cancel them.

use std::collections::BTreeMap;

use lodge_core::job::JobState;
use lodge_core::{AgentId, JobId};
use lodge_engine::jobs::{JobSpec, NewJob};
use lodge_engine::{Command, JobCommand, RunningJobs};
use serde_json::Value;

use super::SimRequest;
use super::requests::refusal;
use crate::world::SimWorld;

impl SimWorld {
    pub(super) fn some_job_wish(&mut self, agent: AgentId, text: String) -> SimRequest {
        if self.rng.chance(150)
            && let Some(job) = self.rng.pick(&self.clients.jobs)
        {
            return SimRequest::CancelJob(job.clone());
        }
        let session = if self.rng.chance(600) { self.some_session(&agent) } else { None };
        SimRequest::Submit { agent, session, text }
    }

    /// The engine's command for a job request. The API reads the session from the store.
    pub(super) fn submission(&mut self, what: &SimRequest) -> Result<Command, lodge_proto::ErrorBody> {
        let SimRequest::Submit { agent, session, text } = what else { return Err(refusal("params.invalid")) };
        let other = session.as_ref().and_then(|session| self.disk.session(session));
        if other.is_some_and(|fact| fact.row.agent != *agent) {
            return Err(refusal("session.other_agent"));
        }
        let bin = *self.rng.pick(&["sh", "date", "make", "make", "nope"]).unwrap_or(&"sh");
        let timeout_ms = if self.rng.chance(200) { 60_000 } else { 0 };
        let priority = i32::try_from(self.rng.below(3)).unwrap_or(0) - 1;
        let labels = BTreeMap::from([("of".to_owned(), text.clone())]);
        let (args, stdin) = (vec![text.clone()], b"in".to_vec());
        let work =
            JobSpec { bin: bin.to_owned(), args, stdin, timeout_ms, priority, output_bytes: 0, labels };
        Ok(Command::Job(JobCommand::Submit(Box::new(NewJob {
            agent: agent.clone(),
            session: session.clone(),
            work,
        }))))
    }

    /// What happens to running jobs.
    pub(super) fn some_fate(&mut self) -> RunningJobs {
        if self.rng.chance(300) { RunningJobs::Refuse } else { RunningJobs::Cancel }
    }

    /// An acknowledged job exists until the retention removes it.
    pub(super) fn submission_holds(&self, what: &SimRequest, answer: &Value) -> Result<(), String> {
        let SimRequest::Submit { agent, session, text } = what else { return Ok(()) };
        let id: JobId = answer["id"].as_str().unwrap_or_default().parse().map_err(|_| "no id")?;
        match self.disk.job(&id) {
            Some(row)
                if row.agent == *agent && row.session == *session && row.request.args == [text.as_str()] =>
            {
                Ok(())
            }
            Some(row) => Err(format!("that is another job: {row:?}")),
            None if self.disk.job_went(&id) => Ok(()),
            None => Err("that job is not on disk".into()),
        }
    }

    /// A job that was reported as cancelled has no other end.
    pub(super) fn cancellation_holds(&self, id: &JobId) -> Result<(), String> {
        match self.disk.job(id).map(|row| (row.progress.state, row.progress.cancel.is_some())) {
            Some((JobState::Cancelled, _) | (JobState::Running, true)) => Ok(()),
            None if self.disk.job_went(id) => Ok(()),
            other => Err(format!("that job is {other:?}")),
        }
    }
}
