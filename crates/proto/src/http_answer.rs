//! An answer of the daemon over HTTP, taken apart piece by piece.
//!
//! Owns: finding the end of a head and of a body, noticing one that was cut. Never: what the answer means, nor where its
//! bytes go.

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::client::ClientError;

/// Bytes that are read at once.
const PIECE_BYTES: usize = 128 * 1024;
/// The daemon's own heads are a few lines.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// A line in front of a piece holds a number.
const LINE_BYTES_MAX: usize = 256;
const HEAD_END: &[u8] = b"\r\n\r\n";

/// An answer whose head has come.
pub(crate) struct HttpAnswer<R> {
    pub(crate) status: Option<u16>,
    /// As it was sent.
    pub(crate) status_line: String,
    pub(crate) body: HttpBody<R>,
}

/// A body that comes piece by piece.
pub(crate) struct HttpBody<R> {
    io: R,
    /// Come, and not given out.
    bytes: Vec<u8>,
    left: BytesLeft,
}

/// How much is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BytesLeft {
    Bytes(u64),
    /// So much of this piece, and then another, until one of nothing.
    Pieces(u64),
    Nothing,
}

/// Reads the head of an answer. One that is cut, too long, or not one of ours is a lost connection.
pub(crate) async fn read_answer<R: AsyncRead + Unpin>(mut io: R) -> Result<HttpAnswer<R>, ClientError> {
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
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status_line = head.lines().next().unwrap_or_default().to_owned();
    let left = bytes_left(&head).ok_or(ClientError::Lost)?;
    Ok(HttpAnswer { status, status_line, body: HttpBody { io, bytes: rest, left } })
}

/// None: the length has an unknown form.
fn bytes_left(head: &str) -> Option<BytesLeft> {
    let fields = || head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let field =
        |wanted: &str| fields().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, v)| v.trim());
    match (field("transfer-encoding"), field("content-length")) {
        (Some(coding), _) => coding.eq_ignore_ascii_case("chunked").then_some(BytesLeft::Pieces(0)),
        (None, Some(length)) => length.parse().ok().map(BytesLeft::Bytes),
        (None, None) => None,
    }
}

impl<R: AsyncRead + Unpin> HttpBody<R> {
    /// The next piece; none at the end. A body that was cut is an error, never an end.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        match self.left {
            BytesLeft::Nothing | BytesLeft::Bytes(0) => Ok(None),
            BytesLeft::Bytes(left) => {
                let piece = self.some(left).await?;
                self.left = BytesLeft::Bytes(left - piece.len() as u64);
                Ok(Some(piece))
            }
            BytesLeft::Pieces(0) => match self.begin_piece().await? {
                0 => {
                    self.left = BytesLeft::Nothing;
                    Ok(None)
                }
                left => self.of_piece(left).await.map(Some),
            },
            BytesLeft::Pieces(left) => self.of_piece(left).await.map(Some),
        }
    }

    async fn of_piece(&mut self, left: u64) -> Result<Vec<u8>, ClientError> {
        let piece = self.some(left).await?;
        self.left = BytesLeft::Pieces(left - piece.len() as u64);
        if self.left == BytesLeft::Pieces(0) && !self.line().await?.is_empty() {
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

    /// At least one byte, and at most this many.
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

    /// The whole body, and nothing after it: later bytes could be mistaken for the next answer.
    pub(crate) async fn whole(mut self, bytes_max: usize) -> Result<Vec<u8>, ClientError> {
        let mut whole = Vec::new();
        while let Some(piece) = self.next().await? {
            whole.extend(piece);
            if whole.len() > bytes_max {
                return Err(ClientError::Lost);
            }
        }
        if self.bytes.is_empty() { Ok(whole) } else { Err(ClientError::Lost) }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test owns its tasks by their handles")]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// The parsed answer, for any division of these bytes into pieces.
    async fn heard(bytes: &[u8]) -> Result<Vec<u8>, ClientError> {
        let mut found = Vec::new();
        for step in [1, 3, bytes.len().max(1)] {
            let (mut theirs, ours) = tokio::io::duplex(step);
            let bytes = bytes.to_vec();
            // The reader may hang up early.
            let speaker = tokio::spawn(async move { drop(theirs.write_all(&bytes).await) });
            let whole = async { read_answer(ours).await?.body.whole(1 << 20).await }.await;
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
        let more = format!("{length}, and more");
        assert!(read_answer(more.as_bytes()).await.unwrap().body.whole(1 << 20).await.is_err());
        for cut in 0..pieces.len() {
            assert!(heard(&pieces.as_bytes()[..cut]).await.is_err(), "{:?}", &pieces[..cut]);
        }
        for cut in 0..length.len() {
            assert!(heard(&length.as_bytes()[..cut]).await.is_err(), "{:?}", &length[..cut]);
        }
    }

    #[tokio::test]
    async fn what_makes_no_sense_is_not_read_endlessly() {
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
}
