//! Why a turn is parked: a reason that is stored with the turn, apart from its agent and its slot.
//!
//! A parked turn is `waiting`. It has no slot, and its runtime has dropped it. What ends the wait depends on the reason; the
//! turn then continues like any other turn that waits for a slot.

use crate::Timestamp;
use crate::record::FailureRecord;

/// The stored form. It has no reason if a newer release wrote one that this release does not know: such a turn waits for
/// a slot only.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ParkRecord {
    #[prost(oneof = "ParkReason", tags = "1")]
    pub reason: Option<ParkReason>,
}

/// Tags are stored: append only.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum ParkReason {
    /// The provider of its model did not answer.
    #[prost(message, tag = "1")]
    Provider(ProviderWait),
}

impl ParkReason {
    /// The name that clients see.
    pub fn word(&self) -> &'static str {
        match self {
            ParkReason::Provider(_) => "provider",
        }
    }
}

/// A turn whose model call is retried. It is kept until the call is answered, also while an attempt runs.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ProviderWait {
    #[prost(string, tag = "1")]
    pub provider: String,
    /// The first failure of the step. For a turn that never called: when it found that the provider does not answer.
    #[prost(int64, tag = "2")]
    pub first_ms: i64,
    /// Its own newest failure.
    #[prost(int64, optional, tag = "3")]
    pub failed_ms: Option<i64>,
    /// The next attempt, of this turn or of another one that waits for the same provider. Absent once the provider has
    /// answered: then the turn waits for a slot only.
    #[prost(int64, optional, tag = "4")]
    pub next_ms: Option<i64>,
    /// `retry-for` of the provider, at the newest failure.
    #[prost(uint64, tag = "5")]
    pub retry_for_ms: u64,
    /// Attempts at this provider that failed in a row.
    #[prost(uint32, tag = "6")]
    pub failures: u32,
    /// The newest failure of the provider.
    #[prost(message, required, tag = "7")]
    pub failure: FailureRecord,
}

impl ProviderWait {
    pub fn first_at(&self) -> Timestamp {
        Timestamp::from_ms(self.first_ms)
    }

    pub fn next_at(&self) -> Option<Timestamp> {
        self.next_ms.map(Timestamp::from_ms)
    }

    /// The turn ends at this time, or with the answer to a call that it is making then.
    pub fn until(&self) -> Timestamp {
        self.first_at().plus_ms(i64::try_from(self.retry_for_ms).unwrap_or(i64::MAX))
    }

    /// Whether the turn waits until the provider answers, rather than for a slot.
    pub fn is_held(&self) -> bool {
        self.next_ms.is_some()
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn a_reason_of_a_newer_release_is_read_as_none() {
        let failure = FailureRecord { code: "model.status".into(), message: "503".into(), hint: None };
        let wait = ProviderWait { provider: "work".into(), first_ms: 5, failure, ..ProviderWait::default() };
        let record = ParkRecord { reason: Some(ParkReason::Provider(wait)) };
        assert_eq!(ParkRecord::decode(record.encode_to_vec().as_slice()), Ok(record));
        // Field 99, an empty message.
        assert_eq!(ParkRecord::decode([0x9a, 0x06, 0x00].as_slice()), Ok(ParkRecord::default()));
    }
}
