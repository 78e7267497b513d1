//! Bytes between a client and its server, until both had their say.
//!
//! Owns: waiting, half-closed connections and the bound on silence. Never: what the bytes mean.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::gate_body::BodyRelay;

/// How long a connection may be silent once one side of a tunnel has ended.
const SILENT_HALF_MAX: Duration = Duration::from_secs(120);
const BUFFER_LEN: usize = 32 * 1024;
/// How long a client is read after its last answer: closing with unread bytes would discard the answer.
const LINGER: Duration = Duration::from_secs(2);

/// What of a client's bytes goes to the server.
#[derive(Debug)]
pub(crate) enum ClientBytes {
    /// All, and then the end of them.
    Everything,
    /// What is left of one request.
    Request(BodyRelay),
}

/// One direction.
struct RelayDirection<'a> {
    from: &'a TcpStream,
    to: &'a TcpStream,
    buffer: Vec<u8>,
    sent: usize,
    /// Nothing more is read.
    is_ended: bool,
    /// Nothing more is written.
    is_shut: bool,
}

/// Passes bytes in both directions, beginning with `first` to the server, and returns when there will be no more, or both
/// were silent for `silent_max`.
pub(crate) fn relay(
    client: &TcpStream,
    server: &TcpStream,
    first: Vec<u8>,
    mut upward: ClientBytes,
    silent_max: Duration,
) -> io::Result<()> {
    client.set_nonblocking(true)?;
    server.set_nonblocking(true)?;
    let mut up = RelayDirection::new(client, server, first);
    let mut down = RelayDirection::new(server, client, Vec::new());
    up.is_ended = matches!(&upward, ClientBytes::Request(body) if body.is_over());
    loop {
        up.flush()?;
        down.flush()?;
        let is_answered = matches!(upward, ClientBytes::Request(_)) && down.is_shut;
        if is_answered || (up.is_shut && down.is_shut) {
            break;
        }
        // Of a request it is known that nothing more is to come; else its client may be gone, which cannot be seen.
        let is_half = matches!(upward, ClientBytes::Everything) && (up.is_shut || down.is_shut);
        if !wait(&up, &down, if is_half { SILENT_HALF_MAX } else { silent_max })? {
            break;
        }
        up.read(&mut upward)?;
        down.read(&mut ClientBytes::Everything)?;
    }
    linger(client);
    Ok(())
}

impl<'a> RelayDirection<'a> {
    fn new(from: &'a TcpStream, to: &'a TcpStream, buffer: Vec<u8>) -> RelayDirection<'a> {
        RelayDirection { from, to, buffer, sent: 0, is_ended: false, is_shut: false }
    }

    fn is_waiting_to_write(&self) -> bool {
        self.sent < self.buffer.len()
    }

    fn is_waiting_to_read(&self) -> bool {
        !self.is_ended && !self.is_waiting_to_write()
    }

    /// Writes what can be written, and passes the end on once all was.
    fn flush(&mut self) -> io::Result<()> {
        while self.is_waiting_to_write() {
            match self.to.write(&self.buffer[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.is_shut = self.is_ended;
        Ok(())
    }

    fn read(&mut self, upward: &mut ClientBytes) -> io::Result<()> {
        if !self.is_waiting_to_read() {
            return Ok(());
        }
        self.buffer.resize(BUFFER_LEN, 0);
        self.sent = 0;
        let read = self.from.read(&mut self.buffer);
        self.buffer.truncate(*read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => {
                self.is_ended = true;
                match upward {
                    ClientBytes::Everything => self.pass_end_on(),
                    // It disconnected before its request was complete, so there is no answer.
                    ClientBytes::Request(_) => Err(io::ErrorKind::UnexpectedEof.into()),
                }
            }
            Ok(_) => {
                if let ClientBytes::Request(body) = upward {
                    let taken = body.take(&self.buffer).map_err(|_| io::ErrorKind::InvalidData)?;
                    self.buffer.truncate(taken);
                    self.is_ended = body.is_over();
                }
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Everything was written: a way is read only then.
    fn pass_end_on(&mut self) -> io::Result<()> {
        match self.to.shutdown(Shutdown::Write) {
            // The other side was faster.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            shut => shut,
        }
    }
}

/// Waits until one of the ways can go on. False: it was silent for too long.
fn wait(up: &RelayDirection<'_>, down: &RelayDirection<'_>, silent_max: Duration) -> io::Result<bool> {
    let events = |reads: &RelayDirection<'_>, writes: &RelayDirection<'_>| {
        let reads = if reads.is_waiting_to_read() { libc::POLLIN } else { 0 };
        let writes = if writes.is_waiting_to_write() { libc::POLLOUT } else { 0 };
        reads | writes
    };
    let polled = |stream: &TcpStream, events: libc::c_short| {
        // One from which nothing is wanted would otherwise wake this for its end, again and again.
        let fd = if events == 0 { -1 } else { stream.as_raw_fd() };
        libc::pollfd { fd, events, revents: 0 }
    };
    let mut both = [polled(up.from, events(up, down)), polled(down.from, events(down, up))];
    let until = Instant::now() + silent_max;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left_ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the array is as long as is announced and outlives the call.
        match unsafe { libc::poll(both.as_mut_ptr(), 2, left_ms) } {
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            ready => return Ok(ready > 0),
        }
    }
}

/// Says that this was all, and reads what the client still sends, for a moment.
pub(crate) fn linger(mut client: &TcpStream) {
    let until = Instant::now() + LINGER;
    let ready = client.shutdown(Shutdown::Write).and_then(|()| client.set_nonblocking(false));
    let mut rest = [0; 4096];
    while ready.is_ok() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || client.set_read_timeout(Some(left)).is_err() {
            return;
        }
        match client.read(&mut rest) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// A client and a server with a relay between them.
    fn between(first: &[u8], upward: ClientBytes) -> (TcpStream, TcpStream) {
        let ((client, inner), (server, outer)) = (pair(), pair());
        let first = first.to_vec();
        std::thread::spawn(move || drop(relay(&inner, &outer, first, upward, Duration::from_secs(60))));
        (client, server)
    }

    fn all(mut stream: &TcpStream) -> Vec<u8> {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_side_that_said_all_still_hears_the_other() {
        let (mut client, mut server) = between(b"first ", ClientBytes::Everything);
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(all(&server), b"first question");
        let answer = vec![7; 1 << 20];
        server.write_all(&answer).unwrap();
        drop(server);
        assert_eq!(all(&client), answer);
        // And the other way round.
        let (mut client, mut server) = between(b"", ClientBytes::Everything);
        server.write_all(b"banner").unwrap();
        server.shutdown(Shutdown::Write).unwrap();
        assert_eq!(all(&client), b"banner");
        client.write_all(b"reply").unwrap();
        drop(client);
        assert_eq!(all(&server), b"reply");
    }

    #[test]
    fn what_follows_a_request_goes_to_nobody() {
        let (mut client, mut server) = between(b"head ", ClientBytes::Request(BodyRelay::Sized(4)));
        client.write_all(b"bodyGET http://other.example/ HTTP/1.1\r\n\r\n").unwrap();
        let mut got = [0; 9];
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"head body");
        server.write_all(b"answer").unwrap();
        server.shutdown(Shutdown::Write).unwrap();
        assert_eq!(all(&client), b"answer");
        drop(client);
        assert_eq!(all(&server), b"");
    }
}
