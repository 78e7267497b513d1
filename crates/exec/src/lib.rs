//! The only code outside the keeper that starts, signals or inspects processes.
//!
//! Owns: the interface to sandboxes ([`Executor`], [`Link`]) and its implementation on this host (`system`), which owns
//! `run/` of the state directory; programs in `bin/`, credential helpers and the limit of open files. Never: what should
//! run, or when.

mod error;
mod executor;
mod helper;
mod link;
mod name;
mod open_files;
mod output;
mod programs;
mod spec;
mod system;

pub use error::{DialError, HostError, RemoveError, SandboxReadError, SendError, StartError};
pub use executor::{ExecFuture, Executor};
pub use helper::{Helper, HelperAnswer, HelperError, find_program};
pub use link::{Link, LinkReceiver, LinkSender};
pub use lodge_link::{
    Bind, BindOwner, EnforcedLimit, ExecKind, ExecState, ExitOutcome, ExitRecord, FileIdentity,
    KeeperCommand, KeeperEvent, KeeperSecret, KnownExec, Layer, LimitHit, Limits, Network, OrderRuns,
    PrivateRoot, Resource, ResourceUsage, StartExec, StreamCount, StreamKind, Welcome, limits, stderr_log,
    stdout_log,
};
pub use name::ExecName;
pub use open_files::FileLimit;
pub use output::{CapturedStream, Evidence, ExecStream, JobBytes, JobStreamExtent, JobTotals, KeepRules};
pub use programs::{ProgramImage, StoredProgram, VerifiedProgram};
pub use spec::{OwnerTrial, SandboxSpec};
pub use system::{SystemExecutor, is_over};
