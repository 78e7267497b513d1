//! The daemon's process, as a client on the same machine sees it.
//!
//! Owns: how its end is waited for.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A process that can be waited for, though it is no child.
#[derive(Debug)]
pub struct DaemonProcess {
    fd: OwnedFd,
}

impl DaemonProcess {
    pub(crate) fn open(pid: i32) -> io::Result<DaemonProcess> {
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
        Ok(DaemonProcess { fd: pidfd_open(pid, PidfdFlags::empty())? })
    }

    /// Waits for the end of the process, and returns whether it came in time.
    pub async fn ended_within(self, within: Duration) -> bool {
        let wait = move || {
            let limit = Timespec::try_from(within).ok();
            let mut watched = [PollFd::new(&self.fd, PollFlags::IN)];
            let ended = retry_on_intr(|| poll(&mut watched, limit.as_ref()));
            ended.is_ok_and(|ready| ready == 1)
        };
        tokio::task::spawn_blocking(wait).await.unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_has_ended_only_when_it_did() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let open = || DaemonProcess::open(i32::try_from(child.id()).unwrap()).unwrap();
        let (early, late) = (open(), open());
        assert!(!early.ended_within(Duration::from_millis(1)).await, "it still reads");
        drop(child.stdin.take());
        assert!(late.ended_within(Duration::from_secs(60)).await);
        child.wait().unwrap();
    }
}
