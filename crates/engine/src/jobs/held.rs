//! What is remembered of jobs: those that wait or run, and those that ended and are not in the archive or not told of.
//!
//! Every change of one goes through [`Jobs::change`], so that what is counted is always what is there.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use lodge_core::job::{JobRow, JobState};
use lodge_core::limits::JOB_EXTRA_SLOTS;
use lodge_core::{AgentId, JobId, SessionId, Timestamp};

/// A job that is not settled.
#[derive(Debug)]
pub(crate) struct Job {
    pub row: JobRow,
    /// The newest event when it came, which tells apart what came at the same time; 0 for one of an earlier daemon.
    came: u64,
    /// When there was an event of its output last.
    pub output_at: Option<Timestamp>,
    /// It runs by the ledger, and its sandbox died: how it ended is found in what that left.
    orphaned: bool,
}

impl Job {
    fn rank(&self) -> JobRank {
        JobRank {
            priority: Reverse(self.row.priority),
            created_at: self.row.created_at,
            came: self.came,
            id: self.row.id.clone(),
        }
    }

    /// Ended, and its session has not heard of it.
    fn is_untold(&self) -> bool {
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
struct Queue {
    pending: BTreeSet<JobRank>,
    running: usize,
    /// Ended, and not in the archive.
    unarchived: usize,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.running == 0 && self.unarchived == 0
    }
}

/// Who may start a job now. A running job is never ended for another one, so a job that never ends keeps its slot;
/// the extra slots make sure that such jobs of one agent do not block the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FreeSlots {
    /// Any agent.
    Shared,
    /// All shared slots are taken: only agents without a running job.
    Extra,
}

#[derive(Debug, Default)]
pub(crate) struct Jobs {
    held: BTreeMap<JobId, Job>,
    queues: BTreeMap<AgentId, Queue>,
    pending: usize,
    running: usize,
    unarchived: usize,
    untold: BTreeMap<SessionId, BTreeSet<JobId>>,
    untold_count: usize,
}

impl Jobs {
    pub(crate) fn insert(&mut self, row: JobRow, came: u64) {
        let id = row.id.clone();
        let job = Job { row, came, output_at: None, orphaned: false };
        self.count(&job);
        self.held.insert(id, job);
    }

    pub(crate) fn get(&self, id: &JobId) -> Option<&JobRow> {
        self.held.get(id).map(|job| &job.row)
    }

    /// The job, if it waits or runs.
    pub(crate) fn open(&self, id: &JobId) -> Option<&JobRow> {
        self.get(id).filter(|row| row.progress.state.is_open())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &JobRow> {
        self.held.values().map(|job| &job.row)
    }

    pub(crate) fn of<'a>(&'a self, agent: &AgentId) -> impl Iterator<Item = &'a JobRow> {
        self.all().filter(move |row| row.agent == *agent)
    }

    /// Those of an agent in a state, the oldest first.
    pub(crate) fn in_state(&self, agent: &AgentId, state: JobState) -> Vec<JobId> {
        self.of(agent).filter(|row| row.progress.state == state).map(|row| row.id.clone()).collect()
    }

    /// Those of an agent that run, and whose sandbox has not died.
    pub(crate) fn alive(&self, agent: &AgentId) -> Vec<JobId> {
        let alive = self.held.values().filter(|job| {
            job.row.agent == *agent && job.row.progress.state == JobState::Running && !job.orphaned
        });
        alive.map(|job| job.row.id.clone()).collect()
    }

    /// The sandbox of an agent died, and its jobs with it.
    pub(crate) fn orphan(&mut self, agent: &AgentId) {
        self.held.values_mut().filter(|job| job.row.agent == *agent).for_each(|job| job.orphaned = true);
    }

    /// Another sandbox of the agent is asked for its jobs.
    pub(crate) fn adopt(&mut self, agent: &AgentId) {
        self.held.values_mut().filter(|job| job.row.agent == *agent).for_each(|job| job.orphaned = false);
    }

    /// Changes a job, and lets it go when nobody has anything to do about it any more.
    pub(crate) fn change(&mut self, id: &JobId, change: impl FnOnce(&mut JobRow)) {
        let Some(mut job) = self.held.remove(id) else { return };
        self.uncount(&job);
        change(&mut job.row);
        if job.has_files() || job.is_untold() {
            self.count(&job);
            self.held.insert(id.clone(), job);
        }
    }

    pub(crate) fn forget(&mut self, id: &JobId) {
        if let Some(job) = self.held.remove(id) {
            self.uncount(&job);
        }
    }

    /// Whether output of a job is worth an event by now. It is asked about what will be one.
    pub(crate) fn output_due(&mut self, id: &JobId, now: Timestamp, every_ms: i64) -> bool {
        let Some(job) = self.held.get_mut(id) else { return false };
        let since = job.output_at.map(|at| now.ms() - at.ms());
        let due = since.is_none_or(|since| !(0..every_ms).contains(&since));
        if due {
            job.output_at = Some(now);
        }
        due
    }

    fn count(&mut self, job: &Job) {
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
        if let Some(session) = job.row.session.as_ref().filter(|_| job.is_untold()) {
            self.untold.entry(session.clone()).or_default().insert(job.row.id.clone());
            self.untold_count += 1;
        }
    }

    fn uncount(&mut self, job: &Job) {
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
        if let Some(session) = job.row.session.as_ref().filter(|_| job.is_untold())
            && let Some(untold) = self.untold.get_mut(session)
        {
            untold.remove(&job.row.id);
            self.untold_count -= 1;
            if untold.is_empty() {
                self.untold.remove(session);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.held.len()
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

    /// Whether any waits or runs.
    pub(crate) fn has_open(&self) -> bool {
        self.pending + self.running > 0
    }

    pub(crate) fn untold(&self) -> usize {
        self.untold_count
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

    /// Ended jobs that a session has not heard of, the oldest first.
    pub(crate) fn untold_of(&self, session: &SessionId) -> Vec<JobId> {
        self.untold.get(session).into_iter().flatten().cloned().collect()
    }

    /// The oldest of those that are held for their session alone.
    pub(crate) fn oldest_untold(&self) -> Option<JobId> {
        let mut waiting = self.held.values().filter(|job| job.is_untold() && !job.has_files());
        waiting.next().map(|job| job.row.id.clone())
    }

    /// Which agents may start a job, with `max` slots for all of them. None: nobody.
    pub(crate) fn free_slots(&self, max: usize) -> Option<FreeSlots> {
        if self.running < max {
            return Some(FreeSlots::Shared);
        }
        let most = max.saturating_add(max.saturating_mul(JOB_EXTRA_SLOTS));
        (self.running < most).then_some(FreeSlots::Extra)
    }

    /// Who is next: of the agents that are up and have a job which may start, the one with the fewest that run, then the
    /// one whose best has waited longest. Within an agent the higher priority goes first, then the older.
    ///
    /// However many jobs of agents that are not up wait, they are not looked at.
    pub(crate) fn next(
        &self,
        slots: FreeSlots,
        is_up: impl Fn(&AgentId) -> bool,
        may_start: impl Fn(&JobRow) -> bool,
    ) -> Option<JobId> {
        let best = |queue: &Queue| {
            let mut startable =
                queue.pending.iter().filter(|place| self.get(&place.id).is_some_and(&may_start));
            startable.next().cloned()
        };
        let has_slot = |queue: &Queue| match slots {
            FreeSlots::Shared => true,
            FreeSlots::Extra => queue.running == 0,
        };
        let waits = |queue: &Queue| !queue.pending.is_empty() && has_slot(queue);
        let up = self.queues.iter().filter(|(agent, queue)| waits(queue) && is_up(agent));
        let waiting = up.filter_map(|(_, queue)| Some((queue.running, best(queue)?)));
        let next =
            waiting.min_by_key(|(running, place)| (*running, place.created_at, place.came, place.id.clone()));
        next.map(|(_, place)| place.id)
    }
}
