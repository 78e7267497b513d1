//! The command line, as clap reads it.
//!
//! Owns: names of commands and flags. Never: what they do (see `commands`).

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::parse::{MountArg, key_value, mount};

/// A durable home for agents
#[derive(Debug, Parser)]
#[command(
    name = "lodge",
    version,
    propagate_version = false,
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Global {
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
    /// The daemon's address, such as http://127.0.0.1:5500 [env: LODGE_DAEMON]
    #[arg(long, global = true, help_heading = "Global options", value_name = "URL")]
    pub daemon: Option<String>,
    /// Do not start a daemon when none answers [env: LODGE_NO_AUTOSTART]
    #[arg(long, global = true, help_heading = "Global options")]
    pub no_autostart: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
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
    Inspect(Refs),
    /// Start agents and wait until they are ready
    Start(Refs),
    /// Stop agents; turns in flight are broken off
    Stop(Refs),
    /// Kill agents and end their work for good: nothing takes it up again
    Kill(Refs),
    /// Remove agents
    Rm(RemoveArgs),
    /// Show an agent's log
    Logs(LogsArgs),
    /// Ask an agent and print its answer
    Prompt(PromptArgs),
    /// Look at conversations
    Session {
        #[command(subcommand)]
        command: SessionCommand,
    },
    /// Look at work and decide what becomes of it when its process died
    Lineage {
        #[command(subcommand)]
        command: LineageCommand,
    },
    /// Look after providers of models
    Provider {
        #[command(subcommand)]
        command: ProviderCommand,
    },
    /// Show the daemon and what it is configured with
    Info,
    /// Show what happened
    Events(EventsArgs),
    /// End the daemon; agents live on unless told otherwise
    Shutdown {
        /// End the agents too
        #[arg(long)]
        agents: bool,
    },
    /// Look which sandboxes live and clear away what dead ones left; signals nothing
    Reap,
    /// Kill daemons, runtimes and keepers with agents at work, and count what is lost or happens twice
    Selftest(SelftestArgs),
    /// Print a completion script
    Completions { shell: clap_complete::Shell },
}

#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// List agents
    Ls(ListArgs),
    /// Show everything about agents
    Inspect(Refs),
    /// Start agents and wait until they are ready
    Start(Refs),
    /// Stop agents; turns in flight are broken off
    Stop(Refs),
    /// Kill agents and end their work for good: nothing takes it up again
    Kill(Refs),
    /// Remove agents
    Rm(RemoveArgs),
    /// Show an agent's log
    Logs(LogsArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// A directory with an Agentfile, an Agentfile, or - for an Agentfile from stdin
    pub source: String,
    /// What to ask; - reads it from stdin
    pub prompt: Vec<String>,
    /// The agent's name; a free one is chosen when absent
    #[arg(long)]
    pub name: Option<String>,
    /// The model, written provider/model
    #[arg(long)]
    pub model: Option<String>,
    /// An environment variable of the agent
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub env: Vec<(String, String)>,
    /// A directory or file of this machine that the agent sees
    #[arg(short = 'v', long = "mount", value_name = "HOST:TARGET[:ro]", value_parser = mount)]
    pub mounts: Vec<MountArg>,
    /// A label of the agent
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub label: Vec<(String, String)>,
    /// A value for an ARG of the Agentfile
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub build_arg: Vec<(String, String)>,
    /// What happens to its work when its process dies; before what the Agentfile and the daemon say
    #[arg(long, value_name = "POLICY", value_parser = ["revive", "reap", "ask"])]
    pub revival_policy: Option<String>,
    /// Remove the agent when the answer is there
    #[arg(long, requires = "prompt", conflicts_with = "detach")]
    pub rm: bool,
    /// Do not wait; with a prompt print the turn's id
    #[arg(short, long)]
    pub detach: bool,
    #[command(flatten)]
    pub voice: Voice,
}

/// Which conversation a prompt belongs to.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Voice {
    /// The session; a new id creates one
    #[arg(short, long)]
    pub session: Option<String>,
    /// Who asks: each sender has a session with each agent
    #[arg(long, conflicts_with = "session")]
    pub sender: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Also agents that are stopped or failed
    #[arg(short, long)]
    pub all: bool,
    /// Only agents with this label
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub label: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(crate) struct Refs {
    /// Ids, names or unique beginnings of ids
    #[arg(required = true, value_name = "AGENT")]
    pub agents: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    pub refs: Refs,
    /// Stop a running agent first
    #[arg(short, long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    pub agent: String,
    /// How many of the newest lines
    #[arg(short = 'n', long, value_name = "N")]
    pub lines: Option<u32>,
    /// Go on as the log grows
    #[arg(short, long)]
    pub follow: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PromptArgs {
    pub agent: String,
    /// What to ask; - or nothing reads it from stdin
    pub text: Vec<String>,
    #[command(flatten)]
    pub voice: Voice,
    /// Do not wait for the answer; print the turn's id
    #[arg(short, long)]
    pub detach: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// List sessions
    Ls {
        /// Only of this agent
        #[arg(long)]
        agent: Option<String>,
    },
    /// Print a conversation
    Show {
        session: String,
        /// How many of the newest messages
        #[arg(short = 'n', long, value_name = "N")]
        messages: Option<u32>,
    },
}

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

/// The protocol that a provider speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Openai,
    Anthropic,
    Gemini,
    Ollama,
    Script,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Openai => "openai",
            Kind::Anthropic => "anthropic",
            Kind::Gemini => "gemini",
            Kind::Ollama => "ollama",
            Kind::Script => "script",
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ProviderCommand {
    /// Add a provider
    Add {
        name: String,
        /// The protocol that it speaks
        #[arg(long)]
        kind: Kind,
        /// Where it is, when not at the usual place
        #[arg(long, value_name = "URL")]
        base_url: Option<String>,
        /// The key; - reads it from stdin, so that it stays out of the shell's history
        #[arg(long, value_name = "KEY")]
        api_key: Option<String>,
        /// The models it may be asked for; any when absent
        #[arg(long, value_name = "MODEL,…", value_delimiter = ',')]
        models: Vec<String>,
    },
    /// List providers
    Ls {
        /// Show keys instead of masking them
        #[arg(long)]
        reveal: bool,
    },
    /// Remove providers
    Rm {
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Ask a provider for its models
    Test { name: String },
}

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Go on with what happens
    #[arg(short, long)]
    pub follow: bool,
    /// Only what happened after this sequence
    #[arg(long, value_name = "SEQ")]
    pub since: Option<u64>,
    /// Only of this agent
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn run_takes_flags_on_both_sides_of_the_prompt() {
        let line =
            "lodge run ./hello --name h -e A=1=2 -v src:/w:ro what time --label k=v --build-arg X= --json";
        let cli = parse(line).unwrap();
        let Command::Run(run) = cli.command else { panic!("not run") };
        assert!(cli.global.json);
        assert_eq!((run.source.as_str(), run.prompt.join(" ").as_str()), ("./hello", "what time"));
        assert_eq!(run.env, [("A".to_owned(), "1=2".to_owned())]);
        assert_eq!(run.label, [("k".to_owned(), "v".to_owned())]);
        assert_eq!(run.build_arg, [("X".to_owned(), String::new())]);
        assert!(run.mounts[0].read_only);
    }

    #[test]
    fn a_dash_is_a_source_and_a_prompt() {
        let Command::Run(run) = parse("lodge run - hello").unwrap().command else { panic!("not run") };
        assert_eq!(run.source, "-");
        let Command::Prompt(prompt) = parse("lodge prompt a -").unwrap().command else {
            panic!("not prompt")
        };
        assert_eq!(prompt.text, ["-"]);
    }

    #[test]
    fn agent_verbs_work_with_and_without_the_word_agent() {
        for verb in ["inspect", "start", "stop", "kill", "rm", "logs"] {
            assert!(parse(&format!("lodge {verb} a")).is_ok(), "{verb}");
            assert!(parse(&format!("lodge agent {verb} a")).is_ok(), "agent {verb}");
        }
        assert!(parse("lodge ps -a -q --label k=v").is_ok() && parse("lodge agent ls -aq").is_ok());
    }

    #[test]
    fn contradictions_and_bad_values_are_bad_usage() {
        let bad = [
            "lodge",
            "lodge run",
            "lodge start",
            "lodge run . -e X",
            "lodge run . -v x",
            "lodge run . --label =v",
            "lodge run . --rm",
            "lodge run . hi --rm --detach",
            "lodge prompt a hi -s x --sender y",
            "lodge --socket x --daemon http://h:1 info",
            "lodge provider add p",
            "lodge kill",
            "lodge lineage show",
            "lodge lineage show x --file f",
            "lodge lineage ls --status lost",
            "lodge lineage resolve x",
            "lodge lineage resolve x --revive --reap",
            "lodge provider add p --kind none",
            "lodge events --since -1",
            "lodge selftest",
            "lodge selftest --crash 0",
            "lodge selftest --crash some",
            "lodge selftest --crash 1 --seed -1",
        ];
        for line in bad {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
