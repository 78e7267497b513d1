//! The interface between the daemon and the code that runs its sandboxes.
//!
//! An implementation runs keepers and gives access to what they leave behind. It decides nothing: which sandbox should
//! run, and what an outcome means, is the engine's business.
//!
//! Two kinds of methods:
//!
//! - Methods that return an [`ExecFuture`] may wait: for a process, for a network, or for a thread that an implementation
//!   moves blocking work to. Async tasks await them directly, so their futures never block a thread for longer than a
//!   short access to a local disk.
//! - All other methods answer at once, from memory or from files on a local disk, and never wait for a network or a
//!   process. Async tasks may call them directly. The `job_*` methods move up to a few megabytes each; their callers are
//!   blocking threads, except that tasks may call [`Executor::job_totals`].

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use lodge_link::{BindOwner, KeeperSecret, Layer};

use crate::error::{DialError, RemoveError, SandboxReadError, StartError};
use crate::link::Link;
use crate::output::{CapturedStream, Evidence, ExecStream, JobBytes, JobTotals, KeepRules};
use crate::spec::{OwnerTrial, SandboxSpec};

/// The future of a method of an [`Executor`] or of a [`Link`].
pub type ExecFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Runs sandboxes: one keeper in each, found by the sandbox's id.
///
/// Every method may be called twice, and at the same time as any other. An id that cannot name a sandbox or an exec is
/// refused, or names nothing.
pub trait Executor: std::fmt::Debug + Send + Sync {
    /// Identifies the boot of the machine that runs the sandboxes. A process of an earlier boot no longer runs.
    fn boot_id(&self) -> &str;

    /// Tries each layer of isolation. If they cannot be tried, the result is one missing layer.
    fn probe(&self) -> ExecFuture<'_, Vec<Layer>>;

    /// Tries to mount a path with its owner as another user, as [`Bind::owner`](lodge_link::Bind) asks for. Only root can.
    fn try_owner<'a>(&'a self, path: &'a Path, owner: BindOwner) -> ExecFuture<'a, OwnerTrial>;

    /// The ids of all sandboxes that were started and not removed, dead ones included, sorted.
    fn sandboxes(&self) -> ExecFuture<'_, Vec<String>>;

    /// Starts the sandbox's keeper unless it has one, and returns once it can be dialled.
    ///
    /// Two starts, even at the same time, leave one keeper. No keeper starts while processes of an earlier one live.
    fn start<'a>(&'a self, spec: &'a SandboxSpec) -> ExecFuture<'a, Result<(), StartError>>;

    /// Connects to the sandbox's keeper as the daemon of `epoch`.
    ///
    /// A daemon of the same or an older epoch is disconnected. Both ends have proved that they know the secret.
    fn dial<'a>(
        &'a self,
        sandbox: &'a str,
        secret: &'a KeeperSecret,
        epoch: u64,
    ) -> ExecFuture<'a, Result<Link, DialError>>;

    /// Whether the sandbox has a keeper. The check does not disturb a keeper that starts.
    ///
    /// If that cannot be checked, the answer is true: nothing may be revived on a guess.
    fn is_held(&self, sandbox: &str) -> bool;

    /// Waits until the sandbox has no keeper and no process. False: it still has, or that cannot be checked.
    ///
    /// Ends what a dead keeper left.
    fn wait_gone<'a>(&'a self, sandbox: &'a str, within: Duration) -> ExecFuture<'a, bool>;

    /// Whether a dead keeper left processes. Ends nothing.
    fn has_leftovers<'a>(&'a self, sandbox: &'a str) -> ExecFuture<'a, bool>;

    /// Kills a keeper that does not answer, and with it everything in its sandbox. False: there is no such keeper.
    fn kill_keeper<'a>(&'a self, sandbox: &'a str) -> ExecFuture<'a, io::Result<bool>>;

    /// The pid on the daemon's host of a process that its sandbox numbers `numbered`. `keeper` is the pid of the keeper
    /// that its welcome names. `None`: there is no such process, or it runs elsewhere.
    fn process_of(&self, keeper: u32, numbered: u32) -> Option<u32>;

    /// Removes everything that a sandbox without a keeper left: exit records, output, processes.
    fn remove<'a>(&'a self, sandbox: &'a str) -> ExecFuture<'a, Result<(), RemoveError>>;

    /// Removes what an exec left, in a sandbox without a keeper. A keeper does so by `KeeperCommand::Forget`.
    fn forget<'a>(&'a self, sandbox: &'a str, exec: &'a str) -> ExecFuture<'a, Result<(), RemoveError>>;

    /// Moves the long streams of an exec to where the agent can read them, and removes the oldest that were kept.
    fn keep_output<'a>(
        &'a self,
        sandbox: &'a str,
        exec: &'a str,
        rules: &'a KeepRules<'a>,
    ) -> ExecFuture<'a, Result<(), SandboxReadError>>;

    /// What is known about an exec without its keeper.
    fn evidence(&self, sandbox: &str, exec: &str) -> Evidence;

    /// The first `head_max` and the last `tail_max` bytes that were captured of a stream.
    fn read_output(
        &self,
        sandbox: &str,
        exec: &str,
        stream: ExecStream,
        head_max: usize,
        tail_max: usize,
    ) -> Result<CapturedStream, SandboxReadError>;

    /// At most `len_max` bytes of a job's stream from `offset` on, or from the first that is kept beyond it.
    fn job_read(
        &self,
        sandbox: &str,
        job: &str,
        stream: ExecStream,
        offset: u64,
        len_max: usize,
    ) -> Result<JobBytes, SandboxReadError>;

    /// How much there is of both streams of a job.
    fn job_totals(&self, sandbox: &str, job: &str) -> Result<JobTotals, SandboxReadError>;

    /// The marks of the order in which both streams of a job were written, from `offset` on: see
    /// [`OrderRuns`](lodge_link::OrderRuns).
    fn job_order(&self, sandbox: &str, job: &str, offset: u64) -> Result<Vec<u8>, SandboxReadError>;

    /// Frees the space of output that is stored elsewhere: everything before `upto`. The job may continue to write.
    ///
    /// The bytes may stay until the job is forgotten. A job that was forgotten has nothing to free.
    fn job_release(
        &self,
        sandbox: &str,
        job: &str,
        stream: ExecStream,
        upto: u64,
    ) -> Result<(), SandboxReadError>;
}
