//! What a sandbox is started from.

use std::io;
use std::path::PathBuf;

use lodge_link::{Bind, KeeperSecret, Limits, Network, PrivateRoot};

/// One sandbox, as its keeper has to know it.
#[derive(Debug, Clone)]
pub struct SandboxSpec {
    pub id: String,
    pub incarnation: u32,
    pub secret: KeeperSecret,
    /// The agent's directory, which becomes the root of the sandbox where this host allows it.
    pub root: PathBuf,
    /// What belongs into that root. None: the sandbox sees the host's tree with parts of it hidden.
    pub private_root: Option<PrivateRoot>,
    /// User and group of everything inside. Needed as root, without effect otherwise.
    pub uid: Option<u32>,
    pub binds: Vec<Bind>,
    pub network: Network,
    pub limits: Limits,
    /// Takes the keeper's words and the runtime's stderr.
    pub log: PathBuf,
    /// The directory for the output of commands, in a standalone sandbox.
    pub logs: Option<PathBuf>,
    /// Where the keeper dies, for crash tests.
    pub failpoint: Option<String>,
}

/// Whether a path of this host can be mounted with its owner mapped.
#[derive(Debug)]
pub enum OwnerTrial {
    Works,
    /// Its file system, or the kernel, cannot do that.
    Unsupported,
    /// It could not be tried.
    Failed(io::Error),
}
