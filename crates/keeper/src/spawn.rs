//! Starts one program: from the command to a child that has called `execve`.
//!
//! Owns: the steps between `fork` and `execve`. Never: restrictions that are inherited anyway (see `confine`).

use std::convert::Infallible;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use lodge_link::{ExecKind, StartExec};

/// How often, and after which pause, a program that is still open for writing is tried again.
const BUSY_RETRIES_MAX: u32 = 100;
const BUSY_PAUSE_US: u32 = 5_000;
/// How long a child may take to replace itself, during which nothing else is served.
const SPAWN_WITHIN: Duration = Duration::from_secs(5);
/// How often, and after which pause, a child that failed is looked for until it is killed.
const COLLECT_LOOKS_MAX: u32 = 2_000;
const COLLECT_PAUSE_US: u32 = 500;
/// How a child begins that gives the keeper what it calls.
const GIVES_CALLS: u8 = b'C';

use crate::child_report::{
    ChildReport, ChildStep, ProgramReplacement, REPORT_FD, SpawnError, await_program, not_spawned,
    report_failure,
};
use crate::confine::{self, ConfinedSandbox, ExecUser};
use crate::disk::WriteSpace;
use crate::fence::Namespaces;
use crate::group::ExecCgroup;
use crate::guardian::{self, Guardian, GuardianReport};
use crate::landlock::Ruleset;
use crate::seccomp;
use crate::seccomp_network;
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

/// The child's ends of its streams, and where it reports a failure.
#[derive(Clone, Copy)]
struct ChildEnds {
    streams: [RawFd; 3],
    report: RawFd,
}

/// What a guardian has to know of those around it.
#[derive(Clone, Copy)]
struct GuardianContext {
    keeper: i32,
    status: RawFd,
    lock: RawFd,
    others: u64,
}

/// Everything that the child needs, made before the fork.
struct PreparedChild {
    kind: ExecKind,
    space: WriteSpace,
    argv: Vec<CString>,
    env: Vec<CString>,
    /// Where the program may lie, in the order of the search.
    programs: Vec<CString>,
    cwd: CString,
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
    let prepared = prepare(start, space, confined.net.variables())?;
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
    let theirs = ChildEnds { streams, report: report_theirs.as_raw_fd() };
    let until = Instant::now() + SPAWN_WITHIN;
    let (first, status) = match hold {
        SpawnHold::Group(group) => {
            let child = || {
                let (step, error) = become_program(&prepared, confined, theirs, 0);
                report_failure(step, error, theirs.report)
            };
            let pid = fork(confined, start.kind, || sys::fork_into(group.dir.as_raw_fd()), child);
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
        SpawnHold::Guardian { lock, others } => {
            let (status, status_theirs) = UnixStream::pair().map_err(failed)?;
            status.set_nonblocking(true).map_err(failed)?;
            let keeper = std::process::id().cast_signed();
            let guards = GuardianContext { keeper, status: status_theirs.as_raw_fd(), lock, others };
            let child = || become_guardian(&prepared, confined, theirs, guards);
            let pid = fork(confined, start.kind, sys::fork, child).map_err(failed)?;
            (pid, OwnedFd::from(status))
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
fn prepare(
    start: &StartExec,
    space: WriteSpace,
    added: &[(&str, &str)],
) -> Result<PreparedChild, SpawnError> {
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
    Ok(PreparedChild { kind: start.kind, space, argv, env, programs, cwd: c(start.cwd.as_os_str())? })
}

fn join(left: &OsStr, between: u8, right: &OsStr) -> OsString {
    let mut joined = left.as_bytes().to_vec();
    joined.push(between);
    joined.extend_from_slice(right.as_bytes());
    OsString::from_vec(joined)
}

/// Forks with the score of an exec, which the keeper gives back at once, and where its kind belongs.
fn fork(
    confined: &ConfinedSandbox,
    kind: ExecKind,
    fork: impl FnOnce() -> io::Result<i32>,
    child: impl FnOnce() -> Infallible,
) -> io::Result<i32> {
    // A score that cannot be written was reported as a missing layer, or is a passing failure.
    if let Some(oom) = &confined.oom
        && oom.raise(kind).is_err()
    {}
    let fork = || match fork()? {
        0 => match child() {},
        pid => Ok(pid),
    };
    let forked = match kind {
        ExecKind::Tool | ExecKind::Job | ExecKind::Command => confined.tools.fork(fork),
        ExecKind::Runtime => fork(),
    };
    if let Some(oom) = &confined.oom
        && oom.restore().is_err()
    {}
    forked
}

/// Runs in the child: forks the program and stays as its guardian.
fn become_guardian(
    prepared: &PreparedChild,
    confined: &ConfinedSandbox,
    theirs: ChildEnds,
    guards: GuardianContext,
) -> Infallible {
    match guardian::prepare().and_then(|()| sys::fork()) {
        Ok(0) => {
            let (step, error) = become_program(prepared, confined, theirs, guards.others + 1);
            report_failure(step, error, theirs.report)
        }
        Ok(main) => {
            // One that is killed for want of memory would leave its exec to the keeper, which copes.
            if let Some(oom) = &confined.oom
                && oom.as_keeper().is_err()
            {}
            guardian::guard(main, guards.keeper, guards.status, guards.lock)
        }
        Err(error) => report_failure(ChildStep::Hold, error, theirs.report),
    }
}

/// Runs in the child, and returns only if something failed.
fn become_program(
    prepared: &PreparedChild,
    confined: &ConfinedSandbox,
    theirs: ChildEnds,
    guardians: u64,
) -> (ChildStep, io::Error) {
    let apart = match prepared.kind {
        ExecKind::Tool | ExecKind::Job | ExecKind::Command => confined.apart.as_ref(),
        ExecKind::Runtime => confined.without_tcp.as_ref(),
    };
    let makes_nothing = match prepared.space {
        WriteSpace::Left => None,
        WriteSpace::Full { .. } => confined.makes_nothing.as_ref(),
    };
    let rules = confined.rules.as_ref().into_iter().chain(apart).chain(makes_nothing);
    match rules.into_iter().try_for_each(Ruleset::enter) {
        Ok(()) => {}
        Err(error) => return (ChildStep::User, error),
    }
    match arrange_streams(theirs.streams, theirs.report) {
        Ok(()) => {}
        Err(error) => return (ChildStep::Streams, error),
    }
    let restricted = become_user(confined)
        .and_then(|()| confined.bounds.restrict(prepared.kind, prepared.space, guardians));
    match restricted {
        Ok(()) => {}
        Err(error) => return (ChildStep::User, error),
    }
    // SAFETY: the path is a C string that outlives the call.
    match sys::check(unsafe { libc::chdir(prepared.cwd.as_ptr()) }) {
        Ok(_) => {}
        Err(error) => return (ChildStep::Directory, error),
    }
    (ChildStep::Program, replace(prepared))
}

fn arrange_streams(streams: [RawFd; 3], report: RawFd) -> io::Result<()> {
    // SAFETY: every descriptor is open. The keeper's standard descriptors and its directory, at 3, are
    // always open too, so none of those given here is overwritten before it was used.
    unsafe {
        libc::setsid();
        for (stdio, stream) in streams.into_iter().enumerate() {
            sys::check(libc::dup2(stream, stdio as RawFd))?;
        }
        sys::check(libc::dup3(report, REPORT_FD, libc::O_CLOEXEC))?;
        sys::check(libc::close_range(REPORT_FD as libc::c_uint + 1, libc::c_uint::MAX, 0))?;
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        sys::check(libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut())).map(drop)
    }
}

fn become_user(confined: &ConfinedSandbox) -> io::Result<()> {
    match confined.user {
        ExecUser::Keeper => {}
        ExecUser::Own(uid) => sys::become_user(uid)?,
    }
    confine::set_capabilities(0)?;
    confined.files.restore()?;
    if confined.supervises {
        let calls = seccomp_network::supervise()?;
        sockets::send_packet(sys::numbered(REPORT_FD), &[GIVES_CALLS], Some(calls.as_fd()))?;
    } else if confined.refuses_clone3 {
        seccomp::refuse_clone3()?;
    }
    match confined.namespaces {
        Namespaces::Own => Ok(()),
        // Without a namespace the kernel does not end the sandbox with its keeper, so this has to.
        Namespaces::Host => {
            // SAFETY: no memory is passed.
            sys::check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) }).map(drop)
        }
    }
}

fn replace(prepared: &PreparedChild) -> io::Error {
    let argv = pointers(&prepared.argv);
    let env = pointers(&prepared.env);
    let mut worst = io::Error::from_raw_os_error(libc::ENOENT);
    for program in &prepared.programs {
        // SAFETY: both lists end with a null pointer and point to C strings that outlive the call.
        unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
        let mut error = io::Error::last_os_error();
        for _ in 0..BUSY_RETRIES_MAX {
            if error.raw_os_error() != Some(libc::ETXTBSY) {
                break;
            }
            // The process that stored the program forked in the meantime, and that child has not closed its copy yet.
            // SAFETY: as above; `usleep` takes a plain integer.
            unsafe {
                libc::usleep(BUSY_PAUSE_US);
                libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr());
            }
            error = io::Error::last_os_error();
        }
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            // It may still lie further down the path.
            Some(libc::EACCES) => worst = error,
            Some(_) | None => return error,
        }
    }
    worst
}

fn pointers(texts: &[CString]) -> Vec<*const libc::c_char> {
    texts.iter().map(|text| CStr::as_ptr(text)).chain([std::ptr::null()]).collect()
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
