//! Which parts of the host a sandbox without a root of its own does not see.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use lodge_link::Bind;

use crate::fence::is_top;

/// Where hosts keep sockets, homes and secrets of others.
const ALWAYS: [&str; 3] = ["/run", "/home", "/root"];

/// Where programs put what they need for a while: each sandbox has its own.
const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];

/// Whether a mask must be writable.
pub(crate) fn is_temporary(mask: &Path) -> bool {
    TEMPORARY.iter().any(|path| Path::new(path).canonicalize().is_ok_and(|path| path == mask))
}

/// The directories to mask, none beneath another, unless that one must be writable.
pub(crate) fn to_hide(state_dir: &Path) -> Vec<PathBuf> {
    let mut wanted: Vec<PathBuf> = ALWAYS.iter().chain(&TEMPORARY).map(PathBuf::from).collect();
    wanted.push(cover(state_dir));
    wanted.extend(own_home());
    let mut found: Vec<PathBuf> = wanted
        .iter()
        .filter_map(|path| path.canonicalize().ok())
        .filter(|path| path.is_dir() && !is_top(path))
        .collect();
    found.sort();
    // Sorted, a directory comes before everything beneath it.
    let mut masks: Vec<PathBuf> = Vec::new();
    for path in found {
        if !masks.iter().any(|mask| path == *mask || (path.starts_with(mask) && !is_temporary(mask))) {
            masks.push(path);
        }
    }
    masks
}

/// The state directory, or its highest ancestor that a sandbox's own user could not pass through.
fn cover(state_dir: &Path) -> PathBuf {
    let mut ancestors: Vec<&Path> = state_dir.ancestors().collect();
    ancestors.reverse();
    let closed = ancestors.iter().find(|path| {
        let open_to_all = |mode: u32| mode & 0o001 != 0;
        !is_top(path) && path.metadata().is_ok_and(|meta| !open_to_all(meta.permissions().mode()))
    });
    closed.map_or_else(|| state_dir.to_owned(), |path| path.to_path_buf())
}

/// The home of the user who runs the daemon, wherever it lies. One that is not his own is a place of the host's.
fn own_home() -> Option<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let home = home_in(&std::fs::read_to_string("/etc/passwd").ok()?, uid)?;
    home.metadata().is_ok_and(|meta| meta.uid() == uid).then_some(home)
}

fn home_in(passwd: &str, uid: u32) -> Option<PathBuf> {
    // The first is whom the host takes.
    let mut homes = passwd.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let is_his = fields.get(2).and_then(|field| field.parse().ok()) == Some(uid);
        fields.get(5).filter(|home| is_his && home.starts_with('/')).map(PathBuf::from)
    });
    homes.next()
}

/// Names resolve by a file that many hosts keep beneath `/run`. `own` is the sandbox's, if it has one.
pub(crate) fn resolver(own: Option<&Path>) -> Option<Bind> {
    let path = Path::new("/etc/resolv.conf").canonicalize().ok()?;
    if let Some(own) = own {
        return Some(Bind::read_only(own.to_owned(), path));
    }
    let hidden = ALWAYS.iter().any(|mask| path.starts_with(mask));
    hidden.then(|| Bind::read_only(path.clone(), path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_masked_twice_and_the_state_directory_is_always_beneath_a_mask() {
        let dir = std::env::temp_dir().join(format!("keeper-masks-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let dir = dir.canonicalize().unwrap();
        let masks = to_hide(&dir);
        assert!(masks.iter().any(|mask| dir.starts_with(mask)), "{masks:?}");
        for (index, mask) in masks.iter().enumerate() {
            let others = masks.iter().enumerate().filter(|(other, _)| *other != index);
            let others = others.filter(|(_, other)| !is_temporary(other));
            assert!(others.into_iter().all(|(_, other)| !mask.starts_with(other)), "{masks:?}");
        }
        std::fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn a_home_is_found_by_its_user() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\nbroken\nann:x:1000:1000:Ann:/data/ann:/bin/sh\nx:x:7:7::rel:/\n";
        assert_eq!(home_in(passwd, 1000), Some(PathBuf::from("/data/ann")));
        assert_eq!((home_in(passwd, 7), home_in(passwd, 8)), (None, None));
    }

    #[test]
    fn an_ancestor_closed_to_others_is_masked_instead() {
        let top = std::env::temp_dir().join(format!("keeper-closed-{}", std::process::id()));
        let state = top.join("state");
        std::fs::create_dir_all(&state).unwrap();
        std::fs::set_permissions(&top, std::fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(cover(&state.canonicalize().unwrap()), top.canonicalize().unwrap());
        std::fs::remove_dir_all(&top).unwrap();
    }
}
