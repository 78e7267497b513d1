//! `sandbox` and `exec`.

use clap::{Args, Subcommand};

use crate::parse::{MountArg, key_value, mount};

#[derive(Debug, Subcommand)]
pub(crate) enum SandboxCommand {
    /// Create a sandbox, wait until it is ready and print its id
    Create(SandboxCreateArgs),
    /// List sandboxes, newest first
    Ls(SandboxListArgs),
    /// Show details of sandboxes: state, tools, network, limits, isolation
    Get(SandboxRefs),
    /// Stop sandboxes; their files stay, their execs are cancelled
    Stop(SandboxRefs),
    /// Start stopped or failed sandboxes again
    Resume(SandboxRefs),
    /// Stop sandboxes and remove their files and output; an id is never used again
    Rm(SandboxRefs),
    /// Show the events of a sandbox; it may be deleted
    Events(SandboxEventsArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lodge sandbox create --shell\n  lodge sandbox create --id build-1 --bin make=host:make --shell -v ~/src/otter:/workspace/otter --network none"
)]
pub(crate) struct SandboxCreateArgs {
    /// An id of your own: 4 to 64 letters, digits, _ and -; default: a new one
    #[arg(long)]
    pub id: Option<String>,
    /// A container image; needs the docker executor
    #[arg(long, value_name = "REF")]
    pub image: Option<String>,
    /// Give it a tool: a program of the daemon's host under this name
    #[arg(long = "bin", value_name = "NAME=host:PROGRAM", value_parser = key_value)]
    pub bins: Vec<(String, String)>,
    /// Give it the tool sh, with the ordinary utilities of the host
    #[arg(long)]
    pub shell: bool,
    /// Set an environment variable
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub env: Vec<(String, String)>,
    /// Mount a directory or file of this machine
    #[arg(short = 'v', long = "mount", value_name = "HOST:TARGET[:ro|rw][,map-root]", value_parser = mount)]
    pub mounts: Vec<MountArg>,
    /// Set a label
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub label: Vec<(String, String)>,
    /// What it reaches: none, public, lan, host, or hosts, CIDRs and loopback:PORT; can be repeated; default: public
    #[arg(long, value_name = "WORD", value_delimiter = ',')]
    pub network: Vec<String>,
    /// Set a limit: memory=512m, pids=64, cpu-time=5m, disk=2g, output=1m
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub limit: Vec<(String, String)>,
    /// Print the id at once, without waiting until it is ready
    #[arg(long)]
    pub detach: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SandboxListArgs {
    /// Include stopped, failed and deleted sandboxes
    #[arg(short, long)]
    pub all: bool,
    /// Show only this status
    #[arg(long, value_parser = SANDBOX_STATUSES)]
    pub status: Option<String>,
    /// Show only sandboxes with this label; can be repeated, all must match
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub label: Vec<(String, String)>,
    /// Show at most N; default: all
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
}

const SANDBOX_STATUSES: [&str; 6] = ["pending", "ready", "stopped", "failed", "deleting", "deleted"];

#[derive(Debug, Args)]
pub(crate) struct SandboxRefs {
    /// Ids of sandboxes, or any unique prefix
    #[arg(required = true, value_name = "SANDBOX")]
    pub sandboxes: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SandboxEventsArgs {
    /// A sandbox's id, or any unique prefix
    pub sandbox: String,
    /// Follow new events
    #[arg(short, long)]
    pub follow: bool,
    /// Show only the newest N events; with -f, follow after them
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub newest: Option<u32>,
    /// Show only events after this sequence number; 0 shows all
    #[arg(long, value_name = "SEQ")]
    pub since: Option<u64>,
    /// Show only this kind (exec.finished) or family (exec)
    #[arg(long)]
    pub kind: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ExecCommand {
    /// Run a program in a sandbox, print its output and exit with its code
    ///
    /// Exits with 128 + N if signal N ended it, with 127 if there is no such program, with 126 if it cannot be executed, and with 125 if it could not be run for another reason, was cancelled or was lost. Ctrl-C cancels it.
    Run(ExecRunArgs),
    /// List execs, newest first
    Ls(ExecListArgs),
    /// Show details of execs
    Get(ExecRefs),
    /// Print an exec's output: its stdout to stdout, its stderr to stderr
    Logs(ExecLogsArgs),
    /// Cancel execs and end every process that they started
    Cancel(ExecRefs),
}

#[derive(Debug, Args)]
#[command(override_usage = "lodge exec run [OPTIONS] SANDBOX -- PROGRAM [ARGS]…")]
pub(crate) struct ExecRunArgs {
    /// A sandbox's id, or any unique prefix
    pub sandbox: String,
    /// An id of your own: 4 to 64 letters, digits, _ and -; default: a new one
    #[arg(long)]
    pub id: Option<String>,
    /// The directory to start in, as the sandbox sees it; default: /workspace
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,
    /// Set an environment variable for this program
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub env: Vec<(String, String)>,
    /// Pass this command's stdin to the program, up to its end
    #[arg(short, long)]
    pub interactive: bool,
    /// Print the id at once; the program keeps running
    #[arg(short, long)]
    pub detach: bool,
    /// The program, by the name of a tool, and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true)]
    pub command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ExecListArgs {
    /// Show only this sandbox; it may be deleted
    pub sandbox: Option<String>,
    /// Show only this status
    #[arg(long, value_parser = ["running", "finished", "failed", "cancelled"])]
    pub status: Option<String>,
    /// Show at most N; default: all
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct ExecRefs {
    /// Ids of execs, or any unique prefix
    #[arg(required = true, value_name = "EXEC")]
    pub execs: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ExecLogsArgs {
    /// An exec's id, or any unique prefix
    pub exec: String,
    /// Follow the output until the exec ends
    #[arg(short, long)]
    pub follow: bool,
    /// Print only stderr, to stdout
    #[arg(long)]
    pub stderr: bool,
}
