//! What execs leave behind: exit records, captured output, the output of jobs.

use std::path::{Path, PathBuf};

use lodge_link::{ExitRecord, STDERR_FILE, STDOUT_FILE};

use crate::error::SandboxReadError;

/// Where kept output lies in an agent's root.
pub(crate) const KEPT_DIR: [&str; 3] = ["var", "log", "tools"];

/// What the directory of an exec proves about it.
#[derive(Debug)]
pub enum Evidence {
    /// Never claimed, or forgotten since.
    NoClaim,
    /// Claimed, without an outcome that is whole: it runs, or its keeper died.
    Claimed,
    Exited(ExitRecord),
    /// Something is there and cannot be trusted. It proves neither that the exec ran nor that it did not.
    Unreadable(SandboxReadError),
}

/// One of an exec's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecStream {
    Stdout,
    Stderr,
}

impl ExecStream {
    /// The file that a keeper captures it in, beneath the directory of the exec.
    pub(crate) fn file_name(self) -> &'static str {
        match self {
            ExecStream::Stdout => STDOUT_FILE,
            ExecStream::Stderr => STDERR_FILE,
        }
    }
}

/// Both ends of what was captured of a stream. They do not overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedStream {
    pub head: Vec<u8>,
    pub tail: Vec<u8>,
    /// Bytes in the file when it was read.
    pub total: u64,
}

/// Bytes of a job's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobBytes {
    /// Where they begin: after the requested offset if the bytes there are gone.
    pub offset: u64,
    /// Empty: there is nothing from `offset` on so far.
    pub bytes: Vec<u8>,
    /// Everything before this was stored elsewhere, and has to be read there.
    pub released: u64,
}

/// How much of a job's stream there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobStreamExtent {
    /// Length of the head. These bytes never change.
    pub head: u64,
    /// Where the oldest segment begins. What lies between the head and this was dropped.
    pub tail_from: Option<u64>,
    /// Where what is kept ends so far.
    pub end: u64,
    /// Everything before this was stored elsewhere.
    pub released: u64,
}

impl JobStreamExtent {
    /// Bytes between both ends that were neither kept nor stored elsewhere.
    pub fn dropped(&self) -> u64 {
        self.tail_from.map_or(0, |from| from.saturating_sub(self.head.max(self.released)))
    }
}

/// How much of a job's output there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobTotals {
    pub stdout: JobStreamExtent,
    pub stderr: JobStreamExtent,
    /// Bytes of marks, see [`Executor::job_order`](crate::Executor::job_order).
    pub order: u64,
}

/// What is kept of an agent's output, and for how long.
#[derive(Debug)]
pub struct KeepRules<'a> {
    /// The agent's root.
    pub root: &'a Path,
    /// Who may read and remove it, where the daemon may choose.
    pub uid: Option<u32>,
    /// Streams that are no longer than this are not kept.
    pub more_than: u64,
    pub files_max: usize,
    pub bytes_max: u64,
}

impl KeepRules<'_> {
    /// Where a stream of an exec is kept, below the agent's root as `seen` by its programs.
    pub fn path(&self, seen: &Path, exec: &str, stream: ExecStream) -> PathBuf {
        KEPT_DIR.iter().fold(seen.to_owned(), |path, part| path.join(part)).join(kept_name(exec, stream))
    }
}

pub(crate) fn kept_name(exec: &str, stream: ExecStream) -> String {
    format!("{exec}.{}", stream.file_name())
}
