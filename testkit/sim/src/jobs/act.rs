//! What an agent's task does about jobs: asks the keeper, or looks at what is left where there is none.

use lodge_core::job::JobStream;
use lodge_core::{AgentId, Cause, JobId};
use lodge_engine::jobs::{JobEnd, JobSeen};
use lodge_engine::{ExecHow, JobOrder, Seen};
use lodge_exec::ExecName;

use crate::actor::how;
use crate::keeper::{SimCommand, SimExecState, SimExit};
use crate::world::SimWorld;

impl SimWorld {
    pub fn job_order(&mut self, agent: &AgentId, order: JobOrder) {
        match order {
            JobOrder::Start { job, resumed } => self.start_job(agent, &job, resumed),
            JobOrder::Kill { job } => self.kill_job(agent, &job),
            JobOrder::Forget { job } => self.forget_job(agent, &job),
        }
    }

    fn start_job(&mut self, agent: &AgentId, job: &JobId, resumed: bool) {
        let boot = self.host().boot;
        let Some(up) = self.linked(agent) else { return };
        let sandbox = up.plan.sandbox.clone();
        let Some(row) = self.disk.job(job) else { return };
        let other_boot = row.progress.boot.as_ref() != Some(&boot);
        let shelf = self.machine.sandboxes.get(&sandbox).map(|found| &found.shelf);
        let is_claimed = shelf.is_some_and(|shelf| shelf.contains_key(&ExecName::Job(job.clone())));
        if resumed && other_boot && !is_claimed {
            return self.report_job_end(job, ExecHow::Lost, 0);
        }
        self.send(agent, SimCommand::Start { exec: ExecName::Job(job.clone()) });
    }

    /// The keeper kills it, or says how it ended. Without one, what is left of it tells that.
    fn kill_job(&mut self, agent: &AgentId, job: &JobId) {
        if self.linked(agent).is_some() {
            return self.send(agent, SimCommand::Kill { exec: ExecName::Job(job.clone()) });
        }
        let Some(sandbox) = self.disk.agent(agent).map(|row| row.sandbox.clone()) else { return };
        if self.machine.is_held(&sandbox) {
            return;
        }
        let found = self.machine.sandbox(&sandbox, agent);
        let exec = ExecName::Job(job.clone());
        let is_claimed = found.shelf.contains_key(&exec);
        match found.known(&exec) {
            SimExecState::Exited(ended) => self.job_exited(agent, job, ended),
            SimExecState::Lost if is_claimed => self.job_lost(agent, job),
            SimExecState::Lost => self.report_job_end(job, ExecHow::NotStarted, 0),
            SimExecState::Running => {}
        }
    }

    fn forget_job(&mut self, agent: &AgentId, job: &JobId) {
        if self.linked(agent).is_some() {
            return self.send(agent, SimCommand::Forget { exec: ExecName::Job(job.clone()) });
        }
        let Some(sandbox) = self.disk.agent(agent).map(|row| row.sandbox.clone()) else { return };
        // A keeper that is connected later tells of it, and is asked to forget it then.
        if !self.machine.is_held(&sandbox) {
            self.remove_job_file(&sandbox, job);
        }
    }

    pub fn job_exited(&mut self, agent: &AgentId, job: &JobId, ended: SimExit) {
        let wrote = self.job_bytes(agent, job);
        self.report_job_end(job, how(ended), wrote);
    }

    /// Claimed by a keeper that died, without an outcome: what was captured is all that is known.
    pub fn job_lost(&mut self, agent: &AgentId, job: &JobId) {
        let wrote = self.job_bytes(agent, job);
        self.tally.unknown += 1;
        self.report_job_end(job, ExecHow::Lost, wrote);
    }

    /// What the file of a job says that it wrote.
    fn job_bytes(&self, agent: &AgentId, job: &JobId) -> u64 {
        let row = self.disk.agent(agent);
        let sandbox = row.and_then(|row| self.machine.sandboxes.get(&row.sandbox));
        sandbox.and_then(|sandbox| sandbox.files.get(job)).map_or(0, |file| file.wrote)
    }

    pub fn report_job_end(&mut self, job: &JobId, how: ExecHow, wrote: u64) {
        let limited = self.disk.job(job).is_some_and(|row| row.request.timeout_ms > 0);
        let cause = (limited && how == ExecHow::Killed { signal: 9 }).then_some(Cause::Timeout);
        let (stdout, stderr) = (JobStream { seen: wrote, kept: wrote }, JobStream::default());
        let end = JobEnd { how, cause, detail: None, stdout, stderr };
        self.tell(Seen::Job(JobSeen::Ended { job: job.clone(), end }));
    }

    /// It wrote so much by now: the archive may take it, and the engine hears of it.
    pub fn job_wrote(&mut self, job: &JobId, bytes: u64) {
        self.archive_some(job);
        self.tell(Seen::Job(JobSeen::Output { job: job.clone(), stdout: bytes, stderr: 0 }));
    }

    /// What a keeper that was just connected knows of jobs.
    pub fn jobs_found(&mut self, agent: &AgentId, known: &[(ExecName, SimExecState)]) {
        let (mut running, mut ended) = (Vec::new(), Vec::new());
        for (exec, state) in known {
            let ExecName::Job(job) = exec else { continue };
            match state {
                SimExecState::Running => running.push(job.clone()),
                SimExecState::Exited(_) | SimExecState::Lost => ended.push(job.clone()),
            }
        }
        if running.is_empty() && ended.is_empty() {
            return;
        }
        running.iter().for_each(|job| self.archive_some(job));
        self.tell(Seen::Job(JobSeen::Found { agent: agent.clone(), running, ended }));
    }
}
