//! The engine in a simulated world: disk, host, model, callers and clock, chosen by a seed.
//!
//! Owns: everything around the engine, which is the one that the daemon links. The same seed gives the same world, so
//! every failure can be reproduced. The simulation mirrors `commit.rs`, `shell.rs` and `act/` of the daemon, and the
//! keeper and the runtime behind them.

mod actor;
mod checks;
mod client;
mod daemon;
mod disk;
mod facts;
mod fault;
mod images;
mod jobs;
mod keeper;
mod laws;
mod model;
mod pills;
mod plan;
mod probe;
mod pulse;
mod rest;
mod rng;
mod room;
mod run;
mod runtime;
mod store;
mod strict;
mod tools;
mod trace;
mod words;
mod world;

pub use disk::SimDisk;
pub use plan::Mutation;
pub use run::{SimFailure, run, storms};
pub use trace::SimTrace;
pub use world::{DiskGroup, SimWorld, Tally};
