//! HTTP/1.1 by hand: one connection, requests one after the other.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HEAD_BYTES_MAX: usize = 64 << 10;
const BODY_BYTES_MAX: usize = 256 << 20;
/// Between two looks for a file.
const LOOK_EVERY: Duration = Duration::from_millis(2);

pub(super) struct MockConnection {
    pub(super) number: u64,
    stream: TcpStream,
    /// Read, but not yet used.
    unread: Vec<u8>,
}

pub(super) struct HttpRequest {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) authorization: Option<String>,
    pub(super) keep_alive: bool,
    pub(super) body: Vec<u8>,
}

struct RequestHead {
    request: HttpRequest,
    length: usize,
    /// The client waits for `100 Continue` before it sends the body.
    expects_continue: bool,
}

impl MockConnection {
    pub(super) fn new(number: u64, stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { number, stream, unread: Vec::with_capacity(4096) })
    }

    /// The next request; `None` when the client has closed.
    pub(super) async fn request(&mut self) -> io::Result<Option<HttpRequest>> {
        let end = loop {
            if let Some(end) = self.unread.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            if self.unread.len() > HEAD_BYTES_MAX {
                return Err(invalid("the head is too long"));
            }
            if self.stream.read_buf(&mut self.unread).await? == 0 {
                return Ok(None);
            }
        };
        let head = head(&self.unread[..end])?;
        self.unread.drain(..end);
        if head.expects_continue {
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        self.unread.reserve(head.length.saturating_sub(self.unread.len()));
        while self.unread.len() < head.length {
            if self.stream.read_buf(&mut self.unread).await? == 0 {
                return Ok(None);
            }
        }
        let mut request = head.request;
        let rest = self.unread.split_off(head.length);
        request.body = std::mem::replace(&mut self.unread, rest);
        Ok(Some(request))
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// A whole reply with a body of known length.
    pub(super) async fn write_json(&mut self, status: u16, extra: &str, body: &str) -> io::Result<()> {
        let length = body.len();
        let reply = format!(
            "HTTP/1.1 {status} {}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{extra}\r\n{body}",
            reason(status)
        );
        self.write(reply.as_bytes()).await
    }

    /// Waits; an error when the client goes away meanwhile.
    pub(super) async fn pause(&mut self, pause: Duration) -> io::Result<()> {
        let over = tokio::time::sleep(pause);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return Ok(()),
                read = self.stream.read_buf(&mut self.unread) => {
                    if read? == 0 || self.unread.len() > HEAD_BYTES_MAX {
                        return Err(io::ErrorKind::ConnectionAborted.into());
                    }
                }
            }
        }
    }

    /// Waits until there is such a file; an error when the client goes away meanwhile.
    pub(super) async fn pause_until(&mut self, file: &Path) -> io::Result<()> {
        while !file.exists() {
            self.pause(LOOK_EVERY).await?;
        }
        Ok(())
    }

    /// Says nothing until the client goes away.
    pub(super) async fn hang(&mut self) -> io::Error {
        loop {
            if let Err(error) = self.pause(Duration::from_secs(3600)).await {
                return error;
            }
        }
    }
}

fn head(bytes: &[u8]) -> io::Result<RequestHead> {
    let text = std::str::from_utf8(bytes).map_err(|_| invalid("the head is not text"))?;
    let mut lines = text.split("\r\n");
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (method, path) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    let keep_alive = first.next() == Some("HTTP/1.1");
    let mut request = HttpRequest {
        method: method.to_owned(),
        path: path.to_owned(),
        authorization: None,
        keep_alive,
        body: Vec::new(),
    };
    let (mut length, mut expects_continue) = (0, false);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.parse().map_err(|_| invalid("the length is not a number"))?;
        } else if name.eq_ignore_ascii_case("authorization") {
            request.authorization = Some(value.to_owned());
        } else if name.eq_ignore_ascii_case("connection") {
            request.keep_alive = !value.eq_ignore_ascii_case("close");
        } else if name.eq_ignore_ascii_case("expect") {
            expects_continue = true;
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(invalid("a body must come with its length"));
        }
    }
    if length > BODY_BYTES_MAX {
        return Err(invalid("the body is too long"));
    }
    Ok(RequestHead { request, length, expects_continue })
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "Status",
    }
}
