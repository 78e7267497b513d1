//! `keeper gate`: the process that stays in the host's network for a sandbox that has a list.
//!
//! Owns: accepting what programs of the sandbox dial, and a process of its own for each of them, so that none can harm
//! another. It has no secret, no file to write and no capability, and ends with the keeper at the latest.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::confine;
use crate::gate_rules::Rules;
use crate::gate_serve;
use crate::landlock;
use crate::network::{self, Setup};
use crate::seccomp;
use crate::sys;

/// Most connections of one sandbox at a time.
const CONNECTIONS_MAX: usize = 128;
/// Most that are told at a time that there are too many. Beyond these, nobody is told anything.
const REFUSALS_MAX: usize = 16;
/// Between two attempts to accept, where the host has no descriptors or processes left.
const SHORT_PAUSE: Duration = Duration::from_millis(20);

/// Runs a gate on the inherited descriptor, until its keeper is gone.
pub(crate) fn run() -> ExitCode {
    // SAFETY: nothing in this process owns a descriptor beyond the one that it was given.
    unsafe { libc::close_range(network::CONTROL as libc::c_uint + 1, libc::c_uint::MAX, 0) };
    let Ok(control) = sys::inherit(network::CONTROL) else { return ExitCode::FAILURE };
    let mut control = UnixStream::from(control);
    match prepare(&control) {
        Ok((gate, rules)) => {
            if control.write_all(&[network::READY]).is_err() {
                return ExitCode::FAILURE;
            }
            gate.serve(&control, &rules)
        }
        Err(error) => {
            // A keeper that is gone does not ask why.
            drop(control.write_all(error.to_string().as_bytes()));
            ExitCode::FAILURE
        }
    }
}

fn prepare(control: &UnixStream) -> io::Result<(Gate, Rules)> {
    let Setup { listener, uid, allow } = network::receive(control)?;
    let rules = Rules::read(&allow).map_err(|word| io::Error::other(format!("`{word}` names no host")))?;
    let children = children()?;
    confine(uid)?;
    control.set_nonblocking(true)?;
    listener.set_nonblocking(true)?;
    Ok((Gate { listener, children, serving: 0, refusing: Vec::new() }, rules))
}

/// Gives up everything that a gate does not need.
fn confine(uid: Option<u32>) -> io::Result<()> {
    // Landlock and seccomp are what is possible: without them it is still nobody, in namespaces of the sandbox's.
    drop(landlock::read_alone(&readable()));
    if sys::is_root() {
        confine::drop_capabilities()?;
    }
    if let Some(uid) = uid {
        sys::become_user(uid)?;
    }
    confine::set_capabilities(0)?;
    // SAFETY: plain settings of this process, without memory beyond a limit that outlives its call.
    unsafe {
        sys::check(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0))?;
        sys::check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        sys::check(libc::setrlimit(libc::RLIMIT_FSIZE, &none))?;
        libc::prctl(libc::PR_SET_NAME, c"gate".as_ptr());
        // The sandbox's end is told by the keeper, and not to this process.
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
    drop(seccomp::enter(seccomp::Clone3::Refused).and_then(|()| seccomp::refuse_programs()));
    Ok(())
}

/// What names are resolved by.
fn readable() -> Vec<PathBuf> {
    let etc = Path::new("/etc");
    let linked = ["resolv.conf", "hosts"].map(|name| etc.join(name).canonicalize());
    std::iter::once(etc.to_owned()).chain(linked.into_iter().flatten()).collect()
}

/// Ends of children, as a descriptor.
fn children() -> io::Result<OwnedFd> {
    // SAFETY: the set is plain data, initialised by the calls, and outlives them; the descriptor is new.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        sys::check(libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()))?;
        let fd = sys::check(libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

struct Gate {
    listener: TcpListener,
    children: OwnedFd,
    /// Processes that serve.
    serving: usize,
    /// Processes that tell that there are too many.
    refusing: Vec<i32>,
}

impl Gate {
    fn serve(mut self, mut control: &UnixStream, rules: &Rules) -> ExitCode {
        loop {
            let fds = [control.as_raw_fd(), self.children.as_raw_fd(), self.listener.as_raw_fd()];
            wait(fds);
            match control.read(&mut [0; 16]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Nothing is ever said here: this is the end of the keeper, or of its need for a gate.
                Ok(_) | Err(_) => return ExitCode::SUCCESS,
            }
            self.collect();
            self.accept(rules);
        }
    }

    fn collect(&mut self) {
        // How many ended is counted below.
        drop(sys::read(self.children.as_raw_fd(), &mut [0; size_of::<libc::signalfd_siginfo>()]));
        // SAFETY: a null status is allowed.
        while let pid @ 1.. = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } {
            match self.refusing.iter().position(|refusing| *refusing == pid) {
                Some(at) => drop(self.refusing.swap_remove(at)),
                None => self.serving = self.serving.saturating_sub(1),
            }
        }
    }

    fn accept(&mut self, rules: &Rules) {
        let client = match self.listener.accept() {
            Ok((client, _)) => client,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return std::thread::sleep(SHORT_PAUSE),
        };
        let has_room = self.serving < CONNECTIONS_MAX;
        if !has_room && self.refusing.len() >= REFUSALS_MAX {
            return;
        }
        match sys::fork() {
            Ok(0) => self.serve_one(client, rules),
            Ok(_) if has_room => self.serving += 1,
            Ok(pid) => self.refusing.push(pid),
            Err(_) => std::thread::sleep(SHORT_PAUSE),
        }
    }

    /// Runs in a process of its own.
    fn serve_one(&self, client: TcpStream, rules: &Rules) -> ! {
        // SAFETY: the numbers are passed as they are; the descriptors that are closed belong to the parent.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            for fd in [network::CONTROL, self.listener.as_raw_fd(), self.children.as_raw_fd()] {
                libc::close(fd);
            }
        }
        if client.set_nonblocking(false).is_ok() {
            if self.serving < CONNECTIONS_MAX {
                gate_serve::serve(&client, rules);
            } else {
                gate_serve::turn_away(&client, CONNECTIONS_MAX);
            }
        }
        drop(client);
        // SAFETY: ends the process at once; everything that it had to say was said.
        unsafe { libc::_exit(0) }
    }
}

fn wait(fds: [RawFd; 3]) {
    let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // A wait that is cut short only means to look once more.
    // SAFETY: the array is as long as is announced and outlives the call.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
}
