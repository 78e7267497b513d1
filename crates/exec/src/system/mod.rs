//! Sandboxes as process trees of this host, one keeper each: the part of the state directory that belongs to keepers.

mod cgroup;
mod controllers;
mod dial;
mod evidence;
mod gone;
mod job;
mod kept;
mod lock;
mod sandboxes;
mod socket;
mod start;

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lodge_link::{BindOwner, KeeperSecret, Layer};

use crate::error::{DialError, HostError, RemoveError, SandboxReadError, StartError};
use crate::executor::{ExecFuture, Executor};
use crate::link::Link;
use crate::open_files::FileLimit;
use crate::output::{CapturedStream, Evidence, ExecStream, JobBytes, JobTotals, KeepRules};
use crate::programs::{ProgramImage, StoredProgram};
use crate::spec::{OwnerTrial, SandboxSpec};
use cgroup::Cgroups;

pub use gone::is_over;
pub(crate) use start::move_above_targets;

/// The sandboxes of one state directory. There can be several in one process, as in tests.
#[derive(Debug)]
pub struct SystemExecutor {
    pub(crate) state_dir: PathBuf,
    pub(crate) run: PathBuf,
    bin: PathBuf,
    pub(crate) keeper: StoredProgram,
    boot_id: String,
    pub(crate) cgroups: Cgroups,
    /// What keepers begin with. None: what this process has.
    pub(crate) file_limit: Option<FileLimit>,
}

impl SystemExecutor {
    /// Opens the state directory's `run/` and `bin/`. The keeper is put there before the first one starts.
    pub fn open(state_dir: &Path, keeper: impl Into<ProgramImage>) -> Result<SystemExecutor, HostError> {
        let prepare = |path: &Path| {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
            made.map_err(|cause| HostError::Prepare { path: path.to_owned(), cause })
        };
        prepare(state_dir)?;
        let canonical = state_dir.canonicalize();
        let state_dir =
            canonical.map_err(|cause| HostError::Prepare { path: state_dir.to_owned(), cause })?;
        let (run, bin) = (state_dir.join("run"), state_dir.join("bin"));
        prepare(&run)?;
        prepare(&bin)?;
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let boot_id = boot_id.map_err(|cause| HostError::NoBootId { cause })?.trim().to_owned();
        let keeper = StoredProgram::new(&bin, "keeper", keeper.into())?;
        let cgroups = Cgroups::of(&state_dir);
        Ok(SystemExecutor { state_dir, run, bin, keeper, boot_id, cgroups, file_limit: None })
    }

    /// Lets keepers begin with this limit of open files. None: with this process's own.
    #[must_use]
    pub fn with_file_limit(self, limit: Option<FileLimit>) -> SystemExecutor {
        SystemExecutor { file_limit: limit, ..self }
    }

    /// A program that is stored as `bin/<name>-<digest>` when its path is requested.
    pub fn program(&self, name: &str, program: impl Into<ProgramImage>) -> Result<StoredProgram, HostError> {
        StoredProgram::new(&self.bin, name, program.into())
    }

    pub(crate) fn sandbox_dir(&self, sandbox: &str) -> PathBuf {
        self.run.join(sandbox)
    }
}

impl Executor for SystemExecutor {
    fn boot_id(&self) -> &str {
        &self.boot_id
    }

    fn probe(&self) -> ExecFuture<'_, Vec<Layer>> {
        Box::pin(self.probe_layers())
    }

    fn try_owner<'a>(&'a self, path: &'a Path, owner: BindOwner) -> ExecFuture<'a, OwnerTrial> {
        Box::pin(async move { self.try_map(path, owner).await.unwrap_or_else(OwnerTrial::Failed) })
    }

    fn sandboxes(&self) -> ExecFuture<'_, Vec<String>> {
        Box::pin(async move { self.listed() })
    }

    fn start<'a>(&'a self, spec: &'a SandboxSpec) -> ExecFuture<'a, Result<(), StartError>> {
        Box::pin(self.start_keeper(spec))
    }

    fn dial<'a>(
        &'a self,
        sandbox: &'a str,
        secret: &'a KeeperSecret,
        epoch: u64,
    ) -> ExecFuture<'a, Result<Link, DialError>> {
        Box::pin(self.connect(sandbox, secret, epoch))
    }

    fn is_held(&self, sandbox: &str) -> bool {
        self.is_locked(sandbox)
    }

    fn wait_gone<'a>(&'a self, sandbox: &'a str, within: Duration) -> ExecFuture<'a, bool> {
        Box::pin(async move { tokio::time::timeout(within, self.gone(sandbox)).await.is_ok() })
    }

    fn has_leftovers<'a>(&'a self, sandbox: &'a str) -> ExecFuture<'a, bool> {
        Box::pin(async move { self.has_processes_left(sandbox) })
    }

    fn kill_keeper<'a>(&'a self, sandbox: &'a str) -> ExecFuture<'a, io::Result<bool>> {
        Box::pin(async move { self.kill_recorded(sandbox) })
    }

    fn process_of(&self, keeper: u32, numbered: u32) -> Option<u32> {
        gone::process_of(keeper, numbered)
    }

    fn remove<'a>(&'a self, sandbox: &'a str) -> ExecFuture<'a, Result<(), RemoveError>> {
        Box::pin(async move { self.remove_dir(sandbox) })
    }

    fn forget<'a>(&'a self, sandbox: &'a str, exec: &'a str) -> ExecFuture<'a, Result<(), RemoveError>> {
        Box::pin(sandboxes::forget(&self.run, sandbox, exec))
    }

    fn keep_output<'a>(
        &'a self,
        sandbox: &'a str,
        exec: &'a str,
        rules: &'a KeepRules<'a>,
    ) -> ExecFuture<'a, Result<(), SandboxReadError>> {
        Box::pin(async move { self.move_output(sandbox, exec, rules) })
    }

    fn evidence(&self, sandbox: &str, exec: &str) -> Evidence {
        self.read_evidence(sandbox, exec)
    }

    fn read_output(
        &self,
        sandbox: &str,
        exec: &str,
        stream: ExecStream,
        head_max: usize,
        tail_max: usize,
    ) -> Result<CapturedStream, SandboxReadError> {
        self.read_captured(sandbox, exec, stream, head_max, tail_max)
    }

    fn job_read(
        &self,
        sandbox: &str,
        job: &str,
        stream: ExecStream,
        offset: u64,
        len_max: usize,
    ) -> Result<JobBytes, SandboxReadError> {
        self.read_in_job_dir(sandbox, job, |dir| job::read_unreleased(dir, stream, offset, len_max))
    }

    fn job_totals(&self, sandbox: &str, job: &str) -> Result<JobTotals, SandboxReadError> {
        self.read_in_job_dir(sandbox, job, job::totals)
    }

    fn job_order(&self, sandbox: &str, job: &str, offset: u64) -> Result<Vec<u8>, SandboxReadError> {
        self.read_in_job_dir(sandbox, job, |dir| job::order(dir, offset))
    }

    fn job_release(
        &self,
        sandbox: &str,
        job: &str,
        stream: ExecStream,
        upto: u64,
    ) -> Result<(), SandboxReadError> {
        self.release(sandbox, job, stream, upto)
    }
}
