//! `run`, `ps` and the verbs of agents.

use clap::{Args, Subcommand};

use super::{ConversationArgs, StopArgs};
use crate::parse::{MountArg, key_value, mount};

#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// List agents
    Ls(ListArgs),
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
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lodge run examples/hello \"What time is it?\"\n  lodge run registry.example/team/otter:v1 --name otter"
)]
pub(crate) struct RunArgs {
    /// A directory with an Agentfile, an Agentfile, - for an Agentfile from stdin, or an image: one that is here, or one of a registry, which is pulled
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
    /// What its runtime is, a program of the host or a tool's image; before what the image says
    #[arg(long, value_name = "host:PROGRAM|BIN")]
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
    pub voice: ConversationArgs,
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
pub(crate) struct AgentRefs {
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
    /// Another image: its name, here or in a registry, a directory with an Agentfile, an Agentfile, or - for stdin
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
    pub refs: AgentRefs,
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
