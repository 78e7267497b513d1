//! Tools that are packaged as images.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BinBuildParams {
    /// What the tool is called: the name of its program in the image.
    pub name: String,
    /// Its program for each platform.
    pub programs: Vec<BinProgram>,
    /// One sentence.
    pub description: Option<String>,
    /// How it is used, for the model to read.
    pub usage: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// The names it gets, each `name` or `name:tag`; `<name>:latest` when there are none.
    pub tags: Vec<String>,
    pub request_id: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BinProgram {
    /// `os/arch` or `os/arch/variant`, as in `linux/amd64`.
    pub platform: String,
    /// A file on the daemon's host.
    pub path: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BinListParams {
    pub after: Option<String>,
    pub limit: Option<u32>,
}

/// A tool by name, by digest, or by a unique beginning of one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BinRef {
    pub bin: String,
    pub request_id: Option<String>,
}

/// Pulls a tool from its registry. On a WebSocket, `progress` notifications follow the transfer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BinPullParams {
    pub bin: String,
    /// More names that it gets.
    pub tags: Vec<String>,
    pub request_id: Option<String>,
}

/// Pushes a tool to a registry. On a WebSocket, `progress` notifications follow the transfer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BinPushParams {
    pub bin: String,
    /// Where to, when that is not what it is called here.
    pub to: Option<String>,
    pub request_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BinView {
    pub digest: String,
    /// Its names.
    pub refs: Vec<String>,
    /// Those of them that this call gave it; absent in the answer to one that gives none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<String>,
    pub name: String,
    pub description: String,
    /// As in `linux/amd64`.
    pub platforms: Vec<String>,
    /// Whether one of them is this host's.
    pub runs_here: bool,
    pub size_bytes: u64,
    /// How many images and agents need it.
    pub used: u64,
    pub created_at: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BinList {
    pub bins: Vec<BinView>,
    pub next: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BinDetail {
    #[serde(flatten)]
    pub bin: BinView,
    pub usage: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub programs: Vec<BinProgramView>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BinProgramView {
    pub platform: String,
    /// Of its manifest.
    pub digest: String,
    /// Where it is in its layers.
    pub path: String,
    pub size_bytes: u64,
}
