//! Output that is kept whole for the agent: moved from an exec's directory into the agent's root.
//!
//! The agent owns the root, so it may contain anything: links are not followed, directories of ours that are something
//! else are replaced, and a file is only moved into place, never written. A move is idempotent: a missing source was
//! moved before.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;

use lodge_link::EXEC_DIR;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fchown, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use super::SystemExecutor;
use super::evidence::open_beneath;
use crate::error::SandboxReadError;
use crate::output::{ExecStream, KEPT_DIR, KeepRules, kept_name};

const OUTPUT: &str = "captured output";
/// Most entries that are looked at when room is made.
const ENTRIES_MAX: usize = 16_384;

impl SystemExecutor {
    pub(super) fn move_output(
        &self,
        sandbox: &str,
        exec: &str,
        keeping: &KeepRules<'_>,
    ) -> Result<(), SandboxReadError> {
        let mut kept = Vec::new();
        for stream in [ExecStream::Stdout, ExecStream::Stderr] {
            let file = match self.output(sandbox, exec, stream) {
                Ok(file) => file,
                // Moved before, or never captured.
                Err(SandboxReadError::Absent { .. }) => continue,
                Err(error) => return Err(error),
            };
            let len = file.metadata().map_err(failed)?.len();
            if len <= keeping.more_than {
                continue;
            }
            let claim = format!("{EXEC_DIR}/{exec}");
            let from =
                open_beneath(&self.sandbox_dir(sandbox), claim.as_ref(), OFlags::DIRECTORY | OFlags::RDONLY);
            let place = open_place(keeping).map_err(failed)?;
            let name = kept_name(exec, stream);
            put(&file, &from.map_err(failed)?, &place, (stream, &name), keeping.uid).map_err(failed)?;
            kept.push(name);
        }
        if kept.is_empty() {
            return Ok(());
        }
        open_place(keeping).and_then(|place| make_room(&place, keeping, &kept)).map_err(failed)
    }
}

fn failed(cause: io::Error) -> SandboxReadError {
    SandboxReadError::Read { what: OUTPUT, cause }
}

/// The directory of kept output, made if it is not there, or is not one.
fn open_place(keeping: &KeepRules<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = rustix::fs::open(keeping.root, flags, Mode::empty())?;
    for part in KEPT_DIR {
        at = match openat(&at, part, flags, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                match unlinkat(&at, part, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(errno.into()),
                }
                mkdirat(&at, part, Mode::from_raw_mode(0o755))?;
                let made = openat(&at, part, flags, Mode::empty())?;
                if let Some(uid) = keeping.uid {
                    fchown(&made, Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)))?;
                }
                made
            }
            Err(errno) => return Err(errno.into()),
        };
    }
    Ok(at)
}

/// Moves a stream into place. It has the right owner from the start.
fn put(
    file: &File,
    from: &File,
    place: &OwnedFd,
    (stream, name): (ExecStream, &str),
    uid: Option<u32>,
) -> io::Result<()> {
    give_to_user(file, uid)?;
    match renameat(from, stream.file_name(), place, name) {
        Ok(()) => Ok(()),
        // Roots may lie on another file system.
        Err(Errno::XDEV) => {
            copy(file, place, name, uid)?;
            Ok(unlinkat(from, stream.file_name(), AtFlags::empty())?)
        }
        Err(errno) => Err(errno.into()),
    }
}

fn give_to_user(file: &File, uid: Option<u32>) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(0o644))?;
    match uid {
        Some(uid) => Ok(fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)))?),
        None => Ok(()),
    }
}

fn copy(mut file: &File, place: &OwnedFd, name: &str, uid: Option<u32>) -> io::Result<()> {
    let temporary = format!(".{name}");
    match unlinkat(place, temporary.as_str(), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut copy = File::from(openat(place, temporary.as_str(), flags, Mode::from_raw_mode(0o600))?);
    io::copy(&mut file, &mut copy)?;
    give_to_user(&copy, uid)?;
    Ok(renameat(place, temporary.as_str(), place, name)?)
}

/// Removes what is more than may be kept, the oldest first; what was kept just now goes last.
fn make_room(place: &OwnedFd, keeping: &KeepRules<'_>, newest: &[String]) -> io::Result<()> {
    let mut found = Vec::new();
    for entry in Dir::read_from(place)?.take(ENTRIES_MAX) {
        let entry = entry?;
        let Ok(stat) = statat(place, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if FileType::from_raw_mode(stat.st_mode).is_dir() {
            continue;
        }
        let is_newest = newest.iter().any(|name| name.as_bytes() == entry.file_name().to_bytes());
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        found.push((is_newest, stat.st_mtime, bytes, entry.file_name().to_owned()));
    }
    found.sort_by(|a, b| (b.0, b.1, &b.3).cmp(&(a.0, a.1, &a.3)));
    let mut bytes_kept = 0_u64;
    for (index, (is_newest, _, bytes, name)) in found.iter().enumerate() {
        bytes_kept = bytes_kept.saturating_add(*bytes);
        if !is_newest && (index >= keeping.files_max || bytes_kept > keeping.bytes_max) {
            match unlinkat(place, name.as_c_str(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    struct KeptOutputTest {
        dir: tempfile::TempDir,
        host: SystemExecutor,
        root: PathBuf,
    }

    impl KeptOutputTest {
        fn new() -> KeptOutputTest {
            let dir = tempfile::tempdir().unwrap();
            let host = SystemExecutor::open(&dir.path().join("state"), &b"keeper"[..]).unwrap();
            let root = dir.path().join("state/agents/a");
            fs::create_dir_all(&root).unwrap();
            KeptOutputTest { dir, host, root }
        }

        fn exec(&self, exec: &str, stdout: &str) {
            let dir = self.dir.path().join("state/run/box/exec").join(exec);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("stdout"), stdout).unwrap();
            fs::write(dir.join("stderr"), "x").unwrap();
        }

        fn keep(&self, exec: &str, files_max: usize, bytes_max: u64) -> Result<(), SandboxReadError> {
            let keeping = KeepRules { root: &self.root, uid: None, more_than: 4, files_max, bytes_max };
            self.host.move_output("box", exec, &keeping)
        }

        fn kept(&self) -> Vec<String> {
            let entries = fs::read_dir(self.root.join("var/log/tools")).into_iter().flatten().flatten();
            let mut names: Vec<String> =
                entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    #[test]
    fn a_long_stream_is_moved_once_and_a_short_one_stays() {
        let world = KeptOutputTest::new();
        world.exec("e1", "long enough");
        world.keep("e1", 9, 99).unwrap();
        world.keep("e1", 9, 99).unwrap();
        assert_eq!(world.kept(), ["e1.stdout"]);
        assert_eq!(fs::read_to_string(world.root.join("var/log/tools/e1.stdout")).unwrap(), "long enough");
        assert!(world.dir.path().join("state/run/box/exec/e1/stderr").exists());
    }

    #[test]
    fn links_planted_on_the_way_lead_nowhere() {
        let world = KeptOutputTest::new();
        let elsewhere = world.dir.path().join("elsewhere");
        fs::create_dir_all(elsewhere.join("tools")).unwrap();
        fs::create_dir(world.root.join("var")).unwrap();
        symlink(&elsewhere, world.root.join("var/log")).unwrap();
        world.exec("e1", "long enough");
        world.keep("e1", 9, 99).unwrap();
        assert_eq!(world.kept(), ["e1.stdout"]);
        fs::write(elsewhere.join("secret"), "secret").unwrap();
        symlink(elsewhere.join("secret"), world.root.join("var/log/tools/e2.stdout")).unwrap();
        world.exec("e2", "also long");
        world.keep("e2", 9, 99).unwrap();
        assert_eq!(fs::read_to_string(elsewhere.join("secret")).unwrap(), "secret");
        assert!(fs::read_dir(elsewhere.join("tools")).unwrap().next().is_none());
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many_or_too_much_and_the_newest_never() {
        let world = KeptOutputTest::new();
        for number in 1..=4 {
            let exec = format!("e{number}");
            world.exec(&exec, "0123456789");
            world.keep(&exec, 2, 1000).unwrap();
        }
        assert_eq!(world.kept(), ["e3.stdout", "e4.stdout"]);
        world.exec("e5", "0123456789");
        world.keep("e5", 9, 5).unwrap();
        assert_eq!(world.kept(), ["e5.stdout"]);
    }
}
