//! `lineage`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum LineageCommand {
    /// List lineages
    Ls {
        /// Show only this agent
        #[arg(long)]
        agent: Option<String>,
        /// Show only this status
        #[arg(long, value_parser = ["active", "orphaned", "ask_pending", "reaped", "ended"])]
        status: Option<String>,
    },
    /// Show a lineage; with --snapshot, its state at the last turn boundary
    Show(LineageShowArgs),
    /// Resolve a lineage that waits for a decision
    Resolve(ResolveArgs),
}

#[derive(Debug, Args)]
pub(crate) struct LineageShowArgs {
    /// A lineage's id or any unique prefix, or an agent
    #[arg(value_name = "LINEAGE", required_unless_present = "file", conflicts_with = "file")]
    pub lineage: Option<String>,
    /// Print its state at the last turn boundary, as one JSON document
    #[arg(long)]
    pub snapshot: bool,
    /// Show a snapshot from a file; older versions are supported
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("decision").required(true))]
pub(crate) struct ResolveArgs {
    /// A lineage's id or any unique prefix, or an agent
    pub lineage: String,
    /// Continue its work
    #[arg(long, group = "decision")]
    pub revive: bool,
    /// Drop its open work
    #[arg(long, group = "decision")]
    pub reap: bool,
}
