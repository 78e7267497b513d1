//! How a program's `connect`, `bind` or `listen` is handled.
//!
//! Owns: the decision about each, and carrying it out. The network of the sandbox is empty, so a call that is not
//! answered here reaches nothing. What is let out gets a socket of the host's network, connected to the address that was
//! checked, in place of its own; that socket is good for this one connection and for nothing else.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::time::Instant;

use crate::confine::{self, ExecUser};
use crate::gate_rules::{AddressOwner, canonical};
use crate::netlink;
use crate::network::{self, ConnectionPolicy, SocketGuard};
use crate::notify::{PendingSocket, PendingSyscall, Supervisor, SyscallStage};
use crate::notify_address::{AddressTarget, SocketKind, SyscallAddress};
use crate::notify_epoll;
use crate::notify_options;
use crate::notify_sys::{self, SupervisedSyscall, SyscallAnswer};
use crate::sockets;
use crate::stock::{AddressFamily, SocketStock};
use crate::sys;

/// The error for an address that a program may not reach.
const CLOSED: i32 = libc::EACCES;
/// Most connections that are remembered as not reported to their programs.
const UNTOLD_MAX: usize = 64;
const SO_COOKIE: libc::c_int = 57;
/// States of a connection, as the kernel counts them.
const SYN_SENT: u8 = 2;
const CLOSE: u8 = 7;
/// The flags of a descriptor are among the first lines of what the kernel says of it.
const FLAGS_READ_MAX: u64 = 4096;

/// Where a connection leads.
enum ConnectRoute {
    /// To the sandbox's own network.
    Inside,
    Outside,
}

/// What is known of a socket that was handed in.
enum SocketHistory {
    /// It can be connected again.
    Nothing,
    Answer(SyscallAnswer),
    /// It is on its way.
    Wait,
}

/// How far a socket is in the place of a program's.
enum SocketReplacement {
    Done,
    /// The program's thread did not get a processor in time. Its own socket is still there.
    NotYet(OwnedFd),
}

impl PendingSocket {
    /// Refuses to replace anything but the socket that the call was made with: another thread may have closed or
    /// connected it meanwhile, and opened another file under its number.
    pub(crate) fn check_place(&self, call: &SupervisedSyscall) -> io::Result<()> {
        let there = notify_sys::get_fd(&notify_sys::open_thread(call.thread)?, call.fd())?;
        let is_same =
            matches!((cookie(&there), cookie(&self.theirs)), (Ok(there), Ok(theirs)) if there == theirs);
        match (is_same, state(&self.theirs)?) {
            (true, CLOSE) => Ok(()),
            (true, _) => Err(io::Error::from_raw_os_error(libc::EISCONN)),
            (false, _) => Err(io::Error::from_raw_os_error(libc::EBADF)),
        }
    }
}

impl Supervisor {
    /// The answer, unless the call has to wait.
    pub(crate) fn decide(
        &mut self,
        listener: u64,
        call: SupervisedSyscall,
    ) -> io::Result<Option<SyscallAnswer>> {
        let process = notify_sys::open_thread(call.thread)?;
        let theirs = notify_sys::get_fd(&process, call.fd())?;
        let kind = SocketKind::of(&theirs, self.with.cookie)?;
        match (call.number, kind) {
            (libc::SYS_connect | libc::SYS_bind, SocketKind::Other) => Ok(Some(SyscallAnswer::Continue)),
            (libc::SYS_bind, SocketKind::Own(_)) => {
                let address = self.address(listener, &call)?;
                Ok(Some(sockets::bind(theirs.as_fd(), address.bytes()).into()))
            }
            (libc::SYS_listen, SocketKind::Own(_) | SocketKind::Other) => {
                self.check_waits(listener, &call)?;
                Ok(Some(self.listen(&theirs, call.args[1] as i32).into()))
            }
            // It has the port that it was connected from, and no other.
            (libc::SYS_bind | libc::SYS_listen, SocketKind::Hosts(_)) => {
                Ok(Some(SyscallAnswer::Error(libc::EINVAL)))
            }
            (libc::SYS_connect, SocketKind::Own(family) | SocketKind::Hosts(family)) => {
                let address = self.address(listener, &call)?;
                self.connect((listener, call), theirs, (kind, family), address)
            }
            (_, _) => Ok(Some(SyscallAnswer::Error(libc::ENOSYS))),
        }
    }

    /// The address of a call, copied once, from a caller that is still the same.
    fn address(&self, listener: u64, call: &SupervisedSyscall) -> io::Result<SyscallAddress> {
        let address = SyscallAddress::fetch(call)?;
        self.check_waits(listener, call)?;
        Ok(address)
    }

    fn check_waits(&self, listener: u64, call: &SupervisedSyscall) -> io::Result<()> {
        let waits = self.still_waits(listener, call);
        if waits { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENOENT)) }
    }

    fn connect(
        &mut self,
        caller: (u64, SupervisedSyscall),
        theirs: OwnedFd,
        (kind, family): (SocketKind, AddressFamily),
        address: SyscallAddress,
    ) -> io::Result<Option<SyscallAnswer>> {
        let (to, port) = match address.leads(family)? {
            AddressTarget::To(to, port) => (to, port),
            AddressTarget::Away => {
                return Ok(Some(sockets::connect(theirs.as_fd(), address.bytes()).into()));
            }
        };
        let until = give_up_at(&theirs);
        if let SocketKind::Hosts(_) = kind {
            match self.connected_before(&theirs)? {
                SocketHistory::Nothing => {}
                SocketHistory::Answer(answer) => return Ok(Some(answer)),
                SocketHistory::Wait => {
                    self.wait(caller, SyscallStage::Connected(theirs), until);
                    return Ok(None);
                }
            }
        }
        match (self.find_route(to, port)?, kind) {
            (ConnectRoute::Inside, SocketKind::Own(_)) => {
                self.connect_inside(caller, theirs, &address, until)
            }
            // One of the host's network never leads there.
            (ConnectRoute::Inside, SocketKind::Hosts(_) | SocketKind::Other) => {
                let ours = own_socket(family)?;
                self.dial(caller, theirs, (ours, &address), until)
            }
            (ConnectRoute::Outside, _) => {
                let waiting = self.waiting_for_sockets(family);
                let Some(stock) = &mut self.stock else {
                    return Ok(Some(SyscallAnswer::Error(libc::ENETUNREACH)));
                };
                match stock.take(family, waiting) {
                    Ok(Some(ours)) => self.dial_outside(caller, theirs, ours, (&address, to, port), until),
                    Ok(None) => {
                        self.wait(caller, SyscallStage::Socket { theirs, family, address, until }, None);
                        Ok(None)
                    }
                    Err(errno) => Ok(Some(SyscallAnswer::Error(errno))),
                }
            }
        }
    }

    /// Where an address leads, if it is open.
    fn find_route(&mut self, to: IpAddr, port: u16) -> io::Result<ConnectRoute> {
        let errno = |errno| Err(io::Error::from_raw_os_error(errno));
        let rules = self.with.rules.as_ref();
        if network::is_inside(to) {
            let is_loopback = to.is_loopback() || to.is_unspecified();
            let opens = is_loopback && rules.is_some_and(|rules| rules.opens_loopback(port));
            return Ok(if opens { ConnectRoute::Outside } else { ConnectRoute::Inside });
        }
        let (Some(rules), Some(stock)) = (rules, &mut self.stock) else { return errno(libc::ENETUNREACH) };
        // The keeper reads the gate's answer before the program does.
        stock.receive();
        let answered = stock.is_opened(to, port, Instant::now());
        // If the rules close the address in any case, the host's own addresses need not be checked.
        if !rules.opens(to, port, AddressOwner::Elsewhere, answered) {
            return errno(CLOSED);
        }
        let mut place = AddressOwner::Elsewhere;
        for address in [to, canonical(to)] {
            if self.with.routes.look_up(address)? == netlink::RouteVerdict::NotOut {
                place = AddressOwner::Own;
            }
            if canonical(to) == to {
                break;
            }
        }
        if rules.opens(to, port, place, answered) { Ok(ConnectRoute::Outside) } else { errno(CLOSED) }
    }

    fn waiting_for_sockets(&self, wanted: AddressFamily) -> usize {
        let waits = |waiting: &&PendingSyscall| matches!(waiting.stage, SyscallStage::Socket { family, .. } if family == wanted);
        self.waiting.iter().filter(waits).count()
    }

    /// What a socket that was handed in before answers by itself, as the kernel would.
    fn connected_before(&mut self, theirs: &OwnedFd) -> io::Result<SocketHistory> {
        let fd = theirs.as_fd();
        Ok(match state(theirs)? {
            CLOSE => match sockets::socket_option::<i32>(fd, libc::SOL_SOCKET, libc::SO_ERROR)? {
                0 => SocketHistory::Nothing,
                errno => SocketHistory::Answer(SyscallAnswer::Error(errno)),
            },
            SYN_SENT if is_blocking(theirs)? => SocketHistory::Wait,
            SYN_SENT => SocketHistory::Answer(SyscallAnswer::Error(libc::EALREADY)),
            _ if self.take_connect_result(theirs)? => SocketHistory::Answer(SyscallAnswer::Done),
            _ => SocketHistory::Answer(SyscallAnswer::Error(libc::EISCONN)),
        })
    }

    /// Whether the program does not know of its connection yet. The answer to this call reports it.
    fn take_connect_result(&mut self, socket: &OwnedFd) -> io::Result<bool> {
        let cookie = cookie(socket)?;
        let at = self.untold.iter().position(|untold| *untold == cookie);
        if let Some(at) = at {
            self.untold.remove(at);
        }
        Ok(at.is_some())
    }

    /// Connects the program's own socket, without waiting for it here.
    fn connect_inside(
        &mut self,
        caller: (u64, SupervisedSyscall),
        theirs: OwnedFd,
        address: &SyscallAddress,
        until: Option<Instant>,
    ) -> io::Result<Option<SyscallAnswer>> {
        let fd = theirs.as_fd();
        if !is_blocking(&theirs)? {
            return Ok(Some(sockets::connect(fd, address.bytes()).into()));
        }
        let flags = sys::flags_of(fd)?;
        sys::set_flags(fd, flags | libc::O_NONBLOCK)?;
        let connected = sockets::connect(fd, address.bytes());
        sys::set_flags(fd, flags)?;
        match connected.as_ref().map_err(io::Error::raw_os_error) {
            // Interrupted by the watchdog: another thread made the socket blocking meanwhile.
            Err(Some(libc::EINPROGRESS | libc::EALREADY | libc::EINTR)) => {
                self.wait(caller, SyscallStage::Connected(theirs), until);
                Ok(None)
            }
            Ok(()) | Err(_) => Ok(Some(connected.into())),
        }
    }

    /// As [`Supervisor::dial`], by a socket of the host's network, which is of use for this peer alone.
    fn dial_outside(
        &mut self,
        caller: (u64, SupervisedSyscall),
        theirs: OwnedFd,
        ours: OwnedFd,
        (address, to, port): (&SyscallAddress, IpAddr, u16),
        until: Option<Instant>,
    ) -> io::Result<Option<SyscallAnswer>> {
        self.open.add(&ours, Instant::now())?;
        let ConnectionPolicy { guard, routes, .. } = &mut self.with;
        let restricted = match guard {
            SocketGuard::Landlock => None,
            SocketGuard::Filter(filter) => Some(filter.restrict(&ours, SocketAddr::new(to, port), routes)?),
        };
        // A bound socket that connects to no address would reach its own.
        let to_peer = restricted.map(|peer| SyscallAddress::of(peer.bytes()));
        self.dial(caller, theirs, (ours, to_peer.as_ref().unwrap_or(address)), until)
    }

    /// Connects a socket, and replaces the program's socket as soon as the connection is in progress, so that an
    /// interrupted program finds it there.
    fn dial(
        &mut self,
        (listener, call): (u64, SupervisedSyscall),
        theirs: OwnedFd,
        (ours, address): (OwnedFd, &SyscallAddress),
        until: Option<Instant>,
    ) -> io::Result<Option<SyscallAnswer>> {
        // The program's own is closed below. To close one that is connected can wait for its peer (SO_LINGER).
        if state(&theirs)? != CLOSE {
            return Ok(Some(SyscallAnswer::Error(libc::EISCONN)));
        }
        notify_options::copy(&theirs, &ours);
        let connected = sockets::connect(ours.as_fd(), address.bytes());
        let is_under_way = match connected.as_ref().map_err(io::Error::raw_os_error) {
            Ok(()) => false,
            Err(Some(libc::EINPROGRESS)) => true,
            Err(_) => return Ok(Some(connected.into())),
        };
        self.offer_socket((listener, call), PendingSocket { theirs, ours, is_under_way, until }, None)
    }

    /// Puts a socket in the place of the program's, then answers or waits for the connection. A program that does not get
    /// a processor in time is tried again until `try_until`.
    pub(crate) fn offer_socket(
        &mut self,
        (listener, call): (u64, SupervisedSyscall),
        pending: PendingSocket,
        try_until: Option<Instant>,
    ) -> io::Result<Option<SyscallAnswer>> {
        let PendingSocket { theirs, ours, is_under_way, until } = pending;
        let blocks = is_blocking(&theirs)?;
        match self.replace(listener, &call, theirs, &ours)? {
            SocketReplacement::Done => {}
            SocketReplacement::NotYet(theirs) => {
                let pending = PendingSocket { theirs, ours, is_under_way, until };
                self.wait((listener, call), SyscallStage::HandIn(pending), try_until);
                return Ok(None);
            }
        }
        self.untold.truncate(UNTOLD_MAX - 1);
        self.untold.insert(0, cookie(&ours)?);
        if is_under_way && blocks {
            self.wait((listener, call), SyscallStage::Connected(ours), until);
            return Ok(None);
        }
        let answer = if is_under_way { SyscallAnswer::Error(libc::EINPROGRESS) } else { SyscallAnswer::Done };
        if self.answer(listener, &call, answer) && !is_under_way {
            self.take_connect_result(&ours)?;
        }
        Ok(None)
    }

    /// Puts a socket in the place of the program's, which is closed. The program's own thread does that.
    fn replace(
        &mut self,
        listener: u64,
        call: &SupervisedSyscall,
        theirs: OwnedFd,
        ours: &OwnedFd,
    ) -> io::Result<SocketReplacement> {
        let flags = sys::flags_of(theirs.as_fd())? & libc::O_NONBLOCK;
        sys::set_flags(ours.as_fd(), flags)?;
        // One that waits in the call itself is not watched by it at the same time.
        let watched = if flags & libc::O_NONBLOCK != 0 {
            let process = notify_sys::open_thread(call.thread)?;
            self.epolls.of(call.thread, &process, call.fd())
        } else {
            Vec::new()
        };
        let closes = closes_on_exec(call.thread, call.fd());
        let fd = self.listener(listener).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        match notify_sys::replace(fd, call.id, call.fd(), ours, closes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                return Ok(SocketReplacement::NotYet(theirs));
            }
            replaced => replaced?,
        }
        // Not earlier: the keeper closes a socket that was not taken, and must not wait for its peer.
        notify_options::copy_linger(&theirs, ours);
        // The last that kept the program's own, with which its registrations go.
        drop(theirs);
        for registration in watched {
            // If the epoll is gone, no thread waits.
            drop(registration.renew(ours, call.fd()));
        }
        Ok(SocketReplacement::Done)
    }

    /// Reads the gate's messages, and gives its sockets to the waiting calls.
    pub(crate) fn receive_sockets(&mut self) {
        if let Some(stock) = &mut self.stock {
            stock.receive();
        }
        self.give_sockets();
    }

    /// Gives available sockets to the calls that wait for them.
    pub(crate) fn give_sockets(&mut self) {
        let is_next = |waiting: &PendingSyscall, stock: &SocketStock| match waiting.stage {
            SyscallStage::Socket { family, .. } => stock.can_answer(family),
            SyscallStage::HandIn(_) | SyscallStage::Connected(_) => false,
        };
        while let Some(stock) = &self.stock
            && let Some(at) = self.waiting.iter().position(|waiting| is_next(waiting, stock))
        {
            // The order in which they came.
            let PendingSyscall { listener, call, stage, .. } = self.waiting.remove(at);
            let SyscallStage::Socket { theirs, family, address, until } = stage else { continue };
            let decided = self.give_socket((listener, call), theirs, (family, &address), until);
            self.finish(listener, &call, decided);
        }
    }

    /// Gives one that is there to a call that waited for it, if its address is still open: the host may have got that
    /// address meanwhile.
    fn give_socket(
        &mut self,
        caller: (u64, SupervisedSyscall),
        theirs: OwnedFd,
        (family, address): (AddressFamily, &SyscallAddress),
        until: Option<Instant>,
    ) -> io::Result<Option<SyscallAnswer>> {
        let AddressTarget::To(to, port) = address.leads(family)? else {
            return Ok(Some(SyscallAnswer::Error(libc::EINVAL)));
        };
        match self.find_route(to, port)? {
            ConnectRoute::Outside => {}
            ConnectRoute::Inside => return Ok(Some(SyscallAnswer::Error(CLOSED))),
        }
        let Some(stock) = &mut self.stock else { return Ok(Some(SyscallAnswer::Error(libc::ENETUNREACH))) };
        match stock.take(family, 0) {
            Ok(Some(ours)) => self.dial_outside(caller, theirs, ours, (address, to, port), until),
            Ok(None) => Ok(Some(SyscallAnswer::Error(libc::EAGAIN))),
            Err(errno) => Ok(Some(SyscallAnswer::Error(errno))),
        }
    }

    /// Answers as it was decided, if it was.
    pub(crate) fn finish(
        &mut self,
        listener: u64,
        call: &SupervisedSyscall,
        decided: io::Result<Option<SyscallAnswer>>,
    ) {
        let answer = match decided {
            Ok(Some(answer)) => answer,
            Ok(None) => return,
            Err(error) => SyscallAnswer::Error(error.raw_os_error().unwrap_or(libc::EIO)),
        };
        self.answer(listener, call, answer);
    }

    /// A connection was made or failed. An interrupted program checks the result itself.
    pub(crate) fn finish_connect(&mut self, waiting: PendingSyscall) {
        let PendingSyscall { listener, call, stage, .. } = waiting;
        let SyscallStage::Connected(socket) = stage else { return };
        if !self.still_waits(listener, &call) {
            return;
        }
        match sockets::socket_option::<i32>(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR) {
            Ok(0) => {
                if self.answer(listener, &call, SyscallAnswer::Done) {
                    // One that cannot be asked what it is was not remembered.
                    drop(self.take_connect_result(&socket));
                }
            }
            other => self.finish(listener, &call, other.map(|errno| Some(SyscallAnswer::Error(errno)))),
        }
    }

    /// The bound for this call is over. The connection of a socket that the program has continues without it.
    pub(crate) fn time_out(&mut self, waiting: &PendingSyscall) {
        let errno = match waiting.stage {
            SyscallStage::Socket { .. } | SyscallStage::HandIn(_) => libc::ETIMEDOUT,
            SyscallStage::Connected(_) => libc::EINPROGRESS,
        };
        self.answer(waiting.listener, &waiting.call, SyscallAnswer::Error(errno));
    }

    /// Lets a program's socket listen. Peers of one that is a file see who did that, so it is the program's user.
    fn listen(&self, theirs: &OwnedFd, backlog: i32) -> io::Result<()> {
        let domain: i32 = sockets::socket_option(theirs.as_fd(), libc::SOL_SOCKET, libc::SO_DOMAIN)?;
        match self.user {
            ExecUser::Own(uid) if domain == libc::AF_UNIX => {
                confine::as_user(uid, || sockets::listen(theirs.as_fd(), backlog))?
            }
            ExecUser::Own(_) | ExecUser::Keeper => sockets::listen(theirs.as_fd(), backlog),
        }
    }
}

/// A socket of the sandbox's own network, which this process is in.
fn own_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let domain = match family {
        AddressFamily::V4 => libc::AF_INET,
        AddressFamily::V6 => libc::AF_INET6,
    };
    sockets::socket(domain, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)
}

/// Of TCP: [`CLOSE`] as long as it is neither connected nor listens.
fn state(socket: &OwnedFd) -> io::Result<u8> {
    sockets::socket_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO)
}

fn is_blocking(socket: &OwnedFd) -> io::Result<bool> {
    Ok(sys::flags_of(socket.as_fd())? & libc::O_NONBLOCK == 0)
}

/// What a socket is known by for as long as it lives.
fn cookie(socket: &OwnedFd) -> io::Result<u64> {
    sockets::socket_option(socket.as_fd(), libc::SOL_SOCKET, SO_COOKIE)
}

fn give_up_at(theirs: &OwnedFd) -> Option<Instant> {
    notify_options::send_timeout(theirs).map(|within| Instant::now() + within)
}

/// Whether a program's descriptor is closed when it becomes another. One that cannot be seen is.
fn closes_on_exec(thread: i32, fd: RawFd) -> bool {
    let text = notify_epoll::read_bounded(&format!("/proc/{thread}/fdinfo/{fd}"), FLAGS_READ_MAX);
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_none_or(|flags| flags & libc::O_CLOEXEC != 0)
}
