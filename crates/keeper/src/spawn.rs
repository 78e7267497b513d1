//! Starts one program: from the command to a child that has called `execve`.
//!
//! Owns: the pipes of an exec and the start of its child, whose own steps are in `child`. Never: restrictions that are
//! inherited anyway (see `confine`).

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use lodge_link::{ExecKind, StartExec};

/// How long a child may take to replace itself, during which nothing else is served.
const SPAWN_WITHIN: Duration = Duration::from_secs(5);
/// How often, and after which pause, a child that failed is looked for until it is killed.
const COLLECT_LOOKS_MAX: u32 = 2_000;
const COLLECT_PAUSE_US: u32 = 500;

use crate::child::{self, ChildCommand, ChildEnds, ChildPlan};
use crate::child_report::{
    ChildReport, ChildStep, ProgramReplacement, SpawnError, await_program, not_spawned, report_failure,
};
use crate::confine::ConfinedSandbox;
use crate::disk::WriteSpace;
use crate::group::ExecCgroup;
use crate::guardian::{self, Guardian, GuardianReport};
use crate::sockets;
use crate::sys;

/// What holds the processes of the new exec together.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SpawnHold<'a> {
    Group(&'a ExecCgroup),
    /// A guardian, which shares the sandbox's lock.
    Guardian {
        lock: RawFd,
        /// How many there are beside it.
        others: u64,
    },
}

impl SpawnHold<'_> {
    /// How many guardians there are, with that of the exec.
    fn guardians(self) -> u64 {
        match self {
            SpawnHold::Group(_) => 0,
            SpawnHold::Guardian { others, .. } => others + 1,
        }
    }
}

/// A running child and this side of its streams.
#[derive(Debug)]
pub(crate) struct SpawnedChild {
    /// None if a guardian was killed before its report.
    pub(crate) pid: Option<i32>,
    /// The guardian, if one was requested.
    pub(crate) guard: Option<Guardian>,
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    /// None where the child writes straight to a descriptor it was given.
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) progress: SpawnProgress,
    /// What it calls, where the keeper answers that and it is known already.
    pub(crate) calls: Option<OwnedFd>,
}

/// How far a child came.
#[derive(Debug)]
pub(crate) enum SpawnProgress {
    /// It is on its way, and reports how that went.
    Begun(ChildReport),
    Runs,
    /// Something delays it. Whether the program started is unknown.
    Late,
}

/// What a guardian has to know of those around it.
#[derive(Clone, Copy)]
struct GuardianContext {
    keeper: i32,
    status: RawFd,
    lock: RawFd,
}

/// Starts a program, and does not wait for it: anything in the sandbox may stop the child on its way, and nothing may
/// stop the keeper. Only that of a guardian is waited for, until it runs, is known not to, or had its time.
///
/// `stderr` replaces the pipe that it would otherwise get.
pub(crate) fn spawn(
    start: &StartExec,
    confined: &ConfinedSandbox,
    hold: SpawnHold<'_>,
    stderr: Option<OwnedFd>,
    space: WriteSpace,
) -> Result<SpawnedChild, SpawnError> {
    let command = prepare_command(start, confined.net.variables())?;
    let failed = |cause: io::Error| SpawnError {
        errno: cause.raw_os_error().unwrap_or(libc::EIO),
        why: format!("cannot start a process: {cause}"),
    };
    let (stdin_theirs, stdin) = sys::pipe().map_err(failed)?;
    let (stdout, stdout_theirs) = sys::pipe().map_err(failed)?;
    let (stderr, stderr_theirs) = match stderr {
        Some(given) => (None, given),
        None => sys::pipe().map(|(ours, theirs)| (Some(ours), theirs)).map_err(failed)?,
    };
    let (report, report_theirs) = sockets::packet_pair().map_err(failed)?;
    for fd in [Some(&stdin), Some(&stdout), stderr.as_ref(), Some(&report)].into_iter().flatten() {
        sys::set_new_nonblocking(fd.as_fd()).map_err(failed)?;
    }
    let streams = [stdin_theirs.as_raw_fd(), stdout_theirs.as_raw_fd(), stderr_theirs.as_raw_fd()];
    let ends = ChildEnds { streams, report: report_theirs.as_raw_fd() };
    let rlimits = confined.bounds.rlimits(start.kind, space, hold.guardians());
    let plan = confined.child_plan((start.kind, space), command, ends, rlimits);
    let until = Instant::now() + SPAWN_WITHIN;
    let (first, status) = match hold {
        SpawnHold::Group(group) => {
            let cgroup = group.dir.as_raw_fd();
            let pid = with_exec_score(confined, start.kind, || match start.kind {
                ExecKind::Tool | ExecKind::Job | ExecKind::Command => {
                    confined.tools.start(cgroup, Box::new(plan))
                }
                ExecKind::Runtime => {
                    fork(confined, start.kind, || sys::fork_into(cgroup), || child::run(&plan))
                }
            });
            let pid = pid.map_err(failed)?;
            drop((stdin_theirs, stdout_theirs, stderr_theirs, report_theirs));
            let progress = SpawnProgress::Begun(ChildReport::new(report, until, start));
            return Ok(SpawnedChild {
                pid: Some(pid),
                guard: None,
                stdin,
                stdout,
                stderr,
                progress,
                calls: None,
            });
        }
        SpawnHold::Guardian { lock, .. } => {
            let (status, status_theirs) = UnixStream::pair().map_err(failed)?;
            status.set_nonblocking(true).map_err(failed)?;
            let keeper = std::process::id().cast_signed();
            let guards = GuardianContext { keeper, status: status_theirs.as_raw_fd(), lock };
            let child = || become_guardian(&plan, confined, guards);
            let pid = with_exec_score(confined, start.kind, || fork(confined, start.kind, sys::fork, child));
            (pid.map_err(failed)?, OwnedFd::from(status))
        }
    };
    drop((stdin_theirs, stdout_theirs, stderr_theirs, report_theirs));
    let (went, calls) = await_program(&report, until);
    let mut progress = match went {
        ProgramReplacement::Yes => SpawnProgress::Runs,
        ProgramReplacement::NotYet => SpawnProgress::Late,
        ProgramReplacement::Failed { step, errno } => {
            collect(first);
            let program = start.argv.first().map_or(OsStr::new(""), OsString::as_os_str);
            return Err(not_spawned(program, &start.cwd, step, errno));
        }
    };
    let (pid, guard) = match Guardian::await_guardian(first, status, until) {
        (mut guard, GuardianReport::Program(main)) => {
            if !confined.proc_is_ours {
                guard.hold_main(main);
            }
            (Some(main), guard)
        }
        (guard, GuardianReport::Nobody) => (None, guard),
        (guard, GuardianReport::Late) => {
            progress = SpawnProgress::Late;
            (None, guard)
        }
    };
    guard.release();
    Ok(SpawnedChild { pid, guard: Some(guard), stdin, stdout, stderr, progress, calls })
}

/// `added` are variables that the start may set otherwise.
fn prepare_command(start: &StartExec, added: &[(&str, &str)]) -> Result<ChildCommand, SpawnError> {
    let invalid = |why: &str| SpawnError { errno: libc::EINVAL, why: why.to_owned() };
    let c = |text: &OsStr| sys::c_string(text).map_err(|_| invalid("a zero byte in an argument or variable"));
    let Some(program) = start.argv.first().filter(|program| !program.is_empty()) else {
        return Err(invalid("no program was named"));
    };
    let argv = start.argv.iter().map(|arg| c(arg)).collect::<Result<_, _>>()?;
    let mut env = Vec::with_capacity(start.env.len());
    for (name, value) in &start.env {
        if name.is_empty() || name.as_bytes().contains(&b'=') {
            return Err(invalid("a variable without a proper name"));
        }
        env.push(c(&join(name, b'=', value))?);
    }
    for (name, value) in added.iter().filter(|(name, _)| start.env.iter().all(|(set, _)| set != name)) {
        env.push(c(&join(OsStr::new(name), b'=', OsStr::new(value)))?);
    }
    let programs = if program.as_bytes().contains(&b'/') {
        vec![c(program)?]
    } else {
        let path = start.env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_bytes());
        let dirs = path.unwrap_or_default().split(|byte| *byte == b':').filter(|dir| !dir.is_empty());
        dirs.map(|dir| c(&join(OsStr::from_bytes(dir), b'/', program))).collect::<Result<_, _>>()?
    };
    Ok(ChildCommand::new(argv, env, programs, c(start.cwd.as_os_str())?))
}

fn join(left: &OsStr, between: u8, right: &OsStr) -> OsString {
    let mut joined = left.as_bytes().to_vec();
    joined.push(between);
    joined.extend_from_slice(right.as_bytes());
    OsString::from_vec(joined)
}

/// Starts a child with the score of an exec, which the keeper gives back at once.
fn with_exec_score<T>(confined: &ConfinedSandbox, kind: ExecKind, start: impl FnOnce() -> T) -> T {
    // A score that cannot be written was reported as a missing layer, or is a passing failure.
    if let Some(oom) = &confined.oom
        && oom.raise(kind).is_err()
    {}
    let started = start();
    if let Some(oom) = &confined.oom
        && oom.restore().is_err()
    {}
    started
}

/// Forks where this kind belongs. The child never returns.
fn fork(
    confined: &ConfinedSandbox,
    kind: ExecKind,
    fork: impl FnOnce() -> io::Result<i32>,
    child: impl FnOnce() -> Infallible,
) -> io::Result<i32> {
    match kind {
        ExecKind::Tool | ExecKind::Job | ExecKind::Command => confined.tools.fork(fork, child),
        ExecKind::Runtime => sys::with_child(fork, child),
    }
}

/// Runs in the child: forks the program and stays as its guardian.
fn become_guardian(plan: &ChildPlan, confined: &ConfinedSandbox, guards: GuardianContext) -> Infallible {
    match guardian::prepare().and_then(|()| sys::fork()) {
        Ok(0) => child::run(plan),
        Ok(main) => {
            // One that is killed for want of memory would leave its exec to the keeper, which copes.
            if let Some(oom) = &confined.oom
                && oom.as_keeper().is_err()
            {}
            guardian::guard(main, guards.keeper, guards.status, guards.lock)
        }
        Err(error) => report_failure(ChildStep::Hold, error, plan.ends.report),
    }
}

/// Collects a child that is about to end, or its guardian. A stopped one is killed and left to the loop, which collects
/// all children and looks for what a killed guardian left.
pub(crate) fn collect(pid: i32) {
    for _ in 0..COLLECT_LOOKS_MAX {
        // SAFETY: a null status is allowed, and `usleep` takes a plain number.
        unsafe {
            if libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) != 0 {
                return;
            }
            libc::usleep(COLLECT_PAUSE_US);
        }
    }
    // It was not collected, so the pid is still its own; if it is gone, that is what was wanted.
    if sys::kill(pid, libc::SIGKILL).is_err() {}
}
