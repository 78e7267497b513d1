//! `jobs`.

use clap::{Args, Subcommand, ValueEnum};

use crate::parse::{is_time, key_value, wait_ms};

#[derive(Debug, Subcommand)]
pub(crate) enum JobsCommand {
    /// Start one of an agent's tools as a job and print the job's id
    Run(JobRunArgs),
    /// List jobs, the newest first
    Ls(JobListArgs),
    /// Show everything about jobs
    Inspect(JobRefs),
    /// Print what a job wrote: its stdout to stdout, its stderr to stderr
    Logs(JobLogsArgs),
    /// Wait for the end of jobs and exit with the job's code
    ///
    /// Exits with 128 + N for a job that signal N ended, with 1 for one that failed or was cancelled, and of several with the first code that is not 0.
    Wait(JobWaitArgs),
    /// Cancel jobs: they are killed with everything that they started
    Cancel(JobRefs),
}

#[derive(Debug, Args)]
#[command(override_usage = "lodge jobs run [OPTIONS] AGENT -- BIN [ARGS]…")]
pub(crate) struct JobRunArgs {
    /// An id, a name or a unique beginning of an id
    pub agent: String,
    /// The session that hears of its end
    #[arg(short, long)]
    pub session: Option<String>,
    /// What it reads: a text, @FILE, or - for stdin
    #[arg(long, value_name = "TEXT|@FILE|-", allow_hyphen_values = true)]
    pub stdin: Option<String>,
    /// End it after this time, such as 90s or 10m; without one it runs until it ends
    #[arg(long, value_name = "TIME", value_parser = is_time)]
    pub timeout: Option<String>,
    /// Its place among the agent's waiting jobs: -100 to 100, higher first
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-100..=100))]
    pub priority: Option<i32>,
    /// A label of the job; give it again for more
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub label: Vec<(String, String)>,
    /// How much is kept of each of its streams, 4k to 16g: most from the start, the rest from the end
    #[arg(long, value_name = "SIZE")]
    pub output: Option<String>,
    /// Show its output, wait for its end and exit with its code
    #[arg(short, long)]
    pub wait: bool,
    /// The tool, by the name of its BIN in the Agentfile, and its arguments
    #[arg(value_name = "BIN", trailing_var_arg = true)]
    pub command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct JobListArgs {
    /// Only of this agent, also one that was removed
    #[arg(long)]
    pub agent: Option<String>,
    /// Only with this status
    #[arg(long, value_parser = STATUSES)]
    pub status: Option<String>,
    /// Only of this session
    #[arg(short, long)]
    pub session: Option<String>,
    /// Only with this label; of several, given one by one, all must fit
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub label: Vec<(String, String)>,
    /// How many; all when absent
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
}

/// Where a job can be.
pub(crate) const STATUSES: [&str; 5] = ["pending", "running", "done", "error", "cancelled"];

#[derive(Debug, Args)]
pub(crate) struct JobRefs {
    /// Ids or unique beginnings of ids
    #[arg(required = true, value_name = "JOB")]
    pub jobs: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct JobLogsArgs {
    /// An id or a unique beginning of one
    pub job: String,
    /// Go on until the job ends
    #[arg(short, long)]
    pub follow: bool,
    /// Only its stderr, to stdout
    #[arg(long, conflicts_with = "merged")]
    pub stderr: bool,
    /// Both streams to stdout, in the order in which they were written
    #[arg(long)]
    pub merged: bool,
    /// Begin at this byte; of stdout, and of that alone, unless --stderr or --merged says otherwise
    #[arg(long, value_name = "N", conflicts_with = "tail")]
    pub offset: Option<u64>,
    /// Begin with the last N lines of each stream, or of both together where they are shown together
    #[arg(short = 'n', long, value_name = "N")]
    pub tail: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct JobWaitArgs {
    #[command(flatten)]
    pub refs: JobRefs,
    /// How long to wait, such as 90s or 1h30m; as long as it takes when absent
    #[arg(long = "timeout", value_name = "TIME", value_parser = wait_ms)]
    pub timeout_ms: Option<u64>,
}

/// What becomes of the jobs of an agent that is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum JobsFate {
    /// They are cancelled
    Cancel,
    /// It is stopped when they are over
    Wait,
    /// It is not stopped while one of them runs
    Refuse,
}

/// Agents to stop or to start anew.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    pub refs: super::AgentRefs,
    /// What becomes of its jobs; without it you are asked at a terminal, and elsewhere they are cancelled
    #[arg(long, value_name = "FATE")]
    pub jobs: Option<JobsFate>,
}
