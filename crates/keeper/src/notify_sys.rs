//! Calls that a program makes and the keeper answers: the kernel's side of it.
//!
//! Owns: the structures and numbers of seccomp's notifications, and what is fetched from the caller. Never: a decision.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::sockets;
use crate::sys;

const GET_NOTIF_SIZES: libc::c_uint = 3;
const RECEIVE: libc::c_ulong = 0xc050_2100;
const SEND: libc::c_ulong = 0xc018_2101;
const IS_VALID: libc::c_ulong = 0x4008_2102;
const ADD_FD: libc::c_ulong = 0x4018_2103;
const SET_FLAGS: libc::c_ulong = 0x4008_2104;
const SYNC_WAKE_UP: u64 = 1;
const CONTINUE: u32 = 1;
const REPLACE: u32 = 1;
/// How often the watchdog may interrupt a call that waits for a lock.
const INTERRUPTIONS_MAX: u32 = 50;
/// Larger than any kernel's structure so far.
const ROOM: usize = 256;
const SO_NETNS_COOKIE: libc::c_int = 71;
/// Of [`sys::pidfd_open`]: one thread instead of the process that leads it. Needs Linux 6.9.
const PIDFD_THREAD: libc::c_uint = libc::O_EXCL as libc::c_uint;
const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// A call that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SupervisedSyscall {
    pub(crate) id: u64,
    /// The thread that made it.
    pub(crate) thread: i32,
    pub(crate) number: libc::c_long,
    pub(crate) args: [u64; 3],
}

impl SupervisedSyscall {
    /// The descriptor that it is about, which is the first argument of all calls here.
    pub(crate) fn fd(&self) -> RawFd {
        self.args[0] as RawFd
    }
}

/// How a call is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyscallAnswer {
    Done,
    Error(i32),
    /// The kernel carries it out, with the arguments as they are by then.
    Continue,
}

impl From<io::Result<()>> for SyscallAnswer {
    fn from(done: io::Result<()>) -> SyscallAnswer {
        match done {
            Ok(()) => SyscallAnswer::Done,
            Err(error) => SyscallAnswer::Error(error.raw_os_error().unwrap_or(libc::EIO)),
        }
    }
}

/// Whether this kernel knows what is needed to answer calls of programs. Whether the host allows it is tried by
/// `notify_probe`.
pub(crate) fn check_kernel() -> io::Result<()> {
    let mut sizes = [0u16; 3];
    // SAFETY: the call writes three numbers, to `sizes`.
    sys::check_long(unsafe { libc::syscall(libc::SYS_seccomp, GET_NOTIF_SIZES, 0, sizes.as_mut_ptr()) })?;
    if usize::from(sizes[0]) > ROOM {
        return Err(io::Error::other("the kernel's notifications are longer than is known here"));
    }
    let scope = std::fs::read_to_string(YAMA).unwrap_or_default();
    if scope.trim() == "3" {
        return Err(io::Error::other("this host forbids to look into any process"));
    }
    own_cookie().map(drop)
}

/// By which sockets of this process's network are known. Needs Linux 5.14.
pub(crate) fn own_cookie() -> io::Result<u64> {
    cookie(&sockets::socket(libc::AF_INET, libc::SOCK_DGRAM)?)
}

pub(crate) fn cookie(socket: &OwnedFd) -> io::Result<u64> {
    sockets::socket_option(socket.as_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE)
}

/// Lets the answering process run on the caller's processor, which is faster. Optional on older kernels.
pub(crate) fn prefer_speed(listener: &OwnedFd) {
    // SAFETY: the flags are passed as a number.
    unsafe { libc::ioctl(listener.as_raw_fd(), SET_FLAGS as _, SYNC_WAKE_UP) };
}

/// Takes the next call. Only for a listener that is ready: without a call it would wait.
pub(crate) fn receive(listener: &OwnedFd) -> io::Result<SupervisedSyscall> {
    #[repr(C, align(8))]
    struct NotificationBuffer([u8; ROOM]);
    let mut room = NotificationBuffer([0; ROOM]);
    // SAFETY: the kernel writes its structure, which was checked to fit, and expects zeroes before.
    sys::check(unsafe { libc::ioctl(listener.as_raw_fd(), RECEIVE as _, &mut room) })?;
    let long = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&room.0[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    let int = |at: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&room.0[at..at + 4]);
        i32::from_ne_bytes(bytes)
    };
    Ok(SupervisedSyscall {
        id: long(0),
        thread: int(8),
        number: int(16).into(),
        args: [long(32), long(40), long(48)],
    })
}

/// Whether the caller still waits. What was fetched from it before is its own then.
pub(crate) fn is_valid(listener: &OwnedFd, id: u64) -> bool {
    let asked = uninterrupted(|| {
        // SAFETY: the kernel reads one number, from `id`.
        sys::check(unsafe { libc::ioctl(listener.as_raw_fd(), IS_VALID as _, &id) })
    });
    // One that could not be asked about is answered later, if it waits then.
    asked.map_or_else(|error| error.kind() == io::ErrorKind::Interrupted, |_| true)
}

/// For calls that wait for nothing but a lock of the kernel's, which the watchdog may interrupt all the same.
fn uninterrupted(mut call: impl FnMut() -> io::Result<libc::c_int>) -> io::Result<libc::c_int> {
    for _ in 1..INTERRUPTIONS_MAX {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
    call()
}

/// Answers a call. An error: the call was given up.
pub(crate) fn answer(listener: &OwnedFd, id: u64, answer: SyscallAnswer) -> io::Result<()> {
    #[repr(C)]
    struct NotificationResponse {
        id: u64,
        value: i64,
        error: i32,
        flags: u32,
    }
    let (error, flags) = match answer {
        SyscallAnswer::Done => (0, 0),
        SyscallAnswer::Error(errno) => (-errno, 0),
        SyscallAnswer::Continue => (0, CONTINUE),
    };
    let mut response = NotificationResponse { id, value: 0, error, flags };
    uninterrupted(|| {
        // SAFETY: the kernel reads the structure, which has the layout that it asks for and outlives the call.
        sys::check(unsafe { libc::ioctl(listener.as_raw_fd(), SEND as _, &mut response) })
    })
    .map(drop)
}

/// Puts a descriptor of this process in the place of one of the caller's. `EINTR`: the caller did not get a processor in
/// time, and nothing was done.
pub(crate) fn replace(
    listener: &OwnedFd,
    id: u64,
    theirs: RawFd,
    ours: &OwnedFd,
    closes_on_exec: bool,
) -> io::Result<()> {
    #[repr(C)]
    struct NotificationAddFd {
        id: u64,
        flags: u32,
        from: u32,
        to: u32,
        to_flags: u32,
    }
    let to_flags = if closes_on_exec { libc::O_CLOEXEC.cast_unsigned() } else { 0 };
    let from = ours.as_raw_fd().cast_unsigned();
    let mut request = NotificationAddFd { id, flags: REPLACE, from, to: theirs.cast_unsigned(), to_flags };
    // SAFETY: the kernel reads the structure, which has the layout that it asks for and outlives the call.
    sys::check(unsafe { libc::ioctl(listener.as_raw_fd(), ADD_FD as _, &mut request) }).map(drop)
}

/// A process to fetch from. On older kernels this needs a `/proc` of the sandbox's own processes.
pub(crate) fn open_thread(thread: i32) -> io::Result<OwnedFd> {
    match open_thread_itself(thread) {
        // An older kernel, which knows the process by its first thread.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => sys::pidfd_open(process_of(thread)?),
        opened => opened,
    }
}

/// Whether threads can be referred to without `/proc`.
pub(crate) fn knows_threads() -> io::Result<bool> {
    // SAFETY: this touches no memory.
    match open_thread_itself(unsafe { libc::gettid() }) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

fn open_thread_itself(thread: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed; a descriptor that is returned is new.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, thread, PIDFD_THREAD);
        Ok(OwnedFd::from_raw_fd(sys::check_long(fd)? as RawFd))
    }
}

/// The process that a thread belongs to.
pub(crate) fn process_of(thread: i32) -> io::Result<i32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|pid| pid.trim().parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A copy of one of a process's descriptors.
pub(crate) fn get_fd(process: &OwnedFd, fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed; a descriptor that is returned is new.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0);
        Ok(OwnedFd::from_raw_fd(sys::check_long(fd)? as RawFd))
    }
}

/// Copies this many bytes from a thread's memory, once.
pub(crate) fn read_memory(thread: i32, from: u64, bytes: &mut [u8]) -> io::Result<()> {
    let ours = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let theirs = libc::iovec { iov_base: from as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: the kernel writes at most the slice's length into it; the other address is not this process's.
    let len = unsafe { libc::process_vm_readv(thread, &ours, 1, &theirs, 1, 0) };
    match usize::try_from(len) {
        Ok(len) if len == bytes.len() => Ok(()),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}
