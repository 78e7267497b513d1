//! `bin`.

use clap::{Args, Subcommand};

use super::{PullArgs, PushArgs};
use crate::parse::{ProgramArg, key_value, program};

#[derive(Debug, Subcommand)]
pub(crate) enum BinCommand {
    /// Make a tool of programs, one for each platform, and keep it under a name; prints its digest
    Build(BinBuildArgs),
    /// List tools
    Ls,
    /// Show everything about tools
    Inspect(BinRefs),
    /// Bring a tool to a registry; prints its digest
    #[command(
        after_help = "Examples:\n  lodge bin push registry.example/tools/rg:v14\n  lodge bin push rg registry.example/tools/rg:v14"
    )]
    Push(PushArgs),
    /// Bring a tool from a registry; prints its digest
    #[command(
        after_help = "Examples:\n  lodge bin pull registry.example/tools/rg:v14\n  lodge bin pull registry.example/tools/rg -t rg"
    )]
    Pull(PullArgs),
    /// Remove names of tools, and tools with their last name
    Rm(BinRefs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lodge bin build rg linux/amd64:target/x86_64/rg linux/arm64:target/aarch64/rg --description \"Searches files\"\n  rg --help | lodge bin build rg linux/amd64:/usr/bin/rg --usage -\n\nAn Agentfile uses it as `BIN rg rg:latest`."
)]
pub(crate) struct BinBuildArgs {
    /// What the tool is called
    pub name: String,
    /// Its program for a platform, as in linux/amd64:path or linux/arm/v7:path
    #[arg(required = true, value_name = "OS/ARCH:PATH", value_parser = program)]
    pub programs: Vec<ProgramArg>,
    /// A name of its image, several times for several; the tool's own with the tag `latest` when absent
    #[arg(short, long, value_name = "NAME[:TAG]")]
    pub tag: Vec<String>,
    /// What it does, in one sentence
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// A file that tells a model how it is used, or - for stdin
    #[arg(long, value_name = "FILE|-")]
    pub usage: Option<String>,
    /// A label of its image
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub label: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(crate) struct BinRefs {
    /// Names, digests or unique beginnings of digests
    #[arg(required = true, value_name = "BIN")]
    pub bins: Vec<String>,
}
