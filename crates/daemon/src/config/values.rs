//! What a value may look like.

use std::time::Duration;

use serde_json::Value;

use super::ConfigError;
use super::table::{Setting, Shape};

/// A value as it is kept, or what was expected in its place.
pub(super) fn check(setting: &'static Setting, given: &Value, from: String) -> Result<Value, ConfigError> {
    let words = |items: &[Value]| {
        items.iter().map(Value::as_str).collect::<Option<Vec<&str>>>().map(|words| words.join(","))
    };
    let (text, scalar) = match (given, setting.shape) {
        (Value::String(text), _) => (text.clone(), true),
        (Value::Bool(_) | Value::Number(_), _) => (given.to_string(), true),
        (Value::Array(items), Shape::List) => {
            words(items).map_or((given.to_string(), false), |text| (text, true))
        }
        (Value::Null | Value::Object(_) | Value::Array(_), _) => (given.to_string(), false),
    };
    let bad = |wanted: String| ConfigError::BadValue {
        name: setting.name,
        given: text.clone(),
        wanted,
        from: from.clone(),
    };
    if !scalar {
        return Err(bad("a plain value".to_owned()));
    }
    match setting.shape {
        Shape::Address if is_address(&text) => Ok(Value::from(text)),
        Shape::Address => Err(bad("ADDRESS:PORT, such as 127.0.0.1:5500".to_owned())),
        Shape::Path if !text.is_empty() => Ok(Value::from(text)),
        Shape::Path => Err(bad("a path".to_owned())),
        Shape::PathOrNone => Ok(Value::from(text)),
        Shape::Flag => match text.as_str() {
            "true" | "1" | "yes" | "on" => Ok(Value::from(true)),
            "false" | "0" | "no" | "off" | "" => Ok(Value::from(false)),
            _ => Err(bad("true or false".to_owned())),
        },
        Shape::Count => match text.parse::<u32>() {
            Ok(count) if count > 0 => Ok(Value::from(count)),
            Ok(_) | Err(_) => Err(bad("a whole number from 1".to_owned())),
        },
        Shape::Span => match parse_span(&text) {
            Some(_) => Ok(Value::from(text)),
            None => Err(bad("a duration such as 500ms, 5s or 2m".to_owned())),
        },
        Shape::SpanOrOff if text == OFF || parse_span(&text).is_some_and(|span| !span.is_zero()) => {
            Ok(Value::from(text))
        }
        Shape::SpanOrOff => Err(bad("off, or a duration such as 90m, 12h or 30d".to_owned())),
        Shape::Size if parse_size(&text).is_some() => Ok(Value::from(text)),
        Shape::Size => Err(bad("a size such as 512k, 64m or 2g".to_owned())),
        Shape::SizeWithin(least, most) => match parse_size(&text) {
            Some(size) if (least..=most).contains(&size) => Ok(Value::from(text)),
            Some(_) | None => Err(bad(format!("a size such as 64m, from {least} to {most} bytes"))),
        },
        Shape::SizeOrOff if text == OFF || parse_size(&text).is_some_and(|size| size > 0) => {
            Ok(Value::from(text))
        }
        Shape::SizeOrOff => Err(bad("off, or a size such as 512m or 10g".to_owned())),
        Shape::OneOf(words) => {
            if words.contains(&text.as_str()) {
                Ok(Value::from(text))
            } else {
                Err(bad(words.join(" or ")))
            }
        }
        // A lone word that is no level would be taken for the name of a module, and everything else be silent.
        Shape::LogFilter => {
            let level = text.parse::<tracing_subscriber::filter::LevelFilter>().is_ok();
            let filter = text.contains('=') && text.parse::<tracing_subscriber::filter::Targets>().is_ok();
            if level || filter {
                Ok(Value::from(text))
            } else {
                Err(bad(
                    "error, warn, info, debug, trace, off, or a filter such as info,hyper=warn".to_owned()
                ))
            }
        }
        Shape::List => {
            Ok(text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(Value::from).collect())
        }
    }
}

/// Whether somebody can be asked to listen there. What a name leads to is known only when it is tried.
fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// The value of a setting that asks for nothing.
const OFF: &str = "off";

/// `500ms`, `5s`, `2m`, `1h`, `30d`.
pub(super) fn parse_span(text: &str) -> Option<Duration> {
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
pub(super) fn parse_size(text: &str) -> Option<u64> {
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
