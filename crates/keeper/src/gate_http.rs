//! The head of a request to the gate: whom it is for, and what is passed on of it.
//!
//! Owns: reading bytes that a hostile program wrote. Never: whether the host may be reached.

use std::fmt::Write as _;

use crate::gate_body::BodyRelay;
use crate::gate_rules::TargetHost;

/// Longest head of a request.
pub(crate) const HEAD_MAX: usize = 32 * 1024;

/// Lines that are between a client and its proxy, and go no further.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "proxy-connection",
    "keep-alive",
    "proxy-authorization",
    "proxy-authenticate",
    "te",
    "trailer",
    "upgrade",
    "host",
];

/// Whom to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProxyTarget {
    pub(crate) host: TargetHost,
    pub(crate) port: u16,
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProxyRequest {
    /// Bytes in both directions.
    Tunnel,
    /// One request: its head as it is passed on, and the body that follows.
    Request { head: String, body: BodyRelay },
}

/// What is wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadRequest {
    /// Not a request of HTTP/1.
    Head,
    /// A path alone, as one sends it to a server.
    NoUrl,
    /// A URL of another kind than `http`.
    Scheme,
    Host,
    Body,
}

impl BadRequest {
    pub(crate) fn text(self) -> &'static str {
        match self {
            BadRequest::Head => "this is no request of HTTP/1.1",
            BadRequest::NoUrl => "this is the sandbox's proxy, and a request to it needs a whole URL",
            BadRequest::Scheme => "a proxy takes `http` URLs; anything else goes through CONNECT",
            BadRequest::Host => "the request names no valid host",
            BadRequest::Body => "the length of the request's body is not clear",
        }
    }
}

/// The length of the head, with the empty line that ends it, once it is all there.
pub(crate) fn head_len(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

/// Reads a whole head.
pub(crate) fn read(head: &[u8]) -> Result<(ProxyTarget, ProxyRequest), BadRequest> {
    let text = std::str::from_utf8(head).map_err(|_| BadRequest::Head)?;
    let mut lines = text.strip_suffix("\r\n\r\n").ok_or(BadRequest::Head)?.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(url), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(BadRequest::Head);
    };
    let is_known = matches!(version, "HTTP/1.1" | "HTTP/1.0");
    if !is_known || !is_token(method) || url.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(BadRequest::Head);
    }
    let fields = lines.map(field).collect::<Result<Vec<_>, _>>()?;
    if method == "CONNECT" {
        return Ok((authority(url, None)?, ProxyRequest::Tunnel));
    }
    if url.starts_with('/') || url == "*" {
        return Err(BadRequest::NoUrl);
    }
    let (scheme, rest) = url.split_once("://").ok_or(BadRequest::NoUrl)?;
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(BadRequest::Scheme);
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    let target = authority(host, Some(80))?;
    let body = body(&fields)?;
    let head = passed_on((method, path, version), &target, &fields);
    Ok((target, ProxyRequest::Request { head, body }))
}

fn is_token(word: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !word.is_empty() && word.bytes().all(is_part)
}

fn field(line: &str) -> Result<(&str, &str), BadRequest> {
    let (name, value) = line.split_once(':').ok_or(BadRequest::Head)?;
    let value = value.trim_matches([' ', '\t']);
    let is_clean = value.bytes().all(|byte| byte == b'\t' || !byte.is_ascii_control());
    if is_token(name) && is_clean { Ok((name, value)) } else { Err(BadRequest::Head) }
}

/// A host and its port. A user name and password in front of it are ignored.
fn authority(text: &str, port: Option<u16>) -> Result<ProxyTarget, BadRequest> {
    let (host, port) = match text.rsplit_once(':') {
        // The colon is one inside an address.
        Some((_, after)) if after.ends_with(']') => (text, port),
        Some((host, "")) => (host, port),
        Some((host, given)) => {
            let is_number = given.bytes().all(|byte| byte.is_ascii_digit());
            (host, given.parse().ok().filter(|port| is_number && *port > 0))
        }
        None => (text, port),
    };
    match (TargetHost::read(host), port) {
        (Some(host), Some(port)) => Ok(ProxyTarget { host, port }),
        (Some(_) | None, Some(_) | None) => Err(BadRequest::Host),
    }
}

/// The body after the head, if its length is given once and clearly.
fn body(fields: &[(&str, &str)]) -> Result<BodyRelay, BadRequest> {
    let values = |wanted: &str| -> Vec<&str> {
        let found = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.map(|(_, value)| *value).collect()
    };
    match (values("transfer-encoding").as_slice(), values("content-length").as_slice()) {
        ([], []) => Ok(BodyRelay::Sized(0)),
        ([], [len]) if !len.is_empty() && len.bytes().all(|byte| byte.is_ascii_digit()) => {
            len.parse().map(BodyRelay::Sized).map_err(|_| BadRequest::Body)
        }
        ([coding], []) if coding.eq_ignore_ascii_case("chunked") => Ok(BodyRelay::chunked()),
        ([..], [..]) => Err(BadRequest::Body),
    }
}

/// The head as the server gets it: for its own name, and for one request on this connection.
fn passed_on(line: (&str, &str, &str), target: &ProxyTarget, fields: &[(&str, &str)]) -> String {
    let (method, path, version) = line;
    let path = path.split('#').next().unwrap_or_default();
    let slash = if path.starts_with('/') { "" } else { "/" };
    let host = match (&target.host, target.port) {
        (host, 80) => host.to_string(),
        (host, port) => format!("{host}:{port}"),
    };
    let mut head = format!("{method} {slash}{path} {version}\r\nHost: {host}\r\n");
    let named: Vec<String> = fields
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case("connection"))
        .flat_map(|(_, value)| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    for (name, value) in fields {
        let lower = name.to_ascii_lowercase();
        // Headers that give the length of the body are kept in any case.
        let is_framing = matches!(lower.as_str(), "transfer-encoding" | "content-length");
        if is_framing || !(HOP_BY_HOP.contains(&lower.as_str()) || named.contains(&lower)) {
            // Writing to a string cannot fail.
            if write!(head, "{name}: {value}\r\n").is_err() {}
        }
    }
    head.push_str("Via: 1.1 lodge\r\nConnection: close\r\n\r\n");
    head
}

/// An answer of the gate itself.
pub(crate) fn answer(status: &str, text: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}\n",
        text.len() + 1
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(host: &str, port: u16) -> ProxyTarget {
        ProxyTarget { host: TargetHost::read(host).unwrap(), port }
    }

    #[test]
    fn a_request_is_passed_on_for_its_host_alone_and_without_what_is_the_proxys() {
        let head = b"POST http://Api.Example.com:8080/a/b?c=d#e HTTP/1.1\r\nHost: other.example\r\nAccept: */*\r\n\
            Proxy-Authorization: Basic x\r\nProxy-Connection: keep-alive\r\nConnection: keep-alive, X-Mine, content-length\r\n\
            X-Mine: 1\r\nKeep-Alive: 5\r\nUpgrade: h2c\r\nTE: trailers\r\nContent-Length: 3\r\n\r\n";
        let (to, asked) = read(head).unwrap();
        assert_eq!(to, target("api.example.com", 8080));
        let expected = "POST /a/b?c=d HTTP/1.1\r\nHost: api.example.com:8080\r\nAccept: */*\r\nContent-Length: 3\r\n\
            Via: 1.1 lodge\r\nConnection: close\r\n\r\n";
        assert_eq!(asked, ProxyRequest::Request { head: expected.to_owned(), body: BodyRelay::Sized(3) });
    }

    #[test]
    fn every_form_of_a_target_is_read() {
        for (line, host, port) in [
            ("GET http://a.example HTTP/1.0", "a.example", 80),
            ("GET http://a.example?x HTTP/1.1", "a.example", 80),
            ("GET HTTP://a.example:/x HTTP/1.1", "a.example", 80),
            ("GET http://[2001:db8::1]/ HTTP/1.1", "[2001:db8::1]", 80),
            ("GET http://[2001:db8::1]:81/ HTTP/1.1", "[2001:db8::1]", 81),
            ("CONNECT a.example:443 HTTP/1.1", "a.example", 443),
            ("CONNECT [::1]:443 HTTP/1.1", "[::1]", 443),
        ] {
            let (to, asked) = read(format!("{line}\r\n\r\n").as_bytes()).unwrap();
            assert_eq!(to, target(host, port), "{line}");
            assert_eq!(asked == ProxyRequest::Tunnel, line.starts_with("CONNECT"), "{line}");
        }
    }

    #[test]
    fn a_head_that_two_readers_could_read_differently_is_refused() {
        for (head, bad) in [
            ("", BadRequest::Head),
            ("GET http://a.example/", BadRequest::Head),
            ("GET  http://a.example/ HTTP/1.1", BadRequest::Head),
            ("GET http://a.example/ HTTP/2", BadRequest::Head),
            ("G@T http://a.example/ HTTP/1.1", BadRequest::Head),
            ("GET http://a.example/\n HTTP/1.1", BadRequest::Head),
            ("GET http://a.example/ HTTP/1.1\r\nno colon", BadRequest::Head),
            ("GET http://a.example/ HTTP/1.1\r\nA: b\r\n folded: c", BadRequest::Head),
            ("GET http://a.example/ HTTP/1.1\r\nA : b", BadRequest::Head),
            ("GET http://a.example/ HTTP/1.1\r\nA: b\nC: d", BadRequest::Head),
            ("GET http://a.example/ HTTP/1.1\r\nA: \0", BadRequest::Head),
            ("GET / HTTP/1.1", BadRequest::NoUrl),
            ("OPTIONS * HTTP/1.1", BadRequest::NoUrl),
            ("GET a.example HTTP/1.1", BadRequest::NoUrl),
            ("GET https://a.example/ HTTP/1.1", BadRequest::Scheme),
            ("GET ftp://a.example/ HTTP/1.1", BadRequest::Scheme),
            ("GET http://user@a.example/ HTTP/1.1", BadRequest::Host),
            ("GET http://127.1/ HTTP/1.1", BadRequest::Host),
            ("GET http:///x HTTP/1.1", BadRequest::Host),
            ("CONNECT a.example HTTP/1.1", BadRequest::Host),
            ("CONNECT a.example:0 HTTP/1.1", BadRequest::Host),
            ("CONNECT a.example:+44 HTTP/1.1", BadRequest::Host),
            ("CONNECT a.example:99999 HTTP/1.1", BadRequest::Host),
            ("POST http://a.example/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2", BadRequest::Body),
            (
                "POST http://a.example/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
                BadRequest::Body,
            ),
            ("POST http://a.example/ HTTP/1.1\r\nTransfer-Encoding: gzip, chunked", BadRequest::Body),
            ("POST http://a.example/ HTTP/1.1\r\nContent-Length: +1", BadRequest::Body),
            ("POST http://a.example/ HTTP/1.1\r\nContent-Length:", BadRequest::Body),
        ] {
            assert_eq!(read(format!("{head}\r\n\r\n").as_bytes()), Err(bad), "{head:?}");
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused() {
        let head = b"POST http://[2001:db8::1]:81/a?b HTTP/1.1\r\nHost: x\r\nConnection: a, b\r\nContent-Length: 3\r\n\r\n";
        for at in 0..head.len() {
            for byte in 0..=255 {
                let mut head = head.to_vec();
                head[at] = byte;
                if let Ok((_, ProxyRequest::Request { head, .. })) = read(&head) {
                    assert_eq!(head_len(head.as_bytes()), Some(head.len()), "{head:?}");
                }
            }
            drop(read(&head[..at]));
        }
    }
}
