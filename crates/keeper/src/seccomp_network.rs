//! Calls of the sandbox's programs that the keeper answers, because they lead to the network.
//!
//! A second filter, which every exec takes beside the one that it inherits (see `seccomp`). Owns: which calls are reported,
//! and which options would lead a connection elsewhere than where it was checked to lead.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use crate::bpf::{answer, jump};
#[cfg(test)]
use crate::seccomp::install;
use crate::seccomp::{FOURTH_AT, LOOKS, NUMBER_AT, SECOND_AT, THIRD_AT, describe, load, refuse};
use crate::sys;

/// Calls that the keeper answers.
const ANSWERED: [libc::c_long; 3] = [libc::SYS_connect, libc::SYS_bind, libc::SYS_listen];
/// Calls that can connect and send at once, and where their flags lie.
const SENDS: [(libc::c_long, u32); 3] =
    [(libc::SYS_sendto, FOURTH_AT), (libc::SYS_sendmsg, THIRD_AT), (libc::SYS_sendmmsg, FOURTH_AT)];

/// Options of sockets, by their level, that lead packets elsewhere than where a connection was checked to lead: routes that
/// the sender names, interfaces, and data that is sent before there is a connection.
const STEERING: [(libc::c_int, &[libc::c_int]); 4] = [
    (libc::SOL_SOCKET, &[libc::SO_BINDTODEVICE, SO_BINDTOIFINDEX]),
    (libc::IPPROTO_IP, &[libc::IP_OPTIONS, IP_UNICAST_IF]),
    (
        libc::IPPROTO_IPV6,
        &[libc::IPV6_RTHDR, IPV6_2292RTHDR, IPV6_2292PKTOPTIONS, libc::IPV6_PKTINFO, IPV6_UNICAST_IF],
    ),
    (libc::IPPROTO_TCP, &[libc::TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_NO_COOKIE]),
];
const SO_BINDTOIFINDEX: libc::c_int = 62;
const IP_UNICAST_IF: libc::c_int = 50;
const IPV6_2292RTHDR: libc::c_int = 5;
const IPV6_2292PKTOPTIONS: libc::c_int = 6;
const IPV6_UNICAST_IF: libc::c_int = 76;
const TCP_FASTOPEN_NO_COOKIE: libc::c_int = 34;

const SET_FILTER: libc::c_uint = 1;
const NEW_LISTENER: libc::c_uint = 1 << 3;

/// The filter that reports the calls by which an exec, and all that it starts, connect with others: the holder of the
/// descriptor that [`install_reporting`] returns answers them. Refuses to them what the keeper has beyond its execs.
pub(crate) fn supervised() -> Vec<libc::sock_filter> {
    let mut code = vec![load(NUMBER_AT)];
    for number in ANSWERED {
        code.extend([jump(libc::BPF_JEQ, number as u32, 0, 1), answer(libc::SECCOMP_RET_USER_NOTIF)]);
    }
    for number in LOOKS {
        code.extend([jump(libc::BPF_JEQ, number as u32, 0, 1), answer(refuse(libc::EPERM))]);
    }
    code.extend([jump(libc::BPF_JEQ, libc::SYS_clone3 as u32, 0, 1), answer(refuse(libc::ENOSYS))]);
    code.push(answer(libc::SECCOMP_RET_ALLOW));
    code
}

/// Refuses what would lead around the answers of the keeper. Part of the filter that all execs inherit: the kernel compiles
/// the filter of an exec at each start, and this is the longest part. With the number loaded, and loaded still behind it.
pub(crate) fn unguarded_ways() -> Vec<libc::sock_filter> {
    let mut code = Vec::new();
    for (number, flags_at) in SENDS {
        code.extend([
            jump(libc::BPF_JEQ, number as u32, 0, 4),
            load(flags_at),
            jump(libc::BPF_JSET, libc::MSG_FASTOPEN.cast_unsigned(), 0, 1),
            answer(refuse(libc::EOPNOTSUPP)),
            answer(libc::SECCOMP_RET_ALLOW),
        ]);
    }
    code.extend(steering());
    code
}

/// Has all calls of these numbers reported, and nothing else.
#[cfg(test)]
pub(crate) fn report(numbers: &[libc::c_long]) -> io::Result<OwnedFd> {
    install_reporting(&answering(numbers, libc::SECCOMP_RET_USER_NOTIF))
}

/// Refuses calls of these numbers, and nothing else.
#[cfg(test)]
pub(crate) fn refuse_calls(numbers: &[libc::c_long]) -> io::Result<()> {
    install(&answering(numbers, refuse(libc::EPERM)))
}

/// Refuses calls of this number whose second argument is not 0, and nothing else.
#[cfg(test)]
pub(crate) fn refuse_flags(number: libc::c_long, errno: i32) -> io::Result<()> {
    install(&[
        load(NUMBER_AT),
        jump(libc::BPF_JEQ, number as u32, 0, 3),
        load(SECOND_AT),
        jump(libc::BPF_JEQ, 0, 1, 0),
        answer(refuse(errno)),
        answer(libc::SECCOMP_RET_ALLOW),
    ])
}

#[cfg(test)]
fn answering(numbers: &[libc::c_long], value: u32) -> Vec<libc::sock_filter> {
    let mut code = vec![load(NUMBER_AT)];
    for number in numbers {
        code.extend([jump(libc::BPF_JEQ, *number as u32, 0, 1), answer(value)]);
    }
    code.push(answer(libc::SECCOMP_RET_ALLOW));
    code
}

/// Installs a filter on this process and all that it starts, and returns where the calls arrive. Needs `no_new_privs`, and
/// a filter before it that lets no other convention through.
pub(crate) fn install_reporting(program: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    let filter = describe(program)?;
    // SAFETY: `filter` describes `program`, and both outlive the call, which copies them; the descriptor is new.
    unsafe {
        let fd = libc::syscall(libc::SYS_seccomp, SET_FILTER, NEW_LISTENER, &filter);
        Ok(OwnedFd::from_raw_fd(sys::check_long(fd)? as RawFd))
    }
}

/// With the number loaded, and loaded still behind it.
fn steering() -> Vec<libc::sock_filter> {
    let mut inner = vec![load(SECOND_AT)];
    for (level, names) in STEERING {
        inner.push(jump(libc::BPF_JEQ, level.cast_unsigned(), 0, 2 * names.len() as u8 + 2));
        inner.push(load(THIRD_AT));
        for name in names {
            inner.extend([jump(libc::BPF_JEQ, name.cast_unsigned(), 0, 1), answer(refuse(libc::EPERM))]);
        }
        inner.push(answer(libc::SECCOMP_RET_ALLOW));
    }
    inner.push(answer(libc::SECCOMP_RET_ALLOW));
    let mut code = vec![jump(libc::BPF_JEQ, libc::SYS_setsockopt as u32, 0, inner.len() as u8)];
    code.extend(inner);
    code
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp::tests::{run, run_with};
    use crate::seccomp::{ARCH, Clone3, ProcessInspection, program};

    #[test]
    fn a_supervised_exec_is_asked_about_and_has_nothing_that_the_keeper_has_beyond_it() {
        let decide = |number: libc::c_long, flags: i32| {
            run(&supervised(), ARCH, number as u32, [0, flags.cast_unsigned()])
        };
        for number in ANSWERED {
            assert_eq!(decide(number, 0), libc::SECCOMP_RET_USER_NOTIF, "{number}");
        }
        for number in LOOKS {
            assert_eq!(decide(number, 0), refuse(libc::EPERM), "{number}");
            let left = program(Clone3::Refused, ProcessInspection::LeftToExecs);
            assert_eq!(run(&left, ARCH, number as u32, [0; 2]), libc::SECCOMP_RET_ALLOW);
        }
        assert_eq!(decide(libc::SYS_clone3, 0), refuse(libc::ENOSYS));
        for number in [libc::SYS_read, libc::SYS_execve, libc::SYS_socket, libc::SYS_accept4] {
            assert_eq!(decide(number, -1), libc::SECCOMP_RET_ALLOW, "{number}");
        }
    }

    #[test]
    fn where_the_keeper_answers_calls_nothing_leads_around_it() {
        let inherited = program(Clone3::LeftToExecs, ProcessInspection::LeftToExecs);
        let decide = |number: libc::c_long, flags: i32| {
            run(&inherited, ARCH, number as u32, [0, flags.cast_unsigned()])
        };
        for (number, _) in SENDS {
            assert_eq!(decide(number, 0), libc::SECCOMP_RET_ALLOW, "{number}");
            assert_eq!(decide(number, libc::MSG_NOSIGNAL), libc::SECCOMP_RET_ALLOW, "{number}");
            let fast = libc::MSG_FASTOPEN | libc::MSG_NOSIGNAL;
            assert_eq!(decide(number, fast), refuse(libc::EOPNOTSUPP), "{number}");
        }
        let set = |level: libc::c_int, name: libc::c_int| {
            let setsockopt = libc::SYS_setsockopt as u32;
            run_with(&inherited, ARCH, setsockopt, [3, level.cast_unsigned(), name.cast_unsigned(), 0])
        };
        for (level, names) in STEERING {
            for name in names {
                assert_eq!(set(level, *name), refuse(libc::EPERM), "{level} {name}");
            }
            assert_eq!(set(level, 1), libc::SECCOMP_RET_ALLOW, "{level}");
        }
        assert_eq!(set(libc::IPPROTO_TCP, libc::SO_BINDTODEVICE), libc::SECCOMP_RET_ALLOW);
        assert_eq!(set(libc::SOL_UDP, libc::IP_OPTIONS), libc::SECCOMP_RET_ALLOW);
        let clone = run(&inherited, ARCH, libc::SYS_clone as u32, [libc::CLONE_NEWNS.cast_unsigned(), 0]);
        assert_eq!(clone, refuse(libc::EPERM), "what comes behind it still holds");
    }
}
