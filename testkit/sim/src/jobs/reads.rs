//! Job tools of models: their calls and their results.

use std::collections::BTreeMap;

use lodge_core::job::JobRow;
use lodge_core::record::CallRecord;
use lodge_core::{JobId, TurnId};
use lodge_daemon::act::ports::JobOwner;
use lodge_engine::jobs::{JobReport, JobToolRequest};
use lodge_runtime_messages::{JobListRequest, JobSubmitRequest, OneJobRequest, RuntimeRequest};

use crate::world::SimWorld;

/// A model chooses among this many of the newest jobs of its session.
const RECENT_MAX: usize = 4;
const LIST_MAX: u32 = 20;

impl SimWorld {
    /// A call of one of the six tools: its name and its argument.
    pub fn job_call(&mut self, turn: &TurnId) -> (&'static str, String) {
        let priority = self.rng.below(5);
        let chosen = self.rng.below(100);
        if chosen < 35 {
            return ("job_submit", priority.to_string());
        }
        if chosen < 40 {
            return ("job_list", String::new());
        }
        let Some(job) = self.some_job(turn) else { return ("job_submit", priority.to_string()) };
        let name = match chosen {
            40..50 => "job_status",
            50..70 => "job_wait",
            70..90 => "job_watch",
            _ => "job_cancel",
        };
        (name, job.to_string())
    }

    /// A job of its own session, or rarely of another one.
    fn some_job(&mut self, turn: &TurnId) -> Option<JobId> {
        let session = self.disk.turn(turn)?.row.session.clone();
        if self.rng.chance(150) {
            return self.rng.pick(&self.clients.jobs).cloned();
        }
        let theirs = self.disk.jobs_of(&session);
        let recent = &theirs[theirs.len().saturating_sub(RECENT_MAX)..];
        self.rng.pick(recent).cloned()
    }

    /// Reads the committed state. Jobs of other sessions are not visible.
    pub fn read_jobs(&mut self, owner: &JobOwner, wish: &JobToolRequest) -> JobReport {
        let JobOwner { agent, session } = owner;
        let is_theirs = |row: &&JobRow| row.agent == *agent && row.session.as_ref() == Some(session);
        match wish {
            JobToolRequest::List { .. } => {
                let listed = self.disk.jobs_of(session).iter().rev().filter_map(|job| self.disk.job(job));
                let listed = listed.filter(is_theirs).take(LIST_MAX as usize);
                let text = listed.map(|row| row.id.to_string()).collect::<Vec<_>>().join(" ");
                JobReport { text: format!("listed: {text}"), error: false, told: Vec::new() }
            }
            JobToolRequest::Status { job } => read_one(job, self.disk.job(job).filter(is_theirs)),
            JobToolRequest::Wait { job } | JobToolRequest::Watch { job } | JobToolRequest::Cancel { job } => {
                let theirs = self.disk.job(job).filter(is_theirs);
                let read = read_one(job, theirs);
                if theirs.is_some_and(|row| row.progress.state.is_open()) {
                    self.fail(format!("{wish:?} is answered, and {job} is not over"));
                }
                read
            }
            JobToolRequest::Submit(_) => {
                self.fail(format!("{wish:?} has nothing to read"));
                JobReport { text: String::new(), error: true, told: Vec::new() }
            }
        }
    }
}

fn read_one(job: &JobId, theirs: Option<&JobRow>) -> JobReport {
    match theirs {
        None => JobReport { text: format!("async job not found: {job}"), error: true, told: Vec::new() },
        Some(row) if row.progress.state.is_open() => {
            JobReport { text: format!("open: {job}"), error: false, told: Vec::new() }
        }
        Some(_) => JobReport { text: format!("ended: {job}"), error: false, told: vec![job.clone()] },
    }
}

/// The request of a runtime for this call. None: it is not a job tool, or its arguments are invalid.
pub fn job_request(turn: &str, step: u32, called: &CallRecord) -> Option<RuntimeRequest> {
    let (turn, call) = (turn.to_owned(), called.id.clone());
    let one = |turn, call| OneJobRequest { turn, step, call, job: called.arguments.clone() };
    Some(match called.name.as_str() {
        "job_submit" => {
            let priority: i32 = called.arguments.parse().ok()?;
            let bin = ["sh", "date", "make", "sh", "nope"].get(usize::try_from(priority).ok()?)?;
            RuntimeRequest::JobSubmit(JobSubmitRequest {
                turn,
                step,
                call,
                bin: (*bin).to_owned(),
                args: vec![called.name.clone()],
                stdin: String::new(),
                timeout_ms: 0,
                priority,
                labels: BTreeMap::new(),
            })
        }
        "job_list" => {
            RuntimeRequest::JobList(JobListRequest { turn, step, call, status: None, limit: Some(LIST_MAX) })
        }
        "job_status" => RuntimeRequest::JobStatus(one(turn, call)),
        "job_wait" => RuntimeRequest::JobWait(one(turn, call)),
        "job_watch" => RuntimeRequest::JobWatch(one(turn, call)),
        "job_cancel" => RuntimeRequest::JobCancel(one(turn, call)),
        _ => return None,
    })
}
