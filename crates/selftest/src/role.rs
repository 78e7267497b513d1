//! Helper processes of the selftest: they report their address, and end with their standard input.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use crate::crash::effects;
use crate::mock;

pub(crate) const EFFECTS: &str = "effects";
pub(crate) const MODEL: &str = "model";

/// A process in one of the roles. Dropping it ends it; it also ends when this process does.
#[derive(Debug)]
pub struct RoleProcess {
    child: Child,
    address: SocketAddr,
}

impl RoleProcess {
    /// Starts it and waits for the line that says where it listens.
    pub fn spawn(mut command: Command) -> io::Result<RoleProcess> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let address = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe.into()).and_then(|stdout| {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line)?;
            let address = line.trim().strip_prefix("listening ").and_then(|text| text.parse().ok());
            address.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("it said {line:?}")))
        });
        match address {
            Ok(address) => Ok(RoleProcess { child, address }),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for RoleProcess {
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing to do about that here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What `lodge selftest-role <role> …` does. Wrong arguments are `InvalidInput`.
pub fn take_role(role: &str, arguments: &[String]) -> io::Result<()> {
    match role {
        EFFECTS => effects::count_to(arguments),
        MODEL => mock::run_here(arguments),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no role `{role}`"))),
    }
}

/// Reports the listening address to the parent process.
pub(crate) fn listening(address: SocketAddr) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "listening {address}")?;
    out.flush()
}

/// The parent process has the other end of standard input: when it ends, this process ends too.
pub(crate) fn end_with_stdin() {
    std::thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
}
