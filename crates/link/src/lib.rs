//! What a keeper and the daemon say to each other, byte for byte.
//!
//! Owns: frames, the handshake, exit records, the spec a keeper is started with, and every limit on
//! their size. Never: sockets, processes, files, clocks.
//!
//! The encoding is versioned and append-only. A field is added at the end and given a default; fields
//! that a reader does not know are ignored, and frames whose type it does not know are skipped.

mod assembler;
mod bounds;
mod exec_kind;
mod frame;
mod handshake;
mod job_files;
pub mod limits;
mod order;
mod record;
mod secret;
mod sha256;
mod spec;
mod wire;

pub use assembler::Assembler;
pub use bounds::{Controllers, EnforcedLimit, LimitHit, Limits, Resource};
pub use exec_kind::{ExecKind, RUNTIME_EXEC_PREFIX};
pub use frame::{FrameError, KeeperCommand, KeeperEvent, Layer, RawFrame, StartExec};
pub use handshake::{
    ConnectionRefused, ExecState, Hello, KeeperChallenge, KnownExec, NONCE_LEN, RefusalReason, VERSION,
    Welcome, daemon_proof, keeper_proof,
};
pub use job_files::{Segment, segment_name};
pub use order::{OrderMarks, OrderRuns, StreamKind};
pub use record::{ExitOutcome, ExitRecord, ResourceUsage, StreamCount};
pub use secret::{KeeperSecret, SECRET_LEN};
pub use sha256::{DIGEST_LEN, Sha256, hmac_sha256, same_bytes};
pub use spec::{Bind, BindOwner, FileIdentity, Grouping, KeeperSpec, Network, PrivateRoot};
pub use wire::DecodeError;

/// The lock whose holder is the keeper of the directory it lies in.
pub const LOCK_FILE: &str = "lock";
/// The socket a keeper listens on.
pub const SOCKET_FILE: &str = "k";
/// Pid and start time of the last keeper as its host saw them, `<pid> <start>\n`.
///
/// A hint for waiting until a dead keeper's tree is gone, never a way to find a living one.
pub const PID_FILE: &str = "pid";
/// The guardians of a keeper without a pid namespace, a line for each as in [`PID_FILE`].
///
/// They hold the keeper's lock until they have ended what it left, and any process of the same user may stop one.
pub const GUARDIANS_FILE: &str = "guardians";
/// The sandbox's cgroup as a path of the host, for the process that cleans up after a dead keeper.
pub const CGROUP_FILE: &str = "cgroup";
/// The sandbox's cgroups of version 1, one path of the host per line, for the process that removes them.
pub const CONTROLLERS_FILE: &str = "controllers";
/// Holds one directory for each claimed exec.
pub const EXEC_DIR: &str = "exec";
/// Within an exec's directory: its [`ExitRecord`].
pub const EXIT_FILE: &str = "exit";
/// Within an exec's directory: what it wrote to its standard output.
pub const STDOUT_FILE: &str = "stdout";
/// Within an exec's directory: what it wrote to its standard error.
pub const STDERR_FILE: &str = "stderr";
/// The name of a file in a sandbox's log directory: what a command wrote to its standard output.
pub fn stdout_log(exec: &str) -> String {
    format!("{exec}.stdout.log")
}

/// The same for its standard error.
pub fn stderr_log(exec: &str) -> String {
    format!("{exec}.stderr.log")
}

/// Within a job's directory: in which order its streams spoke, see [`OrderRuns`].
pub const ORDER_FILE: &str = "order";
/// Within a job's directory: how much of either stream was taken elsewhere, so that it may be gone from here.
pub const RELEASED_FILE: &str = "released";

/// Descriptors a keeper is started with.
pub mod descriptors {
    /// The directory `run/<id>`.
    pub const DIR: i32 = 3;
    /// The encoded [`KeeperSpec`](crate::KeeperSpec), read to its end.
    pub const SPEC: i32 = 4;
    /// The sandbox's log, opened for appending.
    pub const LOG: i32 = 5;
    /// Where the keeper says, in one byte and an optional text, how its start went.
    pub const READY: i32 = 6;
    /// The sandbox's cgroup, if it has one.
    pub const CGROUP: i32 = 7;
}

/// First byte a starting keeper writes to [`descriptors::READY`]; text may follow.
pub mod ready {
    /// It listens and holds the lock.
    pub const LISTENING: u8 = b'R';
    /// Another keeper holds the lock.
    pub const HELD: u8 = b'H';
    /// It gave up, for the reason that follows.
    pub const FAILED: u8 = b'F';
}

/// Exit code of a keeper that found the lock taken.
pub const EXIT_HELD: i32 = 75;
/// Exit code of a keeper that could not start.
pub const EXIT_FAILED: i32 = 71;

/// Whether `id` may name a sandbox or an exec: it becomes a directory's name.
pub fn is_valid_id(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= limits::ID_MAX
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::is_valid_id;

    #[test]
    fn an_id_is_never_a_path() {
        for good in ["a", "exec_0123-AB"] {
            assert!(is_valid_id(good), "{good}");
        }
        let long = "a".repeat(65);
        for bad in ["", ".", "..", "a/b", "a.b", "a b", "ä", long.as_str()] {
            assert!(!is_valid_id(bad), "{bad}");
        }
    }
}
