//! Providers of models. Fields are added, never renamed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

params! {
    pub struct ProviderAddParams {
        name: String,
        kind: String,
        base_url: Option<String>,
        api_key: Option<String>,
        models: Vec<String>,
        /// How long failures that may pass are retried, as in `providers.yaml`: `30s`, `10m`, `12h`, or `0`. Absent: 10 minutes.
        retry_for: Option<String>,
        request_id: Option<String>,
    }

    pub struct ProviderListParams {
        /// Show keys instead of masking them.
        reveal: bool,
    }

    pub struct ProviderRef {
        name: String,
        request_id: Option<String>,
    }

    pub struct ProviderTestParams {
        name: String,
        /// The model to try; the first that the provider is configured with when absent.
        model: Option<String>,
        request_id: Option<String>,
    }
}

shapes! {
    pub struct ProviderView {
        name: String,
        kind: String,
        base_url: Option<String>,
        /// Masked unless revealed.
        api_key: Option<String>,
        models: Vec<String>,
        /// How long failures that may pass are retried, if it is configured; else 10 minutes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_for: Option<String>,
        builtin: bool,
        /// Why it cannot be called, when it cannot.
        problem: Option<String>,
    }

    pub struct ProviderList {
        providers: Vec<ProviderView>,
        /// Why the file on disk is not in effect, when it is not.
        error: Option<String>,
        /// What to do about the error.
        hint: Option<String>,
    }

    pub struct ProviderTested {
        ok: bool,
        ms: u64,
        /// The models that the provider lists.
        models: Vec<String>,
        /// The model that answered; absent when there was none to ask.
        answered: Option<String>,
    }
}
