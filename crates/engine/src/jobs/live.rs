//! The jobs in memory: pending and running jobs, and ended ones that are not archived or not reported.
//!
//! Every change of one goes through [`LiveJobs::change`], so that what is counted is always what is there.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use lodge_core::job::{JobRow, JobState};
use lodge_core::limits::JOB_EXTRA_SLOTS;
use lodge_core::{AgentId, JobId, SessionId, Timestamp};

/// A job in memory.
#[derive(Debug)]
pub(crate) struct LiveJob {
    pub row: JobRow,
    /// The newest event when the job arrived, which orders jobs of the same time; 0 for a job of an earlier daemon.
    came: u64,
    /// The time of the last output event.
    pub output_at: Option<Timestamp>,
    /// The ledger has it as running, and its sandbox died: its files have the outcome.
    orphaned: bool,
}

impl LiveJob {
    fn rank(&self) -> JobRank {
        JobRank {
            priority: Reverse(self.row.priority),
            created_at: self.row.created_at,
            came: self.came,
            id: self.row.id.clone(),
        }
    }

    /// Ended, and not reported to its session.
    fn is_unreported(&self) -> bool {
        !self.row.progress.state.is_open() && !self.row.told && self.row.session.is_some()
    }

    /// Its output is in files, or may get there.
    fn has_files(&self) -> bool {
        self.row.progress.state.is_open() || !self.row.archived
    }
}

/// The order among the jobs of an agent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct JobRank {
    priority: Reverse<i32>,
    created_at: Timestamp,
    came: u64,
    id: JobId,
}

/// The jobs of one agent.
#[derive(Debug, Default)]
struct AgentJobs {
    pending: BTreeSet<JobRank>,
    running: usize,
    /// Ended, and not in the archive.
    unarchived: usize,
}

impl AgentJobs {
    fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.running == 0 && self.unarchived == 0
    }
}

/// Which agents may start a job now. A running job is never ended for another one, so a job that never ends keeps its
/// slot. The extra slots prevent such jobs of one agent from blocking the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FreeSlots {
    /// Any agent.
    Shared,
    /// All shared slots are taken: only agents without a running job.
    Extra,
}

#[derive(Debug, Default)]
pub(crate) struct LiveJobs {
    jobs: BTreeMap<JobId, LiveJob>,
    queues: BTreeMap<AgentId, AgentJobs>,
    pending: usize,
    running: usize,
    unarchived: usize,
    unreported: BTreeMap<SessionId, BTreeSet<JobId>>,
    unreported_count: usize,
}

impl LiveJobs {
    pub(crate) fn insert(&mut self, row: JobRow, came: u64) {
        let id = row.id.clone();
        let job = LiveJob { row, came, output_at: None, orphaned: false };
        self.count(&job);
        self.jobs.insert(id, job);
    }

    pub(crate) fn get(&self, id: &JobId) -> Option<&JobRow> {
        self.jobs.get(id).map(|job| &job.row)
    }

    /// The job, if it is pending or running.
    pub(crate) fn open(&self, id: &JobId) -> Option<&JobRow> {
        self.get(id).filter(|row| row.progress.state.is_open())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &JobRow> {
        self.jobs.values().map(|job| &job.row)
    }

    pub(crate) fn of<'a>(&'a self, agent: &AgentId) -> impl Iterator<Item = &'a JobRow> {
        self.all().filter(move |row| row.agent == *agent)
    }

    /// The jobs of an agent in a state, oldest first.
    pub(crate) fn in_state(&self, agent: &AgentId, state: JobState) -> Vec<JobId> {
        self.of(agent).filter(|row| row.progress.state == state).map(|row| row.id.clone()).collect()
    }

    /// The running jobs of an agent whose sandbox has not died.
    pub(crate) fn alive(&self, agent: &AgentId) -> Vec<JobId> {
        let alive = self.jobs.values().filter(|job| {
            job.row.agent == *agent && job.row.progress.state == JobState::Running && !job.orphaned
        });
        alive.map(|job| job.row.id.clone()).collect()
    }

    /// The sandbox of an agent died, and its jobs with it.
    pub(crate) fn orphan(&mut self, agent: &AgentId) {
        self.jobs.values_mut().filter(|job| job.row.agent == *agent).for_each(|job| job.orphaned = true);
    }

    /// A new sandbox of the agent takes over its jobs.
    pub(crate) fn adopt(&mut self, agent: &AgentId) {
        self.jobs.values_mut().filter(|job| job.row.agent == *agent).for_each(|job| job.orphaned = false);
    }

    /// Changes a job, and removes it from memory when nothing is left to do for it.
    pub(crate) fn change(&mut self, id: &JobId, change: impl FnOnce(&mut JobRow)) {
        let Some(mut job) = self.jobs.remove(id) else { return };
        self.uncount(&job);
        change(&mut job.row);
        if job.has_files() || job.is_unreported() {
            self.count(&job);
            self.jobs.insert(id.clone(), job);
        }
    }

    pub(crate) fn forget(&mut self, id: &JobId) {
        if let Some(job) = self.jobs.remove(id) {
            self.uncount(&job);
        }
    }

    /// Whether output of a job should become an event now. The caller records that event.
    pub(crate) fn output_due(&mut self, id: &JobId, now: Timestamp, every_ms: i64) -> bool {
        let Some(job) = self.jobs.get_mut(id) else { return false };
        let since = job.output_at.map(|at| now.ms() - at.ms());
        let due = since.is_none_or(|since| !(0..every_ms).contains(&since));
        if due {
            job.output_at = Some(now);
        }
        due
    }

    fn count(&mut self, job: &LiveJob) {
        let queue = self.queues.entry(job.row.agent.clone()).or_default();
        match job.row.progress.state {
            JobState::Pending => {
                queue.pending.insert(job.rank());
                self.pending += 1;
            }
            JobState::Running => {
                queue.running += 1;
                self.running += 1;
            }
            JobState::Done | JobState::Error | JobState::Cancelled if !job.row.archived => {
                queue.unarchived += 1;
                self.unarchived += 1;
            }
            JobState::Done | JobState::Error | JobState::Cancelled => {}
        }
        if queue.is_empty() {
            self.queues.remove(&job.row.agent);
        }
        if let Some(session) = job.row.session.as_ref().filter(|_| job.is_unreported()) {
            self.unreported.entry(session.clone()).or_default().insert(job.row.id.clone());
            self.unreported_count += 1;
        }
    }

    fn uncount(&mut self, job: &LiveJob) {
        let queue = self.queues.entry(job.row.agent.clone()).or_default();
        match job.row.progress.state {
            JobState::Pending => {
                queue.pending.remove(&job.rank());
                self.pending -= 1;
            }
            JobState::Running => {
                queue.running -= 1;
                self.running -= 1;
            }
            JobState::Done | JobState::Error | JobState::Cancelled if !job.row.archived => {
                queue.unarchived -= 1;
                self.unarchived -= 1;
            }
            JobState::Done | JobState::Error | JobState::Cancelled => {}
        }
        if queue.is_empty() {
            self.queues.remove(&job.row.agent);
        }
        if let Some(session) = job.row.session.as_ref().filter(|_| job.is_unreported())
            && let Some(untold) = self.unreported.get_mut(session)
        {
            untold.remove(&job.row.id);
            self.unreported_count -= 1;
            if untold.is_empty() {
                self.unreported.remove(session);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.jobs.len()
    }

    pub(crate) fn pending(&self) -> usize {
        self.pending
    }

    pub(crate) fn running(&self) -> usize {
        self.running
    }

    pub(crate) fn unarchived(&self) -> usize {
        self.unarchived
    }

    /// Whether any job is pending or running.
    pub(crate) fn has_open(&self) -> bool {
        self.pending + self.running > 0
    }

    pub(crate) fn unreported(&self) -> usize {
        self.unreported_count
    }

    pub(crate) fn pending_of(&self, agent: &AgentId) -> usize {
        self.queues.get(agent).map_or(0, |queue| queue.pending.len())
    }

    pub(crate) fn running_of(&self, agent: &AgentId) -> usize {
        self.queues.get(agent).map_or(0, |queue| queue.running)
    }

    /// Whether output of the agent's jobs is in files, or may get there.
    pub(crate) fn has_files(&self, agent: &AgentId) -> bool {
        self.queues.contains_key(agent)
    }

    /// Ended jobs that are not reported to a session, oldest first.
    pub(crate) fn unreported_of(&self, session: &SessionId) -> Vec<JobId> {
        self.unreported.get(session).into_iter().flatten().cloned().collect()
    }

    /// The oldest job that stays in memory only because its session has no report of it yet.
    pub(crate) fn oldest_unreported(&self) -> Option<JobId> {
        let mut waiting = self.jobs.values().filter(|job| job.is_unreported() && !job.has_files());
        waiting.next().map(|job| job.row.id.clone())
    }

    /// Which agents may start a job, with `max` slots for all of them. None: no agent may.
    pub(crate) fn free_slots(&self, max: usize) -> Option<FreeSlots> {
        if self.running < max {
            return Some(FreeSlots::Shared);
        }
        let most = max.saturating_add(max.saturating_mul(JOB_EXTRA_SLOTS));
        (self.running < most).then_some(FreeSlots::Extra)
    }

    /// The next job: of the agents that are up and have a startable job, the one with the fewest running jobs, then the
    /// one whose best job has waited longest. Within an agent the higher priority goes first, then the older job.
    ///
    /// Jobs of agents that are not up are skipped, at any number.
    pub(crate) fn next(
        &self,
        slots: FreeSlots,
        is_up: impl Fn(&AgentId) -> bool,
        may_start: impl Fn(&JobRow) -> bool,
    ) -> Option<JobId> {
        let best = |queue: &AgentJobs| {
            let mut startable =
                queue.pending.iter().filter(|place| self.get(&place.id).is_some_and(&may_start));
            startable.next().cloned()
        };
        let has_slot = |queue: &AgentJobs| match slots {
            FreeSlots::Shared => true,
            FreeSlots::Extra => queue.running == 0,
        };
        let waits = |queue: &AgentJobs| !queue.pending.is_empty() && has_slot(queue);
        let up = self.queues.iter().filter(|(agent, queue)| waits(queue) && is_up(agent));
        let waiting = up.filter_map(|(_, queue)| Some((queue.running, best(queue)?)));
        let next =
            waiting.min_by_key(|(running, place)| (*running, place.created_at, place.came, place.id.clone()));
        next.map(|(_, place)| place.id)
    }
}
