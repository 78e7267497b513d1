//! The limit of open files of the daemon, and the one that its keepers start with.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What `select` can do with.
const FEW: u64 = 1_024;

/// The limit of open files as this process was started with. Programs that use `select` fail beyond 1,024, so what the
/// daemon starts begins with this one.
#[derive(Debug, Clone, Copy)]
pub struct FileLimit(Rlimit);

impl FileLimit {
    /// Raises this process's own limit to the highest that it may have, and returns the one that it was started with. An
    /// error: the host lowered its own bound since then, and refuses any change.
    pub fn raise() -> io::Result<FileLimit> {
        let ordinary = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: ordinary.maximum, maximum: ordinary.maximum };
        setrlimit(Resource::Nofile, raised)?;
        Ok(FileLimit(ordinary))
    }

    /// In a child, before it becomes a program: makes one system call, and allocates nothing. A host that lowered its own
    /// bound since then refuses any change; the child begins with the daemon's limit then.
    pub(crate) fn restore(&self) {
        setrlimit(Resource::Nofile, self.0).ok();
    }
}

/// As [`FileLimit::restore`], for a program that needs few files.
pub(crate) fn lower_in_child() {
    let own = getrlimit(Resource::Nofile);
    let current = Some(own.current.map_or(FEW, |current| current.min(FEW)));
    setrlimit(Resource::Nofile, Rlimit { current, ..own }).ok();
}
