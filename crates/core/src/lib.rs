//! Decisions: what may happen next, as pure functions.
//!
//! Owns: ids, one file per lifecycle, records, policies and limits. Never: I/O, clocks, randomness; time and entropy
//! are arguments.

pub mod agent;
pub mod cause;
pub mod epoch;
pub mod event;
pub mod id;
pub mod job;
pub mod job_check;
pub mod ledger;
pub mod limits;
pub mod lineage;
pub mod liveness;
pub mod park;
pub mod quarantine;
pub mod record;
pub mod retry;
pub mod sandbox;
pub mod session;
pub mod summary;
pub mod token;
pub mod turn;

pub use cause::Cause;
pub use event::{EventBody, EventKind};
pub use id::{
    AgentId, ExecId, IdSource, JobId, LineageId, SandboxId, SessionId, StepId, TokenId, TurnId, WorkId,
};
pub use lodge_events::Timestamp;
