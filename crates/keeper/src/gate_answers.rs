//! Names for the sandbox: the gate is the name server that programs inside ask, by datagrams and by streams.
//!
//! Owns: the servers of a question, and its deadline. A question goes to the host's own name servers unchanged, and
//! their answer returns unchanged. With a list, only names on it are resolved, and the keeper gets the addresses before
//! the program does.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::{Duration, Instant};

use crate::gate_dns::{self, ANSWER_MAX, DnsCode, DnsQuestion};
use crate::gate_names;
use crate::gate_rules::{DefaultReach, NetworkRules, TargetHost};
use crate::sockets;
use crate::sys;

/// Most questions in flight. The next one waits until its program repeats it.
const QUESTIONS_MAX: usize = 64;
/// Most programs that ask by streams at a time.
const STREAMS_MAX: usize = 16;
/// How long a stream may be silent.
const STREAM_WITHIN: Duration = Duration::from_secs(10);
/// The time for one name server, and the number of attempts for each.
const SERVER_WITHIN: Duration = Duration::from_secs(2);
const ROUNDS_MAX: usize = 2;
/// Most questions that are taken at once, so that everything else has its turn.
const TURN_MAX: usize = 16;

/// The name server inside a sandbox.
#[derive(Debug)]
pub(crate) struct NameServer {
    datagrams: UdpSocket,
    streams: TcpListener,
    clients: Vec<StreamClient>,
    questions: Vec<ForwardedQuestion>,
    serial: u64,
}

/// A program that asks by a stream.
#[derive(Debug)]
struct StreamClient {
    serial: u64,
    stream: TcpStream,
    bytes: Vec<u8>,
    until: Instant,
}

#[derive(Debug, Clone, Copy)]
enum QuestionSource {
    Datagram(SocketAddr),
    Stream(u64),
}

/// A question that was passed on.
#[derive(Debug)]
struct ForwardedQuestion {
    from: QuestionSource,
    /// As the program wrote it, with an id of ours.
    message: Vec<u8>,
    theirs: [u8; 2],
    asked: DnsQuestion,
    /// None where the next server has to be tried.
    upstream: Option<Upstream>,
    tried: usize,
    until: Instant,
}

#[derive(Debug)]
enum Upstream {
    Datagram(UdpSocket),
    Stream { socket: TcpStream, out: Vec<u8>, heard: Vec<u8> },
}

/// Addresses that a listed name led to, and at which port they are open.
pub(crate) type OpenedAddress = (IpAddr, u16);

impl NameServer {
    pub(crate) fn new(datagrams: UdpSocket, streams: TcpListener) -> io::Result<NameServer> {
        datagrams.set_nonblocking(true)?;
        streams.set_nonblocking(true)?;
        Ok(NameServer { datagrams, streams, clients: Vec::new(), questions: Vec::new(), serial: 0 })
    }

    pub(crate) fn watch(&self, polled: &mut Vec<libc::pollfd>) {
        let mut add = |fd: RawFd, events| polled.push(libc::pollfd { fd, events, revents: 0 });
        if self.questions.len() < QUESTIONS_MAX {
            add(self.datagrams.as_raw_fd(), libc::POLLIN);
        }
        if self.clients.len() < STREAMS_MAX {
            add(self.streams.as_raw_fd(), libc::POLLIN);
        }
        for client in &self.clients {
            add(client.stream.as_raw_fd(), libc::POLLIN);
        }
        for question in &self.questions {
            match &question.upstream {
                Some(Upstream::Datagram(socket)) => add(socket.as_raw_fd(), libc::POLLIN),
                Some(Upstream::Stream { socket, out, .. }) => {
                    add(socket.as_raw_fd(), if out.is_empty() { libc::POLLIN } else { libc::POLLOUT });
                }
                None => {}
            }
        }
    }

    /// Milliseconds until something is due, or -1 for none.
    pub(crate) fn sleep_ms(&self, now: Instant) -> i32 {
        let due = self.questions.iter().map(|question| question.until);
        let due = due.chain(self.clients.iter().map(|client| client.until)).min();
        due.map_or(-1, |due| {
            i32::try_from(due.saturating_duration_since(now).as_millis() + 1).unwrap_or(i32::MAX)
        })
    }

    /// Does all work that can be done now. `open` reports an address to the keeper before the program gets the
    /// answer.
    pub(crate) fn serve(&mut self, rules: &NetworkRules, now: Instant, open: &mut dyn FnMut(OpenedAddress)) {
        let mut bytes = vec![0; ANSWER_MAX];
        for _ in 0..TURN_MAX {
            if self.questions.len() >= QUESTIONS_MAX {
                break;
            }
            let Ok((len, from)) = self.datagrams.recv_from(&mut bytes) else { break };
            self.take(&bytes[..len], QuestionSource::Datagram(from), rules, now, open);
        }
        self.accept(now);
        self.read_clients(rules, now, open);
        self.read_servers(rules, now, open);
    }

    fn accept(&mut self, now: Instant) {
        while self.clients.len() < STREAMS_MAX {
            let Ok((stream, _)) = self.streams.accept() else { return };
            self.serial += 1;
            if stream.set_nonblocking(true).is_ok() {
                let until = now + STREAM_WITHIN;
                self.clients.push(StreamClient { serial: self.serial, stream, bytes: Vec::new(), until });
            }
        }
    }

    fn read_clients(&mut self, rules: &NetworkRules, now: Instant, open: &mut dyn FnMut(OpenedAddress)) {
        let mut asked = Vec::new();
        self.clients.retain_mut(|client| {
            let is_open = client.read();
            while let Some(message) = client.next() {
                client.until = now + STREAM_WITHIN;
                asked.push((client.serial, message));
            }
            is_open && now < client.until
        });
        for (serial, message) in asked {
            self.take(&message, QuestionSource::Stream(serial), rules, now, open);
        }
    }

    fn take(
        &mut self,
        message: &[u8],
        from: QuestionSource,
        rules: &NetworkRules,
        now: Instant,
        open: &mut dyn FnMut(OpenedAddress),
    ) {
        let Some(asked) = gate_dns::parse_question(message) else { return };
        let known = answer_locally(&asked, rules);
        let answer = match known {
            LocalAnswer::Elsewhere if self.questions.len() >= QUESTIONS_MAX => {
                Some(gate_dns::reply(message, &asked, DnsCode::Failed, &[]))
            }
            LocalAnswer::Elsewhere => None,
            LocalAnswer::No => Some(gate_dns::reply(message, &asked, DnsCode::NoName, &[])),
            LocalAnswer::Addresses(addresses) => {
                send_answer(&asked, rules, &addresses, open);
                Some(gate_dns::reply(message, &asked, DnsCode::Fine, &addresses))
            }
        };
        if let Some(answer) = answer {
            return self.answer(from, &answer);
        }
        let mut question = ForwardedQuestion {
            from,
            message: message.to_vec(),
            theirs: [message[0], message[1]],
            asked,
            upstream: None,
            tried: 0,
            until: now,
        };
        if question.ask_next(now).is_err() {
            let answer = question.failed();
            return self.answer(from, &answer);
        }
        self.questions.push(question);
    }

    fn read_servers(&mut self, rules: &NetworkRules, now: Instant, open: &mut dyn FnMut(OpenedAddress)) {
        let mut at = 0;
        while at < self.questions.len() {
            let question = &mut self.questions[at];
            let answer = match question.read_reply() {
                UpstreamReply::Answer(answer) => {
                    send_answer(&question.asked, rules, &gate_dns::addresses(&answer), open);
                    Some(answer)
                }
                UpstreamReply::Nothing if now < question.until => None,
                UpstreamReply::Nothing | UpstreamReply::Failed => {
                    question.ask_next(now).is_err().then(|| question.failed())
                }
            };
            match answer {
                Some(answer) => {
                    let question = self.questions.swap_remove(at);
                    self.answer(question.from, &answer);
                }
                None => at += 1,
            }
        }
    }

    /// A program that does not take its answer asks again, or is gone.
    fn answer(&mut self, to: QuestionSource, message: &[u8]) {
        match to {
            QuestionSource::Datagram(address) => drop(self.datagrams.send_to(message, address)),
            QuestionSource::Stream(serial) => {
                let Some(client) = self.clients.iter_mut().find(|client| client.serial == serial) else {
                    return;
                };
                let Ok(len) = u16::try_from(message.len()) else { return };
                let whole = [&len.to_be_bytes(), message].concat();
                let sent = client.stream.write(&whole);
                if !sent.is_ok_and(|sent| sent == whole.len()) {
                    self.clients.retain(|client| client.serial != serial);
                }
            }
        }
    }
}

/// What is known about a name without a server.
enum LocalAnswer {
    Addresses(Vec<IpAddr>),
    /// Not listed.
    No,
    Elsewhere,
}

fn answer_locally(asked: &DnsQuestion, rules: &NetworkRules) -> LocalAnswer {
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let Some(name) = &asked.name else {
        return if rules.reach() == DefaultReach::Listed { LocalAnswer::No } else { LocalAnswer::Elsewhere };
    };
    if name == "localhost" || name.ends_with(".localhost") {
        return LocalAnswer::Addresses(of_kind(asked, loopback.to_vec()));
    }
    if rules.reach() == DefaultReach::Listed && rules.ports_of(name).is_empty() {
        return LocalAnswer::No;
    }
    if !asked.wants_address() || !matches!(TargetHost::read(name), Some(TargetHost::Name(_))) {
        return LocalAnswer::Elsewhere;
    }
    match gate_names::from_file(name) {
        found if found.is_empty() => LocalAnswer::Elsewhere,
        found => LocalAnswer::Addresses(of_kind(asked, found)),
    }
}

fn of_kind(asked: &DnsQuestion, addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    addresses.into_iter().filter(|address| asked.wants(*address)).collect()
}

fn send_answer(
    asked: &DnsQuestion,
    rules: &NetworkRules,
    addresses: &[IpAddr],
    open: &mut dyn FnMut(OpenedAddress),
) {
    let (DefaultReach::Listed, Some(name)) = (rules.reach(), &asked.name) else { return };
    for port in rules.ports_of(name) {
        addresses.iter().for_each(|address| open((*address, port)));
    }
}

impl StreamClient {
    /// Whether there may be more.
    fn read(&mut self) -> bool {
        let mut chunk = [0; 4096];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return false,
                Ok(len) if self.bytes.len() + len <= ANSWER_MAX => {
                    self.bytes.extend_from_slice(&chunk[..len])
                }
                Ok(_) => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        let message = framed(&self.bytes)?.to_vec();
        self.bytes.drain(..message.len() + 2);
        Some(message)
    }
}

/// A whole message at the beginning of the stream's bytes.
fn framed(bytes: &[u8]) -> Option<&[u8]> {
    let len = usize::from(u16::from_be_bytes([*bytes.first()?, *bytes.get(1)?]));
    bytes.get(2..2 + len)
}

/// The answer of a name server so far.
enum UpstreamReply {
    Nothing,
    /// With the program's own id.
    Answer(Vec<u8>),
    Failed,
}

impl ForwardedQuestion {
    /// Passes the question on to the next server, the first at first.
    fn ask_next(&mut self, now: Instant) -> io::Result<()> {
        let servers = gate_names::host_servers();
        self.upstream = None;
        while self.tried < servers.len() * ROUNDS_MAX {
            let server = servers[self.tried % servers.len()];
            self.tried += 1;
            let mut id = [0; 2];
            sys::random(&mut id)?;
            self.message[..2].copy_from_slice(&id);
            let begun = match self.from {
                QuestionSource::Datagram(_) => by_datagram(server, &self.message),
                QuestionSource::Stream(_) => by_stream(server, &self.message),
            };
            if let Ok(upstream) = begun {
                self.upstream = Some(upstream);
                self.until = now + SERVER_WITHIN;
                return Ok(());
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    fn read_reply(&mut self) -> UpstreamReply {
        let mut bytes = vec![0; ANSWER_MAX];
        let heard = match &mut self.upstream {
            None => return UpstreamReply::Failed,
            Some(Upstream::Datagram(socket)) => match socket.recv(&mut bytes) {
                Ok(len) => Ok(Some(bytes[..len].to_vec())),
                Err(error) if is_passing(&error) => Ok(None),
                Err(error) => Err(error),
            },
            Some(Upstream::Stream { socket, out, heard }) => progress(socket, out, heard, &mut bytes),
        };
        match heard {
            Ok(None) => UpstreamReply::Nothing,
            Err(_) => UpstreamReply::Failed,
            Ok(Some(mut answer)) if gate_dns::answers(&answer, &self.message) => {
                if gate_dns::is_failure(&answer) {
                    return UpstreamReply::Failed;
                }
                answer[..2].copy_from_slice(&self.theirs);
                UpstreamReply::Answer(answer)
            }
            // Another question's answer: the right one may still come.
            Ok(Some(_)) => UpstreamReply::Nothing,
        }
    }

    fn failed(&self) -> Vec<u8> {
        let mut message = self.message.clone();
        message[..2].copy_from_slice(&self.theirs);
        gate_dns::reply(&message, &self.asked, DnsCode::Failed, &[])
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn by_datagram(server: SocketAddr, message: &[u8]) -> io::Result<Upstream> {
    let any: SocketAddr = if server.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    // The kernel then drops packets from other addresses.
    socket.connect(server)?;
    socket.set_nonblocking(true)?;
    socket.send(message)?;
    Ok(Upstream::Datagram(socket))
}

fn by_stream(server: SocketAddr, message: &[u8]) -> io::Result<Upstream> {
    let len = u16::try_from(message.len()).map_err(io::Error::other)?;
    let out = [&len.to_be_bytes(), message].concat();
    Ok(Upstream::Stream { socket: dial(server)?, out, heard: Vec::new() })
}

/// Begins to connect, and does not wait for it.
fn dial(server: SocketAddr) -> io::Result<TcpStream> {
    let family = if server.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = sockets::socket(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
    let address = sockets::SocketAddress::from(server);
    match sockets::connect(socket.as_fd(), address.bytes()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        Ok(()) | Err(_) => Ok(TcpStream::from(socket)),
    }
}

/// Writes what is left to write, then reads. A whole answer, if there is one.
fn progress(
    socket: &mut TcpStream,
    out: &mut Vec<u8>,
    heard: &mut Vec<u8>,
    bytes: &mut [u8],
) -> io::Result<Option<Vec<u8>>> {
    if !out.is_empty() {
        match socket.write(out) {
            Ok(len) => drop(out.drain(..len)),
            // Not connected yet.
            Err(error) if is_passing(&error) || error.raw_os_error() == Some(libc::ENOTCONN) => {}
            Err(error) => return Err(error),
        }
        return Ok(None);
    }
    match socket.read(bytes) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(len) if heard.len() + len > usize::from(u16::MAX) + 2 => Err(io::ErrorKind::InvalidData.into()),
        Ok(len) => {
            heard.extend_from_slice(&bytes[..len]);
            Ok(framed(heard).map(<[u8]>::to_vec))
        }
        Err(error) if is_passing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
