//! The doors: a Unix socket and a TCP port, each bounded, both behind the same router.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lodge_proto::{ErrorBody, Response};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Api, http};

/// Connections at the same time, per door.
const CONNECTIONS_MAX: usize = 1_024;
/// Connections that the kernel keeps until they are accepted.
const ACCEPT_QUEUE: i32 = 1_024;
/// The kernel's limit on a socket's path.
const SUN_PATH_MAX: usize = 107;

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("could not listen on {}", path.display())]
    Unix {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("{} is there and is not a socket", path.display())]
    NotASocket { path: PathBuf },
    #[error("could not listen on {addr}")]
    Tcp {
        addr: String,
        #[source]
        cause: std::io::Error,
    },
}

impl ListenError {
    pub fn hint(&self) -> String {
        match self {
            ListenError::Unix { .. } => "check that the directory exists and that you own it, or choose another with --socket-path".to_owned(),
            ListenError::NotASocket { path } => format!("move {} away, or choose another --socket-path", path.display()),
            ListenError::Tcp { cause, .. } if cause.kind() == std::io::ErrorKind::AddrInUse => {
                "something else listens there: choose another with --http-addr, LODGED_HTTP_ADDR or `http-addr` in lodged.yaml (port 0 picks a free one), or --no-http".to_owned()
            }
            ListenError::Tcp { .. } => "give --http-addr as ADDRESS:PORT, or --no-http".to_owned(),
        }
    }
}

/// Listeners that are bound and not yet served.
#[derive(Debug)]
pub struct Bound {
    unix: UnixListener,
    tcp: Option<(TcpListener, String)>,
}

/// Binds the TCP door, and tells its address.
pub async fn bind_tcp(addr: &str) -> Result<(TcpListener, String), ListenError> {
    let failed = |cause| ListenError::Tcp { addr: addr.to_owned(), cause };
    let tcp = TcpListener::bind(addr).await.map_err(failed)?;
    // The usual queue of 128 makes clients that come in a crowd wait for a second.
    rustix::net::listen(&tcp, ACCEPT_QUEUE).map_err(|cause| failed(cause.into()))?;
    let bound = tcp.local_addr().map_err(failed)?.to_string();
    Ok((tcp, bound))
}

/// Binds the Unix door, which is what clients wait for. Only the holder of the state directory's lock may call
/// this: it replaces a stale socket.
pub fn bind(socket: &Path, tcp: Option<(TcpListener, String)>) -> Result<Bound, ListenError> {
    Ok(Bound { unix: bind_unix(socket)?, tcp })
}

fn bind_unix(path: &Path) -> Result<UnixListener, ListenError> {
    let failed = |cause| ListenError::Unix { path: path.to_owned(), cause };
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path).map_err(failed)?,
        Ok(_) => return Err(ListenError::NotASocket { path: path.to_owned() }),
        Err(_) => {}
    }
    // A path too long for the kernel is bound through its directory's descriptor.
    let bound = if path.as_os_str().len() > SUN_PATH_MAX {
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(failed(std::io::ErrorKind::InvalidInput.into()));
        };
        let dir = std::fs::File::open(dir).map_err(failed)?;
        let short =
            PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&dir))).join(name);
        UnixListener::bind(short)
    } else {
        UnixListener::bind(path)
    };
    let listener = bound.map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

impl Bound {
    /// Serves both doors until the daemon stops; then requests in flight may finish within `shutdown-timeout`.
    pub async fn serve(self, api: Arc<Api>) {
        let stop = api.shell.stop.clone();
        let mut servers = tokio::task::JoinSet::new();
        let unix = http::router(api.clone(), http::Door::Unix);
        let listener = Limited::new(self.unix);
        servers.spawn(async move {
            axum::serve(listener, unix).with_graceful_shutdown(stop.cancelled_owned()).await
        });
        if let Some((tcp, addr)) = self.tcp {
            let stop = api.shell.stop.clone();
            let router = http::router(api.clone(), http::Door::Tcp(addr));
            let listener = Limited::new(tcp);
            servers.spawn(async move {
                axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
            });
        }
        api.shell.stop.cancelled().await;
        let patience = api.shell.config.span("shutdown-timeout");
        // Servers know their requests; WebSockets have left their servers and are counted apart.
        let drained = async {
            while servers.join_next().await.is_some() {}
            api.sockets.close();
            api.sockets.wait().await;
        };
        if tokio::time::timeout(patience, drained).await.is_err() {
            tracing::warn!(event = "requests.cut", patience_ms = patience.as_millis());
        }
    }
}

/// A listener with a bounded number of connections at a time; others are told so and let go.
struct Limited<L> {
    listener: L,
    room: Arc<Semaphore>,
    /// What those get who find no place.
    full: Vec<u8>,
    /// Those who were told and have not gone.
    leaving: Arc<Semaphore>,
}

/// Connections without a place that are waited for at the same time.
const LEAVING_MAX: usize = 64;
/// How long one may take to go.
const LEAVING_WITHIN: Duration = Duration::from_secs(1);
/// What is read of a request that will not be answered.
const LEAVING_BYTES_MAX: u64 = 64 * 1024;

impl<L> Limited<L> {
    fn new(listener: L) -> Self {
        let error = ErrorBody::new("daemon.busy", format!("{CONNECTIONS_MAX} connections are open already"))
            .hint("close some, or ask again in a moment");
        let body = serde_json::to_string(&Response::err(Value::Null, error)).unwrap_or_default();
        let head = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close";
        let full = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes();
        Limited {
            listener,
            room: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            full,
            leaving: Arc::new(Semaphore::new(LEAVING_MAX)),
        }
    }

    fn permit(&self) -> Option<OwnedSemaphorePermit> {
        self.room.clone().try_acquire_owned().ok()
    }

    /// Keeps a connection that was told to go until it has heard: closed over unread bytes, it would lose ours.
    fn linger<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(&self, mut stream: S) {
        let Ok(permit) = self.leaving.clone().try_acquire_owned() else { return };
        // Nobody waits for it: it ends within its time, and a peer that is gone need not hear anything.
        tokio::spawn(async move {
            let heard = async {
                stream.shutdown().await?;
                tokio::io::copy(&mut stream.take(LEAVING_BYTES_MAX), &mut tokio::io::sink()).await
            };
            drop(tokio::time::timeout(LEAVING_WITHIN, heard).await);
            drop(permit);
        });
    }
}

/// A connection that gives its place back when it ends.
struct Held<S> {
    stream: S,
    head: Option<Head>,
    _permit: OwnedSemaphorePermit,
}

/// The first request's head, which is waited for only so long: a place is not for those who say nothing.
struct Head {
    until: std::pin::Pin<Box<tokio::time::Sleep>>,
    /// How much of its end has been seen.
    matched: usize,
}

const HEAD_WITHIN: Duration = Duration::from_secs(5);
const HEAD_END: &[u8] = b"\r\n\r\n";

impl Head {
    /// Whether the head ends in these bytes.
    fn ends_in(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            self.matched = match *byte {
                next if next == HEAD_END[self.matched] => self.matched + 1,
                b'\r' => 1,
                _ => 0,
            };
            if self.matched == HEAD_END.len() {
                return true;
            }
        }
        false
    }
}

impl<S> Held<S> {
    fn new(stream: S, permit: OwnedSemaphorePermit) -> Self {
        let head = Head { until: Box::pin(tokio::time::sleep(HEAD_WITHIN)), matched: 0 };
        Held { stream, head: Some(head), _permit: permit }
    }
}

/// What to do when accepting fails: the kernel may be out of descriptors for a moment.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl axum::serve::Listener for Limited<UnixListener> {
    type Io = Held<UnixStream>;
    type Addr = ();

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => match self.permit() {
                    Some(permit) => return (Held::new(stream, permit), ()),
                    None => {
                        // It fits into a socket's empty buffer, or the peer is gone.
                        drop(stream.try_write(&self.full));
                        self.linger(stream);
                    }
                },
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        Ok(())
    }
}

impl axum::serve::Listener for Limited<TcpListener> {
    type Io = Held<TcpStream>;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            match self.listener.accept().await {
                // Without TCP_NODELAY every small answer waits for the peer's delayed acknowledgement.
                Ok((stream, addr)) if stream.set_nodelay(true).is_ok() => match self.permit() {
                    Some(permit) => return (Held::new(stream, permit), addr),
                    None => {
                        // It fits into a socket's empty buffer, or the peer is gone.
                        drop(stream.try_write(&self.full));
                        self.linger(stream);
                    }
                },
                Ok(_) => {}
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Held<S> {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let polled = std::pin::Pin::new(&mut self.stream).poll_read(cx, buf);
        let Some(head) = &mut self.head else { return polled };
        match &polled {
            Poll::Ready(_) => {
                if head.ends_in(&buf.filled()[before..]) {
                    self.head = None;
                }
                polled
            }
            Poll::Pending => head.until.as_mut().poll(cx).map(|()| Err(std::io::ErrorKind::TimedOut.into())),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Held<S> {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        std::pin::Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> std::task::Poll<std::io::Result<usize>> {
        std::pin::Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
