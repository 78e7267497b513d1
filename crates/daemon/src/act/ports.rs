//! What acting uses of its surroundings. Each part is an interface: the daemon has the implementations of `host.rs`, the
//! simulator has its own.
//!
//! Everything that may block a thread is behind one of these. Futures are awaited on async workers; other methods return
//! at once.

use std::fmt::Debug;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use lodge_core::job::JobRow;
use lodge_core::record::{AgentFact, AgentRow, ImageRecord, ImageRow, MessageRow, RuntimeRecord, ToolRecord};
use lodge_core::sandbox::{SandboxExecRow, SandboxFact};
use lodge_core::{AgentId, ExecId, JobId, SandboxId, SessionId, Timestamp};
use lodge_engine::jobs::{JobReport, JobToolRequest};
use lodge_engine::{AutoRetry, ModelFailure, ModelOrder, SandboxPlan, StandalonePlan};
use lodge_exec::{KeeperSecret, SandboxSpec};
use lodge_model::{CallAnswer, ModelRequest, Redactor};
use lodge_store::ReadError;

use super::layout::Layout;
pub use crate::auth::Access;
pub use crate::compute::{Charge, ComputeError};
pub use crate::room::RoomRefusal;
pub use crate::suspects::Suspects;

pub type PortFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The wall clock.
pub trait Clock: Debug + Send + Sync {
    fn now(&self) -> Timestamp;
}

/// What acting reads of the store, from one snapshot.
pub trait WorkReads {
    fn agent_fact(&self, id: &AgentId) -> Result<Option<AgentFact>, ReadError>;
    fn image(&self, digest: &str) -> Result<Option<ImageRecord>, ReadError>;
    fn has_live_turn(&self, agent: &AgentId) -> Result<bool, ReadError>;
    /// Whether a job of the agent runs, or has output that is not archived.
    fn has_unarchived_job(&self, agent: &AgentId) -> Result<bool, ReadError>;
    /// A job, with its standard input.
    fn job_to_start(&self, id: &JobId) -> Result<Option<(JobRow, Vec<u8>)>, ReadError>;
    fn sandbox_fact(&self, id: &SandboxId) -> Result<Option<SandboxFact>, ReadError>;
    /// An exec of a standalone sandbox.
    fn exec(&self, id: &ExecId) -> Result<Option<SandboxExecRow>, ReadError>;
    /// The same, with its standard input.
    fn exec_to_start(&self, id: &ExecId) -> Result<Option<(SandboxExecRow, Vec<u8>)>, ReadError>;
    /// The number of the newest message of a session.
    fn newest_message(&self, session: &SessionId) -> Result<u64, ReadError>;
    /// The messages of a session's turns from `from` to `upto`.
    fn context(&self, session: &SessionId, from: u32, upto: u32) -> Result<Vec<MessageRow>, ReadError>;
    /// The summary that an epoch of a session begins with.
    fn summary(&self, session: &SessionId, epoch: u32) -> Result<Option<String>, ReadError>;
}

/// Reads from a snapshot, and returns how many bytes it read.
pub type WorkRead = Box<dyn FnOnce(&dyn WorkReads) -> u64 + Send>;

/// How much a read is about to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadSize {
    /// A few rows by key.
    Few,
    /// A row that can be large.
    Row,
    /// A whole conversation. Agents share the threads that read these, by the size of what they read.
    Conversation {
        agent: AgentId,
        /// If it is known.
        bytes: Option<u64>,
    },
}

/// The store, for reading.
pub trait WorkStore: Debug + Send + Sync {
    /// Calls `read` once, with one snapshot, unless the result is an error.
    fn read(&self, size: ReadSize, read: WorkRead) -> PortFuture<'_, Result<(), ComputeError>>;
}

/// The threads for CPU-bound work.
pub trait ComputeThreads: Debug + Send + Sync {
    /// Runs `work`, charged to `caller` as `bytes` and what it adds itself.
    fn run<'a>(
        &'a self,
        caller: &'a str,
        bytes: usize,
        work: Box<dyn FnOnce(&Charge) + Send>,
    ) -> PortFuture<'a, Result<(), ComputeError>>;
}

/// The answer of a model, with its price.
#[derive(Debug)]
pub struct ModelReply {
    pub answer: CallAnswer,
    pub micro_usd: Option<u64>,
}

/// The providers of models.
pub trait ModelCalls: Debug + Send + Sync {
    /// Whether the model can be called. The error says why not and what to do.
    fn check(&self, model: &str) -> Result<(), String>;

    /// Finds the model of an order.
    fn find<'a>(&'a self, order: &'a ModelOrder) -> Result<Box<dyn FoundModel + 'a>, ModelFailure>;

    /// Removes the keys of providers from text.
    fn redactor(&self) -> Arc<Redactor>;
}

/// A model, ready to be called once.
pub trait FoundModel: Send + Sync {
    /// Removes keys from the text of the call. The key that the call is made with is always among them, whatever happens to the
    /// providers meanwhile.
    fn redactor(&self) -> Arc<Redactor>;

    /// Makes the call. `on_text` gets the text as it arrives. Dropping the future cancels the call.
    fn call<'a>(
        &'a self,
        request: ModelRequest,
        on_text: &'a mut (dyn FnMut(&str) + Send),
    ) -> PortFuture<'a, Result<ModelReply, ModelFailure>>;
}

/// Images of an agent that are complete in the store of images and not recorded yet.
#[derive(Debug)]
pub struct ObtainedImages {
    pub rows: Vec<ImageRow>,
    /// All tools of the agent, with their programs.
    pub tools: Vec<ToolRecord>,
    pub runtime: Option<RuntimeRecord>,
    /// Keeps the contents from being collected until they are recorded.
    pub pins: Box<dyn ImagePins>,
}

/// Keeps contents of images from being collected while it exists.
pub trait ImagePins: Debug + Send {}

/// Why an agent's images could not be obtained.
#[derive(Debug)]
pub struct PullFailure {
    pub detail: String,
    pub again: AutoRetry,
}

/// The store of images.
pub trait AgentImages: Debug + Send + Sync {
    /// Finds or pulls everything that an agent needs. Dropping the future cancels the transfer, unless another caller waits
    /// for it.
    fn obtain<'a>(&'a self, row: &'a AgentRow) -> PortFuture<'a, Result<ObtainedImages, PullFailure>>;

    /// Removes contents that no image has.
    fn collect(&self) -> PortFuture<'static, ()>;
}

/// Why an agent's files could not be prepared.
#[derive(Debug)]
pub enum PrepareError {
    /// A part of its image is missing.
    Incomplete(String),
    Failed(String),
}

/// The directories and logs of agents.
pub trait AgentFiles: Debug + Send + Sync {
    /// Creates the agent's root for a sandbox that does not run, and returns what its keeper needs. Idempotent.
    fn prepare<'a>(
        &'a self,
        plan: &'a SandboxPlan,
        image: &'a ImageRecord,
        secret: KeeperSecret,
    ) -> PortFuture<'a, Result<SandboxSpec, PrepareError>>;

    /// Writes the files that describe the agent to its model and its runtime, with the paths of `layout`.
    fn describe<'a>(
        &'a self,
        layout: &'a Layout,
        plan: &'a SandboxPlan,
        image: &'a ImageRecord,
    ) -> PortFuture<'a, Result<(), String>>;

    /// Removes everything of an agent.
    fn remove<'a>(&'a self, agent: &'a AgentId) -> PortFuture<'a, Result<(), String>>;

    /// Appends a line to the agent's log, unless it is among the last ones.
    fn append_log<'a>(&'a self, agent: &'a AgentId, line: String) -> PortFuture<'a, Result<(), String>>;
}

/// The directories of standalone sandboxes.
pub trait StandaloneFiles: Debug + Send + Sync {
    /// Creates the root and the log directory of a sandbox that does not run, and returns what its keeper needs.
    /// Idempotent.
    fn prepare<'a>(
        &'a self,
        plan: &'a StandalonePlan,
        secret: KeeperSecret,
    ) -> PortFuture<'a, Result<SandboxSpec, String>>;

    /// The root of a sandbox on the host, where its keeper shows it no root of its own.
    fn root(&self, sandbox: &SandboxId) -> PathBuf;

    /// Removes everything of a sandbox.
    fn remove<'a>(&'a self, sandbox: &'a SandboxId) -> PortFuture<'a, Result<(), String>>;

    /// How much there is of both streams of an exec.
    fn written(&self, sandbox: &SandboxId, exec: &ExecId) -> (u64, u64);
}

/// The session whose jobs a model sees.
#[derive(Debug)]
pub struct JobOwner {
    pub agent: AgentId,
    pub session: SessionId,
}

/// The archive of job output, and clients that follow it.
pub trait JobOutputs: Debug + Send + Sync {
    /// Moves all output of a job that ended into the archive.
    fn archive(&self, job: &JobId);
    /// Removes output from the archive.
    fn remove(&self, jobs: Vec<JobId>);
    /// A job of the agent is recorded as archived.
    fn archived(&self, agent: &AgentId);
    /// A running job has written this many bytes.
    fn wrote<'a>(
        &'a self,
        agent: &'a AgentId,
        job: &'a JobId,
        stdout: u64,
        stderr: u64,
    ) -> PortFuture<'a, ()>;
    /// An exec in a standalone sandbox has written this many bytes.
    fn exec_wrote(&self, exec: &ExecId, stdout: u64, stderr: u64);
    /// Reads what a model asked about jobs.
    fn answer(&self, owner: JobOwner, wish: JobToolRequest) -> PortFuture<'_, JobReport>;
    /// Refuses a job while there is too little space for its output.
    fn admit(&self) -> Result<(), RoomRefusal>;
}
