//! The proof that users can run: agents at work, every process killed, everything counted from outside.
//!
//! Owns: the crash scheduler and its checker, the processes that count effects and model requests, and the handle on
//! a real daemon in a throw-away directory. Never: anything of a daemon but its program and its API, nor a state
//! directory that it did not make itself.

mod clock;
pub mod crash;
mod lodge;
pub mod mock;
mod processes;
mod programs;
mod role;
mod throw_away;
mod trouble;

pub use self::lodge::{DaemonEnd, DaemonStatus, Lodge, PATIENCE};
pub use self::processes::{is_alive, of as processes_of};
pub use self::programs::{Programs, ROLE_COMMAND};
pub use self::role::{RoleProcess, take_role};
pub use self::trouble::Trouble;
