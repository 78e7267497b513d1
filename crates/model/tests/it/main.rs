//! Providers, scripts, schemas and all dialects through the crate's public face.

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
