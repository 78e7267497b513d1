//! How many files the daemon may have open, and how many its keepers begin with.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

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

    /// In a child, before it becomes a program: makes one system call, and allocates nothing.
    pub(crate) fn restore(&self) -> io::Result<()> {
        setrlimit(Resource::Nofile, self.0).map_err(io::Error::from)
    }
}
