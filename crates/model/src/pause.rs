//! Times as people write them: `50ms`, `2s` or `1m`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// `50ms`, `2s` or `1m`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScriptPause(pub(crate) Duration);

impl<'de> Deserialize<'de> for ScriptPause {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        pause(&text)
            .map(Self)
            .ok_or_else(|| de::Error::custom("expected a time such as 50ms, 2s or 1m, at most 1h"))
    }
}

fn pause(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let pause = match unit {
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "m" => Duration::from_secs(number.checked_mul(60)?),
        _ => return None,
    };
    Some(pause).filter(|pause| *pause <= PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_needs_a_unit_and_an_end() {
        for (text, expected) in [
            ("50ms", Some(50)),
            ("2s", Some(2000)),
            ("1m", Some(60_000)),
            ("60m", Some(3_600_000)),
            ("61m", None),
            ("50", None),
            ("ms", None),
            ("-1s", None),
            ("5h", None),
            ("99999999999999999999s", None),
        ] {
            assert_eq!(pause(text), expected.map(Duration::from_millis), "{text}");
        }
    }
}
