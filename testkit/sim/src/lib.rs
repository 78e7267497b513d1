//! The daemon in a simulated world: disk, host, model, callers and clock, chosen by a seed.
//!
//! Owns: everything around the engine and `act/`, which are the daemon's own. The same seed gives the same world, so every
//! failure can be reproduced. The simulation mirrors `decide.rs` and `commit.rs` of the daemon, the archive of job output,
//! and the keeper and the runtime. Each life of the daemon is a runtime of its own with a paused clock (`life.rs`), and
//! `act/` sees the world through its interfaces (`port.rs`).

mod checks;
mod client;
mod daemon;
mod disk;
mod facts;
mod fault;
mod host;
mod images;
mod jobs;
mod keeper;
mod laws;
mod life;
mod link;
mod machine;
mod model;
mod outages;
mod passing;
mod pills;
mod plan;
mod port;
mod rest;
mod rng;
mod room;
mod run;
mod runtime;
mod store;
mod strict;
mod trace;
mod words;
mod world;

pub use disk::SimDisk;
pub use plan::SimMutation;
pub use run::{SimFailure, Simulation, run};
pub use trace::SimTrace;
pub use world::{DiskGroup, SimWorld, Tally};
