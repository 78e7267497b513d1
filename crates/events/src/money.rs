//! Costs: stored in millionths of a dollar, shown in dollars.

use serde::{Deserialize, Deserializer, Serializer};

pub fn serialize<S: Serializer>(micro_usd: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    match micro_usd {
        // Beyond 2^53 millionths, nine billion dollars, the last digit is lost.
        Some(micro_usd) => serializer.serialize_f64(*micro_usd as f64 / 1e6),
        None => serializer.serialize_none(),
    }
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let usd = Option::<f64>::deserialize(deserializer)?;
    Ok(usd.map(|usd| (usd * 1e6).round() as u64))
}
