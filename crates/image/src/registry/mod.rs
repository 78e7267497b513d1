//! Registries: the OCI distribution protocol, as a client that trusts nobody.
//!
//! Owns: requests, answers within bounds, credentials where they belong. Never: writes a file but through the store.

mod auth;
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

use self::auth::Passes;
pub use self::error::RegistryError;
use self::http::Home;
use self::net::Clients;
use crate::oci::Descriptor;
use crate::{Digest, Remote};

/// Blobs of one transfer that are moved at the same time.
const AT_ONCE: usize = 4;

/// What a registry asks for before it answers.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub user: String,
    pub secret: String,
    /// The secret is an identity token, to be exchanged.
    pub is_token: bool,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Finds the login for a registry. It may take its time: programs are asked.
pub trait Logins: Send + Sync {
    fn login(&self, host: &str) -> Result<Option<Login>, String>;
}

/// How far a transfer is. Called often, from whoever moves bytes.
pub trait Watch: Send + Sync {
    /// Something is going to be moved.
    fn planned(&self, part: &Descriptor);
    /// Something needs not be moved, whatever was planned.
    fn there(&self, part: &Descriptor);
    /// So many bytes of it are there.
    fn moved(&self, part: &Digest, bytes: u64);
}

/// How long a registry is waited for, and how often it is asked.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Until a connection stands.
    pub connect: Duration,
    /// Without a byte in either direction.
    pub silence: Duration,
    /// Bytes of a blob that come within such a time at least. Fewer are as good as none: a byte now and then would hold a
    /// place among the transfers for ever.
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
    pub carry: fn(Reading) -> Reading,
}

/// Work for another thread: reading what a stranger sent.
pub type Reading = Box<dyn FnOnce() + Send>;

impl Default for Terms {
    fn default() -> Terms {
        Terms {
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
pub struct Registries {
    inner: Arc<Inner>,
}

struct Inner {
    logins: Arc<dyn Logins>,
    terms: Terms,
    clients: Clients,
    passes: Passes,
}

impl fmt::Debug for Registries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registries").finish_non_exhaustive()
    }
}

impl Registries {
    pub fn new(logins: Arc<dyn Logins>) -> Registries {
        Registries::with_terms(logins, Terms::default())
    }

    pub fn with_terms(logins: Arc<dyn Logins>, terms: Terms) -> Registries {
        let clients = Clients::new(terms.connect, terms.inward);
        Registries { inner: Arc::new(Inner { logins, terms, clients, passes: Passes::default() }) }
    }

    /// Whether a registry is in this machine or network, by its address or by what its name leads to now.
    pub async fn is_inward(&self, remote: &Remote) -> bool {
        match Home::of(remote) {
            Ok(home) => self.inner.clients.leads_inward(&home.base).await,
            Err(_) => false,
        }
    }
}
