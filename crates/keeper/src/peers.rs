//! Whoever dials the socket: strangers until they prove themselves, then the one daemon.
//!
//! Owns: the handshake and the buffers of a connection. Never: what a command means.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use lodge_link::{
    Assembler, Challenge, Command, Hello, NONCE_LEN, Secret, TurnedAway, TurnedAwayWhy, VERSION,
    daemon_proof, limits, same_bytes,
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
pub(crate) struct Stranger {
    pub(crate) serial: u64,
    pub(crate) stream: UnixStream,
    pub(crate) until: Instant,
    challenge: Challenge,
    input: Assembler,
}

/// What a stranger turned out to be.
#[derive(Debug)]
pub(crate) enum Met {
    /// It has not said enough.
    Waiting,
    Gone,
    /// It knows the secret.
    Proven(Challenge, Hello),
    Liar,
}

impl Stranger {
    /// Challenges a new connection.
    pub(crate) fn meet(stream: UnixStream, serial: u64, now: Instant) -> io::Result<Stranger> {
        stream.set_nonblocking(true)?;
        let mut nonce = [0; NONCE_LEN];
        sys::random(&mut nonce)?;
        let challenge = Challenge { version: VERSION, nonce };
        let mut bytes = Vec::new();
        challenge.append_to(&mut bytes);
        // An empty socket takes this much at once, or something is wrong with it.
        (&stream).write_all(&bytes)?;
        Ok(Stranger { serial, stream, until: now + STRANGER_WITHIN, challenge, input: Assembler::default() })
    }

    pub(crate) fn read(&mut self, secret: &Secret) -> Met {
        let mut chunk = [0; limits::STRANGER_FRAME_MAX];
        match (&self.stream).read(&mut chunk) {
            Ok(0) => return Met::Gone,
            Ok(len) => self.input.push(&chunk[..len]),
            Err(error) if is_passing(&error) => return Met::Waiting,
            Err(_) => return Met::Gone,
        }
        let Ok(frame) = self.input.next_frame(limits::STRANGER_FRAME_MAX) else { return Met::Liar };
        let Some(frame) = frame else { return Met::Waiting };
        match Hello::decode(frame) {
            Ok(Some(hello)) => {
                if same_bytes(&hello.proof, &daemon_proof(secret, &self.challenge, &hello)) {
                    Met::Proven(self.challenge.clone(), hello)
                } else {
                    Met::Liar
                }
            }
            Ok(None) | Err(_) => Met::Liar,
        }
    }

    /// Says why it is not served. Whether it hears that is its own affair.
    pub(crate) fn turn_away(&self, why: TurnedAwayWhy) {
        turn_away(&self.stream, why);
    }

    /// The proven stranger's connection. What it sent after its hello is kept.
    pub(crate) fn into_daemon(self, epoch: u64, welcome: Vec<u8>) -> Daemon {
        Daemon { stream: self.stream, epoch, input: self.input, out: welcome, sent: 0 }
    }
}

pub(crate) fn turn_away(mut stream: &UnixStream, why: TurnedAwayWhy) {
    let mut bytes = Vec::new();
    TurnedAway { why }.append_to(&mut bytes);
    if stream.write_all(&bytes).is_err() {}
}

/// The daemon that drives this keeper.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) stream: UnixStream,
    pub(crate) epoch: u64,
    input: Assembler,
    pub(crate) out: Vec<u8>,
    sent: usize,
}

/// The connection is of no use any more.
#[derive(Debug)]
pub(crate) struct Lost;

impl Daemon {
    /// Bytes that the daemon has not taken yet.
    pub(crate) fn behind(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Takes in what the daemon sent.
    pub(crate) fn read(&mut self) -> Result<(), Lost> {
        let mut chunk = [0; READ_MAX];
        for _ in 0..READS_MAX {
            match (&self.stream).read(&mut chunk) {
                Ok(0) => return Err(Lost),
                Ok(len) => {
                    self.input.push(&chunk[..len]);
                    if len < chunk.len() {
                        return Ok(());
                    }
                }
                Err(error) if is_passing(&error) => return Ok(()),
                Err(_) => return Err(Lost),
            }
        }
        Ok(())
    }

    /// The next whole command. Types of a later version are passed over.
    pub(crate) fn next_command(&mut self) -> Result<Option<Command>, Lost> {
        loop {
            let frame = self.input.next_frame(limits::FRAME_MAX).map_err(|_| Lost)?;
            let Some(frame) = frame else { return Ok(None) };
            match Command::decode(frame) {
                Ok(Some(command)) => return Ok(Some(command)),
                Ok(None) => {}
                Err(_) => return Err(Lost),
            }
        }
    }

    /// Sends what the socket takes.
    pub(crate) fn write(&mut self) -> Result<(), Lost> {
        while self.sent < self.out.len() {
            match (&self.stream).write(&self.out[self.sent..]) {
                Ok(0) => return Err(Lost),
                Ok(len) => self.sent += len,
                Err(error) if is_passing(&error) => return Ok(()),
                Err(_) => return Err(Lost),
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
