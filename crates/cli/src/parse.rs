//! Values of flags, from text to meaning. Pure.

use std::net::Ipv6Addr;
use std::path::PathBuf;

/// `KEY=VALUE`; only the first `=` splits.
pub(crate) fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

/// One `-v`, as typed: the host's side may still be relative.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountArg {
    pub host: PathBuf,
    pub target: String,
    pub read_only: bool,
}

/// `HOST:TARGET[:ro|:rw]`. The host's side may contain colons, the target not.
pub(crate) fn mount(text: &str) -> Result<MountArg, String> {
    const FORM: &str = "expected HOST:TARGET or HOST:TARGET:ro, with a TARGET that starts with `/`";
    let (rest, read_only) = match text.rsplit_once(':') {
        Some((rest, "ro")) => (rest, true),
        Some((rest, "rw")) => (rest, false),
        _ => (text, false),
    };
    match rest.rsplit_once(':') {
        Some((host, target)) if !host.is_empty() && target.starts_with('/') => {
            Ok(MountArg { host: host.into(), target: target.to_owned(), read_only })
        }
        _ => Err(FORM.to_owned()),
    }
}

/// `http://HOST:PORT`, as `host:port`.
pub(crate) fn daemon_url(text: &str) -> Result<String, String> {
    let Some(rest) = text.strip_prefix("http://") else {
        let why = if text.starts_with("https://") {
            "only http is spoken"
        } else {
            "it does not start with `http://`"
        };
        return Err(why.to_owned());
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let Some((host, port)) = rest.rsplit_once(':') else {
        return Err("it names no port".to_owned());
    };
    let host_fits = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(v6) => v6.parse::<Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
        }
    };
    if !host_fits {
        return Err("its host is not a name or an address".to_owned());
    }
    match port.parse::<u16>() {
        Ok(number) if number > 0 && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            Ok(format!("{host}:{number}"))
        }
        _ => Err("its port is not a number from 1 to 65535".to_owned()),
    }
}

/// Whether `host:port` is on this machine, so that paths mean the same there.
pub(crate) fn is_loopback(addr: &str) -> bool {
    let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Whether a kind is the wanted one or of the wanted family (`turn`, `turn.*`).
pub(crate) fn kind_matches(wanted: &str, kind: &str) -> bool {
    let family = wanted.strip_suffix(".*").unwrap_or(wanted);
    kind == wanted || kind.strip_prefix(family).is_some_and(|rest| rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_equals_sign_splits_a_pair() {
        assert_eq!(key_value("K=a=b"), Ok(("K".into(), "a=b".into())));
        assert_eq!(key_value("K="), Ok(("K".into(), String::new())));
        assert!(key_value("K").is_err());
        assert!(key_value("=v").is_err());
    }

    #[test]
    fn a_mount_splits_at_the_target_and_keeps_colons_of_the_host() {
        let check = |text: &str, host: &str, target: &str, read_only: bool| {
            let expected = MountArg { host: host.into(), target: target.into(), read_only };
            assert_eq!(mount(text), Ok(expected), "{text}");
        };
        check("src:/work", "src", "/work", false);
        check("/a/b:/work:ro", "/a/b", "/work", true);
        check("/a:/work:rw", "/a", "/work", false);
        check("./odd:name:/work:ro", "./odd:name", "/work", true);
    }

    #[test]
    fn a_mount_without_an_absolute_target_is_refused() {
        for text in ["", "src", "src:", ":/work", "src:work", "src:ro", "/a:/b:readonly"] {
            assert!(mount(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_daemon_url_becomes_an_address() {
        assert_eq!(daemon_url("http://127.0.0.1:5500"), Ok("127.0.0.1:5500".into()));
        assert_eq!(daemon_url("http://box.lan:5500/"), Ok("box.lan:5500".into()));
        assert_eq!(daemon_url("http://[::1]:5500"), Ok("[::1]:5500".into()));
    }

    #[test]
    fn a_bad_daemon_url_is_refused_before_anything_is_dialled() {
        let bad = [
            "",
            "localhost:5500",
            "https://x:1",
            "ftp://x:1",
            "http://",
            "http://x",
            "http://:1",
            "http://x:0",
            "http://x:99999",
            "http://x:+5",
            "http://x:5500/path",
            "http://me@x:5500",
            "http://[zz]:1",
            "http://a b:1",
        ];
        for text in bad {
            assert!(daemon_url(text).is_err(), "{text}");
        }
    }

    #[test]
    fn loopback_is_recognised_in_every_spelling() {
        assert!(is_loopback("127.0.0.1:5500") && is_loopback("localhost:1") && is_loopback("[::1]:5500"));
        assert!(!is_loopback("10.0.0.1:5500") && !is_loopback("box:5500"));
    }

    #[test]
    fn a_kind_matches_itself_and_its_family_but_not_a_longer_word() {
        assert!(kind_matches("turn.text", "turn.text"));
        assert!(kind_matches("turn", "turn.text") && kind_matches("turn.*", "turn.text"));
        assert!(!kind_matches("turn.t", "turn.text") && !kind_matches("tu", "turn.text"));
    }
}
