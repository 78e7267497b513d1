//! The only code outside the keeper that starts, signals or inspects processes.
//!
//! Owns: `run/` and `bin/` of the state directory, keepers' starts, the link to each, and reading what a
//! sandbox left behind as if it had been written by an enemy. Never: what should run, or when.

mod cgroup;
mod channel;
mod controllers;
mod dial;
mod error;
mod evidence;
mod gone;
mod helper;
mod host;
mod job;
mod kept;
mod lock;
mod name;
mod open_files;
mod programs;
mod start;

pub use channel::{Link, Receiver, Sender};
pub use error::{DialError, HostError, ReadError, RemoveError, SendError, StartError};
pub use evidence::{CapturedStream, Evidence, ExecStream};
pub use gone::is_over;
pub use helper::{Helper, HelperAnswer, HelperError, find_program};
pub use host::SandboxHost;
pub use job::{JobBytes, JobStream, JobTotals};
pub use kept::KeepRules;
pub use lodge_link::{
    Bind, EnforcedLimit, ExecKind, ExecState, ExitOutcome, ExitRecord, FileIdentity, KeeperCommand,
    KeeperEvent, KnownExec, Layer, LimitHit, Limits, Network, OrderRuns, PrivateRoot, Resource,
    ResourceUsage, Secret, Speaker, StartExec, StreamCount, Welcome, limits,
};
pub use name::ExecName;
pub use open_files::FileLimit;
pub use programs::{ProgramImage, StoredProgram, VerifiedProgram};
pub use start::SandboxSpec;
