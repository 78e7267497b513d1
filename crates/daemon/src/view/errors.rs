//! Errors of the daemon in the shape of the API's errors. Inside they are types; codes are for clients.

use lodge_engine::Refusal;
use lodge_proto::ErrorBody;

use crate::compute::ComputeError;
use crate::images::ImageError;
use crate::jobs::JobOutputError;
use crate::room::RoomRefusal;
use crate::shell::{AskError, ShuttingDown};

/// Lets `?` turn errors into the API's shape. Each has a message, a `code()`, a `cause()` and a `hint()`.
macro_rules! client_errors {
    ($($error:ty),+ $(,)?) => {
        $(impl From<$error> for lodge_proto::ErrorBody {
            fn from(error: $error) -> lodge_proto::ErrorBody {
                $crate::view::error_body(error.code(), error.to_string(), error.cause(), error.hint())
            }
        })+
    };
}
pub(crate) use client_errors;

client_errors!(AskError, ComputeError, ImageError, JobOutputError, RoomRefusal, ShuttingDown);

pub(crate) fn error_body(
    code: &str,
    message: String,
    cause: Option<String>,
    hint: Option<String>,
) -> ErrorBody {
    let mut body = ErrorBody::new(code, message);
    (body.data.cause, body.data.hint) = (cause, hint);
    body
}

/// A refusal of the engine in the shape of the API's errors.
pub fn refused(refusal: impl Into<Refusal>) -> ErrorBody {
    let refusal = refusal.into();
    error_body(refusal.code(), refusal.to_string(), refusal.cause().map(str::to_owned), refusal.hint())
}

/// An error as a model reads it in the result of its call.
pub fn for_model(error: impl Into<ErrorBody>) -> String {
    let error = error.into();
    match error.data.hint {
        Some(hint) => format!("{}\n{hint}", error.message),
        None => error.message,
    }
}
