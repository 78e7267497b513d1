//! An established link: commands in one direction, events in the other.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use lodge_link::{Assembler, KeeperCommand, KeeperEvent, Welcome, limits};
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use crate::error::SendError;

const READ_MAX: usize = 16 * 1024;

/// A proven connection to a keeper.
#[derive(Debug)]
pub struct Link {
    pub welcome: Welcome,
    sender: Sender,
    receiver: Receiver,
}

/// Sends commands. Clones share the connection.
#[derive(Debug, Clone)]
pub struct Sender {
    shared: Arc<LinkSocket>,
}

/// Receives events, in the order in which the keeper told them.
#[derive(Debug)]
pub struct Receiver {
    shared: Arc<LinkSocket>,
    input: Assembler,
}

#[derive(Debug)]
struct LinkSocket {
    stream: UnixStream,
    /// Locked while a frame is written, so that frames do not mix.
    writing: Mutex<()>,
    pidfd: Option<OwnedFd>,
}

impl Link {
    pub(crate) fn new(
        welcome: Welcome,
        stream: UnixStream,
        input: Assembler,
        pidfd: Option<OwnedFd>,
    ) -> Link {
        let shared = Arc::new(LinkSocket { stream, writing: Mutex::new(()), pidfd });
        Link { welcome, sender: Sender { shared: shared.clone() }, receiver: Receiver { shared, input } }
    }

    pub fn sender(&self) -> Sender {
        self.sender.clone()
    }

    pub async fn send(&self, command: &KeeperCommand) -> Result<(), SendError> {
        self.sender.send(command).await
    }

    /// As [`Receiver::next`].
    pub async fn next(&mut self) -> Option<KeeperEvent> {
        self.receiver.next().await
    }

    pub fn split(self) -> (Welcome, Sender, Receiver) {
        (self.welcome, self.sender, self.receiver)
    }
}

impl Sender {
    /// Hands a command to the connection, whole or not at all: dropped halfway, it closes the link.
    pub async fn send(&self, command: &KeeperCommand) -> Result<(), SendError> {
        let mut bytes = Vec::new();
        command.append_to(&mut bytes);
        if bytes.len() > limits::FRAME_MAX {
            return Err(SendError::TooLong { len: bytes.len(), len_max: limits::FRAME_MAX });
        }
        let _turn = self.shared.writing.lock().await;
        let unless_done = CloseUnlessSent { shared: &self.shared };
        match write_all(&self.shared.stream, &bytes).await {
            Ok(()) => {
                std::mem::forget(unless_done);
                Ok(())
            }
            Err(cause) => Err(SendError::Lost { cause: Some(cause) }),
        }
    }

    /// Kills the keeper of this link, and with it everything in its namespace.
    ///
    /// For a keeper that does not answer. Otherwise send [`KeeperCommand::End`].
    pub fn kill_keeper(&self) -> io::Result<()> {
        match &self.shared.pidfd {
            Some(pidfd) => Ok(rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL)?),
            None => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }

    /// Waits until the keeper of this link has ended, regardless of its files. False: it is alive.
    ///
    /// Also true if the kernel does not name the process at the other end; then only its lock can tell.
    pub async fn wait_ended(&self, within: std::time::Duration) -> bool {
        let Some(pidfd) = &self.shared.pidfd else { return true };
        let ended = async {
            let pidfd = crate::gone::watch(pidfd.try_clone()?)?;
            pidfd.readable().await?.retain_ready();
            io::Result::Ok(())
        };
        matches!(tokio::time::timeout(within, ended).await, Ok(Ok(())))
    }

    /// Closes the link for all who share it.
    pub fn close(&self) {
        self.shared.close();
    }
}

/// Half a frame would make nonsense of everything after it.
struct CloseUnlessSent<'a> {
    shared: &'a LinkSocket,
}

impl Drop for CloseUnlessSent<'_> {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl LinkSocket {
    fn close(&self) {
        // A connection that is closed already is what was wanted.
        if rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Both).is_err() {}
    }
}

impl Receiver {
    /// The next event. `None`: the connection is lost, or the keeper speaks nonsense, which is the same.
    ///
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<KeeperEvent> {
        loop {
            loop {
                match self.input.next_frame(limits::FRAME_MAX) {
                    Ok(Some(frame)) => match KeeperEvent::decode(frame) {
                        Ok(Some(event)) => return Some(event),
                        Ok(None) => {}
                        Err(_) => return self.lost(),
                    },
                    Ok(None) => break,
                    Err(_) => return self.lost(),
                }
            }
            if read_some(&self.shared.stream, &mut self.input).await.is_err() {
                return self.lost();
            }
        }
    }

    fn lost(&self) -> Option<KeeperEvent> {
        self.shared.close();
        None
    }
}

/// Reads what is there, at least one byte.
pub(crate) async fn read_some(stream: &UnixStream, input: &mut Assembler) -> io::Result<()> {
    loop {
        stream.readable().await?;
        let mut chunk = [0; READ_MAX];
        match stream.try_read(&mut chunk) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => {
                input.push(&chunk[..len]);
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

pub(crate) async fn write_all(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
