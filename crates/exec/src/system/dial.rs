//! Connects to a keeper and verifies it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use lodge_link::{
    Assembler, ConnectionRefused, Hello, KeeperChallenge, KeeperSecret, NONCE_LEN, RefusalReason,
    SOCKET_FILE, VERSION, Welcome, daemon_proof, is_valid_id, keeper_proof, limits, same_bytes,
};
use tokio::net::UnixStream;

use super::SystemExecutor;
use super::socket;
use crate::error::DialError;
use crate::link::Link;

/// How long a keeper may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Between two attempts when the keeper's queue of callers is full.
const FULL_PAUSE: Duration = Duration::from_millis(2);
const SO_PEERPIDFD: libc::c_int = 77;

impl SystemExecutor {
    pub(super) async fn connect(
        &self,
        sandbox: &str,
        secret: &KeeperSecret,
        epoch: u64,
    ) -> Result<Link, DialError> {
        if !is_valid_id(sandbox) {
            return Err(DialError::BadId { sandbox: sandbox.to_owned() });
        }
        let dialled =
            tokio::time::timeout(ANSWER_WITHIN, self.dial_until_answered(sandbox, secret, epoch)).await;
        let waited_ms = u64::try_from(ANSWER_WITHIN.as_millis()).unwrap_or(u64::MAX);
        dialled.unwrap_or(Err(DialError::TimedOut { sandbox: sandbox.to_owned(), waited_ms }))
    }

    async fn dial_until_answered(
        &self,
        sandbox: &str,
        secret: &KeeperSecret,
        epoch: u64,
    ) -> Result<Link, DialError> {
        let no_keeper = |cause| DialError::NoKeeper { sandbox: sandbox.to_owned(), cause };
        let dir = File::open(self.run.join(sandbox)).map_err(no_keeper)?;
        // Through the descriptor, because socket paths are limited to 108 bytes.
        let path = format!("/proc/self/fd/{}/{SOCKET_FILE}", dir.as_raw_fd());
        let stream = loop {
            match UnixStream::connect(&path).await {
                Ok(stream) => break stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(FULL_PAUSE).await;
                }
                Err(error) => return Err(no_keeper(error)),
            }
        };
        // Opened before the proof, so that it refers to the process that answers, not to a later one.
        let pidfd = peer_pidfd(&stream).ok();
        let mut input = Assembler::default();
        let welcome = shake_hands(&stream, &mut input, sandbox, secret, epoch).await?;
        if !self.is_locked(sandbox) {
            return Err(DialError::Impostor { sandbox: sandbox.to_owned() });
        }
        Ok(socket::link(welcome, stream, input, pidfd))
    }
}

async fn shake_hands(
    stream: &UnixStream,
    input: &mut Assembler,
    sandbox: &str,
    secret: &KeeperSecret,
    epoch: u64,
) -> Result<Welcome, DialError> {
    let garbled = |cause| DialError::Garbled { sandbox: sandbox.to_owned(), cause };
    let broke = |cause| DialError::Broke { sandbox: sandbox.to_owned(), cause };
    let frame = frame(stream, input, sandbox).await?;
    let challenge = match KeeperChallenge::decode(frame.raw()).map_err(|cause| garbled(Some(cause)))? {
        Some(challenge) => challenge,
        None => return Err(refusal_of(&frame, sandbox)),
    };
    let mut nonce = [0; NONCE_LEN];
    fill_random(&mut nonce).map_err(broke)?;
    let mut hello = Hello { version: VERSION, epoch, nonce, proof: [0; 32] };
    hello.proof = daemon_proof(secret, &challenge, &hello);
    let mut bytes = Vec::new();
    hello.append_to(&mut bytes);
    socket::write_all(stream, &bytes).await.map_err(broke)?;

    let answer = self::frame(stream, input, sandbox).await?;
    let welcome = match Welcome::decode(answer.raw()).map_err(|cause| garbled(Some(cause)))? {
        Some(welcome) => welcome,
        None => return Err(refusal_of(&answer, sandbox)),
    };
    if !same_bytes(&welcome.proof, &keeper_proof(secret, &challenge, &hello)) {
        return Err(DialError::Impostor { sandbox: sandbox.to_owned() });
    }
    Ok(welcome)
}

/// A frame of the handshake, owned.
struct HandshakeFrame {
    kind: u8,
    payload: Vec<u8>,
}

impl HandshakeFrame {
    fn raw(&self) -> lodge_link::RawFrame<'_> {
        lodge_link::RawFrame { kind: self.kind, payload: &self.payload }
    }
}

async fn frame(
    stream: &UnixStream,
    input: &mut Assembler,
    sandbox: &str,
) -> Result<HandshakeFrame, DialError> {
    loop {
        match input.next_frame(limits::FRAME_MAX) {
            Ok(Some(frame)) => {
                return Ok(HandshakeFrame { kind: frame.kind, payload: frame.payload.to_vec() });
            }
            Ok(None) => {}
            Err(_) => return Err(DialError::Garbled { sandbox: sandbox.to_owned(), cause: None }),
        }
        let read = socket::read_some(stream, input).await;
        if let Err(cause) = read {
            return Err(DialError::Broke { sandbox: sandbox.to_owned(), cause });
        }
    }
}

fn refusal_of(frame: &HandshakeFrame, sandbox: &str) -> DialError {
    let sandbox = sandbox.to_owned();
    match ConnectionRefused::decode(frame.raw()) {
        Ok(Some(ConnectionRefused { why: RefusalReason::BadProof })) => DialError::WrongSecret { sandbox },
        Ok(Some(ConnectionRefused { why: RefusalReason::OldEpoch { current } })) => {
            DialError::OldEpoch { sandbox, current }
        }
        Ok(Some(ConnectionRefused { why: RefusalReason::TooManyWaiting })) => DialError::Busy { sandbox },
        Ok(None) => DialError::Garbled { sandbox, cause: None },
        Err(cause) => DialError::Garbled { sandbox, cause: Some(cause) },
    }
}

/// The process that listens on the other end, as something that its pid's next owner cannot become.
fn peer_pidfd(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut pidfd: RawFd = -1;
    let mut len = size_of::<RawFd>() as libc::socklen_t;
    // SAFETY: the kernel writes one descriptor, whose size is announced.
    let got = unsafe {
        let to = (&raw mut pidfd).cast();
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, to, &mut len)
    };
    if got == 0 {
        // SAFETY: the call returned this descriptor, and nothing else owns it.
        return Ok(unsafe { OwnedFd::from_raw_fd(pidfd) });
    }
    // Kernels before 6.5 name the peer by its pid only.
    let pid = stream.peer_cred()?.pid().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    Ok(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?)
}

fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    // SAFETY: the kernel writes at most the slice's length into it.
    let len = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if usize::try_from(len) == Ok(bytes.len()) { Ok(()) } else { Err(io::Error::last_os_error()) }
}
