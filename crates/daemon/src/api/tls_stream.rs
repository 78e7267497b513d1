//! TLS on an accepted connection. The handshake is made when the connection is first read, so that it is the
//! connection's own task which waits for the peer, within the time that the connection has (see `stream`).

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use lodge_proto::{ErrorBody, Response};
use rustls::ServerConfig;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

/// The first byte of every TLS connection: a record of the handshake.
const HANDSHAKE: u8 = 0x16;
/// How much is read of a peer that does not speak TLS, so that the answer is not lost in a reset.
const PLAIN_BYTES_MAX: usize = 16 * 1024 * 1024;
const PLAIN_PIECE: usize = 16 * 1024;

/// A connection that becomes a TLS connection.
pub(super) struct TlsSocket(TlsState);

enum TlsState {
    /// The peer has sent nothing yet.
    Silent(TcpStream, Arc<ServerConfig>),
    Handshake(Box<Accept<TcpStream>>),
    Open(Box<TlsStream<TcpStream>>),
    /// The peer speaks plain HTTP. It gets an error in plain HTTP.
    Plain(Box<PlainHttpReply>),
    Closed,
}

struct PlainHttpReply {
    stream: TcpStream,
    answer: Vec<u8>,
    written: usize,
    left: usize,
}

impl TlsSocket {
    pub(super) fn new(stream: TcpStream, server: Arc<ServerConfig>) -> TlsSocket {
        TlsSocket(TlsState::Silent(stream, server))
    }

    /// The stream inside, once the handshake is done.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut TlsStream<TcpStream>>> {
        while !matches!(self.0, TlsState::Open(_)) {
            let next = match &mut self.0 {
                TlsState::Silent(stream, _) => match ready!(poll_first(stream, cx)) {
                    Ok(Some(first)) => self.begin(first),
                    Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
                    Err(cause) => Err(cause),
                },
                TlsState::Handshake(accept) => match ready!(pin!(accept).poll(cx)) {
                    Ok(stream) => Ok(TlsState::Open(Box::new(stream))),
                    Err(cause) => {
                        tracing::debug!(event = "tls.refused", error = %cause);
                        Err(cause)
                    }
                },
                TlsState::Plain(plain) => {
                    ready!(plain.poll_refuse(cx));
                    Err(io::ErrorKind::InvalidData.into())
                }
                TlsState::Open(_) | TlsState::Closed => Err(io::ErrorKind::NotConnected.into()),
            };
            match next {
                Ok(next) => self.0 = next,
                Err(cause) => {
                    self.0 = TlsState::Closed;
                    return Poll::Ready(Err(cause));
                }
            }
        }
        match &mut self.0 {
            TlsState::Open(stream) => Poll::Ready(Ok(stream)),
            TlsState::Silent(..) | TlsState::Handshake(_) | TlsState::Plain(_) | TlsState::Closed => {
                Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
            }
        }
    }

    fn begin(&mut self, first: u8) -> io::Result<TlsState> {
        let TlsState::Silent(stream, server) = std::mem::replace(&mut self.0, TlsState::Closed) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        if first == HANDSHAKE {
            return Ok(TlsState::Handshake(Box::new(TlsAcceptor::from(server).accept(stream))));
        }
        let plain = PlainHttpReply { stream, answer: plain_answer(), written: 0, left: PLAIN_BYTES_MAX };
        Ok(TlsState::Plain(Box::new(plain)))
    }
}

/// The first byte, which stays unread. None: there will be none.
fn poll_first(stream: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<Option<u8>>> {
    let mut byte = [0];
    let read = ready!(stream.poll_peek(cx, &mut ReadBuf::new(&mut byte)))?;
    Poll::Ready(Ok((read > 0).then_some(byte[0])))
}

fn plain_answer() -> Vec<u8> {
    let error =
        ErrorBody::new("daemon.tls_required", "this port speaks TLS, and the request came without it")
            .hint("write the address with `https://`");
    let body = serde_json::to_string(&Response::err(Value::Null, error)).unwrap_or_default();
    let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close";
    format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

impl PlainHttpReply {
    /// Answers, and reads until the peer is done.
    fn poll_refuse(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.written < self.answer.len() {
            match ready!(pin!(&mut self.stream).poll_write(cx, &self.answer[self.written..])) {
                Ok(written @ 1..) => self.written += written,
                Ok(0) | Err(_) => return Poll::Ready(()),
            }
            if self.written == self.answer.len() && ready!(pin!(&mut self.stream).poll_shutdown(cx)).is_err()
            {
                return Poll::Ready(());
            }
        }
        let mut piece = [0; PLAIN_PIECE];
        loop {
            let mut buf = ReadBuf::new(&mut piece);
            let read = match ready!(pin!(&mut self.stream).poll_read(cx, &mut buf)) {
                Ok(()) => buf.filled().len(),
                Err(_) => 0,
            };
            self.left = self.left.saturating_sub(read);
            if read == 0 || self.left == 0 {
                return Poll::Ready(());
            }
        }
    }
}

impl AsyncRead for TlsSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = ready!(self.poll_open(cx))?;
        pin!(stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for TlsSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let stream = ready!(self.poll_open(cx))?;
        pin!(stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = ready!(self.poll_open(cx))?;
        pin!(stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        // As streams of rustls are.
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            TlsState::Open(stream) => pin!(stream).poll_flush(cx),
            // Nothing was written.
            TlsState::Silent(..) | TlsState::Handshake(_) | TlsState::Plain(_) | TlsState::Closed => {
                Poll::Ready(Ok(()))
            }
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            TlsState::Open(stream) => pin!(stream).poll_shutdown(cx),
            // Dropped, it is closed.
            TlsState::Silent(..) | TlsState::Handshake(_) | TlsState::Plain(_) | TlsState::Closed => {
                Poll::Ready(Ok(()))
            }
        }
    }
}
