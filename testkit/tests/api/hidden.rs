//! What only root may inspect: the daemon's memory, even if an ordinary user runs it.

use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use lodge_testkit::lodge::{Lodge, until};

const NOBODY: u32 = 65_534;

#[test]
fn the_memory_of_an_ordinary_users_daemon_is_roots_to_read_and_the_daemon_runs_all_the_same() {
    let lodge = Lodge::new();
    let root = std::fs::metadata(lodge.dir()).is_ok_and(|meta| meta.uid() == 0);
    let mut command = lodge.daemon_command();
    command.stdout(Stdio::null()).stderr(Stdio::null());
    if root {
        chown(lodge.dir(), Some(NOBODY), Some(NOBODY)).expect("a new owner");
        command.uid(NOBODY).gid(NOBODY);
    }
    let mut daemon = command.spawn().expect("lodged runs");
    // It is bound through /proc/self/fd, which stays open to the process itself.
    until("the daemon listens", || lodge.home().join("lodge.sock").exists().then_some(()));
    // For a process that is not dumpable, the kernel gives these files to root.
    let owner = std::fs::metadata(format!("/proc/{}/environ", daemon.id())).map(|meta| meta.uid());
    daemon.kill().expect("it can be ended");
    daemon.wait().expect("it ends");
    assert_eq!(owner.expect("a running daemon"), 0);
}
