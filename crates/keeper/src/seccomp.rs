//! System calls that nothing in a sandbox needs and that have opened sandboxes before.
//!
//! A deny-list, installed once on the keeper after the fence is complete. Every exec inherits it.

use std::io;

use crate::bpf::{answer, jump, statement};
use crate::seccomp_network;
use crate::sys;

#[cfg(target_arch = "x86_64")]
pub(crate) const ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
pub(crate) const ARCH: u32 = 0xC000_00B7;

/// Calls of the x32 convention share the architecture and differ by this bit.
#[cfg(target_arch = "x86_64")]
const X32_BIT: u32 = 0x4000_0000;

const DENIED: &[libc::c_long] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_ptrace,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_userfaultfd,
    libc::SYS_open_by_handle_at,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    // One counts against the whole user, and programs watch files by inotify.
    libc::SYS_fanotify_init,
    libc::SYS_syslog,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
];

/// Calls that programs have to do without on many hosts, so that they know how. Contexts of asynchronous I/O are
/// counted for the whole host.
const ABSENT: &[libc::c_long] = &[libc::SYS_io_setup];

/// Calls that name a process first and change how it runs; 0 is the caller. Keeper, gate and guardians may have the same
/// user as a tool, so that the kernel would let it.
const SELF_ONLY: &[libc::c_long] = &[
    libc::SYS_prlimit64,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setaffinity,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
];

/// The same, for calls that first say what they name: a process, by this number, or a group or all of a user.
const SELF_ONLY_BY_KIND: &[(libc::c_long, u32)] =
    &[(libc::SYS_setpriority, PRIO_PROCESS), (libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS)];
const PRIO_PROCESS: u32 = 0;
const IOPRIO_WHO_PROCESS: u32 = 1;
/// The request of `prctl` that lets processes share a core with others, or not.
const PR_SCHED_CORE: u32 = 62;

/// By which one process looks into another.
pub(crate) const LOOKS: [libc::c_long; 2] = [libc::SYS_process_vm_readv, libc::SYS_pidfd_getfd];

const NAMESPACE_FLAGS: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// What sockets may speak: of the rest, one reaches the machine that this one runs on, and none is for programs.
const SOCKETS: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

pub(crate) const NUMBER_AT: u32 = 0;
const ARCH_AT: u32 = 4;
/// The low halves of arguments, on a little-endian machine.
const FIRST_AT: u32 = 16;
pub(crate) const SECOND_AT: u32 = 24;
pub(crate) const THIRD_AT: u32 = 32;
pub(crate) const FOURTH_AT: u32 = 40;

/// How `clone3` is handled. Its flags are in memory, where a filter cannot read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clone3 {
    /// libc falls back to `clone` if `clone3` does not exist.
    Refused,
    /// The keeper needs it; each exec refuses it to itself by [`refuse_clone3`].
    LeftToExecs,
}

/// How calls that inspect another process are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessInspection {
    Refused,
    /// The keeper needs them; each exec refuses them to itself by `seccomp_network::supervise`.
    LeftToExecs,
}

/// Installs the filter on this process and all that it starts. Needs `no_new_privs`.
pub(crate) fn enter(clone3: Clone3, looks: ProcessInspection) -> io::Result<()> {
    install(&program(clone3, looks))
}

/// The filter that each exec installs beside the one that it inherits.
#[derive(Debug)]
pub(crate) enum ExecFilter {
    /// The keeper answers some of its calls.
    Reporting(Vec<libc::sock_filter>),
    Silent(Vec<libc::sock_filter>),
}

/// Refuses to this process, and to all that it starts, to become another program. Needs `no_new_privs`, and a filter before
/// it that lets no other convention through.
pub(crate) fn refuse_programs() -> io::Result<()> {
    install(&without_programs())
}

fn without_programs() -> Vec<libc::sock_filter> {
    vec![
        load(NUMBER_AT),
        jump(libc::BPF_JEQ, libc::SYS_execve as u32, 1, 0),
        jump(libc::BPF_JEQ, libc::SYS_execveat as u32, 0, 1),
        answer(refuse(libc::EPERM)),
        answer(libc::SECCOMP_RET_ALLOW),
    ]
}

/// Refuses `clone3`. Conditions as above.
pub(crate) fn without_clone3() -> Vec<libc::sock_filter> {
    vec![
        load(NUMBER_AT),
        jump(libc::BPF_JEQ, libc::SYS_clone3 as u32, 0, 1),
        answer(refuse(libc::ENOSYS)),
        answer(libc::SECCOMP_RET_ALLOW),
    ]
}

pub(crate) fn install(program: &[libc::sock_filter]) -> io::Result<()> {
    let filter = describe(program)?;
    // SAFETY: `filter` describes `program`, and both outlive the call, which copies them.
    sys::check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) }).map(drop)
}

/// The program as the kernel takes it, which does not write to it.
pub(crate) fn describe(program: &[libc::sock_filter]) -> io::Result<libc::sock_fprog> {
    let too_long = |_| io::Error::from_raw_os_error(libc::EINVAL);
    let len = libc::c_ushort::try_from(program.len()).map_err(too_long)?;
    Ok(libc::sock_fprog { len, filter: program.as_ptr().cast_mut() })
}

pub(crate) fn program(clone3: Clone3, looks: ProcessInspection) -> Vec<libc::sock_filter> {
    let mut code = vec![
        load(ARCH_AT),
        jump(libc::BPF_JEQ, ARCH, 1, 0),
        // Another convention has other numbers: this list would mean nothing to it.
        answer(libc::SECCOMP_RET_KILL_PROCESS),
        load(NUMBER_AT),
    ];
    #[cfg(target_arch = "x86_64")]
    code.extend([jump(libc::BPF_JGE, X32_BIT, 0, 1), answer(refuse(libc::ENOSYS))]);
    let refused_looks = match looks {
        ProcessInspection::Refused => &LOOKS[..],
        ProcessInspection::LeftToExecs => &[],
    };
    for number in DENIED.iter().chain(refused_looks) {
        code.extend([jump(libc::BPF_JEQ, *number as u32, 0, 1), answer(refuse(libc::EPERM))]);
    }
    for number in ABSENT {
        code.extend([jump(libc::BPF_JEQ, *number as u32, 0, 1), answer(refuse(libc::ENOSYS))]);
    }
    match clone3 {
        Clone3::Refused => {
            code.extend([jump(libc::BPF_JEQ, libc::SYS_clone3 as u32, 0, 1), answer(refuse(libc::ENOSYS))]);
        }
        Clone3::LeftToExecs => {}
    }
    code.extend(scheduling());
    code.extend(sockets());
    match looks {
        ProcessInspection::Refused => {}
        // The keeper answers calls to the network, and does none of this itself.
        ProcessInspection::LeftToExecs => code.extend(seccomp_network::unguarded_ways()),
    }
    code.extend([
        jump(libc::BPF_JEQ, libc::SYS_clone as u32, 0, 3),
        load(FIRST_AT),
        jump(libc::BPF_JSET, NAMESPACE_FLAGS.cast_unsigned(), 0, 1),
        answer(refuse(libc::EPERM)),
        answer(libc::SECCOMP_RET_ALLOW),
    ]);
    code
}

/// A process may set only its own limits and scheduling. The syscall number is loaded before, and still loaded after
/// it.
fn scheduling() -> Vec<libc::sock_filter> {
    let mut code = Vec::new();
    for number in SELF_ONLY {
        code.extend([
            jump(libc::BPF_JEQ, *number as u32, 0, 4),
            load(FIRST_AT),
            jump(libc::BPF_JEQ, 0, 0, 1),
            answer(libc::SECCOMP_RET_ALLOW),
            answer(refuse(libc::EPERM)),
        ]);
    }
    for (number, process) in SELF_ONLY_BY_KIND {
        code.extend([
            jump(libc::BPF_JEQ, *number as u32, 0, 6),
            load(FIRST_AT),
            jump(libc::BPF_JEQ, *process, 0, 3),
            load(SECOND_AT),
            jump(libc::BPF_JEQ, 0, 0, 1),
            answer(libc::SECCOMP_RET_ALLOW),
            answer(refuse(libc::EPERM)),
        ]);
    }
    code.extend([
        jump(libc::BPF_JEQ, libc::SYS_prctl as u32, 0, 4),
        load(FIRST_AT),
        jump(libc::BPF_JEQ, PR_SCHED_CORE, 1, 0),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(refuse(libc::EPERM)),
    ]);
    code
}

/// With the number loaded, and loaded still behind it.
fn sockets() -> Vec<libc::sock_filter> {
    let past_list = SOCKETS.len() as u8;
    let mut code = vec![jump(libc::BPF_JEQ, libc::SYS_socket as u32, 0, past_list + 3), load(FIRST_AT)];
    for (at, family) in SOCKETS.iter().enumerate() {
        code.push(jump(libc::BPF_JEQ, family.cast_unsigned(), past_list - at as u8, 0));
    }
    code.extend([answer(refuse(libc::EAFNOSUPPORT)), answer(libc::SECCOMP_RET_ALLOW)]);
    code
}

pub(crate) fn refuse(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()
}

pub(crate) fn load(offset: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn decide(arch: u32, number: u32, first: u32) -> u32 {
        run(&program(Clone3::Refused, ProcessInspection::Refused), arch, number, [first, 0])
    }

    /// Runs a filter as the kernel would, with all but the first argument the same.
    pub(crate) fn run(
        program: &[libc::sock_filter],
        arch: u32,
        number: u32,
        [first, second]: [u32; 2],
    ) -> u32 {
        run_with(program, arch, number, [first, second, second, second])
    }

    pub(crate) fn run_with(
        program: &[libc::sock_filter],
        arch: u32,
        number: u32,
        arguments: [u32; 4],
    ) -> u32 {
        let [first, second, third, fourth] = arguments;
        let (mut at, mut loaded) = (0, 0);
        loop {
            let step = program[at];
            let class = u32::from(step.code) & 0x07;
            let test = u32::from(step.code) & 0xf0;
            at += 1;
            if class == libc::BPF_LD {
                loaded = [
                    (NUMBER_AT, number),
                    (ARCH_AT, arch),
                    (FIRST_AT, first),
                    (SECOND_AT, second),
                    (THIRD_AT, third),
                    (FOURTH_AT, fourth),
                ]
                .into_iter()
                .find(|(offset, _)| *offset == step.k)
                .map(|(_, value)| value)
                .unwrap();
            } else if class == libc::BPF_JMP {
                let holds = if test == libc::BPF_JEQ {
                    loaded == step.k
                } else if test == libc::BPF_JGE {
                    loaded >= step.k
                } else {
                    loaded & step.k != 0
                };
                at += usize::from(if holds { step.jt } else { step.jf });
            } else {
                return step.k;
            }
        }
    }

    #[test]
    fn the_filter_refuses_its_list_and_namespaces_and_nothing_that_programs_need() {
        for number in DENIED.iter().chain(&LOOKS) {
            assert_eq!(decide(ARCH, *number as u32, 0), refuse(libc::EPERM), "{number}");
        }
        assert_eq!(decide(ARCH, libc::SYS_clone3 as u32, 0), refuse(libc::ENOSYS));
        let clone = libc::SYS_clone as u32;
        for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET] {
            assert_eq!(decide(ARCH, clone, flag.cast_unsigned() | 17), refuse(libc::EPERM));
        }
        let thread = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_THREAD;
        assert_eq!(decide(ARCH, clone, thread.cast_unsigned()), libc::SECCOMP_RET_ALLOW);
        for number in [libc::SYS_read, libc::SYS_execve, libc::SYS_openat, libc::SYS_kill, libc::SYS_rseq] {
            assert_eq!(decide(ARCH, number as u32, u32::MAX), libc::SECCOMP_RET_ALLOW, "{number}");
        }
        let socket = libc::SYS_socket as u32;
        for family in SOCKETS {
            assert_eq!(decide(ARCH, socket, family.cast_unsigned()), libc::SECCOMP_RET_ALLOW, "{family}");
        }
        for family in [0, libc::AF_VSOCK, libc::AF_PACKET, libc::AF_ALG, libc::AF_BLUETOOTH, libc::AF_KEY, -1]
        {
            let refused = refuse(libc::EAFNOSUPPORT);
            assert_eq!(decide(ARCH, socket, family.cast_unsigned()), refused, "{family}");
        }
        assert_eq!(decide(0x4000_0003, 1, 0), libc::SECCOMP_RET_KILL_PROCESS);
        #[cfg(target_arch = "x86_64")]
        assert_eq!(decide(ARCH, X32_BIT | 1, 0), refuse(libc::ENOSYS));
    }

    #[test]
    fn a_process_schedules_itself_and_nobody_else() {
        for number in SELF_ONLY {
            assert_eq!(decide(ARCH, *number as u32, 0), libc::SECCOMP_RET_ALLOW, "{number}");
            for pid in [1, 4711, u32::MAX] {
                assert_eq!(decide(ARCH, *number as u32, pid), refuse(libc::EPERM), "{number} of {pid}");
            }
        }
        for (number, process) in SELF_ONLY_BY_KIND {
            let program = program(Clone3::LeftToExecs, ProcessInspection::Refused);
            let decide = |arguments| run(&program, ARCH, *number as u32, arguments);
            assert_eq!(decide([*process, 0]), libc::SECCOMP_RET_ALLOW, "{number}");
            for kind in 0..4 {
                assert_eq!(decide([kind, 1]), refuse(libc::EPERM), "{number}: {kind}");
                assert_eq!(
                    decide([kind, 0]) == libc::SECCOMP_RET_ALLOW,
                    kind == *process,
                    "{number}: {kind}"
                );
            }
        }
        let reads = [libc::SYS_sched_getaffinity, libc::SYS_sched_getscheduler, libc::SYS_getpriority];
        for number in reads.into_iter().chain([libc::SYS_ioprio_get, libc::SYS_sched_yield]) {
            assert_eq!(decide(ARCH, number as u32, 1), libc::SECCOMP_RET_ALLOW, "{number}");
        }
        assert_eq!(decide(ARCH, libc::SYS_prctl as u32, PR_SCHED_CORE), refuse(libc::EPERM));
        let name = libc::PR_SET_NAME.cast_unsigned();
        assert_eq!(decide(ARCH, libc::SYS_prctl as u32, name), libc::SECCOMP_RET_ALLOW);
        assert_eq!(decide(ARCH, libc::SYS_io_setup as u32, 1), refuse(libc::ENOSYS));
    }

    #[test]
    fn execs_have_no_clone3_also_where_the_keeper_does() {
        let clone3 = libc::SYS_clone3 as u32;
        let left = program(Clone3::LeftToExecs, ProcessInspection::Refused);
        assert_eq!(run(&left, ARCH, clone3, [0; 2]), libc::SECCOMP_RET_ALLOW);
        assert_eq!(run(&without_clone3(), ARCH, clone3, [0; 2]), refuse(libc::ENOSYS));
        for number in [libc::SYS_clone, libc::SYS_read, libc::SYS_execve] {
            assert_eq!(run(&without_clone3(), ARCH, number as u32, [0; 2]), libc::SECCOMP_RET_ALLOW);
        }
    }
}
