//! A socket of the host's network that is of use for one peer alone, where Landlock cannot see to that.
//!
//! A filter accepts packets from that peer's address and port, and is locked. The local port is explicit, so the kernel
//! never changes it. A program that resets the socket can then neither connect it elsewhere nor listen: the filter
//! drops other peers.
//!
//! After a reset the socket is still bound. So it is bound to one address and never to all of them, and never to one that
//! servers of the host's loopback use: a tool must not keep those from starting.
//!
//! Owns: the filter, the choice of the address, and whether this host lets the keeper attach a filter.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use crate::bpf::{answer, jump, statement};
use crate::confine;
use crate::local_ports::LocalPorts;
use crate::netlink::RouteSocket;
use crate::sockets;
use crate::sys;
use crate::trial::TrialError;

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

/// The right to configure networks. Since 2026, Linux asks for it when a filter is attached to a TCP socket.
pub(crate) const CAP_NET_ADMIN: u64 = 1 << 12;

/// How sockets get their filter on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerFilter {
    /// What the keeper must keep for it, to be in force while a filter is attached and at no other time.
    pub(crate) capabilities: u64,
    ports: LocalPorts,
    /// Where connections to the host's loopback come from.
    loopback: Ipv4Addr,
}

impl PeerFilter {
    /// Tries it on a socket of the network that this process is in, which must be the host's.
    pub(crate) fn try_attaching() -> Result<PeerFilter, TrialError> {
        let (ports, loopback) = (LocalPorts::choose()?, loopback_source()?);
        let lock_one = |capabilities: u64| {
            let filter = PeerFilter { capabilities, ports: ports.clone(), loopback };
            let socket = sockets::socket(libc::AF_INET, libc::SOCK_STREAM)?;
            attach_locked(&socket, SocketAddr::from((Ipv4Addr::LOCALHOST, 9)))?;
            match detach(&socket) {
                Err(_) => Ok(filter),
                Ok(()) => Err(io::Error::other("a filter that was locked can be removed")),
            }
        };
        match confine::without_capability(CAP_NET_ADMIN, || lock_one(0))? {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                lock_one(CAP_NET_ADMIN).map_err(TrialError::during("attach a filter to a TCP socket"))
            }
            other => Ok(other?),
        }
    }

    /// Restricts a socket that is neither bound nor connected to one peer, and returns the address to connect it to.
    ///
    /// `EACCES`: no safe address to connect from. `EAGAIN`: no port left.
    pub(crate) fn restrict(
        &self,
        socket: &OwnedFd,
        peer: SocketAddr,
        routes: &mut RouteSocket,
    ) -> io::Result<sockets::SocketAddress> {
        let peer = SocketAddr::new(answering_address(peer.ip()), peer.port());
        self.ports.bind_one(socket, self.source_for(peer.ip(), routes)?, peer)?;
        confine::with_capability(self.capabilities, || attach_locked(socket, peer))?;
        sockets::SocketAddress::for_socket(socket, peer)
    }

    /// The address to connect from.
    fn source_for(&self, peer: IpAddr, routes: &mut RouteSocket) -> io::Result<IpAddr> {
        match peer {
            IpAddr::V4(v4) if v4.is_loopback() => Ok(self.loopback.into()),
            // There is only one such address, and servers have it: a tool could take their ports.
            IpAddr::V6(v6) if v6.is_loopback() => Err(io::Error::from_raw_os_error(libc::EACCES)),
            peer => routes.source_for(peer),
        }
    }
}

/// An address of the loopback that no server is at: programs and distributions use some of 127.0.0.0/16.
fn loopback_source() -> io::Result<Ipv4Addr> {
    let mut random = [0; 3];
    sys::random(&mut random)?;
    let [second, third, fourth] = random;
    Ok(Ipv4Addr::new(127, second | 64, third, fourth.clamp(1, 254)))
}

/// The address that answers a connection to this one.
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

fn attach_locked(socket: &OwnedFd, peer: SocketAddr) -> io::Result<()> {
    attach(socket, filter_for(peer))?;
    sockets::set_socket_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &1i32)
}

fn attach(socket: &OwnedFd, mut code: Vec<libc::sock_filter>) -> io::Result<()> {
    let len = libc::c_ushort::try_from(code.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len, filter: code.as_mut_ptr() };
    sockets::set_socket_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

fn detach(socket: &OwnedFd) -> io::Result<()> {
    sockets::set_socket_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0i32)
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
    fn the_loopback_answers_for_no_address() {
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
    fn a_connection_to_the_loopback_comes_from_an_address_that_no_server_has() {
        for _ in 0..1000 {
            let [first, second, _, _] = loopback_source().unwrap().octets();
            assert!(first == 127 && second >= 64, "{second}");
        }
        let loopback = loopback_source().unwrap();
        let ports = LocalPorts::choose().unwrap();
        let filter = PeerFilter { capabilities: 0, ports, loopback };
        let mut routes = RouteSocket::open().unwrap();
        assert_eq!(filter.source_for([127, 0, 0, 1].into(), &mut routes).unwrap(), loopback);
        let refused = filter.source_for(Ipv6Addr::LOCALHOST.into(), &mut routes).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
    }

    #[test]
    fn a_restricted_socket_reaches_its_peer_and_after_a_reset_nobody_and_has_its_port_for_good() {
        let filter = match PeerFilter::try_attaching() {
            Ok(filter) => filter,
            // Kernels since 2026 refuse it to ordinary users only.
            Err(error) => return assert!(!sys::is_root(), "root can attach a filter: {error:?}"),
        };
        let [peer, other] = [0, 1].map(|_| TcpListener::bind(("127.0.0.1", 0)).unwrap());
        let socket = sockets::socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
        filter.restrict(&socket, peer.local_addr().unwrap(), &mut RouteSocket::open().unwrap()).unwrap();
        let connect = |to: &TcpListener| {
            let address = sockets::SocketAddress::from(to.local_addr().unwrap());
            sockets::connect(socket.as_fd(), address.bytes())
        };
        let reset = || sockets::connect(socket.as_fd(), &[0; 16]).unwrap();
        connect(&peer).unwrap();
        let at = peer.accept().unwrap().1;
        reset();
        sys::set_nonblocking(socket.as_fd()).unwrap();
        assert_eq!(connect(&other).unwrap_err().raw_os_error(), Some(libc::EINPROGRESS));
        assert!(!sys::wait_readable(socket.as_fd(), 200).unwrap(), "nobody answers");
        other.set_nonblocking(true).unwrap();
        assert_eq!(other.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        reset();
        let elsewhere = sockets::SocketAddress::from(SocketAddr::from(([127, 0, 0, 1], 0)));
        assert_eq!(
            sockets::bind(socket.as_fd(), elsewhere.bytes()).unwrap_err().raw_os_error(),
            Some(libc::EINVAL)
        );
        sockets::listen(socket.as_fd(), 1).unwrap();
        let near = TcpStream::connect_timeout(&at, std::time::Duration::from_millis(200));
        assert!(near.is_err(), "a socket that listens hears nobody");
        assert!(attach(&socket, vec![answer(EVERYTHING)]).is_err() && detach(&socket).is_err());
    }
}
