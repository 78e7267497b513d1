//! Allowed addresses and redirects, and the HTTP clients that enforce them.
//!
//! Owns: which hosts are contacted. A registry on the internet can name any address in a redirect; a host inside this
//! network must not become reachable that way.

mod lookup_cache;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, Url};

use self::lookup_cache::{CachingResolver, LookupCache};

/// Hosts that answer a redirect with another, before we give up.
pub(super) const REDIRECTS_MAX: usize = 5;
const IDLE_CONNECTIONS_MAX: usize = 8;
const IDLE_CONNECTION_KEPT: Duration = Duration::from_secs(30);
/// The variables that name a proxy, as every HTTP client reads them.
const PROXIES: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];

/// Distinguishes addresses inside this machine or network from those on the internet.
pub type IsInward = fn(IpAddr) -> bool;

/// How far a request may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RequestReach {
    Anywhere,
    /// Only to addresses that are not inward.
    Outward,
}

/// Who an answer may send us to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RedirectPolicy {
    None,
    SameOrigin,
    /// To any host, which gets no credentials.
    Elsewhere,
}

/// Clients, each built when first needed: an idle daemon holds none.
#[derive(Debug)]
pub(super) struct RegistryHttpClients {
    connect: Duration,
    inward: IsInward,
    lookups: Arc<LookupCache>,
    built: Mutex<BTreeMap<(HttpScheme, RequestReach), Client>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum HttpScheme {
    /// HTTP to this machine: no proxy, and no certificate store in memory.
    Plain,
    Tls,
}

impl RegistryHttpClients {
    pub(super) fn new(connect: Duration, inward: IsInward) -> RegistryHttpClients {
        RegistryHttpClients { connect, inward, lookups: Arc::default(), built: Mutex::default() }
    }

    pub(super) fn get(&self, url: &Url, reach: RequestReach) -> Result<Client, reqwest::Error> {
        let wire = if url.scheme() == "http" { HttpScheme::Plain } else { HttpScheme::Tls };
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = built.get(&(wire, reach)) {
            return Ok(client.clone());
        }
        let client = self.build(wire, reach)?;
        built.insert((wire, reach), client.clone());
        Ok(client)
    }

    fn build(&self, wire: HttpScheme, reach: RequestReach) -> Result<Client, reqwest::Error> {
        // The client uses the process-wide provider; that it is installed already is no error.
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut builder = Client::builder()
            .user_agent(concat!("lodge/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(self.connect)
            .tcp_nodelay(true)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .pool_idle_timeout(IDLE_CONNECTION_KEPT)
            .referer(false)
            .retry(reqwest::retry::never())
            .redirect(reqwest::redirect::Policy::none());
        if wire == HttpScheme::Plain {
            builder = builder.no_proxy().tls_certs_only([]);
        }
        // Through a proxy it is the proxy who looks up names, and who decides what can be reached.
        builder = match reach {
            RequestReach::Anywhere => builder.dns_resolver(CachingResolver { lookups: self.lookups.clone() }),
            RequestReach::Outward if wire == HttpScheme::Tls && proxied() => builder,
            RequestReach::Outward => builder.dns_resolver(OutwardResolver { inward: self.inward }),
        };
        builder.build()
    }

    /// How far an answer may redirect us: as far as its sender is itself.
    pub(super) fn reach_from(&self, answer: &reqwest::Response) -> RequestReach {
        let seen = match literal(answer.url()) {
            Some(address) => Some(address),
            // The address at the other end would be the proxy's.
            None if answer.url().scheme() == "https" && proxied() => None,
            None => answer.remote_addr().map(|address| address.ip()),
        };
        if seen.is_some_and(self.inward) { RequestReach::Anywhere } else { RequestReach::Outward }
    }

    /// Whether a URL leads into this network. With a proxy, the proxy resolves names; otherwise the connection soon
    /// after uses the addresses that were checked here.
    pub(super) async fn leads_inward(&self, url: &Url) -> bool {
        if let Some(address) = literal(url) {
            return (self.inward)(address);
        }
        if url.scheme() == "https" && proxied() {
            return false;
        }
        let host = url.host_str().unwrap_or_default();
        let found = tokio::time::timeout(self.connect, tokio::net::lookup_host((host, 0))).await;
        match found {
            Ok(Ok(found)) => {
                let found: Vec<_> = found.collect();
                let inward = found.iter().any(|found| (self.inward)(found.ip()));
                // The connection must go exactly to the checked addresses.
                if !inward {
                    self.lookups.keep(host, found, Instant::now());
                }
                inward
            }
            // A name that did not resolve must not resolve a moment later either.
            Ok(Err(_)) | Err(_) => {
                self.lookups.keep(host, Vec::new(), Instant::now());
                false
            }
        }
    }

    /// The target of a redirect from `from` to `location`, or why it is refused.
    pub(super) fn hop(
        &self,
        from: &Url,
        location: &str,
        hops: RedirectPolicy,
        reach: RequestReach,
    ) -> Result<Url, RedirectRefusal> {
        let to = from.join(location).map_err(|_| RedirectRefusal::NoAddress)?;
        if to.host_str().is_none() || !to.username().is_empty() || to.password().is_some() {
            return Err(RedirectRefusal::NoAddress);
        }
        let away = !same_origin(from, &to);
        match hops {
            RedirectPolicy::None => return Err(RedirectRefusal::NotAllowed),
            RedirectPolicy::SameOrigin if away => {
                return Err(RedirectRefusal::OtherHost { host: shown_host(&to) });
            }
            RedirectPolicy::SameOrigin | RedirectPolicy::Elsewhere => {}
        }
        let safe = match to.scheme() {
            "https" => true,
            "http" => from.scheme() == "http" && is_loopback(&to),
            _other => false,
        };
        if !safe {
            return Err(RedirectRefusal::Unsafe { host: shown_host(&to) });
        }
        match reach {
            RequestReach::Outward if away && literal(&to).is_some_and(self.inward) => {
                Err(RedirectRefusal::Inward { host: shown_host(&to) })
            }
            RequestReach::Outward | RequestReach::Anywhere => Ok(to),
        }
    }
}

/// Why a redirect is not followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RedirectRefusal {
    #[error("it redirects to an invalid address")]
    NoAddress,
    #[error("it redirects a request that must not be redirected")]
    NotAllowed,
    #[error("it redirects to `{host}` with data that only the registry may see")]
    OtherHost { host: String },
    #[error("it redirects to `{host}` without encryption")]
    Unsafe { host: String },
    #[error("it redirects to `{host}`, which is inside this network")]
    Inward { host: String },
}

/// Looks up names, and finds only what is on the internet.
struct OutwardResolver {
    inward: IsInward,
}

impl Resolve for OutwardResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let inward = self.inward;
        Box::pin(async move {
            let host = name.as_str();
            let found: Vec<_> = tokio::net::lookup_host((host, 0)).await?.collect();
            let outward: Vec<_> = found.iter().copied().filter(|found| !inward(found.ip())).collect();
            if outward.is_empty() && !found.is_empty() {
                return Err(RedirectRefusal::Inward { host: host.to_owned() }.into());
            }
            Ok(Box::new(outward.into_iter()) as Addrs)
        })
    }
}

impl fmt::Debug for OutwardResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outward").finish_non_exhaustive()
    }
}

/// The resolver's refusal inside a client error.
pub(super) fn refused_hop(error: &reqwest::Error) -> Option<&RedirectRefusal> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref::<RedirectRefusal>() {
            return Some(found);
        }
        // An I/O error does not count what it wraps among its sources.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(found) = wrapped.and_then(|inner| inner.downcast_ref::<RedirectRefusal>()) {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

pub(super) fn same_origin(a: &Url, b: &Url) -> bool {
    a.scheme() == b.scheme()
        && a.host_str() == b.host_str()
        && a.port_or_known_default() == b.port_or_known_default()
}

/// Host and port, as people write them.
pub(super) fn shown_host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// Whether a URL names this machine, by name or address.
pub(super) fn is_loopback(url: &Url) -> bool {
    url.host_str() == Some("localhost") || literal(url).is_some_and(|address| address.is_loopback())
}

fn literal(url: &Url) -> Option<IpAddr> {
    url.host_str()?.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

fn proxied() -> bool {
    PROXIES.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// Whether an address belongs to this machine or this network, or is not routable.
pub(super) fn is_inward(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_inward_v4(address),
        IpAddr::V6(address) => is_inward_v6(address),
    }
}

fn is_inward_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    address.is_loopback()
        || address.is_private()
        // Where clouds keep the metadata of a machine, with its keys.
        || address.is_link_local()
        || address.is_multicast()
        || a == 0
        || a >= 240
        // Behind a carrier's address translation, and some clouds' metadata.
        || (a == 100 && (64..128).contains(&b))
        || (a, b, c) == (192, 0, 0)
        || (a == 198 && (b == 18 || b == 19))
}

fn is_inward_v6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    let v4 = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        is_inward_v4(Ipv4Addr::new(a, b, c, d))
    };
    match parts {
        // Unspecified, loopback, and IPv4 written as IPv6.
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => v4(high, low) || (high, low) == (0, 1),
        // IPv4 behind a translator, or a tunnel.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => v4(high, low),
        [0x64, 0xff9b, 1, ..] | [0x2001, 0, ..] => true,
        [first, ..] => {
            // Unique local, link-local, site-local, multicast.
            (first & 0xfe00) == 0xfc00 || (first & 0xff80) == 0xfe80 || (first & 0xff00) == 0xff00
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn addresses_of_this_machine_its_network_and_its_cloud_are_inward_in_every_spelling() {
        for text in [
            "127.0.0.1",
            "127.9.9.9",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.0.1",
            "169.254.169.254",
            "100.100.100.200",
            "0.0.0.0",
            "0.1.2.3",
            "192.0.0.192",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:a9fe:a9fe::1",
            "2001::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(is_inward(text.parse().unwrap()), "{text}");
        }
        for text in [
            "1.1.1.1",
            "9.255.255.255",
            "172.32.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "192.0.1.1",
            "223.255.255.255",
            "2606:4700::1111",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
            "2002:101:101::1",
            "2001:db8::1",
            "fe00::1",
        ] {
            assert!(!is_inward(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn a_redirect_leads_neither_out_of_encryption_nor_into_this_network() {
        let clients = RegistryHttpClients::new(Duration::from_secs(1), is_inward);
        let from = url("https://registry.example/v2/a/blobs/x");
        let hop = |location: &str, hops, reach| clients.hop(&from, location, hops, reach);
        let outward = |location: &str| hop(location, RedirectPolicy::Elsewhere, RequestReach::Outward);
        assert_eq!(outward("/b?c=d"), Ok(url("https://registry.example/b?c=d")));
        assert_eq!(outward("https://cdn.example/b"), Ok(url("https://cdn.example/b")));
        assert_eq!(outward("//cdn.example/b"), Ok(url("https://cdn.example/b")));
        for (location, expected) in [
            ("http://registry.example/b", RedirectRefusal::Unsafe { host: "registry.example".to_owned() }),
            ("http://cdn.example/b", RedirectRefusal::Unsafe { host: "cdn.example".to_owned() }),
            ("http://127.0.0.1/b", RedirectRefusal::Unsafe { host: "127.0.0.1".to_owned() }),
            ("ftp://cdn.example/b", RedirectRefusal::Unsafe { host: "cdn.example".to_owned() }),
            ("file:///etc/passwd", RedirectRefusal::NoAddress),
            ("https://user:word@cdn.example/", RedirectRefusal::NoAddress),
            ("https://", RedirectRefusal::NoAddress),
            (
                "https://169.254.169.254/latest",
                RedirectRefusal::Inward { host: "169.254.169.254".to_owned() },
            ),
            ("https://2852039166/latest", RedirectRefusal::Inward { host: "169.254.169.254".to_owned() }),
            ("https://0x7f.1:8443/", RedirectRefusal::Inward { host: "127.0.0.1:8443".to_owned() }),
            ("https://[::ffff:10.0.0.1]/", RedirectRefusal::Inward { host: "[::ffff:a00:1]".to_owned() }),
        ] {
            assert_eq!(outward(location), Err(expected), "{location}");
        }
        assert!(hop("https://10.0.0.1/b", RedirectPolicy::Elsewhere, RequestReach::Anywhere).is_ok());
        for location in ["https://cdn.example/b", "https://registry.example:444/b"] {
            assert!(matches!(
                hop(location, RedirectPolicy::SameOrigin, RequestReach::Anywhere),
                Err(RedirectRefusal::OtherHost { .. })
            ));
        }
        assert_eq!(hop("/b", RedirectPolicy::None, RequestReach::Anywhere), Err(RedirectRefusal::NotAllowed));
    }

    #[test]
    fn plain_http_leads_to_plain_http_only_on_this_machine() {
        let clients = RegistryHttpClients::new(Duration::from_secs(1), is_inward);
        let from = url("http://127.0.0.1:5000/v2/a");
        let hop =
            |location: &str| clients.hop(&from, location, RedirectPolicy::Elsewhere, RequestReach::Anywhere);
        assert!(hop("http://localhost:5001/b").is_ok() && hop("https://cdn.example/b").is_ok());
        assert!(matches!(hop("http://10.0.0.1/b"), Err(RedirectRefusal::Unsafe { .. })));
    }

    #[tokio::test]
    async fn a_name_that_leads_into_this_network_is_not_found_from_outside() {
        let outward = OutwardResolver { inward: is_inward };
        let refused = outward.resolve("localhost".parse().unwrap()).await.err().unwrap();
        let expected = RedirectRefusal::Inward { host: "localhost".to_owned() };
        assert_eq!(refused.downcast_ref::<RedirectRefusal>(), Some(&expected));
        let everywhere = OutwardResolver { inward: |_| false };
        assert!(everywhere.resolve("localhost".parse().unwrap()).await.unwrap().next().is_some());
    }

    #[tokio::test]
    async fn a_connection_goes_to_the_checked_address_and_not_where_the_name_leads_by_then() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let answered = std::thread::spawn(move || {
            use std::io::{Read, Write};
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 16];
            stream.read_exact(&mut head).unwrap();
            stream.write_all(b"HTTP/1.1 204 Here\r\nConnection: close\r\n\r\n").unwrap();
            // So that nothing is left unread when it is closed.
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            drop(stream.read_to_end(&mut Vec::new()));
        });
        let clients = RegistryHttpClients::new(Duration::from_secs(10), |_| false);
        let local = url(&format!("http://localhost:{port}/"));
        assert!(!clients.leads_inward(&local).await);
        // As if that name had been looked at before it led nowhere.
        let looked = clients.lookups.of("localhost", Instant::now()).unwrap();
        let looked = looked.into_iter().filter(|found| found.is_ipv4()).collect();
        clients.lookups.keep("moved.invalid", looked, Instant::now());
        let moved = url(&format!("http://moved.invalid:{port}/"));
        let client = clients.get(&moved, RequestReach::Anywhere).unwrap();
        let answer = client.get(moved).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 204);
        drop((answer, client, clients));
        answered.join().unwrap();
    }
}
