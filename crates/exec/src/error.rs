//! Errors of processes and sandboxes, with code and hint.

use std::io;
use std::path::PathBuf;

use lodge_link::DecodeError;

/// The state directory's own part of this crate cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    #[error("could not prepare {}", path.display())]
    Prepare {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("could not store the program {}", path.display())]
    StoreProgram {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("`{name}` cannot name a program")]
    BadName { name: String },
    #[error("could not read the boot id of the host")]
    NoBootId {
        #[source]
        cause: io::Error,
    },
}

impl HostError {
    /// Stable, documented, never reused.
    pub fn code(&self) -> &'static str {
        match self {
            HostError::Prepare { .. } => "host.state_unusable",
            HostError::StoreProgram { .. } => "host.program_not_stored",
            HostError::BadName { .. } => "host.bad_program_name",
            HostError::NoBootId { .. } => "host.no_boot_id",
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            HostError::Prepare { path, .. } | HostError::StoreProgram { path, .. } => {
                Some(format!("check that {} is writable and has room", path.display()))
            }
            HostError::BadName { .. } => None,
            HostError::NoBootId { .. } => Some("check that /proc is mounted".to_owned()),
        }
    }
}

/// A sandbox has no keeper, and this is why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    #[error("`{sandbox}` cannot name a sandbox")]
    BadId { sandbox: String },
    #[error("could not prepare the directory of sandbox {sandbox}")]
    Prepare {
        sandbox: String,
        #[source]
        cause: io::Error,
    },
    #[error("could not open the log {}", path.display())]
    Log {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("the spec of sandbox {sandbox} is {len} bytes long, where {len_max} are allowed")]
    SpecTooLong { sandbox: String, len: usize, len_max: usize },
    #[error("could not run the keeper {}", path.display())]
    NoKeeper {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("the keeper program is missing or changed")]
    NotStored {
        #[source]
        cause: HostError,
    },
    #[error("the keeper of sandbox {sandbox} gave up: {why}")]
    GaveUp { sandbox: String, why: String },
    #[error("the keeper of sandbox {sandbox} died while it started")]
    Died { sandbox: String },
    #[error("the keeper of sandbox {sandbox} was not ready after {waited_s} s")]
    NotReady { sandbox: String, waited_s: u64 },
    #[error("as root, sandbox {sandbox} needs a user of its own")]
    NoUser { sandbox: String },
    #[error("could not end the processes that the last keeper of sandbox {sandbox} left")]
    OldTree {
        sandbox: String,
        #[source]
        cause: io::Error,
    },
}

impl StartError {
    /// Stable, documented, never reused.
    pub fn code(&self) -> &'static str {
        match self {
            StartError::BadId { .. } => "sandbox.bad_id",
            StartError::Prepare { .. } => "sandbox.not_prepared",
            StartError::Log { .. } => "sandbox.no_log",
            StartError::SpecTooLong { .. } => "sandbox.spec_too_long",
            StartError::NoKeeper { .. } => "sandbox.no_keeper",
            StartError::NotStored { .. } => "sandbox.keeper_not_stored",
            StartError::GaveUp { .. } => "sandbox.keeper_gave_up",
            StartError::Died { .. } => "sandbox.keeper_died",
            StartError::NotReady { .. } => "sandbox.keeper_not_ready",
            StartError::NoUser { .. } => "sandbox.no_user",
            StartError::OldTree { .. } => "sandbox.old_tree",
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            StartError::Prepare { .. } | StartError::Log { .. } => {
                Some("check that the state directory is writable and has room".to_owned())
            }
            StartError::NoKeeper { .. } => {
                Some("check that the state directory is not mounted noexec".to_owned())
            }
            StartError::NotStored { cause } => cause.hint(),
            StartError::SpecTooLong { .. } => Some("use fewer mounts".to_owned()),
            StartError::GaveUp { .. } | StartError::Died { .. } | StartError::NotReady { .. } => {
                Some("see the sandbox's log, and `lodge info` for what this host can do".to_owned())
            }
            StartError::OldTree { sandbox, .. } => {
                Some(format!("check who may write the cgroup that `run/{sandbox}/cgroup` names"))
            }
            StartError::BadId { .. } | StartError::NoUser { .. } => None,
        }
    }
}

/// There is no link to a sandbox's keeper, and this is why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    #[error("`{sandbox}` cannot name a sandbox")]
    BadId { sandbox: String },
    #[error("sandbox {sandbox} has no keeper")]
    NoKeeper {
        sandbox: String,
        #[source]
        cause: io::Error,
    },
    #[error("the connection to the keeper of sandbox {sandbox} broke")]
    Broke {
        sandbox: String,
        #[source]
        cause: io::Error,
    },
    #[error("the keeper of sandbox {sandbox} did not answer within {waited_ms} ms")]
    TimedOut { sandbox: String, waited_ms: u64 },
    #[error("the keeper of sandbox {sandbox} does not accept this daemon's proof")]
    WrongSecret { sandbox: String },
    #[error("the process that answers for sandbox {sandbox} is not its keeper")]
    Impostor { sandbox: String },
    #[error("the keeper of sandbox {sandbox} serves a daemon of the later epoch {current}")]
    OldEpoch { sandbox: String, current: u64 },
    #[error("too many others are dialling the keeper of sandbox {sandbox}")]
    Busy { sandbox: String },
    #[error("the keeper of sandbox {sandbox} violates the link protocol")]
    Garbled {
        sandbox: String,
        #[source]
        cause: Option<DecodeError>,
    },
}

/// Whether this process is short of descriptors or memory. That passes, and says nothing about the other side.
fn is_shortage(cause: &io::Error) -> bool {
    matches!(cause.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS))
}

impl DialError {
    /// Whether the daemon could not try: it is short of descriptors or memory.
    pub fn is_shortage(&self) -> bool {
        match self {
            DialError::NoKeeper { cause, .. } | DialError::Broke { cause, .. } => is_shortage(cause),
            DialError::BadId { .. }
            | DialError::TimedOut { .. }
            | DialError::WrongSecret { .. }
            | DialError::Impostor { .. }
            | DialError::OldEpoch { .. }
            | DialError::Busy { .. }
            | DialError::Garbled { .. } => false,
        }
    }

    /// Stable, documented, never reused.
    pub fn code(&self) -> &'static str {
        match self {
            DialError::BadId { .. } => "sandbox.bad_id",
            DialError::NoKeeper { .. } => "keeper.absent",
            DialError::Broke { .. } => "keeper.connection_broke",
            DialError::TimedOut { .. } => "keeper.timed_out",
            DialError::WrongSecret { .. } => "keeper.wrong_secret",
            DialError::Impostor { .. } => "keeper.impostor",
            DialError::OldEpoch { .. } => "keeper.old_epoch",
            DialError::Busy { .. } => "keeper.busy",
            DialError::Garbled { .. } => "keeper.garbled",
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            DialError::WrongSecret { .. } | DialError::Impostor { .. } => Some(
                "the state key changed since the sandbox was started: stop its keeper by hand".to_owned(),
            ),
            DialError::OldEpoch { .. } => {
                Some("another daemon runs on this state directory: stop one of them".to_owned())
            }
            DialError::BadId { .. }
            | DialError::NoKeeper { .. }
            | DialError::Broke { .. }
            | DialError::TimedOut { .. }
            | DialError::Busy { .. }
            | DialError::Garbled { .. } => None,
        }
    }
}

/// A command did not leave the daemon whole. The link is closed; the command may be asked again on the next.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    #[error("the connection to the keeper is lost")]
    Lost {
        #[source]
        cause: Option<io::Error>,
    },
    #[error("a command of {len} bytes, where {len_max} are allowed")]
    TooLong { len: usize, len_max: usize },
}

/// A file of a sandbox is not valid. The caller decides what to do about each of these.
#[derive(Debug, thiserror::Error)]
pub enum SandboxReadError {
    #[error("`{id}` cannot name a sandbox or an exec")]
    BadId { id: String },
    #[error("there is no {what}")]
    Absent { what: &'static str },
    #[error("could not open the {what}")]
    Open {
        what: &'static str,
        #[source]
        cause: io::Error,
    },
    #[error("could not read the {what}")]
    Read {
        what: &'static str,
        #[source]
        cause: io::Error,
    },
    #[error("the {what} is not a plain file with one name")]
    NotPlain { what: &'static str },
    #[error("the {what} is {len} bytes long, where {len_max} are allowed")]
    TooLong { what: &'static str, len: u64, len_max: u64 },
}

impl SandboxReadError {
    /// Whether the daemon could not try: it is short of descriptors or memory.
    pub fn is_shortage(&self) -> bool {
        match self {
            SandboxReadError::Open { cause, .. } | SandboxReadError::Read { cause, .. } => is_shortage(cause),
            SandboxReadError::BadId { .. }
            | SandboxReadError::Absent { .. }
            | SandboxReadError::NotPlain { .. }
            | SandboxReadError::TooLong { .. } => false,
        }
    }
}

/// A sandbox's directory is still there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoveError {
    #[error("`{id}` cannot name a sandbox or an exec")]
    BadId { id: String },
    #[error("sandbox {sandbox} still has a keeper")]
    Held { sandbox: String },
    #[error("processes of sandbox {sandbox} were killed and are not gone yet")]
    Dying { sandbox: String },
    #[error("could not remove {}", path.display())]
    Remove {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
}
