//! Work that the daemon computes itself and that killed it repeatedly: it is quarantined until an operator decides.

use crate::Timestamp;
use crate::id::{AgentId, WorkId};

/// Deaths in a row, each soon after a start, after which the computed work is quarantined.
pub const DEATHS_MAX: u32 = 3;
/// A death counts against the computed work if the daemon had started less than this before.
pub const YOUNG_MS: u64 = 60_000;
/// Most work in quarantine at the same time; further work is computed again.
pub const QUARANTINED_MAX: usize = 256;

/// Work that can be quarantined. Programs in sandboxes cannot: they run in other processes. Codes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkKind {
    /// The subject is a turn.
    ModelCall,
    /// The subject is a turn.
    SchemaCheck,
    /// The subject is an agent.
    Pull,
    /// The subject is the digest of a caller, a method and its parameters.
    Request,
}

impl WorkKind {
    pub const ALL: [WorkKind; 4] =
        [WorkKind::ModelCall, WorkKind::SchemaCheck, WorkKind::Pull, WorkKind::Request];

    pub const fn code(self) -> u8 {
        match self {
            WorkKind::ModelCall => 1,
            WorkKind::SchemaCheck => 2,
            WorkKind::Pull => 3,
            WorkKind::Request => 4,
        }
    }

    pub fn from_code(code: i64) -> Option<WorkKind> {
        WorkKind::ALL.into_iter().find(|kind| i64::from(kind.code()) == code)
    }

    pub fn word(self) -> &'static str {
        match self {
            WorkKind::ModelCall => "model_call",
            WorkKind::SchemaCheck => "schema_check",
            WorkKind::Pull => "pull",
            WorkKind::Request => "request",
        }
    }
}

/// A piece of work, identical each time it is computed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Work {
    pub kind: WorkKind,
    pub subject: String,
}

/// Work that was computed when daemons died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspect {
    pub work: Work,
    /// The image of a pull, the method of a request.
    pub detail: String,
    pub deaths: u32,
}

/// Work in quarantine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuarantineRow {
    pub id: WorkId,
    pub work: Work,
    /// Whose it is.
    pub agent: Option<AgentId>,
    pub detail: String,
    pub deaths: u32,
    pub since: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_being_stored() {
        for kind in WorkKind::ALL {
            assert_eq!(WorkKind::from_code(i64::from(kind.code())), Some(kind));
        }
        assert_eq!(WorkKind::from_code(0), None);
    }
}
