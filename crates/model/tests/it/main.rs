//! Providers, scripts, schemas and all dialects through the crate's public face.

#![expect(clippy::disallowed_methods, reason = "a test owns its tasks by their handles")]

mod common;
mod conversations;
mod mock;
mod openai;
mod protocols;
mod providers;
mod recorded;
mod refusals;
mod schemas;
mod script;
mod strict;
