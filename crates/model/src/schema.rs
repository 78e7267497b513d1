//! A JSON schema that an answer must fit, and the check whether it does.
//!
//! The common part of JSON Schema 2020-12. A schema that uses anything else is refused when it is given, so that no
//! answer passes unchecked. `format` describes and does not check, as the standard has it.

mod check;
mod expansion;
mod shape;

use std::fmt;

use serde_json::Value;

pub const SCHEMA_BYTES_MAX: usize = 256 << 10;
/// How deep a schema may be nested.
const DEPTH_MAX: usize = 64;
/// Subschemas that may apply to one value, each reference followed: nested `allOf` and `$ref` multiply them.
const SUBSCHEMAS_MAX: usize = 10_000;
/// How far references and combinations may lead from one subschema to the next before they reach another value.
const CHAIN_MAX: usize = 64;
/// Bytes that are kept of the place of a mistake.
const PLACE_BYTES_MAX: usize = 1024;
/// The most reasons that are reported; an answer with more is entirely wrong.
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
    #[error("{place} of the schema: `{target}` is not defined")]
    Dangling { place: Pointer, target: String },
    #[error("{place} of the schema: more than {SUBSCHEMAS_MAX} subschemas apply to one value")]
    TooManySubschemas { place: Pointer },
    #[error(
        "{place} of the schema: references and combinations lead in a circle or more than {CHAIN_MAX} steps far"
    )]
    TooLongChain { place: Pointer },
}

impl SchemaError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unsupported { .. } => Some(format!("supported are: {}", shape::KEYWORDS.join(", "))),
            Self::Dangling { .. } => Some("write `#/$defs/NAME`".to_owned()),
            Self::TooManySubschemas { .. } | Self::TooLongChain { .. } => {
                Some("use fewer `allOf`, `anyOf`, `oneOf` and `$ref` inside each other".to_owned())
            }
            Self::NotJson { .. } | Self::TooLarge | Self::TooDeep { .. } | Self::Malformed { .. } => None,
        }
    }
}

/// Why an answer does not fit, in words that a model can act on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaMismatch {
    pub reasons: Vec<String>,
    /// The check took too long and was given up: another answer would not help.
    pub gave_up: bool,
}

impl fmt::Display for SchemaMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reasons.join("; "))
    }
}

/// A place in a document, as a JSON pointer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pointer(String);

impl Pointer {
    /// A place that is long already is not made longer: its end is not worth a copy for every value in it.
    fn then(&self, step: &str) -> Self {
        if self.0.len() >= PLACE_BYTES_MAX {
            return self.clone();
        }
        let step = &step[..step.floor_char_boundary(PLACE_BYTES_MAX)];
        Self(format!("{}/{}", self.0, step.replace('~', "~0").replace('/', "~1")))
    }

    fn at(&self, index: usize) -> Self {
        self.then(&index.to_string())
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
        // The model gets it with every call.
        if root.to_string().len() > SCHEMA_BYTES_MAX {
            return Err(SchemaError::TooLarge);
        }
        shape::check(&root)?;
        expansion::check(&root)?;
        Ok(Self { root })
    }

    pub fn value(&self) -> &Value {
        &self.root
    }

    /// The answer as JSON, if it is JSON and fits.
    pub fn check(&self, answer: &str) -> Result<Value, SchemaMismatch> {
        let value = serde_json::from_str(answer).map_err(|error| SchemaMismatch {
            reasons: vec![format!("it is not JSON, or not JSON alone ({error})")],
            gave_up: false,
        })?;
        match check::misfit(&self.root, &value) {
            None => Ok(value),
            Some(misfit) => Err(misfit),
        }
    }
}

#[cfg(test)]
#[path = "schema/tests.rs"]
mod tests;
