//! What a program set on its socket, for the one that takes its place.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::sockets;

/// Whether a buffer's size was set by hand: the one to send from, the one to receive into.
const SO_BUF_LOCK: libc::c_int = 72;
const SENDS: i32 = 1;
const RECEIVES: i32 = 2;

/// Plain numbers, by their level and name.
const NUMBERS: [(libc::c_int, libc::c_int); 17] = [
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct SocketTimeout {
    seconds: i64,
    micros: i64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct SocketLinger {
    on: i32,
    seconds: i32,
}

/// Sets on `ours` what a program set on `theirs`, except how long closing waits. What cannot be set here would not have changed where it leads.
pub(crate) fn copy(theirs: &OwnedFd, ours: &OwnedFd) {
    let (from, to) = (theirs.as_fd(), ours.as_fd());
    for (level, name) in NUMBERS {
        copy_one::<i32>(from, to, level, name);
    }
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        copy_one::<SocketTimeout>(from, to, libc::SOL_SOCKET, name);
    }
    let locked = sockets::socket_option::<i32>(from, libc::SOL_SOCKET, SO_BUF_LOCK).unwrap_or(0);
    for (lock, name) in [(SENDS, libc::SO_SNDBUF), (RECEIVES, libc::SO_RCVBUF)] {
        // The kernel doubles what it is given.
        if locked & lock != 0
            && let Ok(size) = sockets::socket_option::<i32>(from, libc::SOL_SOCKET, name)
        {
            drop(sockets::set_socket_option(to, libc::SOL_SOCKET, name, &(size / 2)));
        }
    }
}

/// As [`copy`], for how long closing waits.
pub(crate) fn copy_linger(theirs: &OwnedFd, ours: &OwnedFd) {
    copy_one::<SocketLinger>(theirs.as_fd(), ours.as_fd(), libc::SOL_SOCKET, libc::SO_LINGER);
}

/// After how long a call that sends gives up, if it does.
pub(crate) fn send_timeout(socket: &OwnedFd) -> Option<std::time::Duration> {
    let time =
        sockets::socket_option::<SocketTimeout>(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDTIMEO).ok()?;
    let seconds = u64::try_from(time.seconds).ok()?;
    let micros = u64::try_from(time.micros).ok()?;
    let whole = std::time::Duration::from_secs(seconds) + std::time::Duration::from_micros(micros);
    (!whole.is_zero()).then_some(whole)
}

fn copy_one<T: Copy + Default + PartialEq>(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
) {
    let (Ok(theirs), Ok(ours)) =
        (sockets::socket_option::<T>(from, level, name), sockets::socket_option::<T>(to, level, name))
    else {
        return;
    };
    if theirs != ours {
        drop(sockets::set_socket_option(to, level, name, &theirs));
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn what_was_set_on_one_socket_is_set_on_the_other() {
        let [theirs, ours] = [0, 1].map(|_| OwnedFd::from(TcpListener::bind(("127.0.0.1", 0)).unwrap()));
        let set = |level, name, value: i32| {
            sockets::set_socket_option(theirs.as_fd(), level, name, &value).unwrap()
        };
        set(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
        set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
        set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 77);
        set(libc::SOL_SOCKET, libc::SO_RCVBUF, 50_000);
        let time = SocketTimeout { seconds: 3, micros: 0 };
        sockets::set_socket_option(theirs.as_fd(), libc::SOL_SOCKET, libc::SO_SNDTIMEO, &time).unwrap();
        copy(&theirs, &ours);
        let get = |level, name| sockets::socket_option::<i32>(ours.as_fd(), level, name).unwrap();
        assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_NODELAY), 1);
        assert_eq!(get(libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
        assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), 77);
        assert_eq!(get(libc::SOL_SOCKET, libc::SO_RCVBUF), 100_000);
        assert_eq!(send_timeout(&ours), Some(std::time::Duration::from_secs(3)));
    }
}
