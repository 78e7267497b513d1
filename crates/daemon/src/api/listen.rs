//! The doors: a Unix socket and a TCP port, each bounded, both behind the same router.
//!
//! The Unix socket is required. A TCP port that is in use is retried: another port is never used instead, because
//! clients would not find it. With TLS configured, TCP is not served before there is a certificate.

use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use lodge_proto::proof::without_localhost;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;

use super::connections::{Connection, ConnectionOrigin, ConnectionSlot, Connections};
use super::stream::Stream;
use super::tls_stream::TlsSocket;
use super::{Api, http};
use crate::shell::{Http, Scheme, Shell};
use crate::tls::{CertificateFileError, Tls};

/// Connections that the kernel keeps until they are accepted.
const ACCEPT_QUEUE: i32 = 1_024;
/// The kernel's limit on a socket's path.
const SUN_PATH_MAX: usize = 107;
/// How soon a port in use is tried again. Children of a daemon that was just killed may still have it; other programs
/// keep it longer.
const TAKEN_RETRY_MIN: Duration = Duration::from_millis(50);
const TAKEN_RETRY_MAX: Duration = Duration::from_secs(3);
/// What to do when accepting fails: the kernel may be out of descriptors for a moment.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("could not listen on {}", path.display())]
    Unix {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("{} exists and is not a socket", path.display())]
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
            ListenError::Unix { .. } => {
                "check that the directory exists and that you own it, or choose another with --socket-path"
                    .to_owned()
            }
            ListenError::NotASocket { path } => {
                format!("move {} away, or choose another --socket-path", path.display())
            }
            ListenError::Tcp { .. } => "give --http-addr as ADDRESS:PORT, or --no-http".to_owned(),
        }
    }
}

/// Listeners that are bound and not yet served.
#[derive(Debug)]
pub struct BoundListeners {
    unix: UnixListener,
    tcp: TcpBinding,
}

/// The state of the TCP port.
#[derive(Debug)]
pub enum TcpBinding {
    Off,
    Bound {
        listener: TcpListener,
        /// With the port that was chosen, where the setting leaves it open.
        addr: String,
        scheme: Scheme,
    },
    /// Something else listens there.
    Taken {
        addr: String,
        scheme: Scheme,
        cause: std::io::Error,
    },
    /// The certificate cannot be used. Nothing is bound.
    NoCertificate {
        addr: String,
        error: CertificateFileError,
    },
}

impl TcpBinding {
    /// As `info` shows it.
    pub fn state(&self) -> Http {
        match self {
            TcpBinding::Off => Http::Off,
            TcpBinding::Bound { addr, scheme, .. } => Http::Listening { addr: addr.clone(), scheme: *scheme },
            TcpBinding::Taken { addr, cause, .. } => {
                Http::Taken { addr: addr.clone(), reason: cause.to_string() }
            }
            TcpBinding::NoCertificate { addr, error } => {
                let (reason, hint) = (crate::chain(error), error.hint());
                Http::NoCertificate { addr: addr.clone(), reason, hint }
            }
        }
    }
}

/// Binds the TCP port, if one is wanted, and reads the certificate, if TLS is. A port that is taken is no error, and
/// neither is a certificate that cannot be used.
pub async fn bind_tcp(wanted: Option<String>, tls: &Tls) -> Result<TcpBinding, ListenError> {
    let Some(addr) = wanted else { return Ok(TcpBinding::Off) };
    let scheme = match tls.read() {
        Ok(None) => Scheme::Http,
        Ok(Some(certificate)) => {
            tls.put(certificate);
            Scheme::Https
        }
        Err(error) => return Ok(TcpBinding::NoCertificate { addr, error }),
    };
    match try_tcp(&addr).await {
        Ok((listener, addr)) => Ok(TcpBinding::Bound { listener, addr, scheme }),
        Err(cause) if cause.kind() == std::io::ErrorKind::AddrInUse => {
            Ok(TcpBinding::Taken { addr, scheme, cause })
        }
        Err(cause) => Err(ListenError::Tcp { addr, cause }),
    }
}

async fn try_tcp(addr: &str) -> std::io::Result<(TcpListener, String)> {
    let tcp = TcpListener::bind(without_localhost(addr).as_ref()).await?;
    // The usual queue of 128 makes clients that come in a crowd wait for a second.
    rustix::net::listen(&tcp, ACCEPT_QUEUE)?;
    let bound = tcp.local_addr()?.to_string();
    Ok((tcp, bound))
}

/// Waits until a port that was taken is free, and takes it.
async fn take_when_free(addr: &str) -> (TcpListener, String) {
    let mut pause = TAKEN_RETRY_MIN;
    loop {
        tokio::time::sleep(pause).await;
        if let Ok(bound) = try_tcp(addr).await {
            return bound;
        }
        pause = (pause * 2).min(TAKEN_RETRY_MAX);
    }
}

/// Waits for a certificate that can be used, and takes the port.
async fn take_with_certificate(shell: &Shell, addr: &str) -> (TcpListener, String) {
    shell.tls.available().await;
    match try_tcp(addr).await {
        Ok(bound) => bound,
        // At startup an address that this host does not have would be an error. Here no caller waits for an answer.
        Err(cause) => {
            shell.set_http(Http::Taken { addr: addr.to_owned(), reason: cause.to_string() });
            take_when_free(addr).await
        }
    }
}

/// Binds the Unix socket, which is what clients wait for. Only the holder of the state directory's lock may call this: it
/// replaces a stale socket.
pub fn bind(socket: &Path, tcp: TcpBinding) -> Result<BoundListeners, ListenError> {
    Ok(BoundListeners { unix: bind_unix(socket)?, tcp })
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

impl BoundListeners {
    /// Serves both listeners until the daemon stops; then requests in flight may finish within `shutdown-timeout`.
    /// `listens` is called when a TCP port is bound late, before it is served.
    pub async fn serve(self, api: Arc<Api>, listens: impl Fn(&Http)) {
        let stop = &api.shell.stop;
        let mut servers = JoinSet::new();
        serve_one(&mut servers, &api, http::ListenerKind::Unix, ApiListener::new(self.unix));
        let late = |scheme: Scheme, (listener, addr): (TcpListener, String)| {
            let http = Http::Listening { addr: addr.clone(), scheme };
            api.shell.set_http(http.clone());
            listens(&http);
            (listener, addr, scheme)
        };
        let tcp = match self.tcp {
            TcpBinding::Off => None,
            TcpBinding::Bound { listener, addr, scheme } => Some((listener, addr, scheme)),
            TcpBinding::Taken { addr, scheme, .. } => tokio::select! {
                () = stop.cancelled() => None,
                taken = take_when_free(&addr) => Some(late(scheme, taken)),
            },
            TcpBinding::NoCertificate { addr, .. } => tokio::select! {
                () = stop.cancelled() => None,
                taken = take_with_certificate(&api.shell, &addr) => Some(late(Scheme::Https, taken)),
            },
        };
        match tcp {
            None => {}
            Some((listener, addr, Scheme::Http)) => {
                serve_one(&mut servers, &api, http::ListenerKind::Tcp(addr), ApiListener::new(listener));
            }
            Some((listener, addr, Scheme::Https)) => {
                let listener = TlsListener { listener, shell: api.shell.clone() };
                serve_one(&mut servers, &api, http::ListenerKind::Tls(addr), ApiListener::new(listener));
            }
        }
        stop.cancelled().await;
        let patience = api.shell.config.settings().shutdown_timeout;
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

fn serve_one<L>(
    servers: &mut JoinSet<std::io::Result<()>>,
    api: &Arc<Api>,
    door: http::ListenerKind,
    listener: ApiListener<L>,
) where
    ApiListener<L>: axum::serve::Listener<Addr = ()>,
    Connection: for<'a> Connected<IncomingStream<'a, ApiListener<L>>>,
{
    let service = http::router(api.clone(), door).into_make_service_with_connect_info::<Connection>();
    let stop = api.shell.stop.clone();
    servers.spawn(async move {
        axum::serve(listener, service).with_graceful_shutdown(stop.cancelled_owned()).await
    });
}

/// A listener and its connections.
struct ApiListener<L> {
    listener: L,
    connections: Arc<Connections>,
}

impl<L> ApiListener<L> {
    fn new(listener: L) -> Self {
        ApiListener { listener, connections: Connections::new() }
    }
}

impl axum::serve::Listener for ApiListener<UnixListener> {
    type Io = Stream<UnixStream>;
    type Addr = ();

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    // A peer that is gone already has no user.
                    let uid = stream.peer_cred().map_or(u32::MAX, |peer| peer.uid());
                    return (
                        Stream::new(stream, self.connections.admit(ConnectionOrigin::User(uid), None)),
                        (),
                    );
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        Ok(())
    }
}

impl axum::serve::Listener for ApiListener<TcpListener> {
    type Io = Stream<TcpStream>;
    type Addr = ();

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, place) = accept_tcp(&self.listener, &self.connections).await;
        (Stream::new(stream, place), ())
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        Ok(())
    }
}

/// A TCP listener that accepts only TLS connections.
struct TlsListener {
    listener: TcpListener,
    shell: Arc<Shell>,
}

impl axum::serve::Listener for ApiListener<TlsListener> {
    type Io = Stream<TlsSocket>;
    type Addr = ();

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, place) = accept_tcp(&self.listener.listener, &self.connections).await;
            // A certificate exists before the listener is served. Each connection gets the current one.
            if let Some(certificate) = self.listener.shell.tls.current() {
                return (Stream::new(TlsSocket::new(stream, certificate.server()), place), ());
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        Ok(())
    }
}

/// The next connection, with a place among those without a token.
async fn accept_tcp(listener: &TcpListener, connections: &Arc<Connections>) -> (TcpStream, ConnectionSlot) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if let Ok(local) = prepared(&stream) {
                    return (stream, connections.admit(ConnectionOrigin::of_address(peer.ip()), Some(local)));
                }
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Without TCP_NODELAY every small answer waits for the peer's delayed acknowledgement.
fn prepared(stream: &TcpStream) -> std::io::Result<SocketAddr> {
    stream.set_nodelay(true)?;
    stream.local_addr()
}

impl Connected<IncomingStream<'_, ApiListener<UnixListener>>> for Connection {
    fn connect_info(stream: IncomingStream<'_, ApiListener<UnixListener>>) -> Self {
        stream.io().connection().clone()
    }
}

impl Connected<IncomingStream<'_, ApiListener<TcpListener>>> for Connection {
    fn connect_info(stream: IncomingStream<'_, ApiListener<TcpListener>>) -> Self {
        stream.io().connection().clone()
    }
}

impl Connected<IncomingStream<'_, ApiListener<TlsListener>>> for Connection {
    fn connect_info(stream: IncomingStream<'_, ApiListener<TlsListener>>) -> Self {
        stream.io().connection().clone()
    }
}
