//! One call over plain HTTP, for whoever asks once and is done: one way there, one way back.
//!
//! Owns: the request's bytes and the little of an answer that is needed. Never: saying what is wrong with a connection;
//! that is found out by an ordinary one (see `client`).

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::{CONNECT_TIMEOUT, ClientError, READ_BYTES_MAX, Target};
use crate::dial::{DaemonConnection, Login, dial};
use crate::rpc::{Request, Response};

/// The daemon's own heads are a few lines.
const HEAD_BYTES_MAX: usize = 16 * 1024;
const HEAD_END: &[u8] = b"\r\n\r\n";

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
        answer(&mut io, READ_BYTES_MAX).await.map(|(_, body)| body).ok_or(ClientError::Lost)
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

/// The status and the body of an answer. None: it was cut off, is too long, or is not one of ours.
pub(crate) async fn answer(io: &mut (impl AsyncReadExt + Unpin), bytes_max: usize) -> Option<(u16, Vec<u8>)> {
    let mut bytes = Vec::with_capacity(4096);
    let head_len = loop {
        if let Some(at) = bytes.windows(HEAD_END.len()).position(|window| window == HEAD_END) {
            break at + HEAD_END.len();
        }
        if bytes.len() > HEAD_BYTES_MAX || io.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = std::str::from_utf8(&bytes[..head_len]).ok()?;
    let (status, length) = (status(head)?, content_length(head)?);
    let mut body = bytes.split_off(head_len);
    if length > bytes_max || body.len() > length {
        return None;
    }
    let come = body.len();
    body.resize(length, 0);
    io.read_exact(&mut body[come..]).await.ok()?;
    Some((status, body))
}

fn status(head: &str) -> Option<u16> {
    head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

fn content_length(head: &str) -> Option<usize> {
    let fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let mut lengths = fields.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    lengths.next()?.1.trim().parse().ok()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test owns its tasks by their handles")]
mod tests {
    use super::*;

    async fn heard(parts: &[&str]) -> Option<Vec<u8>> {
        let (mut ours, mut theirs) = tokio::io::duplex(64);
        let parts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
        let speaker = tokio::spawn(async move {
            for part in parts {
                // Whoever has heard enough hangs up.
                drop(theirs.write_all(part.as_bytes()).await);
            }
        });
        let heard = answer(&mut ours, READ_BYTES_MAX).await.map(|(_, body)| body);
        drop(ours);
        speaker.await.expect("a speaker");
        heard
    }

    #[tokio::test]
    async fn an_answer_is_whole_however_it_is_cut_and_none_when_it_breaks_off() {
        let head = "HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 7\r\n\r\n";
        assert_eq!(heard(&[head, "{\"a\":1}"]).await.as_deref(), Some(&b"{\"a\":1}"[..]));
        assert_eq!(
            heard(&[&head[..20], &head[20..], "{\"a", "\":1}"]).await.as_deref(),
            Some(&b"{\"a\":1}"[..])
        );
        assert_eq!(heard(&[head, "{\"a"]).await, None);
        assert_eq!(heard(&[&head[..30]]).await, None);
        assert_eq!(heard(&["HTTP/1.1 200 OK\r\n\r\n", "{}"]).await, None, "of no known length");
    }

    #[tokio::test]
    async fn a_head_without_an_end_is_not_read_for_ever() {
        let line = "x: y\r\n".repeat(HEAD_BYTES_MAX);
        assert_eq!(heard(&["HTTP/1.1 200 OK\r\n", &line]).await, None);
    }

    #[tokio::test]
    async fn a_token_that_would_begin_another_header_goes_nowhere() {
        let nowhere = Target::Unix("/nowhere".into());
        let refused = post(&nowhere, &Login::new("a\r\nb: c"), "info", Value::Null).await;
        assert!(matches!(refused, Err(ClientError::Handshake { .. })), "{refused:?}");
    }
}
