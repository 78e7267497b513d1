//! Jobs: their true state on the host, independent of a daemon's memory; the archive of their output, which is a separate
//! disk; and the laws about both.
//!
//! Their effects on a sandbox go through `keeper.rs`, as for every exec.

mod archive;
mod checks;
mod host;
mod reads;

use std::collections::{BTreeMap, BTreeSet};

use lodge_core::JobId;

pub use archive::{ArchiveStage, SimArchiver};
pub use checks::{jobs_agree, most_jobs};
pub use host::JobFile;
pub use reads::job_request;

#[derive(Debug, Default)]
pub struct SimJobs {
    /// The state of each job on the host.
    pub truths: BTreeMap<JobId, JobTruth>,
    /// The archive: the number of bytes of each job's output.
    pub archive: BTreeMap<JobId, u64>,
    /// Whether the archive has no space.
    pub archive_full: bool,
    /// The highest limit of running jobs so far.
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
    /// The bytes that it wrote and that survived power losses.
    pub wrote: u64,
}
