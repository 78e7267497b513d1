//! The tunables of an agent, read from its `configs`.
//!
//! Owns: names, defaults and ranges of the keys the runtime understands. Never: a refusal; a bad value becomes
//! the default and a line in the log.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::Serialize;

use crate::log::Event;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    pub(crate) params: ModelParams,
    pub(crate) iterations_max: u64,
    pub(crate) messages_max: u64,
}

/// Passed to the model as they are; what is unset is not sent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ModelParams {
    max_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    presence_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frequency_penalty: Option<f64>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            params: ModelParams {
                max_tokens: 4096,
                temperature: None,
                top_p: None,
                top_k: None,
                presence_penalty: None,
                frequency_penalty: None,
            },
            iterations_max: 20,
            messages_max: 20,
        }
    }
}

/// What became of one key.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Taken {
    Used,
    /// Not ours: other programs may know it.
    Kept,
    Defaulted,
}

impl Settings {
    pub(crate) fn from_configs(configs: &BTreeMap<String, String>) -> Self {
        let mut settings = Settings::default();
        for (key, value) in configs {
            match settings.take(key, value.trim()) {
                Taken::Used => {}
                Taken::Kept => Event::ConfigKept { key }.emit(),
                Taken::Defaulted => Event::ConfigDefaulted { key }.emit(),
            }
        }
        settings
    }

    fn take(&mut self, key: &str, value: &str) -> Taken {
        let params = &mut self.params;
        match key {
            "max-tokens" => set(&mut params.max_tokens, count(value)),
            "max-iterations" => set(&mut self.iterations_max, count(value)),
            "memory-max-messages" => set(&mut self.messages_max, value.parse().ok()),
            "temperature" => set(&mut params.temperature, number(value, 0.0).map(Some)),
            "top-p" => set(&mut params.top_p, number(value, 0.0).map(Some)),
            "top-k" => set(&mut params.top_k, count(value).map(Some)),
            "presence-penalty" => set(&mut params.presence_penalty, number(value, f64::MIN).map(Some)),
            "frequency-penalty" => set(&mut params.frequency_penalty, number(value, f64::MIN).map(Some)),
            // Checked and not acted on: this runtime only slides, and only the daemon knows token counts.
            "memory-strategy" if matches!(value, "summarize" | "sliding") => Taken::Used,
            "memory-max-tokens" if u64::from_str(value).is_ok() => Taken::Used,
            "memory-strategy" | "memory-max-tokens" => Taken::Defaulted,
            _ => Taken::Kept,
        }
    }
}

fn set<T>(slot: &mut T, value: Option<T>) -> Taken {
    match value {
        Some(value) => {
            *slot = value;
            Taken::Used
        }
        None => Taken::Defaulted,
    }
}

fn count(value: &str) -> Option<u64> {
    value.parse().ok().filter(|count| *count > 0)
}

fn number(value: &str, least: f64) -> Option<f64> {
    value.parse().ok().filter(|number: &f64| number.is_finite() && *number >= least)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(key: &str, value: &str, taken: Taken, params: &str) {
        let mut settings = Settings::default();
        assert_eq!(settings.take(key, value), taken, "{key}={value}");
        assert_eq!(serde_json::to_string(&settings.params).unwrap(), params, "{key}={value}");
    }

    #[test]
    fn each_key_is_used_defaulted_or_kept() {
        let defaults = r#"{"max_tokens":4096}"#;
        check("max-tokens", "100", Taken::Used, r#"{"max_tokens":100}"#);
        check("max-tokens", "0", Taken::Defaulted, defaults);
        check("max-tokens", "lots", Taken::Defaulted, defaults);
        check("temperature", "0.7", Taken::Used, r#"{"max_tokens":4096,"temperature":0.7}"#);
        check("temperature", "-1", Taken::Defaulted, defaults);
        check("temperature", "NaN", Taken::Defaulted, defaults);
        check("top-p", "0.9", Taken::Used, r#"{"max_tokens":4096,"top_p":0.9}"#);
        check("top-k", "40", Taken::Used, r#"{"max_tokens":4096,"top_k":40}"#);
        check("presence-penalty", "-1.5", Taken::Used, r#"{"max_tokens":4096,"presence_penalty":-1.5}"#);
        check("frequency-penalty", "2", Taken::Used, r#"{"max_tokens":4096,"frequency_penalty":2.0}"#);
        check("memory-strategy", "sliding", Taken::Used, defaults);
        check("memory-strategy", "forget", Taken::Defaulted, defaults);
        check("memory-max-tokens", "x", Taken::Defaulted, defaults);
        check("notes-max-count", "64", Taken::Kept, defaults);
    }
}
