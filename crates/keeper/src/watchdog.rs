//! No call that a program of the sandbox can prolong keeps the keeper: a timer interrupts it.
//!
//! Closing a socket can wait for its peer (SO_LINGER), connecting one for a full backlog, and handing one in for the
//! caller's next turn on a processor. A program controls all three.

use std::io;
use std::ptr;

use crate::sys;

/// How long such a call takes at most.
const INTERRUPT_EVERY_US: libc::suseconds_t = 20_000;

/// Installs the timer's signal, blocked. Threads that are started after this do not get it.
pub(crate) fn prepare() -> io::Result<()> {
    // SAFETY: the structure is plain data, for which zeroes are a valid value, and outlives the call. The handler does
    // nothing, so it may run at any time.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = interrupted as extern "C" fn(libc::c_int) as libc::sighandler_t;
        sys::check(libc::sigaction(libc::SIGALRM, &action, ptr::null_mut()))?;
    }
    set_mask(libc::SIG_BLOCK);
    Ok(())
}

extern "C" fn interrupted(_signal: libc::c_int) {}

/// While this lives, calls that wait return `EINTR` after a moment.
#[derive(Debug)]
pub(crate) struct Watchdog(());

impl Watchdog {
    pub(crate) fn start() -> Watchdog {
        set_timer(INTERRUPT_EVERY_US);
        set_mask(libc::SIG_UNBLOCK);
        Watchdog(())
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        set_mask(libc::SIG_BLOCK);
        set_timer(0);
    }
}

fn set_timer(every_us: libc::suseconds_t) {
    let every = libc::timeval { tv_sec: 0, tv_usec: every_us };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: the kernel reads the structure, which outlives the call.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, ptr::null_mut()) };
}

fn set_mask(how: libc::c_int) {
    // SAFETY: the set is plain data, initialised by the first call, and outlives the others.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGALRM);
        libc::pthread_sigmask(how, &set, ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    /// Closes a socket whose peer reads nothing, and that is to wait an hour for it.
    fn close_lingering() -> io::Result<()> {
        prepare()?;
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let _far = listener.accept()?;
        near.set_nonblocking(true)?;
        while (&near).write(&[0; 65_536]).is_ok() {}
        let linger = libc::linger { l_onoff: 1, l_linger: 3_600 };
        let size = size_of::<libc::linger>() as libc::socklen_t;
        // SAFETY: the kernel reads the structure, which outlives the call.
        sys::check(unsafe {
            libc::setsockopt(
                near.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const linger).cast(),
                size,
            )
        })?;
        let _watchdog = Watchdog::start();
        drop(near);
        Ok(())
    }

    #[test]
    fn a_socket_whose_close_would_wait_for_its_peer_is_closed() {
        // In a process of its own: a keeper serves calls in its first thread, which is the one that the timer interrupts.
        let child = sys::fork().unwrap();
        if child == 0 {
            // What other tests have open ends with them.
            // SAFETY: this is the child, which uses none of these descriptors.
            unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
            let status = if close_lingering().is_ok() { 0 } else { 1 };
            // SAFETY: this is the child, of which nothing has to be kept.
            unsafe { libc::_exit(status) }
        }
        let mut status = 0;
        // SAFETY: the status outlives the call.
        let ended = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!((ended, status), (child, 0));
    }
}
