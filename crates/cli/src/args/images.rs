//! `image`.

use clap::{Args, Subcommand};

use crate::parse::key_value;

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
