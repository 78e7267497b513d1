//! The guardian of an exec: the process between keeper and program, where there is no cgroup.
//!
//! Orphans of the exec become its children, so everything that the exec started descends from it, at any number of
//! forks. It reports how the program ended, and lives as long as anything of the exec does. Where the kernel would not
//! end the exec with the keeper, the guardian does.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::time::Instant;

use lodge_link::{ExitOutcome, ResourceUsage};

use crate::confine;
use crate::sys;
use crate::tree::{ExcludedProcesses, PidUse, ProcessTree};

/// Where a guardian keeps what it needs, once everything else of the keeper's is closed.
const STATUS_FD: RawFd = 3;
const LOCK_FD: RawFd = 4;
/// The first and the longest pause between two rounds of killing what does not go.
const PAUSE_FIRST_US: u32 = 100;
const PAUSE_MAX_US: u32 = 50_000;
const PID_LEN: usize = 4;
const ENDING_LEN: usize = 29;

/// A guardian as its keeper sees it.
#[derive(Debug)]
pub(crate) struct Guardian {
    /// None once it was reaped: then nothing of its exec is left, unless the guardian was killed.
    pub(crate) pid: Option<i32>,
    /// None once it reported how the program ended.
    status: Option<OwnedFd>,
    /// The bytes of the report so far.
    told: Vec<u8>,
    /// The program, where its group is all that can be named of the exec.
    main: Option<OwnedFd>,
}

/// What a guardian reported about its program before the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GuardianReport {
    Program(i32),
    /// It was killed before its report: the program ran, and was not seen.
    Nobody,
    /// No report yet.
    Late,
}

/// How a program ended, according to its guardian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProgramEnd {
    pub(crate) died: ProgramDeath,
    pub(crate) usage: ResourceUsage,
}

/// The two ways in which a process that ran can end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramDeath {
    Code(i32),
    Signal(i32),
}

impl From<ProgramDeath> for ExitOutcome {
    fn from(died: ProgramDeath) -> ExitOutcome {
        match died {
            ProgramDeath::Code(code) => ExitOutcome::Code(code),
            ProgramDeath::Signal(signal) => ExitOutcome::Signal(signal),
        }
    }
}

impl Guardian {
    /// Waits for the guardian to say which process the program is, which it does at once unless it is stopped.
    ///
    /// `status` does not block.
    pub(crate) fn await_guardian(pid: i32, status: OwnedFd, until: Instant) -> (Guardian, GuardianReport) {
        let mut told = [0; PID_LEN];
        let read = sys::read_until(status.as_fd(), &mut told, until);
        let (status, told, met) = match read {
            Ok(PID_LEN) => (Some(status), told.to_vec(), GuardianReport::Program(i32::from_le_bytes(told))),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                (Some(status), Vec::new(), GuardianReport::Late)
            }
            Ok(_) | Err(_) => (None, Vec::new(), GuardianReport::Nobody),
        };
        (Guardian { pid: Some(pid), status, told, main: None }, met)
    }

    /// Opens the program, so that its group can be signalled even if its number is reused.
    ///
    /// Until the guardian continues, the number belongs to the program: it is not collected, whether it has ended or
    /// not.
    pub(crate) fn hold_main(&mut self, main: i32) {
        self.main = sys::pidfd_open(main).ok();
    }

    /// Lets the guardian collect what ended, which it does not before.
    pub(crate) fn release(&self) {
        let Some(status) = &self.status else { return };
        // One that was killed collects nothing.
        if sys::write(status.as_fd(), &[0]).is_err() {}
    }

    /// Signals the program's group, also once the program itself is gone.
    pub(crate) fn signal_group(&self, main: Option<i32>, signal: i32) -> io::Result<()> {
        let (Some(pidfd), Some(main)) = (&self.main, main) else { return Ok(()) };
        let signalled = match sys::pidfd_signal_group(pidfd.as_fd(), signal) {
            // An older kernel. The number is surely its own only while it lives.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                if sys::wait_readable(pidfd.as_fd(), 0)? { Ok(()) } else { sys::kill(-main, signal) }
            }
            other => other,
        };
        match signalled {
            // ESRCH means that no process is left.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => other,
        }
    }

    /// The descriptor that becomes readable when the program ended.
    pub(crate) fn watched(&self) -> Option<&OwnedFd> {
        self.status.as_ref()
    }

    /// How the program ended, if that was reported and not taken yet.
    pub(crate) fn ending(&mut self) -> Option<ProgramEnd> {
        let mut rest = [0; PID_LEN + ENDING_LEN];
        let rest = &mut rest[self.told.len()..];
        match sys::read(self.status.as_ref()?.as_fd(), rest) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Ok(len) if len > 0 => self.told.extend_from_slice(&rest[..len]),
            // It was killed: the rest of its exec decides.
            Ok(_) | Err(_) => {
                self.status = None;
                return None;
            }
        }
        let message = self.told.get(PID_LEN..)?.try_into().ok()?;
        self.status = None;
        Some(decode(message))
    }
}

/// Becomes the guardian of `main`, which was just forked. Never returns.
pub(crate) fn guard(main: i32, keeper: i32, status: RawFd, lock: RawFd) -> ! {
    arrange(status, lock);
    // A keeper that does not listen is dead, which is looked for below.
    drop(sys::write(sys::numbered(STATUS_FD), &main.to_le_bytes()));
    // So that the number stays the program's until the keeper holds on to it. A dead keeper is looked for below.
    drop(sys::read(sys::numbered(STATUS_FD), &mut [0]));
    loop {
        reap(main);
        // SAFETY: cannot fail and touches no memory.
        if unsafe { libc::getppid() } != keeper {
            end_all(main);
        }
        wait_for_signal();
    }
}

/// Before the program is forked: orphans come here, and so does the news that the keeper died. The program
/// never shares the keeper's group, be it as young as it may.
pub(crate) fn prepare() -> io::Result<()> {
    // A guardian attaches no filter.
    confine::drop_raisable()?;
    // SAFETY: no memory is passed, apart from a set that is filled in and outlives its calls.
    unsafe {
        sys::check(libc::setsid())?;
        sys::check(libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))?;
        sys::check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGUSR1, 0, 0, 0))?;
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        sys::check(libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut())).map(drop)
    }
}

fn arrange(status: RawFd, lock: RawFd) {
    // SAFETY: both descriptors are open. That of the status is duplicated before its place could be
    // overwritten, and the lock lies beyond both places, which are the keeper's directory and spec.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"guardian".as_ptr());
        libc::dup2(status, STATUS_FD);
        // The lock says that the sandbox is in use, which is so for as long as anything of it lives.
        libc::dup2(lock, LOCK_FD);
        libc::close_range(LOCK_FD as libc::c_uint + 1, libc::c_uint::MAX, 0);
    }
}

/// Collects all processes that ended, and exits when none is left. The program's end is reported before it is
/// collected, so that the keeper can see it if the guardian is killed in between.
fn reap(main: i32) {
    loop {
        // SAFETY: both structures are plain data, for which zeroes are a valid value, and outlive the call.
        let (found, info, usage) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let mut usage: libc::rusage = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            let found = libc::syscall(libc::SYS_waitid, libc::P_ALL, 0, &mut info, flags, &mut usage);
            (sys::check_long(found), info, usage)
        };
        if found.is_err_and(|error| error.raw_os_error() == Some(libc::ECHILD)) {
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(0) }
        }
        // SAFETY: the kernel filled in the fields of a child that ended, or left all zeroes.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        if pid == 0 {
            return;
        }
        if pid == main {
            let died = if info.si_code == libc::CLD_EXITED {
                ProgramDeath::Code(status)
            } else {
                ProgramDeath::Signal(status)
            };
            let message = encode(&ProgramEnd { died, usage: from_rusage(&usage) });
            // A keeper that does not listen is dead or already knows.
            if sys::write(sys::numbered(STATUS_FD), &message).is_err() {}
        }
        // SAFETY: a null status is allowed, and the child waits to be collected.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    }
}

/// The keeper died. Kills all descendants until none is left; `reap` then ends the process.
fn end_all(main: i32) -> ! {
    let own = std::process::id().cast_signed();
    let mut pause_us = PAUSE_FIRST_US;
    let mut known = HashSet::new();
    loop {
        // One by one: the program may not have left this process's own group yet.
        let walk = ProcessTree::now();
        walk.kill_descendants(own, ExcludedProcesses::Themselves(&[]), PidUse::Processes);
        reap(main);
        // SAFETY: takes a plain number.
        unsafe { libc::usleep(pause_us) };
        let found = walk.descendants(own).into_iter().map(|process| (process.pid, process.start));
        let found: HashSet<(i32, u64)> = found.collect();
        // Processes that keep forking get no pause; those that only die slowly do.
        pause_us = if found.is_subset(&known) { (pause_us * 2).min(PAUSE_MAX_US) } else { PAUSE_FIRST_US };
        known = found;
    }
}

fn wait_for_signal() {
    // SAFETY: the set is plain data, initialised by the calls, and outlives them.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        libc::sigaddset(&mut set, libc::SIGUSR1);
        libc::sigwaitinfo(&set, std::ptr::null_mut());
    }
}

fn encode(ending: &ProgramEnd) -> [u8; ENDING_LEN] {
    let (tag, number) = match ending.died {
        ProgramDeath::Code(code) => (1, code),
        ProgramDeath::Signal(signal) => (2, signal),
    };
    let usage = ending.usage;
    let mut message = [0; ENDING_LEN];
    message[0] = tag;
    message[1..5].copy_from_slice(&number.to_le_bytes());
    for (at, value) in [(5, usage.user_us), (13, usage.system_us), (21, usage.max_rss_kb)] {
        message[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    message
}

fn decode(message: &[u8; ENDING_LEN]) -> ProgramEnd {
    let number = i32::from_le_bytes([message[1], message[2], message[3], message[4]]);
    let long = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&message[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let died = if message[0] == 1 { ProgramDeath::Code(number) } else { ProgramDeath::Signal(number) };
    ProgramEnd { died, usage: ResourceUsage { user_us: long(5), system_us: long(13), max_rss_kb: long(21) } }
}

pub(crate) fn from_rusage(usage: &libc::rusage) -> ResourceUsage {
    let us = |time: libc::timeval| {
        let (seconds, rest) = (time.tv_sec.max(0) as u64, time.tv_usec.max(0) as u64);
        seconds * 1_000_000 + rest
    };
    let max_rss_kb = usage.ru_maxrss.max(0) as u64;
    ResourceUsage { user_us: us(usage.ru_utime), system_us: us(usage.ru_stime), max_rss_kb }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_comes_back() {
        let usage = ResourceUsage { user_us: 1 << 40, system_us: 2, max_rss_kb: 3 };
        for died in [ProgramDeath::Code(255), ProgramDeath::Signal(9)] {
            let ending = ProgramEnd { died, usage };
            assert_eq!(decode(&encode(&ending)), ending);
        }
    }
}
