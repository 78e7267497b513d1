//! Records of images and agents.

use std::collections::BTreeMap;
use std::iter;

use super::{AgentRow, LimitsRecord, NetworkRecord, NextSpec};
use crate::lineage::Policy;

/// An agent's image: all parts of its Agentfile that its root needs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ImageRecord {
    #[prost(bytes = "vec", tag = "1")]
    pub agentfile: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    pub contexts: Vec<ContextRecord>,
    #[prost(message, repeated, tag = "3")]
    pub files: Vec<FileRecord>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub configs: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "5")]
    pub env: Vec<EnvRecord>,
    #[prost(message, repeated, tag = "6")]
    pub bins: Vec<BinRecord>,
    #[prost(btree_map = "string, string", tag = "7")]
    pub labels: BTreeMap<String, String>,
    #[prost(string, repeated, tag = "8")]
    pub exec: Vec<String>,
    #[prost(string, optional, tag = "9")]
    pub model: Option<String>,
    #[prost(string, optional, tag = "10")]
    pub name: Option<String>,
    /// The program after `host:` that is the runtime; absent: the stock one.
    #[prost(string, optional, tag = "11")]
    pub runtime: Option<String>,
    #[prost(message, optional, tag = "12")]
    pub limits: Option<LimitsRecord>,
    /// Absent: the agent's default.
    #[prost(message, optional, tag = "13")]
    pub network: Option<NetworkRecord>,
    #[prost(string, repeated, tag = "14")]
    pub capabilities: Vec<String>,
    #[prost(int32, optional, tag = "15")]
    pub revival_policy: Option<i32>,
    /// The declared CONFIG keys, with or without a value.
    #[prost(message, repeated, tag = "16")]
    pub declared: Vec<ConfigRecord>,
    /// The value of FROM; absent for `scratch`.
    #[prost(string, optional, tag = "17")]
    pub from: Option<String>,
    /// How many parents were flattened into it.
    #[prost(uint32, tag = "18")]
    pub parents: u32,
    /// The image that the runtime is in, as `name:tag@sha256:…`; then `runtime` is absent.
    #[prost(string, optional, tag = "19")]
    pub runtime_image: Option<String>,
}

impl ImageRecord {
    /// The images that its tools and its runtime are in, as `name:tag@sha256:…`.
    pub fn images(&self) -> impl Iterator<Item = &str> {
        let bins = self.bins.iter().filter_map(|bin| bin.image.as_deref());
        bins.chain(self.runtime_image.as_deref())
    }

    /// The required CONFIG keys without a value, here or in `given`.
    pub fn unset<'a>(&'a self, given: &'a BTreeMap<String, String>) -> impl Iterator<Item = &'a str> {
        let needed = self.declared.iter().filter(|config| config.required).map(|config| config.key.as_str());
        needed.filter(|key| !self.configs.contains_key(*key) && !given.contains_key(*key))
    }
}

/// A CONFIG key as the image declares it; its value, if it has one, is among the `configs`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ConfigRecord {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(bool, tag = "2")]
    pub required: bool,
    #[prost(string, optional, tag = "3")]
    pub description: Option<String>,
}

/// A runtime other than the stock one, as it was found on this host.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RuntimeRecord {
    #[prost(string, tag = "1")]
    pub source: String,
    #[prost(string, tag = "2")]
    pub path: String,
    #[prost(string, tag = "3")]
    pub digest: String,
    /// The image that contains it, as `name:tag@sha256:…`. `path` and `digest` are then empty until it is pulled, and
    /// `path` is in the store of images.
    #[prost(string, optional, tag = "4")]
    pub image: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ContextRecord {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, optional, tag = "2")]
    pub description: Option<String>,
    #[prost(string, tag = "3")]
    pub text: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct FileRecord {
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its contents, where an earlier release kept them; empty when `digest` names them.
    #[prost(bytes = "vec", tag = "2")]
    pub bytes: Vec<u8>,
    #[prost(string, optional, tag = "3")]
    pub description: Option<String>,
    /// Its contents in the store of images.
    #[prost(string, optional, tag = "4")]
    pub digest: Option<String>,
    #[prost(uint64, tag = "5")]
    pub size: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct EnvRecord {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
    #[prost(string, optional, tag = "3")]
    pub description: Option<String>,
}

/// A tool as the image declares it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BinRecord {
    #[prost(string, tag = "1")]
    pub name: String,
    /// The program after `host:`; empty when it comes from an image.
    #[prost(string, tag = "2")]
    pub host: String,
    #[prost(bool, tag = "3")]
    pub safe: bool,
    #[prost(string, tag = "4")]
    pub description: String,
    #[prost(string, optional, tag = "5")]
    pub usage: Option<String>,
    /// The image that it is in, as `name:tag@sha256:…`.
    #[prost(string, optional, tag = "6")]
    pub image: Option<String>,
    /// It was given by SHELL: its command lines find the ordinary utilities.
    #[prost(bool, tag = "7")]
    pub shell: bool,
    /// The program after `builtin:`, which ships with the daemon.
    #[prost(string, optional, tag = "8")]
    pub builtin: Option<String>,
}

impl BinRecord {
    /// Whether it is a program of the host.
    pub fn is_of_host(&self) -> bool {
        self.image.is_none() && self.builtin.is_none()
    }
}

/// What one agent adds to its image; written when it is created, and as a whole when it is updated.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AgentSpec {
    #[prost(string, tag = "1")]
    pub model: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub env: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "3")]
    pub labels: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "4")]
    pub mounts: Vec<MountRecord>,
    #[prost(message, repeated, tag = "5")]
    pub tools: Vec<ToolRecord>,
    /// The revival policy; absent: the daemon's default.
    #[prost(int32, optional, tag = "6")]
    pub revival_policy: Option<i32>,
    #[prost(message, optional, tag = "7")]
    pub limits: Option<LimitsRecord>,
    /// Absent: the host's network, which was the default of earlier releases.
    #[prost(message, optional, tag = "8")]
    pub network: Option<NetworkRecord>,
    /// Absent: the stock runtime.
    #[prost(message, optional, tag = "9")]
    pub runtime: Option<RuntimeRecord>,
    #[prost(string, repeated, tag = "10")]
    pub capabilities: Vec<String>,
    /// Takes precedence over the image.
    #[prost(btree_map = "string, string", tag = "11")]
    pub configs: BTreeMap<String, String>,
}

impl AgentSpec {
    /// The revival policy.
    pub fn policy(&self, daemon: Policy) -> Policy {
        self.revival_policy.and_then(Policy::from_code).unwrap_or(daemon)
    }

    /// The digests of the images that its tools and its runtime are in.
    pub fn images(&self) -> impl Iterator<Item = &str> {
        images_of(&self.tools, self.runtime.as_ref())
    }
}

/// The digests of the images that these programs are in.
pub fn images_of<'a>(
    tools: &'a [ToolRecord],
    runtime: Option<&'a RuntimeRecord>,
) -> impl Iterator<Item = &'a str> {
    let tools = tools.iter().filter_map(|tool| tool.image.as_deref());
    let runtime = runtime.into_iter().filter_map(|runtime| runtime.image.as_deref());
    tools.chain(runtime).filter_map(pinned_digest)
}

impl AgentRow {
    /// The digests of the images that it uses, pending updates included: its own, and those of its tools and its
    /// runtime.
    pub fn images(&self) -> impl Iterator<Item = &str> {
        let next = self.next.iter().flat_map(NextSpec::images);
        iter::once(self.image_digest.as_str()).chain(self.spec.images()).chain(next)
    }
}

impl NextSpec {
    /// As in [`AgentRow::images`].
    pub fn images(&self) -> impl Iterator<Item = &str> {
        iter::once(self.image_digest.as_str()).chain(self.spec.images())
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct MountRecord {
    #[prost(string, tag = "1")]
    pub host: String,
    #[prost(string, tag = "2")]
    pub target: String,
    #[prost(bool, tag = "3")]
    pub read_only: bool,
    /// Its description for the agent.
    #[prost(string, optional, tag = "4")]
    pub description: Option<String>,
    /// Whose rights the agent has in it. Absent: its own user's, as in earlier releases.
    #[prost(message, optional, tag = "5")]
    pub owner: Option<MountOwner>,
}

/// The owner of a mounted path, as found when it was mounted.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct MountOwner {
    #[prost(uint32, tag = "1")]
    pub uid: u32,
    /// Absent: the group is not mapped.
    #[prost(uint32, optional, tag = "2")]
    pub gid: Option<u32>,
}

/// A tool as it was resolved on this host when the agent was created.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ToolRecord {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub source: String,
    #[prost(string, tag = "3")]
    pub path: String,
    #[prost(string, tag = "4")]
    pub digest: String,
    #[prost(bool, tag = "5")]
    pub safe: bool,
    #[prost(string, tag = "6")]
    pub description: String,
    #[prost(string, optional, tag = "7")]
    pub usage: Option<String>,
    /// The image that contains it, as `name:tag@sha256:…`. `path` and `digest` are then empty until it is pulled, and
    /// `path` is in the store of images.
    #[prost(string, optional, tag = "8")]
    pub image: Option<String>,
    /// The target of a host program. Absent: it is in an image, or an earlier release resolved it.
    #[prost(message, optional, tag = "9")]
    pub host: Option<HostProgramRecord>,
    /// As in [`BinRecord`].
    #[prost(bool, tag = "10")]
    pub shell: bool,
    /// The program after `builtin:`. `path` and `digest` are then empty.
    #[prost(string, optional, tag = "11")]
    pub builtin: Option<String>,
}

impl ToolRecord {
    /// Whether it is a program of the host.
    pub fn is_of_host(&self) -> bool {
        self.image.is_none() && self.builtin.is_none()
    }
}

/// The target of a host program when it was resolved.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HostProgramRecord {
    /// The directories that a sandbox shows for it, beside the host's system directories.
    #[prost(string, repeated, tag = "1")]
    pub trees: Vec<String>,
}

/// An image of the store. Its contents are files named by their digests. The row has the frequently used facts.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageRow {
    /// Of its manifest or index.
    pub digest: String,
    /// Its first name.
    pub name: String,
    /// The size of all its blobs.
    pub bytes: u64,
    pub state: ImageState,
    pub contents: ImageContents,
}

impl ImageRow {
    /// All of an agent's image.
    pub fn agent(digest: String, name: String, bytes: u64, record: ImageRecord) -> ImageRow {
        let contents = ImageContents::Agent(record);
        ImageRow { digest, name, bytes, state: ImageState::Complete, contents }
    }

    /// The engine's facts about it.
    pub fn fact(&self) -> ImageFact {
        let ImageRow { digest, name: _, bytes, state, contents } = self;
        let (kind, needs) = (contents.kind(), contents.needs());
        ImageFact { digest: digest.clone(), kind, bytes: *bytes, state: *state, needs }
    }
}

/// Whether an image is complete in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageState {
    /// Only its manifest and its config: an agent of it is being pulled.
    Announced,
    Complete,
}

/// The kind of an image, and its record.
#[derive(Debug, Clone, PartialEq)]
pub enum ImageContents {
    Agent(ImageRecord),
    Bin(BinImageRecord),
}

/// The kind of an image. Codes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImageKind {
    Agent,
    Bin,
}

impl ImageKind {
    pub const fn code(self) -> i64 {
        match self {
            ImageKind::Agent => 1,
            ImageKind::Bin => 2,
        }
    }

    pub fn from_code(code: i64) -> Option<ImageKind> {
        [ImageKind::Agent, ImageKind::Bin].into_iter().find(|kind| kind.code() == code)
    }
}

impl ImageContents {
    pub fn kind(&self) -> ImageKind {
        match self {
            ImageContents::Agent(_) => ImageKind::Agent,
            ImageContents::Bin(_) => ImageKind::Bin,
        }
    }

    /// The digests of the images that this one needs.
    pub fn needs(&self) -> Vec<String> {
        match self {
            ImageContents::Agent(record) => {
                let mut needs: Vec<String> =
                    record.images().filter_map(pinned_digest).map(str::to_owned).collect();
                needs.sort();
                needs.dedup();
                needs
            }
            ImageContents::Bin(_) => Vec::new(),
        }
    }
}

/// The digest in `name:tag@sha256:…`.
pub fn pinned_digest(reference: &str) -> Option<&str> {
    reference.split_once('@').map(|(_, digest)| digest)
}

/// A tool, as one program for each platform.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BinImageRecord {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub description: String,
    /// Usage instructions for the model.
    #[prost(string, optional, tag = "3")]
    pub usage: Option<String>,
    #[prost(message, repeated, tag = "4")]
    pub platforms: Vec<BinPlatformRecord>,
    #[prost(btree_map = "string, string", tag = "5")]
    pub labels: BTreeMap<String, String>,
}

/// The program of a tool for one platform.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BinPlatformRecord {
    /// `os/arch` or `os/arch/variant`.
    #[prost(string, tag = "1")]
    pub platform: String,
    /// Of its manifest.
    #[prost(string, tag = "2")]
    pub manifest: String,
    /// Its path in its layers, from their root.
    #[prost(string, tag = "3")]
    pub path: String,
    /// The compressed size of its layers.
    #[prost(uint64, tag = "4")]
    pub size: u64,
}

/// The engine's facts about an image of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFact {
    pub digest: String,
    pub kind: ImageKind,
    pub bytes: u64,
    pub state: ImageState,
    /// Digests of images that it needs.
    pub needs: Vec<String>,
}

#[cfg(test)]
mod tests;
