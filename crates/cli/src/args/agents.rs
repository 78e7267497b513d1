//! `run`, `ps` and the verbs of agents.

use clap::{Args, Subcommand};

use super::{ConversationArgs, StopArgs};
use crate::parse::{MountArg, key_value, mount};

#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// List agents
    Ls(ListArgs),
    #[command(flatten)]
    Verb(AgentVerb),
}

/// Commands that stand also without `agent` in front of them.
#[derive(Debug, Subcommand)]
pub(crate) enum AgentVerb {
    /// Show details of agents
    Inspect(AgentRefs),
    /// Start agents and wait until they are ready
    Start(AgentRefs),
    /// Stop agents and interrupt their running turns
    Stop(StopArgs),
    /// Restart agents and wait until they are ready; running turns are interrupted
    Restart(StopArgs),
    /// Change an agent in place; running turns finish with the old settings
    Update(UpdateArgs),
    /// Kill agents and drop their work permanently
    Kill(AgentRefs),
    /// Remove agents
    Rm(RemoveArgs),
    /// Show an agent's log
    Logs(LogsArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lodge run examples/hello \"What time is it?\"\n  lodge run registry.example/team/otter:v1 --name otter"
)]
pub(crate) struct RunArgs {
    /// A directory with an Agentfile, an Agentfile, - to read an Agentfile from stdin, or an image (pulled if it is not local)
    pub source: String,
    /// The prompt; - reads it from stdin. A text with - after it is sent with stdin, as is a text with a pipe
    pub prompt: Vec<String>,
    /// The agent's name; default: a free name
    #[arg(long)]
    pub name: Option<String>,
    /// The model, as PROVIDER/MODEL
    #[arg(long)]
    pub model: Option<String>,
    /// Set an environment variable for the agent
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub env: Vec<(String, String)>,
    /// Mount a directory or file of this machine
    #[arg(short = 'v', long = "mount", value_name = "HOST:TARGET[:DESCRIPTION][:ro|rw][,map-root]", value_parser = mount)]
    pub mounts: Vec<MountArg>,
    /// Set a label on the agent
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub label: Vec<(String, String)>,
    /// Set an ARG of the Agentfile
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub build_arg: Vec<(String, String)>,
    /// Set a CONFIG value of the runtime; overrides the image
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub config: Vec<(String, String)>,
    /// The runtime: a program of the host or a tool's image; overrides the image
    #[arg(long, value_name = "host:PROGRAM|BIN")]
    pub runtime: Option<String>,
    /// Set a limit, as LIMIT does in an Agentfile: memory=512m, pids=64, cpu-time=5m, disk=2g, output=1m
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub limit: Vec<(String, String)>,
    /// Add a capability to those of the image
    #[arg(long = "cap", value_name = "NAME")]
    pub caps: Vec<String>,
    /// What happens to its work when its process dies; overrides the Agentfile and the daemon's setting
    #[arg(long, value_name = "POLICY", value_parser = ["revive", "reap", "ask"])]
    pub revival_policy: Option<String>,
    /// Remove the agent after the answer
    #[arg(long, requires = "prompt", conflicts_with = "detach")]
    pub rm: bool,
    /// Do not wait; with a prompt, print the turn's id
    #[arg(short, long)]
    pub detach: bool,
    #[command(flatten)]
    pub voice: ConversationArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Include stopped and failed agents
    #[arg(short, long)]
    pub all: bool,
    /// Only agents with this label
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub label: Vec<(String, String)>,
    /// Also show the tokens that each agent used, and their cost
    #[arg(short, long)]
    pub wide: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AgentRefs {
    /// Names or ids of agents, or any unique prefix of an id
    #[arg(required = true, value_name = "AGENT")]
    pub agents: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct UpdateArgs {
    /// An agent's name or id, or any unique prefix of the id
    pub agent: String,
    /// The model, as PROVIDER/MODEL
    #[arg(long)]
    pub model: Option<String>,
    /// Set an environment variable; KEY= removes it
    #[arg(short, long, value_name = "KEY=[VALUE]", value_parser = key_value)]
    pub env: Vec<(String, String)>,
    /// Set a CONFIG value; KEY= restores the image's value
    #[arg(long, value_name = "KEY=[VALUE]", value_parser = key_value)]
    pub config: Vec<(String, String)>,
    /// Set a label; KEY= removes it
    #[arg(long, value_name = "KEY=[VALUE]", value_parser = key_value)]
    pub label: Vec<(String, String)>,
    /// Use another image: a local or remote image, a directory with an Agentfile, an Agentfile, or - for stdin
    #[arg(long, value_name = "IMAGE|DIR")]
    pub image: Option<String>,
    /// Set an ARG of that Agentfile
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value, requires = "image")]
    pub build_arg: Vec<(String, String)>,
    /// Mount a directory or file of this machine; replaces a mount at the same target
    #[arg(short = 'v', long = "mount", value_name = "HOST:TARGET[:DESCRIPTION][:ro|rw][,map-root]", value_parser = mount)]
    pub mounts: Vec<MountArg>,
    /// Remove the mount at this target
    #[arg(long, value_name = "TARGET")]
    pub unmount: Vec<String>,
    /// Set a limit, as LIMIT does in an Agentfile
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub limit: Vec<(String, String)>,
    /// What happens to its work when its process dies
    #[arg(long, value_name = "POLICY", value_parser = ["revive", "reap", "ask"])]
    pub revival_policy: Option<String>,
}

impl UpdateArgs {
    /// Whether no change is requested.
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
    pub refs: AgentRefs,
    /// Stop a running agent first
    #[arg(short, long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// An agent's name or id, or any unique prefix of the id
    pub agent: String,
    /// Print only the newest N lines
    #[arg(short = 'n', long, value_name = "N")]
    pub lines: Option<u32>,
    /// Follow the log as it grows
    #[arg(short, long)]
    pub follow: bool,
    /// Include lines for debugging
    #[arg(long)]
    pub debug: bool,
}
