//! How many connections to the outside the programs of a sandbox have open.
//!
//! A program has the descriptors, and may duplicate, pass on and close them unnoticed. So each socket is registered
//! with an epoll that is never waited for: the kernel drops the registration with the last descriptor, and lists the
//! remaining ones.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::notify_epoll;
use crate::sys;

/// Most connections of one agent at a time.
pub(crate) const CONNECTIONS_MAX: usize = 1024;
/// How often they are counted, at most: a program at the bound retries again and again.
const COUNT_EVERY: Duration = Duration::from_millis(20);
/// More than the kernel's list for this many.
const INFO_BYTES_MAX: u64 = 1024 * 1024;

/// The connections that were handed in and are open.
#[derive(Debug)]
pub(crate) struct OpenConnections {
    epoll: OwnedFd,
    /// There are no more than these.
    at_most: usize,
    counted: Option<Instant>,
}

impl OpenConnections {
    pub(crate) fn new() -> io::Result<OpenConnections> {
        // SAFETY: no memory is passed, and the descriptor is new.
        let epoll = unsafe { OwnedFd::from_raw_fd(sys::check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        Ok(OpenConnections { epoll, at_most: 0, counted: None })
    }

    /// Counts a socket until its last descriptor is closed. `EAGAIN`: there are as many as there may be.
    pub(crate) fn add(&mut self, socket: &OwnedFd, now: Instant) -> io::Result<()> {
        if self.at_most >= CONNECTIONS_MAX && self.counted.is_none_or(|counted| now >= counted + COUNT_EVERY)
        {
            (self.at_most, self.counted) = (self.count(), Some(now));
        }
        if self.at_most >= CONNECTIONS_MAX {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: the kernel reads the structure, which outlives the call.
        sys::check(unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, socket.as_raw_fd(), &mut event)
        })?;
        self.at_most += 1;
        Ok(())
    }

    /// Those that are left. If the kernel does not say, all count.
    fn count(&self) -> usize {
        let path = format!("/proc/self/fdinfo/{}", self.epoll.as_raw_fd());
        match notify_epoll::read_bounded(&path, INFO_BYTES_MAX) {
            text if text.is_empty() => self.at_most,
            text => text.lines().filter(|line| line.starts_with("tfd:")).count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    const WAIT_MAX: Duration = Duration::from_secs(30);

    #[test]
    fn connections_count_until_their_last_descriptor_is_closed() {
        let mut open = OpenConnections::new().unwrap();
        let mut now = Instant::now();
        // Children of other tests have copies of every descriptor until their `execve`.
        let counts_soon = |open: &OpenConnections, expected: usize| {
            let until = Instant::now() + WAIT_MAX;
            while open.count() != expected {
                assert!(Instant::now() < until, "{} open connections, not {expected}", open.count());
                std::thread::yield_now();
            }
        };
        let pair = || UnixStream::pair().map(|(near, far)| (OwnedFd::from(near), far)).unwrap();
        // Closed sockets do not count, at any number.
        for _ in 0..3 * CONNECTIONS_MAX {
            open.add(&pair().0, now).unwrap();
            now += COUNT_EVERY;
        }
        let (first, _far) = pair();
        // As in a program: the number of the first one here is another's later on.
        let kept = first.try_clone().unwrap();
        open.at_most = CONNECTIONS_MAX;
        open.add(&first, now + COUNT_EVERY).unwrap();
        assert!(open.at_most < CONNECTIONS_MAX, "they are counted");
        drop(first);
        // A program still has it.
        counts_soon(&open, 1);
        open.at_most = CONNECTIONS_MAX;
        let refused = open.add(&pair().0, now + COUNT_EVERY).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EAGAIN), "they were counted just now");
        drop(kept);
        counts_soon(&open, 0);
    }
}
