//! An established link over a Unix socket.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use lodge_link::{Assembler, KeeperCommand, KeeperEvent, Welcome, limits};
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use super::gone;
use crate::error::SendError;
use crate::executor::ExecFuture;
use crate::link::{Link, LinkReceiver, LinkSender};

const READ_MAX: usize = 16 * 1024;

#[derive(Debug)]
struct LinkSocket {
    stream: UnixStream,
    /// Locked while a frame is written, so that frames do not mix.
    writing: Mutex<()>,
    /// The keeper's process. None: the kernel does not name it.
    pidfd: Option<OwnedFd>,
}

#[derive(Debug)]
struct SocketReceiver {
    socket: Arc<LinkSocket>,
    input: Assembler,
}

pub(super) fn link(welcome: Welcome, stream: UnixStream, input: Assembler, pidfd: Option<OwnedFd>) -> Link {
    let socket = Arc::new(LinkSocket { stream, writing: Mutex::new(()), pidfd });
    Link { welcome, sender: socket.clone(), receiver: Box::new(SocketReceiver { socket, input }) }
}

impl LinkSender for LinkSocket {
    fn send<'a>(&'a self, command: &'a KeeperCommand) -> ExecFuture<'a, Result<(), SendError>> {
        Box::pin(self.send_frame(command))
    }

    fn kill_keeper(&self) -> ExecFuture<'_, io::Result<()>> {
        Box::pin(async move {
            match &self.pidfd {
                Some(pidfd) => Ok(rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL)?),
                None => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            }
        })
    }

    fn wait_ended(&self, within: Duration) -> ExecFuture<'_, bool> {
        Box::pin(async move {
            let Some(pidfd) = &self.pidfd else { return true };
            let ended = async {
                let pidfd = gone::watch(pidfd.try_clone()?)?;
                pidfd.readable().await?.retain_ready();
                io::Result::Ok(())
            };
            matches!(tokio::time::timeout(within, ended).await, Ok(Ok(())))
        })
    }

    fn close(&self) {
        // A connection that is closed already is what was wanted.
        if rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Both).is_err() {}
    }
}

impl LinkSocket {
    async fn send_frame(&self, command: &KeeperCommand) -> Result<(), SendError> {
        let mut bytes = Vec::new();
        command.append_to(&mut bytes);
        if bytes.len() > limits::FRAME_MAX {
            return Err(SendError::TooLong { len: bytes.len(), len_max: limits::FRAME_MAX });
        }
        let _turn = self.writing.lock().await;
        let unless_done = CloseUnlessSent { socket: self };
        match write_all(&self.stream, &bytes).await {
            Ok(()) => {
                std::mem::forget(unless_done);
                Ok(())
            }
            Err(cause) => Err(SendError::Lost { cause: Some(cause) }),
        }
    }
}

/// Half a frame would make nonsense of everything after it.
struct CloseUnlessSent<'a> {
    socket: &'a LinkSocket,
}

impl Drop for CloseUnlessSent<'_> {
    fn drop(&mut self) {
        self.socket.close();
    }
}

impl LinkReceiver for SocketReceiver {
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<KeeperEvent>> {
        loop {
            loop {
                match self.input.next_frame(limits::FRAME_MAX) {
                    Ok(Some(frame)) => match KeeperEvent::decode(frame) {
                        Ok(Some(event)) => return Poll::Ready(Some(event)),
                        Ok(None) => {}
                        Err(_) => return self.lost(),
                    },
                    Ok(None) => break,
                    Err(_) => return self.lost(),
                }
            }
            if ready!(poll_read_some(&self.socket.stream, &mut self.input, context)).is_err() {
                return self.lost();
            }
        }
    }
}

impl SocketReceiver {
    fn lost(&self) -> Poll<Option<KeeperEvent>> {
        self.socket.close();
        Poll::Ready(None)
    }
}

/// Reads what is there, at least one byte.
pub(super) async fn read_some(stream: &UnixStream, input: &mut Assembler) -> io::Result<()> {
    std::future::poll_fn(|context| poll_read_some(stream, input, context)).await
}

fn poll_read_some(
    stream: &UnixStream,
    input: &mut Assembler,
    context: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    loop {
        ready!(stream.poll_read_ready(context))?;
        let mut chunk = [0; READ_MAX];
        match stream.try_read(&mut chunk) {
            Ok(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            Ok(len) => {
                input.push(&chunk[..len]);
                return Poll::Ready(Ok(()));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
}

pub(super) async fn write_all(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
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
