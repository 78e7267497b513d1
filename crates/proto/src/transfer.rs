//! Bodies that are too long for memory, over plain HTTP: an archive on its way to or from the daemon.
//!
//! Owns: the request's bytes, taking a body apart piece by piece, noticing one that was cut. Never: where its bytes come
//! from or go to.

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use crate::client::{CONNECT_TIMEOUT, ClientError, Io, Target};
use crate::dial::{DaemonConnection, Login, dial};
use crate::rpc::ErrorBody;

/// Bytes that are read, or sent, at once.
const PIECE_BYTES: usize = 128 * 1024;
/// The daemon's own heads are a few lines.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// A line in front of a piece holds a number.
const LINE_BYTES_MAX: usize = 256;
/// The longest answer that is read as a whole.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
const HEAD_END: &[u8] = b"\r\n\r\n";

#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("what is to be sent could not be read")]
    Source {
        #[source]
        cause: std::io::Error,
    },
}

/// A body that comes piece by piece.
pub struct Download(Body<Box<dyn Io>>);

impl std::fmt::Debug for Download {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Download").field("left", &self.0.left).finish_non_exhaustive()
    }
}

impl Download {
    /// The next piece; none at the end. A body that was cut is an error, never an end.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        self.0.next().await
    }
}

struct Body<R> {
    io: R,
    /// Come, and not given out.
    bytes: Vec<u8>,
    left: Left,
}

/// How much is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Bytes(u64),
    /// So much of this piece, and then another, until one of nothing.
    Pieces(u64),
    Nothing,
}

/// Asks for what is at a path, and waits until it begins to come.
pub async fn get(target: &Target, login: &Login, path: &str) -> Result<Download, ClientError> {
    let DaemonConnection { mut io, host, .. } = dialled(target, login).await?;
    let head = head(target, "GET", path, host, login, "")?;
    io.write_all(head.as_bytes()).await.map_err(|_| ClientError::Lost)?;
    answered(target, io).await.map(Download)
}

/// Sends everything that is read from `body`, and waits for the answer. `sent` hears how many bytes went, all together.
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
        pour(body, &mut writer, &mut sent).await
    };
    let body = tokio::select! {
        biased;
        poured = pouring => {
            poured.map_err(|cause| TransferError::Source { cause })?;
            answer.await?
        }
        // Whoever answers before the end does not want the rest.
        early = &mut answer => early?,
    };
    let text = body.whole().await?;
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

/// Sends a body in pieces. An error is one of reading it; a connection that takes no more is told by its answer.
async fn pour(
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
async fn answered<R: AsyncRead + Unpin>(target: &Target, mut io: R) -> Result<Body<R>, ClientError> {
    let mut bytes = Vec::with_capacity(PIECE_BYTES);
    let head_len = loop {
        let before = bytes.len();
        if !matches!(io.read_buf(&mut bytes).await, Ok(1..)) {
            return Err(ClientError::Lost);
        }
        // The end may stand across two reads.
        let from = before.saturating_sub(HEAD_END.len());
        if let Some(at) = bytes[from..].windows(HEAD_END.len()).position(|window| window == HEAD_END) {
            break from + at + HEAD_END.len();
        }
        if bytes.len() > HEAD_BYTES_MAX {
            return Err(ClientError::Lost);
        }
    };
    let rest = bytes.split_off(head_len);
    let head = String::from_utf8_lossy(&bytes);
    let status: Option<u16> = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let left = left_of(&head).ok_or(ClientError::Lost)?;
    let body = Body { io, bytes: rest, left };
    if status == Some(200) {
        return Ok(body);
    }
    let told = body.whole().await.unwrap_or_default();
    let told = serde_json::from_slice::<Value>(&told).ok();
    let error = told.and_then(|told| serde_json::from_value::<ErrorBody>(told.get("error")?.clone()).ok());
    Err(match error {
        Some(error) => ClientError::Refused(Box::new(error)),
        None => ClientError::Handshake {
            target: target.clone(),
            status,
            body: None,
            detail: head.lines().next().unwrap_or_default().to_owned(),
        },
    })
}

/// None: its length is not told in a way that we know.
fn left_of(head: &str) -> Option<Left> {
    let fields = || head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let field =
        |wanted: &str| fields().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, v)| v.trim());
    match (field("transfer-encoding"), field("content-length")) {
        (Some(coding), _) => coding.eq_ignore_ascii_case("chunked").then_some(Left::Pieces(0)),
        (None, Some(length)) => length.parse().ok().map(Left::Bytes),
        (None, None) => None,
    }
}

impl<R: AsyncRead + Unpin> Body<R> {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        match self.left {
            Left::Nothing | Left::Bytes(0) => Ok(None),
            Left::Bytes(left) => {
                let piece = self.some(left).await?;
                self.left = Left::Bytes(left - piece.len() as u64);
                Ok(Some(piece))
            }
            Left::Pieces(0) => match self.begin_piece().await? {
                0 => {
                    self.left = Left::Nothing;
                    Ok(None)
                }
                left => self.of_piece(left).await.map(Some),
            },
            Left::Pieces(left) => self.of_piece(left).await.map(Some),
        }
    }

    async fn of_piece(&mut self, left: u64) -> Result<Vec<u8>, ClientError> {
        let piece = self.some(left).await?;
        self.left = Left::Pieces(left - piece.len() as u64);
        if self.left == Left::Pieces(0) && !self.line().await?.is_empty() {
            return Err(ClientError::Lost);
        }
        Ok(piece)
    }

    /// How long the next piece is; after the last one what follows is read away.
    async fn begin_piece(&mut self) -> Result<u64, ClientError> {
        let line = self.line().await?;
        let number = line.split(';').next().unwrap_or_default().trim();
        let length = u64::from_str_radix(number, 16).map_err(|_| ClientError::Lost)?;
        while length == 0 && !self.line().await?.is_empty() {}
        Ok(length)
    }

    /// At least one byte, and at most so many.
    async fn some(&mut self, most: u64) -> Result<Vec<u8>, ClientError> {
        if self.bytes.is_empty() {
            self.more().await?;
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(self.bytes.len());
        let rest = self.bytes.split_off(most);
        Ok(std::mem::replace(&mut self.bytes, rest))
    }

    async fn line(&mut self) -> Result<String, ClientError> {
        loop {
            if let Some(at) = self.bytes.windows(2).position(|window| window == b"\r\n") {
                let rest = self.bytes.split_off(at + 2);
                let line = std::mem::replace(&mut self.bytes, rest);
                return Ok(String::from_utf8_lossy(&line[..at]).into_owned());
            }
            if self.bytes.len() > LINE_BYTES_MAX {
                return Err(ClientError::Lost);
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> Result<(), ClientError> {
        self.bytes.reserve(PIECE_BYTES);
        match self.io.read_buf(&mut self.bytes).await {
            Ok(1..) => Ok(()),
            Ok(0) | Err(_) => Err(ClientError::Lost),
        }
    }

    async fn whole(mut self) -> Result<Vec<u8>, ClientError> {
        let mut whole = Vec::new();
        while let Some(piece) = self.next().await? {
            whole.extend(piece);
            if whole.len() > ANSWER_BYTES_MAX {
                return Err(ClientError::Lost);
            }
        }
        Ok(whole)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test owns its tasks by their handles")]
mod tests {
    use super::*;

    fn target() -> Target {
        Target::Unix("/nowhere".into())
    }

    /// What is understood of these bytes, whatever pieces they come in.
    async fn heard(bytes: &[u8]) -> Result<Vec<u8>, ClientError> {
        let mut found = Vec::new();
        for step in [1, 3, bytes.len().max(1)] {
            let (mut theirs, ours) = tokio::io::duplex(step);
            let bytes = bytes.to_vec();
            // Whoever has heard enough hangs up.
            let speaker = tokio::spawn(async move { drop(theirs.write_all(&bytes).await) });
            let whole = async { answered(&target(), ours).await?.whole().await }.await;
            speaker.await.expect("a speaker");
            found.push(whole);
        }
        let words = |found: &Result<Vec<u8>, ClientError>| format!("{found:?}");
        assert!(found.iter().all(|one| words(one) == words(&found[0])), "{found:?}");
        found.remove(0)
    }

    #[tokio::test]
    async fn a_body_is_whole_in_either_form_and_an_error_when_it_is_cut() {
        let pieces = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nz: a\r\n\r\n";
        assert_eq!(heard(pieces.as_bytes()).await.unwrap(), b"hello world");
        let length = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(heard(length.as_bytes()).await.unwrap(), b"hello");
        for cut in 0..pieces.len() {
            assert!(heard(&pieces.as_bytes()[..cut]).await.is_err(), "{:?}", &pieces[..cut]);
        }
        for cut in 0..length.len() {
            assert!(heard(&length.as_bytes()[..cut]).await.is_err(), "{:?}", &length[..cut]);
        }
    }

    #[tokio::test]
    async fn what_makes_no_sense_is_not_read_for_ever() {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        for body in ["x\r\n", "-1\r\n", "5\r\nhello5\r\n", &"1".repeat(1000)] {
            assert!(heard(format!("{head}{body}").as_bytes()).await.is_err(), "{body}");
        }
        assert!(heard(b"HTTP/1.1 200 OK\r\n\r\nhello").await.is_err());
        assert!(
            heard(format!("HTTP/1.1 200 OK\r\n{}", "x: y\r\n".repeat(HEAD_BYTES_MAX)).as_bytes())
                .await
                .is_err()
        );
    }

    #[tokio::test]
    async fn a_refusal_is_told_with_the_daemons_own_words() {
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
        pour(&mut body.as_slice(), &mut ours, &mut |sent| counts.push(sent)).await.unwrap();
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
