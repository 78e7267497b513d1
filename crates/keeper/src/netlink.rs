//! The two questions that the keeper has for the kernel's routing: where an address leads, and to have one of its own.
//!
//! Owns: messages of rtnetlink, byte for byte. Never: what follows from an answer.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::sockets;
use crate::sys;

const HEADER_LEN: usize = 16;
const ERROR_LEN: usize = 20;
const RTA_DST: u16 = 1;
const RTA_PREFSRC: u16 = 7;
/// What an answer about a route has before its attributes.
const ROUTE_LEN: usize = 12;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// Where the type of a route lies in its answer.
const ROUTE_TYPE_AT: usize = HEADER_LEN + 7;
/// An address that needs no duplicate detection.
const IFA_F_NODAD: u8 = 2;
const LOOPBACK_INDEX: u32 = 1;
/// More than an answer to one of these has.
const ANSWER_MAX: usize = 4096;

/// Where the kernel would send a packet for an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteVerdict {
    /// To another machine.
    Out,
    /// To this one, or to many at once.
    NotOut,
}

/// A socket for questions about the network namespace that it was opened in.
#[derive(Debug)]
pub(crate) struct RouteSocket {
    socket: OwnedFd,
    serial: u32,
}

impl RouteSocket {
    pub(crate) fn open() -> io::Result<RouteSocket> {
        // Netlink's protocol 0 is that of routes.
        Ok(RouteSocket { socket: sockets::socket(libc::AF_NETLINK, libc::SOCK_RAW)?, serial: 0 })
    }

    /// Asks where an address leads now. The kernel answers within the call.
    pub(crate) fn look_up(&mut self, to: IpAddr) -> io::Result<RouteVerdict> {
        match self.route_to(to)?.get(ROUTE_TYPE_AT) {
            Some(&libc::RTN_UNICAST) => Ok(RouteVerdict::Out),
            Some(_) => Ok(RouteVerdict::NotOut),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Asks which of the host's addresses a connection to this one would have now.
    pub(crate) fn source_for(&mut self, to: IpAddr) -> io::Result<IpAddr> {
        let route = self.route_to(to)?;
        let attributes = route.get(HEADER_LEN + ROUTE_LEN..).ok_or(io::ErrorKind::InvalidData)?;
        let source = find_attribute(attributes, RTA_PREFSRC).and_then(address_of);
        source.ok_or_else(|| io::Error::from_raw_os_error(libc::EADDRNOTAVAIL))
    }

    fn route_to(&mut self, to: IpAddr) -> io::Result<Vec<u8>> {
        let (family, bits) = family_of(to);
        let mut body = vec![0; ROUTE_LEN];
        body[..2].copy_from_slice(&[family, bits]);
        attribute(&mut body, RTA_DST, to);
        self.ask(libc::RTM_GETROUTE, libc::NLM_F_REQUEST as u16, &body)
    }

    /// Gives the loopback one more address, which nothing else has.
    pub(crate) fn add_to_loopback(&mut self, address: IpAddr) -> io::Result<()> {
        let (family, bits) = family_of(address);
        let flags = if address.is_ipv6() { IFA_F_NODAD } else { 0 };
        let mut body = vec![family, bits, flags, 0];
        body.extend_from_slice(&LOOPBACK_INDEX.to_ne_bytes());
        for kind in [IFA_LOCAL, IFA_ADDRESS] {
            attribute(&mut body, kind, address);
        }
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        self.ask(libc::RTM_NEWADDR, flags as u16, &body).map(drop)
    }

    fn ask(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        self.serial = self.serial.wrapping_add(1);
        let mut message = Vec::with_capacity(HEADER_LEN + body.len());
        message.extend_from_slice(&((HEADER_LEN + body.len()) as u32).to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(&flags.to_ne_bytes());
        message.extend_from_slice(&self.serial.to_ne_bytes());
        message.extend_from_slice(&0u32.to_ne_bytes());
        message.extend_from_slice(body);
        sys::write(self.socket.as_fd(), &message)?;
        let mut answer = vec![0; ANSWER_MAX];
        loop {
            let len = receive(self.socket.as_raw_fd(), &mut answer)?;
            let heard = answer.get(..len).filter(|heard| heard.len() >= HEADER_LEN);
            let heard = heard.ok_or(io::ErrorKind::InvalidData)?;
            // The rest of an answer whose question was given up.
            if heard[8..12] != self.serial.to_ne_bytes() {
                continue;
            }
            let kind = u16::from_ne_bytes([heard[4], heard[5]]);
            if i32::from(kind) == libc::NLMSG_ERROR {
                let code: [u8; 4] = heard
                    .get(HEADER_LEN..ERROR_LEN)
                    .and_then(|code| code.try_into().ok())
                    .ok_or(io::ErrorKind::InvalidData)?;
                return match i32::from_ne_bytes(code) {
                    0 => Ok(Vec::new()),
                    error => Err(io::Error::from_raw_os_error(-error)),
                };
            }
            return Ok(heard.to_vec());
        }
    }
}

/// The kernel has put its answer there before the question's call returned, so this never waits.
fn receive(socket: i32, bytes: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most the slice's length into it.
    let len = unsafe { libc::recv(socket, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
    usize::try_from(len).map_err(|_| io::Error::last_os_error())
}

fn family_of(address: IpAddr) -> (u8, u8) {
    match address {
        IpAddr::V4(_) => (libc::AF_INET as u8, 32),
        IpAddr::V6(_) => (libc::AF_INET6 as u8, 128),
    }
}

fn attribute(body: &mut Vec<u8>, kind: u16, address: IpAddr) {
    let octets = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    body.extend_from_slice(&((octets.len() + 4) as u16).to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(&octets);
}

/// The value of an attribute. Each begins at a multiple of four bytes, with its length and its kind.
fn find_attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while let [len_low, len_high, kind_low, kind_high, ..] = *attributes {
        let len = usize::from(u16::from_ne_bytes([len_low, len_high]));
        let value = attributes.get(4..len)?;
        if u16::from_ne_bytes([kind_low, kind_high]) == wanted {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
    None
}

fn address_of(octets: &[u8]) -> Option<IpAddr> {
    let v4 = |octets: [u8; 4]| IpAddr::from(octets);
    let v6 = |octets: [u8; 16]| IpAddr::from(octets);
    octets.try_into().map(v4).or_else(|_| octets.try_into().map(v6)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_to_the_host_itself_has_the_address_that_the_kernel_would_choose() {
        let mut routes = RouteSocket::open().unwrap();
        for (to, source) in [("127.0.0.1", "127.0.0.1"), ("127.8.9.10", "127.0.0.1"), ("::1", "::1")] {
            assert_eq!(routes.source_for(to.parse().unwrap()).unwrap().to_string(), source, "{to}");
        }
        // A datagram socket is connected by the same choice, and sends nothing.
        let far: IpAddr = "198.51.100.77".parse().unwrap();
        let socket = std::net::UdpSocket::bind(("0.0.0.0", 0)).unwrap();
        let chosen = socket.connect((far, 9)).and_then(|()| socket.local_addr());
        assert_eq!(routes.source_for(far).ok(), chosen.ok().map(|address| address.ip()));
    }

    #[test]
    fn this_hosts_own_addresses_do_not_lead_out() {
        let mut routes = RouteSocket::open().unwrap();
        for own in ["127.0.0.1", "127.8.9.10", "::1"] {
            assert_eq!(routes.look_up(own.parse().unwrap()).unwrap(), RouteVerdict::NotOut, "{own}");
        }
        // With a way out or without: an address of another machine is never one of this.
        if let Ok(leads) = routes.look_up("198.51.100.77".parse().unwrap()) {
            assert_eq!(leads, RouteVerdict::Out);
        }
    }
}
