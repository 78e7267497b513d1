//! Live notifications about output of jobs, for attached clients.

use lodge_core::{AgentId, JobId, SessionId};
use lodge_proto::Output;

use crate::shell::Shell;

impl Shell {
    /// A job that runs wrote so much by now: the archive, those who wait for it and those who are attached hear of it.
    pub async fn job_wrote(&self, agent: &AgentId, job: &JobId, stdout: u64, stderr: u64) {
        self.jobs.wrote(job, stdout, stderr);
        if !self.hub.is_heard() {
            return;
        }
        // Without its session some would not hear: they hear of it with the events, and later.
        let id = job.clone();
        let Ok(session) = self.reader.read_few(move |store| store.job_session(&id)).await else { return };
        self.hub.wrote(Output {
            agent: agent.to_string(),
            session: session.as_ref().map(SessionId::to_string),
            job: job.to_string(),
            stdout_bytes: stdout,
            stderr_bytes: stderr,
        });
    }
}
