//! `turn`.

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum TurnCommand {
    /// List turns, newest first
    Ls(TurnListArgs),
    /// Show a turn: its message, its steps, its answer, and why it failed
    ///
    /// With --session or --agent: the turn that runs, or else the newest one.
    Show(TurnSelectArgs),
    /// Wait until a turn ends, print its answer and exit as `prompt` does
    ///
    /// With --session or --agent: the turn that runs, or else the newest one.
    Wait(TurnSelectArgs),
    /// Join a turn: print what was said so far, then follow it to its end
    ///
    /// Ctrl-C detaches and the turn keeps running. If the daemon or the agent's process is killed, the output continues where it was.
    Attach(TurnSelectArgs),
    /// Interrupt a turn: its model call and its programs are ended
    Interrupt(TurnSelectArgs),
    /// Continue a failed or interrupted turn from its last finished step
    ///
    /// A new turn replaces it and takes over its finished steps, so no finished tool runs again. With --session or --agent: the newest turn.
    Retry(TurnRetryArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TurnRetryArgs {
    #[command(flatten)]
    pub select: TurnSelectArgs,
    /// Do not wait for the answer; print the new turn's id
    #[arg(short, long)]
    pub detach: bool,
}

/// One turn: by its id, or the one that runs.
#[derive(Debug, Args)]
pub(crate) struct TurnSelectArgs {
    /// A turn's id, or any unique prefix
    #[arg(required_unless_present_any = ["session", "agent"], conflicts_with_all = ["session", "agent"])]
    pub turn: Option<String>,
    /// Select the turn of this session
    #[arg(short, long)]
    pub session: Option<String>,
    /// Select the turn of this agent
    #[arg(long)]
    pub agent: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TurnListArgs {
    /// Show only this agent; it may be removed
    #[arg(long)]
    pub agent: Option<String>,
    /// Show only this session
    #[arg(short, long)]
    pub session: Option<String>,
    /// Show only this status
    #[arg(long, value_parser = TURN_STATUSES)]
    pub status: Option<String>,
    /// Include turns that are not on the path of their session, such as replaced turns
    #[arg(short, long)]
    pub all: bool,
    /// Show at most N
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

const TURN_STATUSES: [&str; 6] = ["queued", "running", "waiting", "done", "interrupted", "failed"];
