//! One call over plain HTTP, for a client that makes a single request: one round trip.
//!
//! Owns: the request's bytes. Never: saying what is wrong with a connection;
//! that is found out by an ordinary one (see `client`).

use serde_json::Value;
use tokio::io::AsyncWriteExt;

use crate::client::{CONNECT_TIMEOUT, ClientError, READ_BYTES_MAX, Target};
use crate::dial::{DaemonConnection, Login, dial};
use crate::http_answer::read_answer;
use crate::rpc::{Request, Response};

/// Calls a method once, on a connection of its own.
///
/// A refusal by the method is [`ClientError::Refused`]. After any other error the call may have been done or not.
pub async fn post(target: &Target, login: &Login, method: &str, params: Value) -> Result<Value, ClientError> {
    let request = Request { jsonrpc: "2.0".into(), id: Value::from(1), method: method.to_owned(), params };
    let body = serde_json::to_string(&request).map_err(|cause| ClientError::Garbled { cause })?;
    let bearer = login.bearer(target)?;
    let exchange = async {
        let DaemonConnection { mut io, host, .. } = dial(target, login).await?;
        let length = body.len();
        let sent = format!(
            "POST /v1/rpc HTTP/1.1\r\nhost: {host}\r\nauthorization: {bearer}\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        io.write_all(sent.as_bytes()).await.map_err(|_| ClientError::Lost)?;
        read_answer(io).await?.body.whole(READ_BYTES_MAX).await
    };
    // Whether a daemon that takes longer lives is for an ordinary connection to find out.
    let body = tokio::time::timeout(CONNECT_TIMEOUT, exchange).await.unwrap_or(Err(ClientError::Lost))?;
    let answer: Response = serde_json::from_slice(&body).map_err(|cause| ClientError::Garbled { cause })?;
    match answer {
        // Who is refused at the door has no answer to the call.
        Response { id, .. } if id != request.id => Err(ClientError::Lost),
        Response { error: Some(error), .. } => Err(ClientError::Refused(Box::new(error))),
        Response { result, .. } => Ok(result.unwrap_or(Value::Null)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_that_would_begin_another_header_goes_nowhere() {
        let nowhere = Target::Unix("/nowhere".into());
        let refused = post(&nowhere, &Login::new("a\r\nb: c"), "info", Value::Null).await;
        assert!(matches!(refused, Err(ClientError::Handshake { .. })), "{refused:?}");
    }
}
