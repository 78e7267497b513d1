//! Opens files of an untrusted directory.
//!
//! Owns: which files are opened and how much of them is read. Never: follows a link out of the directory, opens
//! anything but a regular file, or writes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::agentfile::bounds::{CONTEXT_MAX, FILE_MAX, LOAD_TOTAL_MAX};
use crate::agentfile::mistake::FileMistake;

pub(super) const FILE_NAME: &str = "Agentfile";

/// Keeps `open` from waiting for the other end, should a pipe have taken the place of a file, and from making a terminal
/// the daemon's: O_NONBLOCK and O_NOCTTY.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CAREFULLY: i32 = 0o4000 | 0o400;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CAREFULLY: i32 = 0x0004 | 0x2_0000;

/// What identifies a file, independent of its name.
pub(super) type FileId = (u64, u64);

/// An Agentfile on disk, and its directory.
pub(super) struct OpenedAgentfile {
    /// The file's own name.
    pub(super) name: String,
    pub(super) by: NamedBy,
    pub(super) source: Vec<u8>,
    pub(super) identity: FileId,
    pub(super) directory: SourceDirectory,
}

/// What of an Agentfile a path named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NamedBy {
    Directory,
    File,
}

/// Reads the Agentfile at `path`, which is its directory or the file itself. `named` is how messages call it.
pub(super) fn find(path: &Path, named: &str) -> Result<OpenedAgentfile, FileMistake> {
    let failed = |cause: io::Error| unreadable(named, &cause);
    let kind = fs::metadata(path).map_err(failed)?.file_type();
    if kind.is_dir() {
        let directory = SourceDirectory::open(path, named)?;
        let file = match directory.open_file(Path::new(FILE_NAME), || {}) {
            Err(FileMistake::Unreadable { .. }) if !path.join(FILE_NAME).exists() => {
                return Err(FileMistake::NoAgentfile { path: named.to_owned() });
            }
            other => other?,
        };
        return OpenedAgentfile::read(file, FILE_NAME.to_owned(), NamedBy::Directory, directory);
    }
    // Not opened: opening some devices has effects, and a FROM may lead to one.
    if !kind.is_file() {
        return Err(FileMistake::NotRegular { path: named.to_owned() });
    }
    // The person named this very file, so a link is followed; files that it names must still be in the directory.
    let file = open(path).map_err(failed)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().map_or(FILE_NAME.into(), |name| name.to_string_lossy()).into_owned();
    OpenedAgentfile::read(file, name, NamedBy::File, SourceDirectory::open(parent, named)?)
}

impl OpenedAgentfile {
    fn read(
        file: File,
        name: String,
        by: NamedBy,
        directory: SourceDirectory,
    ) -> Result<OpenedAgentfile, FileMistake> {
        let meta = file.metadata().map_err(|cause| unreadable(&name, &cause))?;
        let identity = (meta.dev(), meta.ino());
        let source = read_file(file, &name, FILE_MAX as u64 + 1)?;
        Ok(OpenedAgentfile { name, by, source, identity, directory })
    }
}

/// A directory whose files may be read, and no others.
#[derive(Debug)]
pub(super) struct SourceDirectory {
    root: PathBuf,
}

impl SourceDirectory {
    fn open(path: &Path, named: &str) -> Result<Self, FileMistake> {
        let root = fs::canonicalize(path).map_err(|cause| unreadable(named, &cause))?;
        Ok(Self { root })
    }

    /// Where a path that was written in this directory leads. It may lead out of it.
    pub(super) fn join(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    pub(super) fn read_text(&self, relative: &str, budget: &mut u64) -> Result<String, FileMistake> {
        String::from_utf8(self.read_within(relative, CONTEXT_MAX, budget)?)
            .map_err(|_| FileMistake::ContextNotUtf8 { path: relative.to_owned() })
    }

    /// Reads a file of at most `max` bytes and takes its size from the budget.
    pub(super) fn read_within(
        &self,
        relative: &str,
        max: u64,
        budget: &mut u64,
    ) -> Result<Vec<u8>, FileMistake> {
        let file = self.open_file(Path::new(relative), || {})?;
        let bytes = read_file(file, relative, max.min(*budget) + 1)?;
        let size = bytes.len() as u64;
        if size > max {
            return Err(FileMistake::TooLarge { path: relative.to_owned(), max });
        }
        *budget = budget
            .checked_sub(size)
            .ok_or_else(|| FileMistake::TotalTooLarge { path: relative.to_owned(), max: LOAD_TOTAL_MAX })?;
        Ok(bytes)
    }

    /// Opens a file below the directory. `between` runs after it was looked at and before it is opened.
    fn open_file(&self, relative: &Path, between: impl FnOnce()) -> Result<File, FileMistake> {
        let path = || relative.to_string_lossy().into_owned();
        let failed = |cause: io::Error| unreadable(&path(), &cause);
        let real = self.resolve(relative)?;
        if !fs::symlink_metadata(&real).map_err(failed)?.is_file() {
            return Err(FileMistake::NotRegular { path: path() });
        }
        between();
        let file = open(&real).map_err(failed)?;
        // Meanwhile a directory on the way may have become a link. What was opened must be what the name
        // leads to now, still inside.
        let again = self.resolve(relative)?;
        let (seen, opened) =
            (fs::symlink_metadata(&again).map_err(failed)?, file.metadata().map_err(failed)?);
        if (seen.dev(), seen.ino()) != (opened.dev(), opened.ino()) {
            return Err(FileMistake::Exchanged { path: path() });
        }
        Ok(file)
    }

    fn resolve(&self, relative: &Path) -> Result<PathBuf, FileMistake> {
        let path = || relative.to_string_lossy().into_owned();
        let real = fs::canonicalize(self.root.join(relative)).map_err(|cause| unreadable(&path(), &cause))?;
        if real.starts_with(&self.root) {
            return Ok(real);
        }
        Err(FileMistake::Outside { path: path(), target: real.to_string_lossy().into_owned() })
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(CAREFULLY).open(path)
}

fn read_file(file: File, named: &str, max: u64) -> Result<Vec<u8>, FileMistake> {
    let failed = |cause: io::Error| unreadable(named, &cause);
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(FileMistake::NotRegular { path: named.to_owned() });
    }
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn unreadable(path: &str, cause: &io::Error) -> FileMistake {
    let why = match cause.kind() {
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => cause.to_string(),
    };
    FileMistake::Unreadable { path: path.to_owned(), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_turned_into_a_link_while_loading_leads_nowhere_outside() {
        let base = std::env::temp_dir().join(format!("lodge-image-door-{}", std::process::id()));
        for place in ["root/door", "outside"] {
            fs::create_dir_all(base.join(place)).expect("create");
            fs::write(base.join(place).join("x"), b"x").expect("write");
        }
        let directory = SourceDirectory::open(&base.join("root"), "root").expect("open");
        let opened = directory.open_file(Path::new("door/x"), || {
            fs::rename(base.join("root/door"), base.join("root/was-door")).expect("rename");
            std::os::unix::fs::symlink(base.join("outside"), base.join("root/door")).expect("link");
        });
        fs::remove_dir_all(&base).expect("remove");
        assert_eq!(opened.expect_err("refused").code(), "agentfile.file_outside");
    }

    #[test]
    fn a_file_exchanged_while_loading_is_noticed() {
        let base = std::env::temp_dir().join(format!("lodge-image-exchange-{}", std::process::id()));
        fs::create_dir_all(&base).expect("create");
        fs::write(base.join("real"), b"1").expect("write");
        std::os::unix::fs::symlink("real", base.join("x")).expect("link");
        let directory = SourceDirectory::open(&base, "base").expect("open");
        let opened = directory.open_file(Path::new("x"), || {
            fs::write(base.join("new"), b"2").expect("write");
            fs::remove_file(base.join("x")).expect("unlink");
            std::os::unix::fs::symlink("new", base.join("x")).expect("link");
        });
        fs::remove_dir_all(&base).expect("remove");
        assert_eq!(opened.expect_err("refused").code(), "agentfile.file_exchanged");
    }
}
