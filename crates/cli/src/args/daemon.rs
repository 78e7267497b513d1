//! `events`, `token`, `quarantine` and `selftest`.

use clap::{Args, Subcommand};

use crate::parse::seconds;

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Issue a token and print it, once
    Issue {
        /// The one agent it is for; it is an operator's when absent
        #[arg(long, value_name = "AGENT")]
        agent: Option<String>,
        /// What you call it
        #[arg(long)]
        name: Option<String>,
        /// How long it is good for: a number with s, m, h or d; 90d when absent
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        expires: Option<u64>,
    },
    /// List tokens, never their values
    Ls {
        /// Also those that were revoked or are over
        #[arg(short, long)]
        all: bool,
    },
    /// Revoke tokens; connections that are open with them are closed
    Revoke {
        /// Ids that `token ls` shows, or unique beginnings of them
        #[arg(required = true, value_name = "ID")]
        tokens: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum QuarantineCommand {
    /// List work that is set aside
    #[command(after_help = "Examples:\n  lodge quarantine ls\n  lodge quarantine ls --json")]
    Ls,
    /// Compute work again; it is set aside again if it kills the daemon three more times
    #[command(after_help = "Example: lodge quarantine retry wrk_1m7gad")]
    Retry(WorkRefs),
    /// Give work up: a turn that waits for it fails
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
    /// Go on with what happens
    #[arg(short, long)]
    pub follow: bool,
    /// How many of the newest; with -f those first, then what happens
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub newest: Option<u32>,
    /// Only what happened after this sequence; 0 shows everything
    #[arg(long, value_name = "SEQ")]
    pub since: Option<u64>,
    /// Only of this agent, also one that was removed
    #[arg(long)]
    pub agent: Option<String>,
    /// Only of this kind (turn.text) or family (turn)
    #[arg(long)]
    pub kind: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SelftestArgs {
    /// How many processes to kill
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=CRASH_KILLS_MAX))]
    pub crash: u64,
    /// Make the choices of an earlier run; a new seed is drawn when absent
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
}

/// More than a week of killing: rather a slip of the keyboard.
const CRASH_KILLS_MAX: u64 = 10_000_000;
