//! What servers of the dialect add about their models' thoughts: kept as it came, sent back where it came from.
//!
//! Providers use three fields: `reasoning_content` (a text), `reasoning_details` (blocks, some of them signed) and
//! `extra_content` of a tool call. A plain `reasoning` is for people, and is never sent back.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// All of an answer's thoughts; one opaque block.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Thoughts {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) reasoning_content: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) reasoning_details: Vec<Value>,
    /// By the place of the call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    extra_content: Vec<Value>,
}

impl Thoughts {
    pub(crate) fn read(blocks: &[Vec<u8>]) -> Self {
        let read = |block: &Vec<u8>| serde_json::from_slice(block).ok();
        blocks.first().and_then(read).unwrap_or_default()
    }

    pub(crate) fn write(&self) -> Vec<Vec<u8>> {
        if *self == Self::default() { Vec::new() } else { vec![crate::dialect::json(self)] }
    }

    /// Adds a piece of a block. Pieces of one block share its index and its type.
    pub(crate) fn detail(&mut self, piece: Value) {
        let Value::Object(piece) = piece else { return self.reasoning_details.push(piece) };
        let same = |block: &&mut Value| {
            piece.get("index").is_some_and(|index| block.get("index") == Some(index))
                && block.get("type") == piece.get("type")
        };
        match self.reasoning_details.last_mut().filter(same) {
            Some(Value::Object(block)) => merge(block, piece),
            Some(_) | None => self.reasoning_details.push(Value::Object(piece)),
        }
    }

    pub(crate) fn extra(&mut self, place: usize, extra: Value) {
        if self.extra_content.len() <= place {
            self.extra_content.resize(place + 1, Value::Null);
        }
        self.extra_content[place] = extra;
    }

    pub(crate) fn extra_of(&self, place: usize) -> Option<&Value> {
        self.extra_content.get(place).filter(|extra| !extra.is_null())
    }
}

/// Texts grow; every other field arrives once.
fn merge(block: &mut Map<String, Value>, piece: Map<String, Value>) {
    for (key, value) in piece {
        let grows = matches!(key.as_str(), "text" | "summary" | "data");
        match (block.get_mut(&key), value) {
            (Some(Value::String(before)), Value::String(more)) if grows => before.push_str(&more),
            (Some(_), Value::Null) => {}
            (_, value) => {
                block.insert(key, value);
            }
        }
    }
}
