//! The stock set of tools, and the examples that use it: in an empty root, in Docker, in sandboxes, and on a host that has
//! never heard of them.

mod elsewhere;
mod empty;
mod examples;
mod sandbox;
mod set;
