//! The keys and values of LIMIT.
//!
//! Owns: their types and units. Never: enforces a limit.

use std::fmt;
use std::time::Duration;

use super::mistake::ValueMistake;

const MICROS_PER_USD: u64 = 1_000_000;

/// One limit, in its smallest unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Limit {
    MemoryBytes(u64),
    Pids(u32),
    /// Of one exec.
    CpuTime(Duration),
    DiskBytes(u64),
    OutputBytes(u64),
    /// Millionths of a dollar, so that sums are exact.
    BudgetMicroUsd(u64),
    BudgetTokens(u64),
    ContextTokens(u64),
    RevivalPolicy(RevivalPolicy),
}

/// What happens to a lineage that lost its processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevivalPolicy {
    Revive,
    Reap,
    Ask,
}

macro_rules! limit_keys {
    ($($variant:ident $word:literal $example:literal $expected:literal,)*) => {
        /// The name of a limit.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum LimitKey { $($variant),* }

        impl LimitKey {
            pub const ALL: &'static [LimitKey] = &[$(LimitKey::$variant),*];

            pub fn word(self) -> &'static str {
                match self { $(LimitKey::$variant => $word),* }
            }

            /// A value a person could copy.
            pub(super) fn example(self) -> &'static str {
                match self { $(LimitKey::$variant => $example),* }
            }

            pub(super) fn expected(self) -> &'static str {
                match self { $(LimitKey::$variant => $expected),* }
            }
        }
    };
}

/// With less no sandbox comes up.
const MEMORY_BYTES_MIN: u64 = 1 << 20;

limit_keys! {
    Memory "memory" "512m" "a number of bytes from 1m on, with an optional k, m, g or t (powers of 1024)",
    Pids "pids" "64" "a whole number from 1 to 4294967295",
    CpuTime "cpu-time" "1h30m" "a duration above 0 with units, such as `90s` or `1h30m`",
    Disk "disk" "2g" "a number of bytes above 0, with an optional k, m, g or t (powers of 1024)",
    Output "output" "64m" "a number of bytes above 0, with an optional k, m, g or t (powers of 1024)",
    BudgetUsd "budget-usd" "2.50" "dollars with at most 6 decimals",
    BudgetTokens "budget-tokens" "5m" "a whole number above 0, with an optional k or m (thousands, millions)",
    ContextTokens "context-tokens" "200k" "a whole number above 0, with an optional k or m (thousands, millions)",
    RevivalPolicy "revival-policy" "ask" "`revive`, `reap` or `ask`",
}

impl LimitKey {
    /// Finds the limit a word names; `_` and `-` are the same.
    pub(super) fn read(word: &str) -> Option<LimitKey> {
        let dashed = word.replace('_', "-");
        LimitKey::ALL.iter().copied().find(|key| key.word() == dashed)
    }
}

impl fmt::Display for LimitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Parses a limit that was given beside an Agentfile.
pub fn read_limit(key: &str, value: &str) -> Result<Limit, ValueMistake> {
    let known = LimitKey::read(key).ok_or_else(|| ValueMistake::UnknownLimit { found: key.to_owned() })?;
    Limit::read(known, value)
}

impl Limit {
    pub fn key(&self) -> LimitKey {
        match self {
            Limit::MemoryBytes(_) => LimitKey::Memory,
            Limit::Pids(_) => LimitKey::Pids,
            Limit::CpuTime(_) => LimitKey::CpuTime,
            Limit::DiskBytes(_) => LimitKey::Disk,
            Limit::OutputBytes(_) => LimitKey::Output,
            Limit::BudgetMicroUsd(_) => LimitKey::BudgetUsd,
            Limit::BudgetTokens(_) => LimitKey::BudgetTokens,
            Limit::ContextTokens(_) => LimitKey::ContextTokens,
            Limit::RevivalPolicy(_) => LimitKey::RevivalPolicy,
        }
    }

    /// Reads the value of a limit.
    pub(super) fn read(key: LimitKey, value: &str) -> Result<Limit, ValueMistake> {
        let limit = match key {
            LimitKey::Memory => {
                read_size(value).filter(|bytes| *bytes >= MEMORY_BYTES_MIN).map(Limit::MemoryBytes)
            }
            LimitKey::Pids => {
                parse_digits(value).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0).map(Limit::Pids)
            }
            LimitKey::CpuTime => read_duration(value).map(Limit::CpuTime),
            LimitKey::Disk => read_size(value).map(Limit::DiskBytes),
            LimitKey::Output => read_size(value).map(Limit::OutputBytes),
            LimitKey::BudgetUsd => micro_usd(value).map(Limit::BudgetMicroUsd),
            LimitKey::BudgetTokens => tokens(value).map(Limit::BudgetTokens),
            LimitKey::ContextTokens => tokens(value).map(Limit::ContextTokens),
            LimitKey::RevivalPolicy => policy(value).map(Limit::RevivalPolicy),
        };
        limit.ok_or_else(|| ValueMistake::LimitValue { key, found: value.to_owned() })
    }
}

impl fmt::Display for Limit {
    /// The value, as LIMIT takes it: reading it again gives the same limit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::MemoryBytes(bytes) | Limit::DiskBytes(bytes) | Limit::OutputBytes(bytes) => {
                in_units(f, *bytes, &[(1 << 40, "t"), (1 << 30, "g"), (1 << 20, "m"), (1 << 10, "k")])
            }
            Limit::Pids(count) => count.fmt(f),
            Limit::CpuTime(time) => {
                let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                in_units(
                    f,
                    ms,
                    &[(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")],
                )
            }
            Limit::BudgetMicroUsd(micros) => {
                let text = format!("{}.{:06}", micros / MICROS_PER_USD, micros % MICROS_PER_USD);
                f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
            }
            Limit::BudgetTokens(tokens) | Limit::ContextTokens(tokens) => {
                in_units(f, *tokens, &[(1_000_000, "m"), (1_000, "k")])
            }
            Limit::RevivalPolicy(RevivalPolicy::Revive) => f.write_str("revive"),
            Limit::RevivalPolicy(RevivalPolicy::Reap) => f.write_str("reap"),
            Limit::RevivalPolicy(RevivalPolicy::Ask) => f.write_str("ask"),
        }
    }
}

/// In the largest unit of which it is a whole number.
fn in_units(f: &mut fmt::Formatter<'_>, value: u64, units: &[(u64, &str)]) -> fmt::Result {
    match units.iter().find(|(size, _)| value.is_multiple_of(*size) && value > 0) {
        Some((size, unit)) => write!(f, "{}{unit}", value / size),
        None => write!(f, "{value}"),
    }
}

fn policy(value: &str) -> Option<RevivalPolicy> {
    match value {
        "revive" => Some(RevivalPolicy::Revive),
        "reap" => Some(RevivalPolicy::Reap),
        "ask" => Some(RevivalPolicy::Ask),
        _ => None,
    }
}

/// Digits only: `parse` alone would let a `+` through.
fn parse_digits(value: &str) -> Option<u64> {
    if value.is_empty() || !value.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    value.parse().ok()
}

fn split_unit(value: &str) -> (&str, &str) {
    value.split_at(value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len()))
}

/// A number of bytes above 0, with an optional k, m, g or t (powers of 1024).
pub fn read_size(value: &str) -> Option<u64> {
    let (number, unit) = split_unit(value);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    parse_digits(number)?.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

fn tokens(value: &str) -> Option<u64> {
    let (number, unit) = split_unit(value);
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1_000,
        "m" => 1_000_000,
        _ => return None,
    };
    parse_digits(number)?.checked_mul(factor).filter(|tokens| *tokens > 0)
}

/// A duration above 0 with units, such as `90s` or `1h30m`.
pub fn read_duration(value: &str) -> Option<Duration> {
    let mut rest = value;
    let mut total_ms: u64 = 0;
    while !rest.is_empty() {
        let (number, after) = split_unit(rest);
        let (unit, next) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        total_ms = total_ms.checked_add(parse_digits(number)?.checked_mul(unit_ms)?)?;
        rest = next;
    }
    (total_ms > 0).then(|| Duration::from_millis(total_ms))
}

fn micro_usd(value: &str) -> Option<u64> {
    let value = value.strip_prefix('$').unwrap_or(value);
    let (dollars, decimals) = match value.split_once('.') {
        Some((dollars, decimals)) if (1..=6).contains(&decimals.len()) => (dollars, decimals),
        Some(_) => return None,
        None => (value, "0"),
    };
    let scale = 10_u64.pow(6 - u32::try_from(decimals.len()).ok()?);
    parse_digits(dollars)?.checked_mul(MICROS_PER_USD)?.checked_add(parse_digits(decimals)? * scale)
}
