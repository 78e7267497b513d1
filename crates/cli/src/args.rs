//! The command line, as clap reads it.
//!
//! Owns: names of commands and flags. Never: what they do (see `commands`).

mod agents;
mod bins;
mod daemon;
mod images;
mod jobs;
mod lineages;
mod providers;
mod talk;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub(crate) use self::agents::*;
pub(crate) use self::bins::*;
pub(crate) use self::daemon::*;
pub(crate) use self::images::*;
pub(crate) use self::jobs::*;
pub(crate) use self::lineages::*;
pub(crate) use self::providers::*;
pub(crate) use self::talk::*;

const AFTER_HELP: &str =
    "Start here: `lodge run DIR \"a question\"` with a directory that has an Agentfile; `lodge COMMAND --help` tells more.

A daemon of another machine, with TLS:
  LODGE_TOKEN=... lodge --daemon https://box.example:5500 ps

Environment, beside the variables above:
  LODGE_HOME         the state directory
  LODGE_TOKEN        the token, in place of that of the state directory
  LODGE_CA_FILE      authorities that may have issued the daemon's certificate, as PEM; otherwise the system's
  LODGE_DAEMON_ADDR  the daemon's own address, such as 127.0.0.1:5500, where a tunnel without TLS leads to it";

/// A durable home for agents
#[derive(Debug, Parser)]
#[command(
    name = "lodge",
    version,
    propagate_version = false,
    max_term_width = 100,
    after_help = AFTER_HELP
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub global: GlobalArgs,
    #[command(subcommand)]
    pub command: CliCommand,
}

/// The commands of jobs alone: scripts call them often, and describing all others takes longer than most of these.
#[derive(Debug, Parser)]
#[command(name = "lodge")]
struct JobsCli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: JobsOnlyCommand,
}

#[derive(Debug, Subcommand)]
enum JobsOnlyCommand {
    #[command(alias = "job")]
    Jobs {
        #[command(subcommand)]
        command: JobsCommand,
    },
}

impl Cli {
    /// Reads the arguments, the program's name first. What the short way does not take is read, or refused, in the long one.
    pub(crate) fn read(words: &[OsString]) -> Result<Cli, clap::Error> {
        let jobs = words.get(1).is_some_and(|word| word == "jobs" || word == "job");
        match jobs.then(|| JobsCli::try_parse_from(words)) {
            Some(Ok(JobsCli { global, command: JobsOnlyCommand::Jobs { command } })) => {
                Ok(Cli { global, command: CliCommand::Jobs { command } })
            }
            Some(Err(_)) | None => Cli::try_parse_from(words),
        }
    }
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct GlobalArgs {
    /// Print JSON: an array for listings, an object for one thing, JSON Lines for streams
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
    /// Say only what was asked for (listings: ids only)
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub quiet: bool,
    /// The daemon's Unix socket [env: LODGE_SOCKET]
    #[arg(
        long,
        global = true,
        help_heading = "Global options",
        value_name = "PATH",
        conflicts_with = "daemon"
    )]
    pub socket: Option<PathBuf>,
    /// The daemon's address, such as http://127.0.0.1:5500 or https://HOST:PORT [env: LODGE_DAEMON]
    #[arg(long, global = true, help_heading = "Global options", value_name = "URL")]
    pub daemon: Option<String>,
    /// Do not start a daemon when none answers [env: LODGE_NO_AUTOSTART]
    #[arg(long, global = true, help_heading = "Global options")]
    pub no_autostart: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Create an agent, start it, and with a prompt print its answer
    Run(RunArgs),
    /// List agents
    Ps(ListArgs),
    /// Look after agents
    Agent {
        #[command(subcommand)]
        command: AgentCommand,
    },
    /// Show everything about agents
    Inspect(AgentRefs),
    /// Start agents and wait until they are ready
    Start(AgentRefs),
    /// Stop agents; turns in flight are broken off
    Stop(StopArgs),
    /// Start agents anew and wait until they are ready; turns in flight are broken off
    Restart(StopArgs),
    /// Change an agent in place; turns in flight finish on what they began with
    Update(UpdateArgs),
    /// Kill agents and end their work for good: nothing takes it up again
    Kill(AgentRefs),
    /// Remove agents
    Rm(RemoveArgs),
    /// Show an agent's log
    Logs(LogsArgs),
    /// Ask an agent and print its answer
    Prompt(PromptArgs),
    /// Talk to an agent, line by line
    Chat(ChatArgs),
    /// Look at conversations: read, search, fork, rewind
    Session {
        #[command(subcommand)]
        command: SessionCommand,
    },
    /// Run programs beside the conversation, and look after them
    #[command(visible_alias = "job")]
    Jobs {
        #[command(subcommand)]
        command: JobsCommand,
    },
    /// Look at work and decide what becomes of it when its process died
    Lineage {
        #[command(subcommand)]
        command: LineageCommand,
    },
    /// Look after images: what Agentfiles are built into
    Image {
        #[command(subcommand)]
        command: ImageCommand,
    },
    /// Look after tools that are packaged as images
    Bin {
        #[command(subcommand)]
        command: BinCommand,
    },
    /// Look after providers of models
    Provider {
        #[command(subcommand)]
        command: ProviderCommand,
    },
    /// Look after tokens: who may call, until when
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// Manage work that killed the daemon several times and was set aside
    Quarantine {
        #[command(subcommand)]
        command: QuarantineCommand,
    },
    /// Show the daemon and what it is configured with
    #[command(
        after_help = "Examples:\n  lodge info\n  lodge info --json   # http, isolation, quarantine, warnings, config and more"
    )]
    Info,
    /// Show what happened; at a terminal the newest 50, else everything
    Events(EventsArgs),
    /// End the daemon; agents live on unless told otherwise
    Shutdown {
        /// End the agents too
        #[arg(long)]
        agents: bool,
    },
    /// Look which sandboxes live and clear away what dead ones left; signals nothing
    Reap,
    /// Let the daemon read its configuration again; what is under way goes on as it began
    Reload,
    /// Kill daemons, runtimes and keepers with agents at work, and count what is lost or happens twice
    Selftest(SelftestArgs),
    /// Print a completion script: `source <(lodge completions bash)`
    Completions {
        /// The shell that reads it
        shell: clap_complete::Shell,
    },
}

#[cfg(test)]
mod tests;
