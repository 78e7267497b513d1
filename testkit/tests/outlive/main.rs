//! Work outlives everything that drives it: one test for each thing that can die, be replaced, or stand still.

#![expect(clippy::disallowed_methods, reason = "a test owns its tasks by their handles")]

#[allow(dead_code, reason = "shared with the test program `api`, which uses all of it")]
#[path = "../api/checked.rs"]
mod checked;
mod deaths;
mod follow;
mod hangs;
mod jobs;
mod load;
mod processes;
mod release;
mod strangers;
mod trees;
mod upgrade;
#[allow(dead_code, reason = "shared with the test program `api`, which uses all of it")]
#[path = "../api/world.rs"]
mod world;
