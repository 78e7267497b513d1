//! Which part of a message carried which thought signature.

use serde::{Deserialize, Serialize};

use crate::dialect::json;
use crate::request::ToolCall;

/// One part. Text and calls are in the message already, so only their places are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StoredPart {
    Text { bytes: usize, signature: Option<String> },
    Call { signature: Option<String> },
}

impl StoredPart {
    fn is_signed(&self) -> bool {
        match self {
            Self::Text { signature, .. } | Self::Call { signature } => signature.is_some(),
        }
    }
}

/// What is kept of an answer: nothing, unless a part of it was signed.
pub(crate) fn blocks(places: &[StoredPart]) -> Vec<Vec<u8>> {
    if places.iter().any(StoredPart::is_signed) { places.iter().map(json).collect() } else { Vec::new() }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutgoingPart<'a> {
    pub(crate) what: OutgoingData<'a>,
    pub(crate) signature: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutgoingData<'a> {
    Text(&'a str),
    Call(&'a ToolCall),
}

/// The message's parts as they came; unsigned, if what is kept does not fit the message.
pub(crate) fn pieces<'a>(blocks: &[Vec<u8>], text: &'a str, calls: &'a [ToolCall]) -> Vec<OutgoingPart<'a>> {
    let places: Vec<StoredPart> =
        blocks.iter().filter_map(|block| serde_json::from_slice(block).ok()).collect();
    laid_out(places, text, calls).unwrap_or_else(|| {
        let words = Some(OutgoingData::Text(text)).filter(|_| !text.is_empty());
        let calls = calls.iter().map(OutgoingData::Call);
        words.into_iter().chain(calls).map(|what| OutgoingPart { what, signature: None }).collect()
    })
}

fn laid_out<'a>(
    places: Vec<StoredPart>,
    text: &'a str,
    calls: &'a [ToolCall],
) -> Option<Vec<OutgoingPart<'a>>> {
    let (mut rest, mut left) = (text, calls.iter());
    let mut pieces = Vec::with_capacity(places.len());
    for place in places {
        pieces.push(match place {
            StoredPart::Text { bytes, signature } => {
                let (piece, after) = rest.split_at_checked(bytes)?;
                rest = after;
                OutgoingPart { what: OutgoingData::Text(piece), signature }
            }
            StoredPart::Call { signature } => {
                OutgoingPart { what: OutgoingData::Call(left.next()?), signature }
            }
        });
    }
    (rest.is_empty() && left.next().is_none()).then_some(pieces)
}
