//! Servers that speak a protocol exactly and refuse, with 400, every request that it does not allow.
//!
//! The shape of a request is checked against its published schema (`*.json`, by another checker than the product's
//! own), everything that a schema cannot say by `rules`.

mod rules;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lodge_model::{Kind, Provider, Secret};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::common::KEY;

/// A request as it arrived.
pub(crate) struct Arrived {
    pub(crate) head: String,
    pub(crate) body: Value,
}

/// What the server says to a request that is allowed.
#[derive(Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Each with its line end.
    pub(crate) headers: String,
    /// Each in a chunk and a packet of its own.
    pub(crate) pieces: Vec<Vec<u8>>,
    pub(crate) pause: Duration,
    pub(crate) end: End,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The last chunk, then the connection is kept.
    Chunked,
    /// The connection breaks without the last chunk.
    Broken,
    /// No chunks at all: the body ends with the connection.
    Closed,
    /// Nothing more comes.
    Silence,
}

impl Reply {
    pub(crate) fn stream(pieces: Vec<Vec<u8>>) -> Self {
        Self { status: 200, headers: String::new(), pieces, pause: Duration::ZERO, end: End::Chunked }
    }

    pub(crate) fn saying(body: impl AsRef<[u8]>) -> Self {
        Self::stream(vec![body.as_ref().to_vec()])
    }

    pub(crate) fn refusal(status: u16, headers: &str, body: impl AsRef<[u8]>) -> Self {
        Self { status, headers: headers.to_owned(), ..Self::saying(body) }
    }
}

pub(crate) struct Strict {
    kind: Kind,
    pub(crate) url: String,
    task: JoinHandle<()>,
    seen: Arc<Mutex<Vec<Arrived>>>,
    /// Bytes of bodies that could be sent.
    pub(crate) sent: Arc<AtomicUsize>,
}

impl Drop for Strict {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Strict {
    /// Answers the first request with the first reply, and so on; the last one is repeated.
    pub(crate) async fn start(kind: Kind, replies: Vec<Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}{}", listener.local_addr().expect("an address"), base(kind));
        let (seen, sent): (Arc<Mutex<Vec<Arrived>>>, Arc<AtomicUsize>) = (Arc::default(), Arc::default());
        let (rules, replies) = (Arc::new(rules::Rules::of(kind)), Arc::new(replies));
        let line = Line { kind, rules, replies, seen: seen.clone(), sent: sent.clone() };
        let task = tokio::spawn(async move {
            let mut lines = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                lines.spawn(line.clone().serve(stream));
            }
        });
        Self { kind, url, task, seen, sent }
    }

    pub(crate) fn provider(&self) -> Provider {
        let key = Some(Secret::new(KEY));
        Provider::new("work", self.kind, Some(&self.url), key).expect("a provider")
    }

    /// The bodies of all requests so far.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.seen.lock().expect("requests").iter().map(|arrived| arrived.body.clone()).collect()
    }
}

fn base(kind: Kind) -> &'static str {
    match kind {
        Kind::Openai => "/v1",
        Kind::Gemini => "/v1beta",
        Kind::Anthropic | Kind::Ollama | Kind::Script => "",
    }
}

#[derive(Clone)]
struct Line {
    kind: Kind,
    rules: Arc<rules::Rules>,
    replies: Arc<Vec<Reply>>,
    seen: Arc<Mutex<Vec<Arrived>>>,
    sent: Arc<AtomicUsize>,
}

impl Line {
    async fn serve(self, mut stream: TcpStream) {
        stream.set_nodelay(true).expect("nodelay");
        let mut buffer = Vec::new();
        while let Some(arrived) = read(&mut stream, &mut buffer).await {
            let violation = self.rules.violation(&arrived);
            let number = {
                let mut seen = self.seen.lock().expect("requests");
                seen.push(arrived);
                seen.len() - 1
            };
            let reply = match violation {
                Some(why) => Reply::refusal(400, "", rules::error(self.kind, 400, &why)),
                None => self.replies[number.min(self.replies.len() - 1)].clone(),
            };
            if self.say(&mut stream, &reply).await.is_err() {
                return;
            }
            match reply.end {
                End::Chunked => {}
                End::Broken | End::Closed => return,
                End::Silence => std::future::pending::<()>().await,
            }
        }
    }

    async fn say(&self, stream: &mut TcpStream, reply: &Reply) -> std::io::Result<()> {
        let framing = match reply.end {
            End::Closed => "connection: close",
            End::Chunked | End::Broken | End::Silence => "transfer-encoding: chunked",
        };
        let kind = if self.kind == Kind::Ollama { "application/x-ndjson" } else { "text/event-stream" };
        let head = format!(
            "HTTP/1.1 {} X\r\ncontent-type: {kind}\r\n{}{framing}\r\n\r\n",
            reply.status, reply.headers
        );
        stream.write_all(head.as_bytes()).await?;
        for piece in &reply.pieces {
            if !reply.pause.is_zero() {
                tokio::time::sleep(reply.pause).await;
            }
            match reply.end {
                End::Closed => stream.write_all(piece).await?,
                End::Chunked | End::Broken | End::Silence if piece.is_empty() => {}
                End::Chunked | End::Broken | End::Silence => {
                    let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
                    stream.write_all(&chunk).await?;
                }
            }
            self.sent.fetch_add(piece.len(), Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
        if reply.end == End::Chunked {
            stream.write_all(b"0\r\n\r\n").await?;
        }
        Ok(())
    }
}

async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Arrived> {
    loop {
        let head_end = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        if let Some(end) = head_end {
            let head = String::from_utf8(buffer[..end].to_vec()).expect("a head of text");
            let length = header(&head, "content-length").map_or(0, |text| text.parse().expect("a length"));
            if buffer.len() >= end + 4 + length {
                let body: Vec<u8> = buffer.drain(..end + 4 + length).skip(end + 4).collect();
                let body = if body.is_empty() { Value::Null } else { parse(&body) };
                return Some(Arrived { head, body });
            }
        }
        if stream.read_buf(buffer).await.unwrap_or(0) == 0 {
            return None;
        }
    }
}

/// What is no JSON is no request, and is refused as such.
fn parse(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap_or_else(|_| Value::String("not JSON".to_owned()))
}

pub(crate) fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}
