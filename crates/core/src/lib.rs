//! Decisions: what may happen next, as pure functions.
//!
//! Owns: ids, one file per lifecycle, what is recorded, policies and limits. Never: I/O, clocks, chance; time
//! and entropy arrive as arguments.

pub mod agent;
pub mod event;
pub mod id;
pub mod ledger;
pub mod limits;
pub mod lineage;
pub mod liveness;
pub mod record;
pub mod retry;
pub mod time;
pub mod turn;

pub use event::{EventData, EventKind};
pub use id::{AgentId, ExecId, IdSource, LineageId, SandboxId, SessionId, StepId, TurnId};
pub use time::Timestamp;
