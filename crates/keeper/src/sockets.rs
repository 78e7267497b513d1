//! Safe names for the system calls of sockets.
//!
//! Owns: the unsafe part of sockets, messages and their addresses. Never: what to do about an error.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::sys::{check, owned};

/// Two ends of a socket that keeps messages apart and passes descriptors.
pub(crate) fn packet_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends one message, and perhaps a descriptor with it.
pub(crate) fn send_packet(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    if let [Some(fd)] = &fds {
        control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd)));
    }
    let sent = sendmsg(socket, &[io::IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives one message and the descriptor that came with it. `Ok(0)` is the end of the other side.
pub(crate) fn receive_packet(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [io::IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok((got.bytes, fd))
}

/// An address as the kernel takes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SocketAddress {
    bytes: [u8; 28],
    len: usize,
}

impl SocketAddress {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The address in the form that a socket of this domain takes: one of IPv4 is mapped for IPv6.
    pub(crate) fn for_socket(socket: &OwnedFd, address: SocketAddr) -> io::Result<SocketAddress> {
        let domain: i32 = socket_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_DOMAIN)?;
        Ok(match address {
            SocketAddr::V4(v4) if domain == libc::AF_INET6 => {
                SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())).into()
            }
            SocketAddr::V4(_) | SocketAddr::V6(_) => address.into(),
        })
    }
}

impl From<SocketAddr> for SocketAddress {
    fn from(address: SocketAddr) -> SocketAddress {
        let mut bytes = [0; 28];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let (family, len) = match address {
            SocketAddr::V4(v4) => {
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                (libc::AF_INET, 16)
            }
            SocketAddr::V6(v6) => {
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                (libc::AF_INET6, 28)
            }
        };
        bytes[..2].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
        SocketAddress { bytes, len }
    }
}

/// A socket of this process's network, closed on exec. `kind` may have flags.
pub(crate) fn socket(domain: libc::c_int, kind: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    owned(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, 0) })
}

/// Connects a socket to an address as the kernel takes it.
pub(crate) fn connect(socket: BorrowedFd<'_>, address: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads at most the slice's length, from bytes that outlive the call.
    check(unsafe {
        libc::connect(socket.as_raw_fd(), address.as_ptr().cast(), address.len() as libc::socklen_t)
    })
    .map(drop)
}

/// Binds a socket to an address as the kernel takes it.
pub(crate) fn bind(socket: BorrowedFd<'_>, address: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads at most the slice's length, from bytes that outlive the call.
    check(unsafe {
        libc::bind(socket.as_raw_fd(), address.as_ptr().cast(), address.len() as libc::socklen_t)
    })
    .map(drop)
}

pub(crate) fn listen(socket: BorrowedFd<'_>, backlog: i32) -> io::Result<()> {
    Ok(rustix::net::listen(socket, backlog)?)
}

/// An option of a socket that is a plain value, which zeroes are one of.
pub(crate) fn socket_option<T: Copy + Default>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<T> {
    let mut value = T::default();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most the announced length, to `value`.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &mut len) })?;
    Ok(value)
}

pub(crate) fn set_socket_option<T: Copy>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads the announced length, from `value`.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const *value).cast(), len) })
        .map(drop)
}
