//! Running a program under `strace`.

use std::path::Path;
use std::process::Command;

/// Every call by which the store changes files. That none is missing is seen by comparing the files afterwards.
const CALLS: &str = "trace=openat,write,pwrite64,ftruncate,fsync,fdatasync,mkdir,mkdirat,unlink,unlinkat,rmdir,\
                     rename,renameat,renameat2";
/// More than any one write: a trace with less would not do.
const BYTES_MAX: &str = "1048576";

/// Runs a program to its end and writes what it and its threads did to `trace`.
///
/// # Panics
/// When it cannot be traced or fails.
pub fn record(program: &Command, trace: &Path) {
    let mut command = Command::new("strace");
    command.args([
        "-f",
        "--seccomp-bpf",
        "-qq",
        "-y",
        "-xx",
        "-s",
        BYTES_MAX,
        "-e",
        CALLS,
        "-e",
        "signal=none",
    ]);
    command.arg("-o").arg(trace).arg(program.get_program()).args(program.get_args());
    for (key, value) in program.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    let output = command.output().unwrap_or_else(|error| panic!("strace could not be started: {error}"));
    assert!(
        output.status.success(),
        "{}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
