//! What the end of an answer means for the caller, for all protocols.

use crate::error::{CallError, TokenLimitCut};
use crate::provider::{Provider, ProviderKind};
use crate::request::{CallAnswer, ModelRequest, StopReason};

/// Shown to people and, with the next call, to the model.
const CUT_SHORT: &str = "\n\n[the answer ends here: it reached its limit of tokens]";

/// The answer, if it is one that can be worked with.
pub(crate) fn finish_answer(
    provider: &Provider,
    request: &ModelRequest,
    mut answer: CallAnswer,
    on_text: &mut (dyn FnMut(&str) + Send),
) -> Result<CallAnswer, CallError> {
    let (name, model) = (provider.name.clone(), request.model.clone());
    let (says_nothing, calls_nothing) = (answer.text.is_empty(), answer.calls.is_empty());
    match answer.stop {
        StopReason::Filtered => {
            let words = "the rest was withheld by a content filter".to_owned();
            Err(CallError::Refused { provider: name, words })
        }
        // The last call may have lost its end, and which one that is depends on the server.
        StopReason::Length if !calls_nothing => {
            Err(CallError::Length { model, place: TokenLimitCut::InCall })
        }
        StopReason::Length if says_nothing => {
            Err(CallError::Length { model, place: TokenLimitCut::BeforeText })
        }
        // A note would only make half a document look like a whole one that is wrong.
        StopReason::Length if request.schema.is_some() => Ok(answer),
        StopReason::Length => {
            on_text(CUT_SHORT);
            answer.text.push_str(CUT_SHORT);
            Ok(answer)
        }
        // A script that says nothing means it.
        StopReason::End | StopReason::ToolCalls | StopReason::Unrecognised
            if says_nothing && calls_nothing && provider.kind != ProviderKind::Script =>
        {
            Err(CallError::Empty { provider: name, model })
        }
        StopReason::End | StopReason::ToolCalls | StopReason::Unrecognised => Ok(answer),
    }
}
