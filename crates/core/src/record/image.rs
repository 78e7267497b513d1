//! What images and agents are made of.

use std::collections::BTreeMap;
use std::iter;

use super::{AgentRow, NextSpec};
use crate::lineage::Policy;

/// An agent's image: everything of its Agentfile that is needed to make its root.
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
    /// The CONFIG keys that are declared, with or without a value.
    #[prost(message, repeated, tag = "16")]
    pub declared: Vec<ConfigRecord>,
    /// What its FROM said; absent for `scratch`.
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

    /// The CONFIG keys that must have a value and have none, here or in `given`.
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

/// The limits that were asked for; an absent one was not.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct LimitsRecord {
    #[prost(uint64, optional, tag = "1")]
    pub memory_bytes: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub pids: Option<u64>,
    /// Of one exec.
    #[prost(uint64, optional, tag = "3")]
    pub cpu_ms: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    pub disk_bytes: Option<u64>,
    /// Of both streams of one exec together.
    #[prost(uint64, optional, tag = "5")]
    pub output_bytes: Option<u64>,
    #[prost(uint64, optional, tag = "6")]
    pub budget_micro_usd: Option<u64>,
    #[prost(uint64, optional, tag = "7")]
    pub budget_tokens: Option<u64>,
    #[prost(uint64, optional, tag = "8")]
    pub context_tokens: Option<u64>,
}

/// What of the network an agent may reach.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NetworkRecord {
    /// See [`NetworkMode`].
    #[prost(int32, tag = "1")]
    pub mode: i32,
    /// With `List`: names, `*.names`, addresses and ranges, each with an optional port, and `loopback:PORT`.
    #[prost(string, repeated, tag = "2")]
    pub allow: Vec<String>,
    /// No Agentfile said it.
    #[prost(bool, tag = "3")]
    pub by_default: bool,
}

impl NetworkRecord {
    /// What an agent gets whose image says nothing.
    pub fn by_default() -> NetworkRecord {
        NetworkRecord { mode: NetworkMode::Public.code(), allow: Vec::new(), by_default: true }
    }

    /// A number that a newer release wrote is the narrowest that this one knows.
    pub fn reach(&self) -> NetworkMode {
        NetworkMode::from_code(self.mode).unwrap_or(NetworkMode::None)
    }
}

/// How far a sandbox reaches. Codes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkMode {
    /// Its own loopback and nothing else.
    None,
    /// The host's network.
    Host,
    /// What is listed.
    List,
    /// Every address that is routed in public.
    Public,
    /// The same, and private ranges.
    Lan,
}

impl NetworkMode {
    pub fn code(self) -> i32 {
        match self {
            NetworkMode::None => 1,
            NetworkMode::Host => 2,
            NetworkMode::List => 3,
            NetworkMode::Public => 4,
            NetworkMode::Lan => 5,
        }
    }

    pub fn from_code(code: i32) -> Option<NetworkMode> {
        let all =
            [NetworkMode::None, NetworkMode::Host, NetworkMode::List, NetworkMode::Public, NetworkMode::Lan];
        all.into_iter().find(|mode| mode.code() == code)
    }

    pub fn word(self) -> &'static str {
        match self {
            NetworkMode::None => "none",
            NetworkMode::Host => "host",
            NetworkMode::List => "list",
            NetworkMode::Public => "public",
            NetworkMode::Lan => "lan",
        }
    }
}

/// A runtime that is not the stock one, as it was found on this host.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RuntimeRecord {
    #[prost(string, tag = "1")]
    pub source: String,
    #[prost(string, tag = "2")]
    pub path: String,
    #[prost(string, tag = "3")]
    pub digest: String,
    /// The image that it is in, as `name:tag@sha256:…`. Then `path` and `digest` are empty until it was pulled, and
    /// `path` stands in the store of images.
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

/// A tool as the image names it.
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
}

/// What one agent adds to its image; written when it is created and whole when it is updated.
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
    /// What happens when its process dies; absent: what the daemon is set to.
    #[prost(int32, optional, tag = "6")]
    pub revival_policy: Option<i32>,
    #[prost(message, optional, tag = "7")]
    pub limits: Option<LimitsRecord>,
    /// Absent: the host's network, which agents had before they got one of their own by default.
    #[prost(message, optional, tag = "8")]
    pub network: Option<NetworkRecord>,
    /// Absent: the stock runtime.
    #[prost(message, optional, tag = "9")]
    pub runtime: Option<RuntimeRecord>,
    #[prost(string, repeated, tag = "10")]
    pub capabilities: Vec<String>,
    /// Before what the image says.
    #[prost(btree_map = "string, string", tag = "11")]
    pub configs: BTreeMap<String, String>,
}

impl AgentSpec {
    /// What happens when its process dies.
    pub fn policy(&self, daemon: Policy) -> Policy {
        self.revival_policy.and_then(Policy::from_code).unwrap_or(daemon)
    }

    /// The digests of the images that its tools and its runtime are in.
    pub fn images(&self) -> impl Iterator<Item = &str> {
        let tools = self.tools.iter().filter_map(|tool| tool.image.as_deref());
        let runtime = self.runtime.iter().filter_map(|runtime| runtime.image.as_deref());
        tools.chain(runtime).filter_map(pinned_digest)
    }
}

impl AgentRow {
    /// The digests of the images that it has or will have: its own, and those of its tools and its runtime.
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
    /// What the agent is told about it.
    #[prost(string, optional, tag = "4")]
    pub description: Option<String>,
}

/// A tool as it was found on this host when the agent was created.
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
    /// The image that it is in, as `name:tag@sha256:…`. Then `path` and `digest` are empty until it was pulled, and
    /// `path` stands in the store of images.
    #[prost(string, optional, tag = "8")]
    pub image: Option<String>,
    /// Where a program of the host led to. Absent: it is in an image, or an earlier release found it.
    #[prost(message, optional, tag = "9")]
    pub host: Option<HostProgramRecord>,
}

/// Where a program of the host led to when it was found.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HostProgramRecord {
    /// What a sandbox is shown for it, beside the host's system directories.
    #[prost(string, repeated, tag = "1")]
    pub trees: Vec<String>,
}

/// An image of the store. Its contents lie in files, by their digests; what stands here is what is asked for often.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageRow {
    /// Of its manifest or index.
    pub digest: String,
    /// The name it had first.
    pub name: String,
    /// All of its blobs together.
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

    /// What an engine keeps of it.
    pub fn held(&self) -> ImageHeld {
        let ImageRow { digest, name: _, bytes, state, contents } = self;
        let (kind, needs) = (contents.kind(), contents.needs());
        ImageHeld { digest: digest.clone(), kind, bytes: *bytes, state: *state, needs }
    }
}

/// Whether everything of an image is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageState {
    /// Its manifest and its config alone: an agent of it is being pulled.
    Announced,
    Complete,
}

/// What an image is of, and what is recorded of it.
#[derive(Debug, Clone, PartialEq)]
pub enum ImageContents {
    Agent(ImageRecord),
    Bin(BinImageRecord),
}

/// What an image is of. Codes are stored.
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

    /// The digests of the images that this one cannot do without.
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
    /// How it is used, for the model to read.
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
    /// Of its layers, as they travel.
    #[prost(uint64, tag = "4")]
    pub size: u64,
}

/// What an engine knows of an image of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageHeld {
    pub digest: String,
    pub kind: ImageKind,
    pub bytes: u64,
    pub state: ImageState,
    /// Digests of images that it cannot do without.
    pub needs: Vec<String>,
}

#[cfg(test)]
mod tests;
