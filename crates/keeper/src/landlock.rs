//! Landlock by its system calls: read and execute what programs of the host need, write in few places, signal only the
//! sandbox.
//!
//! Behind a mask it is entered once, by the keeper, so that all execs of a sandbox share one domain: they
//! may signal each other and nothing outside. Without a mask each exec enters one of its own, which leaves
//! out the keeper's directory.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use crate::layers::Layers;
use crate::sys;

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const REMOVE_DIR: u64 = 1 << 4;
const MAKE_CHAR: u64 = 1 << 6;
const MAKE_DIR: u64 = 1 << 7;
const MAKE_REG: u64 = 1 << 8;
const MAKE_SOCK: u64 = 1 << 9;
const MAKE_FIFO: u64 = 1 << 10;
const MAKE_BLOCK: u64 = 1 << 11;
const MAKE_SYM: u64 = 1 << 12;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;
const FILE_RIGHTS: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
const BIND_TCP: u64 = 1;
const CONNECT_TCP: u64 = 1 << 1;
const SCOPE_ABSTRACT_SOCKET: u64 = 1;
const SCOPE_SIGNAL: u64 = 1 << 1;
/// The version of Landlock that can keep signals inside.
const SCOPES_SINCE: i64 = 6;
/// The version of Landlock that can allow links and moves between directories.
const REFER_SINCE: i64 = 2;

/// The parts of the host that a sandbox can read if it sees the host's tree: programs and their files, their settings,
/// and the kernel's information. Other data must be mounted.
pub(crate) const HOST_PLACES: [&str; 13] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/etc",
    "/proc",
    "/sys",
    "/dev",
    "/var/cache/fontconfig",
];

const CREATE_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;

#[repr(C)]
struct RulesetAttr {
    handled_fs: u64,
    handled_net: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: RawFd,
}

/// A directory of the keeper's own, and what it does there.
#[derive(Debug, Clone, Copy)]
pub(crate) enum KeeperDir<'a> {
    Write(&'a OwnedFd),
    /// Empty directories may be removed from it.
    RemoveFrom(&'a OwnedFd),
}

/// The rules of a sandbox, to be entered.
#[derive(Debug)]
pub(crate) struct Ruleset(OwnedFd);

impl Ruleset {
    /// Restricts this process and all that it starts. Needs `no_new_privs`.
    pub(crate) fn enter(&self) -> io::Result<()> {
        enter(self.as_raw_fd())
    }

    pub(crate) fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn try_clone(&self) -> io::Result<Ruleset> {
        self.0.try_clone().map(Ruleset)
    }
}

/// As [`Ruleset::enter`], with the descriptor of the rules.
pub(crate) fn enter(rules: RawFd) -> io::Result<()> {
    // SAFETY: no memory is passed.
    sys::check_long(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules, 0u32) }).map(drop)
}

/// Makes the rules. `readable` are the places to read and run from, `writable` those to write in; those that do not exist
/// are left out. `own` are the keeper's, when it enters the rules itself.
pub(crate) fn prepare(
    readable: &[&str],
    writable: &[PathBuf],
    own: &[KeeperDir<'_>],
    layers: &mut Layers,
) -> Option<Ruleset> {
    let made = abi().and_then(|abi| Ok((abi, ruleset(abi, readable, writable, own)?)));
    match made {
        Ok((abi, ruleset)) => {
            layers.holds("landlock");
            match abi {
                ..=5 => layers.missing("landlock_scope", format!("needs landlock 6, this kernel has {abi}")),
                6.. => layers.holds("landlock_scope"),
            }
            Some(ruleset)
        }
        Err(error) => {
            layers.missing("landlock", error.to_string());
            layers.missing("landlock_scope", "needs landlock");
            None
        }
    }
}

/// Rules that take away nothing that an exec could use. A process that enters them is in a domain of its own, from
/// which it cannot inspect processes outside: not the runtime's memory, environment or pipes.
///
/// `TcpAccess::Closed` also takes away connecting and binding, which the keeper then does for them.
pub(crate) fn restrict_signals(tcp: TcpAccess) -> io::Result<Ruleset> {
    let (handled_net, size) = match tcp {
        TcpAccess::Open => (0, size_of::<u64>()),
        TcpAccess::Closed => (BIND_TCP | CONNECT_TCP, 2 * size_of::<u64>()),
    };
    let handled_fs = if abi()? < REFER_SINCE { MAKE_BLOCK } else { MAKE_BLOCK | REFER };
    with_moves(&RulesetAttr { handled_fs, handled_net, scoped: 0 }, size)
}

/// Whether an exec may connect and bind streams by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TcpAccess {
    Open,
    Closed,
}

/// Rules under which only the keeper can connect and bind streams. They restrict nothing else.
pub(crate) fn without_tcp() -> io::Result<Ruleset> {
    let attr = RulesetAttr { handled_fs: REFER, handled_net: BIND_TCP | CONNECT_TCP, scoped: 0 };
    with_moves(&attr, 2 * size_of::<u64>())
}

/// Whether this kernel can make such rules. Needs Linux 6.7.
pub(crate) fn can_close_tcp() -> io::Result<()> {
    match abi()? {
        ..=3 => Err(io::Error::other("needs landlock 4")),
        4.. => without_tcp().map(drop),
    }
}

/// Makes rules that allow links and moves between directories, where they handle those: any rules take them away that
/// do not allow them.
fn with_moves(attr: &RulesetAttr, size: usize) -> io::Result<Ruleset> {
    let ruleset = create(attr, size)?;
    if attr.handled_fs & REFER != 0 {
        allow(&ruleset, &sys::open_path(OsStr::new("/"))?, REFER)?;
    }
    Ok(Ruleset(ruleset))
}

/// Rules that limit signals to processes under the same rules. None: this kernel has no such rules.
pub(crate) fn tools_scope() -> io::Result<Option<Ruleset>> {
    if abi()? < SCOPES_SINCE {
        return Ok(None);
    }
    let attr = RulesetAttr { handled_fs: REFER, handled_net: 0, scoped: SCOPE_SIGNAL };
    with_moves(&attr, size_of::<RulesetAttr>()).map(Some)
}

/// Rules by which nothing new can be made anywhere. What is there can be removed, and files can be cut.
pub(crate) fn makes_nothing() -> io::Result<Ruleset> {
    let handled_fs = MAKE_CHAR | MAKE_DIR | MAKE_REG | MAKE_SOCK | MAKE_FIFO | MAKE_BLOCK | MAKE_SYM;
    create(&RulesetAttr { handled_fs, handled_net: 0, scoped: 0 }, size_of::<u64>()).map(Ruleset)
}

/// Leaves this process, and all that it starts, nothing of any file but to read these and what is beneath them.
pub(crate) fn read_alone(places: &[PathBuf]) -> io::Result<()> {
    let ruleset = empty(abi()?)?;
    for place in places {
        allow(&ruleset, &sys::open_path(place.as_os_str())?, READ_FILE | READ_DIR)?;
    }
    // SAFETY: no memory is passed.
    sys::check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    Ruleset(ruleset).enter()
}

fn abi() -> io::Result<i64> {
    let none: *const RulesetAttr = std::ptr::null();
    // SAFETY: asking for the version takes a null pointer and no size.
    sys::check_long(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, CREATE_VERSION) })
}

/// All rights on files that this version of the kernel can handle.
fn handled(abi: i64) -> u64 {
    let bits = match abi {
        ..=1 => 13,
        2 => 14,
        3..=4 => 15,
        5.. => 16,
    };
    (1 << bits) - 1
}

/// Rules that forbid everything that this version of the kernel can forbid.
fn empty(abi: i64) -> io::Result<OwnedFd> {
    let handled = handled(abi);
    let scoped = if abi >= SCOPES_SINCE { SCOPE_SIGNAL | SCOPE_ABSTRACT_SOCKET } else { 0 };
    let attr = RulesetAttr { handled_fs: handled, handled_net: 0, scoped };
    let size: usize = match abi {
        ..=3 => 8,
        4..=5 => 16,
        6.. => size_of::<RulesetAttr>(),
    };
    create(&attr, size)
}

/// `size` says how much of it this version of the kernel knows.
fn create(attr: &RulesetAttr, size: usize) -> io::Result<OwnedFd> {
    // SAFETY: `attr` outlives the call and is at least `size` bytes long; the result is a new descriptor.
    unsafe {
        let fd = sys::check_long(libc::syscall(libc::SYS_landlock_create_ruleset, attr, size, 0u32))?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

fn ruleset(abi: i64, readable: &[&str], writable: &[PathBuf], own: &[KeeperDir<'_>]) -> io::Result<Ruleset> {
    let (handled, ruleset) = (handled(abi), empty(abi)?);
    for path in readable {
        match sys::open_path(Path::new(path).as_os_str()) {
            Ok(place) => allow(&ruleset, &place, EXECUTE | READ_FILE | READ_DIR)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    for place in own {
        match place {
            KeeperDir::Write(dir) => allow(&ruleset, dir, handled)?,
            KeeperDir::RemoveFrom(dir) => allow(&ruleset, dir, REMOVE_DIR)?,
        }
    }
    for path in writable {
        match sys::open_path(path.as_os_str()) {
            Ok(place) => allow(&ruleset, &place, handled)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Ruleset(ruleset))
}

fn allow(ruleset: &OwnedFd, place: &OwnedFd, rights: u64) -> io::Result<()> {
    let is_dir = sys::stat(place.as_fd())?.st_mode & libc::S_IFMT == libc::S_IFDIR;
    let allowed = if is_dir { rights } else { rights & FILE_RIGHTS };
    let rule = PathBeneath { allowed, parent: place.as_raw_fd() };
    let (fd, kind) = (ruleset.as_raw_fd(), RULE_PATH_BENEATH);
    // SAFETY: `rule` has the layout that this kind of rule asks for and outlives the call.
    sys::check_long(unsafe { libc::syscall(libc::SYS_landlock_add_rule, fd, kind, &rule, 0u32) }).map(drop)
}
