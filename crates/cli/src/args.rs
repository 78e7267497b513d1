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
mod sandboxes;
mod start;
mod talk;
mod turns;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

pub(crate) use self::agents::*;
pub(crate) use self::bins::*;
pub(crate) use self::daemon::*;
pub(crate) use self::images::*;
pub(crate) use self::jobs::*;
pub(crate) use self::lineages::*;
pub(crate) use self::providers::*;
pub(crate) use self::sandboxes::*;
pub(crate) use self::start::*;
pub(crate) use self::talk::*;
pub(crate) use self::turns::*;
use crate::help::help_template;

const AFTER_HELP: &str =
    "Concepts: `lodge help agentfile`, `models`, `jobs` and `security`. `lodge COMMAND --help` shows all options of a command.

Use a daemon on another machine, with TLS:
  LODGE_TOKEN=... lodge --daemon https://box.example:5500 ps

Environment variables, in addition to those above:
  LODGE_HOME         the state directory
  LODGE_TOKEN        the token; overrides the token in the state directory
  LODGE_CA_FILE      CA certificates for the daemon's certificate (PEM); default: the system's
  LODGE_DAEMON_ADDR  the daemon's own address, such as 127.0.0.1:5500, when it is reached through a tunnel without TLS";

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
    /// The command line, whose help shows commands by topic.
    pub(crate) fn grouped() -> Command {
        let command = Cli::command();
        let template = help_template(&command);
        command.help_template(template)
    }

    /// Reads the arguments, the program's name first. What the short way does not take is read, or refused, in the long one.
    pub(crate) fn read(words: &[OsString]) -> Result<Cli, clap::Error> {
        let jobs = words.get(1).is_some_and(|word| word == "jobs" || word == "job");
        match jobs.then(|| JobsCli::try_parse_from(words)) {
            Some(Ok(JobsCli { global, command: JobsOnlyCommand::Jobs { command } })) => {
                Ok(Cli { global, command: CliCommand::Jobs { command } })
            }
            Some(Err(_)) | None => {
                let matches = Cli::grouped().try_get_matches_from(words)?;
                Cli::from_arg_matches(&matches)
            }
        }
    }
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct GlobalArgs {
    /// Print JSON: an array for listings, an object for one thing, JSON Lines for streams
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
    /// Print only the requested data (listings: ids only)
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

/// The names that a completion script asks the daemon for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompletedName {
    Agents,
    Sessions,
    Jobs,
    Turns,
    Sandboxes,
    Execs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Create and start an agent; with a prompt, print its answer
    Run(RunArgs),
    /// Work on a project with a coding agent: a chat, or one prompt
    Code(CodeArgs),
    /// Write an Agentfile from a template
    Init(InitArgs),
    /// List agents
    Ps(ListArgs),
    /// Manage agents
    Agent {
        #[command(subcommand)]
        command: AgentCommand,
    },
    #[command(flatten)]
    OfAgents(AgentVerb),
    /// Send a prompt to an agent and print its answer
    Prompt(PromptArgs),
    /// Start an interactive conversation with an agent
    Chat(ChatArgs),
    /// Manage turns: list, rejoin, wait, interrupt, retry
    Turn {
        #[command(subcommand)]
        command: TurnCommand,
    },
    /// Manage conversations: read, search, fork, rewind
    Session {
        #[command(subcommand)]
        command: SessionCommand,
    },
    /// Run programs in the background and manage them
    #[command(visible_alias = "job")]
    Jobs {
        #[command(subcommand)]
        command: JobsCommand,
    },
    /// Manage sandboxes that belong to no agent
    Sandbox {
        #[command(subcommand)]
        command: SandboxCommand,
    },
    /// Run programs in sandboxes and manage them
    Exec {
        #[command(subcommand)]
        command: ExecCommand,
    },
    /// Show lineages and decide what happens to work whose process died
    Lineage {
        #[command(subcommand)]
        command: LineageCommand,
    },
    /// Manage images, which are built from Agentfiles
    Image {
        #[command(subcommand)]
        command: ImageCommand,
    },
    /// Manage tools that are packaged as images
    Bin {
        #[command(subcommand)]
        command: BinCommand,
    },
    /// Manage model providers
    Provider {
        #[command(subcommand)]
        command: ProviderCommand,
    },
    /// Manage access tokens
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// Manage work that killed the daemon several times and was set aside
    Quarantine {
        #[command(subcommand)]
        command: QuarantineCommand,
    },
    /// Show the daemon's status and configuration
    #[command(
        after_help = "Examples:\n  lodge info\n  lodge info --json   # http, isolation, quarantine, warnings, config and more"
    )]
    Info,
    /// Show events: the newest 50 at a terminal, otherwise all
    Events(EventsArgs),
    /// Stop the daemon; agents keep running unless --agents is given
    Shutdown {
        /// Stop the agents too
        #[arg(long)]
        agents: bool,
    },
    /// Check which sandboxes are alive and clean up after dead ones; sends no signals
    Reap,
    /// Reload the daemon's configuration; running work keeps the old settings
    Reload,
    /// Kill daemons, runtimes and keepers while agents work, and count lost and repeated work
    Selftest(SelftestArgs),
    /// List names for completion scripts
    #[command(name = "complete-names", hide = true)]
    CompleteNames {
        /// The kind of names
        kind: CompletedName,
    },
    /// Print a completion script: `source <(lodge completions bash)`
    Completions {
        /// The shell to generate the script for
        shell: clap_complete::Shell,
    },
}

#[cfg(test)]
mod tests;
