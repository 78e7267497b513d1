//! `bin`.

use clap::{Args, Subcommand};

use super::{PullArgs, PushArgs};
use crate::parse::{ProgramArg, key_value, program};

#[derive(Debug, Subcommand)]
pub(crate) enum BinCommand {
    /// Build a tool from one program per platform and print its digest
    Build(BinBuildArgs),
    /// List tools
    Ls,
    /// Show details of tools
    Inspect(BinRefs),
    /// Push a tool to a registry and print its digest
    #[command(
        after_help = "Examples:\n  lodge bin push registry.example/tools/rg:v14\n  lodge bin push rg registry.example/tools/rg:v14"
    )]
    Push(PushArgs),
    /// Pull a tool from a registry and print its digest
    #[command(
        after_help = "Examples:\n  lodge bin pull registry.example/tools/rg:v14\n  lodge bin pull registry.example/tools/rg -t rg"
    )]
    Pull(PullArgs),
    /// Remove names of tools; a tool is removed with its last name
    Rm(BinRefs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lodge bin build rg linux/amd64:target/x86_64/rg linux/arm64:target/aarch64/rg --description \"Searches files\"\n  rg --help | lodge bin build rg linux/amd64:/usr/bin/rg --usage -\n\nAn Agentfile uses it as `BIN rg rg:latest`."
)]
pub(crate) struct BinBuildArgs {
    /// The tool's name
    pub name: String,
    /// The program for a platform, such as linux/amd64:PATH or linux/arm/v7:PATH
    #[arg(required = true, value_name = "OS/ARCH:PATH", value_parser = program)]
    pub programs: Vec<ProgramArg>,
    /// A name for its image; can be repeated. Default: the tool's name with the tag `latest`
    #[arg(short, long, value_name = "NAME[:TAG]")]
    pub tag: Vec<String>,
    /// What it does, in one sentence
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// A file with usage instructions for the model, or - for stdin
    #[arg(long, value_name = "FILE|-")]
    pub usage: Option<String>,
    /// Set a label on its image
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub label: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(crate) struct BinRefs {
    /// Names or digests, or any unique prefix of a digest
    #[arg(required = true, value_name = "BIN")]
    pub bins: Vec<String>,
}
