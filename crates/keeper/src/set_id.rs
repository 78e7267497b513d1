//! Calls that would leave a set-user-id or set-group-id program in a directory of the host, where its mount does not keep
//! others from running it with the rights of the owner.
//!
//! A filter beside the one of `seccomp`, on a keeper whose sandbox may write to the host. Owns: which bits, and the calls
//! that can set them. Not among them: `mkdir`, whose bits the kernel drops, and the group that it passes on to directories.

use std::io;

use lodge_link::KeeperSpec;

use crate::bpf::{answer, jump};
use crate::seccomp::{FOURTH_AT, NUMBER_AT, SECOND_AT, THIRD_AT, install, load, refuse};
use crate::sys;

/// Calls that set a mode, and where it lies.
const SETS: &[(libc::c_long, u32)] = &[
    (libc::SYS_fchmod, SECOND_AT),
    (libc::SYS_fchmodat, THIRD_AT),
    (libc::SYS_fchmodat2, THIRD_AT),
    (libc::SYS_mknodat, THIRD_AT),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, SECOND_AT),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, SECOND_AT),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, SECOND_AT),
];
/// Calls that set a mode if they create a file, and where flags and mode lie.
const OPENS: &[(libc::c_long, u32, u32)] = &[
    (libc::SYS_openat, THIRD_AT, FOURTH_AT),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, SECOND_AT, THIRD_AT),
];
/// The part of `O_TMPFILE` that is not `O_DIRECTORY`.
const TMPFILE: libc::c_int = libc::O_TMPFILE & !libc::O_DIRECTORY;

/// The bits that programs of this sandbox may not set; 0: all may be set.
///
/// Where files belong to the owner of a mounted directory, no set-id program of that owner may come into being. Elsewhere
/// the group bit stays: `git` sets it on directories of shared repositories.
pub(crate) fn refused_bits(spec: &KeeperSpec) -> u32 {
    let mut writable = spec.binds.iter().filter(|bind| !bind.read_only).peekable();
    if writable.peek().is_none() {
        return 0;
    }
    let maps = sys::is_root() && writable.any(|bind| bind.owner.is_some());
    if maps { libc::S_ISUID | libc::S_ISGID } else { libc::S_ISUID }
}

/// Refuses to set these bits, to this process and all that it starts. Needs `no_new_privs`, and a filter before it that lets
/// no other convention through.
pub(crate) fn refuse_bits(bits: u32) -> io::Result<()> {
    install(&program(bits))
}

fn program(bits: u32) -> Vec<libc::sock_filter> {
    let mut code = vec![load(NUMBER_AT)];
    for (number, mode_at) in SETS {
        code.extend([
            jump(libc::BPF_JEQ, *number as u32, 0, 4),
            load(*mode_at),
            jump(libc::BPF_JSET, bits, 0, 1),
            answer(refuse(libc::EPERM)),
            answer(libc::SECCOMP_RET_ALLOW),
        ]);
    }
    for (number, flags_at, mode_at) in OPENS {
        code.extend([
            jump(libc::BPF_JEQ, *number as u32, 0, 6),
            load(*flags_at),
            // Otherwise the mode is ignored, and may be anything.
            jump(libc::BPF_JSET, (libc::O_CREAT | TMPFILE).cast_unsigned(), 0, 3),
            load(*mode_at),
            jump(libc::BPF_JSET, bits, 0, 1),
            answer(refuse(libc::EPERM)),
            answer(libc::SECCOMP_RET_ALLOW),
        ]);
    }
    code.extend([
        // Its mode is in memory, where a filter cannot read it. Programs fall back to `openat`.
        jump(libc::BPF_JEQ, libc::SYS_openat2 as u32, 0, 1),
        answer(refuse(libc::ENOSYS)),
        answer(libc::SECCOMP_RET_ALLOW),
    ]);
    code
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp::ARCH;
    use crate::seccomp::tests::run_with;

    const BOTH: u32 = libc::S_ISUID | libc::S_ISGID;

    fn decide(bits: u32, number: libc::c_long, arguments: [u32; 4]) -> u32 {
        run_with(&program(bits), ARCH, number as u32, arguments)
    }

    /// Arguments with a mode at its place and others that look like modes of set-id files around it.
    fn with(at: u32, value: u32, others: u32) -> [u32; 4] {
        [16, SECOND_AT, THIRD_AT, FOURTH_AT].map(|place| if place == at { value } else { others })
    }

    #[test]
    fn no_call_sets_a_refused_bit_and_all_other_modes_pass() {
        for (number, at) in SETS {
            for mode in [0o4755, 0o2755, 0o6000, 0o7777, 0o104_755] {
                assert_eq!(
                    decide(BOTH, *number, with(*at, mode, 0)),
                    refuse(libc::EPERM),
                    "{number} {mode:o}"
                );
            }
            for mode in [0, 0o644, 0o755, 0o1777, 0o100_644] {
                let decided = decide(BOTH, *number, with(*at, mode, 0o6755));
                assert_eq!(decided, libc::SECCOMP_RET_ALLOW, "{number} {mode:o}");
            }
            let shared = decide(libc::S_ISUID, *number, with(*at, 0o2775, 0));
            assert_eq!(shared, libc::SECCOMP_RET_ALLOW);
            assert_eq!(decide(libc::S_ISUID, *number, with(*at, 0o4755, 0)), refuse(libc::EPERM));
        }
        for (number, flags_at, mode_at) in OPENS {
            let opened = |flags: i32, mode: u32| {
                let mut arguments = with(*mode_at, mode, 0);
                arguments[((flags_at - 16) / 8) as usize] = flags.cast_unsigned();
                decide(BOTH, *number, arguments)
            };
            for creates in [libc::O_CREAT, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, libc::O_TMPFILE] {
                assert_eq!(opened(creates, 0o4755), refuse(libc::EPERM), "{number} {creates:o}");
                assert_eq!(opened(creates, 0o2711), refuse(libc::EPERM), "{number} {creates:o}");
                assert_eq!(opened(creates, 0o666), libc::SECCOMP_RET_ALLOW, "{number} {creates:o}");
            }
            for opens in [0, libc::O_RDWR | libc::O_CLOEXEC, libc::O_DIRECTORY | libc::O_PATH] {
                assert_eq!(opened(opens, u32::MAX), libc::SECCOMP_RET_ALLOW, "{number} {opens:o}");
            }
        }
        assert_eq!(decide(BOTH, libc::SYS_openat2, [0; 4]), refuse(libc::ENOSYS));
        for number in [libc::SYS_read, libc::SYS_execve, libc::SYS_mkdirat, libc::SYS_renameat2] {
            assert_eq!(decide(BOTH, number, [0o6755; 4]), libc::SECCOMP_RET_ALLOW);
        }
    }
}
