//! Descriptors: how many the keeper may have, and what it leaves for execs.
//!
//! The keeper takes as many as it can get, because it holds several for each exec. Programs keep the ordinary
//! limit: some close every descriptor up to it, and some break beyond what `select` can count.

use std::io;

use crate::sys;

/// Descriptors that one exec needs while it runs: three pipes, its directory, four files, and what holds it.
const PER_EXEC: usize = 10;
/// Those of the keeper itself, of peers, of spare directories and sockets, and of an exec that is just being started.
const RESERVED: usize = 80;

/// The limits on descriptors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DescriptorLimits {
    /// As it was inherited, where the keeper's own is another now.
    ordinary: Option<libc::rlimit>,
    own: libc::rlim_t,
}

/// What holds descriptors in a keeper.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenDescriptors {
    pub(crate) execs: usize,
    /// Of execs that ended: a cgroup or a pipe that others still have, each with one descriptor.
    pub(crate) rest: usize,
}

impl DescriptorLimits {
    /// Raises the keeper's own limit as far as it goes.
    pub(crate) fn raise() -> io::Result<DescriptorLimits> {
        let mut ordinary = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the structure is filled in, and outlives the call.
        sys::check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut ordinary) })?;
        let raised = libc::rlimit { rlim_cur: ordinary.rlim_max, ..ordinary };
        // SAFETY: the structure outlives the call.
        match sys::check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) }) {
            Ok(_) => Ok(DescriptorLimits { ordinary: Some(ordinary), own: raised.rlim_cur }),
            // A host that lowered its own bound since then refuses any change.
            Err(_) => Ok(DescriptorLimits { ordinary: None, own: ordinary.rlim_cur }),
        }
    }

    /// How many the keeper may have.
    pub(crate) fn own(&self) -> usize {
        usize::try_from(self.own).unwrap_or(usize::MAX)
    }

    /// In a child: the limit of ordinary processes.
    pub(crate) fn restore(&self) -> io::Result<()> {
        let Some(ordinary) = &self.ordinary else { return Ok(()) };
        // SAFETY: the structure outlives the call.
        sys::check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, ordinary) }).map(drop)
    }

    /// Whether there are descriptors for one exec more.
    pub(crate) fn suffice(&self, holding: OpenDescriptors) -> bool {
        let needed = RESERVED + holding.rest + (holding.execs + 1) * PER_EXEC;
        libc::rlim_t::try_from(needed).is_ok_and(|needed| needed <= self.own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_execs_run_as_there_are_descriptors_for() {
        let most = |own: libc::rlim_t, rest: usize| {
            let files = DescriptorLimits { ordinary: None, own };
            (0..1000).take_while(|execs| files.suffice(OpenDescriptors { execs: *execs, rest })).count()
        };
        assert_eq!(most(64, 0), 0);
        assert_eq!(most(1024, 0), 94);
        assert_eq!(most(1024, 90), 85);
        assert_eq!(most(libc::RLIM_INFINITY, 0), 1000);
    }
}
