//! What the values of settings look like, and what each becomes.

use std::path::PathBuf;
use std::time::Duration;

use lodge_core::limits::{JOB_OUTPUT_BYTES_MAX, JOB_OUTPUT_BYTES_MIN};
use lodge_core::lineage::Policy;
use serde_json::Value;

/// How a setting is written, and the type it has in the program.
pub trait SettingFormat {
    type Value;

    /// The flag may be given without a value.
    const IS_SWITCH: bool = false;
    /// The file may have a list of words.
    const IS_LIST: bool = false;

    fn parse(text: &str) -> Option<Self::Value>;

    /// The end of "expected …".
    fn expected() -> String;

    /// How `info` shows a value that was parsed from `text`.
    fn shown(_value: &Self::Value, text: &str) -> Value {
        Value::from(text)
    }
}

/// Where to listen: a host and a port.
#[derive(Debug)]
pub struct AddressFormat;

impl SettingFormat for AddressFormat {
    type Value = String;

    fn parse(text: &str) -> Option<String> {
        // The address of a name is known only when it is tried.
        let (host, port) = text.rsplit_once(':')?;
        (!host.is_empty() && port.parse::<u16>().is_ok()).then(|| text.to_owned())
    }

    fn expected() -> String {
        "ADDRESS:PORT, such as 127.0.0.1:5500".to_owned()
    }
}

#[derive(Debug)]
pub struct PathFormat;

impl SettingFormat for PathFormat {
    type Value = PathBuf;

    fn parse(text: &str) -> Option<PathBuf> {
        (!text.is_empty()).then(|| PathBuf::from(text))
    }

    fn expected() -> String {
        "a path".to_owned()
    }
}

/// A path, or nothing.
#[derive(Debug)]
pub struct OptionalPathFormat;

impl SettingFormat for OptionalPathFormat {
    type Value = Option<PathBuf>;

    fn parse(text: &str) -> Option<Option<PathBuf>> {
        Some(PathFormat::parse(text))
    }

    fn expected() -> String {
        PathFormat::expected()
    }
}

#[derive(Debug)]
pub struct SwitchFormat;

impl SettingFormat for SwitchFormat {
    type Value = bool;
    const IS_SWITCH: bool = true;

    fn parse(text: &str) -> Option<bool> {
        match text {
            "true" | "1" | "yes" | "on" => Some(true),
            "false" | "0" | "no" | "off" | "" => Some(false),
            _ => None,
        }
    }

    fn expected() -> String {
        "true or false".to_owned()
    }

    fn shown(value: &bool, _text: &str) -> Value {
        Value::from(*value)
    }
}

#[derive(Debug)]
pub struct CountFormat;

impl SettingFormat for CountFormat {
    type Value = usize;

    fn parse(text: &str) -> Option<usize> {
        let count = text.parse::<u32>().ok().filter(|count| *count > 0)?;
        usize::try_from(count).ok()
    }

    fn expected() -> String {
        "a whole number from 1".to_owned()
    }

    fn shown(value: &usize, _text: &str) -> Value {
        Value::from(*value)
    }
}

#[derive(Debug)]
pub struct SpanFormat;

impl SettingFormat for SpanFormat {
    type Value = Duration;

    fn parse(text: &str) -> Option<Duration> {
        parse_span(text)
    }

    fn expected() -> String {
        "a duration such as 500ms, 5s or 2m".to_owned()
    }
}

/// A duration, or `off`.
#[derive(Debug)]
pub struct OptionalSpanFormat;

impl SettingFormat for OptionalSpanFormat {
    type Value = Option<Duration>;

    fn parse(text: &str) -> Option<Option<Duration>> {
        if text == OFF {
            return Some(None);
        }
        parse_span(text).filter(|span| !span.is_zero()).map(Some)
    }

    fn expected() -> String {
        "off, or a duration such as 90m, 12h or 30d".to_owned()
    }
}

/// A number of bytes.
#[derive(Debug)]
pub struct SizeFormat;

impl SettingFormat for SizeFormat {
    type Value = u64;

    fn parse(text: &str) -> Option<u64> {
        parse_size(text)
    }

    fn expected() -> String {
        "a size such as 512k, 64m or 2g".to_owned()
    }
}

/// What a stream of a job may keep, in bytes.
#[derive(Debug)]
pub struct JobOutputFormat;

impl SettingFormat for JobOutputFormat {
    type Value = u64;

    fn parse(text: &str) -> Option<u64> {
        parse_size(text).filter(|size| (JOB_OUTPUT_BYTES_MIN..=JOB_OUTPUT_BYTES_MAX).contains(size))
    }

    fn expected() -> String {
        format!("a size such as 64m, from {JOB_OUTPUT_BYTES_MIN} to {JOB_OUTPUT_BYTES_MAX} bytes")
    }
}

/// A number of bytes, or `off`.
#[derive(Debug)]
pub struct OptionalSizeFormat;

impl SettingFormat for OptionalSizeFormat {
    type Value = Option<u64>;

    fn parse(text: &str) -> Option<Option<u64>> {
        if text == OFF {
            return Some(None);
        }
        parse_size(text).filter(|size| *size > 0).map(Some)
    }

    fn expected() -> String {
        "off, or a size such as 512m or 10g".to_owned()
    }
}

/// Declares a setting that is one of several words.
macro_rules! words_format {
    ($format:ident, $value:ty, [$($word:literal => $variant:expr),*]) => {
        #[derive(Debug)]
        pub struct $format;

        impl SettingFormat for $format {
            type Value = $value;

            fn parse(text: &str) -> Option<$value> {
                match text {
                    $($word => Some($variant),)*
                    _ => None,
                }
            }

            fn expected() -> String {
                [$($word),*].join(" or ")
            }
        }
    };
}

/// How agents are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecutorKind {
    System,
    Docker,
}

impl ExecutorKind {
    pub fn word(self) -> &'static str {
        match self {
            ExecutorKind::System => "system",
            ExecutorKind::Docker => "docker",
        }
    }
}

/// How the daemon writes its own log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

words_format!(ExecutorFormat, ExecutorKind, ["system" => ExecutorKind::System, "docker" => ExecutorKind::Docker]);
words_format!(LogFormatFormat, LogFormat, ["text" => LogFormat::Text, "json" => LogFormat::Json]);
words_format!(PolicyFormat, Policy, ["revive" => Policy::Revive, "reap" => Policy::Reap, "ask" => Policy::Ask]);

/// Words with commas between them.
#[derive(Debug)]
pub struct ListFormat;

impl SettingFormat for ListFormat {
    type Value = Vec<String>;
    const IS_LIST: bool = true;

    fn parse(text: &str) -> Option<Vec<String>> {
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        Some(items.map(str::to_owned).collect())
    }

    fn expected() -> String {
        "words with commas between them".to_owned()
    }

    fn shown(value: &Vec<String>, _text: &str) -> Value {
        Value::from(value.clone())
    }
}

#[derive(Debug)]
pub struct LogFilterFormat;

impl SettingFormat for LogFilterFormat {
    type Value = String;

    fn parse(text: &str) -> Option<String> {
        // A single word that is no level would be read as the name of a module, and nothing else would be logged.
        let level = text.parse::<tracing_subscriber::filter::LevelFilter>().is_ok();
        let filter = text.contains('=') && text.parse::<tracing_subscriber::filter::Targets>().is_ok();
        (level || filter).then(|| text.to_owned())
    }

    fn expected() -> String {
        "error, warn, info, debug, trace, off, or a filter such as info,hyper=warn".to_owned()
    }
}

/// The value of a setting that is turned off.
const OFF: &str = "off";

/// `500ms`, `5s`, `2m`, `1h`, `30d`.
fn parse_span(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let ms = match unit {
        "ms" => number,
        "s" => number.checked_mul(1_000)?,
        "m" => number.checked_mul(60_000)?,
        "h" => number.checked_mul(3_600_000)?,
        "d" => number.checked_mul(86_400_000)?,
        _ => return None,
    };
    Some(Duration::from_millis(ms))
}

/// A number of bytes, with an optional k, m, g or t (powers of 1024).
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        "t" | "T" => 40,
        _unknown => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}
