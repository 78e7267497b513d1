//! The sandboxes of a state directory: which there are, what the host can do for them, and how they are removed.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;

use lodge_link::{BindOwner, EXEC_DIR, Grouping, LOCK_FILE, Layer, descriptors, is_valid_id};
use rustix::fs::{Mode, OFlags};

use super::cgroup::{CgroupRemoval, NewCgroup};
use super::{SystemExecutor, lock, start};
use crate::error::RemoveError;
use crate::spec::OwnerTrial;

impl SystemExecutor {
    pub(super) async fn probe_layers(&self) -> Vec<Layer> {
        let failed = |why: String| vec![Layer { name: "probe".to_owned(), missing: Some(why) }];
        let mut command = match self.keeper.verified() {
            Ok(keeper) => keeper.command(),
            Err(error) => return failed(error.to_string()),
        };
        let (grouping, mut made) = start::grouping(&self.cgroups, "probe");
        command.arg("probe").env_clear().current_dir("/").stdin(Stdio::null());
        match &grouping {
            Grouping::Cgroup { name } => command.args(["cgroup", name]),
            Grouping::None { why } => command.args(["none", why]),
        };
        let legacy = self.cgroups.make_legacy("probe");
        for (kind, path) in [("memory", &legacy.controllers.memory), ("pids", &legacy.controllers.pids)] {
            if let Some(path) = path {
                command.arg(kind).arg(path);
            }
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let fds: Vec<OwnedFd> = made.as_mut().and_then(NewCgroup::take_dir).into_iter().collect();
        start::give(&mut command, &fds, &[descriptors::CGROUP], self.file_limit);
        let output = async { start::spawn(&mut command).await?.wait_with_output().await };
        let output = output.await;
        match output {
            Ok(output) if output.status.success() => {
                String::from_utf8_lossy(&output.stdout).lines().filter_map(layer).collect()
            }
            Ok(output) => failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => failed(error.to_string()),
        }
    }

    /// Lets a keeper try it: that program has one thread, so it can make a user namespace.
    pub(super) async fn try_map(&self, path: &Path, owner: BindOwner) -> io::Result<OwnerTrial> {
        let keeper = self.keeper.verified().map_err(io::Error::other)?;
        let mut command = keeper.command();
        let gid = owner.gid.map_or_else(|| "-".to_owned(), |gid| gid.to_string());
        command.arg("map").arg(path).arg(owner.uid.to_string()).arg(gid).env_clear().current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        start::give(&mut command, &[], &[], self.file_limit);
        let output = start::spawn(&mut command).await?.wait_with_output().await?;
        match String::from_utf8_lossy(&output.stdout).trim() {
            "ok" => Ok(OwnerTrial::Works),
            errno => match errno.parse().ok() {
                Some(libc::EINVAL | libc::EPERM | libc::ENOSYS) => Ok(OwnerTrial::Unsupported),
                Some(errno) => Err(io::Error::from_raw_os_error(errno)),
                None => Err(io::Error::other("the program that tries it failed")),
            },
        }
    }

    pub(super) fn is_locked(&self, sandbox: &str) -> bool {
        if !is_valid_id(sandbox) {
            return false;
        }
        match File::open(self.run.join(sandbox).join(LOCK_FILE)) {
            Ok(file) => lock::is_held(&file).unwrap_or(true),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Every sandbox that has a directory.
    pub(super) fn listed(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(&self.run) else { return Vec::new() };
        let mut names: Vec<String> = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| is_valid_id(name))
            .collect();
        names.sort();
        names
    }

    /// Removes a sandbox's directory, unless a keeper holds it.
    pub(super) fn remove_dir(&self, sandbox: &str) -> Result<(), RemoveError> {
        let Some(held) = take(&self.run, sandbox)? else { return Ok(()) };
        let path = self.run.join(sandbox);
        match self.end_cgroups(sandbox) {
            Ok(CgroupRemoval::Gone) => {}
            Ok(CgroupRemoval::Dying | CgroupRemoval::InUse) => {
                return Err(RemoveError::Dying { sandbox: sandbox.to_owned() });
            }
            Err(cause) => return Err(RemoveError::Remove { path, cause }),
        }
        let removed = fs::remove_dir_all(&path);
        drop(held);
        match removed {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(RemoveError::Remove { path, cause }),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// On a blocking thread, as an exec may have written many files.
pub(super) async fn forget(run: &Path, sandbox: &str, exec: &str) -> Result<(), RemoveError> {
    if !is_valid_id(exec) {
        return Err(RemoveError::BadId { id: exec.to_owned() });
    }
    let (run, sandbox) = (run.to_owned(), sandbox.to_owned());
    let path = run.join(&sandbox).join(EXEC_DIR).join(exec);
    let claim = path.clone();
    let remove = move || {
        let Some(held) = take(&run, &sandbox)? else { return Ok(()) };
        let removed = fs::remove_dir_all(&claim);
        drop(held);
        match removed {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                Err(RemoveError::Remove { path: claim, cause })
            }
            Ok(()) | Err(_) => Ok(()),
        }
    };
    let removed = tokio::task::spawn_blocking(remove).await;
    removed.unwrap_or_else(|error| Err(RemoveError::Remove { path, cause: io::Error::other(error) }))
}

/// Takes the lock in place of a keeper, so that none can start. `None`: there is no such sandbox.
fn take(run: &Path, sandbox: &str) -> Result<Option<File>, RemoveError> {
    if !is_valid_id(sandbox) {
        return Err(RemoveError::BadId { id: sandbox.to_owned() });
    }
    let dir = run.join(sandbox);
    let path = dir.join(LOCK_FILE);
    let failed = |cause| RemoveError::Remove { path: path.clone(), cause };
    if !dir.is_dir() {
        return Ok(None);
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => File::from(fd),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(failed(errno.into())),
    };
    match lock::try_take(&file).map_err(failed)? {
        true => Ok(Some(file)),
        false => Err(RemoveError::Held { sandbox: sandbox.to_owned() }),
    }
}

fn layer(line: &str) -> Option<Layer> {
    let mut parts = line.splitn(3, '\t');
    let (name, state) = (parts.next()?, parts.next()?);
    let missing = (state != "ok").then(|| parts.next().unwrap_or("unknown").to_owned());
    Some(Layer { name: name.to_owned(), missing })
}
