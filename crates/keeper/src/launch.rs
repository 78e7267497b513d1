//! From `exec` to pid 1: the lock, the spec, the namespaces, the announcement.
//!
//! Owns: the order of a keeper's first steps, and what its exit code and its one ready byte mean.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lodge_link::{
    CGROUP_FILE, EXIT_FAILED, EXIT_HELD, Grouping, KeeperSpec, LOCK_FILE, PID_FILE, SOCKET_FILE, descriptors,
    limits, ready,
};

use rustix::fs::Mode;
use rustix::process::umask;

use crate::bounds;
use crate::confine;
use crate::fence::{self, Fence, Namespaces};
use crate::keep::Keeper;
use crate::layers::Layers;
use crate::log::KeeperLog;
use crate::mounts::clone_dir;
use crate::network;
use crate::sys;
use crate::tree;
use crate::watchdog;

/// How long a new keeper waits for the processes of a killed one to be gone.
const OLD_TREE_WITHIN_MS: i32 = 10_000;

/// Why a keeper gave up before it served.
enum LaunchError {
    Held,
    Step { what: &'static str, cause: io::Error },
}

/// Lets `?` say which step failed.
trait StepContext<T> {
    fn during(self, what: &'static str) -> Result<T, LaunchError>;
}

impl<T> StepContext<T> for io::Result<T> {
    fn during(self, what: &'static str) -> Result<T, LaunchError> {
        self.map_err(|cause| LaunchError::Step { what, cause })
    }
}

/// Runs a keeper on the inherited descriptors. The first process returns once it handed over to pid 1.
pub(crate) fn keep() -> ExitCode {
    let ready = match sys::inherit(descriptors::READY) {
        Ok(fd) => File::from(fd),
        Err(_) => return exit_code(EXIT_FAILED),
    };
    // SAFETY: nothing in this process owns a descriptor beyond those that it was given.
    unsafe { libc::close_range(descriptors::CGROUP as libc::c_uint + 1, libc::c_uint::MAX, 0) };
    let served = serve(&ready);
    if served.is_err() {
        // The daemon removes the cgroup after the failure, so it must not be in use then.
        // SAFETY: this process owns no descriptor except the one for the announcement.
        unsafe { libc::close_range(descriptors::CGROUP as libc::c_uint, libc::c_uint::MAX, 0) };
    }
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(LaunchError::Held) => {
            announce(&ready, ready::HELD, "");
            exit_code(EXIT_HELD)
        }
        Err(LaunchError::Step { what, cause }) => {
            announce(&ready, ready::FAILED, &format!("{what}: {cause}"));
            exit_code(EXIT_FAILED)
        }
    }
}

fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

fn announce(mut ready: &File, status: u8, text: &str) {
    let mut message = vec![status];
    message.extend_from_slice(text.as_bytes());
    // The process that started this keeper may have ended; the lock and the socket are what counts.
    if ready.write_all(&message).is_err() {}
}

fn serve(ready: &File) -> Result<(), LaunchError> {
    let dir = sys::inherit(descriptors::DIR).during("inherit the directory")?;
    let lock = take_lock(&dir)?;
    let spec_file = sys::inherit(descriptors::SPEC).during("inherit the spec")?;
    let log = KeeperLog::new(sys::inherit(descriptors::LOG).during("inherit the log")?);
    let spec = read_spec(File::from(spec_file))?;
    await_old_tree(&dir);
    settle_process().during("settle the process")?;

    let mut layers = Layers::default();
    let namespaces = fence::unshare(&spec, &mut layers).during("map users")?;
    // SAFETY: this process has one thread, so the child may do anything that the parent may.
    match sys::check(unsafe { libc::fork() }).during("fork")? {
        0 => {}
        _child => return Ok(()),
    }
    // A fresh child never leads a session, so it cannot fail.
    rustix::process::setsid().map_err(io::Error::from).during("lead a session")?;

    let host_pid = record_pid(&dir);
    record_cgroup(&dir, &spec.grouping).during("record the cgroup")?;
    bounds::record(&dir, &spec.controllers).during("record the cgroups of its limits")?;
    let mut net = network::enter(&spec, namespaces, &mut layers).during("close the network")?;
    if net.gate.is_some() {
        net.resolver = Some(network::write_resolver(&dir).during("write where names are asked for")?);
    }
    watchdog::prepare().during("prepare the watchdog")?;
    let logs = spec.logs.as_deref().map(|path| open_logs(path, namespaces)).transpose();
    let logs = logs.during("open the log directory")?;
    let fence = Fence::build(&spec, &dir, namespaces, layers, net).during("build the fence")?;
    let listener = listen(&dir).during("listen")?;
    let confined = confine::enter(&spec, &dir, logs, fence).during("confine the sandbox")?;
    let keeper = Keeper::new(spec, dir, lock, log, listener, host_pid, confined).during("prepare")?;
    announce(ready, ready::LISTENING, "");
    close_ready(ready);
    keeper.run();
    Ok(())
}

/// Opens the directory for the output of commands, where possible as a mount of its own: `..` from it leads nowhere.
/// Must run before the host's root is replaced.
fn open_logs(path: &Path, namespaces: Namespaces) -> io::Result<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let opened = sys::open_at(rustix::fs::CWD, &sys::c_string(path.as_os_str())?, flags, 0)?;
    match namespaces {
        // A host that allows no mounts in a namespace lets the sandbox see parts of its tree anyway.
        Namespaces::Own => Ok(clone_dir(opened.as_fd()).unwrap_or(opened)),
        Namespaces::Host => Ok(opened),
    }
}

/// The announcement's reader waits for the end, and the caller still borrows the file.
fn close_ready(ready: &File) {
    let null = File::open("/dev/null");
    if let Ok(null) = null {
        // SAFETY: both descriptors are open; the old one is replaced in place and stays owned by `ready`.
        unsafe { libc::dup3(null.as_raw_fd(), ready.as_raw_fd(), libc::O_CLOEXEC) };
    }
}

fn take_lock(dir: &OwnedFd) -> Result<OwnedFd, LaunchError> {
    let name = c_name(LOCK_FILE);
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_NOFOLLOW;
    let lock = sys::open_at(dir.as_fd(), &name, flags, 0o600).during("open the lock")?;
    if !sys::try_lock(lock.as_raw_fd()).during("take the lock")? {
        return Err(LaunchError::Held);
    }
    // A lock that was removed between opening and taking it guards nothing.
    let stat = sys::stat(lock.as_fd()).during("inspect the lock")?;
    if stat.st_nlink == 0 {
        return Err(LaunchError::Held);
    }
    Ok(lock)
}

fn c_name(name: &str) -> std::ffi::CString {
    std::ffi::CString::new(name).unwrap_or_default()
}

fn read_spec(file: File) -> Result<KeeperSpec, LaunchError> {
    let mut bytes = Vec::with_capacity(4096);
    file.take(limits::SPEC_MAX as u64).read_to_end(&mut bytes).during("read the spec")?;
    KeeperSpec::decode(&mut bytes).map_err(io::Error::other).during("decode the spec")
}

/// A killed keeper releases its lock a moment before the kernel has killed its tree.
fn await_old_tree(dir: &OwnedFd) {
    let Ok(fd) = sys::open_at(dir.as_fd(), &c_name(PID_FILE), libc::O_RDONLY | libc::O_NOFOLLOW, 0) else {
        return;
    };
    let mut text = String::new();
    if File::from(fd).take(64).read_to_string(&mut text).is_err() {
        return;
    }
    let mut words = text.split_whitespace();
    let (Some(Ok(pid)), Some(Ok(start))) =
        (words.next().map(str::parse::<i32>), words.next().map(str::parse::<u64>))
    else {
        return;
    };
    let Ok(pidfd) = sys::pidfd_open(pid) else { return };
    let is_same = tree::process(pid).is_some_and(|process| process.start == start);
    // A timeout is not fatal: it is a process stuck in the kernel, which nothing here could end.
    if is_same && sys::wait_readable(pidfd.as_fd(), OLD_TREE_WITHIN_MS).is_err() {}
}

/// Leaves everything behind that was inherited and is not meant.
fn settle_process() -> io::Result<()> {
    #[cfg(target_env = "gnu")]
    // SAFETY: plain settings of the allocator, made before it is used much.
    unsafe {
        // Without these, one long line would raise the threshold and its memory would never be returned.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 64 * 1024);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 64 * 1024);
        // The thread that starts tools needs no heap of its own.
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
    // SAFETY: no memory is passed, apart from a signal set and a limit that outlive their calls.
    unsafe {
        libc::setsid();
        libc::umask(0o022);
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        sys::check(libc::setrlimit(libc::RLIMIT_CORE, &none))?;
    }
    std::env::set_current_dir("/")?;
    let null = sys::open_at(rustix::fs::CWD, c"/dev/null", libc::O_RDWR, 0)?;
    for stdio in 0..3 {
        // SAFETY: both descriptors are open; nothing in this process owns the standard ones.
        sys::check(unsafe { libc::dup2(null.as_raw_fd(), stdio) })?;
    }
    Ok(())
}

/// Writes down which process this is as the host sees it. Must run before `/proc` is replaced.
fn record_pid(dir: &OwnedFd) -> Option<u32> {
    let link = std::fs::read_link("/proc/self").ok()?;
    let pid: i32 = link.to_str()?.parse().ok()?;
    let start = tree::process(pid)?.start;
    put_file(dir, PID_FILE, c"pid.new", format!("{pid} {start}\n").as_bytes()).ok()?;
    u32::try_from(pid).ok()
}

/// Writes down in which cgroup the sandbox is, before anything is put there. Must run before it is hidden.
fn record_cgroup(dir: &OwnedFd, grouping: &Grouping) -> io::Result<()> {
    let path = match grouping {
        Grouping::Cgroup { .. } => std::fs::read_link(format!("/proc/self/fd/{}", descriptors::CGROUP))?,
        Grouping::None { .. } => PathBuf::new(),
    };
    put_file(dir, CGROUP_FILE, c"cgroup.new", path.as_os_str().as_bytes())
}

/// Writes a small file, completely or not at all.
pub(crate) fn put_file(dir: &OwnedFd, name: &str, temporary: &CStr, bytes: &[u8]) -> io::Result<()> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_NOFOLLOW;
    let fd = sys::open_at(dir.as_fd(), temporary, flags, 0o600)?;
    File::from(fd).write_all(bytes)?;
    sys::rename_at(dir.as_fd(), temporary, &c_name(name))
}

/// Binds through the descriptor, because socket paths are limited to 108 bytes.
fn listen(dir: &OwnedFd) -> io::Result<UnixListener> {
    match sys::unlink_at(dir.as_fd(), &c_name(SOCKET_FILE), 0) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    umask(Mode::from_bits_retain(0o177));
    let bound = UnixListener::bind(format!("/proc/self/fd/{}/{SOCKET_FILE}", dir.as_raw_fd()));
    umask(Mode::from_bits_retain(0o022));
    let listener = bound?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
