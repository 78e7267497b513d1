//! The thread that starts tools, so that all of them share a Landlock domain that the runtime is not in.
//!
//! A domain belongs to the thread that entered it and to everything that this thread starts. Signals from inside this
//! one reach the tools and jobs of the sandbox, whichever call started them, and nothing else: not the runtime, the
//! keeper or the gate. Owns: that thread. Never: what a child does (see `spawn`).

use std::cell::{OnceCell, RefCell};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::landlock::Ruleset;

/// Children go on with a copy of this stack, and guardians live on it.
const STACK_BYTES: usize = 256 * 1024;

/// Where tools are forked.
#[derive(Debug, Default)]
pub(crate) struct ToolThread {
    /// The rules of the domain, until the thread has entered it. None from the start: this kernel has no such domain.
    rules: RefCell<Option<Ruleset>>,
    running: OnceCell<Running>,
}

#[derive(Debug)]
struct Running {
    requests: Sender<Request>,
    /// That the request which was sent last is done.
    done: Receiver<()>,
}

/// What the thread is to call, once.
struct Request(*mut (dyn FnMut() + 'static));

// SAFETY: the caller waits until the thread has called it, and touches nothing that it borrows meanwhile.
unsafe impl Send for Request {}

impl ToolThread {
    /// The thread is made with the first tool: an agent that runs none does not pay for it.
    pub(crate) fn new(rules: Option<Ruleset>) -> ToolThread {
        ToolThread { rules: RefCell::new(rules), running: OnceCell::new() }
    }

    /// Calls `fork` on the thread, or on the caller's where there is no such domain. In the child `fork` never returns.
    pub(crate) fn fork(&self, fork: impl FnOnce() -> io::Result<i32>) -> io::Result<i32> {
        let Some(running) = self.running()? else { return fork() };
        let (mut fork, mut forked) = (Some(fork), None);
        let mut call = || forked = fork.take().map(|fork| fork());
        let call: &mut dyn FnMut() = &mut call;
        // SAFETY: only the lifetime is changed, and what is borrowed outlives the answer, which is waited for below.
        let call = unsafe { std::mem::transmute::<&mut dyn FnMut(), *mut (dyn FnMut() + 'static)>(call) };
        let gone = || io::Error::other("the thread that starts tools is gone");
        running.requests.send(Request(call)).map_err(|_| gone())?;
        running.done.recv().map_err(|_| gone())?;
        forked.unwrap_or_else(|| Err(gone()))
    }

    fn running(&self) -> io::Result<Option<&Running>> {
        if let Some(running) = self.running.get() {
            return Ok(Some(running));
        }
        let mut rules = self.rules.borrow_mut();
        let Some(given) = rules.take() else { return Ok(None) };
        match start(given) {
            Ok(running) => Ok(Some(self.running.get_or_init(|| running))),
            Err((given, error)) => {
                // There may be room for a thread when the next tool starts.
                *rules = Some(given);
                Err(error)
            }
        }
    }
}

fn start(rules: Ruleset) -> Result<Running, (Ruleset, io::Error)> {
    let copy = match rules.try_clone() {
        Ok(copy) => copy,
        Err(error) => return Err((rules, error)),
    };
    let (requests, received) = channel::<Request>();
    let (tell_done, done) = channel();
    let (tell_entered, entered) = channel();
    let thread = std::thread::Builder::new().name("tools".to_owned()).stack_size(STACK_BYTES);
    let started = thread.spawn(move || {
        let is_entered = copy.enter();
        drop(copy);
        let failed = is_entered.is_err();
        if tell_entered.send(is_entered).is_err() || failed {
            return;
        }
        for Request(call) in received {
            // SAFETY: whoever sent it waits for the answer and keeps alive what it borrows.
            unsafe { (*call)() };
            if tell_done.send(()).is_err() {
                return;
            }
        }
    });
    let entered = started.and_then(|_| entered.recv().unwrap_or_else(|error| Err(io::Error::other(error))));
    match entered {
        Ok(()) => Ok(Running { requests, done }),
        Err(error) => Err((rules, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::landlock;
    use crate::sys;

    /// A child that ends with what `child` returns.
    fn fork(child: impl FnOnce() -> i32) -> io::Result<i32> {
        match sys::fork()? {
            // SAFETY: ends the child at once.
            0 => unsafe { libc::_exit(child()) },
            pid => Ok(pid),
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
            assert_eq!(end_of(ToolThread::default().fork(|| fork(|| 7)).unwrap()), 7);
            return;
        };
        // In a child, as rules need that no privileges can be had any more.
        let outer = fork(|| {
            // SAFETY: no memory is passed.
            unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            let tools = ToolThread::new(Some(rules));
            let (Ok(runtime), Ok(tool)) = (fork(waits), tools.fork(|| fork(waits))) else { return 1 };
            let keeper = std::process::id().cast_signed();
            let reaches = |pid: i32| sys::kill(pid, 0).is_ok();
            let tried = tools.fork(|| {
                fork(|| {
                    i32::from(reaches(tool))
                        | i32::from(reaches(runtime)) << 1
                        | i32::from(reaches(keeper)) << 2
                })
            });
            let reached = tried.map_or(99, end_of);
            let own = reaches(tool) && reaches(runtime);
            let ended = [tool, runtime].map(|pid| sys::kill(pid, libc::SIGKILL).is_ok());
            if own && ended == [true; 2] { reached } else { 98 }
        });
        assert_eq!(end_of(outer.unwrap()), 1, "the other tool, and neither runtime nor keeper");
    }
}
