//! Live notifications about output of jobs, for attached clients.

use lodge_core::{AgentId, JobId, SessionId};
use lodge_proto::Output;

use crate::shell::Shell;

impl Shell {
    /// A running job has written this much: notifies the archive, waiting callers and attached clients.
    pub async fn job_wrote(&self, agent: &AgentId, job: &JobId, stdout: u64, stderr: u64) {
        self.jobs.wrote(job, stdout, stderr);
        if !self.hub.has_subscribers() {
            return;
        }
        // Without its session some clients would miss it: they get it later, with the events.
        let id = job.clone();
        let Ok(session) = self.reader.read_few(move |store| store.job_session(&id)).await else { return };
        self.hub.publish_output(Output {
            agent: agent.to_string(),
            session: session.as_ref().map(SessionId::to_string),
            job: job.to_string(),
            stdout_bytes: stdout,
            stderr_bytes: stderr,
        });
    }
}
