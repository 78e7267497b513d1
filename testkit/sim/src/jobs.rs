//! Jobs: what is true of each on the host, independent of what a daemon believes; the archive of their output, which
//! is a separate disk; and the laws about both.
//!
//! Their effects on a sandbox go through `keeper.rs`, as for every exec.

mod act;
mod archive;
mod checks;
mod host;
mod reads;

use std::collections::{BTreeMap, BTreeSet};

use lodge_core::JobId;

pub use archive::{ArchiveStage, SimArchiver};
pub use checks::{jobs_agree, most_jobs};
pub use host::JobFile;
pub use reads::{SimRead, wish_of};

#[derive(Debug, Default)]
pub struct SimJobs {
    /// Counted where they run.
    pub truths: BTreeMap<JobId, JobTruth>,
    /// The second disk: how much of each job's output it has.
    pub archive: BTreeMap<JobId, u64>,
    /// Whether it has no room.
    pub archive_full: bool,
    /// The most that were ever allowed to run at a time.
    pub max_ever: usize,
    /// Jobs whose end a session read in a note, and in the result of a tool.
    pub noted: BTreeSet<JobId>,
    pub read: BTreeSet<JobId>,
}

/// What happened to a job.
#[derive(Debug, Default, Clone, Copy)]
pub struct JobTruth {
    /// How often its program was started.
    pub starts: u32,
    /// What it wrote and no power loss took.
    pub wrote: u64,
}
