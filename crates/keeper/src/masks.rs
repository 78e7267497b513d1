//! Which parts of the host a sandbox does not see.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use lodge_link::Bind;

use crate::fence::is_top;

/// Where hosts keep sockets, homes and secrets of others.
const ALWAYS: [&str; 3] = ["/run", "/home", "/root"];

/// The directories to lay a mask over, none beneath another.
pub(crate) fn to_hide(state_dir: &Path) -> Vec<PathBuf> {
    let mut wanted: Vec<PathBuf> = ALWAYS.iter().map(PathBuf::from).collect();
    wanted.push(cover(state_dir));
    let mut found: Vec<PathBuf> = wanted
        .iter()
        .filter_map(|path| path.canonicalize().ok())
        .filter(|path| path.is_dir() && !is_top(path))
        .collect();
    found.sort();
    // Sorted, a directory comes before everything beneath it.
    let mut masks: Vec<PathBuf> = Vec::new();
    for path in found {
        if !masks.iter().any(|mask| path.starts_with(mask)) {
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

/// Names resolve by a file that many hosts keep beneath `/run`.
pub(crate) fn resolver() -> Option<Bind> {
    let path = Path::new("/etc/resolv.conf").canonicalize().ok()?;
    let hidden = ALWAYS.iter().any(|mask| path.starts_with(mask));
    hidden.then(|| Bind { source: path.clone(), target: path, read_only: true })
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
            assert!(others.into_iter().all(|(_, other)| !mask.starts_with(other)), "{masks:?}");
        }
        std::fs::remove_dir(&dir).unwrap();
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
