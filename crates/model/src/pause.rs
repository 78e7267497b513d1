//! Times as people write them: `50ms`, `2s` or `1m`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// The longest `retry-for`. Who wants to wait longer wants to be asked.
const RETRY_FOR_MAX: Duration = Duration::from_secs(24 * 3600);

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

/// How long failed calls are tried again: as [`ScriptPause`], or `12h`, or `0`, at most a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryFor(pub(crate) Duration);

/// A text that is no [`RetryFor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected 0 or a time such as 30s, 10m or 12h, at most 24h")]
pub struct BadRetryFor;

impl FromStr for RetryFor {
    type Err = BadRetryFor;

    fn from_str(text: &str) -> Result<Self, BadRetryFor> {
        retry_for(text).map(Self).ok_or(BadRetryFor)
    }
}

impl fmt::Display for RetryFor {
    /// In the largest unit without a fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_millis() {
            0 => write!(f, "0"),
            ms if ms % 3_600_000 == 0 => write!(f, "{}h", ms / 3_600_000),
            ms if ms % 60_000 == 0 => write!(f, "{}m", ms / 60_000),
            ms if ms % 1_000 == 0 => write!(f, "{}s", ms / 1_000),
            ms => write!(f, "{ms}ms"),
        }
    }
}

impl<'de> Deserialize<'de> for RetryFor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

fn retry_for(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let hours = text.strip_suffix('h').and_then(|hours| hours.parse::<u64>().ok());
    let time = match hours {
        Some(hours) => Duration::from_secs(hours.checked_mul(3600)?),
        None => duration(text)?,
    };
    Some(time).filter(|time| *time <= RETRY_FOR_MAX)
}

fn pause(text: &str) -> Option<Duration> {
    duration(text).filter(|pause| *pause <= PAUSE_MAX)
}

fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => number.checked_mul(60).map(Duration::from_secs),
        _ => None,
    }
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

    #[test]
    fn the_time_for_retries_may_be_nothing_or_hours_but_not_days() {
        for (text, expected) in [
            ("0", Some(0)),
            ("0s", Some(0)),
            ("50ms", Some(50)),
            ("90m", Some(5_400_000)),
            ("12h", Some(43_200_000)),
            ("24h", Some(86_400_000)),
            ("25h", None),
            ("1441m", None),
            ("1d", None),
            ("10", None),
            ("", None),
            ("h", None),
            ("99999999999999999999h", None),
        ] {
            assert_eq!(retry_for(text), expected.map(Duration::from_millis), "{text}");
        }
    }

    #[test]
    fn the_time_for_retries_is_shown_so_that_it_can_be_read_again() {
        for (ms, shown) in [
            (0, "0"),
            (50, "50ms"),
            (1_500, "1500ms"),
            (90_000, "90s"),
            (600_000, "10m"),
            (86_400_000, "24h"),
        ] {
            let time = RetryFor(Duration::from_millis(ms));
            assert_eq!(time.to_string(), shown);
            assert_eq!(shown.parse(), Ok(time));
        }
    }
}
