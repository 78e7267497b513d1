//! Bodies that are too long for memory, over plain HTTP: an archive on its way to or from the daemon.
//!
//! Owns: the request's bytes. Never: taking an answer apart (see `http_answer`), where its bytes come from or go to.

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use crate::client::{CONNECT_TIMEOUT, ClientError, ClientIo, Target};
use crate::dial::{DaemonConnection, Login, dial};
use crate::http_answer::{HttpAnswer, HttpBody, read_answer};
use crate::rpc::ErrorBody;

/// Bytes that are sent at once.
const PIECE_BYTES: usize = 128 * 1024;
/// The longest answer that is read as a whole.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("could not read the data to send")]
    Source {
        #[source]
        cause: std::io::Error,
    },
}

/// A body that comes piece by piece.
pub struct Download(HttpBody<Box<dyn ClientIo>>);

impl std::fmt::Debug for Download {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Download").finish_non_exhaustive()
    }
}

impl Download {
    /// The next piece; none at the end. A body that was cut is an error, never an end.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        self.0.next().await
    }
}

/// Asks for what is at a path, and waits until it begins to come.
pub async fn get(target: &Target, login: &Login, path: &str) -> Result<Download, ClientError> {
    let DaemonConnection { mut io, host, .. } = dialled(target, login).await?;
    let head = head(target, "GET", path, host, login, "")?;
    io.write_all(head.as_bytes()).await.map_err(|_| ClientError::Lost)?;
    answered(target, io).await.map(Download)
}

/// Sends everything from `body`, and waits for the answer. `sent` gets the total number of bytes so far.
pub async fn post(
    target: &Target,
    login: &Login,
    path: &str,
    body: &mut (impl AsyncRead + Unpin),
    mut sent: impl FnMut(u64),
) -> Result<Value, TransferError> {
    let DaemonConnection { io, host, .. } = dialled(target, login).await?;
    let fields = "content-type: application/x-tar\r\ntransfer-encoding: chunked\r\n";
    let head = head(target, "POST", path, host, login, fields)?;
    let (reader, mut writer) = tokio::io::split(io);
    let mut answer = std::pin::pin!(answered(target, reader));
    let pouring = async {
        // A daemon that refuses hangs up; its answer is what matters.
        if writer.write_all(head.as_bytes()).await.is_err() {
            return Ok(());
        }
        send_pieces(body, &mut writer, &mut sent).await
    };
    let body = tokio::select! {
        biased;
        poured = pouring => {
            poured.map_err(|cause| TransferError::Source { cause })?;
            answer.await?
        }
        // A peer that answers early does not want the rest.
        early = &mut answer => early?,
    };
    let text = body.whole(ANSWER_BYTES_MAX).await?;
    Ok(serde_json::from_slice(&text).map_err(|cause| ClientError::Garbled { cause })?)
}

async fn dialled<'t>(target: &'t Target, login: &Login) -> Result<DaemonConnection<'t>, ClientError> {
    let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
    match tokio::time::timeout(CONNECT_TIMEOUT, dial(target, login)).await {
        Ok(dialled) => dialled,
        Err(_) => Err(ClientError::NoDaemon { target: target.clone(), cause: late }),
    }
}

fn head(
    target: &Target,
    method: &str,
    path: &str,
    host: &str,
    login: &Login,
    fields: &str,
) -> Result<String, ClientError> {
    let bearer = login.bearer(target)?;
    // A line's end in it would begin another header.
    if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        let (target, detail) = (target.clone(), "the path cannot be sent".to_owned());
        return Err(ClientError::Handshake { target, status: None, body: None, detail });
    }
    Ok(format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: {bearer}\r\nconnection: close\r\n{fields}\r\n"
    ))
}

/// Sends a body in pieces. An error comes from reading the body. If the connection accepts no more data, the peer's
/// answer has the reason.
async fn send_pieces(
    body: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWriteExt + Unpin),
    sent: &mut impl FnMut(u64),
) -> std::io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut total = 0;
    loop {
        let read = body.read(&mut piece).await?;
        let framed = [format!("{read:x}\r\n").as_bytes(), &piece[..read], b"\r\n"].concat();
        if writer.write_all(&framed).await.is_err() || writer.flush().await.is_err() || read == 0 {
            return Ok(());
        }
        total += read as u64;
        sent(total);
    }
}

/// Reads the head of an answer; anything but a success is an error, with what it says.
async fn answered<R: AsyncRead + Unpin>(target: &Target, io: R) -> Result<HttpBody<R>, ClientError> {
    let HttpAnswer { status, status_line, body } = read_answer(io).await?;
    if status == Some(200) {
        return Ok(body);
    }
    let told = body.whole(ANSWER_BYTES_MAX).await.unwrap_or_default();
    let told = serde_json::from_slice::<Value>(&told).ok();
    let error = told.and_then(|told| serde_json::from_value::<ErrorBody>(told.get("error")?.clone()).ok());
    Err(match error {
        Some(error) => ClientError::Refused(Box::new(error)),
        None => ClientError::Handshake { target: target.clone(), status, body: None, detail: status_line },
    })
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test owns its tasks by their handles")]
mod tests {
    use super::*;

    fn target() -> Target {
        Target::Unix("/nowhere".into())
    }

    async fn heard(bytes: &[u8]) -> Result<Vec<u8>, ClientError> {
        answered(&target(), bytes).await?.whole(ANSWER_BYTES_MAX).await
    }

    #[tokio::test]
    async fn a_refusal_is_reported_with_the_daemons_own_words() {
        let body = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no image `x`","data":{"code":"image.not_found"}}}"#;
        let answer = format!("HTTP/1.1 404 Not Found\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        assert_eq!(heard(answer.as_bytes()).await.unwrap_err().code(), Some("image.not_found"));
        let other = heard(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nhm").await.unwrap_err();
        assert!(matches!(other, ClientError::Handshake { status: Some(502), .. }), "{other:?}");
    }

    #[tokio::test]
    async fn everything_is_sent_in_pieces_that_have_an_end() {
        let (mut ours, mut theirs) = tokio::io::duplex(64);
        let body = vec![b'x'; PIECE_BYTES + 1];
        let mut counts = Vec::new();
        let listener = tokio::spawn(async move {
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).await.expect("bytes");
            all
        });
        send_pieces(&mut body.as_slice(), &mut ours, &mut |sent| counts.push(sent)).await.unwrap();
        drop(ours);
        let all = listener.await.expect("a listener");
        let (first, rest) = (format!("{PIECE_BYTES:x}\r\n"), "1\r\nx\r\n0\r\n\r\n");
        assert!(all.starts_with(first.as_bytes()) && all.ends_with(rest.as_bytes()));
        assert_eq!(counts, [PIECE_BYTES as u64, PIECE_BYTES as u64 + 1]);
    }

    #[tokio::test]
    async fn a_token_or_a_path_that_would_begin_another_header_goes_nowhere() {
        for (token, path) in [("a\r\nb: c", "/x"), ("a", "/x HTTP/1.1\r\n")] {
            let refused = get(&target(), &Login::new(token), path).await;
            assert!(refused.is_err(), "{refused:?}");
            assert!(head(&target(), "GET", path, "h", &Login::new(token), "").is_err());
        }
    }
}
