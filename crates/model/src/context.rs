//! What a call needs besides the request: limits, a place for script files, the shared HTTP clients.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::Url;

/// Bounds on one call. All of them are refusals with a name, never silent truncation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallLimits {
    pub connect: Duration,
    /// From sending the request to the first byte of the answer: some models are loaded first.
    pub first_byte: Duration,
    /// Silence longer than this within the answer ends the call.
    pub idle: Duration,
    /// The whole call, however lively.
    pub total: Duration,
    /// A list of models, for which no model is loaded.
    pub listing: Duration,
    /// One line of a stream.
    pub line_bytes_max: usize,
    /// Everything received in one call, comments and padding included.
    pub received_bytes_max: usize,
    /// Text and arguments together.
    pub answer_bytes_max: usize,
    pub calls_max: usize,
    /// Name and arguments of one tool call.
    pub call_bytes_max: usize,
}

impl Default for CallLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first_byte: Duration::from_secs(300),
            idle: Duration::from_secs(120),
            total: Duration::from_secs(3600),
            listing: Duration::from_secs(20),
            line_bytes_max: 4 << 20,
            received_bytes_max: 64 << 20,
            answer_bytes_max: 8 << 20,
            calls_max: 128,
            call_bytes_max: 1 << 20,
        }
    }
}

/// Cheap to clone; clones share their connections.
#[derive(Debug, Clone)]
pub struct CallContext {
    /// Where `<model>.yaml` is looked up for script providers without a `base-url`.
    pub data_dir: PathBuf,
    pub limits: CallLimits,
    http: Arc<HttpClients>,
}

/// Clients, each built when first needed: an idle daemon holds none.
#[derive(Debug, Default)]
struct HttpClients {
    clients: Mutex<Vec<(ClientKind, reqwest::Client)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ClientKind {
    connect: Duration,
    reach: ClientScope,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientScope {
    /// Plain HTTP to this machine: no proxy, and no certificate store in memory.
    Local,
    Remote,
}

/// One for each `connect-timeout` in use; the oldest makes room.
const CLIENTS_MAX: usize = 8;
const IDLE_CONNECTIONS_MAX: usize = 64;
const IDLE_CONNECTION_KEPT: Duration = Duration::from_secs(60);

impl CallContext {
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self::with_limits(data_dir, CallLimits::default())
    }

    pub fn with_limits(data_dir: impl Into<PathBuf>, limits: CallLimits) -> Self {
        Self { data_dir: data_dir.into(), limits, http: Arc::default() }
    }

    /// The same connections and limits, with script files from another directory.
    pub fn at(&self, data_dir: impl Into<PathBuf>) -> Self {
        Self { data_dir: data_dir.into(), limits: self.limits, http: Arc::clone(&self.http) }
    }

    /// The client for `url`, built on first use. `connect` takes the place of the context's limit.
    pub(crate) fn client(
        &self,
        url: &Url,
        connect: Option<Duration>,
    ) -> Result<reqwest::Client, reqwest::Error> {
        let reach = if is_plain_loopback(url) { ClientScope::Local } else { ClientScope::Remote };
        let wanted = ClientKind { connect: connect.unwrap_or(self.limits.connect), reach };
        // A panic while building leaves the list as it was, which is a valid state.
        let mut clients = self.http.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, client)) = clients.iter().find(|(kind, _)| *kind == wanted) {
            return Ok(client.clone());
        }
        // The client uses the process-wide provider; that it is installed already is no error.
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("lodge/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(wanted.connect)
            .tcp_nodelay(true)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .pool_idle_timeout(IDLE_CONNECTION_KEPT)
            // A redirected POST becomes a GET, and a key must not be sent to a host that is not configured.
            .redirect(reqwest::redirect::Policy::none());
        if reach == ClientScope::Local {
            builder = builder.no_proxy().tls_certs_only([]);
        }
        let client = builder.build()?;
        if clients.len() == CLIENTS_MAX {
            clients.remove(0);
        }
        clients.push((wanted, client.clone()));
        Ok(client)
    }
}

fn is_plain_loopback(url: &Url) -> bool {
    if url.scheme() != "http" {
        return false;
    }
    let Some(host) = url.host_str() else { return false };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_http_to_this_machine_bypasses_proxies() {
        for (url, local) in [
            ("http://127.0.0.1:80/v1", true),
            ("http://[::1]:80/v1", true),
            ("http://localhost/v1", true),
            ("https://127.0.0.1/v1", false),
            ("http://localhost.example/v1", false),
            ("http://10.0.0.1/v1", false),
        ] {
            assert_eq!(is_plain_loopback(&Url::parse(url).unwrap()), local, "{url}");
        }
    }
}
