//! Sockets that a program watched by epoll before it connected them: the one that takes their place is watched the same.
//!
//! A registration belongs to a file and the number by which it was given, so it goes with the file that is replaced.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use crate::notify_sys;
use crate::sys;

const EPOLL: &[u8] = b"anon_inode:[eventpoll]";
/// Most processes whose epolls are remembered.
const PROCESSES_MAX: usize = 32;
/// How far a process is searched, as all of it is the program's: descriptors, epolls among them, and bytes of what the
/// kernel says of one epoll. Beyond that a socket is no longer watched after it was connected.
const DESCRIPTORS_MAX: usize = 4096;
const EPOLLS_MAX: usize = 32;
const INFO_BYTES_MAX: u64 = 256 * 1024;

/// The epolls of processes, as they were found last.
#[derive(Debug, Default)]
pub(crate) struct EpollCache {
    known: VecDeque<(i32, Vec<RawFd>)>,
}

/// One registration of a socket.
#[derive(Debug)]
pub(crate) struct EpollRegistration {
    epoll: OwnedFd,
    events: u32,
    data: u64,
}

impl EpollCache {
    /// All registrations of a process's descriptor. A process that is gone has none.
    pub(crate) fn of(&mut self, thread: i32, pidfd: &OwnedFd, fd: RawFd) -> Vec<EpollRegistration> {
        let Ok(process) = notify_sys::process_of(thread) else { return Vec::new() };
        let known = self.known.iter().find(|(pid, _)| *pid == process);
        let found: Vec<EpollRegistration> = known.map_or_else(Vec::new, |(_, epolls)| {
            epolls.iter().filter_map(|epoll| registration(process, pidfd, *epoll, fd)).collect()
        });
        if !found.is_empty() {
            return found;
        }
        // Not in those that were known: in another, or in none.
        let epolls = epolls(process).unwrap_or_default();
        let found = epolls.iter().filter_map(|epoll| registration(process, pidfd, *epoll, fd)).collect();
        self.known.retain(|(pid, _)| *pid != process);
        if self.known.len() >= PROCESSES_MAX {
            self.known.pop_front();
        }
        self.known.push_back((process, epolls));
        found
    }
}

impl EpollRegistration {
    /// Registers `socket` as the file before it was, by the same number.
    pub(crate) fn renew(&self, socket: &OwnedFd, number: RawFd) -> io::Result<()> {
        // Not by the number that is lent.
        let apart = if self.epoll.as_raw_fd() == number { Some(self.epoll.try_clone()?) } else { None };
        let epoll = apart.as_ref().unwrap_or(&self.epoll);
        let lent =
            if socket.as_raw_fd() == number { None } else { Some(BorrowedNumber::take(socket, number)?) };
        let mut event = libc::epoll_event { events: self.events, u64: self.data };
        // SAFETY: the kernel reads the structure, which outlives the call.
        let added = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, number, &mut event) };
        let added = sys::check(added).map(drop);
        drop(lent);
        added
    }
}

/// A descriptor number of this process that temporarily refers to another file. The original file stays open.
struct BorrowedNumber {
    number: RawFd,
    before: Option<(OwnedFd, i32)>,
}

impl BorrowedNumber {
    fn take(socket: &OwnedFd, number: RawFd) -> io::Result<BorrowedNumber> {
        // SAFETY: no memory is passed. The number is returned before it could be missed: the other thread of this
        // process, which forks tools, waits for a message meanwhile.
        unsafe {
            let flags = libc::fcntl(number, libc::F_GETFD);
            let before = if flags < 0 {
                None
            } else {
                let kept = sys::check(libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0))?;
                Some((OwnedFd::from_raw_fd(kept), flags))
            };
            sys::check(libc::dup3(socket.as_raw_fd(), number, libc::O_CLOEXEC))?;
            Ok(BorrowedNumber { number, before })
        }
    }
}

impl Drop for BorrowedNumber {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe {
            match &self.before {
                Some((kept, flags)) => {
                    libc::dup2(kept.as_raw_fd(), self.number);
                    libc::fcntl(self.number, libc::F_SETFD, *flags);
                }
                None => drop(libc::close(self.number)),
            }
        }
    }
}

fn epolls(process: i32) -> io::Result<Vec<RawFd>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{process}/fd"))?.take(DESCRIPTORS_MAX) {
        let entry = entry?;
        let is_epoll = fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str().as_bytes() == EPOLL);
        if is_epoll && let Some(number) = number(&entry.file_name()) {
            found.push(number);
            if found.len() == EPOLLS_MAX {
                break;
            }
        }
    }
    Ok(found)
}

/// The beginning of a file of `/proc`; nothing where it cannot be read.
pub(crate) fn read_bounded(path: &str, bytes_max: u64) -> String {
    let mut text = Vec::new();
    match fs::File::open(path).and_then(|file| file.take(bytes_max).read_to_end(&mut text)) {
        Ok(_) => String::from_utf8_lossy(&text).into_owned(),
        Err(_) => String::new(),
    }
}

fn number(name: &std::ffi::OsStr) -> Option<RawFd> {
    name.to_str()?.parse().ok()
}

fn registration(process: i32, pidfd: &OwnedFd, epoll: RawFd, fd: RawFd) -> Option<EpollRegistration> {
    let text = read_bounded(&format!("/proc/{process}/fdinfo/{epoll}"), INFO_BYTES_MAX);
    let (events, data) = text.lines().find_map(|line| line_of(line, fd))?;
    Some(EpollRegistration { epoll: notify_sys::get_fd(pidfd, epoll).ok()?, events, data })
}

/// What a line says of this descriptor: `tfd: 5 events: 19 data: 7 pos:…`, all but the first in hexadecimal.
fn line_of(line: &str, fd: RawFd) -> Option<(u32, u64)> {
    let mut words = line.strip_prefix("tfd:")?.split_whitespace();
    let number: RawFd = words.next()?.parse().ok()?;
    let (events, data) = match [words.next()?, words.next()?, words.next()?, words.next()?] {
        ["events:", events, "data:", data] => (events, data),
        _ => return None,
    };
    let values = (u32::from_str_radix(events, 16).ok()?, u64::from_str_radix(data, 16).ok()?);
    (number == fd).then_some(values)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn epoll() -> OwnedFd {
        // SAFETY: no memory is passed; the descriptor is new.
        unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) }
    }

    #[test]
    fn a_process_is_searched_so_far_and_no_further() {
        assert!(sys::passes_in_child(search_epolls));
        assert!(sys::passes_in_child(search_descriptors));
    }

    fn search_epolls() {
        let own = std::process::id().cast_signed();
        let kept: Vec<OwnedFd> = (0..EPOLLS_MAX + 8).map(|_| epoll()).collect();
        let found = epolls(own).unwrap();
        assert_eq!(found.len(), EPOLLS_MAX);
        // A socket that only one beyond those watches is not found, and one that an earlier one watches is.
        let (near, _far) = UnixStream::pair().unwrap();
        let near = OwnedFd::from(near);
        let pidfd = sys::pidfd_open(own).unwrap();
        let watch = |epoll: &OwnedFd| {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
            // SAFETY: the structure outlives the call.
            let added = unsafe {
                libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, near.as_raw_fd(), &mut event)
            };
            assert_eq!(added, 0);
        };
        watch(kept.iter().rev().find(|epoll| !found.contains(&epoll.as_raw_fd())).unwrap());
        assert_eq!(EpollCache::default().of(own, &pidfd, near.as_raw_fd()).len(), 0);
        watch(kept.iter().find(|epoll| found.contains(&epoll.as_raw_fd())).unwrap());
        assert_eq!(EpollCache::default().of(own, &pidfd, near.as_raw_fd()).len(), 1);
    }

    fn search_descriptors() {
        let wanted = DESCRIPTORS_MAX as u64 + 256;
        let limit = libc::rlimit { rlim_cur: wanted, rlim_max: wanted };
        // SAFETY: the structure outlives the call.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } != 0 {
            // A host that allows no more descriptors has none beyond the bound.
            return;
        }
        let null = OwnedFd::from(fs::File::open("/dev/null").unwrap());
        let _many: Vec<OwnedFd> = (0..DESCRIPTORS_MAX).map(|_| null.try_clone().unwrap()).collect();
        let _beyond = epoll();
        assert_eq!(epolls(std::process::id().cast_signed()).unwrap(), Vec::<RawFd>::new());
        assert_eq!(read_bounded("/dev/zero", 100).len(), 100);
        assert_eq!(read_bounded("/no/such/file", 100), "");
    }

    #[test]
    fn a_registration_is_found_and_goes_over_to_another_socket_by_the_same_number() {
        let (epoll, socket) = (epoll(), OwnedFd::from(TcpListener::bind(("127.0.0.1", 0)).unwrap()));
        let number = socket.as_raw_fd();
        let events = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET) as u32;
        let mut event = libc::epoll_event { events, u64: 0xdead_beef_0000_0001 };
        // SAFETY: the structure outlives the call.
        assert_eq!(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, number, &mut event) }, 0);
        let own = std::process::id().cast_signed();
        let pidfd = sys::pidfd_open(own).unwrap();
        let mut epolls = EpollCache::default();
        for _ in 0..2 {
            let found = epolls.of(own, &pidfd, number);
            assert_eq!(found.len(), 1);
            assert_eq!((found[0].events & events, found[0].data), (events, 0xdead_beef_0000_0001));
        }
        let found = epolls.of(own, &pidfd, number);
        // The file behind that number is another from here on, as it is in a program whose socket is replaced.
        let (near, _far) = UnixStream::pair().unwrap();
        let near = OwnedFd::from(near);
        // SAFETY: both descriptors are open and owned here.
        unsafe { libc::dup2(near.as_raw_fd(), number) };
        found[0].renew(&near, number).unwrap();
        let mut heard = [libc::epoll_event { events: 0, u64: 0 }; 2];
        // SAFETY: the array is as long as is announced.
        let ready = unsafe { libc::epoll_wait(epoll.as_raw_fd(), heard.as_mut_ptr(), 2, 1000) };
        assert_eq!((ready, { heard[0].u64 }), (1, 0xdead_beef_0000_0001));
        // SAFETY: no memory is passed.
        let removed =
            unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, number, std::ptr::null_mut()) };
        assert_eq!(removed, 0, "it is known by its number");
    }
}
