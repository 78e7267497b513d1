//! The stock set of tools, and the examples that use it: in an empty root, in Docker, in sandboxes, and on a host
//! without them.

mod elsewhere;
mod empty;
mod examples;
mod sandbox;
mod set;
