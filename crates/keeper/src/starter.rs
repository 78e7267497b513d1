//! The thread that starts programs without copying the keeper's memory.
//!
//! A child of `fork` gets a copy of every table of pages, faults most of its pages in, and drops all of it at its `execve`:
//! for a small program that costs more than the program. A child of this thread shares the memory until its `execve`, and
//! this thread waits until then, as after `vfork`.
//! Owns: that thread, and the plan of its child. Never: what the child does (see `child`), nor a wait that a program of the
//! sandbox can prolong: while the thread waits for a delayed child, programs are started as copies.

use std::cell::RefCell;
use std::ffi::c_void;
use std::io;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::futex;

use crate::child::{self, ChildPlan};
use crate::sys;

/// The child runs on this stack, beneath what the thread has of it.
const STACK_BYTES: usize = 64 * 1024;
/// How long a start waits for the child before it.
const TURN_WITHIN: Duration = Duration::from_millis(2);
/// How often the keeper looks by itself whether the child exists: one that was stopped at once says nothing.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The thread has nothing to do.
const IDLE: u32 = 0;
/// A plan waits for the thread.
const ASKED: u32 = 1;
/// The child runs, and the thread waits for its `execve`.
const BEGUN: u32 = 2;

/// Starts programs, one at a time.
#[derive(Debug)]
pub(crate) struct ProgramStarter {
    desk: Arc<StartDesk>,
    /// The plan that the thread, or its child, may be reading.
    plan: RefCell<Option<Box<ChildPlan>>>,
}

/// Where the keeper, the thread and its child meet. There is no lock: a child may be killed while it would hold one.
#[derive(Debug)]
struct StartDesk {
    state: AtomicU32,
    plan: AtomicPtr<ChildPlan>,
    /// The cgroup of the child, or a negative number for that of the keeper.
    cgroup: AtomicI32,
    /// The child, written by the kernel before the child's first instruction.
    pid: AtomicI32,
    /// Why there is no child.
    errno: AtomicI32,
}

impl ProgramStarter {
    /// Starts the thread. Its rights are those of the thread that calls this.
    pub(crate) fn new() -> io::Result<ProgramStarter> {
        let desk = Arc::new(StartDesk {
            state: AtomicU32::new(IDLE),
            plan: AtomicPtr::new(ptr::null_mut()),
            cgroup: AtomicI32::new(-1),
            pid: AtomicI32::new(0),
            errno: AtomicI32::new(0),
        });
        let thread = std::thread::Builder::new().name("starter".to_owned()).stack_size(STACK_BYTES);
        let served = desk.clone();
        thread.spawn(move || served.serve())?;
        Ok(ProgramStarter { desk, plan: RefCell::new(None) })
    }

    /// Starts a child in this cgroup, and returns its pid. The plan comes back if an earlier child is delayed.
    pub(crate) fn start(
        &self,
        cgroup: RawFd,
        plan: Box<ChildPlan>,
    ) -> Result<io::Result<i32>, Box<ChildPlan>> {
        let desk = &self.desk;
        if !desk.wait_idle(Instant::now() + TURN_WITHIN) {
            return Err(plan);
        }
        let mut held = self.plan.borrow_mut();
        let plan = held.insert(plan);
        desk.plan.store(&raw mut **plan, Ordering::Relaxed);
        desk.cgroup.store(cgroup, Ordering::Relaxed);
        desk.pid.store(0, Ordering::Relaxed);
        desk.errno.store(0, Ordering::Relaxed);
        desk.set(ASKED);
        while desk.state.load(Ordering::Acquire) == ASKED && desk.pid.load(Ordering::Acquire) == 0 {
            desk.wait_while(ASKED, Some(LOOK_EVERY));
        }
        match (desk.pid.load(Ordering::Acquire), desk.errno.load(Ordering::Acquire)) {
            (0, errno) => Ok(Err(io::Error::from_raw_os_error(errno))),
            (pid, _) => Ok(Ok(pid)),
        }
    }
}

impl Drop for ProgramStarter {
    fn drop(&mut self) {
        // The thread stays until the process ends, and may still read the plan.
        std::mem::forget(self.plan.take());
    }
}

impl StartDesk {
    fn set(&self, state: u32) {
        self.state.store(state, Ordering::Release);
        // Fails only for a place that is not mapped.
        if futex::wake(&self.state, futex::Flags::PRIVATE, u32::MAX >> 1).is_err() {}
    }

    /// Waits for another state, or for this long. May return early.
    fn wait_while(&self, state: u32, within: Option<Duration>) {
        let within = within.and_then(|within| within.try_into().ok());
        // It has changed, or the time is over: the caller looks.
        if futex::wait(&self.state, futex::Flags::PRIVATE, state, within.as_ref()).is_err() {}
    }

    fn wait_idle(&self, until: Instant) -> bool {
        loop {
            match self.state.load(Ordering::Acquire) {
                IDLE => return true,
                busy => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    self.wait_while(busy, Some(left));
                }
            }
        }
    }

    /// What the thread does as long as the keeper lives.
    fn serve(&self) {
        loop {
            match self.state.load(Ordering::Acquire) {
                ASKED => {
                    let cgroup = Some(self.cgroup.load(Ordering::Relaxed)).filter(|cgroup| *cgroup >= 0);
                    let given = ptr::from_ref(self).cast();
                    // SAFETY: the plan stays until this thread is idle again, which is after the child's `execve` or end.
                    let started = unsafe { sys::start_sharing(cgroup, &self.pid, begin, given) };
                    if let Err(error) = started {
                        self.errno.store(error.raw_os_error().unwrap_or(libc::EIO), Ordering::Release);
                    }
                    self.set(IDLE);
                }
                other => self.wait_while(other, None),
            }
        }
    }
}

/// The child. Lets the keeper go on, and becomes its program.
///
/// # Safety
/// `desk` must point to a [`StartDesk`] with a plan that stays until the child's `execve`.
unsafe extern "C" fn begin(desk: *const c_void) -> ! {
    // SAFETY: as the caller promises.
    let desk = unsafe { &*desk.cast::<StartDesk>() };
    let plan = desk.plan.load(Ordering::Acquire);
    desk.set(BEGUN);
    // SAFETY: as the caller promises.
    unsafe { child::enter(plan.cast_const().cast()) }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::ffi::CString;
    use std::fs::{File, OpenOptions};
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::unix::fs::OpenOptionsExt;

    use lodge_link::ExecKind;

    use super::*;
    use crate::bounds::Bounds;
    use crate::child::{ChildCommand, ChildEnds};
    use crate::confine::ExecUser;
    use crate::disk::WriteSpace;
    use crate::fence::Namespaces;
    use crate::files::DescriptorLimits;
    use crate::sockets;

    const NO_CGROUP: RawFd = -1;

    /// What a child holds open.
    struct Held {
        null: File,
        report: OwnedFd,
        theirs: OwnedFd,
    }

    fn hold() -> Held {
        let null = OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
        let (report, theirs) = sockets::packet_pair().unwrap();
        Held { null, report, theirs }
    }

    /// Runs this with these arguments.
    fn plan(program: &str, args: &[&str], held: &Held) -> Box<ChildPlan> {
        let c = |text: &str| CString::new(text).unwrap();
        let argv = std::iter::once(&program).chain(args).map(|arg| c(arg)).collect();
        let null = held.null.as_raw_fd();
        Box::new(ChildPlan {
            command: ChildCommand::new(argv, Vec::new(), vec![c("/nowhere/at/all"), c(program)], c("/")),
            ends: ChildEnds { streams: [null; 3], report: held.theirs.as_raw_fd() },
            rules: [None; 3],
            user: ExecUser::Keeper,
            files: DescriptorLimits::raise().unwrap(),
            filter: None,
            namespaces: Namespaces::Own,
            rlimits: Bounds::default().rlimits(ExecKind::Job, WriteSpace::Left, 0),
        })
    }

    fn end_of(pid: i32) -> i32 {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        status
    }

    /// Starts a child when the one before it is its program. On a busy machine that takes a while.
    fn start_next(starter: &ProgramStarter, mut plan: Box<ChildPlan>) -> i32 {
        loop {
            match starter.start(NO_CGROUP, plan) {
                Ok(started) => break started.unwrap(),
                Err(back) => plan = back,
            }
        }
    }

    #[test]
    fn programs_start_one_after_another_and_a_missing_one_says_so() {
        let (starter, held) = (ProgramStarter::new().unwrap(), hold());
        for code in 1..20 {
            let exits = format!("exit {code}");
            let pid = start_next(&starter, plan("/bin/sh", &["-c", &exits], &held));
            assert_eq!(libc::WEXITSTATUS(end_of(pid)), code);
        }
        let missing = start_next(&starter, plan("/nowhere", &[], &held));
        assert_eq!(libc::WEXITSTATUS(end_of(missing)), 127);
        let mut message = [0; 5];
        let (len, _) = sockets::receive_packet(std::os::fd::AsFd::as_fd(&held.report), &mut message).unwrap();
        assert_eq!((len, i32::from(message[1])), (5, libc::ENOENT));
    }

    #[test]
    fn a_child_that_is_delayed_gives_the_plan_of_the_next_one_back_until_it_is_gone() {
        let (starter, held) = (ProgramStarter::new().unwrap(), hold());
        let dir = std::env::temp_dir().join(format!("lodge-starter-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("busy");
        // A program that is open for writing is tried for half a second.
        let writer =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o700).open(&path).unwrap();
        let delayed = starter.start(NO_CGROUP, plan(path.to_str().unwrap(), &[], &held)).unwrap().unwrap();
        let next = starter.start(NO_CGROUP, plan("/bin/sh", &["-c", "exit 7"], &held));
        let next = next.expect_err("the thread waits for the delayed child");
        assert!(sys::kill(delayed, libc::SIGKILL).is_ok());
        assert_eq!(libc::WTERMSIG(end_of(delayed)), libc::SIGKILL);
        let pid = start_next(&starter, next);
        assert_eq!(libc::WEXITSTATUS(end_of(pid)), 7);
        drop(writer);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
