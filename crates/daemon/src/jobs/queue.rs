//! Which jobs have output that waits for the archive, and when its time is.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lodge_core::JobId;

use super::archiver::{ArchiveRemainder, ArchiveRequest, ArchivedOutput, ROUND_BYTES_MAX};

/// So much of a job is archived at once …
const DUE_BYTES: u64 = 64 << 10;
/// … and less of it when it has waited for so long.
const DUE_AFTER: Duration = Duration::from_secs(1);
/// What has waited for so long goes along with what is due: fewer flushes.
const JOIN_AFTER: Duration = Duration::from_millis(250);
/// Between the beginnings of two rounds, unless there is enough for a whole one: flushes hold up each other, and there are
/// more urgent ones.
const ROUND_EVERY: Duration = Duration::from_millis(100);
/// Before something that failed is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Jobs of one round.
const TASKS_MAX: usize = 256;
/// Jobs that are removed at once.
const REMOVE_MAX: usize = 16;

/// The next work of the archiver.
#[derive(Debug, PartialEq, Eq)]
pub enum ArchiverWork {
    Archive(Vec<(JobId, ArchiveRequest)>),
    Remove(Vec<JobId>),
    GiveBack,
}

/// Bounded by the number of jobs that are not archived, and of those that are removed.
#[derive(Debug, Default)]
pub struct ArchiveQueue {
    state: Mutex<ArchiveQueueState>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct ArchiveQueueState {
    jobs: BTreeMap<JobId, ArchiveEntry>,
    remove: VecDeque<JobId>,
    give_back: bool,
    /// The next round begins behind this one.
    last: Option<JobId>,
    /// Nothing is done before.
    not_before: Option<Instant>,
    sleep: ArchiverSleep,
    stopped: bool,
}

/// How the archive's thread waits for work.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ArchiverSleep {
    /// It looks at everything before it sleeps.
    #[default]
    Awake,
    Until(Instant),
    UntilWoken,
}

#[derive(Debug)]
struct ArchiveEntry {
    want: ArchiveRequest,
    /// The written bytes, as far as they were reported.
    told: [u64; 2],
    archived: [u64; 2],
    /// The reported bytes when the current round began.
    taken: [u64; 2],
    /// Up to where it may be archived while it runs, once that is known.
    head: u64,
    /// Since when something waits.
    since: Option<Instant>,
}

impl ArchiveEntry {
    fn new() -> ArchiveEntry {
        ArchiveEntry {
            want: ArchiveRequest::Final,
            told: [0; 2],
            archived: [0; 2],
            taken: [0; 2],
            head: u64::MAX,
            since: None,
        }
    }

    fn bytes(&self) -> u64 {
        let of = |stream: usize| self.told[stream].min(self.head).saturating_sub(self.archived[stream]);
        of(0) + of(1)
    }

    /// When its time is. None: it waits for nothing.
    fn due(&self) -> Option<Instant> {
        let since = self.since?;
        match self.want {
            ArchiveRequest::All => Some(since),
            ArchiveRequest::Final if self.bytes() >= DUE_BYTES => Some(since),
            ArchiveRequest::Final => Some(since + DUE_AFTER),
        }
    }

    fn look(&mut self, now: Instant) {
        let waits = self.want == ArchiveRequest::All || self.bytes() > 0;
        self.since = if waits { self.since.or(Some(now)) } else { None };
    }
}

impl ArchiveQueue {
    /// A job wrote so much by now.
    pub fn wrote(&self, job: &JobId, stdout: u64, stderr: u64) {
        // A hundred printing jobs report up to two thousand times a second, and mostly nothing is due yet.
        if self.note(job, stdout, stderr) {
            self.wake.notify_one();
        }
    }

    /// True: the archiver's sleep is too long for this.
    fn note(&self, job: &JobId, stdout: u64, stderr: u64) -> bool {
        let mut state = self.state();
        let waiting = state.jobs.entry(job.clone()).or_insert_with(ArchiveEntry::new);
        waiting.told = [stdout.max(waiting.told[0]), stderr.max(waiting.told[1])];
        waiting.look(Instant::now());
        let due = waiting.due();
        due.is_some_and(|due| state.oversleeps(due))
    }

    /// A job ended: all of its output is due.
    pub fn finish(&self, job: &JobId) {
        let mut state = self.state();
        let waiting = state.jobs.entry(job.clone()).or_insert_with(ArchiveEntry::new);
        waiting.want = ArchiveRequest::All;
        waiting.look(Instant::now());
        drop(state);
        self.wake.notify_one();
    }

    /// The archived output of these jobs is removed.
    pub fn remove(&self, jobs: Vec<JobId>) {
        self.state().remove.extend(jobs);
        self.wake.notify_one();
    }

    pub fn stop(&self) {
        self.state().stopped = true;
        self.wake.notify_one();
    }

    /// Waits for the next thing to do. None: there is nothing more to do.
    pub fn next(&self) -> Option<ArchiverWork> {
        let mut state = self.state();
        loop {
            if state.stopped {
                return None;
            }
            let now = Instant::now();
            let due = state.due(now);
            if due.is_some_and(|due| due <= now) {
                return Some(state.work(now));
            }
            // Nothing wakes an idle daemon.
            state.sleep = due.map_or(ArchiverSleep::UntilWoken, ArchiverSleep::Until);
            state = match due {
                Some(due) => {
                    let waited = self.wake.wait_timeout(state, due - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
            state.sleep = ArchiverSleep::Awake;
        }
    }

    /// The result of a round. Returns the jobs that are complete.
    pub fn archived(&self, parts: &[ArchivedOutput]) -> Vec<JobId> {
        let (mut state, now) = (self.state(), Instant::now());
        let mut done = Vec::new();
        for part in parts {
            let job = &part.task.job;
            if part.task.want == ArchiveRequest::All && part.left == ArchiveRemainder::Nothing {
                state.jobs.remove(job);
                done.push(job.clone());
            } else if let Some(waiting) = state.jobs.get_mut(job) {
                waiting.archived = [part.ends.stdout, part.ends.stderr];
                waiting.head = part.task.placed.head;
                match part.left {
                    // Reported bytes that are not in the files were not kept.
                    ArchiveRemainder::Nothing => {
                        waiting.archived = [0, 1].map(|of| waiting.archived[of].max(waiting.taken[of]));
                        waiting.since = None;
                    }
                    ArchiveRemainder::Some => {}
                    ArchiveRemainder::Unread => waiting.since = Some(now + AGAIN_AFTER),
                }
                waiting.look(now);
            }
        }
        done
    }

    /// Jobs that do not exist.
    pub fn drop_jobs(&self, jobs: &[JobId]) {
        self.state().jobs.retain(|job, _| !jobs.contains(job));
    }

    /// Whether no job is open and no work is due.
    pub fn is_empty(&self) -> bool {
        let state = self.state();
        state.jobs.is_empty() && state.remove.is_empty() && !state.give_back
    }

    pub fn removed(&self) {
        self.state().give_back = true;
    }

    pub fn gave_back(&self) {
        self.state().give_back = false;
    }

    /// It could not be done: it is tried again after a while.
    pub fn failed(&self, work: ArchiverWork) {
        let mut state = self.state();
        match work {
            ArchiverWork::Remove(jobs) => jobs.into_iter().rev().for_each(|job| state.remove.push_front(job)),
            ArchiverWork::Archive(_) | ArchiverWork::GiveBack => {}
        }
        state.not_before = Some(Instant::now() + AGAIN_AFTER);
    }

    fn state(&self) -> MutexGuard<'_, ArchiveQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ArchiveQueueState {
    /// When there is something to do.
    fn due(&self, now: Instant) -> Option<Instant> {
        let removal = (self.give_back || !self.remove.is_empty()).then_some(now);
        let due = self.jobs.values().filter_map(ArchiveEntry::due).chain(removal).min()?;
        Some(self.allowed(due))
    }

    fn allowed(&self, due: Instant) -> Instant {
        self.not_before.map_or(due, |not_before| due.max(not_before))
    }

    /// Whether the archiver must be woken for this time.
    fn oversleeps(&self, due: Instant) -> bool {
        match self.sleep {
            ArchiverSleep::Awake => false,
            ArchiverSleep::Until(at) => self.allowed(due) < at,
            ArchiverSleep::UntilWoken => true,
        }
    }

    fn work(&mut self, now: Instant) -> ArchiverWork {
        let is_due = |waiting: &ArchiveEntry| waiting.due().is_some_and(|due| due <= now);
        if self.jobs.values().any(is_due) {
            return ArchiverWork::Archive(self.round(now));
        }
        if self.remove.is_empty() {
            return ArchiverWork::GiveBack;
        }
        let count = self.remove.len().min(REMOVE_MAX);
        ArchiverWork::Remove(self.remove.drain(..count).collect())
    }

    /// The jobs of the next round, beginning behind the last one of the round before.
    fn round(&mut self, now: Instant) -> Vec<(JobId, ArchiveRequest)> {
        let joins = |waiting: &ArchiveEntry| {
            let waits = waiting.since.is_some_and(|since| since + JOIN_AFTER <= now);
            waits || waiting.due().is_some_and(|due| due <= now)
        };
        let behind = |job: &JobId| self.last.as_ref().is_none_or(|last| job > last);
        let (mut tasks, mut bytes) = (Vec::new(), 0);
        for (job, waiting) in self.jobs.iter().filter(|(job, _)| behind(job)).chain(&self.jobs) {
            if tasks.len() == TASKS_MAX || bytes >= ROUND_BYTES_MAX as u64 {
                break;
            }
            // Those behind are met twice.
            if joins(waiting) && tasks.first().is_none_or(|(first, _)| first != job) {
                bytes += waiting.bytes();
                tasks.push((job.clone(), waiting.want));
            } else if joins(waiting) {
                break;
            }
        }
        for (job, _) in &tasks {
            if let Some(waiting) = self.jobs.get_mut(job) {
                waiting.taken = waiting.told;
            }
        }
        self.last = tasks.last().map(|(job, _)| job.clone());
        let whole = bytes >= ROUND_BYTES_MAX as u64 / 2;
        self.not_before = (!whole).then(|| now + ROUND_EVERY);
        tasks
    }
}

#[cfg(test)]
mod tests {
    use lodge_store::OutputEnds;

    use super::super::archiver::{ArchiveTask, JobOutputLayout};
    use super::*;

    fn job(number: u32) -> JobId {
        format!("job_{number}").parse().unwrap()
    }

    fn part(job: &JobId, want: ArchiveRequest, stdout: u64, left: ArchiveRemainder) -> ArchivedOutput {
        let placed = JobOutputLayout { sandbox: "box".to_owned(), head: 1 << 20 };
        let task = ArchiveTask { job: job.clone(), placed, want };
        ArchivedOutput { task, ends: OutputEnds { stdout, ..OutputEnds::default() }, left }
    }

    /// The time until the next work is due.
    fn due_in(queue: &ArchiveQueue) -> Option<Duration> {
        let now = Instant::now();
        queue.state().due(now).map(|due| due.saturating_duration_since(now))
    }

    #[test]
    fn a_little_output_waits_for_more_of_it_and_much_does_not() {
        let queue = ArchiveQueue::default();
        assert_eq!(due_in(&queue), None, "nothing wakes an idle daemon");
        queue.wrote(&job(1), 10, 0);
        let due = due_in(&queue).unwrap();
        assert!(due > DUE_AFTER / 2 && due <= DUE_AFTER, "{due:?}");
        queue.wrote(&job(1), 10, DUE_BYTES);
        assert_eq!(queue.next(), Some(ArchiverWork::Archive(vec![(job(1), ArchiveRequest::Final)])));
        queue.archived(&[part(&job(1), ArchiveRequest::Final, 10, ArchiveRemainder::Nothing)]);
        assert_eq!(due_in(&queue), None, "what was told of and not kept is not waited for");
    }

    #[test]
    fn nobody_is_woken_for_output_that_may_wait_for_longer_than_they_sleep() {
        let queue = ArchiveQueue::default();
        assert!(!queue.note(&job(1), 1, 0), "whoever is awake looks for themselves");
        queue.state().sleep = ArchiverSleep::UntilWoken;
        assert!(queue.note(&job(1), 2, 0), "whoever waits for nothing has to hear of the first output");
        let due = queue.state().due(Instant::now()).unwrap();
        queue.state().sleep = ArchiverSleep::Until(due);
        assert!(!queue.note(&job(1), 3, 0), "the same job is due when it was");
        assert!(!queue.note(&job(2), 1, 0), "one that began to wait later is due later");
        assert!(queue.note(&job(2), DUE_BYTES, 0), "much of it is due at once");
        queue.state().not_before = Some(due);
        assert!(!queue.note(&job(2), DUE_BYTES + 1, 0), "nothing is done before that anyway");
    }

    #[test]
    fn an_archiver_without_work_is_woken_by_output() {
        let queue = ArchiveQueue::default();
        std::thread::scope(|scope| {
            let asleep = scope.spawn(|| queue.next());
            let until = Instant::now() + Duration::from_secs(60);
            while queue.state().sleep == ArchiverSleep::Awake {
                assert!(Instant::now() < until, "it never slept");
                std::thread::yield_now();
            }
            queue.wrote(&job(1), DUE_BYTES, 0);
            assert_eq!(
                asleep.join().unwrap(),
                Some(ArchiverWork::Archive(vec![(job(1), ArchiveRequest::Final)]))
            );
        });
    }

    #[test]
    fn beyond_its_head_a_job_is_archived_when_it_has_ended() {
        let queue = ArchiveQueue::default();
        queue.wrote(&job(1), 1 << 20, 0);
        queue.next();
        queue.archived(&[part(&job(1), ArchiveRequest::Final, 1 << 20, ArchiveRemainder::Nothing)]);
        queue.wrote(&job(1), 1 << 30, 0);
        assert_eq!(due_in(&queue), None);
        queue.finish(&job(1));
        assert_eq!(queue.next(), Some(ArchiverWork::Archive(vec![(job(1), ArchiveRequest::All)])));
        assert_eq!(
            queue.archived(&[part(&job(1), ArchiveRequest::All, 1 << 30, ArchiveRemainder::Some)]),
            []
        );
        assert_eq!(queue.next(), Some(ArchiverWork::Archive(vec![(job(1), ArchiveRequest::All)])));
        assert_eq!(
            queue.archived(&[part(&job(1), ArchiveRequest::All, 1 << 30, ArchiveRemainder::Nothing)]),
            [job(1)]
        );
        assert_eq!(due_in(&queue), None);
    }

    #[test]
    fn every_job_has_its_turn_however_much_the_first_ones_have_to_say() {
        let queue = ArchiveQueue::default();
        for number in 1..=6 {
            queue.wrote(&job(number), 4 << 20, 0);
        }
        let mut met = Vec::new();
        for _ in 0..3 {
            let Some(ArchiverWork::Archive(tasks)) = queue.next() else {
                panic!("there is something to archive")
            };
            assert_eq!(tasks.len(), 2, "two of them fill a round");
            let parts: Vec<ArchivedOutput> =
                tasks.iter().map(|(job, want)| part(job, *want, 1 << 20, ArchiveRemainder::Some)).collect();
            met.extend(tasks.into_iter().map(|(job, _)| job));
            for part in &parts {
                queue.wrote(&part.task.job, 4 << 20, 0);
            }
        }
        assert_eq!(met, (1..=6).map(job).collect::<Vec<_>>());
    }

    #[test]
    fn what_failed_is_tried_again_later_and_nothing_of_it_is_forgotten() {
        let queue = ArchiveQueue::default();
        queue.remove(vec![job(1), job(2)]);
        let work = queue.next().unwrap();
        assert_eq!(work, ArchiverWork::Remove(vec![job(1), job(2)]));
        queue.failed(work);
        assert!(due_in(&queue).unwrap() > AGAIN_AFTER / 2);
        queue.state().not_before = None;
        assert_eq!(queue.next(), Some(ArchiverWork::Remove(vec![job(1), job(2)])));
        queue.removed();
        assert_eq!(queue.next(), Some(ArchiverWork::GiveBack));
        queue.gave_back();
        queue.stop();
        assert_eq!(queue.next(), None);
    }
}
