//! From a name to its addresses, by the host's own files and name servers.
//!
//! A program without dynamic libraries cannot load the host's resolver, so this is a small one: `/etc/hosts`, then
//! the servers of `/etc/resolv.conf`. Search domains are left out: a list names hosts in full.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::gate_dns::{self, ANSWER_MAX, AddressKind, DnsAnswer};
use crate::sys;

const HOSTS: &str = "/etc/hosts";
const SERVERS: &str = "/etc/resolv.conf";
const FILE_MAX: u64 = 1024 * 1024;
const SERVERS_MAX: usize = 3;
/// How often each server is tried.
const ROUNDS_MAX: u32 = 2;
/// How long one server may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Most addresses of a name that count.
pub(crate) const ADDRESSES_MAX: usize = 16;
const PORT: u16 = 53;

/// Why a name has no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoAddress {
    NoSuchName,
    /// No server answered.
    NoAnswer,
}

/// The addresses of a name, those of the older kind first.
pub(crate) fn resolve(name: &str) -> Result<Vec<IpAddr>, NoAddress> {
    resolve_by(name, &text(Path::new(HOSTS)), &servers(&text(Path::new(SERVERS))))
}

/// The addresses that the host's own file has for a name.
pub(crate) fn from_file(name: &str) -> Vec<IpAddr> {
    from_hosts(name, &text(Path::new(HOSTS)))
}

/// The name servers of the host. A host without an entry uses its own address.
pub(crate) fn host_servers() -> Vec<SocketAddr> {
    match servers(&text(Path::new(SERVERS))) {
        found if found.is_empty() => vec![SocketAddr::from((Ipv4Addr::LOCALHOST, PORT))],
        found => found,
    }
}

fn text(path: &Path) -> String {
    let mut bytes = Vec::new();
    // A host without such a file is one whose file is empty.
    drop(File::open(path).and_then(|file| file.take(FILE_MAX).read_to_end(&mut bytes)));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn resolve_by(name: &str, hosts: &str, servers: &[SocketAddr]) -> Result<Vec<IpAddr>, NoAddress> {
    let known = from_hosts(name, hosts);
    if !known.is_empty() {
        return Ok(known);
    }
    // This name always means the host itself.
    if name == "localhost" || name.ends_with(".localhost") {
        return Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]);
    }
    for _ in 0..ROUNDS_MAX {
        for server in servers {
            match ask(*server, name) {
                Ok(DnsAnswer::Addresses(found)) if found.is_empty() => return Err(NoAddress::NoSuchName),
                Ok(DnsAnswer::Addresses(mut found)) => {
                    found.truncate(ADDRESSES_MAX);
                    return Ok(found);
                }
                Ok(DnsAnswer::NoSuchName) => return Err(NoAddress::NoSuchName),
                Ok(DnsAnswer::Cut | DnsAnswer::Failed) | Err(_) => {}
            }
        }
    }
    Err(NoAddress::NoAnswer)
}

fn from_hosts(name: &str, hosts: &str) -> Vec<IpAddr> {
    let lines = hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
    let found = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        let address: IpAddr = words.next()?.parse().ok()?;
        words.any(|word| word.eq_ignore_ascii_case(name)).then_some(address)
    });
    let mut found: Vec<IpAddr> = found.take(ADDRESSES_MAX).collect();
    found.sort_by_key(IpAddr::is_ipv6);
    found
}

fn servers(text: &str) -> Vec<SocketAddr> {
    let words = text.lines().map(str::split_whitespace);
    let found = words.filter_map(|mut words| match (words.next(), words.next()) {
        (Some("nameserver"), Some(address)) => address.parse::<IpAddr>().ok(),
        (Some(_) | None, Some(_) | None) => None,
    });
    found.map(|address| SocketAddr::new(address, PORT)).take(SERVERS_MAX).collect()
}

/// Asks one server for both kinds of address at once.
fn ask(server: SocketAddr, name: &str) -> io::Result<DnsAnswer> {
    let any: SocketAddr = if server.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    // The kernel then drops packets from other addresses.
    socket.connect(server)?;
    let mut asked = Vec::new();
    for kind in [AddressKind::V4, AddressKind::V6] {
        let mut id = [0; 2];
        sys::random(&mut id)?;
        let question = gate_dns::question(u16::from_be_bytes(id), name, kind);
        socket.send(&question)?;
        asked.push((kind, question, None));
    }
    let until = Instant::now() + ANSWER_WITHIN;
    let mut bytes = vec![0; ANSWER_MAX];
    while asked.iter().any(|(_, _, said)| said.is_none()) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        socket.set_read_timeout(Some(left))?;
        let len = match socket.recv(&mut bytes) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        for (kind, question, said) in &mut asked {
            if let Some(heard) = gate_dns::answer(&bytes[..len], question, *kind) {
                *said = Some(match heard {
                    DnsAnswer::Cut => ask_by_stream(server, question, *kind, until)?,
                    DnsAnswer::Addresses(_) | DnsAnswer::NoSuchName | DnsAnswer::Failed => heard,
                });
            }
        }
    }
    // A question without an answer is one that the server could not answer: the next may.
    Ok(together(asked.into_iter().map(|(_, _, said)| said.unwrap_or(DnsAnswer::Failed))))
}

/// What two answers say: what one of them knows counts.
fn together(answers: impl Iterator<Item = DnsAnswer>) -> DnsAnswer {
    let both = answers.reduce(|all, said| {
        match (all, said) {
            (DnsAnswer::Addresses(mut before), DnsAnswer::Addresses(more)) => {
                before.extend(more);
                DnsAnswer::Addresses(before)
            }
            // The lack of one kind of address says nothing about the other.
            (DnsAnswer::Addresses(known), DnsAnswer::Failed | DnsAnswer::Cut)
            | (DnsAnswer::Failed | DnsAnswer::Cut, DnsAnswer::Addresses(known))
                if known.is_empty() =>
            {
                DnsAnswer::Failed
            }
            // Some servers deny the name when it only has no address of one kind.
            (DnsAnswer::Addresses(known), DnsAnswer::NoSuchName | DnsAnswer::Failed | DnsAnswer::Cut)
            | (DnsAnswer::NoSuchName | DnsAnswer::Failed | DnsAnswer::Cut, DnsAnswer::Addresses(known)) => {
                DnsAnswer::Addresses(known)
            }
            (DnsAnswer::NoSuchName, DnsAnswer::NoSuchName | DnsAnswer::Failed | DnsAnswer::Cut)
            | (DnsAnswer::Failed | DnsAnswer::Cut, DnsAnswer::NoSuchName) => DnsAnswer::NoSuchName,
            (DnsAnswer::Failed | DnsAnswer::Cut, DnsAnswer::Failed | DnsAnswer::Cut) => DnsAnswer::Failed,
        }
    });
    both.unwrap_or(DnsAnswer::Failed)
}

fn ask_by_stream(
    server: SocketAddr,
    question: &[u8],
    kind: AddressKind,
    until: Instant,
) -> io::Result<DnsAnswer> {
    let left = || match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(left),
    };
    let mut stream = TcpStream::connect_timeout(&server, left()?)?;
    stream.set_read_timeout(Some(left()?))?;
    stream.set_write_timeout(Some(left()?))?;
    let len = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_all(&[&len.to_be_bytes(), question].concat())?;
    let mut len = [0; 2];
    stream.read_exact(&mut len)?;
    let mut bytes = vec![0; usize::from(u16::from_be_bytes(len)).min(ANSWER_MAX)];
    stream.read_exact(&mut bytes)?;
    Ok(gate_dns::answer(&bytes, question, kind).unwrap_or(DnsAnswer::Failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers this many questions for this name, each kind with these addresses.
    fn server(rounds: usize, v4: &'static [[u8; 4]]) -> SocketAddr {
        server_that_misses(0, rounds, v4)
    }

    /// The same, which ignores the first questions for an older address.
    fn server_that_misses(missed: usize, rounds: usize, v4: &'static [[u8; 4]]) -> SocketAddr {
        let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let at = socket.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 512];
            let mut missed = missed;
            for _ in 0..rounds {
                let (len, from) = socket.recv_from(&mut bytes).unwrap();
                let mut out = bytes[..len].to_vec();
                let is_v4 = out[len - 3] == 1;
                if is_v4 && missed > 0 {
                    missed -= 1;
                    continue;
                }
                out[2] |= 0x80;
                out[7] = if is_v4 { u8::try_from(v4.len()).unwrap() } else { 0 };
                for octets in v4.iter().filter(|_| is_v4) {
                    out.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
                    out.extend_from_slice(octets);
                }
                socket.send_to(&out, from).unwrap();
            }
        });
        at
    }

    #[test]
    fn a_name_is_looked_for_in_the_hosts_file_and_then_asked_for() {
        let hosts =
            "127.0.0.1 localhost\n::1 a.example\n192.0.2.9 a.example b.example # c.example\nbroken line\n";
        let found = resolve_by("a.example", hosts, &[]).unwrap();
        assert_eq!(found, ["192.0.2.9".parse::<IpAddr>().unwrap(), "::1".parse().unwrap()]);
        assert_eq!(resolve_by("c.example", hosts, &[]), Err(NoAddress::NoAnswer));
        assert_eq!(resolve_by("x.localhost", "", &[]).unwrap(), [IpAddr::V4(Ipv4Addr::LOCALHOST)]);
        let at = server(2, &[[203, 0, 113, 7], [127, 0, 0, 1]]);
        let found = resolve_by("c.example", hosts, &[at]).unwrap();
        assert_eq!(found, ["203.0.113.7".parse::<IpAddr>().unwrap(), "127.0.0.1".parse().unwrap()]);
        assert_eq!(resolve_by("c.example", hosts, &[server(2, &[])]), Err(NoAddress::NoSuchName));
    }

    #[test]
    fn an_answer_that_was_lost_is_asked_for_again_and_says_nothing_of_the_name() {
        let at = server_that_misses(1, 4, &[[203, 0, 113, 7]]);
        let found = resolve_by("c.example", "", &[at]);
        assert_eq!(found, Ok(vec!["203.0.113.7".parse::<IpAddr>().unwrap()]));
        let none = || DnsAnswer::Addresses(Vec::new());
        assert_eq!(together([none(), DnsAnswer::Failed].into_iter()), DnsAnswer::Failed);
        assert_eq!(together([none(), DnsAnswer::NoSuchName].into_iter()), none());
        assert_eq!(together([none(), none()].into_iter()), none());
    }

    #[test]
    fn a_name_with_very_many_addresses_has_as_many_as_count() {
        let at = server(2, &[[203, 0, 113, 7]; 40]);
        assert_eq!(resolve_by("c.example", "", &[at]).unwrap().len(), ADDRESSES_MAX);
    }

    #[test]
    fn the_servers_are_those_of_the_file_as_far_as_they_have_addresses() {
        let text = "# nameserver 9.9.9.9\nnameserver 192.0.2.1\nnameserver nonsense\nsearch a\nnameserver ::1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\n";
        let found: Vec<String> = servers(text).iter().map(SocketAddr::to_string).collect();
        assert_eq!(found, ["192.0.2.1:53", "[::1]:53", "192.0.2.2:53"]);
    }
}
