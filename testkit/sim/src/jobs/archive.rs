//! The task of the archive: rounds of read, store and release. The daemon can die in each of them. Also the retention, which
//! removes old output.

use std::collections::VecDeque;

use lodge_core::JobId;
use lodge_core::job::JobRow;
use lodge_engine::Observation;
use lodge_engine::jobs::{Expiry, JobObservation};

use crate::plan::{CommitPoint, SimMutation};
use crate::world::{SimEvent, SimWorld};

/// The most bytes of one job, and the most jobs, in a round.
const JOB_BYTES_MAX: u64 = 1_500;
const ROUND_JOBS_MAX: usize = 4;
/// Bytes at the start of a job's output that never change after they are written.
const HEAD_BYTES: u64 = 2_500;
/// The pause before a round that found no space is retried.
const FULL_MS: u64 = 100;
/// The most jobs that the retention removes at once.
const EXPIRED_MAX: usize = 8;

/// The queue of the archive, and its current round. Lost when the daemon dies.
#[derive(Debug, Default)]
pub struct SimArchiver {
    waiting: VecDeque<ArchiveWork>,
    round: Vec<ArchiveRound>,
    /// Whether an event that continues the round is scheduled.
    awake: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ArchiveWork {
    Take(JobId, ArchiveExtent),
    Remove(JobId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ArchiveExtent {
    /// The unchangeable part of a running job's output.
    Final,
    /// All output of an ended job.
    All,
}

#[derive(Debug)]
struct ArchiveRound {
    work: ArchiveWork,
    /// The end of the part that is read, and whether it is the end of the output.
    upto: u64,
    whole: bool,
}

/// The stage of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveStage {
    Reads,
    Stores,
    Releases,
}

impl SimArchiver {
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.round.is_empty()
    }

    /// Queues a job once, with the largest requested extent.
    fn add(&mut self, work: ArchiveWork) {
        let job = |work: &ArchiveWork| match work {
            ArchiveWork::Take(job, _) => Some(job.clone()),
            ArchiveWork::Remove(_) => None,
        };
        match (self.waiting.iter_mut().find(|known| job(known).is_some() && job(known) == job(&work)), &work)
        {
            (Some(known), ArchiveWork::Take(_, ArchiveExtent::All)) => *known = work,
            (Some(_), ArchiveWork::Take(_, ArchiveExtent::Final) | ArchiveWork::Remove(_)) => {}
            (None, ArchiveWork::Take(..) | ArchiveWork::Remove(_)) => self.waiting.push_back(work),
        }
    }
}

impl SimWorld {
    pub fn archive_all(&mut self, job: &JobId) {
        self.archive_work(ArchiveWork::Take(job.clone(), ArchiveExtent::All));
    }

    pub fn archive_some(&mut self, job: &JobId) {
        self.archive_work(ArchiveWork::Take(job.clone(), ArchiveExtent::Final));
    }

    pub fn remove_outputs(&mut self, jobs: &[JobId]) {
        jobs.iter().for_each(|job| self.archive_work(ArchiveWork::Remove(job.clone())));
    }

    /// At startup, removes output that belongs to no job.
    pub fn sweep(&mut self) {
        let stray = |job: &&JobId| self.disk.job(job).is_none_or(|row| row.output_removed);
        let strays: Vec<JobId> = self.jobs.archive.keys().filter(stray).cloned().collect();
        self.remove_outputs(&strays);
    }

    fn archive_work(&mut self, work: ArchiveWork) {
        let Some(daemon) = &mut self.daemon else { return };
        daemon.archiver.add(work);
        self.archive_wakes(0);
    }

    fn archive_wakes(&mut self, after_ms: u64) {
        let pause = after_ms + self.rng.delay(self.plan.archive_ms);
        let Some(daemon) = &mut self.daemon else { return };
        if !std::mem::replace(&mut daemon.archiver.awake, true) {
            let life = daemon.life;
            self.after(pause, SimEvent::Archive { life, stage: ArchiveStage::Reads });
        }
    }

    pub fn run_archive(&mut self, stage: ArchiveStage) {
        let life = self.life;
        let next = match stage {
            ArchiveStage::Reads => {
                self.archive_reads();
                Some(ArchiveStage::Stores)
            }
            ArchiveStage::Stores => self.archive_stores(),
            ArchiveStage::Releases => {
                self.archive_releases();
                None
            }
        };
        if let Some(stage) = next {
            let pause = self.rng.delay(self.plan.disk_ms);
            self.after(pause, SimEvent::Archive { life, stage });
        }
    }

    fn archive_reads(&mut self) {
        let Some(daemon) = &mut self.daemon else { return };
        let count = daemon.archiver.waiting.len().min(ROUND_JOBS_MAX);
        let works: Vec<ArchiveWork> = daemon.archiver.waiting.drain(..count).collect();
        let parts: Vec<ArchiveRound> = works.into_iter().map(|work| self.part(work)).collect();
        // The bug: output is reported as archived before it is stored.
        if self.mutation == SimMutation::EarlyForget {
            let done: Vec<JobId> = parts.iter().filter_map(done).collect();
            done.into_iter().for_each(|job| self.report(Observation::Job(JobObservation::Archived { job })));
        }
        if let Some(daemon) = &mut self.daemon {
            daemon.archiver.round = parts;
        }
    }

    fn part(&self, work: ArchiveWork) -> ArchiveRound {
        let ArchiveWork::Take(job, want) = &work else { return ArchiveRound { work, upto: 0, whole: true } };
        let end = self.jobs.archive.get(job).copied().unwrap_or(0);
        let row = self.disk.job(job).and_then(|row| self.disk.agent(&row.agent));
        let file = row.and_then(|row| self.machine.sandboxes.get(&row.sandbox)?.files.get(job));
        let wrote = file.map_or(end, |file| file.wrote.max(end));
        let wanted = match want {
            ArchiveExtent::Final => wrote.min(HEAD_BYTES).max(end),
            ArchiveExtent::All => wrote,
        };
        let upto = wanted.min(end + JOB_BYTES_MAX);
        ArchiveRound { work, upto, whole: upto == wanted }
    }

    /// Ends a round: all of it is in the archive, or nothing of it.
    fn archive_stores(&mut self) -> Option<ArchiveStage> {
        if self.jobs.archive_full {
            let Some(daemon) = &mut self.daemon else { return None };
            for part in std::mem::take(&mut daemon.archiver.round) {
                daemon.archiver.add(part.work);
            }
            daemon.archiver.awake = false;
            self.archive_wakes(FULL_MS);
            return None;
        }
        let parts = self.daemon.as_mut().map(|daemon| std::mem::take(&mut daemon.archiver.round));
        let parts = parts.unwrap_or_default();
        for part in &parts {
            match &part.work {
                ArchiveWork::Take(job, _) if part.upto > 0 && self.disk.job(job).is_some() => {
                    self.jobs.archive.insert(job.clone(), part.upto);
                }
                ArchiveWork::Take(..) => {}
                ArchiveWork::Remove(job) => {
                    self.check_removal(job);
                    self.jobs.archive.remove(job);
                }
            }
        }
        self.trace_line(|| format!("archived {parts:?}"));
        if let Some(daemon) = &mut self.daemon {
            daemon.archiver.round = parts;
        }
        if self.die_at == Some(CommitPoint::Archived) {
            self.daemon_dies("between the archive and what follows from it");
            return None;
        }
        Some(ArchiveStage::Releases)
    }

    /// Releases the stored bytes in the sandbox, and reports jobs that are completely archived.
    fn archive_releases(&mut self) {
        let Some(daemon) = &mut self.daemon else { return };
        for part in std::mem::take(&mut daemon.archiver.round) {
            let ArchiveWork::Take(job, want) = &part.work else { continue };
            if let Some(job) = done(&part) {
                self.tally.archived += 1;
                self.report(Observation::Job(JobObservation::Archived { job }));
                continue;
            }
            let row = self.disk.job(job).and_then(|row| self.disk.agent(&row.agent));
            let sandbox = row.and_then(|row| self.machine.sandboxes.get_mut(&row.sandbox));
            if let Some(file) = sandbox.and_then(|sandbox| sandbox.files.get_mut(job)) {
                file.released = part.upto.min(file.wrote).max(file.released);
            }
            self.check_kept(job);
            if !part.whole {
                self.archive_work(ArchiveWork::Take(job.clone(), *want));
            }
        }
        let Some(daemon) = &mut self.daemon else { return };
        daemon.archiver.awake = false;
        if !daemon.archiver.waiting.is_empty() {
            self.archive_wakes(0);
        }
    }

    /// Removes some of the oldest jobs or outputs.
    pub fn run_retention(&mut self) {
        let what = if self.rng.chance(500) { Expiry::All } else { Expiry::Output };
        let over = |row: &&JobRow| !row.progress.state.is_open() && row.archived;
        let wanted = |row: &&JobRow| match what {
            Expiry::All => true,
            Expiry::Output => !row.output_removed && self.jobs.archive.contains_key(&row.id),
        };
        let old = self.disk.jobs().filter(over).filter(wanted).take(EXPIRED_MAX);
        let jobs: Vec<JobId> = old.map(|row| row.id.clone()).collect();
        if !jobs.is_empty() {
            self.tally.expired += jobs.len() as u64;
            self.report(Observation::Job(JobObservation::Expired { jobs, what }));
        }
    }
}

/// The job, if this part completes its archive.
fn done(part: &ArchiveRound) -> Option<JobId> {
    match &part.work {
        ArchiveWork::Take(job, ArchiveExtent::All) if part.whole => Some(job.clone()),
        ArchiveWork::Take(..) | ArchiveWork::Remove(_) => None,
    }
}
