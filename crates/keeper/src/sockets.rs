//! Safe names for the system calls of sockets.
//!
//! Owns: the unsafe part of sockets, messages and their addresses. Never: what to do about an error.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::sys::{check, owned};

/// Two ends of a socket that keeps messages apart and passes descriptors.
pub(crate) fn packet_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the kernel writes two descriptors into the array, which nothing else owns.
    unsafe {
        check(libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()))?;
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// Sends one message, and perhaps a descriptor with it.
pub(crate) fn send_packet(socket: RawFd, bytes: &[u8], fd: Option<RawFd>) -> io::Result<()> {
    let mut room = ControlRoom::default();
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the message describes `part` and `room`, which outlive the call; the room is long enough for one
    // descriptor and aligned for its header. The bytes are only read.
    let sent = unsafe {
        let mut message = room.message(&mut part);
        match fd {
            Some(fd) => {
                let header = libc::CMSG_FIRSTHDR(&message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as libc::c_uint) as _;
                std::ptr::write_unaligned(libc::CMSG_DATA(header).cast(), fd);
            }
            None => message.msg_controllen = 0,
        }
        libc::sendmsg(socket, &message, libc::MSG_NOSIGNAL)
    };
    match usize::try_from(sent) {
        Ok(len) if len == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Receives one message and the descriptor that came with it. `Ok(0)` is the end of the other side.
pub(crate) fn receive_packet(socket: RawFd, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut room = ControlRoom::default();
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: as above, and the kernel writes at most what is announced. A descriptor that came with the message
    // belongs to nobody else.
    unsafe {
        let mut message = room.message(&mut part);
        let len = usize::try_from(libc::recvmsg(socket, &mut message, libc::MSG_CMSG_CLOEXEC));
        let len = len.map_err(|_| io::Error::last_os_error())?;
        let header = libc::CMSG_FIRSTHDR(&message);
        let fd = if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            None
        } else {
            Some(owned(std::ptr::read_unaligned(libc::CMSG_DATA(header).cast()))?)
        };
        Ok((len, fd))
    }
}

/// Room for the header of one descriptor beside a message, aligned as the kernel wants it.
#[derive(Default)]
#[repr(C, align(8))]
struct ControlRoom([u8; 32]);

impl ControlRoom {
    /// A message of one part. It refers to both, so they must outlive its use.
    fn message(&mut self, part: &mut libc::iovec) -> libc::msghdr {
        // SAFETY: plain data, for which zeroes are a valid value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = part;
        message.msg_iovlen = 1;
        message.msg_control = self.0.as_mut_ptr().cast();
        // SAFETY: plain arithmetic.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as libc::c_uint) } as _;
        message
    }
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
        let domain: i32 = socket_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_DOMAIN)?;
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
pub(crate) fn connect(socket: RawFd, address: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads at most the slice's length, from bytes that outlive the call.
    check(unsafe { libc::connect(socket, address.as_ptr().cast(), address.len() as libc::socklen_t) })
        .map(drop)
}

/// Binds a socket to an address as the kernel takes it.
pub(crate) fn bind(socket: RawFd, address: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads at most the slice's length, from bytes that outlive the call.
    check(unsafe { libc::bind(socket, address.as_ptr().cast(), address.len() as libc::socklen_t) }).map(drop)
}

pub(crate) fn listen(socket: RawFd, backlog: i32) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::listen(socket, backlog) }).map(drop)
}

/// An option of a socket that is a plain value, which zeroes are one of.
pub(crate) fn socket_option<T: Copy + Default>(
    socket: RawFd,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<T> {
    let mut value = T::default();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most the announced length, to `value`.
    check(unsafe { libc::getsockopt(socket, level, name, (&raw mut value).cast(), &mut len) })?;
    Ok(value)
}

pub(crate) fn set_socket_option<T: Copy>(
    socket: RawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads the announced length, from `value`.
    check(unsafe { libc::setsockopt(socket, level, name, (&raw const *value).cast(), len) }).map(drop)
}
