//! Registries: the OCI distribution protocol, as a client that trusts no server.
//!
//! Owns: requests, answers within bounds, credentials where they belong. Never: writes a file but through the store.

mod auth;
mod blob_answer;
mod challenge;
mod error;
mod http;
mod net;
mod pull;
mod push;
mod retry;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use self::auth::RegistryTokens;
pub use self::error::RegistryError;
use self::http::RepositoryClient;
use self::net::RegistryHttpClients;
use crate::oci::Descriptor;
use crate::{Digest, RemoteImage};

/// Blobs of one transfer that are moved at the same time.
const AT_ONCE: usize = 4;

/// What a registry asks for before it answers.
#[derive(Clone, PartialEq, Eq)]
pub struct RegistryLogin {
    pub user: String,
    pub secret: String,
    /// The secret is an identity token, to be exchanged.
    pub is_token: bool,
}

impl fmt::Debug for RegistryLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Finds the login for a registry. This may take a while: it can run helper programs.
pub trait RegistryLogins: Send + Sync {
    fn login(&self, host: &str) -> Result<Option<RegistryLogin>, String>;
}

/// The progress of a transfer. Called often, by the tasks that move bytes.
pub trait TransferWatch: Send + Sync {
    /// Something is going to be moved.
    fn planned(&self, part: &Descriptor);
    /// A planned part needs no transfer.
    fn there(&self, part: &Descriptor);
    /// This many bytes of it are transferred.
    fn moved(&self, part: &Digest, bytes: u64);
}

/// Timeouts and retries for a registry.
#[derive(Debug, Clone)]
pub struct RegistryTerms {
    /// The time to establish a connection.
    pub connect: Duration,
    /// Without a byte in either direction.
    pub silence: Duration,
    /// The minimum number of bytes of a blob in that time. Less counts as a stall: a very slow transfer would occupy
    /// a slot without limit.
    pub pace: u64,
    /// For all of an answer that is not a blob.
    pub whole: Duration,
    /// Of one request, or of a transfer since it last got on.
    pub tries: u32,
    /// Before the second try. It doubles from there on.
    pub pause: Duration,
    /// Also for a registry that asks for a longer one.
    pub pause_max: Duration,
    /// Bytes that are sent with one request once a larger one was cut.
    pub chunk: u64,
    /// Which addresses a registry outside must not lead to.
    pub inward: fn(IpAddr) -> bool,
    /// What reads a document that a registry sent, as the caller wants it run on another thread.
    pub carry: fn(ReadTask) -> ReadTask,
}

/// Work for another thread: reading what a stranger sent.
pub type ReadTask = Box<dyn FnOnce() + Send>;

impl Default for RegistryTerms {
    fn default() -> RegistryTerms {
        RegistryTerms {
            connect: Duration::from_secs(10),
            silence: Duration::from_secs(30),
            pace: 1 << 10,
            whole: Duration::from_secs(120),
            tries: 5,
            pause: Duration::from_millis(300),
            pause_max: Duration::from_secs(30),
            chunk: 8 << 20,
            inward: net::is_inward,
            carry: |reading| reading,
        }
    }
}

/// A client of registries. Clones share connections and tokens.
#[derive(Clone)]
pub struct RegistryClient {
    inner: Arc<RegistryClientInner>,
}

struct RegistryClientInner {
    logins: Arc<dyn RegistryLogins>,
    terms: RegistryTerms,
    clients: RegistryHttpClients,
    passes: RegistryTokens,
}

impl fmt::Debug for RegistryClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registries").finish_non_exhaustive()
    }
}

impl RegistryClient {
    pub fn with_terms(logins: Arc<dyn RegistryLogins>, terms: RegistryTerms) -> RegistryClient {
        let clients = RegistryHttpClients::new(terms.connect, terms.inward);
        RegistryClient {
            inner: Arc::new(RegistryClientInner {
                logins,
                terms,
                clients,
                passes: RegistryTokens::default(),
            }),
        }
    }

    /// Whether a registry is in this machine or network, by its address or by what its name leads to now.
    pub async fn is_inward(&self, remote: &RemoteImage) -> bool {
        match RepositoryClient::of(remote) {
            Ok(home) => self.inner.clients.leads_inward(&home.base).await,
            Err(_) => false,
        }
    }
}
