//! Connections to the socket: unproven until the handshake, then the one daemon.
//!
//! Owns: the handshake and the buffers of a connection. Never: what a command means.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use lodge_link::{
    Assembler, ConnectionRefused, Hello, KeeperChallenge, KeeperCommand, KeeperEvent, KeeperSecret,
    NONCE_LEN, RefusalReason, VERSION, daemon_proof, limits, same_bytes,
};

use crate::sys;

/// How long a stranger may take to prove itself.
pub(crate) const STRANGER_WITHIN: Duration = Duration::from_secs(5);
/// Most strangers at a time.
pub(crate) const STRANGERS_MAX: usize = 8;
/// Above this the runtime is not read until the daemon has read.
pub(crate) const OUT_SOFT_MAX: usize = 256 * 1024;
/// Above this the daemon is not read either. The runtime alone never fills it, however long its lines, or
/// a daemon that sends before it reads would wait for a keeper that waits for it.
pub(crate) const OUT_HARD_MAX: usize = OUT_SOFT_MAX + limits::FRAME_MAX + OUT_SLACK;
/// For what comes on top of one line: many short ones in the last reads of a runtime that ended, each with
/// its frame around it.
const OUT_SLACK: usize = 8 * 1024 * 1024;
const READ_MAX: usize = 8 * 1024;
/// Most reads before other descriptors get their turn.
const READS_MAX: usize = 64;

/// A connection that proved nothing yet.
#[derive(Debug)]
pub(crate) struct UnprovenPeer {
    pub(crate) serial: u64,
    pub(crate) stream: UnixStream,
    pub(crate) until: Instant,
    challenge: KeeperChallenge,
    input: Assembler,
}

/// What a stranger turned out to be.
#[derive(Debug)]
pub(crate) enum HandshakeResult {
    /// It has not sent enough.
    Waiting,
    Gone,
    /// It knows the secret.
    Proven(KeeperChallenge, Hello),
    Liar,
}

impl UnprovenPeer {
    /// Challenges a new connection.
    pub(crate) fn challenge(stream: UnixStream, serial: u64, now: Instant) -> io::Result<UnprovenPeer> {
        stream.set_nonblocking(true)?;
        let mut nonce = [0; NONCE_LEN];
        sys::random(&mut nonce)?;
        let challenge = KeeperChallenge { version: VERSION, nonce };
        let mut bytes = Vec::new();
        challenge.append_to(&mut bytes);
        // An empty socket takes this much at once, or something is wrong with it.
        (&stream).write_all(&bytes)?;
        Ok(UnprovenPeer {
            serial,
            stream,
            until: now + STRANGER_WITHIN,
            challenge,
            input: Assembler::default(),
        })
    }

    pub(crate) fn read(&mut self, secret: &KeeperSecret) -> HandshakeResult {
        let mut chunk = [0; limits::STRANGER_FRAME_MAX];
        match (&self.stream).read(&mut chunk) {
            Ok(0) => return HandshakeResult::Gone,
            Ok(len) => self.input.push(&chunk[..len]),
            Err(error) if is_passing(&error) => return HandshakeResult::Waiting,
            Err(_) => return HandshakeResult::Gone,
        }
        let Ok(frame) = self.input.next_frame(limits::STRANGER_FRAME_MAX) else {
            return HandshakeResult::Liar;
        };
        let Some(frame) = frame else { return HandshakeResult::Waiting };
        match Hello::decode(frame) {
            Ok(Some(hello)) => {
                if same_bytes(&hello.proof, &daemon_proof(secret, &self.challenge, &hello)) {
                    HandshakeResult::Proven(self.challenge.clone(), hello)
                } else {
                    HandshakeResult::Liar
                }
            }
            Ok(None) | Err(_) => HandshakeResult::Liar,
        }
    }

    /// Sends the reason for a refusal. The peer may ignore it.
    pub(crate) fn refuse(&self, why: RefusalReason) {
        refuse(&self.stream, why);
    }

    /// The proven stranger's connection. What it sent after its hello is kept.
    pub(crate) fn into_daemon(self, epoch: u64, welcome: Vec<u8>) -> DaemonPeer {
        let delayed = DelayedEvents::default();
        DaemonPeer { stream: self.stream, epoch, input: self.input, out: welcome, sent: 0, delayed }
    }
}

pub(crate) fn refuse(mut stream: &UnixStream, why: RefusalReason) {
    let mut bytes = Vec::new();
    ConnectionRefused { why }.append_to(&mut bytes);
    if stream.write_all(&bytes).is_err() {}
}

/// The daemon that drives this keeper.
#[derive(Debug)]
pub(crate) struct DaemonPeer {
    pub(crate) stream: UnixStream,
    pub(crate) epoch: u64,
    input: Assembler,
    pub(crate) out: Vec<u8>,
    sent: usize,
    delayed: DelayedEvents,
}

/// Events that the daemon does not wait for. They are sent with the next one that it does.
#[derive(Debug, Default)]
struct DelayedEvents {
    bytes: Vec<u8>,
    /// When they are sent alone.
    until: Option<Instant>,
}

/// The connection is no longer usable.
#[derive(Debug)]
pub(crate) struct ConnectionLost;

impl DaemonPeer {
    /// Bytes that the daemon has not taken yet.
    pub(crate) fn behind(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Adds an event, behind those that were delayed.
    pub(crate) fn queue(&mut self, event: &KeeperEvent) {
        self.queue_delayed();
        event.append_to(&mut self.out);
    }

    /// Adds an event that may be sent as late as that.
    pub(crate) fn delay(&mut self, event: &KeeperEvent, until: Instant) {
        event.append_to(&mut self.delayed.bytes);
        self.delayed.until.get_or_insert(until);
    }

    pub(crate) fn delayed_until(&self) -> Option<Instant> {
        self.delayed.until
    }

    pub(crate) fn queue_delayed(&mut self) {
        self.delayed.until = None;
        self.out.append(&mut self.delayed.bytes);
    }

    /// Takes in what the daemon sent.
    pub(crate) fn read(&mut self) -> Result<(), ConnectionLost> {
        let mut chunk = [0; READ_MAX];
        for _ in 0..READS_MAX {
            match (&self.stream).read(&mut chunk) {
                Ok(0) => return Err(ConnectionLost),
                Ok(len) => {
                    self.input.push(&chunk[..len]);
                    if len < chunk.len() {
                        return Ok(());
                    }
                }
                Err(error) if is_passing(&error) => return Ok(()),
                Err(_) => return Err(ConnectionLost),
            }
        }
        Ok(())
    }

    /// The next whole command. Types of a later version are passed over.
    pub(crate) fn next_command(&mut self) -> Result<Option<KeeperCommand>, ConnectionLost> {
        loop {
            let frame = self.input.next_frame(limits::FRAME_MAX).map_err(|_| ConnectionLost)?;
            let Some(frame) = frame else { return Ok(None) };
            match KeeperCommand::decode(frame) {
                Ok(Some(command)) => return Ok(Some(command)),
                Ok(None) => {}
                Err(_) => return Err(ConnectionLost),
            }
        }
    }

    /// Sends what the socket takes.
    pub(crate) fn write(&mut self) -> Result<(), ConnectionLost> {
        while self.sent < self.out.len() {
            match (&self.stream).write(&self.out[self.sent..]) {
                Ok(0) => return Err(ConnectionLost),
                Ok(len) => self.sent += len,
                Err(error) if is_passing(&error) => return Ok(()),
                Err(_) => return Err(ConnectionLost),
            }
        }
        self.out.clear();
        self.out.shrink_to(READ_MAX);
        self.sent = 0;
        Ok(())
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
