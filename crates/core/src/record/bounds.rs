//! Records of what bounds a sandbox: its limits and its network.

/// The configured limits. An absent limit is not configured.
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

impl LimitsRecord {
    /// Each given limit replaces the current one.
    #[must_use]
    pub fn changed_by(self, given: LimitsRecord) -> LimitsRecord {
        LimitsRecord {
            memory_bytes: given.memory_bytes.or(self.memory_bytes),
            pids: given.pids.or(self.pids),
            cpu_ms: given.cpu_ms.or(self.cpu_ms),
            disk_bytes: given.disk_bytes.or(self.disk_bytes),
            output_bytes: given.output_bytes.or(self.output_bytes),
            budget_micro_usd: given.budget_micro_usd.or(self.budget_micro_usd),
            budget_tokens: given.budget_tokens.or(self.budget_tokens),
            context_tokens: given.context_tokens.or(self.context_tokens),
        }
    }
}

/// The network access of an agent.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NetworkRecord {
    /// See [`NetworkMode`].
    #[prost(int32, tag = "1")]
    pub mode: i32,
    /// With `List`: names, `*.names`, addresses and ranges, each with an optional port, and `loopback:PORT`.
    #[prost(string, repeated, tag = "2")]
    pub allow: Vec<String>,
    /// No Agentfile sets it.
    #[prost(bool, tag = "3")]
    pub by_default: bool,
}

impl NetworkRecord {
    /// The default of an image without NETWORK.
    pub fn by_default() -> NetworkRecord {
        NetworkRecord { mode: NetworkMode::Public.code(), allow: Vec::new(), by_default: true }
    }

    /// A number of a newer release counts as the narrowest that this one knows.
    pub fn reach(&self) -> NetworkMode {
        NetworkMode::from_code(self.mode).unwrap_or(NetworkMode::None)
    }
}

/// The reach of a sandbox. Codes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkMode {
    /// Only its own loopback.
    None,
    /// The host's network.
    Host,
    /// What is listed.
    List,
    /// Every publicly routed address.
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
