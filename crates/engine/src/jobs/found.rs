//! What becomes of jobs when daemons, keepers and agents come and go.

use lodge_core::job::{JobRow, JobState};
use lodge_core::{AgentId, JobId};

use super::JobEffect;
use crate::{Effect, Engine, JobOrder};

impl Engine {
    /// After a start of the daemon: what ended goes into the archive, and sandboxes that should not be there go, so that
    /// their jobs can be settled.
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
        self.hand_out_jobs();
    }

    /// Its keeper is connected: every job that runs by the ledger is asked for again. The keeper knows what it did under
    /// that id, so asking twice starts nothing twice.
    pub(crate) fn resume_jobs(&mut self, agent: &AgentId) {
        self.jobs.adopt(agent);
        let running = self.jobs.of(agent).filter(|row| row.progress.state == JobState::Running);
        let orders: Vec<JobOrder> = running.map(resumed).collect();
        for order in orders {
            self.job_in_sandbox(agent, order);
        }
    }

    /// Its sandbox is gone and nobody starts another: how its jobs ended is found in what it left.
    pub(crate) fn settle_jobs(&mut self, agent: &AgentId) {
        for job in self.jobs.in_state(agent, JobState::Running) {
            self.job_in_sandbox(agent, JobOrder::Kill { job });
            self.step.hurry();
        }
    }

    /// Ends what runs and nobody wants, forgets what is settled, and asks for the outcome of what ended meanwhile.
    pub(crate) fn jobs_found(&mut self, agent: &AgentId, running: Vec<JobId>, ended: Vec<JobId>) {
        self.step.hurry();
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
                // The keeper knows it, so that asking starts nothing: it tells how it ended, also of one that somebody
                // cancelled. A kill is answered for what runs or never ran, and for nothing else.
                Some(row) if row.progress.state == JobState::Running => {
                    self.job_in_sandbox(agent, JobOrder::Start { job, resumed: true });
                }
                Some(row) if row.archived => self.job_in_sandbox(agent, JobOrder::Forget { job }),
                // It waits to be started, or to be archived.
                Some(_) => {}
                None => self.job_in_sandbox(agent, JobOrder::Forget { job }),
            }
        }
    }
}

/// How a job that runs by the ledger is taken up: one that somebody cancelled is not started any more.
fn resumed(row: &JobRow) -> JobOrder {
    let job = row.id.clone();
    match row.progress.cancel {
        Some(_) => JobOrder::Kill { job },
        None => JobOrder::Start { job, resumed: true },
    }
}
