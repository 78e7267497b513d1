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
mod open_files;
mod programs;
mod start;

pub use channel::{Link, Receiver, Sender};
pub use error::{DialError, HostError, ReadError, RemoveError, SendError, StartError};
pub use evidence::{Captured, Evidence, Stream};
pub use gone::is_over;
pub use helper::{Helped, Helper, HelperError, find_program};
pub use host::Host;
pub use job::{JobBytes, JobStream, JobTotals};
pub use kept::Keeping;
pub use lodge_link::{
    Bind, Cause, Command, Counted, Ended, Event as KeeperEvent, ExecKind, ExecState, ExitRecord,
    FileIdentity, InForce, KnownExec, Layer, Limits, Network, PrivateRoot, Resource, Runs, Secret, Speaker,
    Start, Usage, Welcome, limits,
};
pub use open_files::FileLimit;
pub use programs::{Program, Stored, Verified};
pub use start::SandboxSpec;
