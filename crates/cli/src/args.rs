//! The command line, as clap reads it.
//!
//! Owns: names of commands and flags. Never: what they do (see `commands`).

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::parse::{MountArg, key_value, mount, seconds};

/// A durable home for agents
#[derive(Debug, Parser)]
#[command(
    name = "lodge",
    version,
    propagate_version = false,
    max_term_width = 100,
    after_help = "Start here: `lodge run DIR \"a question\"` with a directory that has an Agentfile; `lodge COMMAND --help` tells more."
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
    /// Start agents anew and wait until they are ready; turns in flight are broken off
    Restart(Refs),
    /// Change an agent in place; turns in flight finish on what they began with
    Update(UpdateArgs),
    /// Kill agents and end their work for good: nothing takes it up again
    Kill(Refs),
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
    /// Show the daemon and what it is configured with
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
    /// Start agents anew and wait until they are ready; turns in flight are broken off
    Restart(Refs),
    /// Change an agent in place; turns in flight finish on what they began with
    Update(UpdateArgs),
    /// Kill agents and end their work for good: nothing takes it up again
    Kill(Refs),
    /// Remove agents
    Rm(RemoveArgs),
    /// Show an agent's log
    Logs(LogsArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// A directory with an Agentfile, an Agentfile, - for an Agentfile from stdin, or a local image
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
    #[arg(short = 'v', long = "mount", value_name = "HOST:TARGET[:DESCRIPTION][:ro|rw]", value_parser = mount)]
    pub mounts: Vec<MountArg>,
    /// A label of the agent
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub label: Vec<(String, String)>,
    /// A value for an ARG of the Agentfile
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub build_arg: Vec<(String, String)>,
    /// A setting of the runtime; before what the image says
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub config: Vec<(String, String)>,
    /// The program that is its runtime; before what the image says
    #[arg(long, value_name = "host:PROGRAM")]
    pub runtime: Option<String>,
    /// A capability beside those of the image
    #[arg(long = "cap", value_name = "NAME")]
    pub caps: Vec<String>,
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
pub(crate) struct UpdateArgs {
    /// An id, a name or a unique beginning of an id
    pub agent: String,
    /// The model, written provider/model
    #[arg(long)]
    pub model: Option<String>,
    /// An environment variable; without a value it is taken away
    #[arg(short, long, value_name = "KEY=[VALUE]", value_parser = key_value)]
    pub env: Vec<(String, String)>,
    /// A CONFIG value; without one the image's counts again
    #[arg(long, value_name = "KEY=[VALUE]", value_parser = key_value)]
    pub config: Vec<(String, String)>,
    /// A label; without a value it is taken away
    #[arg(long, value_name = "KEY=[VALUE]", value_parser = key_value)]
    pub label: Vec<(String, String)>,
    /// Another image: its name, a directory with an Agentfile, an Agentfile, or - for stdin
    #[arg(long, value_name = "IMAGE|DIR")]
    pub image: Option<String>,
    /// A value for an ARG of that Agentfile
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value, requires = "image")]
    pub build_arg: Vec<(String, String)>,
    /// A directory or file of this machine; replaces the one at the same target
    #[arg(short = 'v', long = "mount", value_name = "HOST:TARGET[:DESCRIPTION][:ro|rw]", value_parser = mount)]
    pub mounts: Vec<MountArg>,
    /// A target whose mount is taken away
    #[arg(long, value_name = "TARGET")]
    pub unmount: Vec<String>,
    /// A limit, as LIMIT in an Agentfile
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub limit: Vec<(String, String)>,
    /// What happens to its work when its process dies
    #[arg(long, value_name = "POLICY", value_parser = ["revive", "reap", "ask"])]
    pub revival_policy: Option<String>,
}

impl UpdateArgs {
    /// Whether nothing is to be changed.
    pub(crate) fn is_empty(&self) -> bool {
        let UpdateArgs {
            agent: _,
            model,
            env,
            config,
            label,
            image,
            build_arg,
            mounts,
            unmount,
            limit,
            revival_policy,
        } = self;
        let single = [model.is_none(), image.is_none(), revival_policy.is_none()];
        let pairs = [env, config, label, build_arg, limit].map(Vec::is_empty);
        single.into_iter().chain(pairs).all(|absent| absent) && mounts.is_empty() && unmount.is_empty()
    }
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
    /// An id, a name or a unique beginning of an id
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
    /// An id, a name or a unique beginning of an id
    pub agent: String,
    /// What to ask; - or nothing reads it from stdin
    pub text: Vec<String>,
    #[command(flatten)]
    pub voice: Voice,
    /// A file with a JSON schema: the answer is JSON that fits it, or the turn fails and says why
    #[arg(long, value_name = "FILE")]
    pub schema: Option<PathBuf>,
    /// Do not wait for the answer; print the turn's id
    #[arg(short, long)]
    pub detach: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// An id, a name or a unique beginning of an id
    pub agent: String,
    /// The session; a new id creates one, and without one a new session begins
    #[arg(short, long)]
    pub session: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Build an image from an Agentfile and keep it under a name; prints its digest
    Build(ImageBuildArgs),
    /// List images
    Ls,
    /// Show everything about images
    Inspect {
        /// Names, digests or unique beginnings of digests
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
    /// Remove names of images, and images with their last name
    Rm {
        /// Names, digests or unique beginnings of digests
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ImageBuildArgs {
    /// A directory with an Agentfile, an Agentfile, or - for an Agentfile from stdin
    pub source: String,
    /// A name of the image; its Agentfile's NAME with the tag `latest` when absent
    #[arg(short, long, value_name = "NAME[:TAG]")]
    pub tag: Vec<String>,
    /// A value for an ARG of the Agentfile
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub build_arg: Vec<(String, String)>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// List sessions, those that were used last first
    Ls {
        /// Only of this agent, also one that was removed
        #[arg(long)]
        agent: Option<String>,
        /// How many; all when absent
        #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        limit: Option<u32>,
    },
    /// Print a conversation
    Show {
        /// The id of a session
        session: String,
        /// How many of the newest messages
        #[arg(short = 'n', long, value_name = "N")]
        messages: Option<u32>,
        /// Also turns that are not on its path: other answers, and what was rewound
        #[arg(short, long)]
        all: bool,
    },
    /// Find messages by their text
    Search(SearchArgs),
    /// Print everything that was said as JSON Lines: the session, then its messages
    Export {
        /// The id of a session
        session: String,
    },
    /// Make a new session that begins as this one did
    Fork {
        /// The id of a session
        session: String,
        /// The last turn that is copied, by number or id; all of them when absent
        #[arg(long, value_name = "TURN")]
        at: Option<String>,
        /// The new session's id; a new one is made when absent
        #[arg(long = "as", value_name = "ID")]
        to: Option<String>,
    },
    /// Go back to a turn; what came after it is kept as a branch
    Rewind {
        /// The id of a session
        session: String,
        /// By number or id; 0 is before the first
        turn: String,
    },
    /// Ask the same again, and keep the answer that there was as a branch
    Regenerate {
        /// The id of a session
        session: String,
        /// By number or id; the last one when absent
        turn: Option<String>,
        /// Do not wait for the answer; print the turn's id
        #[arg(short, long)]
        detach: bool,
    },
    /// Make the branch of a turn the path again
    Activate {
        /// The id of a session
        session: String,
        /// The id of a turn that `session show --all` shows
        turn: String,
    },
    /// Delete sessions with everything that was said in them
    Rm {
        /// Ids of sessions
        #[arg(required = true, value_name = "SESSION")]
        sessions: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct SearchArgs {
    /// Words that all occur; "a phrase" stands in quotation marks, begin* finds beginnings of words
    #[arg(required = true)]
    pub query: Vec<String>,
    /// Only of this agent, also one that was removed
    #[arg(long)]
    pub agent: Option<String>,
    /// Only in this session
    #[arg(short, long)]
    pub session: Option<String>,
    /// How many of the newest hits
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
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
        /// What you call it; models are then written NAME/MODEL
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
        /// Names that `provider ls` shows
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Try a provider: its address, its key and a model
    Test {
        /// A name that `provider ls` shows
        name: String,
        /// The model to ask for a few words; the first it is configured with when absent
        #[arg(long)]
        model: Option<String>,
    },
}

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

#[cfg(test)]
mod tests;
