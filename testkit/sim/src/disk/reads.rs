//! The reads of `act/` from the simulated store.

use lodge_core::epoch::Summary;
use lodge_core::job::JobRow;
use lodge_core::record::{AgentFact, ImageRecord, MessageRow};
use lodge_core::sandbox::{SandboxExecRow, SandboxFact};
use lodge_core::{AgentId, ExecId, JobId, SandboxId, SessionId};
use lodge_daemon::act::ports::WorkReads;
use lodge_store::ReadError;

use super::SimDisk;
use crate::images::agent_contents;

impl SimDisk {
    pub fn agent_of_sandbox(&self, sandbox: &SandboxId) -> Option<AgentId> {
        self.agents.iter().find(|row| row.sandbox == *sandbox).map(|row| row.id.clone())
    }
}

impl WorkReads for SimDisk {
    fn agent_fact(&self, id: &AgentId) -> Result<Option<AgentFact>, ReadError> {
        Ok(SimDisk::agent_fact(self, id))
    }

    fn image(&self, digest: &str) -> Result<Option<ImageRecord>, ReadError> {
        Ok(self.has_image(digest).then(|| agent_contents(digest)).flatten())
    }

    fn has_live_turn(&self, agent: &AgentId) -> Result<bool, ReadError> {
        Ok(self.live_turns().any(|turn| turn.row.agent == *agent))
    }

    fn has_unarchived_job(&self, agent: &AgentId) -> Result<bool, ReadError> {
        Ok(SimDisk::has_unarchived_job(self, agent))
    }

    fn job_to_start(&self, id: &JobId) -> Result<Option<(JobRow, Vec<u8>)>, ReadError> {
        Ok(self.job(id).map(|row| (row.clone(), Vec::new())))
    }

    fn sandbox_fact(&self, id: &SandboxId) -> Result<Option<SandboxFact>, ReadError> {
        let head = self.streams.get(id.as_str()).copied().unwrap_or(0);
        Ok(self.standalones.sandbox(id).map(|row| SandboxFact { row: row.clone(), head }))
    }

    fn exec(&self, id: &ExecId) -> Result<Option<SandboxExecRow>, ReadError> {
        Ok(self.standalones.exec(id).cloned())
    }

    fn exec_to_start(&self, id: &ExecId) -> Result<Option<(SandboxExecRow, Vec<u8>)>, ReadError> {
        Ok(self.standalones.exec(id).map(|row| (row.clone(), Vec::new())))
    }

    fn newest_message(&self, session: &SessionId) -> Result<u64, ReadError> {
        Ok(self.session(session).map_or(0, |fact| fact.messages))
    }

    fn context(&self, session: &SessionId, from: u32, upto: u32) -> Result<Vec<MessageRow>, ReadError> {
        let path = self.path(session);
        let turns = path.iter().filter_map(|id| self.turn(id));
        let turns = turns.filter(|kept| (from..=upto).contains(&kept.row.number));
        Ok(turns.flat_map(|kept| kept.messages.iter().cloned()).collect())
    }

    fn summary(&self, session: &SessionId, epoch: u32) -> Result<Option<String>, ReadError> {
        let on_path = self.epochs.get(session).into_iter().flatten().filter(|(_, dropped)| *dropped == 0);
        let found = on_path.map(|(row, _)| row).find(|row| row.number == epoch);
        Ok(found.and_then(|row| match &row.summary {
            Summary::Text(text) => Some(text.clone()),
            Summary::Nothing | Summary::Kept => None,
        }))
    }
}
