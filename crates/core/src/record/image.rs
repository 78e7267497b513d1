//! What images and agents are made of.

use std::collections::BTreeMap;

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
}

impl ImageRecord {
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
    /// With `List`: names, `*.names`, addresses and ranges, each with an optional port.
    #[prost(string, repeated, tag = "2")]
    pub allow: Vec<String>,
}

impl NetworkRecord {
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
    /// What is listed, through a gate.
    List,
}

impl NetworkMode {
    pub fn code(self) -> i32 {
        match self {
            NetworkMode::None => 1,
            NetworkMode::Host => 2,
            NetworkMode::List => 3,
        }
    }

    pub fn from_code(code: i32) -> Option<NetworkMode> {
        [NetworkMode::None, NetworkMode::Host, NetworkMode::List].into_iter().find(|mode| mode.code() == code)
    }

    pub fn word(self) -> &'static str {
        match self {
            NetworkMode::None => "none",
            NetworkMode::Host => "host",
            NetworkMode::List => "list",
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
    #[prost(bytes = "vec", tag = "2")]
    pub bytes: Vec<u8>,
    #[prost(string, optional, tag = "3")]
    pub description: Option<String>,
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
    /// The program after `host:`.
    #[prost(string, tag = "2")]
    pub host: String,
    #[prost(bool, tag = "3")]
    pub safe: bool,
    #[prost(string, tag = "4")]
    pub description: String,
    #[prost(string, optional, tag = "5")]
    pub usage: Option<String>,
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
    /// Absent: the host's network.
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
}
