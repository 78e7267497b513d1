//! The known platforms. A foreign image may name any platform. A local build for an unknown platform is probably a
//! mistake.

use lodge_image::oci::Platform;

use crate::config::edits;

/// As registries call them.
const SYSTEMS: [&str; 13] = [
    "aix",
    "android",
    "darwin",
    "dragonfly",
    "freebsd",
    "illumos",
    "ios",
    "linux",
    "netbsd",
    "openbsd",
    "solaris",
    "wasip1",
    "windows",
];
const ARCHITECTURES: [&str; 15] = [
    "386", "amd64", "arm", "arm64", "loong64", "mips", "mips64", "mips64le", "mipsle", "ppc64", "ppc64le",
    "riscv64", "s390x", "sparc64", "wasm",
];
/// Letters that a slip of the finger gets wrong.
const SLIP_MAX: usize = 2;

/// Why there is no such platform, and what was probably meant.
pub(super) fn unknown(platform: &Platform) -> Option<(String, String)> {
    let (what, word, known) = if !SYSTEMS.contains(&platform.os.as_str()) {
        ("operating system", &platform.os, SYSTEMS.as_slice())
    } else if !ARCHITECTURES.contains(&platform.architecture.as_str()) {
        ("architecture", &platform.architecture, ARCHITECTURES.as_slice())
    } else {
        return None;
    };
    let near = known.iter().map(|name| (edits(name, word), *name)).min().filter(|(far, _)| *far <= SLIP_MAX);
    let hint = match near {
        Some((_, name)) => format!("did you mean `{name}`?"),
        None => format!("those are {}", known.join(", ")),
    };
    Some((format!("`{word}` of `{platform}` is no {what}"), hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_platform_that_nobody_has_is_reported_with_the_one_that_was_meant() {
        let told = |text: &str| unknown(&Platform::read(text).unwrap());
        for known in
            ["linux/amd64", "linux/x86_64", "linux/arm/v7", "macos/aarch64", "windows/386", "linux/riscv64"]
        {
            assert_eq!(told(known), None, "{known}");
        }
        assert_eq!(told(&Platform::here().to_string()), None);
        let (what, hint) = told("linux/amd46").unwrap();
        assert_eq!(what, "`amd46` of `linux/amd46` is no architecture");
        assert_eq!(hint, "did you mean `amd64`?");
        assert_eq!(told("linus/amd64").unwrap().1, "did you mean `linux`?");
        assert!(told("templeos/amd64").unwrap().1.starts_with("those are aix, "));
    }
}
