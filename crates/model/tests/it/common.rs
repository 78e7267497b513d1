//! A server that sends exactly the bytes that a test chooses.

use std::time::Duration;

use lodge_model::{
    CallAnswer, CallContext, CallError, CallLimits, ModelMessage, ModelRequest, Provider, ProviderKind,
    Repetition, Secret,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub(crate) const KEY: &str = "sk-very-secret-0123456789";

/// What happens after the last byte.
#[derive(Clone, Copy)]
pub(crate) enum AfterLastByte {
    Close,
    StayOpen,
}

pub(crate) struct RawServer {
    pub(crate) url: String,
    task: JoinHandle<()>,
}

impl RawServer {
    /// Answers every request on every connection with the same pieces, each in a packet of its own.
    pub(crate) async fn start(pieces: Vec<Vec<u8>>, then: AfterLastByte) -> Self {
        Self::answering(move |_| pieces.clone(), then).await
    }

    /// Answers each request with what `reply` makes of its text.
    pub(crate) async fn answering(
        reply: impl Fn(&str) -> Vec<Vec<u8>> + Send + 'static,
        then: AfterLastByte,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
        let task = tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                stream.set_nodelay(true).expect("nodelay");
                let mut request = Vec::new();
                while !is_complete(&request) {
                    if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                        break;
                    }
                }
                for piece in &reply(&String::from_utf8_lossy(&request)) {
                    if stream.write_all(piece).await.is_err() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                match then {
                    AfterLastByte::Close => drop(stream),
                    AfterLastByte::StayOpen => open.push(stream),
                }
            }
        });
        Self { url, task }
    }

    pub(crate) async fn saying(reply: impl AsRef<[u8]>, then: AfterLastByte) -> Self {
        Self::start(vec![reply.as_ref().to_vec()], then).await
    }
}

impl Drop for RawServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn is_complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length =
        head.split_once("content-length: ").map_or("0", |(_, rest)| rest.lines().next().unwrap_or("0"));
    body.len() >= length.parse().expect("a length")
}

/// The head of a stream whose body ends with the connection.
pub(crate) fn stream_head() -> &'static str {
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
}

pub(crate) fn provider(url: &str) -> Provider {
    Provider::new("work", ProviderKind::Openai, Some(url), Some(Secret::new(KEY))).expect("a provider")
}

pub(crate) fn limits() -> CallLimits {
    let patience = Duration::from_secs(10);
    CallLimits { first_byte: patience, idle: patience, ..CallLimits::default() }
}

pub(crate) async fn ask(
    url: &str,
    limits: CallLimits,
    model: &str,
    text: &str,
) -> (Result<CallAnswer, CallError>, String) {
    let context = CallContext::with_limits("/nonexistent", limits);
    let mut seen = String::new();
    let request = ModelRequest::new(model, vec![ModelMessage::user(text)]);
    let answer = lodge_model::call(&provider(url), &request, &context, &mut |text| seen.push_str(text)).await;
    if let Err(error) = &answer {
        assert_no_key(error);
    }
    (answer, seen)
}

/// Whether the daemon repeats a call that failed in this way.
pub(crate) fn is_repeated(error: &CallError) -> bool {
    error.repetition() != Repetition::Never
}

/// Neither the message, nor its causes, nor the hint, nor the debug form may show the key.
pub(crate) fn assert_no_key(error: &CallError) {
    let mut told = format!("{error:?} {error:#?} {error} {:?}", error.hint());
    let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(error);
    while let Some(error) = cause {
        told.push_str(&format!("{error} {error:?}"));
        cause = error.source();
    }
    assert!(!told.contains(KEY) && !told.contains("very-secret"), "{told}");
}
