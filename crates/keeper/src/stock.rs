//! A stock of sockets of the host's network, so that no connection waits for the gate.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::gate::hand;
use crate::gate_rules::canonical;
use crate::sockets;
use crate::sys;

/// Kept sockets of each kind.
const KEPT_V4: usize = 4;
const KEPT_V6: usize = 1;
/// Most requests in flight.
const ASKED_MAX: usize = 64;
/// Most messages that are taken at once, so that everything else has its turn.
const MESSAGES_MAX: usize = 256;
/// Most addresses that are remembered as answers for listed names, and for how long.
const OPENED_MAX: usize = 1024;
const OPENED_FOR: Duration = Duration::from_secs(3600);

/// Which addresses a socket can be connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressFamily {
    V4,
    V6,
}

/// What the gate has handed over.
#[derive(Debug)]
pub(crate) struct SocketStock {
    control: OwnedFd,
    sockets: [StockShelf; 2],
    /// Answers for listed names: the address, the port or zero, and until when it counts.
    opened: VecDeque<(IpAddr, u16, Instant)>,
}

#[derive(Debug, Default)]
struct StockShelf {
    ready: VecDeque<OwnedFd>,
    asked: usize,
    /// Why there are none.
    refused: Option<i32>,
}

impl AddressFamily {
    const ALL: [AddressFamily; 2] = [AddressFamily::V4, AddressFamily::V6];

    fn code(self) -> u8 {
        match self {
            AddressFamily::V4 => hand::V4,
            AddressFamily::V6 => hand::V6,
        }
    }

    fn of(code: u8) -> Option<AddressFamily> {
        AddressFamily::ALL.into_iter().find(|family| family.code() == code)
    }

    fn kept(self) -> usize {
        match self {
            AddressFamily::V4 => KEPT_V4,
            AddressFamily::V6 => KEPT_V6,
        }
    }
}

impl SocketStock {
    /// `control` leads to a gate that serves.
    pub(crate) fn new(control: OwnedFd) -> io::Result<SocketStock> {
        sys::set_nonblocking(control.as_fd())?;
        let mut stock = SocketStock { control, sockets: Default::default(), opened: VecDeque::new() };
        AddressFamily::ALL.iter().for_each(|family| stock.refill(*family, 0));
        Ok(stock)
    }

    pub(crate) fn watched(&self) -> RawFd {
        self.control.as_raw_fd()
    }

    /// A socket from the stock, or why there will be none. `Ok(None)`: sockets are on their way, one for each of this
    /// many waiting calls.
    pub(crate) fn take(&mut self, family: AddressFamily, waiting: usize) -> Result<Option<OwnedFd>, i32> {
        let shelf = &mut self.sockets[family as usize];
        let taken = shelf.ready.pop_front();
        if taken.is_none()
            && let Some(errno) = shelf.refused.take()
        {
            return Err(errno);
        }
        self.refill(family, if taken.is_none() { waiting + 1 } else { waiting });
        Ok(taken)
    }

    /// Whether a waiting call can be answered.
    pub(crate) fn can_answer(&self, family: AddressFamily) -> bool {
        let shelf = &self.sockets[family as usize];
        !shelf.ready.is_empty() || shelf.refused.is_some()
    }

    fn refill(&mut self, family: AddressFamily, waiting: usize) {
        let shelf = &mut self.sockets[family as usize];
        let wanted = (family.kept() + waiting).min(ASKED_MAX);
        while shelf.ready.len() + shelf.asked < wanted {
            // If the gate's queue is full, the request is repeated when a socket is needed; or the gate is gone.
            if sockets::send_packet(self.control.as_fd(), &[family.code()], None).is_err() {
                return;
            }
            shelf.asked += 1;
        }
    }

    /// Takes what the gate sent.
    pub(crate) fn receive(&mut self) {
        let mut message = [0; 32];
        for _ in 0..MESSAGES_MAX {
            let received = sockets::receive_packet(self.control.as_fd(), &mut message);
            let Ok((len @ 1.., fd)) = received else { return };
            match (&message[..len], fd) {
                ([code], Some(socket)) => {
                    if let Some(family) = AddressFamily::of(*code) {
                        let shelf = &mut self.sockets[family as usize];
                        shelf.asked = shelf.asked.saturating_sub(1);
                        shelf.ready.push_back(socket);
                    }
                }
                ([hand::NONE, code, low, high], None) => {
                    if let Some(family) = AddressFamily::of(*code) {
                        let shelf = &mut self.sockets[family as usize];
                        shelf.asked = shelf.asked.saturating_sub(1);
                        shelf.refused = Some(i32::from_le_bytes([*low, *high, 0, 0]));
                    }
                }
                ([hand::OPENED, high, low, address @ ..], None) => {
                    if let Some(address) = address_of(address) {
                        self.open(address, u16::from_be_bytes([*high, *low]), Instant::now());
                    }
                }
                // One was sent and there was no room for it here.
                ([code], None) => {
                    if let Some(family) = AddressFamily::of(*code) {
                        let shelf = &mut self.sockets[family as usize];
                        shelf.asked = shelf.asked.saturating_sub(1);
                        shelf.refused = Some(libc::EMFILE);
                    }
                }
                (_, _) => {}
            }
        }
    }

    fn open(&mut self, address: IpAddr, port: u16, now: Instant) {
        self.opened.retain(|(known, at, until)| (*known, *at) != (address, port) && *until > now);
        if self.opened.len() >= OPENED_MAX {
            self.opened.pop_front();
        }
        self.opened.push_back((address, port, now + OPENED_FOR));
    }

    /// Whether an address was the answer for a listed name that is open at this port.
    pub(crate) fn is_opened(&self, address: IpAddr, port: u16, now: Instant) -> bool {
        let address = canonical(address);
        let mut opened = self.opened.iter().filter(|(_, _, until)| *until > now);
        opened.any(|(known, at, _)| *known == address && (*at == 0 || *at == port))
    }
}

fn address_of(octets: &[u8]) -> Option<IpAddr> {
    let v4 = |octets: [u8; 4]| IpAddr::V4(Ipv4Addr::from(octets));
    let v6 = |octets: [u8; 16]| IpAddr::V6(Ipv6Addr::from(octets));
    let address = octets.try_into().map(v4).or_else(|_| octets.try_into().map(v6)).ok()?;
    Some(canonical(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_was_lost_on_its_way_is_refused_and_the_next_is_asked_for() {
        assert!(sys::passes_in_child(lose_socket));
    }

    fn lose_socket() {
        let (ours, gate) = sockets::packet_pair().unwrap();
        let mut stock = SocketStock::new(ours).unwrap();
        assert_eq!(stock.take(AddressFamily::V4, 0).map(|taken| taken.is_some()), Ok(false));
        let sent = OwnedFd::from(std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap());
        let hand_over = || sockets::send_packet(gate.as_fd(), &[hand::V4], Some(sent.as_fd())).unwrap();
        hand_over();
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the structures outlive the calls.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut before), 0);
            let none = libc::rlimit { rlim_cur: 0, ..before };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &none), 0);
            stock.receive();
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &before), 0);
        }
        assert!(stock.can_answer(AddressFamily::V4));
        let asked = stock.sockets[AddressFamily::V4 as usize].asked;
        assert_eq!(stock.take(AddressFamily::V4, 0).map(|taken| taken.is_some()), Err(libc::EMFILE));
        // It no longer counts as requested, so that another can be requested.
        assert_eq!(stock.take(AddressFamily::V4, 0).map(|taken| taken.is_some()), Ok(false));
        assert_eq!(stock.sockets[AddressFamily::V4 as usize].asked, asked + 1);
        hand_over();
        stock.receive();
        assert_eq!(stock.take(AddressFamily::V4, 0).map(|taken| taken.is_some()), Ok(true));
    }
}
