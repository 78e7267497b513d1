//! The whole system from outside: real programs, the real API, the real command line.

mod agent;
mod attach;
mod auth;
mod checked;
mod cli;
mod cli_daemon;
mod cli_lineage;
mod config;
mod contract;
mod create;
mod fence;
mod hidden;
mod idempotency;
mod lineage;
mod malformed;
mod provider;
mod reap;
mod recovery;
mod sessions;
mod shutdown;
mod snapshot;
mod terminal;
mod world;
