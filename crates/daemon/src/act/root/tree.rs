//! Creates and removes directories and files of an agent's root. What a sandbox left there is not trusted: links are never
//! followed, and trees of any depth and mode can be removed.

use std::ffi::CStr;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, chmodat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

use super::RootError;

/// Creates a directory with this owner. Anything else at this path is removed first.
pub(super) fn own_dir(path: &Path, uid: Option<u32>) -> Result<(), RootError> {
    let failed = |cause| RootError::Io { path: path.to_owned(), cause };
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => {
            fs::remove_file(path).map_err(failed)?;
            fs::DirBuilder::new().mode(0o755).create(path).map_err(failed)?;
        }
        Err(_) => fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(failed)?,
    }
    // The daemon may have been started with a strict umask.
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    match uid {
        Some(uid) => std::os::unix::fs::lchown(path, Some(uid), Some(uid)).map_err(failed),
        None => Ok(()),
    }
}

/// Removes a file, a link or a tree. A missing path is a success.
pub(super) fn clear(path: &Path) -> Result<(), RootError> {
    let removed = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
        Ok(found) if found.is_dir() => remove_tree(path),
        Ok(_) => fs::remove_file(path),
    };
    removed.map_err(|cause| RootError::Io { path: path.to_owned(), cause })
}

/// Removes a tree of any depth, with any names and modes, with two open descriptors: each directory below a child of the top
/// is moved to the top, so that the recursion is never deeper than two levels. Links are never followed.
fn remove_tree(path: &Path) -> io::Result<()> {
    let top = open_dir(rustix::fs::CWD, path)?;
    let mut moved = 0_u64;
    loop {
        let mut found = false;
        for entry in Dir::read_from(&top)? {
            let entry = entry?;
            let name = entry.file_name();
            if is_dots(name) {
                continue;
            }
            found = true;
            if !is_dir(&top, name)? {
                unlinkat(&top, name, AtFlags::empty())?;
                continue;
            }
            let child = open_dir(&top, name)?;
            empty_into(&child, &top, &mut moved)?;
            match unlinkat(&top, name, AtFlags::REMOVEDIR) {
                // Removing entries during the listing may skip some. The next round finds them.
                Ok(()) | Err(Errno::NOTEMPTY) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if !found {
            return fs::remove_dir(path);
        }
    }
}

/// Removes the files of a directory and moves its directories to the top.
fn empty_into(child: &OwnedFd, top: &OwnedFd, moved: &mut u64) -> io::Result<()> {
    for entry in Dir::read_from(child)? {
        let entry = entry?;
        let name = entry.file_name();
        if is_dots(name) {
            continue;
        }
        if !is_dir(child, name)? {
            unlinkat(child, name, AtFlags::empty())?;
            continue;
        }
        // Moving a directory changes its `..`, which needs write permission on it.
        make_mine(child, name)?;
        loop {
            *moved += 1;
            match renameat(child, name, top, format!(".removed-{moved}")) {
                Ok(()) => break,
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

fn is_dir(dir: &OwnedFd, name: &CStr) -> io::Result<bool> {
    let found = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(found.st_mode).is_dir())
}

/// Makes a directory readable for its owner, and opens it.
fn open_dir<P: rustix::path::Arg + Copy>(dir: impl AsFd, name: P) -> io::Result<OwnedFd> {
    make_mine(&dir, name)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(dir, name, flags, Mode::empty())?)
}

/// Gives the owner all rights. Programs leave directories that their owner cannot enter or change.
fn make_mine<P: rustix::path::Arg + Copy>(dir: impl AsFd, name: P) -> io::Result<()> {
    Ok(chmodat(dir, name, Mode::RWXU, AtFlags::empty())?)
}

/// Creates a link. Anything else at this path is removed first.
pub(super) fn link(to: &Path, path: &Path) -> Result<(), RootError> {
    clear(path)?;
    std::os::unix::fs::symlink(to, path).map_err(|cause| RootError::Io { path: path.to_owned(), cause })
}

/// Creates a new file. Anything else at this path is removed first and never written to.
pub(super) fn put(path: &Path, bytes: &[u8]) -> Result<(), RootError> {
    put_with_mode(path, bytes, 0o644)
}

/// A file that can be executed.
pub(super) fn put_script(path: &Path, text: &str) -> Result<(), RootError> {
    put_with_mode(path, text.as_bytes(), 0o755)
}

fn put_with_mode(path: &Path, bytes: &[u8], mode: u32) -> Result<(), RootError> {
    let failed = |cause| RootError::Io { path: path.to_owned(), cause };
    clear(path)?;
    let mut file = fs::File::options().write(true).create_new(true).open(path).map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    file.set_permissions(fs::Permissions::from_mode(mode)).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_without_permissions_is_removed_and_link_targets_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, other) = (dir.path().join("tree"), dir.path().join("other"));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(tree.join("a/b/file"), "x").unwrap();
        fs::write(other.join("kept"), "x").unwrap();
        std::os::unix::fs::symlink(&other, tree.join("a/link")).unwrap();
        fs::set_permissions(tree.join("a/b"), fs::Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(tree.join("a"), fs::Permissions::from_mode(0o500)).unwrap();
        clear(&tree).unwrap();
        assert!(!tree.exists() && other.join("kept").exists());
    }

    #[test]
    fn a_tree_deeper_than_any_path_or_stack_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let mut at = open_dir(rustix::fs::CWD, &tree).unwrap();
        for _ in 0..20_000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = open_dir(&at, "d").unwrap();
        }
        drop(at);
        clear(&tree).unwrap();
        assert!(!tree.exists());
    }
}
