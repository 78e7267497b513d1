//! Mounts in which the owner of a path of the host appears as the sandbox's user, and the other way round. All other users
//! and groups stay as they are.
//!
//! Owns: the user namespaces that say so, and the mounts, attached nowhere yet. Never: which paths.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use lodge_link::BindOwner;
use rustix::mount::OpenTreeFlags;

use crate::read_only;
use crate::sys;

/// Beyond the last id: the number itself is none.
const IDS: u32 = u32::MAX;
/// Users for a trial; the second if the owner is the first.
const TRIAL_UIDS: [u32; 2] = [65_533, 65_532];

/// Whether programs may change what is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MountAccess {
    ReadOnly,
    Writable,
}

/// User namespaces of owners, of which one sandbox may have several.
#[derive(Debug)]
pub(crate) struct OwnerMaps {
    uid: u32,
    made: Vec<(BindOwner, OwnedFd)>,
}

impl OwnerMaps {
    /// For a sandbox whose user and group have this number.
    pub(crate) fn new(uid: u32) -> OwnerMaps {
        OwnerMaps { uid, made: Vec::new() }
    }

    /// A mount of what is open at `source` and of everything that is mounted beneath it. It gives no set-id program and
    /// no device.
    pub(crate) fn clone_mapped(
        &mut self,
        source: BorrowedFd<'_>,
        owner: BindOwner,
        access: MountAccess,
    ) -> io::Result<OwnedFd> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = rustix::mount::open_tree(source, c"", flags)?;
        read_only::map_tree(tree.as_fd(), self.namespace(owner)?, access)?;
        Ok(tree)
    }

    fn namespace(&mut self, owner: BindOwner) -> io::Result<BorrowedFd<'_>> {
        let at = match self.made.iter().position(|(known, _)| *known == owner) {
            Some(at) => at,
            None => {
                self.made.push((owner, make_namespace(owner, self.uid)?));
                self.made.len() - 1
            }
        };
        Ok(self.made[at].1.as_fd())
    }
}

/// `keeper map PATH UID GID`: tries whether a path can be mounted like this, and prints `ok` or the number of the error.
/// `-` is no group.
pub(crate) fn try_path(args: &[OsString]) -> ExitCode {
    let number = |text: &OsString| text.to_str().and_then(|text| text.parse::<u32>().ok());
    let [path, uid, gid] = args else { return ExitCode::from(2) };
    let Some(uid) = number(uid) else { return ExitCode::from(2) };
    let owner = BindOwner { uid, gid: number(gid) };
    let user = TRIAL_UIDS.into_iter().find(|user| *user != uid).unwrap_or_default();
    let tried = sys::open_path(path)
        .and_then(|source| OwnerMaps::new(user).clone_mapped(source.as_fd(), owner, MountAccess::Writable));
    match tried {
        Ok(_) => println!("ok"),
        Err(error) => println!("{}", error.raw_os_error().unwrap_or(libc::EIO)),
    }
    ExitCode::SUCCESS
}

/// A user namespace that no process is in.
fn make_namespace(owner: BindOwner, uid: u32) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let child = match sys::fork()? {
        0 => {
            drop(ours);
            let errno = match wait_in_namespace(theirs) {
                Ok(()) => 0,
                Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
            };
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(errno) }
        }
        child => child,
    };
    drop(theirs);
    let mut pid = String::new();
    let made = BufReader::new(&ours).read_line(&mut pid).and_then(|_| {
        let at = |name: &str| format!("/proc/{}/{name}", pid.trim());
        let namespace = File::open(at("ns/user"))?;
        std::fs::write(at("uid_map"), exchange(owner.uid, uid))?;
        std::fs::write(at("gid_map"), exchange(owner.gid.unwrap_or(uid), uid))?;
        Ok(OwnedFd::from(namespace))
    });
    drop(ours);
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    sys::check(unsafe { libc::waitpid(child, &mut status, 0) })?;
    match libc::WEXITSTATUS(status) {
        errno if pid.is_empty() && errno != 0 => Err(io::Error::from_raw_os_error(errno)),
        _own => made,
    }
}

/// Runs in the child: sends its number as `/proc` has it, which may be that of another namespace, and stays until the
/// other end is closed.
fn wait_in_namespace(mut stream: UnixStream) -> io::Result<()> {
    // SAFETY: no memory is passed.
    sys::check(unsafe { libc::unshare(libc::CLONE_NEWUSER) })?;
    let pid = std::fs::read_link("/proc/self")?;
    writeln!(stream, "{}", pid.display())?;
    stream.read_exact(&mut [0]).or(Ok(()))
}

/// The map in which two ids change places.
fn exchange(one: u32, other: u32) -> String {
    let (low, high) = (one.min(other), one.max(other));
    if low == high {
        return format!("0 0 {IDS}\n");
    }
    let ranges = [
        (0, 0, low),
        (low, high, 1),
        (low + 1, low + 1, high - low - 1),
        (high, low, 1),
        (high + 1, high + 1, IDS - high - 1),
    ];
    let lines = ranges.into_iter().filter(|(.., count)| *count > 0);
    lines.map(|(inside, outside, count)| format!("{inside} {outside} {count}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The id that a map gives to one of the file system.
    fn seen(map: &str, id: u32) -> Vec<u32> {
        let extents = map.lines().map(|line| {
            let numbers: Vec<u32> = line.split(' ').map(|number| number.parse().unwrap()).collect();
            (numbers[0], numbers[1], numbers[2])
        });
        extents
            .filter(|(inside, _, count)| id >= *inside && id - inside < *count)
            .map(|(inside, outside, _)| outside + (id - inside))
            .collect()
    }

    #[test]
    fn owner_and_sandbox_change_places_and_every_other_id_stays() {
        let last = u32::MAX - 1;
        for (owner, uid) in
            [(1000, 2_000_000_001), (2_000_000_001, 1000), (0, 70_000), (0, 1), (5, 6), (3, last)]
        {
            let map = exchange(owner, uid);
            assert!(map.lines().count() <= 5, "{map}");
            let others = [0, 1, owner.saturating_sub(1), owner + 1, uid - 1, 999, 65_534, last - 1, last];
            for id in others.into_iter().filter(|id| ![owner, uid].contains(id)) {
                assert_eq!(seen(&map, id), [id], "{owner} {uid}");
            }
            assert_eq!((seen(&map, owner), seen(&map, uid)), (vec![uid], vec![owner]));
            assert_eq!(seen(&map, u32::MAX), []);
        }
        assert_eq!(seen(&exchange(7, 7), 7), [7]);
    }

    #[test]
    fn a_directory_of_another_user_is_mapped_as_root_where_its_file_system_allows_it() {
        if !sys::is_root() {
            return;
        }
        assert!(sys::passes_in_child(|| {
            // SAFETY: no memory is passed.
            sys::check(unsafe { libc::unshare(libc::CLONE_NEWNS) }).unwrap();
            crate::mounts::make_private().unwrap();
            let place = std::env::temp_dir().join(format!("keeper-owner-{}", std::process::id()));
            std::fs::create_dir(&place).unwrap();
            let at = sys::c_string(place.as_os_str()).unwrap();
            let options = c"uid=1000,gid=100,mode=700";
            crate::mounts::mount(Some(c"tmpfs"), &at, Some(c"tmpfs"), 0, Some(options)).unwrap();
            let owner = BindOwner { uid: 1000, gid: Some(100) };
            let source = sys::open_path(place.as_os_str()).unwrap();
            let mut maps = OwnerMaps::new(70_000);
            for (access, errno) in [(MountAccess::ReadOnly, Some(libc::EROFS)), (MountAccess::Writable, None)]
            {
                let tree = maps.clone_mapped(source.as_fd(), owner, access).unwrap();
                let dir = sys::open_at(tree.as_fd(), c".", libc::O_RDONLY | libc::O_DIRECTORY, 0).unwrap();
                let found = sys::stat(dir.as_fd()).unwrap();
                assert_eq!((found.st_uid, found.st_gid), (70_000, 70_000));
                let made = crate::confine::as_user(70_000, || sys::mkdir_at(dir.as_fd(), c"new", 0o755));
                let made = made.unwrap();
                assert_eq!(made.err().and_then(|error| error.raw_os_error()), errno);
            }
            assert_eq!(maps.made.len(), 1);
            let found = sys::open_path(place.join("new").as_os_str()).and_then(|new| sys::stat(new.as_fd()));
            let found = found.unwrap();
            assert_eq!((found.st_uid, found.st_gid), (1000, 100));
            crate::binds::unmount(&place);
            std::fs::remove_dir(&place).unwrap();
        }));
    }
}
