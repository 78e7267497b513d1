//! Files from strangers: Agentfiles and what they refer to.
//!
//! Owns: turning untrusted bytes into checked, plain data. Never: runs anything, talks to a network, or
//! writes a file.

pub mod agentfile;
mod reference;

pub use reference::{BadReference, Reference, Tagged};
