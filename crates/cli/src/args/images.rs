//! `image`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::parse::key_value;

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Build an image from an Agentfile and keep it under a name; prints its digest
    Build(ImageBuildArgs),
    /// List images
    Ls,
    /// Show everything about images
    Inspect(ImageRefs),
    /// Show what changed from one image to another, permissions and tools first
    Diff {
        /// The image before
        from: String,
        /// The image after
        to: String,
    },
    /// Give an image more names; prints its digest
    #[command(after_help = "Example: lodge image tag otter registry.example/team/otter:v1")]
    Tag {
        /// A name, a digest or a unique beginning of a digest
        image: String,
        /// The names it gets beside those that it has
        #[arg(required = true, value_name = "NAME[:TAG]")]
        names: Vec<String>,
    },
    /// Bring an image and the tools it needs to a registry; prints its digest
    #[command(after_help = PUSH_HELP)]
    Push(PushArgs),
    /// Bring an image and the tools it needs from a registry; prints its digest
    #[command(after_help = PULL_HELP)]
    Pull(PullArgs),
    /// Remove names of images, and images with their last name
    Rm(ImageRefs),
    /// Write images and the tools they need into one archive, a tar of an OCI layout
    #[command(
        after_help = "Examples:\n  lodge image export otter -o otter.tar\n  lodge image export otter | ssh elsewhere lodge image import -"
    )]
    Export(ImageExportArgs),
    /// Take in the images and tools of an archive; prints their digests
    #[command(
        after_help = "Examples:\n  lodge image import otter.tar\n  lodge image import --move --yes otter.tar   # also where names are taken from other images\n  ssh elsewhere lodge image export otter | lodge image import -"
    )]
    Import(ImageImportArgs),
}

const PUSH_HELP: &str = "Examples:\n  lodge image push registry.example/team/otter:v1\n  lodge image push otter registry.example/team/otter:v1\n\nThe login is that of Docker: `docker login registry.example`, as the user of the daemon.";
const PULL_HELP: &str = "Examples:\n  lodge image pull registry.example/team/otter:v1\n  lodge image pull registry.example/team/otter -t otter\n\nWhat was here already is not fetched again, and a pull that broke off goes on where it was.";

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lodge image build .\n  lodge image build examples/hello -t hello:v1 -t hello:latest --build-arg LANGUAGE=fr"
)]
pub(crate) struct ImageBuildArgs {
    /// A directory with an Agentfile, an Agentfile, or - for an Agentfile from stdin
    pub source: String,
    /// A name of the image, several times for several; its Agentfile's NAME with the tag `latest` when absent
    #[arg(short, long, value_name = "NAME[:TAG]")]
    pub tag: Vec<String>,
    /// A value for an ARG of the Agentfile
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub build_arg: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(crate) struct ImageRefs {
    /// Names, digests or unique beginnings of digests
    #[arg(required = true, value_name = "IMAGE")]
    pub images: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PushArgs {
    /// A name, a digest or a unique beginning of a digest
    #[arg(value_name = "NAME")]
    pub from: String,
    /// Where to, when that is not what it is called here
    #[arg(value_name = "REGISTRY/NAME[:TAG]")]
    pub to: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// What it is called there
    #[arg(value_name = "REGISTRY/NAME[:TAG][@DIGEST]")]
    pub reference: String,
    /// A name that it gets here beside that one, several times for several
    #[arg(short, long, value_name = "NAME[:TAG]")]
    pub tag: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ImageExportArgs {
    #[command(flatten)]
    pub refs: ImageRefs,
    /// The file to write; it appears when it is whole. Without one the archive goes to stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ImageImportArgs {
    /// An archive of `lodge image export`, a tar of any OCI layout, or - for stdin
    #[arg(default_value = "-", hide_default_value = true)]
    pub path: PathBuf,
    /// Let names that mean other images here mean those of the archive; without it nothing is imported then
    #[arg(long = "move")]
    pub moves: bool,
    /// Do not ask before the archive takes names of stock tools or of registries
    #[arg(short, long)]
    pub yes: bool,
}
