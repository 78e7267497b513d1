//! The keeper's own words, appended to the sandbox's log.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use crate::sys;

/// Shared with the runtime, whose stderr it is.
#[derive(Debug)]
pub(crate) struct KeeperLog(File);

impl KeeperLog {
    pub(crate) fn new(fd: OwnedFd) -> KeeperLog {
        KeeperLog(File::from(fd))
    }

    /// Writes one line. A log that cannot be written must not stop the keeper.
    pub(crate) fn write_line(&self, what: &str) {
        let line = format!("{} keeper: {what}\n", sys::now_ms());
        if (&self.0).write_all(line.as_bytes()).is_err() {
            // Nowhere is left to say it.
        }
    }

    pub(crate) fn duplicate(&self) -> std::io::Result<OwnedFd> {
        self.0.try_clone().map(OwnedFd::from)
    }
}
