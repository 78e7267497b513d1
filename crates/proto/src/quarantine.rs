//! Work that killed the daemon again and again, set aside until an operator decides.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QuarantineListParams {
    pub after: Option<String>,
    pub limit: Option<u32>,
}

/// Work named by its id or a unique prefix of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QuarantineRef {
    pub work: String,
    pub request_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QuarantineView {
    pub id: String,
    /// model_call, schema_check, pull or request.
    pub kind: String,
    /// quarantined; in the answers to `quarantine/retry` and `quarantine/drop` retried or dropped.
    pub status: String,
    /// Whose it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The turn that waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<String>,
    /// The image of a pull, the method of a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// How often the daemon died while it computed this.
    pub deaths: u32,
    pub since: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QuarantineList {
    pub work: Vec<QuarantineView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
