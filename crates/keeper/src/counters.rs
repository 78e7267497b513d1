//! Counters that the kernel keeps for a user as a whole: how much of each one sandbox may take.
//!
//! As root every sandbox has a user of its own. Sandboxes of an ordinary user share one: without a bound, one of them
//! could take all of its inotify instances, message queues or pending signals from the others, and from the person.

use std::io;
use std::path::Path;

use crate::sys;

/// The part of a user's count that one sandbox may have: one in this many.
const SHARE: u64 = 4;
/// What a user namespace may limit further, and where the host's own limit is found.
const COUNTS: [(&str, &str); 2] = [
    ("/proc/sys/user/max_inotify_instances", "/proc/sys/fs/inotify/max_user_instances"),
    ("/proc/sys/user/max_inotify_watches", "/proc/sys/fs/inotify/max_user_watches"),
];
/// Signals that wait to be delivered, and timers, of which each takes one.
const SIGNALS_MAX: u64 = 4096;
/// Of message queues, together.
const MESSAGE_QUEUE_BYTES_MAX: u64 = 256 * 1024;

/// Bounds what this user namespace may have of its user's counts. Needs to be root in it.
pub(crate) fn bound_namespace() -> io::Result<()> {
    for (own, host) in COUNTS {
        let failed = |error: io::Error| io::Error::other(format!("{own}: {error}"));
        let most: u64 = read_number(host).map_err(failed)?;
        std::fs::write(own, (most / SHARE).max(1).to_string()).map_err(failed)?;
    }
    Ok(())
}

/// Bounds what each process of the sandbox may have, and takes from it what would let it run before others.
pub(crate) fn bound_processes() -> io::Result<()> {
    let all = [
        (libc::RLIMIT_SIGPENDING, SIGNALS_MAX),
        (libc::RLIMIT_MSGQUEUE, MESSAGE_QUEUE_BYTES_MAX),
        (libc::RLIMIT_RTPRIO, 0),
        (libc::RLIMIT_NICE, 0),
    ];
    all.into_iter().try_for_each(|(which, most)| sys::set_rlimit(which, most, most))
}

fn read_number(path: &str) -> io::Result<u64> {
    std::fs::read_to_string(Path::new(path))?.trim().parse().map_err(io::Error::other)
}
