//! Calls of the sandbox's programs that the keeper answers: who waits for what, and for how long.
//!
//! Owns: the listeners of execs, the calls that cannot be answered yet, and their order. `notify_connect` decides the
//! answers.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::confine::ExecUser;
use crate::network::ConnectionPolicy;
use crate::notify_address::SyscallAddress;
use crate::notify_epoll::EpollCache;
use crate::notify_open::OpenConnections;
use crate::notify_sys::{self, SupervisedSyscall, SyscallAnswer};
use crate::stock::{AddressFamily, SocketStock};
use crate::watchdog::Watchdog;

/// Most calls of one exec that wait for something. Its next ones wait in the kernel.
const WAITING_OF_ONE_MAX: usize = 128;
/// The same for all execs together, each of which holds a descriptor, of which they get a part.
const WAITING_MAX: usize = 1024;
const PART_OF_DESCRIPTORS: usize = 8;
/// Most calls of one exec that are taken at once, so that everything else has its turn.
const TURN_MAX: usize = 8;
/// How often the keeper checks whether waiting programs still live.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a call waits for a socket of the host's network.
const SOCKET_WITHIN: Duration = Duration::from_secs(10);
/// How often a socket is handed in again, one at a time: each attempt can keep the keeper until its watchdog's next tick.
const HAND_IN_EVERY: Duration = Duration::from_millis(20);

/// The execs whose calls arrive here.
#[derive(Debug)]
pub(crate) struct Supervisor {
    pub(crate) with: ConnectionPolicy,
    pub(crate) stock: Option<SocketStock>,
    pub(crate) user: ExecUser,
    listeners: Vec<SyscallListener>,
    pub(crate) waiting: Vec<PendingSyscall>,
    pub(crate) epolls: EpollCache,
    pub(crate) open: OpenConnections,
    /// Sockets that were handed over and whose programs do not know yet that they are connected.
    pub(crate) untold: Vec<u64>,
    looked_at: Instant,
    /// When a socket was last handed in again.
    handed_in_at: Instant,
    serial: u64,
    waiting_max: usize,
}

/// The calls of one exec and all that it started.
#[derive(Debug)]
struct SyscallListener {
    serial: u64,
    fd: OwnedFd,
}

/// A call that cannot be answered yet.
#[derive(Debug)]
pub(crate) struct PendingSyscall {
    serial: u64,
    pub(crate) listener: u64,
    pub(crate) call: SupervisedSyscall,
    pub(crate) stage: SyscallStage,
    pub(crate) until: Option<Instant>,
}

/// What a call waits for.
#[derive(Debug)]
pub(crate) enum SyscallStage {
    /// A socket of the host's network, to take the place of the program's.
    Socket {
        theirs: OwnedFd,
        family: AddressFamily,
        address: SyscallAddress,
        /// When the program gives up.
        until: Option<Instant>,
    },
    /// The program's turn on a processor, to take the socket.
    HandIn(PendingSocket),
    /// The connection of the socket that the program has by now.
    Connected(OwnedFd),
}

/// A socket of the keeper's that takes the place of a program's.
#[derive(Debug)]
pub(crate) struct PendingSocket {
    pub(crate) theirs: OwnedFd,
    pub(crate) ours: OwnedFd,
    /// Whether it is not connected yet.
    pub(crate) is_under_way: bool,
    /// When the program gives up.
    pub(crate) until: Option<Instant>,
}

/// What is watched, and whose it is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WatchedDescriptor {
    Calls(u64),
    Gate,
    Waits(u64),
}

impl Supervisor {
    /// `descriptors` is how many the keeper may have.
    pub(crate) fn new(
        with: ConnectionPolicy,
        control: Option<OwnedFd>,
        user: ExecUser,
        descriptors: usize,
    ) -> io::Result<Supervisor> {
        let stock = control.map(SocketStock::new).transpose()?;
        Ok(Supervisor {
            with,
            stock,
            user,
            listeners: Vec::new(),
            waiting: Vec::new(),
            epolls: EpollCache::default(),
            open: OpenConnections::new()?,
            untold: Vec::new(),
            looked_at: Instant::now(),
            handed_in_at: Instant::now(),
            serial: 0,
            waiting_max: WAITING_MAX.min(descriptors / PART_OF_DESCRIPTORS),
        })
    }

    /// Answers the calls of one more exec.
    pub(crate) fn add(&mut self, fd: OwnedFd) {
        notify_sys::prefer_speed(&fd);
        self.serial += 1;
        self.listeners.push(SyscallListener { serial: self.serial, fd });
    }

    /// How many descriptors are open here.
    pub(crate) fn descriptors(&self) -> usize {
        self.listeners.len() + self.waiting.len() + self.socket_offers().count()
    }

    /// Where calls are that wait for their program.
    fn socket_offers(&self) -> impl Iterator<Item = usize> {
        let waiting = self.waiting.iter().enumerate();
        waiting.filter(|(_, waiting)| matches!(waiting.stage, SyscallStage::HandIn(_))).map(|(at, _)| at)
    }

    pub(crate) fn watch(&self, mut add: impl FnMut(RawFd, libc::c_short, WatchedDescriptor)) {
        if let Some(stock) = &self.stock {
            add(stock.watched(), libc::POLLIN, WatchedDescriptor::Gate);
        }
        let has_room = self.waiting.len() < self.waiting_max;
        for listener in &self.listeners {
            let own = self.waiting.iter().filter(|waiting| waiting.listener == listener.serial).count();
            // Its end is reported in any case.
            let events = if has_room && own < WAITING_OF_ONE_MAX { libc::POLLIN } else { 0 };
            add(listener.fd.as_raw_fd(), events, WatchedDescriptor::Calls(listener.serial));
        }
        for waiting in &self.waiting {
            if let SyscallStage::Connected(socket) = &waiting.stage {
                add(socket.as_raw_fd(), libc::POLLOUT, WatchedDescriptor::Waits(waiting.serial));
            }
        }
    }

    /// When something is due, if a call waits.
    pub(crate) fn due(&self) -> Option<Instant> {
        let until = self.waiting.iter().filter_map(|waiting| waiting.until).min();
        let look = (!self.waiting.is_empty()).then_some(self.looked_at + LOOK_EVERY);
        let hand_in = self.socket_offers().next().map(|_| self.handed_in_at + HAND_IN_EVERY);
        until.into_iter().chain(look).chain(hand_in).min()
    }

    pub(crate) fn serve(&mut self, watched: WatchedDescriptor, events: libc::c_short) {
        if let WatchedDescriptor::Calls(serial) = watched
            && events == libc::POLLHUP
            && self.waiting.iter().all(|waiting| waiting.listener != serial)
        {
            // An exec that left no call has ended: closing its listener waits for nothing.
            return self.listeners.retain(|listener| listener.serial != serial);
        }
        let _watchdog = Watchdog::start();
        match watched {
            WatchedDescriptor::Gate => self.receive_sockets(),
            WatchedDescriptor::Calls(serial) => {
                for _ in 0..TURN_MAX {
                    if !self.take_call(serial) {
                        break;
                    }
                }
                // No process is left that could call.
                if events & libc::POLLHUP != 0 {
                    self.listeners.retain(|listener| listener.serial != serial);
                    self.waiting.retain(|waiting| waiting.listener != serial);
                }
            }
            WatchedDescriptor::Waits(serial) => {
                if let Some(at) = self.waiting.iter().position(|waiting| waiting.serial == serial) {
                    let waiting = self.waiting.swap_remove(at);
                    self.finish_connect(waiting);
                }
            }
        }
    }

    /// Drops calls of processes that are gone, and answers those whose time is over.
    pub(crate) fn keep_time(&mut self, now: Instant) {
        if self.waiting.is_empty() {
            return;
        }
        let _watchdog = Watchdog::start();
        let is_due = |waiting: &PendingSyscall| waiting.until.is_some_and(|until| until <= now);
        while let Some(at) = self.waiting.iter().position(is_due) {
            let waiting = self.waiting.swap_remove(at);
            self.time_out(&waiting);
        }
        if now >= self.handed_in_at + HAND_IN_EVERY {
            self.offer_socket_again();
        }
        if now < self.looked_at + LOOK_EVERY {
            return;
        }
        self.looked_at = now;
        let gone: Vec<u64> = self
            .waiting
            .iter()
            .filter(|waiting| !self.still_waits(waiting.listener, &waiting.call))
            .map(|waiting| waiting.serial)
            .collect();
        self.waiting.retain(|waiting| !gone.contains(&waiting.serial));
    }

    /// Hands in a socket whose program did not take it. The others have their turn after it.
    fn offer_socket_again(&mut self) {
        let Some(at) = self.socket_offers().next() else { return };
        let PendingSyscall { listener, call, stage, until, .. } = self.waiting.remove(at);
        let SyscallStage::HandIn(pending) = stage else { return };
        if self.still_waits(listener, &call) {
            let decided = pending.check_place(&call);
            let decided = decided.and_then(|()| self.offer_socket((listener, call), pending, until));
            self.finish(listener, &call, decided);
        }
        self.handed_in_at = Instant::now();
    }

    /// Has a call wait, at most until `until`.
    pub(crate) fn wait(
        &mut self,
        (listener, call): (u64, SupervisedSyscall),
        stage: SyscallStage,
        until: Option<Instant>,
    ) {
        self.serial += 1;
        let now = Instant::now();
        if self.waiting.is_empty() {
            self.looked_at = now;
        }
        let until = match &stage {
            SyscallStage::Socket { until: own, .. }
            | SyscallStage::HandIn(PendingSocket { until: own, .. }) => {
                let until = until.unwrap_or(now + SOCKET_WITHIN);
                Some(own.map_or(until, |own| own.min(until)))
            }
            SyscallStage::Connected(_) => until,
        };
        self.waiting.push(PendingSyscall { serial: self.serial, listener, call, stage, until });
    }

    /// Whether the caller still waits. If so, what was fetched from it before is valid.
    pub(crate) fn still_waits(&self, listener: u64, call: &SupervisedSyscall) -> bool {
        self.listener(listener).is_some_and(|fd| notify_sys::is_valid(fd, call.id))
    }

    pub(crate) fn listener(&self, serial: u64) -> Option<&OwnedFd> {
        self.listeners.iter().find(|listener| listener.serial == serial).map(|listener| &listener.fd)
    }

    /// Whether there may be another one.
    fn take_call(&mut self, serial: u64) -> bool {
        let own = self.waiting.iter().filter(|waiting| waiting.listener == serial).count();
        if own >= WAITING_OF_ONE_MAX || self.waiting.len() >= self.waiting_max {
            return false;
        }
        let Some(listener) = self.listener(serial) else { return false };
        if !has_call(listener) {
            return false;
        }
        // A caller that was killed meanwhile left nothing to take.
        let Ok(call) = notify_sys::receive(listener) else { return false };
        // A thread makes one call at a time: its earlier call was interrupted by a signal.
        self.waiting.retain(|waiting| waiting.call.thread != call.thread);
        let decided = self.decide(serial, call);
        self.finish(serial, &call, decided);
        // The gate's message may have been read for this call, and other calls wait for its sockets.
        self.give_sockets();
        true
    }

    /// Answers, unless the call was given up.
    pub(crate) fn answer(&self, listener: u64, call: &SupervisedSyscall, answer: SyscallAnswer) -> bool {
        self.listener(listener).is_some_and(|fd| notify_sys::answer(fd, call.id, answer).is_ok())
    }
}

fn has_call(listener: &OwnedFd) -> bool {
    let mut polled = [libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    // SAFETY: the array holds exactly the one entry that is announced.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), 1, 0) };
    ready == 1 && polled[0].revents & libc::POLLIN != 0
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    use super::*;
    use crate::gate_rules::{DefaultReach, NetworkRules};
    use crate::netlink::RouteSocket;
    use crate::network::SocketGuard;
    use crate::sockets;

    /// A supervisor with the far end of its gate's socket.
    fn supervisor() -> (Supervisor, OwnedFd) {
        let (control, gate) = sockets::packet_pair().unwrap();
        let with = ConnectionPolicy {
            rules: Some(NetworkRules::read(DefaultReach::Public, &[]).unwrap()),
            guard: SocketGuard::Landlock,
            routes: RouteSocket::open().unwrap(),
            cookie: notify_sys::own_cookie().unwrap(),
        };
        (Supervisor::new(with, Some(control), ExecUser::Keeper, 1024).unwrap(), gate)
    }

    fn stream() -> OwnedFd {
        TcpListener::bind(("127.0.0.1", 0)).map(OwnedFd::from).unwrap()
    }

    const CALL: SupervisedSyscall =
        SupervisedSyscall { id: 1, thread: 1, number: libc::SYS_connect, args: [0; 3] };

    #[test]
    fn a_call_that_gets_no_socket_is_answered_in_the_end() {
        let (mut supervisor, _gate) = supervisor();
        let to = sockets::SocketAddress::from(std::net::SocketAddr::from(([203, 0, 113, 5], 80)));
        let stage = SyscallStage::Socket {
            theirs: stream(),
            family: AddressFamily::V4,
            address: SyscallAddress::of(to.bytes()),
            until: None,
        };
        supervisor.wait((1, CALL), stage, None);
        supervisor.keep_time(Instant::now() + SOCKET_WITHIN);
        assert_eq!(supervisor.waiting.len(), 0);
        // One that was dialled waits as long as the kernel does.
        supervisor.wait((1, CALL), SyscallStage::Connected(stream()), None);
        assert_eq!(supervisor.waiting[0].until, None);
    }

    fn pending(until: Option<Instant>) -> PendingSocket {
        PendingSocket { theirs: stream(), ours: stream(), is_under_way: true, until }
    }

    #[test]
    fn a_socket_that_its_program_does_not_take_is_handed_in_again_and_not_endlessly() {
        let (mut supervisor, _gate) = supervisor();
        let begun = Instant::now();
        supervisor.wait((1, CALL), SyscallStage::HandIn(pending(None)), None);
        let until = supervisor.waiting[0].until.unwrap();
        assert!(until >= begun + SOCKET_WITHIN);
        // Both sockets stay open, and the next attempt is soon.
        assert_eq!(supervisor.descriptors(), 2);
        assert!(supervisor.due().unwrap() <= Instant::now() + HAND_IN_EVERY);
        // What was given up before has no second time, and a program that gives up earlier is answered then.
        supervisor.wait((1, CALL), SyscallStage::HandIn(pending(None)), Some(until));
        supervisor.wait((1, CALL), SyscallStage::HandIn(pending(Some(begun))), Some(until));
        let bounds: Vec<_> = supervisor.waiting[1..].iter().map(|waiting| waiting.until).collect();
        assert_eq!(bounds, [Some(until), Some(begun)]);
        supervisor.keep_time(until);
        assert_eq!(supervisor.waiting.len(), 0);
    }

    #[test]
    fn a_socket_whose_caller_is_gone_is_closed_and_those_behind_it_stay() {
        let (mut supervisor, _gate) = supervisor();
        for thread in [7, 8] {
            let call = SupervisedSyscall { thread, ..CALL };
            supervisor.wait((1, call), SyscallStage::HandIn(pending(None)), None);
        }
        supervisor.offer_socket_again();
        let left: Vec<i32> = supervisor.waiting.iter().map(|waiting| waiting.call.thread).collect();
        assert_eq!(left, [8]);
    }

    #[test]
    fn an_address_that_was_closed_while_a_call_waited_is_not_connected_to() {
        let (mut supervisor, gate) = supervisor();
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        // It belonged to another host when the call came, and is this host's own now.
        let to = sockets::SocketAddress::from(server.local_addr().unwrap());
        let [theirs, ours] =
            [0, 1].map(|_| sockets::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK).unwrap());
        let stage = SyscallStage::Socket {
            theirs,
            family: AddressFamily::V4,
            address: SyscallAddress::of(to.bytes()),
            until: None,
        };
        supervisor.wait((1, CALL), stage, None);
        sockets::send_packet(gate.as_fd(), &[crate::gate::hand::V4], Some(ours.as_fd())).unwrap();
        drop(ours);
        supervisor.receive_sockets();
        assert_eq!(supervisor.waiting.len(), 0);
        server.set_nonblocking(true).unwrap();
        assert_eq!(server.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
