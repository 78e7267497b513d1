//! The client of registries against registries that lie, stall and lead astray, and against a real one.

#![expect(clippy::disallowed_methods, reason = "a test owns its tasks by their handles")]

mod auth;
mod broken;
mod chaos;
mod common;
mod lies;
mod push;
mod real;
mod redirects;
mod watched;
