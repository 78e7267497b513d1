//! Servers that speak a protocol exactly and refuse, with 400, every request that it does not allow.
//!
//! The shape of a request is checked against its published schema (`*.json`, by another checker than the product's
//! own), everything that a schema cannot say by `rules`.

mod rules;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lodge_model::{Provider, ProviderKind, Secret};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::common::KEY;

/// A request as it arrived.
pub(crate) struct ArrivedRequest {
    pub(crate) head: String,
    pub(crate) body: Value,
}

/// What the server says to a request that is allowed.
#[derive(Clone)]
pub(crate) struct StrictReply {
    pub(crate) status: u16,
    /// Each with its line end.
    pub(crate) headers: String,
    /// Each in a chunk and a packet of its own.
    pub(crate) pieces: Vec<Vec<u8>>,
    pub(crate) pause: Duration,
    pub(crate) end: StrictReplyEnd,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StrictReplyEnd {
    /// The last chunk, then the connection is kept.
    Chunked,
    /// The connection breaks without the last chunk.
    Broken,
    /// No chunks at all: the body ends with the connection.
    Closed,
    /// Nothing more comes.
    Silence,
}

impl StrictReply {
    pub(crate) fn stream(pieces: Vec<Vec<u8>>) -> Self {
        Self {
            status: 200,
            headers: String::new(),
            pieces,
            pause: Duration::ZERO,
            end: StrictReplyEnd::Chunked,
        }
    }

    pub(crate) fn saying(body: impl AsRef<[u8]>) -> Self {
        Self::stream(vec![body.as_ref().to_vec()])
    }

    pub(crate) fn refusal(status: u16, headers: &str, body: impl AsRef<[u8]>) -> Self {
        Self { status, headers: headers.to_owned(), ..Self::saying(body) }
    }
}

pub(crate) struct StrictServer {
    kind: ProviderKind,
    pub(crate) url: String,
    task: JoinHandle<()>,
    seen: Arc<Mutex<Vec<ArrivedRequest>>>,
    /// Bytes of bodies that could be sent.
    pub(crate) sent: Arc<AtomicUsize>,
}

impl Drop for StrictServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl StrictServer {
    /// Answers the first request with the first reply, and so on; the last one is repeated.
    pub(crate) async fn start(kind: ProviderKind, replies: Vec<StrictReply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}{}", listener.local_addr().expect("an address"), base(kind));
        let (seen, sent): (Arc<Mutex<Vec<ArrivedRequest>>>, Arc<AtomicUsize>) =
            (Arc::default(), Arc::default());
        let (rules, replies) = (Arc::new(rules::ProtocolRules::of(kind)), Arc::new(replies));
        let line = StrictConnection { kind, rules, replies, seen: seen.clone(), sent: sent.clone() };
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

fn base(kind: ProviderKind) -> &'static str {
    match kind {
        ProviderKind::Openai => "/v1",
        ProviderKind::Gemini => "/v1beta",
        ProviderKind::Anthropic | ProviderKind::Ollama | ProviderKind::Script => "",
    }
}

#[derive(Clone)]
struct StrictConnection {
    kind: ProviderKind,
    rules: Arc<rules::ProtocolRules>,
    replies: Arc<Vec<StrictReply>>,
    seen: Arc<Mutex<Vec<ArrivedRequest>>>,
    sent: Arc<AtomicUsize>,
}

impl StrictConnection {
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
                Some(why) => StrictReply::refusal(400, "", rules::error(self.kind, 400, &why)),
                None => self.replies[number.min(self.replies.len() - 1)].clone(),
            };
            if self.say(&mut stream, &reply).await.is_err() {
                return;
            }
            match reply.end {
                StrictReplyEnd::Chunked => {}
                StrictReplyEnd::Broken | StrictReplyEnd::Closed => return,
                StrictReplyEnd::Silence => std::future::pending::<()>().await,
            }
        }
    }

    async fn say(&self, stream: &mut TcpStream, reply: &StrictReply) -> std::io::Result<()> {
        let framing = match reply.end {
            StrictReplyEnd::Closed => "connection: close",
            StrictReplyEnd::Chunked | StrictReplyEnd::Broken | StrictReplyEnd::Silence => {
                "transfer-encoding: chunked"
            }
        };
        let kind =
            if self.kind == ProviderKind::Ollama { "application/x-ndjson" } else { "text/event-stream" };
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
                StrictReplyEnd::Closed => stream.write_all(piece).await?,
                StrictReplyEnd::Chunked | StrictReplyEnd::Broken | StrictReplyEnd::Silence
                    if piece.is_empty() => {}
                StrictReplyEnd::Chunked | StrictReplyEnd::Broken | StrictReplyEnd::Silence => {
                    let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
                    stream.write_all(&chunk).await?;
                }
            }
            self.sent.fetch_add(piece.len(), Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
        if reply.end == StrictReplyEnd::Chunked {
            stream.write_all(b"0\r\n\r\n").await?;
        }
        Ok(())
    }
}

async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<ArrivedRequest> {
    loop {
        let head_end = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        if let Some(end) = head_end {
            let head = String::from_utf8(buffer[..end].to_vec()).expect("a head of text");
            let length = header(&head, "content-length").map_or(0, |text| text.parse().expect("a length"));
            if buffer.len() >= end + 4 + length {
                let body: Vec<u8> = buffer.drain(..end + 4 + length).skip(end + 4).collect();
                let body = if body.is_empty() { Value::Null } else { parse(&body) };
                return Some(ArrivedRequest { head, body });
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
