//! `keeper gate`: the process that stays in the host's network for a sandbox that has a way out.
//!
//! Owns: sockets of that network for the keeper, and names for its programs. Where sockets cannot be handed over, it is a
//! proxy, with a process for each connection, so that none can harm another. It has no secret, no file to write and no
//! capability, and ends with the keeper at the latest.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::confine;
use crate::gate_answers::{NameServer, OpenedAddress};
use crate::gate_rules::NetworkRules;
use crate::gate_serve;
use crate::landlock;
use crate::network::{self, GateSetup, ProxyListeners};
use crate::seccomp;
use crate::sockets;
use crate::sys;

/// Most connections of one sandbox at a time.
const CONNECTIONS_MAX: usize = 128;
/// The most clients that get the answer that there are too many. Further ones get no answer.
const REFUSALS_MAX: usize = 16;
/// Between two attempts to accept at one door, where the host has no descriptors or processes left.
const SHORT_PAUSE: Duration = Duration::from_millis(20);

/// Where the doors of a proxy are among what is watched: behind the keeper's socket and the ends of children.
const DOORS_AT: usize = 2;

/// Runs a gate on the inherited descriptor, until its keeper is gone.
pub(crate) fn run() -> ExitCode {
    // SAFETY: nothing in this process owns a descriptor beyond the one that it was given.
    unsafe { libc::close_range(network::CONTROL as libc::c_uint + 1, libc::c_uint::MAX, 0) };
    let Ok(control) = sys::inherit(network::CONTROL) else { return ExitCode::FAILURE };
    match prepare(&control) {
        Ok(gate) => {
            if sockets::send_packet(control.as_fd(), &[network::READY], None).is_err() {
                return ExitCode::FAILURE;
            }
            gate.serve(&control)
        }
        Err(error) => {
            // A keeper that is gone does not ask why.
            drop(sockets::send_packet(control.as_fd(), error.to_string().as_bytes(), None));
            ExitCode::FAILURE
        }
    }
}

fn prepare(control: &OwnedFd) -> io::Result<GateServer> {
    let GateSetup { datagrams, streams, proxy, uid, rules } = network::receive(control)?;
    let proxy = match proxy {
        Some(listeners) => Some(GateProxy::new(listeners)?),
        None => None,
    };
    let answers = NameServer::new(datagrams, streams)?;
    confine(uid)?;
    Ok(GateServer { rules, answers, proxy })
}

/// Gives up everything that a gate does not need.
fn confine(uid: Option<u32>) -> io::Result<()> {
    // Landlock and seccomp are optional: without them the gate is still an unprivileged process in the sandbox's
    // namespaces.
    drop(landlock::read_alone(&readable()));
    if sys::is_root() {
        confine::drop_capabilities(0)?;
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
        // The keeper reports the end of the sandbox, not this process.
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
    drop(
        seccomp::enter(seccomp::Clone3::Refused, seccomp::ProcessInspection::Refused)
            .and_then(|()| seccomp::refuse_programs()),
    );
    Ok(())
}

/// What names are resolved by. Where a link leads elsewhere, the whole directory there: such files are replaced.
fn readable() -> Vec<PathBuf> {
    let etc = Path::new("/etc");
    let linked = ["resolv.conf", "hosts"].map(|name| etc.join(name).canonicalize());
    let linked = linked.into_iter().flatten().filter_map(|path| path.parent().map(Path::to_owned));
    std::iter::once(etc.to_owned()).chain(linked).collect()
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

/// A gate at work.
struct GateServer {
    rules: NetworkRules,
    answers: NameServer,
    /// Where sockets cannot be handed over.
    proxy: Option<GateProxy>,
}

impl GateServer {
    fn serve(mut self, control: &OwnedFd) -> ExitCode {
        let mut polled = Vec::new();
        loop {
            polled.clear();
            let mut add = |fd: RawFd| polled.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            add(control.as_raw_fd());
            let now = Instant::now();
            if let Some(proxy) = &self.proxy {
                add(proxy.children.as_raw_fd());
                // The kernel ignores a negative one.
                proxy.doors.iter().for_each(|door| add(door.watched(now).unwrap_or(-1)));
            }
            self.answers.watch(&mut polled);
            let mut timeout_ms = self.answers.sleep_ms(now);
            if self.proxy.as_ref().is_some_and(|proxy| proxy.has_pause(now)) {
                let pause_ms = SHORT_PAUSE.as_millis() as i32;
                timeout_ms = if timeout_ms < 0 { pause_ms } else { timeout_ms.min(pause_ms) };
            }
            // A wait that is cut short only means to look once more.
            // SAFETY: the list is as long as is announced and outlives the call.
            unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout_ms) };
            if polled[0].revents != 0 && serve_socket_requests(control).is_err() {
                return ExitCode::SUCCESS;
            }
            if let Some(proxy) = &mut self.proxy {
                proxy.collect();
                let ready: Vec<bool> = polled[DOORS_AT..].iter().map(|polled| polled.revents != 0).collect();
                proxy.accept(&ready, &self.rules);
            }
            // A keeper that does not take it is gone, which the next round sees.
            let mut open = |opened| drop(report_opened(control, opened));
            self.answers.serve(&self.rules, Instant::now(), &mut open);
        }
    }
}

/// Sends a socket for each request. An error: the keeper is gone.
fn serve_socket_requests(control: &OwnedFd) -> io::Result<()> {
    let mut wanted = [0];
    let (len, _) = sockets::receive_packet(control.as_fd(), &mut wanted)?;
    let family = match (len, wanted) {
        (1, [hand::V4]) => libc::AF_INET,
        (1, [hand::V6]) => libc::AF_INET6,
        (_, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
    };
    match sockets::socket(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK) {
        Ok(socket) => sockets::send_packet(control.as_fd(), &wanted, Some(socket.as_fd())),
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(libc::ENOBUFS);
            let [low, high, ..] = errno.to_le_bytes();
            sockets::send_packet(control.as_fd(), &[hand::NONE, wanted[0], low, high], None)
        }
    }
}

fn report_opened(control: &OwnedFd, (address, port): OpenedAddress) -> io::Result<()> {
    let [high, low] = port.to_be_bytes();
    let mut message = vec![hand::OPENED, high, low];
    match address {
        IpAddr::V4(address) => message.extend_from_slice(&address.octets()),
        IpAddr::V6(address) => message.extend_from_slice(&address.octets()),
    }
    sockets::send_packet(control.as_fd(), &message, None)
}

/// How messages between a keeper and its gate begin.
pub(crate) mod hand {
    /// A socket of this family, requested or sent.
    pub(crate) const V4: u8 = b'4';
    pub(crate) const V6: u8 = b'6';
    /// There is none: the family, then the error.
    pub(crate) const NONE: u8 = b'N';
    /// An address that a listed name led to: the port or zero, then the address.
    pub(crate) const OPENED: u8 = b'O';
}

/// The way out for programs that know proxies, where sockets cannot be handed over.
struct GateProxy {
    doors: Vec<ProxyListener>,
    children: OwnedFd,
    /// Processes that serve.
    serving: usize,
    /// Processes that refuse clients beyond the limit.
    refusing: Vec<i32>,
}

/// Where programs of the sandbox come in.
struct ProxyListener {
    listener: TcpListener,
    leads: ProxyRoute,
    /// Nothing is accepted before this moment.
    paused_until: Option<Instant>,
}

impl ProxyListener {
    fn new(listener: TcpListener, leads: ProxyRoute) -> ProxyListener {
        ProxyListener { listener, leads, paused_until: None }
    }

    fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }

    fn watched(&self, now: Instant) -> Option<RawFd> {
        (!self.is_paused(now)).then(|| self.listener.as_raw_fd())
    }
}

#[derive(Clone, Copy)]
enum ProxyRoute {
    /// Where the program asks for.
    Asked,
    /// To this address of the host's loopback.
    Loopback(SocketAddr),
}

impl GateProxy {
    fn new(ProxyListeners { proxy, loopback }: ProxyListeners) -> io::Result<GateProxy> {
        let mut doors = vec![ProxyListener::new(proxy, ProxyRoute::Asked)];
        for listener in loopback {
            let leads = ProxyRoute::Loopback(listener.local_addr()?);
            doors.push(ProxyListener::new(listener, leads));
        }
        doors.iter().try_for_each(|door| door.listener.set_nonblocking(true))?;
        Ok(GateProxy { doors, children: children()?, serving: 0, refusing: Vec::new() })
    }

    fn collect(&mut self) {
        // How many ended is counted below.
        drop(sys::read(self.children.as_fd(), &mut [0; size_of::<libc::signalfd_siginfo>()]));
        // SAFETY: a null status is allowed.
        while let pid @ 1.. = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } {
            match self.refusing.iter().position(|refusing| *refusing == pid) {
                Some(at) => drop(self.refusing.swap_remove(at)),
                None => self.serving = self.serving.saturating_sub(1),
            }
        }
    }

    fn has_pause(&self, now: Instant) -> bool {
        self.doors.iter().any(|door| door.is_paused(now))
    }

    /// Accepts one client at each door that is ready.
    fn accept(&mut self, ready: &[bool], rules: &NetworkRules) {
        for at in 0..self.doors.len() {
            if ready.get(at).is_some_and(|is_ready| *is_ready) {
                self.accept_at(at, rules);
            }
        }
    }

    /// Pauses a listener for a moment, and serves the others meanwhile.
    fn pause(&mut self, at: usize) {
        self.doors[at].paused_until = Some(Instant::now() + SHORT_PAUSE);
    }

    fn accept_at(&mut self, at: usize, rules: &NetworkRules) {
        let ProxyListener { listener, leads, .. } = &self.doors[at];
        let leads = *leads;
        let client = match listener.accept() {
            Ok((client, _)) => client,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return self.pause(at),
        };
        let has_room = self.serving < CONNECTIONS_MAX;
        if !has_room && self.refusing.len() >= REFUSALS_MAX {
            return;
        }
        match sys::fork() {
            Ok(0) => self.serve_one(client, leads, rules),
            Ok(_) if has_room => self.serving += 1,
            Ok(pid) => self.refusing.push(pid),
            Err(_) => self.pause(at),
        }
    }

    /// Runs in a process of its own.
    fn serve_one(&self, client: TcpStream, leads: ProxyRoute, rules: &NetworkRules) -> ! {
        // SAFETY: the numbers are passed as they are; the descriptors that are closed belong to the parent.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            let doors = self.doors.iter().map(|door| door.listener.as_raw_fd());
            for fd in doors.chain([network::CONTROL, self.children.as_raw_fd()]) {
                libc::close(fd);
            }
        }
        if client.set_nonblocking(false).is_ok() {
            match (self.serving < CONNECTIONS_MAX, leads) {
                (true, ProxyRoute::Asked) => gate_serve::serve(&client, rules),
                (true, ProxyRoute::Loopback(to)) => gate_serve::serve_loopback(&client, to),
                (false, ProxyRoute::Asked) => gate_serve::refuse(&client, CONNECTIONS_MAX),
                // The client sees the end of its connection.
                (false, ProxyRoute::Loopback(_)) => {}
            }
        }
        drop(client);
        // SAFETY: ends the process at once; all output is written.
        unsafe { libc::_exit(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_door_that_cannot_accept_is_left_alone_for_a_moment_and_no_other_is() {
        assert!(sys::passes_in_child(fail_to_accept));
    }

    fn fail_to_accept() {
        let listen = || TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let listeners = ProxyListeners { proxy: listen(), loopback: vec![listen(), listen()] };
        let mut proxy = GateProxy::new(listeners).unwrap();
        let rules = NetworkRules::read(crate::gate_rules::DefaultReach::Listed, &[]).unwrap();
        let clients: Vec<TcpStream> = proxy.doors[..2]
            .iter()
            .map(|door| TcpStream::connect(door.listener.local_addr().unwrap()).unwrap())
            .collect();
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the structure outlives the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &none) }, 0);
        // A client waits at the first two, and only the second was reported as ready.
        proxy.accept(&[false, true, false], &rules);
        let paused: Vec<bool> = proxy.doors.iter().map(|door| door.paused_until.is_some()).collect();
        assert_eq!(paused, [false, true, false]);
        let until = proxy.doors[1].paused_until.unwrap();
        let before = until.checked_sub(Duration::from_millis(1)).unwrap();
        assert!(proxy.has_pause(before) && proxy.doors[1].watched(before).is_none());
        assert!(!proxy.has_pause(until) && proxy.doors[1].watched(until).is_some(), "it is tried again");
        assert_eq!(proxy.serving, 0);
        drop(clients);
    }
}
