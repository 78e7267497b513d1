//! The daemon itself: its state, its settings, its end. Fields are added, never renamed.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agents::LayerView;
use crate::quarantine::QuarantineView;

params! {
    /// No parameters.
    pub struct Empty {}

    pub struct ShutdownParams {
        /// End the agents too.
        agents: bool,
        request_id: Option<String>,
    }

    pub struct ReapParams {
        request_id: Option<String>,
    }

    pub struct ReloadParams {
        request_id: Option<String>,
    }
}

shapes! {
    pub struct Done {
        done: bool,
    }

    pub struct Info {
        version: String,
        epoch: u64,
        log: String,
        executor: String,
        socket: String,
        /// Where the TCP listener is; none when there is none.
        http_addr: Option<String>,
        #[serde(default = "HttpView::unknown")]
        http: HttpView,
        data_dir: String,
        config_file: Option<String>,
        pid: u32,
        started_at: String,
        agents: AgentCounts,
        storage: StorageView,
        isolation: Vec<LayerView>,
        config: BTreeMap<String, ConfigValue>,
        /// Things a person should look at.
        warnings: Vec<String>,
        /// Work that killed the daemon several times and is set aside.
        #[serde(default)]
        quarantine: Vec<QuarantineView>,
    }

    pub struct ConfigValue {
        value: Value,
        /// flag, env, file or default.
        source: String,
    }

    pub struct AgentCounts {
        total: u64,
        running: u64,
        working: u64,
    }

    /// The file system of the state directory.
    pub struct StorageView {
        /// enough, low (nothing new is begun), read_only (nothing can be recorded) or away (the store cannot be reached).
        state: String,
        /// Since when it is not enough.
        since: Option<String>,
        free_bytes: u64,
        /// What the daemon keeps back to record outcomes with.
        reserve_bytes: u64,
    }

    /// The TCP listener.
    pub struct HttpView {
        /// listening, taken (another program has the address; it is tried again until it is free), no_certificate (TLS
        /// is wanted and its files cannot be used) or off.
        state: String,
        /// What is listened on, or wanted.
        addr: Option<String>,
        /// Where it listens, with `https://` where it speaks TLS.
        #[serde(default)]
        url: Option<String>,
        /// The beginning of the SHA-256 of the certificate that new connections get.
        #[serde(default)]
        certificate: Option<String>,
        /// Why the address is not listened on.
        reason: Option<String>,
    }

    /// What a sweep over the sandboxes found and took away.
    pub struct Reaped {
        /// Sandboxes that have a directory.
        probed: u64,
        /// Those whose keeper lives.
        alive: u64,
        /// Dead ones that are still needed: their agent is about to go on, or its open work needs what they left.
        kept: u64,
        pruned: Vec<PrunedView>,
        /// Agents that were recorded as running and whose sandbox is dead. Their lineages' policies decide what
        /// happens.
        dead: Vec<String>,
        /// Agents whose heartbeat was forgotten.
        forgotten: u64,
        /// Dead ones that could not be taken away.
        failed: Vec<NotPrunedView>,
    }

    pub struct PrunedView {
        sandbox: String,
        /// None: no agent owns it.
        agent: Option<String>,
        why: String,
    }

    pub struct NotPrunedView {
        sandbox: String,
        detail: String,
    }

    /// What a reload of the settings did.
    pub struct Reloaded {
        /// The file that was read; none when there is none.
        file: Option<String>,
        /// In effect for everything that starts from now on.
        changed: Vec<SettingChange>,
        /// These count from the next start of the daemon on.
        needs_restart: Vec<SettingChange>,
        /// Values of the file that do not count.
        overridden: Vec<Overridden>,
    }

    pub struct SettingChange {
        key: String,
        from: Value,
        to: Value,
    }

    pub struct Overridden {
        key: String,
        /// flag or env.
        by: String,
        /// What is in effect.
        value: Value,
        /// What the file says.
        file: Value,
    }

    pub struct MethodSchema {
        name: String,
        #[serde(default)]
        summary: String,
        /// `operator`, or `agent` if a token of an agent may call it, too.
        #[serde(default)]
        rights: String,
        params: Value,
        result: Value,
        mutates: bool,
    }

    /// A kind of event.
    pub struct EventSchema {
        kind: String,
        summary: String,
        data: Value,
    }

    pub struct Discovery {
        version: String,
        methods: Vec<MethodSchema>,
        event: Value,
        delta: Value,
        output: Value,
        gap: Value,
        progress: Value,
        error: Value,
        event_kinds: Vec<String>,
        events: Vec<EventSchema>,
        error_codes: BTreeMap<String, String>,
    }
}

impl HttpView {
    /// Daemons of earlier releases do not report it.
    fn unknown() -> HttpView {
        HttpView { state: "unknown".to_owned(), addr: None, url: None, certificate: None, reason: None }
    }
}
