//! Images: what Agentfiles are built into, and what agents are made of.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ImageBuildParams {
    /// A directory with an Agentfile, or an Agentfile, on the daemon's host. Exactly one of `path` and `content`.
    pub path: Option<String>,
    /// The text of an Agentfile.
    pub content: Option<String>,
    /// The names it gets, each `name` or `name:tag`; `<NAME>:latest` when there are none.
    pub tags: Vec<String>,
    pub build_args: BTreeMap<String, String>,
    pub request_id: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ImageListParams {
    pub after: Option<String>,
    pub limit: Option<u32>,
}

/// An image by name, by digest, or by a unique beginning of one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ImageRef {
    pub image: String,
    pub request_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageView {
    /// Of everything in it: the same contents have the same digest.
    pub digest: String,
    /// Its names.
    pub refs: Vec<String>,
    pub size_bytes: u64,
    /// How many agents have it.
    pub agents: u64,
    /// When it got its newest name.
    pub created_at: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageList {
    pub images: Vec<ImageView>,
    pub next: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageRemoved {
    pub digest: String,
    /// The names that are gone.
    pub untagged: Vec<String>,
    /// Whether the image went with its last name.
    pub removed: bool,
}

/// Everything about an image, parents included, but for the contents of its files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ImageDetail {
    #[serde(flatten)]
    pub image: ImageView,
    pub name: Option<String>,
    pub model: Option<String>,
    /// `host:…`; absent: the stock one.
    pub runtime: Option<String>,
    /// Argument prefix of the runtime.
    pub exec: Vec<String>,
    /// What its FROM said; absent for `scratch`.
    pub from: Option<String>,
    /// How many parents were flattened into it.
    pub parents: u32,
    pub contexts: Vec<ImageContext>,
    pub configs: Vec<ImageConfig>,
    pub envs: Vec<ImageEnv>,
    pub bins: Vec<ImageBin>,
    pub files: Vec<ImageFile>,
    pub labels: BTreeMap<String, String>,
    pub limits: LimitsView,
    /// none, host, or what may be reached.
    pub network: NetworkView,
    pub capabilities: Vec<CapabilityView>,
    /// revive, reap or ask; absent: as the daemon is set.
    pub revival_policy: Option<String>,
    /// The Agentfile as it was written, without its parents.
    pub agentfile: String,
    /// The names of agents that have it, a hundred at most.
    pub used_by: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageContext {
    pub name: String,
    pub description: Option<String>,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageConfig {
    pub key: String,
    /// Absent: declared and not set.
    pub value: Option<String>,
    pub required: bool,
    pub description: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageEnv {
    pub key: String,
    pub value: String,
    pub description: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageBin {
    pub name: String,
    /// `host:…`.
    pub source: String,
    pub safe: bool,
    pub description: String,
    pub usage: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageFile {
    pub name: String,
    pub bytes: u64,
    pub description: Option<String>,
}

/// Limits that were asked for; an absent one was not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitsView {
    pub memory_bytes: Option<u64>,
    pub pids: Option<u64>,
    pub cpu_ms: Option<u64>,
    pub disk_bytes: Option<u64>,
    pub output_bytes: Option<u64>,
    pub budget_micro_usd: Option<u64>,
    pub budget_tokens: Option<u64>,
    pub context_tokens: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NetworkView {
    /// none, host or list.
    pub mode: String,
    /// With `list`: what may be reached.
    pub allow: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CapabilityView {
    pub name: String,
    /// Whether this release has the tool that it is about.
    pub granted: bool,
}
