//! The connections of one listener: authenticated callers and all others.
//!
//! The two are counted apart, so that those without a token cannot take the places of those with one. A connection begins
//! without a token, has a few seconds to show one, and gives way to newer ones when there are too many. From one address,
//! or from one user of the Unix socket, come no more than half of them.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lodge_proto::{ErrorBody, Response};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::auth::ApiCaller;
use crate::view::client_errors;

/// Connections with a token at the same time.
const KNOWN_MAX: usize = 1_024;
/// Connections without a token at the same time.
const UNKNOWN_MAX: usize = 1_024;
/// The part of the process's descriptors that they may take.
const DESCRIPTORS_SHARE: u64 = 4;

/// The connections of one listener.
#[derive(Debug)]
pub(super) struct Connections {
    unknown_max: usize,
    open: Mutex<ConnectionTable>,
    /// The response for connections that give way.
    busy: Vec<u8>,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    next: u64,
    /// In the order they came.
    unknown: BTreeMap<u64, UnauthenticatedConnection>,
    known: HashMap<u64, AuthenticatedConnection>,
}

#[derive(Debug)]
struct UnauthenticatedConnection {
    origin: ConnectionOrigin,
    cut: CancellationToken,
}

#[derive(Debug)]
struct AuthenticatedConnection {
    who: ApiCaller,
    cut: CancellationToken,
}

/// The origin of a connection, as far as peers can be distinguished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ConnectionOrigin {
    Network(IpAddr),
    User(u32),
}

impl ConnectionOrigin {
    /// One peer may have every address of loopback, and every one of an IPv6 network of 64 bits.
    pub(super) fn of_address(ip: IpAddr) -> ConnectionOrigin {
        ConnectionOrigin::Network(match ip.to_canonical() {
            ip if ip.is_loopback() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V4(ip) => IpAddr::V4(ip),
            IpAddr::V6(ip) => {
                let [a, b, c, d, ..] = ip.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
        })
    }
}

/// One connection, as the requests on it see it.
#[derive(Debug, Clone)]
pub(super) struct Connection(Arc<ConnectionState>);

#[derive(Debug)]
struct ConnectionState {
    id: u64,
    all: Arc<Connections>,
    /// Where it arrived, if it came by TCP.
    local: Option<SocketAddr>,
    /// Closes the connection immediately.
    cut: CancellationToken,
    has_asked_for_proof: AtomicBool,
    lingers: AtomicBool,
}

/// The place of a connection; dropped, it is free.
#[derive(Debug)]
pub(super) struct ConnectionSlot(pub Connection);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let inner = &self.0.0;
        let mut open = inner.all.open();
        open.unknown.remove(&inner.id);
        open.known.remove(&inner.id);
    }
}

impl Connections {
    pub(super) fn new() -> Arc<Connections> {
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let share = descriptors.map_or(u64::MAX, |all| all / DESCRIPTORS_SHARE);
        Self::with_room(UNKNOWN_MAX.min(usize::try_from(share).unwrap_or(usize::MAX)))
    }

    fn with_room(unknown_max: usize) -> Arc<Connections> {
        let error = ErrorBody::from(ConnectionLimit::Waiting { max: unknown_max });
        let body = serde_json::to_string(&Response::err(Value::Null, error)).unwrap_or_default();
        let head = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close";
        let busy = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes();
        Arc::new(Connections { unknown_max: unknown_max.max(2), open: Mutex::default(), busy })
    }

    /// Takes a connection in. When there are too many without a token, the oldest of its origin has to go, or the oldest
    /// of the origin that has most.
    pub(super) fn admit(
        self: &Arc<Self>,
        origin: ConnectionOrigin,
        local: Option<SocketAddr>,
    ) -> ConnectionSlot {
        let cut = CancellationToken::new();
        let mut open = self.open();
        let id = open.next;
        open.next += 1;
        if let Some(crowded) = open.crowded(origin, self.unknown_max) {
            let oldest = open.unknown.iter().find(|(_, unknown)| unknown.origin == crowded);
            let oldest = oldest.map(|(id, _)| *id);
            if let Some(gone) = oldest.and_then(|id| open.unknown.remove(&id)) {
                gone.cut.cancel();
            }
        }
        open.unknown.insert(id, UnauthenticatedConnection { origin, cut: cut.clone() });
        drop(open);
        let (has_asked_for_proof, lingers) = (AtomicBool::new(false), AtomicBool::new(false));
        ConnectionSlot(Connection(Arc::new(ConnectionState {
            id,
            all: self.clone(),
            local,
            cut,
            has_asked_for_proof,
            lingers,
        })))
    }

    fn open(&self) -> MutexGuard<'_, ConnectionTable> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionTable {
    /// The origin that has to give a place up for one more connection from `origin`, if one has to.
    fn crowded(&self, origin: ConnectionOrigin, unknown_max: usize) -> Option<ConnectionOrigin> {
        let mut counts: HashMap<ConnectionOrigin, usize> = HashMap::new();
        for unknown in self.unknown.values() {
            *counts.entry(unknown.origin).or_default() += 1;
        }
        if counts.get(&origin).is_some_and(|count| *count >= unknown_max / 2) {
            return Some(origin);
        }
        if self.unknown.len() < unknown_max {
            return None;
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(origin, _)| origin)
    }
}

impl Connection {
    /// Counts this connection among those with a token.
    pub(super) fn enter(&self, who: &ApiCaller) -> Result<(), ConnectionLimit> {
        let ConnectionState { id, all, cut, .. } = &*self.0;
        let mut open = all.open();
        if let Some(known) = open.known.get_mut(id) {
            if known.who.token.id != who.token.id {
                known.who = who.clone();
            }
            return Ok(());
        }
        if open.known.len() >= KNOWN_MAX {
            // Whose token is over has no right to a place.
            open.known.retain(|_, known| {
                let is_over = known.who.is_over();
                if is_over {
                    known.cut.cancel();
                }
                !is_over
            });
        }
        if open.known.len() >= KNOWN_MAX {
            return Err(ConnectionLimit::Open);
        }
        if open.unknown.remove(id).is_none() {
            return Err(ConnectionLimit::GaveWay);
        }
        open.known.insert(*id, AuthenticatedConnection { who: who.clone(), cut: cut.clone() });
        Ok(())
    }

    pub(super) fn is_known(&self) -> bool {
        self.0.all.open().known.contains_key(&self.0.id)
    }

    pub(super) fn local(&self) -> Option<SocketAddr> {
        self.0.local
    }

    /// Cancelled when the connection must be closed at once.
    pub(super) fn cut(&self) -> CancellationToken {
        self.0.cut.clone()
    }

    pub(super) fn busy_answer(&self) -> &[u8] {
        &self.0.all.busy
    }

    /// True the first time: one question on each connection is enough for a client that intends to send a token.
    pub(super) fn may_stay_for_proof(&self) -> bool {
        !self.0.has_asked_for_proof.swap(true, Ordering::Relaxed)
    }

    /// Whether something of a refused request may be unread when the connection is closed.
    pub(super) fn set_lingers(&self, lingers: bool) {
        self.0.lingers.store(lingers, Ordering::Relaxed);
    }

    pub(super) fn lingers(&self) -> bool {
        self.0.lingers.load(Ordering::Relaxed)
    }
}

/// Why there is no room for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ConnectionLimit {
    #[error("{max} connections wait to show a token")]
    Waiting { max: usize },
    #[error("{KNOWN_MAX} connections are open already")]
    Open,
    /// Others came while this one showed no token.
    #[error("too many connections wait to show a token")]
    GaveWay,
}

impl ConnectionLimit {
    fn code(self) -> &'static str {
        "daemon.busy"
    }

    fn cause(self) -> Option<String> {
        None
    }

    fn hint(self) -> Option<String> {
        Some("close some, or try again in a moment".to_owned())
    }
}

client_errors!(ConnectionLimit);

#[cfg(test)]
mod tests {
    use lodge_core::token::{TokenHolder, TokenRow};
    use lodge_core::{IdSource, Timestamp, TokenId};

    use super::*;
    use crate::shell::now;

    fn who(seed: u64, expires_at: Timestamp) -> ApiCaller {
        let at = Timestamp::from_ms(0);
        let id = TokenId::new(&mut IdSource::new(seed), at);
        let (holder, name, revoked_at) = (TokenHolder::Operator, None, None);
        ApiCaller::with(TokenRow { id, holder, name, issued_at: at, expires_at, revoked_at })
    }

    fn from(text: &str) -> ConnectionOrigin {
        ConnectionOrigin::of_address(text.parse().unwrap())
    }

    fn is_cut(place: &ConnectionSlot) -> bool {
        place.0.cut().is_cancelled()
    }

    #[test]
    fn one_origin_gives_way_to_itself_and_leaves_room_for_others() {
        let all = Connections::with_room(8);
        let crowd: Vec<ConnectionSlot> = (0..6).map(|_| all.admit(from("10.0.0.1"), None)).collect();
        assert_eq!(crowd.iter().map(is_cut).collect::<Vec<_>>(), [true, true, false, false, false, false]);
        let others: Vec<ConnectionSlot> =
            (2..6).map(|host| all.admit(from(&format!("10.0.0.{host}")), None)).collect();
        assert!(others.iter().chain(&crowd[2..]).all(|place| !is_cut(place)));
        // There are eight: the origin that has most gives a place to the ninth.
        let ninth = all.admit(from("10.0.0.9"), None);
        assert!(is_cut(&crowd[2]) && !is_cut(&crowd[3]) && !is_cut(&ninth));
    }

    #[test]
    fn who_has_shown_a_token_is_counted_apart_and_stays() {
        let all = Connections::with_room(4);
        let first = all.admit(ConnectionOrigin::User(0), None);
        let later = now().plus_ms(1_000_000);
        first.0.enter(&who(1, later)).unwrap();
        let crowd: Vec<ConnectionSlot> =
            (0..10).map(|_| all.admit(ConnectionOrigin::User(0), None)).collect();
        assert!(!is_cut(&first) && first.0.is_known());
        assert_eq!(crowd.iter().filter(|place| !is_cut(place)).count(), 2);
        // One that gave way comes too late with its token.
        assert_eq!(crowd[0].0.enter(&who(1, later)).unwrap_err().code(), "daemon.busy");
        crowd[9].0.enter(&who(1, later)).unwrap();
    }

    #[test]
    fn tokens_that_are_over_keep_no_places_when_there_are_none_left() {
        let all = Connections::with_room(KNOWN_MAX * 2);
        let (good, over) = (who(1, now().plus_ms(1_000_000)), who(2, Timestamp::from_ms(1)));
        let enter = |who: &ApiCaller| {
            let place = all.admit(ConnectionOrigin::User(0), None);
            place.0.enter(who).map(|()| place)
        };
        let mut places: Vec<ConnectionSlot> = (0..KNOWN_MAX - 1).map(|_| enter(&good).unwrap()).collect();
        let stale = enter(&over).unwrap();
        places.push(enter(&good).unwrap());
        assert!(is_cut(&stale) && !is_cut(&places[0]));
        assert_eq!(enter(&good).unwrap_err().code(), "daemon.busy");
        places.pop();
        enter(&good).unwrap();
    }

    #[test]
    fn loopback_is_one_origin_and_so_is_a_network_of_ipv6() {
        assert_eq!(from("127.0.0.1"), from("127.9.9.9"));
        assert_eq!(from("127.0.0.1"), from("::1"));
        assert_eq!(from("::ffff:10.0.0.1"), from("10.0.0.1"));
        assert_eq!(from("2001:db8::1"), from("2001:db8::ffff:1"));
        assert_ne!(from("2001:db8::1"), from("2001:db8:0:1::1"));
        assert_ne!(from("10.0.0.1"), from("10.0.0.2"));
    }
}
