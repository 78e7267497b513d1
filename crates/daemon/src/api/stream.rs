//! A connection's bytes: closed when its time without a token is over or it gives way to another, and at its end kept
//! open until the peer can have read a refusal.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::connections::{Connection, ConnectionSlot};

/// How long a connection may be open without a token, regardless of its traffic.
const UNKNOWN_WITHIN: Duration = Duration::from_secs(10);
/// How long after the last byte that was sent, and how much, is read of a request that was refused. A connection that is closed over unread bytes is reset,
/// and the reset may overtake the refusal.
const LINGER_WITHIN: Duration = Duration::from_secs(5);
const LINGER_BYTES_MAX: usize = 16 * 1024 * 1024;
const LINGER_PIECE: usize = 16 * 1024;

/// A stream that keeps a place.
pub(super) struct Stream<S> {
    stream: S,
    place: ConnectionSlot,
    end: CloseSignal,
    written_at: Option<Instant>,
    linger: Option<Linger>,
    /// How long after the last byte was sent it may linger.
    lingering: Duration,
}

enum CloseSignal {
    Coming(Pin<Box<dyn Future<Output = CloseReason> + Send>>),
    Here,
}

/// Why a connection is closed from this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CloseReason {
    /// Its time without a token is over.
    Late,
    /// It gives way to another, or its token is over and the place is needed.
    Cut,
}

struct Linger {
    until: Pin<Box<Sleep>>,
    left: usize,
}

impl<S> Stream<S> {
    pub(super) fn new(stream: S, place: ConnectionSlot) -> Self {
        Self::within(stream, place, UNKNOWN_WITHIN, LINGER_WITHIN)
    }

    fn within(stream: S, place: ConnectionSlot, unknown: Duration, lingering: Duration) -> Self {
        let end = CloseSignal::Coming(Box::pin(end_of(place.0.clone(), unknown)));
        Stream { stream, place, end, written_at: None, linger: None, lingering }
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.place.0
    }
}

async fn end_of(connection: Connection, within: Duration) -> CloseReason {
    let late = async {
        tokio::time::sleep(within).await;
        if connection.is_known() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = connection.cut().cancelled_owned() => CloseReason::Cut,
        () = late => CloseReason::Late,
    }
}

impl<S: AsyncWrite + Unpin> Stream<S> {
    /// An error once the connection must be closed.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let CloseSignal::Coming(end) = &mut self.end else { return Err(io::ErrorKind::TimedOut.into()) };
        let Poll::Ready(why) = end.as_mut().poll(cx) else { return Ok(()) };
        self.end = CloseSignal::Here;
        if why == CloseReason::Cut && self.written_at.is_none() {
            // It fits into a socket's empty buffer, or the peer is gone.
            let told = pin!(&mut self.stream).poll_write(cx, self.place.0.busy_answer());
            drop(told);
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream<S> {
    /// Reads on after the last byte was sent, until the peer is done, for a while.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // A connection that was idle for this long has received everything.
        let from = self.written_at.unwrap_or_else(Instant::now);
        let linger = self.linger.get_or_insert_with(|| Linger {
            until: Box::pin(tokio::time::sleep_until(from + self.lingering)),
            left: LINGER_BYTES_MAX,
        });
        let mut piece = [0; LINGER_PIECE];
        loop {
            if linger.until.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let mut buf = ReadBuf::new(&mut piece);
            let read = match ready!(pin!(&mut self.stream).poll_read(cx, &mut buf)) {
                Ok(()) => buf.filled().len(),
                Err(_) => 0,
            };
            linger.left = linger.left.saturating_sub(read);
            if read == 0 || linger.left == 0 {
                return Poll::Ready(());
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        pin!(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        self.written_at = Some(Instant::now());
        pin!(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        pin!(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        if self.linger.is_none() {
            ready!(pin!(&mut self.stream).poll_shutdown(cx))?;
        }
        if self.place.0.lingers() { self.poll_linger(cx).map(Ok) } else { Poll::Ready(Ok(())) }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        self.written_at = Some(Instant::now());
        pin!(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test owns its tasks by their handles")]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::api::connections::{ConnectionOrigin, Connections};

    const SOON: Duration = Duration::from_millis(50);
    const NEVER: Duration = Duration::from_secs(3_600);

    fn pair(unknown: Duration, lingering: Duration) -> (Stream<DuplexStream>, DuplexStream) {
        let (ours, theirs) = duplex(4096);
        let place = Connections::new().admit(ConnectionOrigin::User(0), None);
        (Stream::within(ours, place, unknown, lingering), theirs)
    }

    #[tokio::test]
    async fn bytes_that_trickle_in_do_not_keep_an_unknown_connection_open() {
        let (mut ours, mut theirs) = pair(SOON, NEVER);
        let trickle = tokio::spawn(async move {
            while theirs.write_all(b"\r\n\r\n").await.is_ok() {
                tokio::task::yield_now().await;
            }
        });
        let error = ours.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(ours.write_all(b"x").await.is_err(), "closed is closed");
        drop(ours);
        trickle.await.unwrap();
    }

    #[tokio::test]
    async fn a_connection_that_gives_way_gets_the_reason() {
        let (mut ours, mut theirs) = pair(NEVER, NEVER);
        ours.connection().cut().cancel();
        assert!(ours.read(&mut [0; 8]).await.is_err());
        drop(ours);
        let mut told = String::new();
        theirs.read_to_string(&mut told).await.unwrap();
        assert!(told.starts_with("HTTP/1.1 503 ") && told.contains("daemon.busy"), "{told}");
    }

    #[tokio::test]
    async fn what_is_left_of_a_refused_request_is_read_until_the_peer_is_done() {
        let (mut ours, mut theirs) = pair(NEVER, NEVER);
        ours.connection().set_lingers(true);
        ours.write_all(b"refused").await.unwrap();
        let closing = tokio::spawn(async move { ours.shutdown().await });
        // More than the buffers hold: the peer has to read.
        theirs.write_all(&[b'x'; 100_000]).await.unwrap();
        let mut heard = String::new();
        theirs.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "refused");
        drop(theirs);
        closing.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_peer_that_never_closes_is_not_waited_for_and_one_that_sends_on_is_cut() {
        let (mut ours, theirs) = pair(NEVER, SOON);
        ours.connection().set_lingers(true);
        ours.write_all(b"refused").await.unwrap();
        ours.shutdown().await.unwrap();
        drop(theirs);
        let (mut ours, mut theirs) = pair(NEVER, NEVER);
        ours.connection().set_lingers(true);
        let endless = tokio::spawn(async move { while theirs.write_all(&[b'x'; 4096]).await.is_ok() {} });
        ours.shutdown().await.unwrap();
        drop(ours);
        endless.await.unwrap();
    }
}
