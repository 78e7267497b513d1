//! What happened: every event is recorded in the stream of an agent, or of the daemon.

pub use lodge_events::*;
