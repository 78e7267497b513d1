//! Opening a connection on which a token may be sent: the daemon is verified first.
//!
//! Owns: what a client shows and to whom, addresses, peer credentials, asking for a proof. Never: calls.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UnixStream};

use crate::client::{ClientError, ClientIo, Target};
use crate::http_answer::{HttpAnswer, read_answer};
use crate::proof::{self, Nonce, Proof};
use crate::random::random_bytes;
use crate::rpc::Response;
use crate::tls::{self, TlsError};

/// The longest answer that is read from an unauthenticated peer.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// A token, and what is known of the daemon that it is for.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    token: String,
    /// The owner of the file that the token was read from.
    owner: Option<u32>,
    /// The address on which the daemon listens, where that is not the one that is dialled.
    listens_at: Option<SocketAddr>,
    /// The authorities that may have issued its certificate; those of the system otherwise.
    ca_file: Option<PathBuf>,
}

impl Login {
    pub fn new(token: impl Into<String>) -> Login {
        Login { token: token.into(), owner: None, listens_at: None, ca_file: None }
    }

    /// The token was read from a file of this user, and is sent through Unix sockets of that user or root only.
    #[must_use]
    pub fn owned_by(self, uid: u32) -> Login {
        Login { owner: Some(uid), ..self }
    }

    /// The daemon is dialled through something that forwards connections to this address.
    #[must_use]
    pub fn listening_at(self, addr: Option<SocketAddr>) -> Login {
        Login { listens_at: addr.map(proof::canonical), ..self }
    }

    /// Over TLS only the authorities in this PEM file are trusted, in place of those of the system.
    #[must_use]
    pub fn trusting(self, ca_file: Option<PathBuf>) -> Login {
        Login { ca_file, ..self }
    }

    pub fn is_empty(&self) -> bool {
        self.token.is_empty()
    }

    /// Where the token goes into a request: it must be there in one piece.
    pub(crate) fn bearer(&self, target: &Target) -> Result<String, ClientError> {
        // A line's end in it would begin another header.
        if self.token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(format!("Bearer {}", self.token));
        }
        let (target, detail) = (target.clone(), "the token cannot be sent".to_owned());
        Err(ClientError::Handshake { target, status: None, body: None, detail })
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("token", &"[secret]").finish_non_exhaustive()
    }
}

impl From<&str> for Login {
    fn from(token: &str) -> Login {
        Login::new(token)
    }
}

impl From<&String> for Login {
    fn from(token: &String) -> Login {
        Login::new(token)
    }
}

impl From<&Login> for Login {
    fn from(login: &Login) -> Login {
        login.clone()
    }
}

/// Why a token was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unverified {
    #[error("what listens there runs as uid {uid}; the daemon would run as {expected}")]
    Peer { uid: u32, expected: String },
    #[error("this is not a Lodge token")]
    NotAToken,
    #[error("it did not prove that it knows the token: {detail}")]
    NoProof { detail: String },
    #[error("its proof is wrong")]
    WrongProof,
    #[error("the daemon listens on {told}, and what was dialled is {dialled}")]
    OtherAddress { told: SocketAddr, dialled: SocketAddr },
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl Unverified {
    pub fn hint(&self) -> &'static str {
        match self {
            Unverified::Peer { .. } => "check the path of the socket, and who owns the directory it lies in",
            Unverified::NotAToken => "set LODGE_TOKEN to what `lodge token issue` printed, or unset it",
            Unverified::NoProof { .. } => {
                "another program listens there, or a daemon of an older release: check the address, or use the \
                 daemon's Unix socket"
            }
            Unverified::WrongProof => {
                "another program or another daemon listens there: check the address, and that the token was issued \
                 by that daemon"
            }
            Unverified::OtherAddress { .. } => {
                "dial the daemon's own address; if a tunnel that you trust leads there, set LODGE_DAEMON_ADDR to it"
            }
            Unverified::Tls(error) => error.hint(),
        }
    }
}

/// A connection on which a token may be sent.
pub(crate) struct DaemonConnection<'t> {
    pub(crate) io: Box<dyn ClientIo>,
    /// The host's name that goes with it.
    pub(crate) host: &'t str,
    /// The daemon's process, where it can be seen from here.
    pub(crate) pid: Option<i32>,
}

/// Opens a connection on which this token may be sent.
pub(crate) async fn dial<'t>(target: &'t Target, login: &Login) -> Result<DaemonConnection<'t>, ClientError> {
    let no_daemon = |cause| ClientError::NoDaemon { target: target.clone(), cause };
    let unverified = |why| ClientError::Unverified { target: target.clone(), why };
    match target {
        Target::Unix(path) => {
            let stream = connect_unix(path).await.map_err(no_daemon)?;
            let peer = stream.peer_cred().map_err(no_daemon)?;
            // Without a token there is nothing to protect.
            if !login.is_empty() {
                check_peer(peer.uid(), path, login).map_err(unverified)?;
            }
            Ok(DaemonConnection { io: Box::new(stream), host: "localhost", pid: peer.pid() })
        }
        Target::Tcp(addr) => {
            let mut stream = connect_tcp(addr).await.map_err(no_daemon)?;
            if !login.is_empty() {
                let dialled = stream.peer_addr().map_err(no_daemon)?;
                let expected = login.listens_at.unwrap_or_else(|| proof::canonical(dialled));
                verify(&mut stream, target, addr, login, Some(expected)).await?;
            }
            Ok(DaemonConnection { io: Box::new(stream), host: addr, pid: None })
        }
        Target::Tls(addr) => {
            let stream = connect_tcp(addr).await.map_err(no_daemon)?;
            let secured = tls::connect(stream, addr, login.ca_file.as_deref()).await.map_err(no_daemon)?;
            let mut stream = secured.map_err(|error| unverified(Unverified::Tls(error)))?;
            if !login.is_empty() {
                // A relay cannot forward the question without a certificate for this name, so any address is accepted,
                // for example behind a forwarded port.
                verify(&mut stream, target, addr, login, login.listens_at).await?;
            }
            Ok(DaemonConnection { io: Box::new(stream), host: addr, pid: None })
        }
    }
}

async fn connect_tcp(addr: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(proof::without_localhost(addr).as_ref()).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A token of a file goes to the file's owner. One that was given otherwise goes to the user who gave it, or to the owner
/// of the directory that has the socket. Root may read every token anyway.
fn check_peer(uid: u32, socket: &Path, login: &Login) -> Result<(), Unverified> {
    let expected = match login.owner {
        Some(owner) => vec![owner],
        None => {
            let dir = socket.parent().and_then(|dir| std::fs::metadata(dir).ok()).map(|dir| dir.uid());
            let own = rustix::process::geteuid().as_raw();
            [Some(own), dir.filter(|dir| *dir != own)].into_iter().flatten().collect()
        }
    };
    if uid == 0 || expected.contains(&uid) {
        return Ok(());
    }
    let mut expected: Vec<String> =
        expected.iter().filter(|uid| **uid != 0).map(|uid| format!("uid {uid}")).collect();
    expected.push("root".to_owned());
    Err(Unverified::Peer { uid, expected: expected.join(" or ") })
}

/// Has the listener prove that it is the daemon of this token, on the connection that the token is sent on, and that
/// it listens at the expected address, if one is.
async fn verify(
    stream: &mut impl ClientIo,
    target: &Target,
    host: &str,
    login: &Login,
    expected: Option<SocketAddr>,
) -> Result<(), ClientError> {
    let no_daemon = |cause| ClientError::NoDaemon { target: target.clone(), cause };
    let unverified = |why| ClientError::Unverified { target: target.clone(), why };
    let id = proof::token_id(&login.token).ok_or_else(|| unverified(Unverified::NotAToken))?;
    let nonce: Nonce = random_bytes().map_err(no_daemon)?;
    let asked = format!("GET {} HTTP/1.1\r\nhost: {host}\r\n\r\n", proof::path(&id, &nonce));
    stream.write_all(asked.as_bytes()).await.map_err(no_daemon)?;
    let no_proof = |detail: &str| unverified(Unverified::NoProof { detail: detail.to_owned() });
    let no_answer = |_| no_proof("it gave no answer, or not one of a daemon's");
    let HttpAnswer { status, body, .. } = read_answer(&mut *stream).await.map_err(no_answer)?;
    let body = body.whole(ANSWER_BYTES_MAX).await.map_err(no_answer)?;
    let status = status.ok_or(ClientError::Lost).map_err(no_answer)?;
    if status != 200 {
        return Err(refused(target, status, &body));
    }
    let proof: Proof = serde_json::from_slice(&body).map_err(|_| no_proof("its answer is not a proof"))?;
    if !proof.is_right(&login.token, &nonce) {
        return Err(unverified(Unverified::WrongProof));
    }
    match expected {
        Some(dialled) if dialled != proof.addr => {
            Err(unverified(Unverified::OtherAddress { told: proof.addr, dialled }))
        }
        Some(_) | None => Ok(()),
    }
}

/// What a daemon says in place of a proof. Nothing of it can be relied on, and the sender learned nothing.
fn refused(target: &Target, status: u16, body: &[u8]) -> ClientError {
    let said = serde_json::from_slice::<Response>(body).ok().and_then(|answer| answer.error);
    match said {
        Some(error) if ["auth.", "daemon."].iter().any(|kind| error.data.code.starts_with(kind)) => {
            let (target, detail) = (target.clone(), String::new());
            ClientError::Handshake { target, status: Some(status), body: Some(Box::new(error)), detail }
        }
        _ => {
            let why = Unverified::NoProof { detail: format!("it answered with HTTP status {status}") };
            ClientError::Unverified { target: target.clone(), why }
        }
    }
}

/// Connects to a socket whose path may be longer than the 108 bytes the kernel takes: through the directory's
/// descriptor.
async fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    const SUN_PATH_MAX: usize = 107;
    if path.as_os_str().len() <= SUN_PATH_MAX {
        return UnixStream::connect(path).await;
    }
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    let dir = std::fs::File::open(dir)?;
    let short = Path::new("/proc/self/fd").join(std::os::fd::AsRawFd::as_raw_fd(&dir).to_string()).join(name);
    UnixStream::connect(short).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_of_a_file_goes_to_the_files_owner_or_root() {
        let login = Login::new("t").owned_by(1_001);
        let check = |uid| check_peer(uid, Path::new("/tmp/x.sock"), &login);
        assert_eq!((check(1_001), check(0)), (Ok(()), Ok(())));
        assert!(matches!(check(1_002), Err(Unverified::Peer { uid: 1_002, .. })));
    }

    #[test]
    fn a_token_that_was_given_goes_to_its_user_the_directorys_owner_or_root() {
        let own = rustix::process::geteuid().as_raw();
        let check = |uid| check_peer(uid, Path::new("/tmp/x.sock"), &Login::new("t"));
        assert_eq!((check(own), check(0)), (Ok(()), Ok(())));
        assert!(check(own + 54_321).is_err());
    }

    #[test]
    fn a_login_never_prints_its_token() {
        assert!(!format!("{:?}", Login::new("secret-value")).contains("secret-value"));
    }
}
