//! The one client: JSON-RPC over a WebSocket, on a Unix socket, TCP or TLS.
//!
//! Owns: a connection, matching answers to calls, handing out notifications in order. Never: verifying the daemon (see
//! `dial`), reconnecting or starting one; callers decide that, with the cursor they hold.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error as WsError, Message as Frame, http::HeaderValue};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use crate::codes::KnownCode;
use crate::dial::{DaemonConnection, dial};
pub use crate::dial::{Login, Unverified};
pub use crate::process::DaemonProcess;
use crate::rpc::{ErrorBody, Message, Notification, Request};
use crate::{ApiMethod, PROGRESS, Progress, REQUEST_BYTES_MAX};

/// How long a connection may take before the daemon counts as absent.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to read a final message on a connection that accepts no more data.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
/// A client reads larger messages than it may send: a page of long messages can be big.
pub(crate) const READ_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Where a daemon listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Unix(PathBuf),
    /// `host:port`.
    Tcp(String),
    /// `host:port`, where the daemon has a certificate for the host.
    Tls(String),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Unix(path) => write!(f, "{}", path.display()),
            Target::Tcp(addr) => write!(f, "http://{addr}"),
            Target::Tls(addr) => write!(f, "https://{addr}"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no daemon answers at {target}")]
    NoDaemon {
        target: Target,
        #[source]
        cause: std::io::Error,
    },
    #[error("the daemon at {target} refused the connection")]
    Handshake { target: Target, status: Option<u16>, body: Option<Box<ErrorBody>>, detail: String },
    /// No secret was sent.
    #[error("the token was not sent: what listens at {target} is not known to be the daemon")]
    Unverified {
        target: Target,
        #[source]
        why: Unverified,
    },
    #[error("the connection to the daemon was lost")]
    Lost,
    #[error("{}", .0.message)]
    Refused(Box<ErrorBody>),
    #[error("the daemon sent something that does not fit the API")]
    Garbled {
        #[source]
        cause: serde_json::Error,
    },
}

impl ClientError {
    /// The daemon's own code, when it gave one, or that of a daemon that was not verified.
    /// Whether the daemon, or the client for it, refused with this code.
    pub fn is(&self, code: KnownCode) -> bool {
        self.code() == Some(code.as_str())
    }

    pub fn code(&self) -> Option<&str> {
        match self {
            ClientError::Refused(body) => Some(&body.data.code),
            ClientError::Handshake { body: Some(body), .. } => Some(&body.data.code),
            ClientError::Unverified { .. } => Some("auth.unverified"),
            ClientError::NoDaemon { .. }
            | ClientError::Handshake { body: None, .. }
            | ClientError::Lost
            | ClientError::Garbled { .. } => None,
        }
    }
}

pub(crate) trait ClientIo: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ClientIo for T {}

/// One open connection.
pub struct Client {
    socket: WebSocketStream<Box<dyn ClientIo>>,
    next_id: u64,
    waiting: VecDeque<Notification>,
    was_shut_down: bool,
    daemon_pid: Option<i32>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("next_id", &self.next_id).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects, verifies the daemon, and authenticates.
    pub async fn connect(target: &Target, login: impl Into<Login>) -> Result<Client, ClientError> {
        match tokio::time::timeout(CONNECT_TIMEOUT, Self::open(target, &login.into())).await {
            Ok(opened) => opened,
            Err(_) => Err(ClientError::NoDaemon {
                target: target.clone(),
                cause: std::io::Error::from(std::io::ErrorKind::TimedOut),
            }),
        }
    }

    async fn open(target: &Target, login: &Login) -> Result<Client, ClientError> {
        let no_daemon = |cause| ClientError::NoDaemon { target: target.clone(), cause };
        let DaemonConnection { io, host, pid } = dial(target, login).await?;
        let handshake = |status, body, detail: String| ClientError::Handshake {
            target: target.clone(),
            status,
            body,
            detail,
        };
        let mut request = format!("ws://{host}/v1/rpc")
            .into_client_request()
            .map_err(|cause| handshake(None, None, cause.to_string()))?;
        let bearer = HeaderValue::from_str(&login.bearer(target)?)
            .map_err(|cause| handshake(None, None, cause.to_string()))?;
        request.headers_mut().insert("authorization", bearer);
        let config = WebSocketConfig::default()
            .max_message_size(Some(READ_BYTES_MAX))
            .max_frame_size(Some(READ_BYTES_MAX));
        match client_async_with_config(request, io, Some(config)).await {
            Ok((socket, _)) => {
                let waiting = VecDeque::new();
                Ok(Client { socket, next_id: 0, waiting, was_shut_down: false, daemon_pid: pid })
            }
            Err(WsError::Http(response)) => {
                let body =
                    response.body().as_deref().and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
                let error = body.and_then(|body| serde_json::from_value(body.get("error")?.clone()).ok());
                Err(handshake(Some(response.status().as_u16()), error, response.status().to_string()))
            }
            Err(WsError::Io(cause)) => Err(no_daemon(cause)),
            Err(other) => Err(handshake(None, None, other.to_string())),
        }
    }

    /// Calls a method and waits for its answer. Notifications that arrive meanwhile are kept in order.
    pub async fn call<M: ApiMethod>(&mut self, params: &M::Params) -> Result<M::Reply, ClientError> {
        self.call_with_progress::<M>(params, |_| {}).await
    }

    /// As [`Client::call`], and reports progress meanwhile.
    pub async fn call_with_progress<M: ApiMethod>(
        &mut self,
        params: &M::Params,
        mut told: impl FnMut(&Progress) + Send,
    ) -> Result<M::Reply, ClientError> {
        let params = serde_json::to_value(params).map_err(|cause| ClientError::Garbled { cause })?;
        let result = self.exchange(M::NAME, params, &mut told).await?;
        serde_json::from_value(result).map_err(|cause| ClientError::Garbled { cause })
    }

    /// As [`Client::call`], for a method that is chosen while the program runs.
    pub async fn call_value(&mut self, method: &str, params: Value) -> Result<Value, ClientError> {
        self.exchange(method, params, &mut |_| {}).await
    }

    async fn exchange(
        &mut self,
        method: &str,
        params: Value,
        told: &mut (dyn FnMut(&Progress) + Send),
    ) -> Result<Value, ClientError> {
        self.next_id += 1;
        let id = Value::from(self.next_id);
        let request = Request { jsonrpc: "2.0".into(), id: id.clone(), method: method.to_owned(), params };
        let text = serde_json::to_string(&request).map_err(|cause| ClientError::Garbled { cause })?;
        if text.len() > REQUEST_BYTES_MAX {
            // The daemon would close the connection, and it would look as if it were gone.
            let error =
                ErrorBody::new("request.too_large", format!("the call is over {REQUEST_BYTES_MAX} bytes"))
                    .hint("put large material into the agent's workspace instead");
            return Err(ClientError::Refused(Box::new(error)));
        }
        if self.socket.send(Frame::text(text)).await.is_err() {
            // The peer may have sent a reason before it closed the connection.
            drop(tokio::time::timeout(GOODBYE_TIMEOUT, self.drain()).await);
            return Err(ClientError::Lost);
        }
        loop {
            match self.read().await? {
                // Progress belongs to a call, and is useless after it.
                Message::Notification(note) if note.method == PROGRESS => {
                    let progress: Progress = serde_json::from_value(note.params)
                        .map_err(|cause| ClientError::Garbled { cause })?;
                    if progress.id == id {
                        told(&progress);
                    }
                }
                Message::Notification(note) => self.waiting.push_back(note),
                Message::Response(answer) if answer.id == id => {
                    return match answer.error {
                        Some(error) => Err(ClientError::Refused(Box::new(error))),
                        None => Ok(answer.result.unwrap_or(Value::Null)),
                    };
                }
                // An answer to a call whose caller gave up.
                Message::Response(_) => {}
            }
        }
    }

    /// The next notification, in the order the daemon sent them.
    pub async fn next(&mut self) -> Result<Notification, ClientError> {
        if let Some(note) = self.waiting.pop_front() {
            return Ok(note);
        }
        loop {
            if let Message::Notification(note) = self.read().await? {
                return Ok(note);
            }
        }
    }

    /// Reads the messages before the end. Answers are dropped: their callers are gone.
    async fn drain(&mut self) {
        while let Ok(message) = self.read().await {
            if let Message::Notification(note) = message {
                self.waiting.push_back(note);
            }
        }
    }

    /// The daemon's process, to wait for its end. `pid` is what the daemon says it is. None: another process is at the
    /// end of this connection, such as one that forwards it to another machine.
    pub fn daemon_process(&self, pid: u32) -> Option<DaemonProcess> {
        let known = self.daemon_pid.filter(|known| u32::try_from(*known) == Ok(pid))?;
        // While the daemon answers on this connection, the number is its own.
        DaemonProcess::open(known).ok()
    }

    /// Of a lost connection: whether the daemon announced its shutdown.
    pub fn was_shut_down(&self) -> bool {
        self.was_shut_down
    }

    async fn read(&mut self) -> Result<Message, ClientError> {
        loop {
            match self.socket.next().await {
                Some(Ok(Frame::Close(frame))) => {
                    self.was_shut_down = frame.is_some_and(|frame| frame.code == CloseCode::Away);
                    return Err(ClientError::Lost);
                }
                None | Some(Err(_)) => return Err(ClientError::Lost),
                Some(Ok(Frame::Text(text))) => {
                    return serde_json::from_str(&text).map_err(|cause| ClientError::Garbled { cause });
                }
                Some(Ok(Frame::Binary(_) | Frame::Ping(_) | Frame::Pong(_) | Frame::Frame(_))) => {}
            }
        }
    }
}
