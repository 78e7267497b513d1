//! `jobs`.

use clap::{Args, Subcommand, ValueEnum};

use crate::parse::{is_time, key_value, wait_ms};

#[derive(Debug, Subcommand)]
pub(crate) enum JobsCommand {
    /// Start one of an agent's tools as a job and print the job's id
    Run(JobRunArgs),
    /// List jobs, newest first
    Ls(JobListArgs),
    /// Show details of jobs
    Inspect(JobRefs),
    /// Print a job's output: its stdout to stdout, its stderr to stderr
    Logs(JobLogsArgs),
    /// Wait until jobs end and exit with the job's exit code
    ///
    /// Exits with 128 + N if signal N ended the job, and with 1 if the job failed or was cancelled. With several jobs, exits with the first code that is not 0.
    Wait(JobWaitArgs),
    /// Cancel jobs and kill every process that they started
    Cancel(JobRefs),
}

#[derive(Debug, Args)]
#[command(override_usage = "lodge jobs run [OPTIONS] AGENT -- BIN [ARGS]…")]
pub(crate) struct JobRunArgs {
    /// An agent's name or id, or any unique prefix of the id
    pub agent: String,
    /// The session to notify when the job ends
    #[arg(short, long)]
    pub session: Option<String>,
    /// The job's stdin: a text, @FILE, or - for stdin
    #[arg(long, value_name = "TEXT|@FILE|-", allow_hyphen_values = true)]
    pub stdin: Option<String>,
    /// Kill the job after this time, such as 90s or 10m; default: no limit
    #[arg(long, value_name = "TIME", value_parser = is_time)]
    pub timeout: Option<String>,
    /// Priority among the agent's waiting jobs: -100 to 100, higher first
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-100..=100))]
    pub priority: Option<i32>,
    /// Set a label on the job; can be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub label: Vec<(String, String)>,
    /// How much of each stream to keep, 4k to 16g: most from the start, the rest from the end
    #[arg(long, value_name = "SIZE")]
    pub output: Option<String>,
    /// Show the output, wait until the job ends and exit with its code
    #[arg(short, long)]
    pub wait: bool,
    /// The tool (its BIN name in the Agentfile) and its arguments
    #[arg(value_name = "BIN", trailing_var_arg = true)]
    pub command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct JobListArgs {
    /// Show only this agent; it may be removed
    #[arg(long)]
    pub agent: Option<String>,
    /// Show only this status
    #[arg(long, value_parser = STATUSES)]
    pub status: Option<String>,
    /// Show only this session
    #[arg(short, long)]
    pub session: Option<String>,
    /// Show only jobs with this label; can be repeated, all must match
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub label: Vec<(String, String)>,
    /// Show at most N; default: all
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
}

/// Where a job can be.
pub(crate) const STATUSES: [&str; 5] = ["pending", "running", "done", "error", "cancelled"];

#[derive(Debug, Args)]
pub(crate) struct JobRefs {
    /// Ids of jobs, or any unique prefix
    #[arg(required = true, value_name = "JOB")]
    pub jobs: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct JobLogsArgs {
    /// A job's id, or any unique prefix
    pub job: String,
    /// Follow the output until the job ends
    #[arg(short, long)]
    pub follow: bool,
    /// Print only stderr, to stdout
    #[arg(long, conflicts_with = "merged")]
    pub stderr: bool,
    /// Print both streams to stdout, in the order of writing
    #[arg(long)]
    pub merged: bool,
    /// Start at this byte of stdout and print only stdout, unless --stderr or --merged is given
    #[arg(long, value_name = "N", conflicts_with = "tail")]
    pub offset: Option<u64>,
    /// Start with the last N lines of each stream, or of the merged output
    #[arg(short = 'n', long, value_name = "N")]
    pub tail: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct JobWaitArgs {
    #[command(flatten)]
    pub refs: JobRefs,
    /// How long to wait, such as 90s or 1h30m; default: no limit
    #[arg(long = "timeout", value_name = "TIME", value_parser = wait_ms)]
    pub timeout_ms: Option<u64>,
}

/// How the jobs of a stopped agent end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum JobsFate {
    /// Cancel them
    Cancel,
    /// Wait for them, then stop
    Wait,
    /// Do not stop while one of them runs
    Refuse,
}

/// Agents to stop or to restart.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    pub refs: super::AgentRefs,
    /// What to do with its jobs; default: ask at a terminal, otherwise cancel
    #[arg(long, value_name = "FATE")]
    pub jobs: Option<JobsFate>,
}
