//! `image`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::parse::key_value;

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Build an image from an Agentfile and print its digest
    Build(ImageBuildArgs),
    /// List images
    Ls,
    /// Show details of images
    Inspect(ImageRefs),
    /// Compare two images, permissions and tools first
    Diff {
        /// The old image
        from: String,
        /// The new image
        to: String,
    },
    /// Add names to an image and print its digest
    #[command(after_help = "Example: lodge image tag otter registry.example/team/otter:v1")]
    Tag {
        /// A name or a digest, or any unique prefix of the digest
        image: String,
        /// The names to add
        #[arg(required = true, value_name = "NAME[:TAG]")]
        names: Vec<String>,
    },
    /// Push an image and the tools it needs to a registry and print its digest
    #[command(after_help = PUSH_HELP)]
    Push(PushArgs),
    /// Pull an image and the tools it needs from a registry and print its digest
    #[command(after_help = PULL_HELP)]
    Pull(PullArgs),
    /// Remove names of images; an image is removed with its last name
    Rm(ImageRefs),
    /// Export images and the tools they need to an archive (a tar of an OCI layout)
    #[command(
        after_help = "Examples:\n  lodge image export otter -o otter.tar\n  lodge image export otter | ssh elsewhere lodge image import -"
    )]
    Export(ImageExportArgs),
    /// Import the images and tools of an archive and print their digests
    #[command(
        after_help = "Examples:\n  lodge image import otter.tar\n  lodge image import --move --yes otter.tar   # replace names of other images without asking\n  ssh elsewhere lodge image export otter | lodge image import -"
    )]
    Import(ImageImportArgs),
}

const PUSH_HELP: &str = "Examples:\n  lodge image push registry.example/team/otter:v1\n  lodge image push otter registry.example/team/otter:v1\n\nTo log in, run `docker login registry.example` as the user of the daemon.";
const PULL_HELP: &str = "Examples:\n  lodge image pull registry.example/team/otter:v1\n  lodge image pull registry.example/team/otter -t otter\n\nContent that is already local is not fetched again. An interrupted pull resumes where it stopped.";

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lodge image build .\n  lodge image build examples/hello -t hello:v1 -t hello:latest --build-arg LANGUAGE=fr"
)]
pub(crate) struct ImageBuildArgs {
    /// A directory with an Agentfile, an Agentfile, or - for an Agentfile from stdin
    pub source: String,
    /// A name for the image; can be repeated. Default: NAME of the Agentfile with the tag `latest`
    #[arg(short, long, value_name = "NAME[:TAG]")]
    pub tag: Vec<String>,
    /// Set an ARG of the Agentfile
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub build_arg: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(crate) struct ImageRefs {
    /// Names or digests, or any unique prefix of a digest
    #[arg(required = true, value_name = "IMAGE")]
    pub images: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PushArgs {
    /// A name or a digest, or any unique prefix of the digest
    #[arg(value_name = "NAME")]
    pub from: String,
    /// The destination; default: the local name
    #[arg(value_name = "REGISTRY/NAME[:TAG]")]
    pub to: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// The reference in the registry
    #[arg(value_name = "REGISTRY/NAME[:TAG][@DIGEST]")]
    pub reference: String,
    /// An additional local name; can be repeated
    #[arg(short, long, value_name = "NAME[:TAG]")]
    pub tag: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ImageExportArgs {
    #[command(flatten)]
    pub refs: ImageRefs,
    /// The file to write; it appears when it is complete. Default: stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ImageImportArgs {
    /// An archive of `lodge image export`, a tar of any OCI layout, or - for stdin
    #[arg(default_value = "-", hide_default_value = true)]
    pub path: PathBuf,
    /// Move names that belong to other local images; without it, such an import is refused
    #[arg(long = "move")]
    pub moves: bool,
    /// Do not ask before the archive takes names of stock tools or registries
    #[arg(short, long)]
    pub yes: bool,
}
