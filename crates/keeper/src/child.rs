//! What a child does between its start and `execve`.
//!
//! Owns: the steps that turn a child into its program. Never: memory of the heap, locks, or a panic. A child may share the
//! keeper's memory until its `execve`, and may be killed at any instruction.

use std::convert::Infallible;
use std::ffi::{CStr, CString, c_void};
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::rc::Rc;

use crate::bounds::ExecRlimits;
use crate::child_report::{ChildStep, REPORT_FD, report_failure};
use crate::confine::{self, ExecUser};
use crate::fence::Namespaces;
use crate::files::DescriptorLimits;
use crate::landlock;
use crate::seccomp::{self, ExecFilter};
use crate::seccomp_network;
use crate::sockets;
use crate::sys;

/// How often, and after which pause, a program that is still open for writing is tried again.
const BUSY_RETRIES_MAX: u32 = 100;
const BUSY_PAUSE_US: u32 = 5_000;
/// How a child begins that gives the keeper what it calls.
const GIVES_CALLS: u8 = b'C';

/// The child's ends of its streams, and where it reports a failure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChildEnds {
    pub(crate) streams: [RawFd; 3],
    pub(crate) report: RawFd,
}

/// Everything that a child needs. It is complete before the child starts, and stays until the child is its program.
#[derive(Debug)]
pub(crate) struct ChildPlan {
    pub(crate) command: ChildCommand,
    pub(crate) ends: ChildEnds,
    /// The rules that it enters, in this order. They stay open as long as the sandbox.
    pub(crate) rules: [Option<RawFd>; 3],
    pub(crate) user: ExecUser,
    pub(crate) files: DescriptorLimits,
    pub(crate) filter: Option<Rc<ExecFilter>>,
    pub(crate) namespaces: Namespaces,
    pub(crate) rlimits: ExecRlimits,
}

/// What it runs, as the kernel takes it.
#[derive(Debug)]
pub(crate) struct ChildCommand {
    argv: CStringList,
    env: CStringList,
    /// Where the program may lie, in the order of the search.
    programs: Vec<CString>,
    cwd: CString,
}

/// Texts, and the list of pointers to them that ends with a null pointer.
#[derive(Debug)]
struct CStringList {
    pointers: Vec<*const libc::c_char>,
    /// Moving a `CString` leaves its bytes where they are.
    _texts: Vec<CString>,
}

impl CStringList {
    fn new(texts: Vec<CString>) -> CStringList {
        let pointers = texts.iter().map(|text| CStr::as_ptr(text)).chain([std::ptr::null()]).collect();
        CStringList { pointers, _texts: texts }
    }
}

impl ChildCommand {
    pub(crate) fn new(
        argv: Vec<CString>,
        env: Vec<CString>,
        programs: Vec<CString>,
        cwd: CString,
    ) -> ChildCommand {
        ChildCommand { argv: CStringList::new(argv), env: CStringList::new(env), programs, cwd }
    }
}

/// The first instruction of a child that shares the keeper's memory.
///
/// # Safety
/// `plan` must point to a [`ChildPlan`] that outlives the child's `execve`.
pub(crate) unsafe extern "C" fn enter(plan: *const c_void) -> ! {
    // SAFETY: as the caller promises.
    let plan = unsafe { &*plan.cast::<ChildPlan>() };
    match run(plan) {}
}

/// Becomes the program, or reports why not and ends.
pub(crate) fn run(plan: &ChildPlan) -> Infallible {
    let (step, error) = become_program(plan);
    report_failure(step, error, plan.ends.report)
}

/// Returns only if something failed.
fn become_program(plan: &ChildPlan) -> (ChildStep, io::Error) {
    let rules = || plan.rules.iter().flatten().try_for_each(|rules| landlock::enter(*rules));
    let restricted = || become_user(plan).and_then(|()| plan.rlimits.apply());
    // SAFETY: the path is a C string that outlives the call.
    let change_directory = || sys::check(unsafe { libc::chdir(plan.command.cwd.as_ptr()) }).map(drop);
    let steps = rules()
        .map_err(|error| (ChildStep::User, error))
        .and_then(|()| arrange_streams(plan.ends).map_err(|error| (ChildStep::Streams, error)))
        .and_then(|()| restricted().map_err(|error| (ChildStep::User, error)))
        .and_then(|()| change_directory().map_err(|error| (ChildStep::Directory, error)));
    match steps {
        Ok(()) => (ChildStep::Program, replace(&plan.command)),
        Err(failed) => failed,
    }
}

fn arrange_streams(ends: ChildEnds) -> io::Result<()> {
    // SAFETY: every descriptor is open. The keeper's standard descriptors and its directory, at 3, are
    // always open too, so none of those given here is overwritten before it was used.
    unsafe {
        libc::setsid();
        for (stdio, stream) in ends.streams.into_iter().enumerate() {
            sys::check(libc::dup2(stream, stdio as RawFd))?;
        }
        sys::check(libc::dup3(ends.report, REPORT_FD, libc::O_CLOEXEC))?;
        sys::check(libc::close_range(REPORT_FD as libc::c_uint + 1, libc::c_uint::MAX, 0))?;
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        sys::check(libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut())).map(drop)
    }
}

fn become_user(plan: &ChildPlan) -> io::Result<()> {
    match plan.user {
        ExecUser::Keeper => {}
        ExecUser::Own(uid) => {
            sys::become_user(uid)?;
            // Where the host lets programs that changed their user be inspected, that would include the keeper's memory.
            sys::hide_memory()?;
        }
    }
    confine::set_capabilities(0)?;
    plan.files.restore()?;
    match plan.filter.as_deref() {
        Some(ExecFilter::Reporting(program)) => {
            let calls = seccomp_network::install_reporting(program)?;
            sockets::send_packet(sys::numbered(REPORT_FD), &[GIVES_CALLS], Some(calls.as_fd()))?;
        }
        Some(ExecFilter::Silent(program)) => seccomp::install(program)?,
        None => {}
    }
    match plan.namespaces {
        Namespaces::Own => Ok(()),
        // Without a namespace the kernel does not end the sandbox with its keeper, so this has to.
        Namespaces::Host => {
            // SAFETY: no memory is passed.
            sys::check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) }).map(drop)
        }
    }
}

fn replace(command: &ChildCommand) -> io::Error {
    let (argv, env) = (command.argv.pointers.as_ptr(), command.env.pointers.as_ptr());
    let mut worst = io::Error::from_raw_os_error(libc::ENOENT);
    for program in &command.programs {
        // SAFETY: both lists end with a null pointer and point to C strings that outlive the call.
        unsafe { libc::execve(program.as_ptr(), argv, env) };
        let mut error = io::Error::last_os_error();
        for _ in 0..BUSY_RETRIES_MAX {
            if error.raw_os_error() != Some(libc::ETXTBSY) {
                break;
            }
            // The process that stored the program forked in the meantime, and that child has not closed its copy yet.
            // SAFETY: as above; `usleep` takes a plain integer.
            unsafe {
                libc::usleep(BUSY_PAUSE_US);
                libc::execve(program.as_ptr(), argv, env);
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
