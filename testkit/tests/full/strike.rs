//! System calls of the daemon that fail on demand: the kernel asks here before each write and flush.

use std::fs;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use lodge_testkit::lodge::{PATIENCE, until};

/// What fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailingCall {
    /// With "no space left on device".
    Write,
    /// With "input/output error".
    Flush,
}

impl FailingCall {
    fn of(number: i32) -> FailingCall {
        if i64::from(number) == libc::SYS_pwrite64 { FailingCall::Write } else { FailingCall::Flush }
    }

    fn error(self) -> i32 {
        match self {
            FailingCall::Write => libc::ENOSPC,
            FailingCall::Flush => libc::EIO,
        }
    }
}

/// Whose calls fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailingThread {
    Anybody,
    /// The thread that commits.
    Writer,
    /// The thread that copies the write-ahead log back.
    Checkpoint,
}

impl FailingThread {
    fn is(self, thread: &str) -> bool {
        match self {
            FailingThread::Anybody => true,
            FailingThread::Writer => thread == "writer",
            FailingThread::Checkpoint => thread == "checkpoint",
        }
    }
}

#[derive(Debug)]
struct StrikePlan {
    call: FailingCall,
    by: FailingThread,
    /// Calls that pass first …
    skip: u64,
    /// … and calls that fail then.
    times: u64,
    struck: u64,
}

/// A daemon whose writes and flushes are intercepted.
#[derive(Debug)]
pub struct StruckDaemon {
    child: Child,
    plan: Arc<Mutex<StrikePlan>>,
    over: Arc<AtomicBool>,
    answering: Option<JoinHandle<()>>,
}

impl StruckDaemon {
    /// Starts the daemon. Nothing fails before the first strike.
    pub fn start(mut command: Command) -> StruckDaemon {
        let (ours, theirs) = UnixDatagram::pair().expect("a pair of sockets");
        let (filter, to) = (filter(), theirs.as_raw_fd());
        // SAFETY: `install` makes system calls on values made before the fork, and allocates nothing.
        unsafe {
            command.pre_exec(move || install(&filter, to));
        }
        let child = command.spawn().expect("the kernel lets a program be asked about (seccomp notification)");
        let listener = receive(&ours).expect("the listener arrives");
        let plan = Arc::new(Mutex::new(StrikePlan {
            call: FailingCall::Write,
            by: FailingThread::Anybody,
            skip: 0,
            times: 0,
            struck: 0,
        }));
        let over = Arc::new(AtomicBool::new(false));
        let daemon = child.id();
        let answering = {
            let (plan, over) = (plan.clone(), over.clone());
            std::thread::spawn(move || answer_all(&listener, daemon, &plan, &over))
        };
        StruckDaemon { child, plan, over, answering: Some(answering) }
    }

    /// After `skip` calls of the daemon, `times` calls fail.
    pub fn arm(&self, call: FailingCall, by: FailingThread, skip: u64, times: u64) {
        *self.plan() = StrikePlan { call, by, skip, times, struck: 0 };
    }

    /// How many calls failed.
    pub fn struck(&self) -> u64 {
        self.plan().struck
    }

    /// Lets everything pass, and returns how many calls failed.
    pub fn disarm(&self) -> u64 {
        let mut plan = self.plan();
        plan.times = 0;
        plan.struck
    }

    fn plan(&self) -> MutexGuard<'_, StrikePlan> {
        self.plan.lock().expect("nobody panicked")
    }

    pub fn wait(&mut self) -> ExitStatus {
        until("the daemon ends", || self.child.try_wait().expect("our child can be waited for"))
    }
}

impl Drop for StruckDaemon {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        self.over.store(true, Ordering::SeqCst);
        if let Some(answering) = self.answering.take() {
            assert!(answering.join().is_ok() || std::thread::panicking(), "the kernel was not answered");
        }
    }
}

/// Asks about writes at an offset, which only the database makes, and about flushes.
fn filter() -> Vec<libc::sock_filter> {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let is = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let end = (libc::BPF_RET | libc::BPF_K) as u16;
    let number = mem::offset_of!(libc::seccomp_data, nr) as u32;
    let call = |number: libc::c_long| u32::try_from(number).expect("a small number");
    // SAFETY: these only put their arguments into a struct.
    unsafe {
        vec![
            libc::BPF_STMT(load, number),
            libc::BPF_JUMP(is, call(libc::SYS_pwrite64), 3, 0),
            libc::BPF_JUMP(is, call(libc::SYS_fdatasync), 2, 0),
            libc::BPF_JUMP(is, call(libc::SYS_fsync), 1, 0),
            libc::BPF_STMT(end, libc::SECCOMP_RET_ALLOW),
            libc::BPF_STMT(end, libc::SECCOMP_RET_USER_NOTIF),
        ]
    }
}

fn install(filter: &[libc::sock_filter], to: RawFd) -> io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: plain system calls; the program outlives the call that reads it.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0
            || libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0
        {
            return Err(io::Error::last_os_error());
        }
        let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
        let listener = libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program);
        if listener < 0 {
            return Err(io::Error::last_os_error());
        }
        send(to, i32::try_from(listener).unwrap_or(-1))
    }
}

/// Room for one descriptor beside a message.
#[repr(C, align(8))]
struct DescriptorSpace([u8; 64]);

/// Sends a descriptor. Allocates nothing.
unsafe fn send(to: RawFd, descriptor: RawFd) -> io::Result<()> {
    let (mut byte, mut beside) = ([0_u8], DescriptorSpace([0; 64]));
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: all zeroes are a valid header; every pointer in it is to a local that outlives the call, and the control
    // buffer is aligned and large enough for one descriptor.
    unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        message.msg_control = beside.0.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(descriptor);
        if libc::sendmsg(to, &raw const message, 0) < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn receive(from: &UnixDatagram) -> io::Result<OwnedFd> {
    from.set_read_timeout(Some(PATIENCE))?;
    let (mut byte, mut beside) = ([0_u8], DescriptorSpace([0; 64]));
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: as in `send`; the descriptor that arrives is ours alone.
    unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        message.msg_control = beside.0.as_mut_ptr().cast();
        message.msg_controllen = beside.0.len() as _;
        if libc::recvmsg(from.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) < 0 {
            return Err(io::Error::last_os_error());
        }
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if header.is_null() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()))
    }
}

/// Answers the kernel until the process is gone, or the test has ended.
fn answer_all(listener: &OwnedFd, daemon: u32, plan: &Mutex<StrikePlan>, over: &AtomicBool) {
    const LOOK_MS: i32 = 50;
    let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    while !over.load(Ordering::SeqCst) {
        // SAFETY: one valid entry.
        let ready = unsafe { libc::poll(&raw mut poll, 1, LOOK_MS) };
        if ready <= 0 {
            continue;
        }
        if poll.revents & libc::POLLIN == 0 {
            return;
        }
        // SAFETY: all zeroes are a valid notification, as the kernel demands; it fills it in.
        let mut asked: libc::seccomp_notif = unsafe { mem::zeroed() };
        // SAFETY: the descriptor is a listener, and the struct is what this request fills in.
        if unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked) } < 0 {
            // The caller was killed in the meantime.
            continue;
        }
        let thread = fs::read_to_string(format!("/proc/{daemon}/task/{}/comm", asked.pid)).ok();
        let error = thread.map_or(0, |thread| {
            decide(&mut plan.lock().expect("nobody panicked"), FailingCall::of(asked.data.nr), thread.trim())
        });
        let flags = if error == 0 { libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32 } else { 0 };
        let mut answer = libc::seccomp_notif_resp { id: asked.id, val: 0, error: -error, flags };
        // SAFETY: as above. An answer for a process that was killed meanwhile is refused, and not needed.
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
    }
}

/// The error that a call gets; 0 lets it pass.
fn decide(plan: &mut StrikePlan, call: FailingCall, thread: &str) -> i32 {
    if plan.times == 0 || call != plan.call || !plan.by.is(thread) {
        return 0;
    }
    if plan.skip > 0 {
        plan.skip -= 1;
        return 0;
    }
    plan.times -= 1;
    plan.struck += 1;
    plan.call.error()
}
