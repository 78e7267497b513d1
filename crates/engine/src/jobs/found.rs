//! Jobs after a restart of a daemon, a keeper or an agent.

use lodge_core::job::{JobRow, JobState};
use lodge_core::{AgentId, JobId};

use super::JobEffect;
use crate::{Effect, Engine, JobOrder};

impl Engine {
    /// After the daemon starts: archives ended jobs, and ends sandboxes that should not exist, so that their jobs can
    /// be settled.
    pub(crate) fn adopt_jobs(&mut self) {
        let ended = self.jobs.all().filter(|row| !row.progress.state.is_open() && !row.archived);
        for row in ended {
            self.step.act(Effect::Job(JobEffect::Archive { job: row.id.clone() }));
        }
        let down = self
            .agents
            .values()
            .filter(|agent| !agent.row.state.takes_turns() && self.jobs.running_of(&agent.row.id) > 0);
        let down: Vec<AgentId> = down.map(|agent| agent.row.id.clone()).collect();
        for id in down {
            self.down(&id);
        }
        self.start_pending_jobs();
    }

    /// The keeper is connected: requests every job that the ledger records as running. The keeper knows each id, so a
    /// repeated request starts nothing twice.
    pub(crate) fn resume_jobs(&mut self, agent: &AgentId) {
        self.jobs.adopt(agent);
        let running = self.jobs.of(agent).filter(|row| row.progress.state == JobState::Running);
        let orders: Vec<JobOrder> = running.map(resumed).collect();
        for order in orders {
            self.job_in_sandbox(agent, order);
        }
    }

    /// The sandbox is gone and no new one starts. The outcomes are read from its files.
    pub(crate) fn settle_jobs(&mut self, agent: &AgentId) {
        for job in self.jobs.in_state(agent, JobState::Running) {
            self.job_in_sandbox(agent, JobOrder::Kill { job });
            self.step.mark_urgent();
        }
    }

    /// Ends jobs that are not wanted, forgets settled ones, and requests the outcomes of those that ended.
    pub(crate) fn jobs_found(&mut self, agent: &AgentId, running: Vec<JobId>, ended: Vec<JobId>) {
        self.step.mark_urgent();
        for job in running {
            match self.jobs.get(&job).map(|row| row.progress.state) {
                Some(JobState::Pending | JobState::Running) => {}
                None | Some(JobState::Done | JobState::Error | JobState::Cancelled) => {
                    self.job_in_sandbox(agent, JobOrder::Kill { job });
                }
            }
        }
        for job in ended {
            match self.jobs.get(&job) {
                // The keeper knows the job, so this request starts nothing: the keeper reports the end, also of a
                // cancelled job. A kill is answered only for a job that runs or never ran.
                Some(row) if row.progress.state == JobState::Running => {
                    self.job_in_sandbox(agent, JobOrder::Start { job, resumed: true });
                }
                Some(row) if row.archived => self.job_in_sandbox(agent, JobOrder::Forget { job }),
                // It waits for its start or for the archive.
                Some(_) => {}
                None => self.job_in_sandbox(agent, JobOrder::Forget { job }),
            }
        }
    }
}

/// How a job that the ledger records as running continues. A cancelled job is not started.
fn resumed(row: &JobRow) -> JobOrder {
    let job = row.id.clone();
    match row.progress.cancel {
        Some(_) => JobOrder::Kill { job },
        None => JobOrder::Start { job, resumed: true },
    }
}
