//! `init` and `code`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// The kinds of agents that `init` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TemplateArg {
    /// Reads, changes and tests a project
    Coder,
    /// Reviews changes and changes nothing
    Reviewer,
    /// Looks into logs and services
    Ops,
    /// No tools
    Blank,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lodge init                                # asks, at a terminal\n  lodge init --template coder --add-providers ./agents/coder"
)]
pub(crate) struct InitArgs {
    /// Where the Agentfile is written; created if it does not exist
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// The kind of agent; without it, asked at a terminal, otherwise coder
    #[arg(long)]
    pub template: Option<TemplateArg>,
    /// The agent's name; default: the directory's name
    #[arg(long)]
    pub name: Option<String>,
    /// The model, as PROVIDER/MODEL; default: one of a provider that you have, otherwise a scripted model
    #[arg(long)]
    pub model: Option<String>,
    /// Store the API keys that are in the environment as providers
    #[arg(long)]
    pub add_providers: bool,
    /// Overwrite files that exist
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lodge code                                # a chat about the project in this directory\n  lodge code ~/src/otter \"Why does the login test fail?\"\n  lodge code -p \"What is this project?\""
)]
pub(crate) struct CodeArgs {
    /// The project; the agent can read and change everything in it
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// The prompt; - reads it from stdin. Without it: a chat
    pub prompt: Vec<String>,
    /// The prompt, without naming a directory before it
    #[arg(short = 'p', long = "prompt", value_name = "PROMPT", conflicts_with = "prompt")]
    pub text: Option<String>,
    /// The model, as PROVIDER/MODEL; default: one of the first provider that can be called, otherwise a scripted model
    #[arg(long)]
    pub model: Option<String>,
    /// Give the agent root's rights in a directory of root
    #[arg(long)]
    pub map_root: bool,
    /// Start a new conversation instead of continuing the last one
    #[arg(long)]
    pub new: bool,
}
