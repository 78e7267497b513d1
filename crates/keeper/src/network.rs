//! The sandbox's network: the host's own, or one with a loopback and perhaps a gate.
//!
//! Owns: the network namespace, and bringing up the gate. A sandbox that is not to have the host's network never
//! starts with it: what fails here ends the start.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use lodge_link::{KeeperSpec, Network, limits};

use crate::fence::{Namespaces, tests_without};
use crate::layers::Layers;
use crate::sys;

/// The gate's end of the socket to its keeper.
pub(crate) const CONTROL: RawFd = 3;
/// What a gate says once it serves. Anything else is why it does not.
pub(crate) const READY: u8 = b'R';
/// Where programs of the sandbox find the gate. Nobody else is in that network, so the port is free.
const GATE_PORT: u16 = 3128;
const GATE_URL: &str = "http://127.0.0.1:3128";
/// What listens inside is reached without it.
const NOT_BY_GATE: &str = "localhost,127.0.0.1,::1";
/// How long a gate may take until it serves.
const READY_WITHIN: Duration = Duration::from_secs(5);
/// A gate has nothing to do with files: as root it is the user whom none belong to.
const GATE_UID: u32 = 65_534;
/// A failpoint that does not kill: the keeper behaves as on a host without network namespaces.
const NO_NETWORK: &str = "keeper.no_network";
/// Longest reason of a gate that does not serve.
const REASON_MAX: u64 = 1024;

/// How programs find the gate: by the variables that they know.
const VARIABLES: [(&str, &str); 8] = [
    ("HTTP_PROXY", GATE_URL),
    ("HTTPS_PROXY", GATE_URL),
    ("ALL_PROXY", GATE_URL),
    ("http_proxy", GATE_URL),
    ("https_proxy", GATE_URL),
    ("all_proxy", GATE_URL),
    ("NO_PROXY", NOT_BY_GATE),
    ("no_proxy", NOT_BY_GATE),
];

/// The running gate of a sandbox. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) pid: i32,
    /// Never read again: that it is open is what counts.
    _control: UnixStream,
}

impl Gate {
    /// What every program of the sandbox is told.
    pub(crate) fn variables(&self) -> &'static [(&'static str, &'static str)] {
        &VARIABLES
    }
}

/// Moves this process, and all that it will start, into the network that it is to have.
pub(crate) fn enter(
    spec: &KeeperSpec,
    namespaces: Namespaces,
    layers: &mut Layers,
) -> io::Result<Option<Gate>> {
    match &spec.network {
        Network::Host => Ok(None),
        Network::None => {
            unshare(spec, namespaces)?;
            layers.holds("netns");
            Ok(None)
        }
        Network::List { allow } => {
            // While this process still has the host's network.
            let (gate, control) = start_gate()?;
            unshare(spec, namespaces)?;
            layers.holds("netns");
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, GATE_PORT))?;
            let gate = hand_over(gate, control, &listener, allow)?;
            layers.holds("gate");
            Ok(Some(gate))
        }
    }
}

/// Notes whether this host could close a sandbox's network, by closing this process's own.
pub(crate) fn probe(spec: &KeeperSpec, namespaces: Namespaces, layers: &mut Layers) {
    layers.note("netns", unshare(spec, namespaces));
}

fn unshare(spec: &KeeperSpec, namespaces: Namespaces) -> io::Result<()> {
    let named = |cause: io::Error| {
        io::Error::other(format!("a sandbox without the host's network needs a network namespace: {cause}"))
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
    // SAFETY: the structure is plain data, for which zeroes are a valid value, and outlives the calls; its name ends
    // with a zero. The descriptor is new.
    unsafe {
        let socket = sys::check(libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))?;
        let socket = OwnedFd::from_raw_fd(socket);
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(c"lo".to_bytes()) {
            *to = *from as libc::c_char;
        }
        sys::check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &mut request))?;
        request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short;
        sys::check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request)).map(drop)
    }
}

/// Starts this program anew as a gate: its memory has nothing of the keeper's.
fn start_gate() -> io::Result<(i32, UnixStream)> {
    let (control, theirs) = UnixStream::pair()?;
    let pid = sys::fork()?;
    if pid != 0 {
        return Ok((pid, control));
    }
    let argv = [c"keeper".as_ptr(), c"gate".as_ptr(), std::ptr::null()];
    let env = [std::ptr::null()];
    // SAFETY: this is the child, which owns its descriptors alone and does not return. Both lists end with a null
    // pointer and point to C strings.
    unsafe {
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

/// Gives the gate its socket and its list, and waits until it serves.
fn hand_over(
    pid: i32,
    mut control: UnixStream,
    listener: &TcpListener,
    allow: &[String],
) -> io::Result<Gate> {
    let uid = if sys::is_root() { GATE_UID.to_string() } else { "-".to_owned() };
    let text = std::iter::once(uid.as_str()).chain(allow.iter().map(String::as_str));
    let text = text.collect::<Vec<_>>().join("\n");
    let len = u32::try_from(text.len()).map_err(io::Error::other)?;
    control.set_write_timeout(Some(READY_WITHIN))?;
    control.set_read_timeout(Some(READY_WITHIN))?;
    sys::send_fd(control.as_raw_fd(), &len.to_le_bytes(), listener.as_raw_fd())?;
    control.write_all(text.as_bytes())?;
    let mut first = [0];
    control.read_exact(&mut first).map_err(|_| io::Error::other("the gate did not start"))?;
    if first == [READY] {
        return Ok(Gate { pid, _control: control });
    }
    let mut why = first.to_vec();
    control.take(REASON_MAX).read_to_end(&mut why)?;
    Err(io::Error::other(format!("the gate did not start: {}", String::from_utf8_lossy(&why))))
}

/// What a gate is given.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) listener: TcpListener,
    pub(crate) uid: Option<u32>,
    pub(crate) allow: Vec<String>,
}

/// In the gate: takes what the keeper gives.
pub(crate) fn receive(mut control: &UnixStream) -> io::Result<Setup> {
    let mut len = [0; 4];
    let listener = sys::receive_fd(control.as_raw_fd(), &mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > limits::SPEC_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; len];
    control.read_exact(&mut text)?;
    let text = String::from_utf8(text).map_err(io::Error::other)?;
    let mut lines = text.lines();
    let uid = match lines.next() {
        Some("-") => None,
        Some(uid) => Some(uid.parse().map_err(io::Error::other)?),
        None => return Err(io::ErrorKind::InvalidData.into()),
    };
    Ok(Setup { listener: TcpListener::from(listener), uid, allow: lines.map(str::to_owned).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_led_to_where_the_gate_listens() {
        assert_eq!(GATE_URL, format!("http://{}:{GATE_PORT}", Ipv4Addr::LOCALHOST));
        for (name, _) in VARIABLES {
            let small = name.to_ascii_lowercase();
            assert!(VARIABLES.iter().any(|(other, _)| *other == small), "{name}");
        }
    }
}
