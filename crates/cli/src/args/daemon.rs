//! `events`, `token`, `quarantine` and `selftest`.

use clap::{Args, Subcommand};

use crate::parse::seconds;

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Issue a token and print it, once
    Issue {
        /// Limit the token to one agent; default: an operator token
        #[arg(long, value_name = "AGENT")]
        agent: Option<String>,
        /// A name for the token
        #[arg(long)]
        name: Option<String>,
        /// Lifetime: a number with s, m, h or d; default: 90d
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        expires: Option<u64>,
    },
    /// List tokens, never their values
    Ls {
        /// Include revoked and expired tokens
        #[arg(short, long)]
        all: bool,
    },
    /// Revoke tokens and close the connections that use them
    Revoke {
        /// Ids that `token ls` shows, or any unique prefix
        #[arg(required = true, value_name = "ID")]
        tokens: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum QuarantineCommand {
    /// List work that is set aside
    #[command(after_help = "Examples:\n  lodge quarantine ls\n  lodge quarantine ls --json")]
    Ls,
    /// Try work again; it is set aside again after three more deaths of the daemon
    #[command(after_help = "Example: lodge quarantine retry wrk_1m7gad")]
    Retry(WorkRefs),
    /// Drop work; a turn that waits for it fails
    #[command(
        after_help = "Examples:\n  lodge quarantine drop wrk_1m7gad\n  lodge quarantine drop $(lodge quarantine ls -q)"
    )]
    Drop(WorkRefs),
}

#[derive(Debug, Args)]
pub(crate) struct WorkRefs {
    /// Ids that `quarantine ls` shows, or any unique prefix
    #[arg(required = true, value_name = "ID")]
    pub work: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Follow new events
    #[arg(short, long)]
    pub follow: bool,
    /// Show only the newest N events; with -f, follow after them
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub newest: Option<u32>,
    /// Show only events after this sequence number; 0 shows all
    #[arg(long, value_name = "SEQ")]
    pub since: Option<u64>,
    /// Show only this agent; it may be removed
    #[arg(long)]
    pub agent: Option<String>,
    /// Show only this sandbox that belongs to no agent; it may be deleted
    #[arg(long, conflicts_with = "agent")]
    pub sandbox: Option<String>,
    /// Show only this kind (turn.text) or family (turn)
    #[arg(long)]
    pub kind: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SelftestArgs {
    /// How many processes to kill
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=CRASH_KILLS_MAX))]
    pub crash: u64,
    /// Repeat the choices of an earlier run; default: a random seed
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
}

/// More than a week of killing: rather a slip of the keyboard.
const CRASH_KILLS_MAX: u64 = 10_000_000;
