//! Refusals of requests about jobs.

use lodge_core::JobId;
use lodge_core::job_check::JobFault;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobRefusal {
    #[error("async job not found: {given}")]
    NotFound { given: String },
    #[error("async job not currently running")]
    NotRunning { job: JobId },
    #[error("no bin is named")]
    NoBin { declared: String },
    #[error("agent `{agent}` has no bin `{bin}`; {declared}")]
    BinNotDeclared { agent: String, bin: String, declared: String },
    #[error(transparent)]
    Fault(#[from] JobFault),
    #[error("{most} jobs of agent `{agent}` wait to be run")]
    AgentQueueFull { agent: String, most: usize },
    #[error("{most} jobs of all agents wait to be run")]
    QueueFull { most: usize },
}

impl JobRefusal {
    pub(crate) fn code(&self) -> &'static str {
        match self {
            JobRefusal::NotFound { .. } => "job.not_found",
            JobRefusal::NotRunning { .. } => "job.not_running",
            JobRefusal::NoBin { .. } => "params.invalid",
            JobRefusal::BinNotDeclared { .. } => "bin.not_declared",
            JobRefusal::Fault(fault) => fault.code(),
            JobRefusal::AgentQueueFull { .. } | JobRefusal::QueueFull { .. } => "job.queue_full",
        }
    }

    pub(crate) fn hint(&self) -> String {
        match self {
            JobRefusal::NotFound { .. } => "`lodge jobs ls` lists all jobs".to_owned(),
            JobRefusal::NotRunning { job } => format!("`lodge jobs inspect {job}` shows how it ended"),
            JobRefusal::NoBin { declared } => declared.clone(),
            JobRefusal::BinNotDeclared { .. } => {
                "name one of them; an agent gets others with its image".to_owned()
            }
            JobRefusal::Fault(fault) => fault.hint(),
            JobRefusal::AgentQueueFull { .. } | JobRefusal::QueueFull { .. } => {
                "submit it again when some of them have started; `lodge jobs ls --status pending` lists them"
                    .to_owned()
            }
        }
    }
}
