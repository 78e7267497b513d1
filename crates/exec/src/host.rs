//! One host: the part of the state directory that belongs to keepers, and queries about them.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use lodge_link::{EXEC_DIR, Grouping, LOCK_FILE, Layer, descriptors, is_valid_id};
use rustix::fs::{Mode, OFlags};

use crate::cgroup::{CgroupRemoval, Cgroups, NewCgroup};
use crate::error::{HostError, RemoveError};
use crate::open_files::FileLimit;
use crate::programs::{ProgramImage, StoredProgram};
use crate::{lock, start};

/// The sandboxes of one state directory. There can be several in one process, as in tests.
#[derive(Debug)]
pub struct SandboxHost {
    pub(crate) state_dir: PathBuf,
    pub(crate) run: PathBuf,
    bin: PathBuf,
    pub(crate) keeper: StoredProgram,
    boot_id: String,
    pub(crate) cgroups: Cgroups,
    /// What keepers begin with. None: what this process has.
    pub(crate) file_limit: Option<FileLimit>,
}

impl SandboxHost {
    /// Opens the state directory's `run/` and `bin/`. The keeper is put there before the first one starts.
    pub fn open(state_dir: &Path, keeper: impl Into<ProgramImage>) -> Result<SandboxHost, HostError> {
        let prepare = |path: &Path| {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
            made.map_err(|cause| HostError::Prepare { path: path.to_owned(), cause })
        };
        prepare(state_dir)?;
        let canonical = state_dir.canonicalize();
        let state_dir =
            canonical.map_err(|cause| HostError::Prepare { path: state_dir.to_owned(), cause })?;
        let (run, bin) = (state_dir.join("run"), state_dir.join("bin"));
        prepare(&run)?;
        prepare(&bin)?;
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let boot_id = boot_id.map_err(|cause| HostError::NoBootId { cause })?.trim().to_owned();
        let keeper = StoredProgram::new(&bin, "keeper", keeper.into())?;
        let cgroups = Cgroups::of(&state_dir);
        Ok(SandboxHost { state_dir, run, bin, keeper, boot_id, cgroups, file_limit: None })
    }

    /// Lets keepers begin with this limit of open files. None: with this process's own.
    #[must_use]
    pub fn with_file_limit(self, limit: Option<FileLimit>) -> SandboxHost {
        SandboxHost { file_limit: limit, ..self }
    }

    /// A program that is stored as `bin/<name>-<digest>` when its path is asked for.
    pub fn program(&self, name: &str, program: impl Into<ProgramImage>) -> Result<StoredProgram, HostError> {
        StoredProgram::new(&self.bin, name, program.into())
    }

    pub(crate) fn sandbox_dir(&self, sandbox: &str) -> PathBuf {
        self.run.join(sandbox)
    }

    /// Names this boot of the host: what ran before it does not run any more.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// Tries each layer of the fence. Layers that could not even be tried are one that is missing.
    pub async fn probe(&self) -> Vec<Layer> {
        let failed = |why: String| vec![Layer { name: "probe".to_owned(), missing: Some(why) }];
        let mut command = match self.keeper.verified() {
            Ok(keeper) => keeper.command(),
            Err(error) => return failed(error.to_string()),
        };
        let (grouping, mut made) = start::grouping(&self.cgroups, "probe");
        command.arg("probe").env_clear().current_dir("/").stdin(std::process::Stdio::null());
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
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
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

    /// Whether a keeper has the sandbox's lock. The check does not disturb a keeper that starts.
    ///
    /// If the lock cannot be checked, it counts as taken: nothing may be revived on a guess.
    pub fn is_held(&self, sandbox: &str) -> bool {
        if !is_valid_id(sandbox) {
            return false;
        }
        match File::open(self.run.join(sandbox).join(LOCK_FILE)) {
            Ok(file) => lock::is_held(&file).unwrap_or(true),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Every sandbox that has a directory.
    pub fn sandboxes(&self) -> Vec<String> {
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

    /// Every exec of a sandbox that was claimed and not forgotten.
    pub fn execs(&self, sandbox: &str) -> Vec<String> {
        if !is_valid_id(sandbox) {
            return Vec::new();
        }
        let Ok(entries) = fs::read_dir(self.run.join(sandbox).join(EXEC_DIR)) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| is_valid_id(name)).collect();
        names.sort();
        names
    }

    /// Removes a sandbox's directory, unless a keeper holds it. Removing it twice is removing it once.
    pub fn remove(&self, sandbox: &str) -> Result<(), RemoveError> {
        let Some(held) = self.take(sandbox)? else { return Ok(()) };
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

    /// As the command of that name, for a sandbox without a keeper.
    pub fn forget(&self, sandbox: &str, exec: &str) -> Result<(), RemoveError> {
        if !is_valid_id(exec) {
            return Err(RemoveError::BadId { id: exec.to_owned() });
        }
        let Some(held) = self.take(sandbox)? else { return Ok(()) };
        let path = self.run.join(sandbox).join(EXEC_DIR).join(exec);
        let removed = fs::remove_dir_all(&path);
        drop(held);
        match removed {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(RemoveError::Remove { path, cause }),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Takes the place of a keeper, so that none can start. `None`: there is no such sandbox.
    fn take(&self, sandbox: &str) -> Result<Option<File>, RemoveError> {
        if !is_valid_id(sandbox) {
            return Err(RemoveError::BadId { id: sandbox.to_owned() });
        }
        let dir = self.run.join(sandbox);
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
}

fn layer(line: &str) -> Option<Layer> {
    let mut parts = line.splitn(3, '\t');
    let (name, state) = (parts.next()?, parts.next()?);
    let missing = (state != "ok").then(|| parts.next().unwrap_or("unknown").to_owned());
    Some(Layer { name: name.to_owned(), missing })
}
