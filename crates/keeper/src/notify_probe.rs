//! Tries at a keeper's start what it will need for every exec: to answer a call of a program.
//!
//! Owns: the trial. A child takes the filter of execs and makes one call; the keeper reads its memory, fetches its
//! descriptor, puts another in that place and answers. Hosts refuse any of these: another supervisor that has the calls
//! already (LXD), the filter of a container, a security module.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use crate::notify_sys::{self, SyscallAnswer};
use crate::seccomp_network;
use crate::sockets;
use crate::sys;
use crate::trial::TrialError;

/// How long one step of the trial may take.
const STEP_WITHIN: Duration = Duration::from_secs(5);
/// What the call of the trial is answered with: no connection fails like this by itself.
const TRIAL_ERRNO: i32 = libc::EXFULL;
/// How the messages of the child begin.
const GIVES_CALLS: u8 = b'C';
const REFUSED: u8 = b'E';
const ANSWERED: u8 = b'A';

/// Whether calls of programs can be answered here.
pub(crate) fn try_answering() -> Result<(), TrialError> {
    notify_sys::check_kernel()?;
    let (ours, theirs) = sockets::packet_pair()?;
    let their_socket = sockets::socket(libc::AF_INET, libc::SOCK_STREAM)?;
    let our_socket = sockets::socket(libc::AF_INET, libc::SOCK_DGRAM)?;
    let child = sys::fork()?;
    if child == 0 {
        drop(ours);
        make_call(&theirs, &their_socket);
        // SAFETY: ends the child at once; all output is written.
        unsafe { libc::_exit(0) }
    }
    drop((theirs, their_socket));
    let answered = answer_call(&ours, child, &our_socket);
    let mut status = 0;
    // SAFETY: the child was not collected before, so the pid is its own; the status outlives the call.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, &mut status, 0);
    }
    if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSYS {
        return Err(TrialError::refused("a filter of this host kills processes that have calls reported"));
    }
    answered
}

fn trial_address() -> sockets::SocketAddress {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 9)).into()
}

/// In the child: takes the filter, gives the keeper its calls, and makes one.
fn make_call(keeper: &OwnedFd, socket: &OwnedFd) {
    // SAFETY: no memory is passed.
    let restricted = sys::check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) });
    let said =
        match restricted.and_then(|_| seccomp_network::install_reporting(&seccomp_network::supervised())) {
            Ok(calls) => sockets::send_packet(keeper.as_fd(), &[GIVES_CALLS], Some(calls.as_fd())),
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO).to_le_bytes();
                sockets::send_packet(keeper.as_fd(), &[&[REFUSED], &errno[..]].concat(), None)
            }
        };
    if said.is_err() {
        return;
    }
    let address = trial_address();
    let connected = sockets::connect(socket.as_fd(), address.bytes());
    let kind = sockets::socket_option::<i32>(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TYPE);
    let is_replaced = kind.is_ok_and(|kind| kind == libc::SOCK_DGRAM);
    if connected.is_err_and(|error| error.raw_os_error() == Some(TRIAL_ERRNO)) && is_replaced {
        // If the message is lost, the keeper notices by itself.
        drop(sockets::send_packet(keeper.as_fd(), &[ANSWERED], None));
    }
}

/// In the keeper: answers the child's call as it would one of a program.
fn answer_call(child: &OwnedFd, pid: i32, replacement: &OwnedFd) -> Result<(), TrialError> {
    let mut message = [0; 8];
    let (len, calls) =
        receive(child, &mut message).map_err(TrialError::during("hear of a program's calls"))?;
    let calls = match (&message[..len], calls) {
        ([GIVES_CALLS], Some(calls)) => calls,
        ([REFUSED, errno @ ..], None) => {
            let errno = errno.try_into().map_or(libc::EIO, i32::from_le_bytes);
            let cause = io::Error::from_raw_os_error(errno);
            return Err(match errno {
                libc::EBUSY => TrialError::refused(format!(
                    "another program has the calls of this host's processes reported to it already (seccomp): {cause}"
                )),
                _ => TrialError::during("have calls of programs reported (seccomp)")(cause),
            });
        }
        // It ended early, or there was no room for its descriptor.
        (_, _) => return Err(TrialError::not_tried("the process that was to try calls failed")),
    };
    if !sys::wait_readable(calls.as_fd(), within_ms())? {
        return Err(TrialError::not_tried("a call of a program was not reported in time"));
    }
    let call = notify_sys::receive(&calls).map_err(TrialError::during("take a call of a program"))?;
    if call.thread != pid {
        return Err(TrialError::refused("a call was reported for another process"));
    }
    // By the child's own number: /proc is still the host's here and has other numbers.
    let process = sys::pidfd_open(pid).map_err(TrialError::during("refer to a program"))?;
    notify_sys::get_fd(&process, call.fd()).map_err(TrialError::during("fetch a descriptor of a program"))?;
    let expected = trial_address();
    let mut address = vec![0; expected.bytes().len()];
    notify_sys::read_memory(call.thread, call.args[1], &mut address)
        .map_err(TrialError::during("read the memory of a program"))?;
    if address != expected.bytes() {
        return Err(TrialError::refused("the memory of a program is not what it wrote"));
    }
    notify_sys::replace(&calls, call.id, call.fd(), replacement, true)
        .map_err(TrialError::during("replace a descriptor of a program"))?;
    notify_sys::answer(&calls, call.id, SyscallAnswer::Error(TRIAL_ERRNO))
        .map_err(TrialError::during("answer a call of a program"))?;
    let (len, _) =
        receive(child, &mut message).map_err(TrialError::during("hear how a call was answered"))?;
    match &message[..len] {
        [ANSWERED] => Ok(()),
        [] => Err(TrialError::not_tried("the process that tried a call ended")),
        _ => Err(TrialError::refused("a call of a program was answered otherwise")),
    }
}

fn receive(socket: &OwnedFd, message: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    match sys::wait_readable(socket.as_fd(), within_ms())? {
        true => sockets::receive_packet(socket.as_fd(), message),
        false => Err(io::ErrorKind::TimedOut.into()),
    }
}

fn within_ms() -> i32 {
    i32::try_from(STEP_WITHIN.as_millis()).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    const CAN: &str = "it can";
    const NOT_TRIED: &str = "not tried: ";

    /// What the trial says in a process that was changed by `change` before.
    fn said_after(change: impl FnOnce() -> io::Result<()>) -> String {
        let (ours, theirs) = sockets::packet_pair().unwrap();
        let child = sys::fork().unwrap();
        if child == 0 {
            // SAFETY: no memory is passed. This is the child, which uses none of the descriptors that are closed.
            unsafe {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                let kept = theirs.as_raw_fd().cast_unsigned();
                libc::close_range(3, kept - 1, 0);
                libc::close_range(kept + 1, libc::c_uint::MAX, 0);
            }
            let said = match change().map_err(TrialError::from).and_then(|()| try_answering()) {
                Ok(()) => CAN.to_owned(),
                Err(TrialError::Refused(error)) => error.to_string(),
                Err(TrialError::NotTried(error)) => format!("{NOT_TRIED}{error}"),
            };
            drop(sockets::send_packet(theirs.as_fd(), said.as_bytes(), None));
            // SAFETY: this is the child, of which nothing has to be kept.
            unsafe { libc::_exit(0) }
        }
        drop(theirs);
        let mut said = [0; 512];
        let (len, _) = sockets::receive_packet(ours.as_fd(), &mut said).unwrap();
        // SAFETY: a null status is allowed.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        String::from_utf8_lossy(&said[..len]).into_owned()
    }

    #[test]
    fn calls_can_be_answered_where_nothing_forbids_it() {
        assert_eq!(said_after(|| Ok(())), CAN);
    }

    #[test]
    fn however_few_descriptors_are_left_the_trial_never_says_that_the_host_refuses() {
        // The descriptor that the result is sent by has a higher number than all of the trial.
        let said = (3..16).map(|most| {
            said_after(|| {
                let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
                // SAFETY: the structure outlives the call.
                sys::check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }).map(drop)
            })
        });
        let said: Vec<String> = said.collect();
        assert!(said.iter().all(|said| said == CAN || said.starts_with(NOT_TRIED)), "{said:#?}");
        assert!(said[0].starts_with(NOT_TRIED) && said.last().is_some_and(|said| said == CAN), "{said:#?}");
    }

    #[test]
    fn a_kernel_that_knows_no_threads_by_descriptors_needs_no_proc_for_the_trial() {
        let said = said_after(|| {
            seccomp_network::refuse_flags(libc::SYS_pidfd_open, libc::EINVAL)?;
            // At a start /proc is the host's, in which the child's number is another process.
            seccomp_network::refuse_calls(&[libc::SYS_openat])
        });
        assert_eq!(said, CAN);
    }

    #[test]
    fn a_process_whose_calls_somebody_else_answers_is_distinguished_before_any_exec() {
        // The holder of the listener answers nothing. The trial makes no call that is reported to it.
        let said = said_after(|| seccomp_network::report(&[libc::SYS_fdatasync]).map(std::mem::forget));
        assert!(said.contains("reported to it already"), "{said}");
    }

    #[test]
    fn a_host_that_lets_nobody_look_into_programs_is_noticed() {
        for (refused, step) in [
            (libc::SYS_process_vm_readv, "read the memory of a program"),
            (libc::SYS_pidfd_getfd, "fetch a descriptor of a program"),
            (libc::SYS_seccomp, "have calls of programs reported"),
        ] {
            let said = said_after(|| seccomp_network::refuse_calls(&[refused]));
            let is_told =
                said.contains(step) || (refused == libc::SYS_seccomp && said.contains("not permitted"));
            assert!(is_told, "{step}: {said}");
        }
    }
}
