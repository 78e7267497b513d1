//! Which programs a run uses.

use std::path::PathBuf;
use std::process::Command;

/// The hidden command of `lodge` under which it counts for a run. Its first argument is the role.
pub const ROLE_COMMAND: &str = "selftest-role";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    pub lodge: PathBuf,
    pub lodged: PathBuf,
}

impl Programs {
    /// `lodge` in one of its roles.
    pub(crate) fn role(&self, role: &str) -> Command {
        let mut command = Command::new(&self.lodge);
        command.env_clear().args([ROLE_COMMAND, role]);
        command
    }
}
