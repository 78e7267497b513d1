//! The rules for names, keys, references and paths.
//!
//! Owns: yes or no for one word. Never: words an error (see `mistake`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::mistake::PathFault;

const PATH_MAX: usize = 1_024;
const REF_MAX: usize = 512;
const URL_MAX: usize = 2_048;
const CRON_MAX: usize = 256;
const RESERVED_CONTEXTS: [&str; 3] = ["AGENT", "WORKSPACE", "MOUNTS"];
const CRON_NAMES: [&str; 7] =
    ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

/// One word of at most `max` bytes whose outer and inner characters obey their rule.
fn shaped(word: &str, max: usize, edge: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    let bytes = word.as_bytes();
    match bytes {
        [] => false,
        [only] => edge(*only),
        [first, middle @ .., last] => {
            bytes.len() <= max && edge(*first) && middle.iter().all(|b| inner(*b)) && edge(*last)
        }
    }
}

fn lower(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

/// `^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`: safe as a file name.
pub(crate) fn path_name(word: &str) -> bool {
    word.len() <= 63
        && word.starts_with(|c: char| c.is_ascii_alphanumeric())
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// Whether a tool can have this name.
pub fn is_tool_name(word: &str) -> bool {
    path_name(word)
}

/// `^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`
pub(super) fn dns_label(word: &str) -> bool {
    shaped(word, 63, lower, |b| lower(b) || b == b'-')
}

/// The DNS label rule with underscores, which the known capabilities use.
pub(super) fn capability(word: &str) -> bool {
    shaped(word, 63, lower, |b| lower(b) || b == b'-' || b == b'_')
}

pub(super) fn arg_key(word: &str) -> bool {
    word.len() <= 63
        && word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
}

pub(super) fn label_key(word: &str) -> bool {
    word.len() <= 255
        && word.starts_with(|c: char| c.is_ascii_alphanumeric())
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"._/-".contains(&b))
}

/// Case does not matter: on some file systems `agent.md` is `AGENT.md`.
pub(super) fn reserved_context(word: &str) -> bool {
    RESERVED_CONTEXTS.iter().any(|reserved| reserved.eq_ignore_ascii_case(word))
}

/// Whether BIN and RUNTIME would read the name of an image, with its tag, as a program of the host or of the daemon.
pub(crate) fn reads_as_program(reference: &str) -> bool {
    matches!(reference.split([':', '@']).next(), Some("host" | "builtin"))
}

/// `[host[:port]/]name[/name…][:tag][@algorithm:hex]`
pub(crate) fn image_ref(word: &str) -> bool {
    if word.len() > REF_MAX {
        return false;
    }
    let (rest, digest) = match word.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (word, None),
    };
    if !digest.is_none_or(image_digest) {
        return false;
    }
    let last_slash = rest.rfind('/').map_or(0, |at| at + 1);
    let (path, tag) = match rest[last_slash..].split_once(':') {
        Some((name, tag)) => (&rest[..last_slash + name.len()], Some(tag)),
        None => (rest, None),
    };
    if !tag.is_none_or(image_tag) {
        return false;
    }
    match path.split_once('/') {
        Some((host, path)) if is_registry(host) => {
            registry_host(host) && path.split('/').all(image_component)
        }
        Some(_) | None => path.split('/').all(image_component),
    }
}

/// Whether the first part of a reference, which has more than one, names a registry.
pub(crate) fn is_registry(first: &str) -> bool {
    first.contains(['.', ':']) || first == "localhost"
}

pub(crate) fn image_tag(tag: &str) -> bool {
    tag.len() <= 128
        && tag.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && tag.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
}

fn image_digest(digest: &str) -> bool {
    let hex = |hex: &str, len: usize| {
        hex.len() == len && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    match digest.split_once(':') {
        Some(("sha256", value)) => hex(value, 64),
        Some(("sha512", value)) => hex(value, 128),
        Some(_) | None => false,
    }
}

fn image_component(part: &str) -> bool {
    shaped(part, 255, |b| b.is_ascii_alphanumeric(), |b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        && !part.contains("..")
}

fn registry_host(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (host, None),
    };
    port.is_none_or(port_number) && (host_name(name) || bracketed_address(name))
}

fn port_number(port: &str) -> bool {
    !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|p| p > 0)
}

fn host_name(name: &str) -> bool {
    name.len() <= 253
        && name.split('.').all(|part| {
            shaped(part, 63, |b| b.is_ascii_alphanumeric(), |b| b.is_ascii_alphanumeric() || b == b'-')
        })
}

fn bracketed_address(name: &str) -> bool {
    name.strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .is_some_and(|inner| inner.parse::<Ipv6Addr>().is_ok())
}

/// The part after `host:`: a bare name, or an absolute path without links.
pub(super) fn host_program(program: &str) -> bool {
    if program.is_empty() || program.len() > PATH_MAX {
        return false;
    }
    match program.strip_prefix('/') {
        Some(path) => path.split('/').all(|part| !part.is_empty() && part != "." && part != ".."),
        None => program != "." && program != ".." && !program.contains('/'),
    }
}

/// `.`, `..`, or a path that starts with one of them: a parent on disk, and never an image.
pub(crate) fn dotted_path(word: &str) -> bool {
    word.len() <= PATH_MAX && matches!(word.split('/').next(), Some("." | ".."))
}

/// A path below the Agentfile's directory, judged by its text alone.
pub(super) fn relative_path(path: &str) -> Result<(), PathFault> {
    if path.is_empty() {
        Err(PathFault::Empty)
    } else if path.len() > PATH_MAX {
        Err(PathFault::TooLong)
    } else if path.contains("://") {
        Err(PathFault::Url)
    } else if path.starts_with('/') {
        Err(PathFault::Absolute)
    } else if path.split('/').any(|part| part == "..") {
        Err(PathFault::Parent)
    } else {
        Ok(())
    }
}

/// The word for the host's own loopback, which opens nothing without a port.
const LOOPBACK: &str = "loopback";

/// A port of the host's own loopback.
pub(super) fn is_loopback_port(word: &str) -> bool {
    word.split_once(':').is_some_and(|(name, port)| name == LOOPBACK && port_number(port))
}

/// A host name, `*.name`, an address or a range, with an optional port where one makes sense.
pub(super) fn network_host(word: &str) -> bool {
    if word == LOOPBACK || word.starts_with("loopback:") {
        return false;
    }
    if let Some((address, bits)) = word.split_once('/') {
        let max = match address.parse::<IpAddr>() {
            Ok(IpAddr::V4(_)) => 32,
            Ok(IpAddr::V6(_)) => 128,
            Err(_) => return false,
        };
        return bits.len() <= 3
            && bits.bytes().all(|b| b.is_ascii_digit())
            && bits.parse::<u16>().is_ok_and(|bits| bits <= max);
    }
    if word.parse::<Ipv6Addr>().is_ok() {
        return true;
    }
    let (name, is_wild) = match word.strip_prefix("*.") {
        Some(name) => (name, true),
        None => (word, false),
    };
    let bare = without_port(name);
    // A name that ends with a number could only be meant as an address.
    let last = bare.rsplit('.').next().unwrap_or_default();
    let is_address = bare.starts_with('[') || last.bytes().all(|b| b.is_ascii_digit());
    registry_host(name) && (!is_address || (!is_wild && (bare.starts_with('[') || is_v4(bare))))
}

fn is_v4(word: &str) -> bool {
    word.parse::<Ipv4Addr>().is_ok()
}

fn without_port(word: &str) -> &str {
    match word.rsplit_once(':') {
        Some((host, port)) if port_number(port) => host,
        Some(_) | None => word,
    }
}

/// Whether a list can never open this host: loopback, link-local, multicast or unspecified addresses.
pub(super) fn never_opened(word: &str) -> bool {
    match host_part(word).parse::<IpAddr>().map(|address| address.to_canonical()) {
        Ok(IpAddr::V4(v4)) => {
            v4.octets()[0] == 0
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_multicast()
                || v4.is_broadcast()
        }
        Ok(IpAddr::V6(v6)) => {
            v6.is_loopback() || v6.is_unspecified() || v6.is_multicast() || v6.is_unicast_link_local()
        }
        Err(_) => is_own_loopback(word),
    }
}

/// Whether a word names the loopback of the machine that it is read on.
pub(super) fn is_own_loopback(word: &str) -> bool {
    let host = host_part(word);
    match host.parse::<IpAddr>().map(|address| address.to_canonical()) {
        Ok(address) => address.is_loopback() || address.is_unspecified(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

/// A host without its port and its brackets.
fn host_part(word: &str) -> String {
    let bare = if word.parse::<Ipv6Addr>().is_ok() { word } else { without_port(word) };
    bare.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase()
}

pub(super) fn http_url(word: &str) -> bool {
    let rest = word.strip_prefix("https://").or_else(|| word.strip_prefix("http://"));
    word.len() <= URL_MAX
        && rest.is_some_and(|rest| {
            registry_host(rest.split(['/', '?', '#']).next().unwrap_or_default())
                && !rest.contains(char::is_whitespace)
        })
}

/// The shape of a cron expression; what its fields mean is decided where schedules run.
pub(super) fn cron(text: &str) -> bool {
    let field = |field: &str| field.bytes().all(|b| b.is_ascii_alphanumeric() || b"*/,-?#".contains(&b));
    text.len() <= CRON_MAX
        && (CRON_NAMES.contains(&text)
            || ((5..=7).contains(&text.split_whitespace().count()) && text.split_whitespace().all(field)))
}
