//! Parses values of flags. Pure.

use std::net::Ipv6Addr;
use std::path::PathBuf;

use lodge_proto::client::Target;

/// `KEY=VALUE`; only the first `=` splits.
pub(crate) fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected key=value".to_owned()),
    }
}

/// One `-v`, as typed: the host's side may still be relative.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountArg {
    pub host: PathBuf,
    pub target: String,
    pub description: Option<String>,
    pub read_only: bool,
    /// Root's rights in a path of root are meant.
    pub map_root: bool,
}

/// What other tools write in the place of a mode.
const NOT_MODES: [&str; 12] = [
    "r",
    "w",
    "wr",
    "readonly",
    "read-only",
    "readwrite",
    "read-write",
    "z",
    "cached",
    "delegated",
    "shared",
    "private",
];

/// The mode of a mount: `ro` or `rw`, `map-root`, or both with a comma between them.
fn mount_mode(text: &str) -> Option<(bool, bool)> {
    let (mut read_only, mut map_root) = (None, None);
    for word in text.split(',') {
        let (place, value) = match word {
            "ro" => (&mut read_only, true),
            "rw" => (&mut read_only, false),
            "map-root" => (&mut map_root, true),
            _ => return None,
        };
        if place.replace(value).is_some() {
            return None;
        }
    }
    Some((read_only.unwrap_or(false), map_root.unwrap_or(false)))
}

/// `HOST:TARGET[:DESCRIPTION][:ro|:rw][,map-root]`. The host path may contain colons that no `/` follows; the target may
/// not. The text between the target and the mode is the description.
pub(crate) fn mount(text: &str) -> Result<MountArg, String> {
    const FORM: &str =
        "expected HOST:TARGET[:DESCRIPTION][:ro|rw][,map-root], with a TARGET that starts with `/`";
    let mode = text.rsplit_once(':').and_then(|(rest, mode)| Some((rest, mount_mode(mode)?)));
    let (rest, (read_only, map_root)) = mode.unwrap_or((text, (false, false)));
    let at = rest.find(":/").filter(|at| *at > 0).ok_or(FORM)?;
    let (host, inside) = (&rest[..at], &rest[at + 1..]);
    let (target, description) = match inside.split_once(':') {
        Some((target, description)) => (target, Some(description.trim()).filter(|text| !text.is_empty())),
        None => (inside, None),
    };
    if let Some(word) = description
        && word.split(',').any(is_almost_mode)
    {
        return Err(format!("`{word}` is not a mode: write `ro`, `rw` or `map-root` at the end"));
    }
    let description = description.map(str::to_owned);
    Ok(MountArg { host: host.into(), target: target.to_owned(), description, read_only, map_root })
}

/// Whether a word in the place of a mode was probably meant as one.
fn is_almost_mode(word: &str) -> bool {
    let modes = NOT_MODES.iter().chain(&["ro", "rw", "map-root", "maproot", "map_root"]);
    modes.into_iter().any(|mode| word.eq_ignore_ascii_case(mode))
}

/// A path as a shell would have it: `~` and `~/…` are below the home directory.
pub(crate) fn expand_home(path: &std::path::Path, home: Option<PathBuf>) -> Result<PathBuf, String> {
    match path.strip_prefix("~") {
        Err(_) => Ok(path.to_owned()),
        Ok(below) => match home {
            Some(home) if below.as_os_str().is_empty() => Ok(home),
            Some(home) => Ok(home.join(below)),
            None => Err("there is no home directory: `HOME` is not set".to_owned()),
        },
    }
}

/// A time such as `90d`, in seconds.
pub(crate) fn seconds(text: &str) -> Result<u64, String> {
    const FORM: &str = "expected a number with s, m, h or d, such as 90d";
    let unit = match text.bytes().last() {
        Some(b's') => 1,
        Some(b'm') => 60,
        Some(b'h') => 60 * 60,
        Some(b'd') => 24 * 60 * 60,
        _ => return Err(FORM.to_owned()),
    };
    let number = &text[..text.len() - 1];
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|_| digits).ok_or(FORM)?;
    number.checked_mul(unit).filter(|seconds| *seconds > 0).ok_or_else(|| FORM.to_owned())
}

/// The longest wait that a person can ask for: a year, as the daemon has it for jobs. Also far from what a clock overflows at.
const WAIT_MS_MAX: u64 = 365 * 24 * 60 * 60 * 1000;

/// A time such as `90s`, `500ms` or `1h30m`, in milliseconds: the daemon reads that of a job so, too.
pub(crate) fn wait_ms(text: &str) -> Result<u64, String> {
    const FORM: &str = "expected a time above 0 with units, such as 90s or 1h30m, of at most 365d";
    let mut total: u64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
        let (unit, next) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60 * 1_000,
            "h" => 60 * 60 * 1_000,
            "d" => 24 * 60 * 60 * 1_000,
            _ => return Err(FORM.to_owned()),
        };
        let part = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ms));
        total = part.and_then(|part| total.checked_add(part)).ok_or(FORM)?;
        rest = next;
    }
    if (1..=WAIT_MS_MAX).contains(&total) { Ok(total) } else { Err(FORM.to_owned()) }
}

/// Such a time as it was given, for the daemon to read.
pub(crate) fn is_time(text: &str) -> Result<String, String> {
    wait_ms(text).map(|_| text.to_owned())
}

/// `http://HOST:PORT` or `https://HOST:PORT`.
pub(crate) fn daemon_url(text: &str) -> Result<Target, String> {
    let (rest, target): (&str, fn(String) -> Target) =
        match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (rest, Target::Tcp),
            (None, Some(rest)) => (rest, Target::Tls),
            (None, None) => return Err("it starts neither with `http://` nor with `https://`".to_owned()),
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
            Ok(target(format!("{host}:{number}")))
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

/// A tool's program for one platform, as typed: the path may still be relative.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProgramArg {
    /// `os/arch` or `os/arch/variant`.
    pub platform: String,
    pub path: PathBuf,
}

/// `OS/ARCH[/VARIANT]:PATH`. A platform has no colon, so the path may.
pub(crate) fn program(text: &str) -> Result<ProgramArg, String> {
    const FORM: &str = "expected OS/ARCH:PATH, such as linux/amd64:target/release/rg";
    let (platform, path) = text.split_once(':').filter(|(_, path)| !path.is_empty()).ok_or(FORM)?;
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    let parts: Vec<&str> = platform.split('/').collect();
    let fits = parts.iter().all(|part| !part.is_empty() && part.bytes().all(letter));
    if !fits || !(2..=3).contains(&parts.len()) {
        return Err(format!("`{platform}` is not a platform: {FORM}"));
    }
    Ok(ProgramArg { platform: platform.to_owned(), path: path.into() })
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
        let described = |text: &str, host: &str, target: &str, description: Option<&str>, read_only: bool| {
            let description = description.map(str::to_owned);
            let (host, target, map_root) = (host.into(), target.into(), false);
            let expected = MountArg { host, target, description, read_only, map_root };
            assert_eq!(mount(text), Ok(expected), "{text}");
        };
        let check = |text: &str, host: &str, target: &str, read_only: bool| {
            described(text, host, target, None, read_only);
        };
        check("src:/work", "src", "/work", false);
        check("/a/b:/work:ro", "/a/b", "/work", true);
        check("/a:/work:rw", "/a", "/work", false);
        check("./odd:name:/work:ro", "./odd:name", "/work", true);
        check("/a:/work:", "/a", "/work", false);
        check("/a:/work::ro", "/a", "/work", true);
        for (text, read_only) in [
            ("/a:/b:map-root", false),
            ("/a:/b:rw,map-root", false),
            ("/a:/b:map-root,ro", true),
            ("/a:/b:words:ro,map-root", true),
        ] {
            let parsed = mount(text).unwrap();
            assert_eq!((parsed.map_root, parsed.read_only), (true, read_only), "{text}");
            assert_eq!(parsed.target, "/b");
        }
        described("~/n:/work:my notes:ro", "~/n", "/work", Some("my notes"), true);
        described("n:/work:see: http://x/y", "n", "/work", Some("see: http://x/y"), false);
    }

    #[test]
    fn a_tilde_is_the_home_directory_at_the_beginning_alone() {
        let expand = |text: &str| expand_home(std::path::Path::new(text), Some("/h".into()));
        assert_eq!(expand("~/a"), Ok("/h/a".into()));
        assert_eq!(expand("~"), Ok("/h".into()));
        assert_eq!(expand("~me/a"), Ok("~me/a".into()));
        assert_eq!(expand("/a/~"), Ok("/a/~".into()));
        assert!(expand_home(std::path::Path::new("~/a"), None).is_err());
    }

    #[test]
    fn a_mount_without_an_absolute_target_is_refused() {
        for text in [
            "",
            "src",
            "src:",
            ":/work",
            "src:work",
            "src:ro",
            "/a:/b:readonly",
            "/a:/b:RO",
            "/a:/b:z",
            "/a:/b:rw:ro",
            "/a:/b:ro,rw",
            "/a:/b:map-root:ro",
            "/a:/b:rw,maproot",
            "/a:/b:map-root,map-root",
        ] {
            assert!(mount(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_is_a_number_and_a_unit_and_is_not_nothing() {
        assert_eq!(seconds("90d"), Ok(90 * 86_400));
        assert_eq!((seconds("1s"), seconds("2m"), seconds("3h")), (Ok(1), Ok(120), Ok(10_800)));
        for text in [
            "",
            "d",
            "90",
            "0d",
            "-1d",
            "+1d",
            "1w",
            "1 d",
            "é",
            "99999999999999999999d",
            "999999999999999999d",
        ] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_wait_has_parts_with_units_and_lasts_a_year_at_most() {
        assert_eq!(
            (wait_ms("90s"), wait_ms("500ms"), wait_ms("1h30m")),
            (Ok(90_000), Ok(500), Ok(5_400_000))
        );
        assert_eq!(wait_ms("365d"), Ok(WAIT_MS_MAX));
        for text in [
            "",
            "s",
            "90",
            "0s",
            "0",
            "-1s",
            "+1s",
            "1w",
            "1 s",
            "1h30",
            "é",
            "365d1ms",
            "18446744073709551615s",
        ] {
            assert!(wait_ms(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_daemon_url_becomes_an_address() {
        assert_eq!(daemon_url("http://127.0.0.1:5500"), Ok(Target::Tcp("127.0.0.1:5500".into())));
        assert_eq!(daemon_url("http://box.lan:5500/"), Ok(Target::Tcp("box.lan:5500".into())));
        assert_eq!(daemon_url("http://[::1]:5500"), Ok(Target::Tcp("[::1]:5500".into())));
        assert_eq!(daemon_url("https://box.lan:5500"), Ok(Target::Tls("box.lan:5500".into())));
        assert_eq!(daemon_url("https://[::1]:5500/"), Ok(Target::Tls("[::1]:5500".into())));
    }

    #[test]
    fn a_bad_daemon_url_is_refused_before_anything_is_dialled() {
        let bad = [
            "",
            "localhost:5500",
            "https://x",
            "https://x:1/path",
            "httpss://x:1",
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
    fn a_program_has_a_platform_of_two_or_three_parts_and_any_path() {
        let check = |text: &str, platform: &str, path: &str| {
            let expected = ProgramArg { platform: platform.into(), path: path.into() };
            assert_eq!(program(text), Ok(expected), "{text}");
        };
        check("linux/amd64:/usr/bin/rg", "linux/amd64", "/usr/bin/rg");
        check("linux/arm/v7:rg", "linux/arm/v7", "rg");
        check("linux/arm64:./odd:name/rg: x", "linux/arm64", "./odd:name/rg: x");
        for text in [
            "",
            "rg",
            "linux:rg",
            "linux/amd64",
            "linux/amd64:",
            "/usr/bin/rg",
            "linux//v7:rg",
            "linux/a b:rg",
            "Linux/AMD64:rg",
            "a/b/c/d:rg",
            ":rg",
            "./x/y:rg",
        ] {
            assert!(program(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_kind_matches_itself_and_its_family_but_not_a_longer_word() {
        assert!(kind_matches("turn.text", "turn.text"));
        assert!(kind_matches("turn", "turn.text") && kind_matches("turn.*", "turn.text"));
        assert!(!kind_matches("turn.t", "turn.text") && !kind_matches("tu", "turn.text"));
    }
}
