//! Starting a keeper: detached, with a clean environment and exactly the descriptors it is meant to have.

use std::fs::{DirBuilder, File};
use std::io::{self, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::process::Stdio;
use std::time::Duration;

use lodge_link::{Controllers, Grouping, KeeperSpec, SOCKET_FILE, descriptors, is_valid_id, limits, ready};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::process::Command;

use super::SystemExecutor;
use super::cgroup::{CgroupRemoval, Cgroups, NewCgroup};
use crate::error::StartError;
use crate::open_files::FileLimit;
use crate::programs::VerifiedProgram;
use crate::spec::SandboxSpec;

/// How long a keeper may take until it can be dialled. It may have to wait for the tree of a dead one.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// Between two attempts to run a program that another process still has open for writing.
const BUSY_PAUSE: Duration = Duration::from_millis(2);
const BUSY_RETRIES_MAX: u32 = 200;
/// Between two looks at what another keeper is about to open, or at its end.
const OTHER_PAUSE: Duration = Duration::from_millis(5);
/// Beyond the standard ones, where nothing is given.
const FIRST_UNEXPECTED: RawFd = 3;
/// Descriptors are first moved out of the way of those that a keeper expects.
const OUT_OF_THE_WAY: RawFd = 16;

/// The result of waiting for a keeper that another start began.
enum OtherKeeper {
    Listens,
    Ended,
}

/// Whether processes of an earlier keeper are gone.
enum OldProcesses {
    Gone,
    Lives,
}

/// What a keeper that starts says about it.
enum StartAnnouncement {
    Listening,
    Held,
    Failed(String),
    Nothing,
}

impl SystemExecutor {
    pub(super) async fn start_keeper(&self, spec: &SandboxSpec) -> Result<(), StartError> {
        let sandbox = || spec.id.clone();
        if !is_valid_id(&spec.id) {
            return Err(StartError::BadId { sandbox: sandbox() });
        }
        if rustix::process::geteuid().is_root() && spec.uid.is_none_or(|uid| uid == 0) {
            return Err(StartError::NoUser { sandbox: sandbox() });
        }
        let started = async {
            loop {
                if self.is_locked(&spec.id) {
                    match self.await_other_keeper(spec).await? {
                        OtherKeeper::Listens => return Ok(()),
                        OtherKeeper::Ended => {}
                    }
                }
                match self.launch(spec).await? {
                    StartAnnouncement::Listening => return Ok(()),
                    StartAnnouncement::Held => {}
                    StartAnnouncement::Failed(why) => {
                        return Err(StartError::GaveUp { sandbox: sandbox(), why });
                    }
                    StartAnnouncement::Nothing => return Err(StartError::Died { sandbox: sandbox() }),
                }
            }
        };
        let timed = tokio::time::timeout(READY_WITHIN, started).await;
        timed.unwrap_or(Err(StartError::NotReady { sandbox: sandbox(), waited_s: READY_WITHIN.as_secs() }))
    }

    async fn launch(&self, spec: &SandboxSpec) -> Result<StartAnnouncement, StartError> {
        let prepare = |cause| StartError::Prepare { sandbox: spec.id.clone(), cause };
        let path = self.run.join(&spec.id);
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(prepare)?;
        let dir = File::open(&path).map_err(prepare)?;
        let log = File::options().append(true).create(true).mode(0o600).open(&spec.log);
        let log = log.map_err(|cause| StartError::Log { path: spec.log.clone(), cause })?;
        match self.await_old_cgroups(&spec.id).await? {
            OldProcesses::Gone => {}
            OldProcesses::Lives => return Ok(StartAnnouncement::Held),
        }
        // Dropped last, however this ends: by then its descriptors are closed, and only a keeper can have it.
        let (grouping, mut made) = grouping(&self.cgroups, &spec.id);
        let cgroup = made.as_mut().and_then(NewCgroup::take_dir);
        let legacy = self.cgroups.make_legacy(&spec.id);
        let spec_file = self.spec_file(spec, grouping, legacy.controllers.clone())?;
        let (announced, announce) = pipe_pair().map_err(prepare)?;
        let given = [dir.into(), spec_file.into(), log.into(), announce].into_iter().chain(cgroup);
        let mut moved = Vec::new();
        for fd in given {
            moved.push(move_above_targets(fd).map_err(prepare)?);
        }
        let keeper = self.keeper.verified().map_err(|cause| StartError::NotStored { cause })?;
        let no_keeper = |cause| StartError::NoKeeper { path: keeper.path().to_owned(), cause };
        let mut child = run_keeper(&keeper, &moved, self.file_limit).await.map_err(no_keeper)?;
        drop(moved);
        let mut message = Vec::new();
        let mut reader = pipe::Receiver::from_owned_fd(announced).map_err(prepare)?.take(4096);
        reader.read_to_end(&mut message).await.map_err(prepare)?;
        // The first process hands over to pid 1 of the new namespace and ends, or ends having failed.
        child.wait().await.map_err(no_keeper)?;
        Ok(match message.split_first() {
            Some((&ready::LISTENING, _)) => StartAnnouncement::Listening,
            Some((&ready::HELD, _)) => StartAnnouncement::Held,
            Some((_, why)) => StartAnnouncement::Failed(String::from_utf8_lossy(why).into_owned()),
            None => StartAnnouncement::Nothing,
        })
    }

    /// Nothing is revived while a process of the last sandbox is alive. The caller sets the time limit.
    async fn await_old_cgroups(&self, sandbox: &str) -> Result<OldProcesses, StartError> {
        loop {
            let ending = self.end_cgroups(sandbox);
            match ending.map_err(|cause| StartError::OldTree { sandbox: sandbox.to_owned(), cause })? {
                CgroupRemoval::Gone => return Ok(OldProcesses::Gone),
                // Cgroups of the first version are not locked by their keeper: they look as if they were dying.
                CgroupRemoval::InUse | CgroupRemoval::Dying if self.is_locked(sandbox) => {
                    return Ok(OldProcesses::Lives);
                }
                // A keeper that is about to die or to start.
                CgroupRemoval::InUse | CgroupRemoval::Dying => tokio::time::sleep(OTHER_PAUSE).await,
            }
        }
    }

    /// The spec in memory, on a descriptor: the secret is in no argument and no file.
    fn spec_file(
        &self,
        spec: &SandboxSpec,
        grouping: Grouping,
        controllers: Controllers,
    ) -> Result<File, StartError> {
        let prepare = |cause| StartError::Prepare { sandbox: spec.id.clone(), cause };
        let bytes = KeeperSpec {
            sandbox: spec.id.clone(),
            incarnation: spec.incarnation,
            secret: spec.secret.clone(),
            state_dir: self.state_dir.clone(),
            root: spec.root.canonicalize().map_err(prepare)?,
            uid: spec.uid,
            binds: spec.binds.clone(),
            failpoint: spec.failpoint.clone().unwrap_or_default(),
            grouping,
            network: spec.network.clone(),
            limits: spec.limits,
            controllers,
            private_root: spec.private_root.clone(),
            logs: spec.logs.clone(),
        }
        .encode();
        if bytes.len() > limits::SPEC_MAX {
            let (sandbox, len, len_max) = (spec.id.clone(), bytes.len(), limits::SPEC_MAX);
            return Err(StartError::SpecTooLong { sandbox, len, len_max });
        }
        let memory = rustix::fs::memfd_create("spec", rustix::fs::MemfdFlags::CLOEXEC);
        let mut file = File::from(memory.map_err(|errno| prepare(errno.into()))?);
        file.write_all(&bytes).map_err(prepare)?;
        file.rewind().map_err(prepare)?;
        Ok(file)
    }

    /// Another keeper holds the lock: waits until it listens, or ends.
    async fn await_other_keeper(&self, spec: &SandboxSpec) -> Result<OtherKeeper, StartError> {
        let path = self.run.join(&spec.id);
        let dir = File::open(&path);
        let dir = dir.map_err(|cause| StartError::Prepare { sandbox: spec.id.clone(), cause })?;
        let socket = format!("/proc/self/fd/{}/{SOCKET_FILE}", dir.as_raw_fd());
        while UnixStream::connect(&socket).await.is_err() {
            if !self.is_locked(&spec.id) {
                return Ok(OtherKeeper::Ended);
            }
            // The lock may be all that is left of it: guardians share it.
            let woken = self.wake_guardians(&spec.id);
            woken.map_err(|cause| StartError::OldTree { sandbox: spec.id.clone(), cause })?;
            tokio::time::sleep(OTHER_PAUSE).await;
        }
        Ok(OtherKeeper::Listens)
    }
}

/// A cgroup for a sandbox, with its description for the keeper.
pub(crate) fn grouping(cgroups: &Cgroups, sandbox: &str) -> (Grouping, Option<NewCgroup>) {
    match cgroups.make(sandbox) {
        Ok(made) => (Grouping::Cgroup { name: made.name.clone() }, Some(made)),
        Err(why) => (Grouping::None { why }, None),
    }
}

async fn run_keeper(
    keeper: &VerifiedProgram<'_>,
    given: &[OwnedFd],
    file_limit: Option<FileLimit>,
) -> io::Result<tokio::process::Child> {
    let expected = [
        descriptors::DIR,
        descriptors::SPEC,
        descriptors::LOG,
        descriptors::READY,
        // Not every sandbox has one.
        descriptors::CGROUP,
    ];
    let mut command = keeper.command();
    command.arg("keep").env_clear().current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    give(&mut command, given, &expected, file_limit);
    spawn(&mut command).await
}

/// Lets a command start with these descriptors, at the places where it expects them, and with this limit of open files.
pub(crate) fn give(
    command: &mut Command,
    given: &[OwnedFd],
    expected: &[RawFd],
    file_limit: Option<FileLimit>,
) {
    let pairs: Vec<(RawFd, RawFd)> =
        given.iter().map(AsRawFd::as_raw_fd).zip(expected.iter().copied()).collect();
    let arrange = move || {
        place_descriptors(&pairs)?;
        // After the descriptors were arranged: some may have numbers beyond it.
        file_limit.iter().for_each(FileLimit::restore);
        Ok(())
    };
    // SAFETY: `arrange` makes only system calls, and allocates nothing.
    unsafe { command.pre_exec(arrange) };
}

/// Starts a program that may just have been stored.
pub(crate) async fn spawn(command: &mut Command) -> io::Result<tokio::process::Child> {
    for _ in 0..BUSY_RETRIES_MAX {
        match command.spawn() {
            // A child of some other thread has not yet closed its copy of the file being written.
            Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) => {
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            other => return other,
        }
    }
    command.spawn()
}

/// Runs between fork and exec: the given descriptors at their places, and no others.
fn place_descriptors(pairs: &[(RawFd, RawFd)]) -> io::Result<()> {
    for (given, expected) in pairs {
        // SAFETY: no memory is passed. Nothing given lies where something is expected.
        if unsafe { libc::dup2(*given, *expected) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    let first = pairs.iter().map(|(_, expected)| *expected + 1).max().unwrap_or(FIRST_UNEXPECTED);
    let (first, last) = (first.cast_unsigned(), libc::c_uint::MAX);
    // Marked rather than closed: one of them is how a failing exec is reported.
    // SAFETY: no memory is passed.
    if unsafe { libc::close_range(first, last, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

pub(crate) fn move_above_targets(fd: OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed; the result is a new descriptor that nothing else owns.
    unsafe {
        let moved = libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, OUT_OF_THE_WAY);
        if moved == -1 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(moved)) }
    }
}

fn pipe_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}
