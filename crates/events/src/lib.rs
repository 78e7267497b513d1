//! What happens: one struct per kind of event.
//!
//! Owns: the table of kinds, and with it their names, stored codes, fields, schemas and descriptions. Never: who reads
//! or writes them.

mod kind;
mod money;
mod table;
mod time;

pub use kind::EventDoc;
pub use table::*;
pub use time::Timestamp;
