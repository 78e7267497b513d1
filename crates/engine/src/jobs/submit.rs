//! The start of a job: submitted, pending, started.

use lodge_core::agent::AgentState;
use lodge_core::event::{AgentWorking, EventBody, JobOutput, JobStarted, JobSubmitted};
use lodge_core::job::{JobEvent, JobProgress, JobRequest, JobRow, JobState, JobWrite};
use lodge_core::job_check::{JobFault, check_args, check_labels, check_priority, check_stdin, check_timeout};
use lodge_core::limits::{
    AGENT_JOBS_PENDING_MAX, AGENT_JOBS_PENDING_OWN, JOB_OUTPUT_BYTES_MAX, JOB_OUTPUT_BYTES_MIN,
    JOB_OUTPUT_DISK_SHARE, JOB_OUTPUT_EVERY_MS, JOBS_PENDING_MAX, JOBS_UNARCHIVED_MAX,
};
use lodge_core::record::AgentRow;
use lodge_core::{AgentId, JobId, SessionId, TurnId};

use super::JobAnswer;
use super::refusal::JobRefusal;
use super::{JobSpec, NewJob};
use crate::agents::no_agent;
use crate::sessions::refusal::SessionRefusal;
use crate::{Answer, Caller, Engine, JobOrder, Refusal};

/// Whose a job is.
#[derive(Debug)]
pub(crate) struct JobOrigin {
    pub agent: AgentId,
    pub session: Option<SessionId>,
    /// The turn whose tool submitted it.
    pub turn: Option<TurnId>,
}

/// The fields of every event of a job.
#[derive(Debug)]
pub(crate) struct JobEventFields {
    pub job: String,
    pub session: Option<String>,
    pub turn: Option<String>,
    /// Its program.
    pub name: String,
}

impl Engine {
    pub(crate) fn submit_job(&mut self, caller: Caller, new: NewJob) -> Result<(), Refusal> {
        let NewJob { agent, session, work } = new;
        self.admit_job(&agent, &work)?;
        if let Some(session) = &session {
            self.check_owner(session, &agent)?;
        }
        let id = self.take_job(JobOrigin { agent, session, turn: None }, work);
        self.reply_job(caller, &id);
        Ok(())
    }

    /// All checks that can refuse a job, before any change.
    pub(crate) fn admit_job(&self, id: &AgentId, work: &JobSpec) -> Result<(), Refusal> {
        let agent = self.agents.get(id).ok_or_else(|| no_agent(id))?;
        if work.bin.is_empty() {
            return Err(JobRefusal::NoBin { declared: declared(&agent.row) }.into());
        }
        self.takes_work(agent)?;
        if !agent.row.spec.tools.iter().any(|tool| tool.name == work.bin) {
            let declared = declared(&agent.row);
            let (agent, bin) = (agent.row.name.clone(), work.bin.clone());
            return Err(JobRefusal::BinNotDeclared { agent, bin, declared }.into());
        }
        check(work).map_err(JobRefusal::from)?;
        if self.jobs.pending_of(id) >= AGENT_JOBS_PENDING_MAX {
            let agent = agent.row.name.clone();
            return Err(JobRefusal::AgentQueueFull { agent, most: AGENT_JOBS_PENDING_MAX }.into());
        }
        // Other agents may have filled the queue of the daemon; each agent has a few reserved places.
        if self.jobs.pending() >= JOBS_PENDING_MAX && self.jobs.pending_of(id) >= AGENT_JOBS_PENDING_OWN {
            return Err(JobRefusal::QueueFull { most: JOBS_PENDING_MAX }.into());
        }
        Ok(())
    }

    /// A session of another agent has no jobs of this one.
    fn check_owner(&self, id: &SessionId, agent: &AgentId) -> Result<(), Refusal> {
        let Some(session) = self.sessions.get(id).filter(|session| session.row.agent != *agent) else {
            return Ok(());
        };
        let owner = self.agent_name(&session.row.agent);
        Err(SessionRefusal::OtherAgent { session: id.clone(), owner }.into())
    }

    /// Records a job, and starts it if a slot is free.
    pub(crate) fn take_job(&mut self, origin: JobOrigin, work: JobSpec) -> JobId {
        let JobOrigin { agent, session, turn } = origin;
        let JobSpec { bin, args, stdin, timeout_ms, priority, output_bytes, labels } = work;
        let output_bytes = match output_bytes {
            0 => self.host.settings.job_output,
            asked => asked.clamp(JOB_OUTPUT_BYTES_MIN, JOB_OUTPUT_BYTES_MAX),
        };
        let output_bytes = output_bytes.min(self.output_share(&agent));
        let turn = turn.as_ref().map(TurnId::to_string);
        let row = JobRow {
            id: JobId::new(&mut self.ids, self.step.now),
            agent,
            session,
            priority,
            created_at: self.step.now,
            request: JobRequest { bin, args, timeout_ms, output_bytes, labels, turn },
            progress: JobProgress::pending(),
            archived: false,
            told: false,
            output_removed: false,
        };
        let id = row.id.clone();
        self.step.write(JobWrite::New { row: Box::new(row.clone()), stdin });
        self.jobs.insert(row, self.seq);
        self.job_event(&id, |JobEventFields { job, session, turn, name }| JobSubmitted {
            job,
            session,
            turn,
            name,
        });
        self.start_pending_jobs();
        id
    }

    /// The most bytes to keep of each stream of a job: output counts against the `LIMIT disk` of its agent.
    fn output_share(&self, agent: &AgentId) -> u64 {
        let limits = self.agents.get(agent).and_then(|agent| agent.row.spec.limits);
        let disk = limits.and_then(|limits| limits.disk_bytes);
        disk.map_or(u64::MAX, |disk| (disk / JOB_OUTPUT_DISK_SHARE).max(JOB_OUTPUT_BYTES_MIN))
    }

    /// Starts jobs while there are slots for them.
    pub(crate) fn start_pending_jobs(&mut self) {
        // Output that is not archived is in files and uses disk space without a limit.
        while self.jobs.unarchived() < JOBS_UNARCHIVED_MAX
            && let Some(slots) = self.jobs.free_slots(self.host.settings.max_jobs)
            && let Some(id) = self.jobs.next(slots, |agent| self.is_up(agent), |row| self.may_start(row))
        {
            self.start_job(&id);
        }
    }

    fn is_up(&self, agent: &AgentId) -> bool {
        self.agents.get(agent).is_some_and(|agent| agent.row.state == AgentState::Ready)
    }

    /// Whether a job of an agent that is up may start.
    fn may_start(&self, row: &JobRow) -> bool {
        let Some(agent) = self.agents.get(&row.agent) else { return false };
        // An agent with a pending update first finishes its running turns, and a running turn may wait for this job.
        agent.row.next.is_none() || row.session.as_ref().is_some_and(|session| self.is_working(session))
    }

    /// Whether a turn of this session runs.
    fn is_working(&self, session: &SessionId) -> bool {
        let first = self.sessions.get(session).and_then(|session| session.live.front());
        first.and_then(|turn| self.turns.get(turn)).is_some_and(|turn| turn.is_running())
    }

    fn start_job(&mut self, id: &JobId) {
        let boot = self.host.boot.clone();
        let Some(row) = self.jobs.get(id) else { return };
        let (agent, bin) = (row.agent.clone(), row.request.bin.as_str());
        let Some(tools) = self.agents.get(&agent).map(|agent| &agent.row.spec.tools) else { return };
        if !tools.iter().any(|tool| tool.name == bin) {
            // The agent was updated while the job waited.
            let why = format!("its agent no longer has the bin `{bin}`");
            self.end_unstarted(id, JobEvent::Failed, why);
            return;
        }
        let Ok(state) = row.progress.state.next(JobEvent::Started) else { return };
        let progress =
            JobProgress { state, boot: Some(boot), started_at: Some(self.step.now), ..row.progress.clone() };
        let is_first = !self.is_at_work(&agent);
        self.set_progress(id, progress);
        self.job_event(id, |JobEventFields { job, session, turn, name }| JobStarted {
            job,
            session,
            turn,
            name,
        });
        if is_first {
            self.agent_event(&agent, |name| AgentWorking { name });
        }
        self.job_in_sandbox(&agent, JobOrder::Start { job: id.clone(), resumed: false });
    }

    /// Changes the state of a job, and records the whole row.
    pub(crate) fn set_progress(&mut self, id: &JobId, progress: JobProgress) {
        self.step.write(JobWrite::Progress { id: id.clone(), progress: Box::new(progress.clone()) });
        self.jobs.change(id, |row| row.progress = progress);
    }

    /// Output events are periodic, and force no commit.
    pub(crate) fn job_wrote(&mut self, id: &JobId, stdout: u64, stderr: u64) {
        let runs = self.jobs.get(id).is_some_and(|row| row.progress.state == JobState::Running);
        if runs && self.jobs.output_due(id, self.step.now, JOB_OUTPUT_EVERY_MS) {
            self.job_event(id, |JobEventFields { job, session, turn, name }| JobOutput {
                job,
                session,
                turn,
                name,
                stdout_bytes: stdout,
                stderr_bytes: stderr,
            });
        }
    }

    /// Appends an event about a job, in its agent's stream.
    pub(crate) fn job_event<B: Into<EventBody>>(
        &mut self,
        id: &JobId,
        body: impl FnOnce(JobEventFields) -> B,
    ) {
        let Some(row) = self.jobs.get(id) else { return };
        let of = JobEventFields {
            job: id.to_string(),
            session: row.session.as_ref().map(SessionId::to_string),
            turn: row.request.turn.clone(),
            name: row.request.bin.clone(),
        };
        let stream = row.agent.to_string();
        self.event(&stream, body(of));
    }

    pub(crate) fn reply_job(&mut self, caller: Caller, id: &JobId) {
        let Some(row) = self.jobs.get(id) else { return };
        let name = self.agents.get(&row.agent).map(|agent| agent.row.name.as_str()).unwrap_or_default();
        let answer = JobAnswer { row: row.clone(), agent_name: name.to_owned() };
        self.reply(caller, Answer::Job(Box::new(answer)));
    }
}

fn check(work: &JobSpec) -> Result<(), JobFault> {
    check_args(&work.args)?;
    check_stdin(&work.stdin)?;
    check_timeout(work.timeout_ms)?;
    check_priority(work.priority)?;
    check_labels(&work.labels)
}

/// The bins of an agent.
fn declared(row: &AgentRow) -> String {
    let mut names: Vec<&str> = row.spec.tools.iter().map(|tool| tool.name.as_str()).collect();
    names.sort_unstable();
    let names = if names.is_empty() { "(none)".to_owned() } else { names.join(", ") };
    format!("it has: {names}")
}
