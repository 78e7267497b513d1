//! A scripted model server in a process of its own, so that model requests are counted outside Lodge.
//!
//! The last user message of each request contains its commands, such as `[[reply:hello]]` or `[[cut:3]]`; `command` has
//! the list. Every request is written to a log before it is answered.

mod arguments;
mod command;
mod connection;
mod journal;
mod registry;
mod reply;
mod server;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::role::RoleProcess;

pub use self::arguments::run;
pub(crate) use self::arguments::run_here;
pub use self::journal::{RequestLine, RequestOutcome};
pub use self::registry::MockRegistry;
pub use self::server::{MockOptions, ScriptLine, serve};

/// Asking for this model gives what a provider says of a model it does not have.
pub const UNKNOWN_MODEL: &str = "no-such-model";

/// A running model server. Dropping it kills the process; it also ends when this process does.
#[derive(Debug)]
pub struct MockLlm {
    role: RoleProcess,
    log: PathBuf,
}

impl MockLlm {
    /// Starts one that logs to `dir`. `command` is a program that hands its arguments to [`run`], and may hold some.
    pub fn start(mut command: Command, dir: &Path) -> io::Result<Self> {
        let log = dir.join("mock-llm.log");
        command.args(["--port", "0", "--until-stdin-closes", "--log"]).arg(&log);
        Ok(Self { role: RoleProcess::spawn(command)?, log })
    }

    pub fn address(&self) -> SocketAddr {
        self.role.address()
    }

    /// For `base-url` in `providers.yaml`.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address())
    }

    pub fn pid(&self) -> u32 {
        self.role.pid()
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Every request so far, in order of arrival.
    pub fn requests(&self) -> io::Result<Vec<RequestLine>> {
        journal::read(&self.log)
    }

    /// The requests so far whose last user message contains `part`.
    pub fn requests_for(&self, part: &str) -> io::Result<Vec<RequestLine>> {
        Ok(self.requests()?.into_iter().filter(|line| line.user.contains(part)).collect())
    }
}
