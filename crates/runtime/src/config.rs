//! The tunables of an agent, read from its `configs`.
//!
//! Owns: names, defaults and ranges of the keys the runtime understands. A value that cannot be used is refused; a key that is
//! not known is kept for other programs.

use std::collections::BTreeMap;

use lodge_runtime_messages::{CompactStrategy, ModelParams};

use crate::log::RuntimeLogEvent;
use crate::memory::Memory;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RuntimeSettings {
    pub(crate) params: ModelParams,
    pub(crate) iterations_max: u64,
    pub(crate) memory: Memory,
    /// 0: tools may take as long as they like.
    pub(crate) tool_timeout_ms: u64,
}

impl Default for RuntimeSettings {
    fn default() -> Self {
        RuntimeSettings {
            params: ModelParams { max_tokens: Some(4096), ..ModelParams::default() },
            iterations_max: 20,
            memory: Memory { strategy: CompactStrategy::Summarize, messages_max: 20, tokens_max: 0 },
            tool_timeout_ms: 10 * 60 * 1_000,
        }
    }
}

/// Keys whose values the runtime cannot use, each with what it takes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnusableConfigs(Vec<String>);

impl std::fmt::Display for UnusableConfigs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CONFIG values cannot be used: {}", self.0.join("; "))
    }
}

/// How one key was used.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum KeyUse {
    Used,
    /// Not ours: other programs may know it.
    Kept,
    Unusable,
}

impl RuntimeSettings {
    pub(crate) fn from_configs(configs: &BTreeMap<String, String>) -> Result<Self, UnusableConfigs> {
        let mut settings = RuntimeSettings::default();
        let mut unusable = Vec::new();
        for (key, value) in configs {
            match settings.take(key, value.trim()) {
                KeyUse::Used => {}
                KeyUse::Kept => RuntimeLogEvent::ConfigKept { key }.emit(),
                KeyUse::Unusable => unusable.push(format!("{key} is {}", expected(key))),
            }
        }
        if unusable.is_empty() { Ok(settings) } else { Err(UnusableConfigs(unusable)) }
    }

    fn take(&mut self, key: &str, value: &str) -> KeyUse {
        let params = &mut self.params;
        match key {
            "max-tokens" => set(&mut params.max_tokens, count(value).map(Some)),
            "max-iterations" => set(&mut self.iterations_max, count(value)),
            "memory-strategy" => set(&mut self.memory.strategy, strategy(value)),
            "memory-max-messages" => set(&mut self.memory.messages_max, value.parse().ok()),
            "memory-max-tokens" => set(&mut self.memory.tokens_max, value.parse().ok()),
            "tool-timeout" => set(&mut self.tool_timeout_ms, duration_ms(value)),
            "temperature" => set(&mut params.temperature, number(value, 0.0).map(Some)),
            "top-p" => set(&mut params.top_p, number(value, 0.0).map(Some)),
            "top-k" => set(&mut params.top_k, count(value).map(Some)),
            "presence-penalty" => set(&mut params.presence_penalty, number(value, f64::MIN).map(Some)),
            "frequency-penalty" => set(&mut params.frequency_penalty, number(value, f64::MIN).map(Some)),
            _ => KeyUse::Kept,
        }
    }
}

fn set<T>(slot: &mut T, value: Option<T>) -> KeyUse {
    match value {
        Some(value) => {
            *slot = value;
            KeyUse::Used
        }
        None => KeyUse::Unusable,
    }
}

/// The values that a key takes.
fn expected(key: &str) -> &'static str {
    match key {
        "max-tokens" | "max-iterations" | "top-k" => "a whole number from 1",
        "memory-strategy" => "`summarize`, `sliding` or `handoff`",
        "memory-max-messages" | "memory-max-tokens" => "a whole number",
        "tool-timeout" => "a time such as `90s` or `10m`",
        "temperature" | "top-p" => "a number from 0",
        _ => "a number",
    }
}

fn strategy(value: &str) -> Option<CompactStrategy> {
    match value {
        "sliding" => Some(CompactStrategy::Sliding),
        "summarize" => Some(CompactStrategy::Summarize),
        "handoff" => Some(CompactStrategy::Handoff),
        _ => None,
    }
}

fn count<N: std::str::FromStr + PartialOrd + From<u8>>(value: &str) -> Option<N> {
    value.parse().ok().filter(|count| *count > N::from(0))
}

/// `90s`, `10m`, `1h`, `500ms`; a number alone means seconds.
fn duration_ms(value: &str) -> Option<u64> {
    let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let unit_ms = match value[digits..].trim() {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60 * 1_000,
        "h" => 60 * 60 * 1_000,
        _ => return None,
    };
    value[..digits].parse::<u64>().ok()?.checked_mul(unit_ms)
}

fn number(value: &str, least: f64) -> Option<f64> {
    value.parse().ok().filter(|number: &f64| number.is_finite() && *number >= least)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(key: &str, value: &str, taken: KeyUse, params: &str) {
        let mut settings = RuntimeSettings::default();
        assert_eq!(settings.take(key, value), taken, "{key}={value}");
        assert_eq!(serde_json::to_string(&settings.params).unwrap(), params, "{key}={value}");
    }

    #[test]
    fn a_duration_has_a_unit_or_is_in_seconds() {
        let values = ["500ms", "90s", "90", "10m", "2h", "0", "1 m"];
        let expected = [500, 90_000, 90_000, 600_000, 7_200_000, 0, 60_000];
        assert_eq!(values.map(duration_ms), expected.map(Some));
        for bad in ["", "m", "-1s", "1.5h", "1d", "18446744073709551615h"] {
            assert_eq!(duration_ms(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_not_set_is_as_documented() {
        let RuntimeSettings { memory, iterations_max, tool_timeout_ms, .. } = RuntimeSettings::default();
        assert_eq!(memory, Memory { strategy: CompactStrategy::Summarize, messages_max: 20, tokens_max: 0 });
        assert_eq!((iterations_max, tool_timeout_ms), (20, 600_000));
    }

    #[test]
    fn each_key_is_used_refused_or_kept() {
        let defaults = r#"{"max_tokens":4096}"#;
        check("max-tokens", "100", KeyUse::Used, r#"{"max_tokens":100}"#);
        check("max-tokens", "0", KeyUse::Unusable, defaults);
        check("max-tokens", "lots", KeyUse::Unusable, defaults);
        check("temperature", "0.7", KeyUse::Used, r#"{"max_tokens":4096,"temperature":0.7}"#);
        check("temperature", "-1", KeyUse::Unusable, defaults);
        check("temperature", "NaN", KeyUse::Unusable, defaults);
        check("top-p", "0.9", KeyUse::Used, r#"{"max_tokens":4096,"top_p":0.9}"#);
        check("top-k", "40", KeyUse::Used, r#"{"max_tokens":4096,"top_k":40}"#);
        check("presence-penalty", "-1.5", KeyUse::Used, r#"{"max_tokens":4096,"presence_penalty":-1.5}"#);
        check("frequency-penalty", "2", KeyUse::Used, r#"{"max_tokens":4096,"frequency_penalty":2.0}"#);
        check("memory-strategy", "sliding", KeyUse::Used, defaults);
        check("memory-strategy", "forget", KeyUse::Unusable, defaults);
        check("memory-max-tokens", "x", KeyUse::Unusable, defaults);
        check("memory-max-tokens", "9000", KeyUse::Used, defaults);
        check("memory-strategy", "handoff", KeyUse::Used, defaults);
        check("tool-timeout", "soon", KeyUse::Unusable, defaults);
        check("tool-timeout", "1h", KeyUse::Used, defaults);
        check("notes-max-count", "64", KeyUse::Kept, defaults);
    }

    #[test]
    fn the_keys_that_builds_are_checked_against_are_known() {
        for key in lodge_runtime_messages::CONFIG_KEYS {
            assert_ne!(RuntimeSettings::default().take(key, "?"), KeyUse::Kept, "{key}");
        }
    }

    #[test]
    fn all_values_that_cannot_be_used_are_refused_with_what_their_keys_take() {
        let given = [("max-tokens", "lots"), ("tool-timeout", ""), ("top-k", "3"), ("other", "x")];
        let configs = given.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let refused = RuntimeSettings::from_configs(&configs).unwrap_err().to_string();
        assert_eq!(
            refused,
            "CONFIG values cannot be used: max-tokens is a whole number from 1; tool-timeout is a time such as `90s` or `10m`"
        );
    }
}
