//! What an answer's end means for whoever asked, in every dialect alike.

use crate::error::{CallError, Cut};
use crate::provider::{Kind, Provider};
use crate::request::{Answer, Request, Stop};

/// Told to people and, with the next call, to the model.
const CUT_SHORT: &str = "\n\n[the answer ends here: it reached its limit of tokens]";

/// The answer, if it is one that can be worked with.
pub(crate) fn settle(
    provider: &Provider,
    request: &Request,
    mut answer: Answer,
    on_text: &mut (dyn FnMut(&str) + Send),
) -> Result<Answer, CallError> {
    let (name, model) = (provider.name.clone(), request.model.clone());
    let (says_nothing, calls_nothing) = (answer.text.is_empty(), answer.calls.is_empty());
    match answer.stop {
        Stop::Filtered => {
            let words = "the rest was withheld by a content filter".to_owned();
            Err(CallError::Refused { provider: name, words })
        }
        // The last call may have lost its end, and which one that is depends on the server.
        Stop::Length if !calls_nothing => Err(CallError::Length { model, place: Cut::InCall }),
        Stop::Length if says_nothing => Err(CallError::Length { model, place: Cut::BeforeText }),
        // A note would only make half a document look like a whole one that is wrong.
        Stop::Length if request.schema.is_some() => Ok(answer),
        Stop::Length => {
            on_text(CUT_SHORT);
            answer.text.push_str(CUT_SHORT);
            Ok(answer)
        }
        // A script that says nothing means it.
        Stop::End | Stop::ToolCalls | Stop::Unrecognised
            if says_nothing && calls_nothing && provider.kind != Kind::Script =>
        {
            Err(CallError::Empty { provider: name, model })
        }
        Stop::End | Stop::ToolCalls | Stop::Unrecognised => Ok(answer),
    }
}
