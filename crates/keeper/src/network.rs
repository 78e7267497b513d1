//! The sandbox's network: the host's own, or one with a loopback and perhaps a way out.
//!
//! Owns: the network namespace, bringing up the gate, and which way out this host can guard. A sandbox that is not to
//! have the host's network never starts with it: what fails here ends the start.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use lodge_link::{KeeperSpec, Network, limits};

use crate::fence::{Namespaces, tests_without};
use crate::gate_rules::{DefaultReach, NetworkRules};
use crate::landlock;
use crate::layers::Layers;
use crate::netlink::{RouteSocket, RouteVerdict};
use crate::notify_probe;
use crate::notify_sys;
use crate::peer_filter::PeerFilter;
use crate::sockets;
use crate::sys;
use crate::trial::{TrialError, settle};

/// The gate's end of the socket to its keeper.
pub(crate) const CONTROL: RawFd = 3;
/// What a gate says once it serves. Anything else is why it does not.
pub(crate) const READY: u8 = b'R';
/// The address of the gate's proxy inside the sandbox, if it has one. No other server is in that network, so the port
/// is free.
const PROXY_PORT: u16 = 3128;
const PROXY_URL: &str = "http://127.0.0.1:3128";
/// What listens inside is reached without it.
const NOT_BY_PROXY: &str = "localhost,127.0.0.1,::1";
/// Where programs of the sandbox ask for names.
const NAMES_PORT: u16 = 53;
/// Most ports of the host's loopback that a gate listens for inside.
const RELAYED_MAX: usize = 64;
/// What they find that by.
const RESOLVER: &str = "nameserver 127.0.0.1\n";
const RESOLVER_FILE: &str = "resolv.conf";
/// How long a gate may take until it serves.
const READY_WITHIN: Duration = Duration::from_secs(5);
/// A gate has nothing to do with files: as root it is the user whom none belong to.
const GATE_UID: u32 = 65_534;
/// Failpoints that do not kill: the keeper behaves as on a host without network namespaces, or without one of the guards.
const NO_NETWORK: &str = "keeper.no_network";
const NO_LANDLOCK: &str = "keeper.no_landlock_tcp";
const NO_FILTER: &str = "keeper.no_network_filter";
/// Addresses for the loopback, beside its own: programs that see none but loopback addresses do not ask for names. Both
/// are reserved for no use.
const INSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
const INSIDE_V6: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 8);
/// Any address of the internet, to see whether a way leads there. Nothing is sent.
const FAR_V6: Ipv6Addr = Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 1);
const LOW_PORTS: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";

/// How programs find the proxy: by the variables that they know.
const VARIABLES: [(&str, &str); 8] = [
    ("HTTP_PROXY", PROXY_URL),
    ("HTTPS_PROXY", PROXY_URL),
    ("ALL_PROXY", PROXY_URL),
    ("http_proxy", PROXY_URL),
    ("https_proxy", PROXY_URL),
    ("all_proxy", PROXY_URL),
    ("NO_PROXY", NOT_BY_PROXY),
    ("no_proxy", NOT_BY_PROXY),
];

/// The network that a sandbox entered.
#[derive(Debug, Default)]
pub(crate) struct SandboxNetwork {
    pub(crate) gate: Option<GateHandle>,
    /// Where the keeper decides about each connection of its programs.
    pub(crate) supervised: Option<ConnectionPolicy>,
    /// The file that names are found by, if it is not the host's.
    pub(crate) resolver: Option<PathBuf>,
}

impl SandboxNetwork {
    /// What the keeper needs for this network beyond what every keeper does.
    pub(crate) fn capabilities(&self) -> u64 {
        match self.supervised.as_ref().map(|with| &with.guard) {
            Some(SocketGuard::Filter(filter)) => filter.capabilities,
            Some(SocketGuard::Landlock) | None => 0,
        }
    }

    /// The environment variables of every program of the sandbox.
    pub(crate) fn variables(&self) -> &'static [(&'static str, &'static str)] {
        match &self.gate {
            Some(gate) if gate.has_proxy => &VARIABLES,
            Some(_) | None => &[],
        }
    }
}

/// The running gate of a sandbox. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct GateHandle {
    pub(crate) pid: i32,
    /// None once the supervisor has it, which asks for sockets by it.
    pub(crate) control: Option<OwnedFd>,
    has_proxy: bool,
}

impl GateHandle {
    /// How `/proc` is mounted beside it. A proxy has processes that come and go, and whose network is the host's: programs
    /// then see those processes alone that they may look into.
    pub(crate) fn proc_options(&self) -> Option<&'static CStr> {
        self.has_proxy.then_some(c"hidepid=2")
    }
}

/// What is needed to decide about connections.
#[derive(Debug)]
pub(crate) struct ConnectionPolicy {
    /// None: nothing beyond the loopback is open.
    pub(crate) rules: Option<NetworkRules>,
    pub(crate) guard: SocketGuard,
    /// Of the host's network.
    pub(crate) routes: RouteSocket,
    /// By which sockets of the sandbox's own network are known.
    pub(crate) cookie: u64,
}

/// What keeps a socket of the host's network from being used for another connection than the one that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SocketGuard {
    /// Programs may neither connect nor bind streams by themselves.
    Landlock,
    /// Each such socket receives only from its peer.
    Filter(PeerFilter),
}

/// Moves this process, and all that it will start, into the network that it is to have.
pub(crate) fn enter(
    spec: &KeeperSpec,
    namespaces: Namespaces,
    layers: &mut Layers,
) -> io::Result<SandboxNetwork> {
    let rules =
        match rules(&spec.network).map_err(|word| io::Error::other(format!("`{word}` names no host")))? {
            RequestedNetwork::Host => return Ok(SandboxNetwork::default()),
            RequestedNetwork::None => None,
            RequestedNetwork::Some(rules) => Some(rules),
        };
    // While this process still has the host's network.
    let mut routes = RouteSocket::open()?;
    let has_v6 = matches!(routes.look_up(FAR_V6.into()), Ok(RouteVerdict::Out));
    let gate = rules.as_ref().map(|_| start_gate()).transpose()?;
    let mut found = Layers::default();
    let guard = find_guard(spec, rules.as_ref(), &mut found)?;
    unshare(spec, namespaces)?;
    layers.holds("netns");
    layers.list.append(&mut found.list);
    let cookie = notify_sys::own_cookie();
    let supervised = match guard {
        Some(guard) => Some(ConnectionPolicy { rules: rules.clone(), guard, routes, cookie: cookie? }),
        None => None,
    };
    // Without this, programs have the ports from 1024 on.
    drop(std::fs::write(LOW_PORTS, "0"));
    let (Some((pid, control)), Some(rules)) = (gate, rules) else {
        return Ok(SandboxNetwork { gate: None, supervised, resolver: None });
    };
    give_addresses(has_v6)?;
    let proxy = match &supervised {
        Some(_) => None,
        None => Some(ProxyListeners::bind(&rules)?),
    };
    hand_over(&control, proxy.as_ref(), &rules)?;
    layers.holds("gate");
    let gate = GateHandle { pid, control: Some(control), has_proxy: proxy.is_some() };
    Ok(SandboxNetwork { gate: Some(gate), supervised, resolver: None })
}

/// Where a gate listens inside a sandbox to which it cannot hand over sockets.
#[derive(Debug)]
pub(crate) struct ProxyListeners {
    pub(crate) proxy: TcpListener,
    /// At the ports of the host's loopback that are open, each of which leads to the same address there.
    pub(crate) loopback: Vec<TcpListener>,
}

impl ProxyListeners {
    fn bind(rules: &NetworkRules) -> io::Result<ProxyListeners> {
        let proxy = TcpListener::bind((Ipv4Addr::LOCALHOST, PROXY_PORT))?;
        let mut loopback = Vec::new();
        // The gate's own ports lead to itself; through the proxy these two lead to the host as well.
        let ports = rules.loopback_ports().iter().filter(|port| ![PROXY_PORT, NAMES_PORT].contains(port));
        for port in ports.take(RELAYED_MAX) {
            match TcpListener::bind((Ipv4Addr::LOCALHOST, *port)) {
                Ok(listener) => loopback.push(listener),
                // Listed twice.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => continue,
                Err(error) => return Err(error),
            }
            // A kernel without that kind of address has no loopback of it.
            loopback.extend(TcpListener::bind((Ipv6Addr::LOCALHOST, *port)));
        }
        Ok(ProxyListeners { proxy, loopback })
    }
}

enum RequestedNetwork {
    Host,
    None,
    Some(NetworkRules),
}

fn rules(network: &Network) -> Result<RequestedNetwork, String> {
    let read = |reach, words: &[String]| NetworkRules::read(reach, words).map(RequestedNetwork::Some);
    match network {
        Network::Host => Ok(RequestedNetwork::Host),
        Network::None => Ok(RequestedNetwork::None),
        Network::Public => read(DefaultReach::Public, &[]),
        Network::Lan => read(DefaultReach::Lan, &[]),
        Network::List { allow } => read(DefaultReach::Listed, allow),
    }
}

/// Notes what of a network of its own this host could give a sandbox, by closing this process's own.
pub(crate) fn probe(spec: &KeeperSpec, namespaces: Namespaces, layers: &mut Layers) {
    let mut found = Layers::default();
    let any = NetworkRules::read(DefaultReach::Public, &[]).ok();
    let guard = find_guard(spec, any.as_ref(), &mut found);
    if layers.note("netns", unshare(spec, namespaces)) {
        layers.list.append(&mut found.list);
        if let Err(error) = guard {
            layers.missing("network_landlock", error.to_string());
        }
    }
}

/// By what sockets of the host's network can be handed to programs, and be of no use for anything else there. None: they
/// cannot. An error: that could not be tried, which ends the start, as the next one may have more of the network.
///
/// Must run while this process has the host's network. `rules`: what is open beyond the loopback.
fn find_guard(
    spec: &KeeperSpec,
    rules: Option<&NetworkRules>,
    layers: &mut Layers,
) -> io::Result<Option<SocketGuard>> {
    let answering = settle(notify_probe::try_answering())?;
    let without = || io::Error::other("a test does without");
    let landlock = match &answering {
        Err(error) => Err(io::Error::other(error.to_string())),
        Ok(()) if tests_without(spec, NO_LANDLOCK) => Err(without()),
        Ok(()) => settle(landlock::can_close_tcp().map_err(TrialError::from))?,
    };
    if layers.note("network_landlock", landlock) {
        return Ok(Some(SocketGuard::Landlock));
    }
    // Without a way out there is nothing to guard.
    if rules.is_none() {
        return Ok(None);
    }
    let filter = match answering {
        Err(error) => Err(error),
        Ok(()) if tests_without(spec, NO_FILTER) => Err(without()),
        Ok(()) => settle(PeerFilter::try_attaching())?,
    };
    Ok(match filter {
        Ok(filter) => {
            layers.holds("network_filter");
            Some(SocketGuard::Filter(filter))
        }
        Err(error) => {
            layers.missing("network_filter", error.to_string());
            None
        }
    })
}

fn unshare(spec: &KeeperSpec, namespaces: Namespaces) -> io::Result<()> {
    let named = |cause: io::Error| {
        io::Error::other(format!(
            "a sandbox without the host's network needs a network namespace, or `NETWORK host` in its Agentfile: {cause}"
        ))
    };
    match namespaces {
        Namespaces::Host => return Err(named(io::Error::other("this host makes no namespaces"))),
        Namespaces::Own if tests_without(spec, NO_NETWORK) => {
            return Err(named(io::Error::other("a test does without")));
        }
        Namespaces::Own => {}
    }
    // SAFETY: no memory is passed.
    sys::check(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map_err(named)?;
    raise_loopback()
}

/// A new network has a loopback that is down.
fn raise_loopback() -> io::Result<()> {
    let socket = sockets::socket(libc::AF_INET, libc::SOCK_DGRAM)?;
    // SAFETY: the structure is plain data, for which zeroes are a valid value, and outlives the calls; its name ends
    // with a zero.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(c"lo".to_bytes()) {
            *to = *from as libc::c_char;
        }
        sys::check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &mut request))?;
        request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short;
        sys::check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request)).map(drop)
    }
}

fn give_addresses(has_v6: bool) -> io::Result<()> {
    let mut routes = RouteSocket::open()?;
    routes.add_to_loopback(INSIDE.into())?;
    if has_v6 {
        // A kernel without that kind of address has no use for one.
        drop(routes.add_to_loopback(INSIDE_V6.into()));
    }
    Ok(())
}

/// Whether an address is one of the sandbox's own.
pub(crate) fn is_inside(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_unspecified() || v4 == INSIDE,
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unspecified() || v6 == INSIDE_V6,
    }
}

/// Starts this program again as a gate, with none of the keeper's memory. It keeps the current mounts, so that it
/// uses the host's name servers.
fn start_gate() -> io::Result<(i32, OwnedFd)> {
    let (control, theirs) = sockets::packet_pair()?;
    let pid = sys::fork()?;
    if pid != 0 {
        return Ok((pid, control));
    }
    let argv = [c"keeper".as_ptr(), c"gate".as_ptr(), std::ptr::null()];
    let env = [std::ptr::null()];
    // SAFETY: this is the child, which owns its descriptors alone and does not return. Both lists end with a null
    // pointer and point to C strings.
    unsafe {
        // Names resolve by the host's files, so a gate does not go with its keeper into the sandbox's own root.
        if libc::unshare(libc::CLONE_NEWNS) != 0 {
            libc::_exit(127);
        }
        if theirs.as_raw_fd() == CONTROL {
            libc::fcntl(CONTROL, libc::F_SETFD, 0);
        } else {
            libc::dup2(theirs.as_raw_fd(), CONTROL);
        }
        libc::close_range(CONTROL as libc::c_uint + 1, libc::c_uint::MAX, 0);
        libc::execve(c"/proc/self/exe".as_ptr(), argv.as_ptr(), env.as_ptr());
        libc::_exit(127)
    }
}

/// Gives the gate its sockets and its rules, and waits until it serves.
fn hand_over(control: &OwnedFd, proxy: Option<&ProxyListeners>, rules: &NetworkRules) -> io::Result<()> {
    let datagrams = UdpSocket::bind((Ipv4Addr::LOCALHOST, NAMES_PORT))?;
    let streams = TcpListener::bind((Ipv4Addr::LOCALHOST, NAMES_PORT))?;
    let uid = if sys::is_root() { GATE_UID.to_string() } else { "-".to_owned() };
    let text = [&uid, rules.reach().word()].into_iter().chain(rules.list().split(' '));
    let text = text.collect::<Vec<_>>().join("\n");
    let socket = control.as_fd();
    sockets::send_packet(socket, &[part::DATAGRAMS], Some(datagrams.as_fd()))?;
    sockets::send_packet(socket, &[part::STREAMS], Some(streams.as_fd()))?;
    if let Some(ProxyListeners { proxy, loopback }) = proxy {
        sockets::send_packet(socket, &[part::PROXY], Some(proxy.as_fd()))?;
        for listener in loopback {
            sockets::send_packet(socket, &[part::LOOPBACK], Some(listener.as_fd()))?;
        }
    }
    sockets::send_packet(socket, &[&[part::RULES], text.as_bytes()].concat(), None)?;
    let within_ms = i32::try_from(READY_WITHIN.as_millis()).unwrap_or(i32::MAX);
    let mut heard = [0; 1024];
    let len = match sys::wait_readable(socket, within_ms)? {
        true => sockets::receive_packet(socket, &mut heard)?.0,
        false => 0,
    };
    match &heard[..len] {
        [READY] => Ok(()),
        [] => Err(io::Error::other("the gate did not start")),
        why => Err(io::Error::other(format!("the gate did not start: {}", String::from_utf8_lossy(why)))),
    }
}

/// How the parts of what a gate is given begin.
mod part {
    pub(super) const DATAGRAMS: u8 = b'U';
    pub(super) const STREAMS: u8 = b'T';
    pub(super) const PROXY: u8 = b'P';
    pub(super) const LOOPBACK: u8 = b'L';
    pub(super) const RULES: u8 = b'S';
}

/// What a gate is given.
#[derive(Debug)]
pub(crate) struct GateSetup {
    pub(crate) datagrams: UdpSocket,
    pub(crate) streams: TcpListener,
    pub(crate) proxy: Option<ProxyListeners>,
    pub(crate) uid: Option<u32>,
    pub(crate) rules: NetworkRules,
}

/// In the gate: takes what the keeper gives.
pub(crate) fn receive(control: &OwnedFd) -> io::Result<GateSetup> {
    let (mut datagrams, mut streams, mut proxy, mut loopback) = (None, None, None, Vec::new());
    let mut message = vec![0; limits::SPEC_MAX];
    let text = loop {
        let (len, fd) = sockets::receive_packet(control.as_fd(), &mut message)?;
        match (&message[..len], fd) {
            ([part::DATAGRAMS], Some(fd)) => datagrams = Some(UdpSocket::from(fd)),
            ([part::STREAMS], Some(fd)) => streams = Some(TcpListener::from(fd)),
            ([part::PROXY], Some(fd)) => proxy = Some(TcpListener::from(fd)),
            ([part::LOOPBACK], Some(fd)) => loopback.push(TcpListener::from(fd)),
            ([part::RULES, text @ ..], None) => {
                break String::from_utf8(text.to_vec()).map_err(io::Error::other)?;
            }
            (_, _) => return Err(io::ErrorKind::InvalidData.into()),
        }
    };
    let mut lines = text.lines();
    let uid = match lines.next() {
        Some("-") => None,
        Some(uid) => Some(uid.parse().map_err(io::Error::other)?),
        None => return Err(io::ErrorKind::InvalidData.into()),
    };
    let reach = lines.next().and_then(DefaultReach::from_word).ok_or(io::ErrorKind::InvalidData)?;
    let words: Vec<String> = lines.filter(|word| !word.is_empty()).map(str::to_owned).collect();
    let rules = NetworkRules::read(reach, &words);
    let rules = rules.map_err(|word| io::Error::other(format!("`{word}` names no host")))?;
    let (Some(datagrams), Some(streams)) = (datagrams, streams) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let proxy = proxy.map(|proxy| ProxyListeners { proxy, loopback });
    Ok(GateSetup { datagrams, streams, proxy, uid, rules })
}

/// Writes the resolver file for the gate's names into the keeper's directory, and returns its path. Must run before
/// `/proc` is replaced.
pub(crate) fn write_resolver(dir: &OwnedFd) -> io::Result<PathBuf> {
    let name = sys::c_string(RESOLVER_FILE.as_ref())?;
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_NOFOLLOW;
    let mut file = File::from(sys::open_at(dir.as_fd(), &name, flags, 0o644)?);
    file.write_all(RESOLVER.as_bytes())?;
    file.set_permissions(PermissionsExt::from_mode(0o644))?;
    Ok(std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd()))?.join(RESOLVER_FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_led_to_where_the_proxy_listens() {
        assert_eq!(PROXY_URL, format!("http://{}:{PROXY_PORT}", Ipv4Addr::LOCALHOST));
        for (name, _) in VARIABLES {
            let small = name.to_ascii_lowercase();
            assert!(VARIABLES.iter().any(|(other, _)| *other == small), "{name}");
        }
    }
}
