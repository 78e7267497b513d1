//! Why a provider could not be reached, in terms a person can act on.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use reqwest::Url;

/// What stood in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnreachableWhy {
    /// Its name has no address.
    NoSuchHost,
    /// Nothing listens there.
    Refused,
    /// It listens, and does not speak TLS that can be trusted.
    Tls,
    TimedOut,
    Other,
}

impl fmt::Display for UnreachableWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchHost => "the name of the host has no address",
            Self::Refused => "nothing listens there",
            Self::Tls => "no trusted TLS connection",
            Self::TimedOut => "no connection in time",
            Self::Other => "no connection",
        })
    }
}

impl UnreachableWhy {
    pub(crate) fn hint(self, provider: &str) -> String {
        let check = match self {
            Self::NoSuchHost => "check the host in its base-url, and this machine's DNS",
            Self::Refused => "check the port in its base-url, and that the server is running",
            Self::Tls => {
                "write http:// if it has no TLS; else check its certificate, this machine's clock and its certificates"
            }
            Self::TimedOut => "check the network, firewalls and proxy settings, or raise `connect-timeout`",
            Self::Other => "check the network and the base-url",
        };
        format!("{check}; then run `lodge provider test {provider}`")
    }
}

/// The bound for a diagnostic lookup.
const LOOKUP_MAX: Duration = Duration::from_secs(2);

/// Determines the reason after the failure. The error's types cover most cases. A name is looked up again, because a
/// failed lookup has no type.
pub(crate) async fn unreachable_reason(url: &Url, cause: &reqwest::Error) -> UnreachableWhy {
    if cause.is_timeout() {
        return UnreachableWhy::TimedOut;
    }
    let mut link: Option<&dyn Error> = cause.source();
    while let Some(error) = link {
        let io = error.downcast_ref::<io::Error>();
        match io.map(io::Error::kind) {
            Some(io::ErrorKind::ConnectionRefused) => return UnreachableWhy::Refused,
            Some(io::ErrorKind::TimedOut) => return UnreachableWhy::TimedOut,
            Some(io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) if url.scheme() == "https" => {
                return UnreachableWhy::Tls;
            }
            Some(_) | None => {}
        }
        // What such an error wraps is not its source: that is the source of what it wraps.
        link = match io.and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    let Some(host) = url.host_str() else { return UnreachableWhy::Other };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let place = (bare, url.port_or_known_default().unwrap_or(443));
    match tokio::time::timeout(LOOKUP_MAX, tokio::net::lookup_host(place)).await {
        Ok(Ok(mut addresses)) => match addresses.next() {
            Some(_) => UnreachableWhy::Other,
            None => UnreachableWhy::NoSuchHost,
        },
        Ok(Err(_)) | Err(_) => UnreachableWhy::NoSuchHost,
    }
}
