//! Walks directories in the order of names, without following links.

use std::fs::{self, DirEntry, FileType};
use std::io;
use std::path::{Path, PathBuf};

/// Directories that are full of what other programs made. They are named and not entered, unless a call starts in one.
const NOT_ENTERED: [&str; 8] =
    [".git", ".hg", ".svn", "node_modules", "target", "__pycache__", ".venv", ".tox"];
/// The deepest directory that is entered.
const DEPTH_MAX: usize = 64;

/// Something that was found in a directory.
#[derive(Debug)]
pub(super) struct WalkEntry {
    pub(super) path: PathBuf,
    pub(super) depth: usize,
    pub(super) kind: EntryKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryKind {
    File,
    Directory,
    /// It is in [`NOT_ENTERED`].
    Skipped,
    Link,
    Other,
    /// It could not be listed.
    Unreadable,
}

/// Everything below a directory, depth first.
#[derive(Debug)]
pub(super) struct Walk {
    /// What is left, the next one last.
    left: Vec<WalkEntry>,
    depth_max: usize,
}

impl Walk {
    pub(super) fn of(dir: &Path, depth_max: usize) -> io::Result<Walk> {
        let mut walk = Walk { left: Vec::new(), depth_max: depth_max.min(DEPTH_MAX) };
        walk.enter(dir, 1)?;
        Ok(walk)
    }

    fn enter(&mut self, dir: &Path, depth: usize) -> io::Result<()> {
        let mut entries: Vec<DirEntry> = fs::read_dir(dir)?.collect::<Result<_, _>>()?;
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.file_name()));
        // `.` is left out of paths that start there.
        let path =
            |entry: &DirEntry| if dir == Path::new(".") { entry.file_name().into() } else { entry.path() };
        self.left.extend(entries.iter().map(|entry| {
            let kind = entry.file_type().map_or(EntryKind::Unreadable, |kind| kind_of(kind, entry));
            WalkEntry { path: path(entry), depth, kind }
        }));
        Ok(())
    }
}

fn kind_of(kind: FileType, entry: &DirEntry) -> EntryKind {
    if kind.is_dir() && NOT_ENTERED.iter().any(|name| entry.file_name() == *name) {
        EntryKind::Skipped
    } else if kind.is_dir() {
        EntryKind::Directory
    } else if kind.is_file() {
        EntryKind::File
    } else if kind.is_symlink() {
        EntryKind::Link
    } else {
        EntryKind::Other
    }
}

impl Iterator for Walk {
    type Item = WalkEntry;

    fn next(&mut self) -> Option<WalkEntry> {
        let mut found = self.left.pop()?;
        if found.kind == EntryKind::Directory && found.depth < self.depth_max {
            let entered = self.enter(&found.path, found.depth + 1);
            if entered.is_err() {
                found.kind = EntryKind::Unreadable;
            }
        }
        Some(found)
    }
}
