//! The tunables of an agent, read from its `configs`.
//!
//! Owns: names, defaults and ranges of the keys the runtime understands. Never: a refusal; a bad value becomes
//! the default and a line in the log.

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

/// How one key was used.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum KeyUse {
    Used,
    /// Not ours: other programs may know it.
    Kept,
    Defaulted,
}

impl RuntimeSettings {
    pub(crate) fn from_configs(configs: &BTreeMap<String, String>) -> Self {
        let mut settings = RuntimeSettings::default();
        for (key, value) in configs {
            match settings.take(key, value.trim()) {
                KeyUse::Used => {}
                KeyUse::Kept => RuntimeLogEvent::ConfigKept { key }.emit(),
                KeyUse::Defaulted => RuntimeLogEvent::ConfigDefaulted { key }.emit(),
            }
        }
        settings
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
        None => KeyUse::Defaulted,
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
    fn each_key_is_used_defaulted_or_kept() {
        let defaults = r#"{"max_tokens":4096}"#;
        check("max-tokens", "100", KeyUse::Used, r#"{"max_tokens":100}"#);
        check("max-tokens", "0", KeyUse::Defaulted, defaults);
        check("max-tokens", "lots", KeyUse::Defaulted, defaults);
        check("temperature", "0.7", KeyUse::Used, r#"{"max_tokens":4096,"temperature":0.7}"#);
        check("temperature", "-1", KeyUse::Defaulted, defaults);
        check("temperature", "NaN", KeyUse::Defaulted, defaults);
        check("top-p", "0.9", KeyUse::Used, r#"{"max_tokens":4096,"top_p":0.9}"#);
        check("top-k", "40", KeyUse::Used, r#"{"max_tokens":4096,"top_k":40}"#);
        check("presence-penalty", "-1.5", KeyUse::Used, r#"{"max_tokens":4096,"presence_penalty":-1.5}"#);
        check("frequency-penalty", "2", KeyUse::Used, r#"{"max_tokens":4096,"frequency_penalty":2.0}"#);
        check("memory-strategy", "sliding", KeyUse::Used, defaults);
        check("memory-strategy", "forget", KeyUse::Defaulted, defaults);
        check("memory-max-tokens", "x", KeyUse::Defaulted, defaults);
        check("memory-max-tokens", "9000", KeyUse::Used, defaults);
        check("memory-strategy", "handoff", KeyUse::Used, defaults);
        check("tool-timeout", "soon", KeyUse::Defaulted, defaults);
        check("tool-timeout", "1h", KeyUse::Used, defaults);
        check("notes-max-count", "64", KeyUse::Kept, defaults);
    }
}
