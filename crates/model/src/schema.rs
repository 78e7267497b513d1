//! A JSON schema that an answer must fit, and the check whether it does.
//!
//! The common part of JSON Schema 2020-12. A schema that uses anything else is refused when it is given, so that no
//! answer passes unchecked. `format` describes and does not check, as the standard has it.

mod check;
mod shape;

use std::fmt;

use serde_json::Value;

pub const SCHEMA_BYTES_MAX: usize = 256 << 10;
/// How deep a schema may be nested.
const DEPTH_MAX: usize = 64;
/// Reasons that are told; beyond these an answer is wrong all over.
const REASONS_MAX: usize = 8;

/// A schema that this release can check.
#[derive(Debug, Clone, PartialEq)]
pub struct Schema {
    root: Value,
}

/// Why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    #[error("the schema is not JSON: {why}")]
    NotJson { why: String },
    #[error("the schema is larger than {SCHEMA_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the schema is nested deeper than {DEPTH_MAX} levels at {place}")]
    TooDeep { place: Pointer },
    #[error("{place} of the schema: {expected}")]
    Malformed { place: Pointer, expected: &'static str },
    #[error("{place} of the schema: the keyword `{keyword}` is not supported")]
    Unsupported { place: Pointer, keyword: String },
    #[error("{place} of the schema: `{target}` is not in it")]
    Dangling { place: Pointer, target: String },
}

impl SchemaError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unsupported { .. } => Some(format!("supported are: {}", shape::KEYWORDS.join(", "))),
            Self::Dangling { .. } => Some("write `#/$defs/NAME`".to_owned()),
            Self::NotJson { .. } | Self::TooLarge | Self::TooDeep { .. } | Self::Malformed { .. } => None,
        }
    }
}

/// Why an answer does not fit, in words that a model can act on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    pub reasons: Vec<String>,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reasons.join("; "))
    }
}

/// A place in a document, as a JSON pointer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pointer(String);

impl Pointer {
    fn then(&self, step: impl fmt::Display) -> Self {
        let step = step.to_string().replace('~', "~0").replace('/', "~1");
        Self(format!("{}/{step}", self.0))
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("the top") } else { f.write_str(&self.0) }
    }
}

impl Schema {
    /// Reads a schema and refuses one that could not be checked.
    pub fn parse(text: &str) -> Result<Self, SchemaError> {
        if text.len() > SCHEMA_BYTES_MAX {
            return Err(SchemaError::TooLarge);
        }
        let root =
            serde_json::from_str(text).map_err(|error| SchemaError::NotJson { why: error.to_string() })?;
        Self::new(root)
    }

    pub fn new(root: Value) -> Result<Self, SchemaError> {
        // It is told to the model with every call, whoever read it.
        if root.to_string().len() > SCHEMA_BYTES_MAX {
            return Err(SchemaError::TooLarge);
        }
        shape::check(&root)?;
        Ok(Self { root })
    }

    pub fn value(&self) -> &Value {
        &self.root
    }

    /// The answer as JSON, if it is JSON and fits.
    pub fn check(&self, answer: &str) -> Result<Value, Misfit> {
        let value = serde_json::from_str(answer).map_err(|error| Misfit {
            reasons: vec![format!("it is not JSON, or not JSON alone ({error})")],
        })?;
        let reasons = check::reasons(&self.root, &value);
        if reasons.is_empty() { Ok(value) } else { Err(Misfit { reasons }) }
    }
}

#[cfg(test)]
#[path = "schema/tests.rs"]
mod tests;
