//! The state directory: its layout, its lock, and the operator's credentials.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lodge_proto::state_dir::{StateDir, StateDirError, check_state_dir};

use crate::room;

/// How long what is left of a dead daemon may hold its lock, and the pause between two looks.
const REMAINS_MAX: Duration = Duration::from_secs(10);
const REMAINS_PAUSE: Duration = Duration::from_millis(2);

#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    #[error("another daemon has the state directory {} ({holder})", dir.display())]
    Taken { dir: PathBuf, holder: String },
    #[error("could not make {}", path.display())]
    Make {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("the state directory {} is not a directory", dir.display())]
    NotADirectory { dir: PathBuf },
    #[error(transparent)]
    Untrusted(#[from] StateDirError),
}

impl HomeError {
    pub fn hint(&self) -> String {
        match self {
            HomeError::Taken { .. } => "use that one, or give this one another --data-dir".to_owned(),
            HomeError::Make { .. } if self.is_full() => {
                "the disk is full: free space and start it again; acknowledged changes are safe".to_owned()
            }
            HomeError::NotADirectory { .. } => {
                "move it away, or set LODGE_HOME or `--data-dir` to a directory".to_owned()
            }
            HomeError::Make { .. } => {
                "check that the state directory exists or can be made, and that you own it".to_owned()
            }
            HomeError::Untrusted(error) => error.hint(),
        }
    }
}

impl HomeError {
    /// Whether there was no room on the disk for it.
    pub fn is_full(&self) -> bool {
        match self {
            HomeError::Make { cause, .. } => room::is_full(cause),
            HomeError::Taken { .. } | HomeError::NotADirectory { .. } | HomeError::Untrusted(_) => false,
        }
    }
}

/// A state directory that this process alone may change.
#[derive(Debug)]
pub struct Home {
    pub dir: PathBuf,
    lock: File,
}

impl Home {
    /// Makes the layout and takes the lock. Nothing else is touched by a daemon that loses, and nothing at all in a directory
    /// that another user could change.
    pub fn take(dir: &Path) -> Result<Home, HomeError> {
        let make = |path: &Path| {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)
                .map_err(|cause| HomeError::Make { path: path.to_owned(), cause })
        };
        let found = check_state_dir(dir)?;
        if std::fs::metadata(dir).is_ok_and(|found| !found.is_dir()) {
            return Err(HomeError::NotADirectory { dir: dir.to_owned() });
        }
        let missing: Vec<&Path> = dir.ancestors().take_while(|path| !path.exists()).collect();
        make(dir)?;
        keep_names(&missing).map_err(|cause| HomeError::Make { path: dir.to_owned(), cause })?;
        let found = if found == StateDir::Absent { check_state_dir(dir)? } else { found };
        let StateDir::Present(dir) = found else {
            let cause = std::io::ErrorKind::NotFound.into();
            return Err(HomeError::Make { path: dir.to_owned(), cause });
        };
        let path = dir.join("anchor.lock");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|cause| HomeError::Make { path: path.clone(), cause })?;
        take_lock(&mut lock, &dir, || std::thread::sleep(REMAINS_PAUSE))?;
        for part in ["agents", "logs", "run", "bin"] {
            make(&dir.join(part))?;
        }
        Ok(Home { dir, lock })
    }

    /// Writes the owner of the lock, for processes that fail to take it.
    pub fn sign(&mut self, epoch: u64) -> Result<(), HomeError> {
        let words = format!("pid {}, epoch {epoch}\n", std::process::id());
        let signed = self
            .lock
            .set_len(0)
            .and_then(|()| self.lock.rewind())
            .and_then(|()| self.lock.write_all(words.as_bytes()));
        signed.map_err(|cause| HomeError::Make { path: self.dir.join("anchor.lock"), cause })
    }

    pub fn database(&self) -> PathBuf {
        self.dir.join("daemon.db")
    }

    /// Replaces a small private file as a whole, through a flushed temporary one.
    pub fn put_private(&self, name: &str, bytes: &[u8]) -> Result<(), HomeError> {
        let path = self.dir.join(name);
        let temporary = self.dir.join(format!(".{name}.new"));
        let put = || {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            std::fs::rename(&temporary, &path)
        };
        put().map_err(|cause| {
            // An incomplete file is useless. The first error is the one to report.
            drop(std::fs::remove_file(&temporary));
            HomeError::Make { path: path.clone(), cause }
        })
    }
}

/// Takes the lock, unless a daemon that lives has it. Pauses between two looks.
fn take_lock(lock: &mut File, dir: &Path, mut pause: impl FnMut()) -> Result<(), HomeError> {
    let until = Instant::now() + REMAINS_MAX;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(cause)) => {
                return Err(HomeError::Make { path: dir.join("anchor.lock"), cause });
            }
        }
        let mut holder = String::new();
        let read = lock.rewind().and_then(|()| lock.read_to_string(&mut holder));
        // What a killed daemon was just starting has the lock, too, until it becomes a program of its own.
        if read.is_ok() && pid_in(&holder).is_some_and(lodge_exec::is_over) && Instant::now() < until {
            pause();
            continue;
        }
        let told = read.is_ok() && !holder.trim().is_empty();
        let holder = if told { holder.trim().to_owned() } else { "it is starting".to_owned() };
        return Err(HomeError::Taken { dir: dir.to_owned(), holder });
    }
}

/// Who signed the lock, as [`Home::sign`] writes it.
fn pid_in(signed: &str) -> Option<u32> {
    signed.strip_prefix("pid ")?.split(',').next()?.parse().ok()
}

/// Flushes the names of new directories, so that a power loss cannot take all that is kept below them.
fn keep_names(made: &[&Path]) -> std::io::Result<()> {
    for parent in made.iter().filter_map(|path| path.parent()) {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        match File::open(parent) {
            Ok(parent) => parent.sync_all()?,
            // One that may be searched and not read cannot be flushed by us.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_second_daemon_reports_who_has_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        let mut first = Home::take(&home).unwrap();
        first.sign(3).unwrap();
        let refused = Home::take(&home).unwrap_err();
        assert!(refused.to_string().contains(&format!("pid {}, epoch 3", std::process::id())), "{refused}");
        drop(first);
        assert!(Home::take(&home).is_ok());
    }

    #[test]
    fn a_lock_that_only_the_remains_of_a_dead_daemon_have_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        drop(Home::take(&home).unwrap());
        let open = || File::options().read(true).write(true).open(home.join("anchor.lock")).unwrap();
        // No process has such a number.
        let signed = format!("pid {}, epoch 3\n", i32::MAX);
        std::fs::write(home.join("anchor.lock"), signed).unwrap();
        let remains = open();
        remains.lock().unwrap();
        let mut looks = 0;
        // They live until the third look.
        let pause = || {
            looks += 1;
            if looks == 3 {
                remains.unlock().unwrap();
            }
        };
        assert!(take_lock(&mut open(), &home, pause).is_ok());
        assert_eq!(looks, 3);
    }

    #[test]
    fn a_directory_that_others_may_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        std::fs::create_dir(&home).unwrap();
        std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o777)).unwrap();
        let refused = Home::take(&home).unwrap_err();
        assert!(matches!(refused, HomeError::Untrusted(StateDirError::Writable { .. })), "{refused}");
        assert_eq!(std::fs::read_dir(&home).unwrap().count(), 0);
    }
}
