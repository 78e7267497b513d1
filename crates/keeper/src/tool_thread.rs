//! The thread that starts tools, so that all of them share a Landlock domain that the runtime is not in.
//!
//! A domain belongs to the thread that entered it and to everything that this thread starts. Signals from inside this
//! one reach the tools and jobs of the sandbox, whichever call started them, and nothing else: not the runtime, the
//! keeper or the gate. Owns: that thread. Never: what a child does (see `spawn`).

use std::cell::{OnceCell, RefCell};
use std::convert::Infallible;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::child::{self, ChildPlan};
use crate::landlock::Ruleset;
use crate::starter::ProgramStarter;
use crate::sys;

/// Children go on with a copy of this stack, and guardians live on it.
const STACK_BYTES: usize = 256 * 1024;

/// Where tools are forked.
#[derive(Debug, Default)]
pub(crate) struct ToolThread {
    /// The rules of the domain, until the thread has entered it. None from the start: this kernel has no such domain.
    rules: RefCell<Option<Ruleset>>,
    desk: OnceCell<Arc<ThreadExchange>>,
    /// A second thread in the same domain.
    starter: OnceCell<Option<ProgramStarter>>,
}

/// Where the keeper and the thread meet. Nothing here allocates: a child that was forked while the other thread did could
/// not do so itself.
#[derive(Debug)]
struct ThreadExchange {
    turn: Mutex<ThreadState>,
    changed: Condvar,
}

/// Whose turn it is, and for what.
#[derive(Debug)]
enum ThreadState {
    /// The thread is about to enter its domain.
    Entering,
    /// The keeper may ask.
    Idle,
    Asked(ThreadCall),
    /// The thread works on its call.
    Working,
    /// The keeper may read the result.
    Done,
    /// The thread is gone, for this reason.
    Gone(io::Error),
}

/// What the thread is to call, once.
#[derive(Debug)]
struct ThreadCall(*mut (dyn FnMut() + 'static));

// SAFETY: the caller waits until the thread has called it, and touches nothing that it borrows meanwhile.
unsafe impl Send for ThreadCall {}

impl ToolThread {
    /// The thread is made with the first tool: an agent that runs none does not pay for it.
    pub(crate) fn new(rules: Option<Ruleset>) -> ToolThread {
        ToolThread { rules: RefCell::new(rules), desk: OnceCell::new(), starter: OnceCell::new() }
    }

    /// Starts a child in this cgroup. The program of one that shares memory is in its domain as any other.
    pub(crate) fn start(&self, cgroup: RawFd, plan: Box<ChildPlan>) -> io::Result<i32> {
        let plan = match self.starter()? {
            Some(starter) => match starter.start(cgroup, plan) {
                Ok(started) => return started,
                Err(plan) => plan,
            },
            None => plan,
        };
        self.fork(|| sys::fork_into(cgroup), || child::run(&plan))
    }

    /// None where there is no such domain, or no such way to start a child.
    fn starter(&self) -> io::Result<Option<&ProgramStarter>> {
        if let Some(starter) = self.starter.get() {
            return Ok(starter.as_ref());
        }
        if self.desk()?.is_none() || !sys::CAN_SHARE || leaves_memory_open() {
            return Ok(self.starter.get_or_init(|| None).as_ref());
        }
        // Should there be no room for a thread now, there may be when the next tool starts.
        let starter = self.call(ProgramStarter::new)??;
        Ok(self.starter.get_or_init(|| Some(starter)).as_ref())
    }

    /// Forks on the thread, or on the caller's where there is no such domain.
    pub(crate) fn fork(
        &self,
        fork: impl FnOnce() -> io::Result<i32>,
        child: impl FnOnce() -> Infallible,
    ) -> io::Result<i32> {
        self.call(|| sys::with_child(fork, child))?
    }

    /// Calls this on the thread, or on the caller's where there is no such domain.
    fn call<T>(&self, call: impl FnOnce() -> T) -> io::Result<T> {
        let Some(desk) = self.desk()? else { return Ok(call()) };
        let (mut wanted, mut returned) = (Some(call), None);
        let mut call = || returned = wanted.take().map(|call| call());
        let call: &mut dyn FnMut() = &mut call;
        // SAFETY: only the lifetime is changed, and what is borrowed outlives the call, whose end is waited for.
        let call = unsafe { std::mem::transmute::<&mut dyn FnMut(), *mut (dyn FnMut() + 'static)>(call) };
        desk.ask(ThreadCall(call))?;
        returned.ok_or_else(gone)
    }

    fn desk(&self) -> io::Result<Option<&ThreadExchange>> {
        if let Some(desk) = self.desk.get() {
            return Ok(Some(desk));
        }
        let mut rules = self.rules.borrow_mut();
        let Some(given) = rules.as_ref() else { return Ok(None) };
        // Should there be no room for a thread now, there may be when the next tool starts.
        let desk = start(given.try_clone()?)?;
        *rules = None;
        Ok(Some(self.desk.get_or_init(|| desk)))
    }
}

impl ThreadExchange {
    fn turn(&self) -> MutexGuard<'_, ThreadState> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, turn: ThreadState) {
        *self.turn() = turn;
        self.changed.notify_all();
    }

    fn wait_while<'a>(
        &self,
        turn: MutexGuard<'a, ThreadState>,
        is_so: fn(&mut ThreadState) -> bool,
    ) -> MutexGuard<'a, ThreadState> {
        self.changed.wait_while(turn, is_so).unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the thread call this, and waits for the end of that.
    fn ask(&self, request: ThreadCall) -> io::Result<()> {
        let mut turn = self.turn();
        if matches!(*turn, ThreadState::Gone(_)) {
            return Err(gone());
        }
        *turn = ThreadState::Asked(request);
        // The thread would wake up only to wait for the lock.
        drop(turn);
        self.changed.notify_all();
        let is_asked = |turn: &mut ThreadState| matches!(turn, ThreadState::Asked(_) | ThreadState::Working);
        turn = self.wait_while(self.turn(), is_asked);
        match std::mem::replace(&mut *turn, ThreadState::Idle) {
            ThreadState::Done => Ok(()),
            ThreadState::Entering
            | ThreadState::Idle
            | ThreadState::Asked(_)
            | ThreadState::Working
            | ThreadState::Gone(_) => {
                *turn = ThreadState::Gone(gone());
                Err(gone())
            }
        }
    }

    /// What the thread does as long as the keeper lives.
    fn serve(&self) {
        loop {
            let waits = |turn: &mut ThreadState| !matches!(turn, ThreadState::Asked(_));
            let mut turn = self.wait_while(self.turn(), waits);
            let ThreadState::Asked(ThreadCall(call)) = std::mem::replace(&mut *turn, ThreadState::Working)
            else {
                return;
            };
            drop(turn);
            // SAFETY: the caller waits for the end of the call and keeps alive what it borrows.
            unsafe { (*call)() };
            self.set(ThreadState::Done);
        }
    }
}

/// Says that the thread is gone, however that came.
struct ThreadExitGuard(Arc<ThreadExchange>);

impl Drop for ThreadExitGuard {
    fn drop(&mut self) {
        let is_said = matches!(*self.0.turn(), ThreadState::Gone(_));
        if !is_said {
            self.0.set(ThreadState::Gone(gone()));
        }
    }
}

/// Whether the host makes the memory of processes that changed their user open to others, which a child that shares the
/// keeper's memory must not.
fn leaves_memory_open() -> bool {
    let setting = std::fs::read_to_string("/proc/sys/fs/suid_dumpable");
    setting.map_or(true, |setting| setting.trim() == "1")
}

fn gone() -> io::Error {
    io::Error::other("the thread that starts tools is gone")
}

/// Starts the thread, and returns once it is in its domain.
fn start(rules: Ruleset) -> io::Result<Arc<ThreadExchange>> {
    let desk = Arc::new(ThreadExchange { turn: Mutex::new(ThreadState::Entering), changed: Condvar::new() });
    let leaves = ThreadExitGuard(desk.clone());
    let thread = std::thread::Builder::new().name("tools".to_owned()).stack_size(STACK_BYTES);
    thread.spawn(move || match rules.enter() {
        Ok(()) => {
            drop(rules);
            leaves.0.set(ThreadState::Idle);
            leaves.0.serve();
        }
        Err(error) => leaves.0.set(ThreadState::Gone(error)),
    })?;
    let mut turn = desk.wait_while(desk.turn(), |turn| matches!(turn, ThreadState::Entering));
    match std::mem::replace(&mut *turn, ThreadState::Idle) {
        ThreadState::Gone(error) => Err(error),
        ThreadState::Entering
        | ThreadState::Idle
        | ThreadState::Asked(_)
        | ThreadState::Working
        | ThreadState::Done => {
            drop(turn);
            Ok(desk)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::landlock;

    /// A child that ends with what `child` returns.
    fn fork(child: impl FnOnce() -> i32) -> io::Result<i32> {
        match sys::fork()? {
            // SAFETY: ends the child at once.
            0 => unsafe { libc::_exit(child()) },
            pid => Ok(pid),
        }
    }

    impl ToolThread {
        fn fork_test(&self, child: impl FnOnce() -> i32) -> io::Result<i32> {
            // SAFETY: ends the child at once.
            self.fork(sys::fork, || unsafe { libc::_exit(child()) })
        }
    }

    fn end_of(pid: i32) -> i32 {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        libc::WEXITSTATUS(status)
    }

    fn waits() -> i32 {
        // SAFETY: takes a plain number.
        unsafe { libc::sleep(600) }.cast_signed()
    }

    #[test]
    fn what_it_forks_can_signal_each_other_and_nobody_else() {
        let Ok(Some(rules)) = landlock::tools_scope() else {
            // This kernel cannot keep them apart: they are forked as everything else.
            assert_eq!(end_of(ToolThread::default().fork_test(|| 7).unwrap()), 7);
            return;
        };
        // In a child, because the rules require that no privileges can be gained.
        let outer = fork(|| {
            // SAFETY: no memory is passed.
            unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            let tools = ToolThread::new(Some(rules));
            let (Ok(runtime), Ok(tool)) = (fork(waits), tools.fork_test(waits)) else { return 1 };
            let keeper = std::process::id().cast_signed();
            let reaches = |pid: i32| sys::kill(pid, 0).is_ok();
            let tried = tools.fork_test(|| {
                i32::from(reaches(tool)) | i32::from(reaches(runtime)) << 1 | i32::from(reaches(keeper)) << 2
            });
            let reached = tried.map_or(99, end_of);
            let own = reaches(tool) && reaches(runtime);
            let ended = [tool, runtime].map(|pid| sys::kill(pid, libc::SIGKILL).is_ok());
            if own && ended == [true; 2] { reached } else { 98 }
        });
        assert_eq!(end_of(outer.unwrap()), 1, "the other tool, and neither runtime nor keeper");
    }
}
