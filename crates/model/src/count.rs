//! Parses token counts of servers.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A number of tokens. One that cannot be a number of anything is as if it were not there: what it counts is an answer,
/// and that is worth more.
pub(crate) fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(match Option::<Value>::deserialize(deserializer)? {
        Some(Value::Number(number)) => number.as_u64().or_else(|| number.as_f64().and_then(parse_integer)),
        Some(Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_)) | None => {
            None
        }
    })
}

/// Some servers write whole numbers as 12.0.
fn parse_integer(number: f64) -> Option<u64> {
    /// Beyond this not every whole number can be written so.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    let is_count = number.fract() == 0.0 && (0.0..=EXACT_MAX).contains(&number);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was just looked at")]
    is_count.then_some(number as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_of_tokens_is_not_counted_and_nothing_else_is_lost() {
        #[derive(Deserialize)]
        struct TokenCount {
            #[serde(default, deserialize_with = "count")]
            tokens: Option<u64>,
        }
        for (text, expected) in [
            ("12", Some(12)),
            ("12.0", Some(12)),
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("-5", None),
            ("-0.5", None),
            ("1.5", None),
            ("1e300", None),
            ("18446744073709551616", None),
            ("\"7\"", None),
            ("null", None),
            ("[1]", None),
            ("{\"a\": {}}", None),
        ] {
            let told: TokenCount = serde_json::from_str(&format!("{{\"tokens\": {text}}}")).expect(text);
            assert_eq!(told.tokens, expected, "{text}");
        }
        assert_eq!(serde_json::from_str::<TokenCount>("{}").unwrap().tokens, None);
    }
}
