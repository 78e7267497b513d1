//! Ports of the host for connections that need an explicit one.
//!
//! A socket with an explicit port keeps it until it is closed, and a tool decides when that is. So one sandbox has a small
//! share of the host's ports, chosen once: it never gets another, however often it connects.
//!
//! Owns: which ports those are, and binding a free one.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use crate::notify_epoll::read_bounded;
use crate::sockets;
use crate::sys;

const PORT_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const RESERVED_PORTS: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
/// The kernel lists servers before connections, so a bounded read has the servers.
const SERVERS: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
const READ_MAX: u64 = 1024 * 1024;
/// How the kernel writes the state of a socket that listens.
const LISTENS: &str = "0A";
const DEFAULT_RANGE: (u16, u16) = (32_768, 60_999);
const FIRST_UNPRIVILEGED: u16 = 1024;
/// Most ports of one sandbox: twice the connections that it may have open, because the kernel keeps the port of a closed
/// connection for a minute.
pub(crate) const PORTS_MAX: usize = 2048;
/// At most one in this many of the eligible ports, where the host's range is small.
const SHARE: usize = 4;
/// How many ports are tried for one connection.
const TRIES_MAX: usize = 128;

/// The ports that one sandbox connects from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalPorts(Vec<u16>);

impl LocalPorts {
    /// Chooses them, in the network that this process is in.
    pub(crate) fn choose() -> io::Result<LocalPorts> {
        // A host that does not say has the kernel's own range, and reserves nothing.
        let text = |path| read_bounded(path, READ_MAX);
        let servers = SERVERS.map(text).concat();
        let eligible = eligible(&text(PORT_RANGE), &text(RESERVED_PORTS), &servers);
        let mut random = [0; 4];
        sys::random(&mut random)?;
        Ok(LocalPorts::share_of(eligible, u32::from_ne_bytes(random)))
    }

    fn share_of(mut eligible: Vec<u16>, random: u32) -> LocalPorts {
        if !eligible.is_empty() {
            let first = random as usize % eligible.len();
            eligible.rotate_left(first);
            eligible.truncate(eligible.len().div_ceil(SHARE).min(PORTS_MAX));
        }
        LocalPorts(eligible)
    }

    /// Binds a socket to a free port at this address, for a connection to `peer`. `EAGAIN`: the sandbox has none left.
    pub(crate) fn bind_one(&self, socket: &OwnedFd, source: IpAddr, peer: SocketAddr) -> io::Result<()> {
        let exhausted = || io::Error::from_raw_os_error(libc::EAGAIN);
        for _ in 0..TRIES_MAX {
            let mut random = [0; 4];
            sys::random(&mut random)?;
            let at = (u32::from_ne_bytes(random) as usize).checked_rem(self.0.len()).ok_or_else(exhausted)?;
            if self.0[at] == peer.port() {
                continue;
            }
            let address = sockets::SocketAddress::for_socket(socket, SocketAddr::new(source, self.0[at]))?;
            match sockets::bind(socket.as_fd(), address.bytes()) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::EADDRINUSE | libc::EACCES)) => {}
                other => return other,
            }
        }
        Err(exhausted())
    }
}

/// The ports of a range that have no server and are not reserved.
///
/// Of the range, every second one: `connect` without `bind` takes ports at even offsets and skips each that is bound
/// explicitly, so the host's other connections keep theirs. The kernel chooses odd offsets for `bind` to port 0.
fn eligible(range: &str, reserved: &str, servers: &str) -> Vec<u16> {
    let mut ends = range.split_whitespace().map_while(|word| word.parse::<u16>().ok());
    let (first, last) = match (ends.next(), ends.next()) {
        (Some(first), Some(last)) if first <= last => (first, last),
        (Some(_) | None, Some(_) | None) => DEFAULT_RANGE,
    };
    let reserved: Vec<(u16, u16)> = reserved
        .trim()
        .split(',')
        .filter_map(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            Some((from.parse().ok()?, to.parse().ok()?))
        })
        .collect();
    let servers: Vec<u16> = servers.lines().filter_map(listening_port).collect();
    let is_free = |port: &u16| {
        *port >= FIRST_UNPRIVILEGED
            && !reserved.iter().any(|(from, to)| (*from..=*to).contains(port))
            && !servers.contains(port)
    };
    (first..=last).skip(1).step_by(2).filter(is_free).collect()
}

/// The port of a server, from a line of the kernel's list of sockets.
fn listening_port(line: &str) -> Option<u16> {
    let mut words = line.split_whitespace().skip(1);
    let (local, _remote, state) = (words.next()?, words.next()?, words.next()?);
    let (_address, port) = local.rsplit_once(':')?;
    if state == LISTENS { u16::from_str_radix(port, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    const SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 77, 1, 2));

    #[test]
    fn eligible_ports_have_odd_offsets_and_are_neither_reserved_nor_a_servers() {
        let servers = "  sl  local_address rem_address   st tx_queue\n\
            \x20  0: 00000000:8003 00000000:0000 0A 00000000:00000000\n\
            \x20  1: 0100007F:8005 0100007F:1F90 01 00000000:00000000\n";
        assert_eq!(eligible("32768\t32780\n", "32769,32775-32777\n", servers), [32_773, 32_779]);
        assert_eq!(eligible("1 1030", "", ""), [1024, 1026, 1028, 1030]);
        let default = eligible("nonsense", "", "");
        assert_eq!((default[0], default.len()), (32_769, 14_116));
    }

    #[test]
    fn a_sandbox_has_a_share_of_the_eligible_ports_and_no_more_than_its_bound() {
        let all = eligible("", "", "");
        for random in [0, 7, u32::MAX] {
            let LocalPorts(ports) = LocalPorts::share_of(all.clone(), random);
            assert_eq!(ports.len(), PORTS_MAX, "{random}");
            assert_eq!(ports[0], all[random as usize % all.len()]);
        }
        assert_eq!(LocalPorts::share_of(all[..10].to_vec(), 9).0, [all[9], all[0], all[1]]);
        assert_eq!(LocalPorts::share_of(Vec::new(), 9).0, []);
    }

    #[test]
    fn a_share_runs_out_and_a_port_that_is_in_use_or_the_peers_is_never_taken() {
        let server = TcpListener::bind((SOURCE, 0)).unwrap();
        let in_use = server.local_addr().unwrap().port();
        let free: Vec<u16> = (0..3)
            .map(|_| TcpListener::bind((SOURCE, 0)).unwrap())
            .map(|server| server.local_addr().unwrap().port())
            .collect();
        let peer = SocketAddr::from(([203, 0, 113, 5], free[0]));
        let ports = LocalPorts([&[in_use], &free[..]].concat());
        let mut sockets = Vec::new();
        let refused = loop {
            let socket = sockets::socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
            match ports.bind_one(&socket, SOURCE, peer) {
                Ok(()) => sockets.push(std::net::TcpStream::from(socket)),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.raw_os_error(), Some(libc::EAGAIN));
        let mut bound: Vec<u16> = sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
        bound.sort_unstable();
        let mut expected = free[1..].to_vec();
        expected.sort_unstable();
        expected.dedup();
        expected.retain(|port| *port != free[0]);
        assert_eq!(bound, expected);
    }
}
