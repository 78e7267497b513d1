//! The whole system from outside: real programs, the real API, the real command line.

mod agent;
mod attach;
mod auth;
mod checked;
mod cli;
mod cli_daemon;
mod config;
mod contract;
mod create;
mod fence;
mod hidden;
mod idempotency;
mod malformed;
mod provider;
mod recovery;
mod sessions;
mod shutdown;
mod terminal;
mod world;
