//! The positions of thinking blocks among the text and the calls of a message.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::dialect::json;
use crate::request::ToolCall;

/// One content block. Text and calls are in the message already, so only their places are kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StoredBlock {
    /// A thinking block, whole.
    Thought(Value),
    /// This many bytes of the text.
    Text(usize),
    /// The next call.
    Call,
}

/// What is kept of an answer: nothing, unless there were thoughts in it.
pub(crate) fn blocks(places: &[StoredBlock]) -> Vec<Vec<u8>> {
    match places.iter().any(|place| matches!(place, StoredBlock::Thought(_))) {
        true => places.iter().map(json).collect(),
        false => Vec::new(),
    }
}

/// A piece of a message to send.
#[derive(Debug, PartialEq)]
pub(crate) enum OutgoingBlock<'a> {
    Thought(Value),
    Text(&'a str),
    Call(&'a ToolCall),
}

/// The message's content in the order it was written. If what is kept does not fit the message, thoughts come
/// first, as they do in most answers.
pub(crate) fn pieces<'a>(blocks: &[Vec<u8>], text: &'a str, calls: &'a [ToolCall]) -> Vec<OutgoingBlock<'a>> {
    let places: Vec<StoredBlock> =
        blocks.iter().filter_map(|block| serde_json::from_slice(block).ok()).collect();
    if let Some(pieces) = laid_out(&places, text, calls) {
        return pieces;
    }
    let thoughts = places.into_iter().filter_map(|place| match place {
        StoredBlock::Thought(thought) => Some(OutgoingBlock::Thought(thought)),
        StoredBlock::Text(_) | StoredBlock::Call => None,
    });
    thoughts.chain([OutgoingBlock::Text(text)]).chain(calls.iter().map(OutgoingBlock::Call)).collect()
}

fn laid_out<'a>(
    places: &[StoredBlock],
    text: &'a str,
    calls: &'a [ToolCall],
) -> Option<Vec<OutgoingBlock<'a>>> {
    let (mut rest, mut left) = (text, calls.iter());
    let mut pieces = Vec::with_capacity(places.len());
    for place in places {
        pieces.push(match place {
            StoredBlock::Thought(thought) => OutgoingBlock::Thought(thought.clone()),
            StoredBlock::Text(bytes) => {
                let (piece, after) = rest.split_at_checked(*bytes)?;
                rest = after;
                OutgoingBlock::Text(piece)
            }
            StoredBlock::Call => OutgoingBlock::Call(left.next()?),
        });
    }
    (rest.is_empty() && left.next().is_none()).then_some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str) -> ToolCall {
        ToolCall { id: id.into(), name: "n".into(), arguments: String::new() }
    }

    #[test]
    fn a_message_is_laid_out_as_it_came_or_with_its_thoughts_first() {
        let thought = Value::from("hm");
        let places = [
            StoredBlock::Text(2),
            StoredBlock::Thought(thought.clone()),
            StoredBlock::Call,
            StoredBlock::Text(1),
            StoredBlock::Call,
        ];
        let kept = blocks(&places);
        let calls = [call("a"), call("b")];
        let pieces_of = |text, calls| pieces(&kept, text, calls);
        assert_eq!(
            pieces_of("éx", &calls),
            [
                OutgoingBlock::Text("é"),
                OutgoingBlock::Thought(thought.clone()),
                OutgoingBlock::Call(&calls[0]),
                OutgoingBlock::Text("x"),
                OutgoingBlock::Call(&calls[1])
            ]
        );
        for (text, calls) in [("éxy", &calls[..]), ("éx", &calls[..1]), ("xéy", &calls[..])] {
            let pieces = pieces_of(text, calls);
            assert_eq!(
                pieces[..2],
                [OutgoingBlock::Thought(thought.clone()), OutgoingBlock::Text(text)],
                "{text}"
            );
            assert_eq!(pieces.len(), 2 + calls.len());
        }
        assert!(
            blocks(&[StoredBlock::Text(1), StoredBlock::Call]).is_empty(),
            "without thoughts nothing is kept"
        );
        assert_eq!(pieces(&[], "x", &[]), [OutgoingBlock::Text("x")]);
    }
}
