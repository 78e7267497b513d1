//! Images: what Agentfiles are built into, and what agents are made of.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bins::BinView;

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
    /// Those of them that this call gave it; absent in the answer to one that gives none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<String>,
    pub size_bytes: u64,
    /// How many agents have it.
    pub agents: u64,
    /// When it got its newest name.
    pub created_at: String,
    /// Whether everything of it is here: an agent of it may still be pulling, or have been stopped meanwhile.
    pub complete: bool,
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
    /// `host:…` or the image that it is in, with its digest; absent: the stock one.
    pub runtime: Option<String>,
    /// Argument prefix of the runtime.
    pub exec: Vec<String>,
    /// The value of FROM; absent for `scratch`.
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
    /// Its manifest, its config and its layers, as they lie in the store; empty for one that an earlier release built.
    pub blobs: Vec<BlobView>,
    /// Whether it runs on any host: nothing of it is a program of this one.
    pub portable: bool,
    /// What is probably a mistake: CONFIG keys that are almost, but not quite, those of the stock runtime.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Some contents of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BlobView {
    pub digest: String,
    pub media_type: String,
    pub size_bytes: u64,
    /// What it is called in the image.
    pub title: Option<String>,
}

/// Gives an image more names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ImageTagParams {
    pub image: String,
    pub tags: Vec<String>,
    pub request_id: Option<String>,
}

/// Pulls an image and the tools that it needs from its registry. On a WebSocket, `progress` notifications follow the
/// transfer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ImagePullParams {
    /// `registry.example/name[:tag][@sha256:…]`.
    pub image: String,
    /// More names that it gets.
    pub tags: Vec<String>,
    pub request_id: Option<String>,
}

/// Pushes an image and the tools that it needs to a registry. On a WebSocket, `progress` notifications follow the
/// transfer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ImagePushParams {
    pub image: String,
    /// Where to, when that is not what it is called here: `registry.example/name[:tag]`.
    pub to: Option<String>,
    pub request_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImagePushed {
    pub digest: String,
    pub reference: String,
    /// What had to be sent; the rest was there.
    pub sent_bytes: u64,
}

/// The contents of an archive: the answer to `POST /v1/images/import`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImagesImported {
    pub images: Vec<ImageView>,
    pub bins: Vec<BinView>,
    /// How many tools came along with the images that need them, beside `bins`.
    #[serde(default)]
    pub tools: u64,
}

/// What changed from one image to another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ImageDiffParams {
    pub from: String,
    pub to: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageDiff {
    /// The digests of both.
    pub from: String,
    pub to: String,
    /// Permissions and tools first.
    pub changes: Vec<ImageChange>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageChange {
    /// network, limits, capabilities, runtime, bins, services, env, model, config, contexts, files, labels or other.
    pub section: String,
    /// Which of its kind: the name of a tool, a key.
    pub key: String,
    /// Absent: it did not exist before. Networks and limits that are not configured are shown with their defaults.
    pub before: Option<String>,
    /// Absent: it is there no longer.
    pub after: Option<String>,
}

/// The method of the notification [`Progress`].
pub const PROGRESS: &str = "progress";

/// The progress of a pull or a push: a notification to the calling connection, between the call and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Progress {
    /// The id of the call.
    pub id: serde_json::Value,
    /// Parts that changed since the last notification.
    pub parts: Vec<ProgressPart>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProgressPart {
    pub digest: String,
    /// What it is called in the image, or what kind of part it is.
    pub title: String,
    pub done_bytes: u64,
    pub total_bytes: u64,
    /// It did not have to be moved.
    pub there: bool,
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
    /// `host:…`, `builtin:…` or the image that it is in, with its digest.
    pub source: String,
    /// Whether it comes with the image or with any daemon. A program of the host does not.
    pub portable: bool,
    pub safe: bool,
    pub description: String,
    pub usage: Option<String>,
    /// Whether it was given by SHELL.
    #[serde(default)]
    pub shell: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageFile {
    pub name: String,
    pub bytes: u64,
    pub description: Option<String>,
}

/// Configured limits. An absent limit is not configured.
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
    /// none, public, lan, host or list.
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
