//! The names a browser may use for us, the pages that may call, and addresses that carry what they must not.

use axum::http::{HeaderMap, HeaderName};
use lodge_proto::ErrorBody;

/// A header that occurs once and is readable. If it occurred twice, this program and a proxy could use different
/// values. An unreadable header is not a missing one.
pub fn only<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
    code: &'static str,
) -> Result<Option<&'h str>, ErrorBody> {
    let mut all = headers.get_all(name).iter();
    let refused = || ErrorBody::new(code, format!("the header `{name}` occurs twice or cannot be read"));
    match (all.next(), all.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| refused()),
        (Some(_), Some(_)) => Err(refused()),
    }
}

/// Refuses host names that a foreign page could use for this machine, and pages that may not call. Names in the
/// daemon's certificate are its own.
pub fn check_browser(
    host: Option<&str>,
    origin: Option<&str>,
    bound: &str,
    allowed: &[String],
    is_certified: impl Fn(&str) -> bool,
) -> Result<(), ErrorBody> {
    let name = |authority: &str| {
        let bare = authority
            .rsplit_once(':')
            .filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()))
            .map_or(authority, |(name, _)| name);
        bare.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase()
    };
    let ours = |given: &str| {
        let given = name(given);
        given == "localhost"
            || given == name(bound)
            || given.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
            || is_certified(&given)
    };
    let listed = |authority: &str| {
        allowed.iter().any(|origin| {
            origin.split_once("://").is_some_and(|(_, known)| known.eq_ignore_ascii_case(authority))
        })
    };
    match host {
        Some(host) if ours(host) || listed(host) => {}
        Some(host) => {
            return Err(ErrorBody::new("auth.host", format!("the Host `{host}` is not this machine"))
                .hint("call 127.0.0.1 or localhost, or list the name's origin in allowed-origins"));
        }
        None => return Err(ErrorBody::new("auth.host", "the request has no Host header")),
    }
    let Some(origin) = origin else { return Ok(()) };
    let same = origin
        .split_once("://")
        .is_some_and(|(_, authority)| host.is_some_and(|host| host.eq_ignore_ascii_case(authority)));
    if same || allowed.iter().any(|known| known.eq_ignore_ascii_case(origin)) {
        return Ok(());
    }
    Err(ErrorBody::new("auth.origin", format!("the origin `{origin}` may not call"))
        .hint("list it in allowed-origins"))
}

/// What people call a token in an address.
const QUERY_KEYS: &[&str] = &["token", "access_token", "auth", "authorization", "bearer", "jwt", "api_key"];

/// Refuses a URL with a token in it, even if the token is not needed: URLs end up in logs and histories.
pub fn check_query(query: Option<&str>) -> Result<(), ErrorBody> {
    let carries = query.unwrap_or_default().split('&').any(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        // The first bytes of every JSON object in base64: every token begins so.
        QUERY_KEYS.iter().any(|known| key.eq_ignore_ascii_case(known)) || value.starts_with("eyJ")
    });
    if !carries {
        return Ok(());
    }
    Err(ErrorBody::new("auth.in_query", "a token must not be part of the address")
        .hint("send it as `Authorization: Bearer …`, and revoke the token that was there"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_and_listed_origins_pass() {
        let listed = ["https://lodge.example".to_owned()];
        let check = |host: &str, origin: Option<&str>| {
            check_browser(Some(host), origin, "127.0.0.1:5500", &listed, |name| name == "box.lan")
                .map_err(|e| e.data.code)
        };
        assert_eq!(check("localhost:5500", None), Ok(()));
        assert_eq!(check("[::1]:5500", None), Ok(()));
        assert_eq!(check("127.0.0.1:5500", Some("http://127.0.0.1:5500")), Ok(()));
        assert_eq!(check("lodge.example", Some("https://lodge.example")), Ok(()));
        assert_eq!(check("Box.lan:5500", Some("https://Box.lan:5500")), Ok(()));
        assert_eq!(check("box.lan:5500", Some("https://evil.example")), Err("auth.origin".into()));
        assert_eq!(check("evil.example", None), Err("auth.host".into()));
        assert_eq!(check("127.0.0.1:5500", Some("http://evil.example")), Err("auth.origin".into()));
        assert_eq!(check("127.0.0.1:5500", Some("null")), Err("auth.origin".into()));
    }

    #[test]
    fn a_header_that_stands_there_twice_or_cannot_be_read_is_not_taken_for_none() {
        use axum::http::header::{HeaderValue, ORIGIN};
        let read = |values: &[&'static [u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(ORIGIN, HeaderValue::from_bytes(value).unwrap());
            }
            let found = only(&headers, &ORIGIN, "auth.origin").map(|found| found.map(str::to_owned));
            found.map_err(|error| error.data.code)
        };
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[b"http://a"]), Ok(Some("http://a".into())));
        assert_eq!(read(&[b"http://a", b"http://b"]), Err("auth.origin".into()));
        assert_eq!(read(&[b"\xff\xfehttp://a"]), Err("auth.origin".into()));
    }

    #[test]
    fn a_token_in_an_address_is_noticed_by_its_key_or_by_its_looks() {
        for carries in ["token=x", "since=1&Access_Token=x", "agent=eyJhbGciOiJIUzI1NiJ9.e30.x", "bearer"] {
            assert_eq!(check_query(Some(carries)).unwrap_err().data.code, "auth.in_query", "{carries}");
        }
        for plain in [None, Some(""), Some("since=1&agent=one&kind=turn.text")] {
            assert!(check_query(plain).is_ok(), "{plain:?}");
        }
    }
}
