//! Tokens: who may call, until when.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TokenIssueParams {
    /// The one agent that it is for, by id, name or unique id prefix; absent: it is an operator's.
    pub agent: Option<String>,
    /// What people call it.
    pub name: Option<String>,
    /// How long it is good for; 90 days when absent, and at most ten years.
    pub expires_in_s: Option<u64>,
    pub request_id: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TokenListParams {
    /// Also those that were revoked or are over.
    pub all: bool,
    pub after: Option<String>,
    pub limit: Option<u32>,
}

/// A token named by id or unique id prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TokenRef {
    pub token: String,
    pub request_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenView {
    pub id: String,
    /// `lodge:operator` or `lodge:agent`.
    pub issuer: String,
    pub name: Option<String>,
    /// The one agent that a token of `lodge:agent` is for.
    pub agent: Option<String>,
    /// live, expired or revoked.
    pub status: String,
    pub issued_at: String,
    pub expires_at: String,
    pub revoked_at: Option<String>,
}

/// A token that was issued, with its value, which nothing keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenIssued {
    #[serde(flatten)]
    pub view: TokenView,
    /// What goes behind `Authorization: Bearer`.
    pub token: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenList {
    pub tokens: Vec<TokenView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
