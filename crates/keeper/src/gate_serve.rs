//! One connection to the gate, from its first byte to its last.
//!
//! Owns: the order in which a request is read, checked, connected and passed on, and the answer to a refused client.
//! A name is resolved once, and the connection goes to the address that was checked.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::gate_http::{self, BadRequest, HEAD_MAX, ProxyRequest, ProxyTarget};
use crate::gate_names::{self, NoAddress};
use crate::gate_relay::{self, ClientBytes};
use crate::gate_rules::{AddressOwner, ClosedAddress, NetworkRules, TargetHost};
use crate::netlink::{RouteSocket, RouteVerdict};

/// How long a client may take to say what it wants.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// How long one address of a server may take to answer.
const CONNECT_WITHIN: Duration = Duration::from_secs(15);
/// How much of the list a refusal repeats.
const LIST_SHOWN_MAX: usize = 1024;
const READ_LEN: usize = 4096;
/// How long a connection may be silent in both directions. One to the host itself has no network between that could
/// lose its end.
const SILENT_MAX: Duration = Duration::from_secs(600);
const SILENT_LOOPBACK_MAX: Duration = Duration::from_secs(24 * 3600);

/// Why a client is not connected.
#[derive(Debug)]
enum ProxyRefusal {
    /// The client disconnected, so no answer is needed.
    Gone,
    Late,
    TooLong,
    Bad(BadRequest),
    NotListed(ProxyTarget),
    Closed {
        target: ProxyTarget,
        address: IpAddr,
        closed: ClosedAddress,
    },
    NoAddress {
        name: String,
        why: NoAddress,
    },
    NotConnected {
        target: ProxyTarget,
        cause: io::Error,
    },
}

/// Serves one client to its end.
pub(crate) fn serve(client: &TcpStream, rules: &NetworkRules) {
    let served = open(client, rules);
    match served {
        // How a connection ended that was open is between its two ends.
        Ok(OpenedServer { server, first, upward }) => {
            drop(gate_relay::relay(client, &server, first, upward, SILENT_MAX));
        }
        Err(ProxyRefusal::Gone) => {}
        Err(refused) => {
            let (status, text) = refused.describe(rules);
            write_answer(client, &gate_http::answer(&status, &text));
        }
    }
}

/// Connects a client to a port of the host's loopback, to its end.
pub(crate) fn serve_loopback(client: &TcpStream, to: SocketAddr) {
    // A socket without the option works, only slower. A client of a port without a listener sees the end of its connection.
    drop(client.set_nodelay(true));
    if let Ok(server) = connect_loopback(to) {
        drop(gate_relay::relay(client, &server, Vec::new(), ClientBytes::Everything, SILENT_LOOPBACK_MAX));
    }
}

/// A server may listen at one of the two loopback addresses alone, and programs choose either.
fn connect_loopback(to: SocketAddr) -> io::Result<TcpStream> {
    let other: IpAddr = match to.ip() {
        IpAddr::V4(_) => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv4Addr::LOCALHOST.into(),
    };
    let server = TcpStream::connect_timeout(&to, CONNECT_WITHIN).or_else(|error| {
        TcpStream::connect_timeout(&SocketAddr::new(other, to.port()), CONNECT_WITHIN).map_err(|_| error)
    })?;
    server.set_nodelay(true)?;
    Ok(server)
}

/// The address of the host's loopback that a target means, if that is open.
fn open_loopback(target: &ProxyTarget, rules: &NetworkRules) -> Option<SocketAddr> {
    let address = match &target.host {
        TargetHost::Name(name) if name == "localhost" => Ipv4Addr::LOCALHOST.into(),
        TargetHost::Address(address) if address.to_canonical().is_loopback() => address.to_canonical(),
        TargetHost::Name(_) | TargetHost::Address(_) => return None,
    };
    rules.opens_loopback(target.port).then(|| SocketAddr::new(address, target.port))
}

/// Refuses a client beyond the limit, as soon as its request has arrived.
pub(crate) fn refuse(client: &TcpStream, connections_max: usize) {
    if matches!(read_head(client), Err(ProxyRefusal::Gone)) {
        return;
    }
    let text = format!("this sandbox has {connections_max} connections open, which is the most it may have");
    write_answer(client, &gate_http::answer("503 Too many connections", &text));
}

fn write_answer(mut client: &TcpStream, answer: &str) {
    if client.write_all(answer.as_bytes()).is_ok() {
        gate_relay::linger(client);
    }
}

/// A server that may be reached, and what it gets first.
struct OpenedServer {
    server: TcpStream,
    first: Vec<u8>,
    upward: ClientBytes,
}

fn open(mut client: &TcpStream, rules: &NetworkRules) -> Result<OpenedServer, ProxyRefusal> {
    // Small answers go at once; a socket that refuses this still works.
    drop(client.set_nodelay(true));
    let (bytes, len) = read_head(client)?;
    let (target, asked) = gate_http::read(&bytes[..len]).map_err(ProxyRefusal::Bad)?;
    let after = &bytes[len..];
    match asked {
        ProxyRequest::Tunnel => {
            let server = connect(target, rules)?;
            client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").map_err(|_| ProxyRefusal::Gone)?;
            Ok(OpenedServer { server, first: after.to_vec(), upward: ClientBytes::Everything })
        }
        ProxyRequest::Request { head, mut body } => {
            let taken = body.take(after).map_err(|_| ProxyRefusal::Bad(BadRequest::Body))?;
            let server = connect(target, rules)?;
            let mut first = head.into_bytes();
            first.extend_from_slice(&after[..taken]);
            Ok(OpenedServer { server, first, upward: ClientBytes::Request(body) })
        }
    }
}

/// What a client sent until its head was whole, and where that ends.
fn read_head(mut client: &TcpStream) -> Result<(Vec<u8>, usize), ProxyRefusal> {
    let until = Instant::now() + HEAD_WITHIN;
    let mut bytes = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ProxyRefusal::Late);
        }
        client.set_read_timeout(Some(left)).map_err(|_| ProxyRefusal::Gone)?;
        let mut chunk = [0; READ_LEN];
        match client.read(&mut chunk) {
            Ok(0) => return Err(ProxyRefusal::Gone),
            Ok(len) => bytes.extend_from_slice(&chunk[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(ProxyRefusal::Late),
            Err(_) => return Err(ProxyRefusal::Gone),
        }
        match gate_http::head_len(&bytes) {
            Some(len) if len <= HEAD_MAX => return Ok((bytes, len)),
            Some(_) => return Err(ProxyRefusal::TooLong),
            None if bytes.len() >= HEAD_MAX => return Err(ProxyRefusal::TooLong),
            None => {}
        }
    }
}

/// Connects to the first address that may be connected to and answers.
fn connect(target: ProxyTarget, rules: &NetworkRules) -> Result<TcpStream, ProxyRefusal> {
    if let Some(at) = open_loopback(&target, rules) {
        return connect_loopback(at).map_err(|cause| ProxyRefusal::NotConnected { target, cause });
    }
    let port = target.port;
    let check = |address: IpAddr| rules.check(address, port, place_of(address));
    let is_named = rules.name(&target.host, port);
    let addresses = match &target.host {
        // Advice to list it would be wrong: no list opens it.
        TargetHost::Address(address) if check(*address) == Err(ClosedAddress::Always) => vec![*address],
        TargetHost::Address(_) | TargetHost::Name(_) if !is_named => {
            return Err(ProxyRefusal::NotListed(target));
        }
        TargetHost::Address(address) => vec![*address],
        TargetHost::Name(name) => {
            gate_names::resolve(name).map_err(|why| ProxyRefusal::NoAddress { name: name.clone(), why })?
        }
    };
    let (mut closed, mut failed) = (None, None);
    for address in addresses {
        if let Err(why) = check(address) {
            closed.get_or_insert((address, why));
            continue;
        }
        match TcpStream::connect_timeout(&SocketAddr::new(address, port), CONNECT_WITHIN) {
            Ok(server) => {
                // As above.
                drop(server.set_nodelay(true));
                return Ok(server);
            }
            Err(error) => failed = Some(error),
        }
    }
    match (failed, closed) {
        (Some(cause), _) => Err(ProxyRefusal::NotConnected { target, cause }),
        (None, Some((address, closed))) => Err(ProxyRefusal::Closed { target, address, closed }),
        (None, None) => {
            Err(ProxyRefusal::NotConnected { target, cause: io::ErrorKind::AddrNotAvailable.into() })
        }
    }
}

/// Whether an address is one of the host's own. One that no way leads to is not: connecting to it fails.
fn place_of(address: IpAddr) -> AddressOwner {
    match RouteSocket::open().and_then(|mut routes| routes.look_up(address)) {
        Ok(RouteVerdict::Out) => AddressOwner::Elsewhere,
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENETUNREACH | libc::EHOSTUNREACH)) => {
            AddressOwner::Elsewhere
        }
        Ok(RouteVerdict::NotOut) | Err(_) => AddressOwner::Own,
    }
}

impl ProxyRefusal {
    /// The status and the words of the answer.
    fn describe(&self, rules: &NetworkRules) -> (String, String) {
        let plain = |status: &str, text: &str| (status.to_owned(), text.to_owned());
        match self {
            ProxyRefusal::Gone => plain("400 Bad Request", ""),
            ProxyRefusal::Late => plain("408 Request Timeout", "the request did not come"),
            ProxyRefusal::TooLong => {
                let text = format!("the head of a request may be {HEAD_MAX} bytes long");
                plain("431 Request Header Fields Too Large", &text)
            }
            ProxyRefusal::Bad(bad) => plain("400 Bad Request", bad.text()),
            ProxyRefusal::NotListed(ProxyTarget { host, port }) => {
                let text = format!(
                    "the agent's NETWORK does not list {host}:{port}\n  now:  NETWORK {}\n  hint: add `{host}:{port}` to \
                     that line of its Agentfile, and update the agent",
                    shown(rules.words())
                );
                (format!("403 {host} is not listed by NETWORK"), text)
            }
            ProxyRefusal::Closed { target: ProxyTarget { host, .. }, address, closed } => {
                let text = match closed {
                    ClosedAddress::Always => format!(
                        "{host} leads to {address}, which NETWORK does not open: it is private, the \
                         host's own, link-local or metadata\n  hint: serve it at another address, or give the agent `NETWORK host`"
                    ),
                    ClosedAddress::UnlessListed => format!(
                        "{host} leads to {address}, which is private or the host's own\n  hint: add `{address}` to the \
                         NETWORK line of the agent's Agentfile, too, and update the agent"
                    ),
                };
                (format!("403 {address} is closed to NETWORK"), text)
            }
            ProxyRefusal::NoAddress { name, why: NoAddress::NoSuchName } => {
                plain("502 No such name", &format!("there is no address for {name}"))
            }
            ProxyRefusal::NoAddress { name, why: NoAddress::NoAnswer } => {
                let text = format!("no name server of this host answered for {name}");
                plain("504 No answer from name servers", &text)
            }
            ProxyRefusal::NotConnected { target: ProxyTarget { host, port }, cause } => {
                plain("502 Not connected", &format!("could not connect to {host}:{port}: {cause}"))
            }
        }
    }
}

fn shown(words: &str) -> String {
    match words.char_indices().nth(LIST_SHOWN_MAX) {
        Some((end, _)) => format!("{} …", &words[..end]),
        None => words.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// The response to a client that sends this to a gate with this list.
    fn describe(list: &str, said: &[u8]) -> String {
        let words: Vec<String> = list.split_whitespace().map(str::to_owned).collect();
        let rules = NetworkRules::read(crate::gate_rules::DefaultReach::Listed, &words).unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let server = std::thread::spawn(move || serve(&far, &rules));
        // One that was refused early may not take it all.
        drop(near.write_all(said));
        let mut heard = String::new();
        near.read_to_string(&mut heard).unwrap();
        drop(near);
        server.join().unwrap();
        heard
    }

    #[test]
    fn a_refusal_names_the_host_and_the_line_that_would_open_it() {
        let heard = describe("a.example:443 *.b.example", b"CONNECT c.example:443 HTTP/1.1\r\n\r\n");
        assert!(heard.starts_with("HTTP/1.1 403 c.example is not listed by NETWORK\r\n"), "{heard}");
        for part in ["NETWORK a.example:443 *.b.example\n", "add `c.example:443` to that line"] {
            assert!(heard.contains(part), "{heard}");
        }
        let heard = describe("a.example:443", b"GET http://a.example/ HTTP/1.1\r\n\r\n");
        assert!(heard.contains("add `a.example:80`"), "{heard}");
    }

    #[test]
    fn addresses_that_are_closed_stay_so_however_they_are_named() {
        for target in [
            "127.0.0.1",
            "169.254.169.254",
            "[::1]",
            "[fd00:ec2::254]",
            "[::ffff:127.0.0.1]",
            "0.0.0.0",
            "localhost",
        ] {
            let list = "0.0.0.0/0 ::/0 localhost";
            for said in [
                format!("CONNECT {target}:80 HTTP/1.1\r\n\r\n"),
                format!("GET http://{target}/ HTTP/1.1\r\n\r\n"),
            ] {
                let heard = describe(list, said.as_bytes());
                assert!(heard.starts_with("HTTP/1.1 403 "), "{heard}");
                assert!(heard.contains("which NETWORK does not open"), "{heard}");
            }
        }
    }

    #[test]
    fn a_head_that_never_ends_is_cut_off() {
        let mut said = b"GET http://a.example/ HTTP/1.1\r\nX: ".to_vec();
        said.resize(HEAD_MAX + 10, b'x');
        let heard = describe("a.example", &said);
        assert!(heard.starts_with("HTTP/1.1 431 "), "{heard}");
        let heard = describe("a.example", b"hello\r\n\r\n");
        assert!(heard.starts_with("HTTP/1.1 400 "), "{heard}");
    }
}
