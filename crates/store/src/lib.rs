//! The store: what is recorded, and how it is read.
//!
//! Owns: the interface ([`BatchWriter`], [`StoreSnapshot`]) and, behind it, `sqlite`: the schema, the pragmas, the one
//! writer, the readers. All SQL of the daemon is in this crate. Never: decisions (see `core`), and never a type of the API.

mod outputs;
mod reads;
mod sqlite;
mod write;

pub use outputs::*;
pub use reads::*;
pub use sqlite::*;
pub use write::{BatchWriter, Committed, FailedBatch, TestLimit, WalLimits, WriteError, Writer};
