//! Addresses as programs write them, and what a socket is that they give one to.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

use crate::notify_sys::{self, SupervisedSyscall};
use crate::sockets;
use crate::stock::AddressFamily;

/// How long an address of a socket can be.
const ADDRESS_MAX: usize = 128;
const V4_LEN: usize = 16;
const V6_LEN: usize = 24;

/// An address, copied once from the program that wrote it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SyscallAddress {
    bytes: [u8; ADDRESS_MAX],
    len: usize,
}

/// Where an address of the internet leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressTarget {
    /// Disconnect: the socket loses its peer.
    Away,
    To(IpAddr, u16),
}

/// What kind of socket a call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketKind {
    /// One by which nothing beyond the sandbox's own network is reached.
    Other,
    /// A stream of the sandbox's own network.
    Own(AddressFamily),
    /// One of the host's network, which was handed in.
    Hosts(AddressFamily),
}

impl SyscallAddress {
    /// Copies the address that `connect` or `bind` was given.
    pub(crate) fn fetch(call: &SupervisedSyscall) -> io::Result<SyscallAddress> {
        let len = usize::try_from(call.args[2] as u32).unwrap_or(usize::MAX);
        let mut address = SyscallAddress { bytes: [0; ADDRESS_MAX], len };
        let bytes = address.bytes.get_mut(..len).filter(|bytes| bytes.len() >= size_of::<u16>());
        let bytes = bytes.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        notify_sys::read_memory(call.thread, call.args[1], bytes)?;
        Ok(address)
    }

    /// The first bytes of one that is too long.
    pub(crate) fn of(bytes: &[u8]) -> SyscallAddress {
        let mut address = SyscallAddress { bytes: [0; ADDRESS_MAX], len: bytes.len().min(ADDRESS_MAX) };
        address.bytes[..address.len].copy_from_slice(&bytes[..address.len]);
        address
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Where it leads a socket of this family.
    pub(crate) fn leads(&self, family: AddressFamily) -> io::Result<AddressTarget> {
        let named = u16::from_ne_bytes([self.bytes[0], self.bytes[1]]);
        let port = u16::from_be_bytes([self.bytes[2], self.bytes[3]]);
        match (i32::from(named), family) {
            (libc::AF_UNSPEC, _) => Ok(AddressTarget::Away),
            (libc::AF_INET, AddressFamily::V4) if self.len >= V4_LEN => {
                let [a, b, c, d] = [4, 5, 6, 7].map(|at| self.bytes[at]);
                Ok(AddressTarget::To(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), port))
            }
            (libc::AF_INET6, AddressFamily::V6) if self.len >= V6_LEN => {
                let mut octets = [0; 16];
                octets.copy_from_slice(&self.bytes[8..24]);
                Ok(AddressTarget::To(Ipv6Addr::from(octets).to_canonical(), port))
            }
            (libc::AF_INET, AddressFamily::V4) | (libc::AF_INET6, AddressFamily::V6) => {
                Err(io::Error::from_raw_os_error(libc::EINVAL))
            }
            (_, _) => Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
        }
    }
}

impl SocketKind {
    /// `own` is what sockets of the sandbox's own network are known by.
    pub(crate) fn of(socket: &OwnedFd, own: u64) -> io::Result<SocketKind> {
        let option = |name| sockets::socket_option::<i32>(socket.as_fd(), libc::SOL_SOCKET, name);
        let family = match option(libc::SO_DOMAIN)? {
            libc::AF_INET => AddressFamily::V4,
            libc::AF_INET6 => AddressFamily::V6,
            _ => return Ok(SocketKind::Other),
        };
        let (kind, protocol) = (option(libc::SO_TYPE)?, option(libc::SO_PROTOCOL)?);
        if kind != libc::SOCK_STREAM || !matches!(protocol, libc::IPPROTO_TCP | libc::IPPROTO_MPTCP) {
            return Ok(SocketKind::Other);
        }
        Ok(if notify_sys::cookie(socket)? == own {
            SocketKind::Own(family)
        } else {
            SocketKind::Hosts(family)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_leads_where_the_kernel_would_take_it() {
        let v4 = [&(libc::AF_INET as u16).to_ne_bytes()[..], &[0, 80, 10, 1, 2, 3], &[0; 8]].concat();
        assert_eq!(
            SyscallAddress::of(&v4).leads(AddressFamily::V4).unwrap(),
            AddressTarget::To("10.1.2.3".parse().unwrap(), 80)
        );
        let errno = |leads: io::Result<AddressTarget>| leads.unwrap_err().raw_os_error();
        assert_eq!(errno(SyscallAddress::of(&v4).leads(AddressFamily::V6)), Some(libc::EAFNOSUPPORT));
        assert_eq!(errno(SyscallAddress::of(&v4[..8]).leads(AddressFamily::V4)), Some(libc::EINVAL));
        let mapped = Ipv4Addr::new(127, 0, 0, 1).to_ipv6_mapped().octets();
        let v6 = [&(libc::AF_INET6 as u16).to_ne_bytes()[..], &[1, 0], &[0; 4], &mapped, &[0; 4]].concat();
        assert_eq!(
            SyscallAddress::of(&v6).leads(AddressFamily::V6).unwrap(),
            AddressTarget::To("127.0.0.1".parse().unwrap(), 256)
        );
        assert_eq!(errno(SyscallAddress::of(&v6).leads(AddressFamily::V4)), Some(libc::EAFNOSUPPORT));
        assert_eq!(errno(SyscallAddress::of(&v6[..20]).leads(AddressFamily::V6)), Some(libc::EINVAL));
        assert_eq!(SyscallAddress::of(&[0, 0, 0, 0]).leads(AddressFamily::V4).unwrap(), AddressTarget::Away);
    }
}
