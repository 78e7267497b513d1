//! The harness of the tests and benchmarks: what `lodge selftest` is made of, in a form that panics when it cannot go
//! on.

pub mod crash;
pub mod golden;
pub mod lodge;
pub mod mock;
pub mod registry;
