//! What models ask of jobs, and what they read of them.

use lodge_core::job::JobRow;
use lodge_core::record::CallRecord;
use lodge_core::{AgentId, JobId, SessionId, TurnId};
use lodge_engine::Seen;
use lodge_engine::jobs::{JobSeen, JobWish, JobWork, Read, ToolCallRef};

use crate::world::{SimEvent, SimWorld};

/// Jobs of its session among which a model chooses, the newest.
const RECENT_MAX: usize = 4;
const LIST_MAX: u32 = 20;

/// Something that is read for a model.
#[derive(Debug)]
pub struct SimRead {
    pub asked: ToolCallRef,
    pub agent: AgentId,
    pub session: SessionId,
    pub wish: JobWish,
}

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

    /// Mostly one of its own session, now and then somebody else's.
    fn some_job(&mut self, turn: &TurnId) -> Option<JobId> {
        let session = self.disk.turn(turn)?.row.session.clone();
        if self.rng.chance(150) {
            return self.rng.pick(&self.clients.jobs).cloned();
        }
        let theirs = self.disk.jobs_of(&session);
        let recent = &theirs[theirs.len().saturating_sub(RECENT_MAX)..];
        self.rng.pick(recent).cloned()
    }

    pub fn read_later(&mut self, reading: SimRead) {
        let (life, pause) = (self.life, self.rng.delay(20));
        self.after(pause, SimEvent::JobReads { life, reading: Box::new(reading) });
    }

    /// Reads what is committed at this moment. Another session's jobs are not there.
    pub fn job_reads(&mut self, reading: SimRead) {
        let SimRead { asked, agent, session, wish } = reading;
        let is_theirs = |row: &&JobRow| row.agent == agent && row.session.as_ref() == Some(&session);
        let answer = match &wish {
            JobWish::List { .. } => {
                let listed = self.disk.jobs_of(&session).iter().rev().filter_map(|job| self.disk.job(job));
                let listed = listed.filter(is_theirs).take(LIST_MAX as usize);
                let text = listed.map(|row| row.id.to_string()).collect::<Vec<_>>().join(" ");
                Read { text: format!("listed: {text}"), error: false, told: Vec::new() }
            }
            JobWish::Status { job } => read_one(job, self.disk.job(job).filter(is_theirs)),
            JobWish::Wait { job } | JobWish::Watch { job } | JobWish::Cancel { job } => {
                let theirs = self.disk.job(job).filter(is_theirs);
                if theirs.is_some_and(|row| row.progress.state.is_open()) {
                    return self.fail(format!("{asked:?} is answered, and {job} is not over"));
                }
                read_one(job, theirs)
            }
            JobWish::Submit(_) => return self.fail(format!("{asked:?} has nothing to read")),
        };
        self.tell(Seen::Job(JobSeen::Read { asked, answer }));
    }
}

fn read_one(job: &JobId, theirs: Option<&JobRow>) -> Read {
    match theirs {
        None => Read { text: format!("async job not found: {job}"), error: true, told: Vec::new() },
        Some(row) if row.progress.state.is_open() => {
            Read { text: format!("open: {job}"), error: false, told: Vec::new() }
        }
        Some(_) => Read { text: format!("ended: {job}"), error: false, told: vec![job.clone()] },
    }
}

/// What a runtime makes of such a call; none if it is no such call, or not one that can be understood.
pub fn wish_of(call: &CallRecord) -> Option<JobWish> {
    let job = || call.arguments.parse::<JobId>().ok();
    Some(match call.name.as_str() {
        "job_submit" => {
            let priority: i32 = call.arguments.parse().ok()?;
            let bin = ["sh", "date", "make", "sh", "nope"].get(usize::try_from(priority).ok()?)?;
            let (args, stdin) = (vec![call.name.clone()], Vec::new());
            let (bin, labels) = ((*bin).to_owned(), std::collections::BTreeMap::new());
            JobWish::Submit(JobWork { bin, args, stdin, timeout_ms: 0, priority, output_bytes: 0, labels })
        }
        "job_list" => JobWish::List { status: None, limit: LIST_MAX },
        "job_status" => JobWish::Status { job: job()? },
        "job_wait" => JobWish::Wait { job: job()? },
        "job_watch" => JobWish::Watch { job: job()? },
        "job_cancel" => JobWish::Cancel { job: job()? },
        _ => return None,
    })
}
