//! A socket of the host's network that is of use for one peer alone, where Landlock cannot see to that.
//!
//! A filter takes packets from that peer's address and port, and is locked; the local port is an explicit one, which the
//! kernel never gives up. A program that resets the socket can then neither connect it elsewhere nor listen: what would
//! answer or call is not heard.
//!
//! Owns: the filter, the choice of the port, and whether this host lets the keeper attach one.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::bpf::{answer, jump, statement};
use crate::confine;
use crate::sys;

/// Where the header of the network begins, in a filter of a socket whose packets begin with that of TCP.
const NETWORK_HEADER: u32 = -0x10_0000_i32 as u32;
const SOURCE_V4_AT: u32 = NETWORK_HEADER + 12;
const SOURCE_V6_AT: u32 = NETWORK_HEADER + 8;
const SOURCE_PORT_AT: u32 = 0;
const VERSION_MASK: u32 = 0xf0;
const VERSION_4: u32 = 0x40;
const VERSION_6: u32 = 0x60;
const EVERYTHING: u32 = u32::MAX;
const NOTHING: u32 = 0;

/// The right to configure networks. Linux asks for it since 2026, of whoever attaches a filter to a TCP socket.
pub(crate) const CAP_NET_ADMIN: u64 = 1 << 12;

const PORT_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const RESERVED_PORTS: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
/// How many ports are tried for one connection.
const PORT_TRIES_MAX: usize = 128;

/// How sockets get their filter on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerFilter {
    /// What the keeper must keep for it.
    pub(crate) capabilities: u64,
    ports: LocalPorts,
}

impl PeerFilter {
    /// Tries it on a socket of the network that this process is in, which must be the host's.
    pub(crate) fn try_attaching() -> io::Result<PeerFilter> {
        let (peer, ports) = (SocketAddr::from((Ipv4Addr::LOCALHOST, 9)), LocalPorts::read());
        let lock_one = |capabilities: u64| {
            let filter = PeerFilter { capabilities, ports: ports.clone() };
            let socket = stream_socket()?;
            filter.restrict(&socket, peer)?;
            match detach(&socket) {
                Err(_) => Ok(filter),
                Ok(()) => Err(io::Error::other("a filter that was locked can be removed")),
            }
        };
        match confine::without_capability(CAP_NET_ADMIN, || lock_one(0))? {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                lock_one(CAP_NET_ADMIN).map_err(|cause| {
                    io::Error::other(format!("cannot attach a filter to a TCP socket: {cause}"))
                })
            }
            other => other,
        }
    }

    /// Restricts a socket that is neither bound nor connected to one peer. Must come before it is connected.
    pub(crate) fn restrict(&self, socket: &OwnedFd, peer: SocketAddr) -> io::Result<()> {
        let peer = SocketAddr::new(answering_address(peer.ip()), peer.port());
        self.ports.bind_one(socket)?;
        attach(socket, filter_for(peer))?;
        sys::set_socket_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &1i32)
    }
}

/// Which address answers whoever connects to this one.
fn answering_address(to: IpAddr) -> IpAddr {
    match to.to_canonical() {
        IpAddr::V4(v4) if v4.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        to => to,
    }
}

/// Takes packets from one address and port.
fn filter_for(peer: SocketAddr) -> Vec<libc::sock_filter> {
    let (version, words) = match peer.ip() {
        IpAddr::V4(v4) => (VERSION_4, vec![(SOURCE_V4_AT, v4.to_bits())]),
        IpAddr::V6(v6) => {
            let octets = v6.octets();
            let word =
                |at: usize| u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]]);
            (VERSION_6, [0, 4, 8, 12].map(|at| (SOURCE_V6_AT + at as u32, word(at))).to_vec())
        }
    };
    let load = |size: u32, at: u32| statement(libc::BPF_LD | size | libc::BPF_ABS, at);
    let mut tests = vec![
        vec![
            load(libc::BPF_B, NETWORK_HEADER),
            statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, VERSION_MASK),
            jump(libc::BPF_JEQ, version, 1, 0),
        ],
        vec![load(libc::BPF_H, SOURCE_PORT_AT), jump(libc::BPF_JEQ, u32::from(peer.port()), 1, 0)],
    ];
    tests.extend(
        words.iter().map(|(at, word)| vec![load(libc::BPF_W, *at), jump(libc::BPF_JEQ, *word, 1, 0)]),
    );
    let mut code: Vec<_> =
        tests.into_iter().flat_map(|test| test.into_iter().chain([answer(NOTHING)])).collect();
    code.push(answer(EVERYTHING));
    code
}

fn attach(socket: &OwnedFd, mut code: Vec<libc::sock_filter>) -> io::Result<()> {
    let len = libc::c_ushort::try_from(code.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len, filter: code.as_mut_ptr() };
    sys::set_socket_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

fn detach(socket: &OwnedFd) -> io::Result<()> {
    sys::set_socket_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0i32)
}

fn stream_socket() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed, and the descriptor is new.
    unsafe {
        let fd = sys::check(libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// The ports that the host connects from.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LocalPorts {
    first: u16,
    last: u16,
    /// Those among them that somebody wants to listen at.
    reserved: Vec<(u16, u16)>,
}

impl LocalPorts {
    /// Reads them from the network that this process is in.
    fn read() -> LocalPorts {
        // A host that does not say has the kernel's own range, and reserves nothing.
        let text = |path| std::fs::read_to_string(path).unwrap_or_default();
        LocalPorts::parse(&text(PORT_RANGE), &text(RESERVED_PORTS))
    }

    fn parse(range: &str, reserved: &str) -> LocalPorts {
        let mut ends = range.split_whitespace().map_while(|word| word.parse::<u16>().ok());
        let (first, last) = match (ends.next(), ends.next()) {
            (Some(first), Some(last)) if first <= last && first > 0 => (first, last),
            (Some(_) | None, Some(_) | None) => (32_768, 60_999),
        };
        let reserved = reserved.trim().split(',').filter_map(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            Some((from.parse().ok()?, to.parse().ok()?))
        });
        LocalPorts { first, last, reserved: reserved.collect() }
    }

    /// The port that belongs to a random number, unless it is reserved.
    fn pick(&self, random: u16) -> Option<u16> {
        let port = self.first + (u32::from(random) % (u32::from(self.last - self.first) + 1)) as u16;
        let is_reserved = self.reserved.iter().any(|(from, to)| (*from..=*to).contains(&port));
        (!is_reserved).then_some(port)
    }

    /// Binds a socket to one of them that nobody has. A port that the kernel chose would be given up with the
    /// connection.
    fn bind_one(&self, socket: &OwnedFd) -> io::Result<()> {
        let domain: i32 = sys::socket_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_DOMAIN)?;
        let any: IpAddr = if domain == libc::AF_INET6 {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        for _ in 0..PORT_TRIES_MAX {
            let mut random = [0; 2];
            sys::random(&mut random)?;
            let Some(port) = self.pick(u16::from_ne_bytes(random)) else { continue };
            let address = sys::SocketAddress::from(SocketAddr::new(any, port));
            match sys::bind(socket.as_raw_fd(), address.bytes()) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::EADDRINUSE | libc::EACCES)) => {}
                other => return other,
            }
        }
        Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Runs a filter as the kernel would, on the version, source address and source port of a packet.
    fn takes(code: &[libc::sock_filter], from: SocketAddr) -> bool {
        let mut packet = match from.ip() {
            IpAddr::V4(v4) => [&[0x45; 12][..], &v4.octets(), &[0; 4]].concat(),
            IpAddr::V6(v6) => [&[0x60; 8][..], &v6.octets(), &[0; 16]].concat(),
        };
        packet.extend_from_slice(&[0; 4]);
        let transport = from.port().to_be_bytes();
        let (mut at, mut loaded) = (0, 0u32);
        loop {
            let step = code[at];
            at += 1;
            let bytes = match step.k.checked_sub(NETWORK_HEADER) {
                Some(offset) => &packet[(offset as usize).min(packet.len())..],
                None => &transport[..],
            };
            match u32::from(step.code) {
                code if code == libc::BPF_LD | libc::BPF_B | libc::BPF_ABS => loaded = bytes[0].into(),
                code if code == libc::BPF_LD | libc::BPF_H | libc::BPF_ABS => {
                    loaded = u16::from_be_bytes([bytes[0], bytes[1]]).into();
                }
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    loaded = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
                code if code == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K => loaded &= step.k,
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => {
                    at += usize::from(if loaded == step.k { step.jt } else { step.jf });
                }
                _ => return step.k != NOTHING,
            }
        }
    }

    #[test]
    fn a_filter_takes_packets_of_its_peer_and_of_nobody_else() {
        let all =
            ["203.0.113.5:80", "203.0.113.5:81", "203.0.113.6:80", "[2001:db8::5]:80", "[2001:db8::6]:80"]
                .map(|peer| peer.parse::<SocketAddr>().unwrap());
        for peer in all {
            let code = filter_for(peer);
            for from in all {
                assert_eq!(takes(&code, from), from == peer, "{peer} from {from}");
            }
        }
        // The same bytes where an older address would lie.
        let code = filter_for("203.0.113.5:80".parse().unwrap());
        assert!(!takes(&code, "[2001:db8:cb00:7105::1]:80".parse().unwrap()));
    }

    #[test]
    fn whoever_answers_for_no_address_is_the_loopback() {
        for (to, expected) in [
            ("0.0.0.0", "127.0.0.1"),
            ("::", "::1"),
            ("::ffff:0.0.0.0", "127.0.0.1"),
            ("::ffff:203.0.113.5", "203.0.113.5"),
            ("127.8.9.10", "127.8.9.10"),
        ] {
            let expected: IpAddr = expected.parse().unwrap();
            assert_eq!(answering_address(to.parse().unwrap()), expected, "{to}");
        }
    }

    #[test]
    fn ports_are_those_of_the_host_without_the_ones_it_reserves() {
        let ports = LocalPorts::parse("32768\t32771\n", "32769,32771-40000\n");
        let picked: Vec<Option<u16>> = (0..5).map(|random| ports.pick(random)).collect();
        assert_eq!(picked, [Some(32_768), None, Some(32_770), None, Some(32_768)]);
        let whole = LocalPorts::parse("1 65535", "");
        assert_eq!(
            (whole.pick(0), whole.pick(u16::MAX - 1), whole.pick(u16::MAX)),
            (Some(1), Some(65_535), Some(1))
        );
        assert_eq!(LocalPorts::parse("nonsense", "").pick(0), Some(32_768));
    }

    #[test]
    fn a_restricted_socket_reaches_its_peer_and_after_a_reset_nobody_and_has_its_port_for_good() {
        // Where it cannot be attached there is nothing to see.
        let Ok(filter) = PeerFilter::try_attaching() else { return };
        let [peer, other] = [0, 1].map(|_| TcpListener::bind(("127.0.0.1", 0)).unwrap());
        let socket = stream_socket().unwrap();
        filter.restrict(&socket, peer.local_addr().unwrap()).unwrap();
        let connect = |to: &TcpListener| {
            let address = sys::SocketAddress::from(to.local_addr().unwrap());
            sys::connect(socket.as_raw_fd(), address.bytes())
        };
        let reset = || sys::connect(socket.as_raw_fd(), &[0; 16]).unwrap();
        connect(&peer).unwrap();
        let at = peer.accept().unwrap().1;
        reset();
        sys::set_nonblocking(socket.as_raw_fd()).unwrap();
        assert_eq!(connect(&other).unwrap_err().raw_os_error(), Some(libc::EINPROGRESS));
        assert!(!sys::wait_readable(socket.as_raw_fd(), 200).unwrap(), "nobody answers");
        other.set_nonblocking(true).unwrap();
        assert_eq!(other.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        reset();
        let elsewhere = sys::SocketAddress::from(SocketAddr::from(([127, 0, 0, 1], 0)));
        assert_eq!(
            sys::bind(socket.as_raw_fd(), elsewhere.bytes()).unwrap_err().raw_os_error(),
            Some(libc::EINVAL)
        );
        sys::listen(socket.as_raw_fd(), 1).unwrap();
        let near = TcpStream::connect_timeout(&at, std::time::Duration::from_millis(200));
        assert!(near.is_err(), "a socket that listens hears nobody");
        assert!(attach(&socket, vec![answer(EVERYTHING)]).is_err() && detach(&socket).is_err());
    }
}
