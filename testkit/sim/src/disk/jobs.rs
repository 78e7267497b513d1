//! The table of jobs and its rules: states move along their table, final states do not change, and the queue keeps
//! its order.

use std::collections::{BTreeMap, BTreeSet};

use lodge_core::agent::AgentState;
use lodge_core::job::{JobEvent, JobProgress, JobRow, JobState, JobWrite};
use lodge_core::record::{AgentRow, TurnRow};
use lodge_core::{AgentId, JobId, SessionId, Timestamp, TurnId};

use super::SimDisk;
use crate::laws::LawViolation;

#[derive(Debug, Default)]
pub struct JobTable {
    rows: BTreeMap<JobId, JobRow>,
    /// Jobs that a boot loads.
    unsettled: BTreeSet<JobId>,
    /// Ended jobs that were not reported to their session yet.
    untold: BTreeMap<SessionId, BTreeSet<JobId>>,
    of_session: BTreeMap<SessionId, Vec<JobId>>,
    /// How often each job request was accepted.
    accepted: BTreeMap<String, u32>,
    /// Jobs that the retention removed.
    gone: BTreeSet<JobId>,
}

impl JobTable {
    fn index(&mut self, id: &JobId) {
        let Some(row) = self.rows.get(id) else { return };
        let ended = !row.progress.state.is_open();
        let untold = !row.told && row.session.is_some();
        if !ended || !row.archived || untold {
            self.unsettled.insert(id.clone());
        } else {
            self.unsettled.remove(id);
        }
        let Some(session) = &row.session else { return };
        if ended && untold {
            self.untold.entry(session.clone()).or_default().insert(id.clone());
        } else if let Some(left) = self.untold.get_mut(session) {
            left.remove(id);
        }
    }

    fn remove(&mut self, id: &JobId) {
        let Some(row) = self.rows.remove(id) else { return };
        self.gone.insert(id.clone());
        self.unsettled.remove(id);
        if let Some(session) = &row.session {
            self.untold.entry(session.clone()).or_default().remove(id);
            self.of_session.entry(session.clone()).or_default().retain(|known| known != id);
        }
    }
}

impl SimDisk {
    pub(super) fn apply_job(&mut self, write: &JobWrite) -> Result<(), LawViolation> {
        match write {
            JobWrite::New { row, .. } => self.insert_job(row),
            JobWrite::Progress { id, progress } => {
                self.job_moves(id, progress)?;
                self.change_job(id, |row| row.progress = progress.as_ref().clone())
            }
            JobWrite::Archived { id } => {
                if self.job(id).is_some_and(|row| row.progress.state.is_open()) {
                    return Err(format!("{id} is archived, and did not end"));
                }
                self.change_job(id, |row| row.archived = true)
            }
            JobWrite::Told { id } => {
                if self.job(id).is_some_and(|row| row.told) {
                    return Err(format!("{id} is told twice"));
                }
                self.change_job(id, |row| row.told = true)
            }
            // The retention may select a job twice before its removal is recorded.
            JobWrite::OutputRemoved { id } => {
                self.may_expire(id)?;
                self.change_job(id, |row| row.output_removed = true).or(Ok(()))
            }
            JobWrite::Gone { id } => {
                self.may_expire(id)?;
                self.jobs.remove(id);
                Ok(())
            }
        }
    }

    fn insert_job(&mut self, row: &JobRow) -> Result<(), LawViolation> {
        let id = &row.id;
        let fresh =
            row.progress == JobProgress::pending() && !(row.archived || row.told || row.output_removed);
        if !fresh || self.jobs.gone.contains(id) || self.jobs.rows.contains_key(id) {
            return Err(format!("{id} begins as {row:?}, or was stored before"));
        }
        if self.agent(&row.agent).is_none_or(|agent| !agent.state.takes_turns()) {
            return Err(format!("{id} was taken for an agent that does not run"));
        }
        let text = row.request.args.first().cloned().unwrap_or_default();
        *self.jobs.accepted.entry(text).or_insert(0) += 1;
        if let Some(session) = &row.session {
            self.jobs.of_session.entry(session.clone()).or_default().push(id.clone());
        }
        self.jobs.rows.insert(id.clone(), row.clone());
        self.jobs.index(id);
        Ok(())
    }

    fn change_job(&mut self, id: &JobId, change: impl FnOnce(&mut JobRow)) -> Result<(), LawViolation> {
        change(self.jobs.rows.get_mut(id).ok_or_else(|| format!("{id} is not stored"))?);
        self.jobs.index(id);
        Ok(())
    }

    fn may_expire(&self, id: &JobId) -> Result<(), LawViolation> {
        match self.job(id) {
            Some(row) if row.progress.state.is_open() || !row.archived => Err(format!(
                "{id} expires, and is {} and archived: {}",
                row.progress.state.word(),
                row.archived
            )),
            Some(_) | None => Ok(()),
        }
    }

    fn job_moves(&self, id: &JobId, next: &JobProgress) -> Result<(), LawViolation> {
        let row = self.job(id).ok_or_else(|| format!("{id} is not stored"))?;
        let (from, to) = (row.progress.state, next.state);
        let events = [JobEvent::Started, JobEvent::Ended, JobEvent::Failed, JobEvent::Cancelled];
        // The request to end is recorded once.
        let unwanted = from == JobState::Running && row.progress.cancel.is_none();
        let dooms = unwanted && to == from && next.cancel.is_some();
        let moves = dooms || events.iter().any(|event| from.next(*event) == Ok(to));
        if !moves {
            return Err(format!("{id} moved from {} to {}", from.word(), to.word()));
        }
        let ended = !to.is_open();
        let cancelled = next.cancel.is_some() && ended && to != JobState::Cancelled;
        if ended != next.finished_at.is_some() || cancelled {
            return Err(format!("{id} is {} with {next:?}", to.word()));
        }
        if (from, to) == (JobState::Pending, JobState::Running) { self.is_next(row) } else { Ok(()) }
    }

    /// The started job belongs to the eligible agent with the fewest running jobs. Among that agent's jobs it is the first by
    /// priority, then by age.
    fn is_next(&self, row: &JobRow) -> Result<(), LawViolation> {
        let id = &row.id;
        let mine = self.agent(&row.agent).ok_or_else(|| format!("{id} has no agent"))?;
        if mine.state != AgentState::Ready {
            return Err(format!("{id} starts, and its agent is {}", mine.state));
        }
        // Whether an agent with a pending update starts jobs depends on its turns.
        let could = |agent: &&AgentRow| agent.state == AgentState::Ready && agent.next.is_none();
        if !could(&mine) {
            return Ok(());
        }
        let (running, best) = self.job_queue(&row.agent);
        if best != Some((-row.priority, row.created_at)) {
            return Err(format!("{id} starts, and another one of its agent was before it"));
        }
        for other in self.agents().iter().filter(could).filter(|other| other.id != row.agent) {
            let (theirs, waiting) = self.job_queue(&other.id);
            let Some((_, since)) = waiting else { continue };
            if (theirs, since) < (running, row.created_at) {
                return Err(format!(
                    "{id} starts, and it was the turn of {}: {theirs} run there, here {running}",
                    other.id
                ));
            }
        }
        Ok(())
    }

    /// The number of an agent's running jobs, and the priority and age of its first waiting job.
    fn job_queue(&self, agent: &AgentId) -> (usize, Option<(i32, Timestamp)>) {
        let theirs = self.open_jobs().filter(|row| row.agent == *agent);
        let (mut running, mut best) = (0, None);
        for row in theirs {
            let place = (-row.priority, row.created_at);
            match row.progress.state {
                JobState::Running => running += 1,
                JobState::Pending if best.is_none_or(|best| place < best) => best = Some(place),
                JobState::Pending | JobState::Done | JobState::Error | JobState::Cancelled => {}
            }
        }
        (running, best)
    }

    /// When a turn begins, all ended jobs of its session are reported. An earlier session of the same name may have had jobs of
    /// another agent.
    pub(super) fn check_all_reported(&self, turn: &TurnId) -> Result<(), LawViolation> {
        let Some(TurnRow { agent, session, .. }) = self.turn(turn).map(|kept| &kept.row) else {
            return Ok(());
        };
        let untold = self.jobs.untold.get(session).into_iter().flatten();
        let mut theirs = untold.filter(|id| self.job(id).is_some_and(|row| row.agent == *agent));
        match theirs.next() {
            Some(id) => Err(format!("a turn of {session} begins, and {id} ended and is not told")),
            None => Ok(()),
        }
    }

    /// Forgets all reports of ended jobs: the bug of a store that loses them.
    pub fn forget_reports(&mut self) {
        let ids: Vec<JobId> = self.jobs.rows.keys().cloned().collect();
        for id in ids {
            self.jobs.rows.entry(id.clone()).and_modify(|row| row.told = false);
            self.jobs.index(&id);
        }
    }

    pub(super) fn unsettled_jobs(&self) -> Vec<JobRow> {
        self.jobs.unsettled.iter().filter_map(|id| self.job(id)).cloned().collect()
    }

    pub fn job(&self, id: &JobId) -> Option<&JobRow> {
        self.jobs.rows.get(id)
    }

    pub fn jobs(&self) -> impl Iterator<Item = &JobRow> {
        self.jobs.rows.values()
    }

    pub fn open_jobs(&self) -> impl Iterator<Item = &JobRow> {
        let unsettled = self.jobs.unsettled.iter().filter_map(|id| self.job(id));
        unsettled.filter(|row| row.progress.state.is_open())
    }

    /// All jobs of a session, the oldest first.
    pub fn jobs_of(&self, session: &SessionId) -> &[JobId] {
        self.jobs.of_session.get(session).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether the retention removed a job.
    pub fn job_went(&self, id: &JobId) -> bool {
        self.jobs.gone.contains(id)
    }

    /// Whether output of an agent's jobs is not in the archive, or may get there.
    pub fn has_unarchived_job(&self, agent: &AgentId) -> bool {
        let mut unsettled = self.jobs.unsettled.iter().filter_map(|id| self.job(id));
        unsettled.any(|row| row.agent == *agent && !row.archived)
    }

    pub fn jobs_accepted(&self, text: &str) -> u32 {
        self.jobs.accepted.get(text).copied().unwrap_or(0)
    }
}

/// The jobs that a text names.
pub fn jobs_in(text: &str) -> Vec<JobId> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter_map(|word| word.parse().ok()).collect()
}
