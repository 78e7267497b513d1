//! `lineage`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum LineageCommand {
    /// List lineages
    Ls {
        /// Only of this agent
        #[arg(long)]
        agent: Option<String>,
        /// Only with this status
        #[arg(long, value_parser = ["active", "orphaned", "ask_pending", "reaped", "ended"])]
        status: Option<String>,
    },
    /// Show a lineage, or with --snapshot its state at the last turn boundary
    Show(LineageShowArgs),
    /// Decide about a lineage that waits for it
    Resolve(ResolveArgs),
}

#[derive(Debug, Args)]
pub(crate) struct LineageShowArgs {
    /// An id, a unique beginning of one, or an agent
    #[arg(value_name = "LINEAGE", required_unless_present = "file", conflicts_with = "file")]
    pub lineage: Option<String>,
    /// Print its state at the last turn boundary, as one JSON document
    #[arg(long)]
    pub snapshot: bool,
    /// Show a snapshot from a file; older versions are read too
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("decision").required(true))]
pub(crate) struct ResolveArgs {
    /// An id, a unique beginning of one, or an agent
    pub lineage: String,
    /// Go on with its work
    #[arg(long, group = "decision")]
    pub revive: bool,
    /// Drop its open work
    #[arg(long, group = "decision")]
    pub reap: bool,
}
