//! The names of images, as people type them.
//!
//! Owns: what can be a name, and the one way it is written down. Never: knows which images there are.

use crate::agentfile::names;

const TAG_DEFAULT: &str = "latest";
const DIGEST_KIND: &str = "sha256:";
/// The shortest beginning of a digest that stands for it, so that no short name is taken for one.
const DIGEST_SHORT: usize = 6;
const DIGEST_LETTERS: usize = 64;

/// What a reference asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// `[host[:port]/]name[/name…]:tag`; without a tag, `latest` was meant.
    Name(Tagged),
    /// `sha256:…`, whole or the beginning of one.
    Digest(String),
}

/// A name with its tag. It is written in one way only, so that the same name is the same text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tagged(String);

/// Why a text names no image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` cannot be the name of an image", crate::agentfile::shown(given))]
pub struct BadReference {
    given: String,
}

impl BadReference {
    pub fn hint(&self) -> &'static str {
        "names are `name`, `name:tag` or `registry.example/name:tag`"
    }
}

impl Reference {
    pub fn read(text: &str) -> Result<Reference, BadReference> {
        let digest = text.split_once('@').map_or(text, |(_, digest)| digest);
        let whole = DIGEST_KIND.len() + DIGEST_LETTERS;
        if is_digest(digest) && (digest.len() == whole || digest == text) {
            return Ok(Reference::Digest(digest.to_owned()));
        }
        Tagged::read(text).map(Reference::Name)
    }

    /// The beginning of a digest that a name could be meant as, should there be no image of that name.
    pub fn short_digest(text: &str) -> Option<String> {
        (text.len() >= DIGEST_SHORT && is_hex(text)).then(|| format!("{DIGEST_KIND}{text}"))
    }
}

impl Tagged {
    pub fn read(text: &str) -> Result<Tagged, BadReference> {
        let bad = || BadReference { given: text.to_owned() };
        // A digest is never read as a name, so nothing can be called so.
        if text.contains('@') || is_digest(text) {
            return Err(bad());
        }
        let last = text.rfind('/').map_or(0, |at| at + 1);
        let (name, tag) = match text[last..].split_once(':') {
            Some((name, tag)) => (&text[..last + name.len()], tag),
            None => (text, TAG_DEFAULT),
        };
        let whole = format!("{name}:{tag}");
        // What NAME allows is a name here too, or its image could not be asked for.
        let plain = names::path_name(name) && names::image_tag(tag);
        if plain || names::image_ref(&whole) { Ok(Tagged(whole)) } else { Err(bad()) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_digest(text: &str) -> bool {
    text.strip_prefix(DIGEST_KIND).is_some_and(|hex| hex.len() >= DIGEST_SHORT && is_hex(hex))
}

fn is_hex(text: &str) -> bool {
    text.len() <= DIGEST_LETTERS && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn a_name_is_written_in_one_way_only() {
        for (text, written) in [
            ("otter", "otter:latest"),
            ("otter:latest", "otter:latest"),
            ("agents/otter:v1", "agents/otter:v1"),
            ("localhost:5000/otter", "localhost:5000/otter:latest"),
            ("registry.example/a/b", "registry.example/a/b:latest"),
            ("otter-", "otter-:latest"),
            ("sha256:abc", "sha256:abc"),
            ("abcdef", "abcdef:latest"),
        ] {
            assert_eq!(Reference::read(text), Ok(Reference::Name(Tagged(written.to_owned()))), "{text}");
        }
    }

    #[test]
    fn a_digest_is_found_whole_short_and_behind_a_name() {
        for text in [DIGEST.to_owned(), format!("otter@{DIGEST}"), format!("otter:v1@{DIGEST}")] {
            assert_eq!(Reference::read(&text), Ok(Reference::Digest(DIGEST.to_owned())), "{text}");
        }
        assert_eq!(Reference::read("sha256:012345"), Ok(Reference::Digest("sha256:012345".to_owned())));
        assert_eq!(Reference::short_digest("012345"), Some("sha256:012345".to_owned()));
        assert_eq!((Reference::short_digest("01234"), Reference::short_digest("otters")), (None, None));
    }

    #[test]
    fn nothing_can_be_called_what_is_read_as_a_digest() {
        for text in [DIGEST, "sha256:012345", "sha256:abcdef"] {
            assert!(Tagged::read(text).is_err(), "{text}");
        }
        for text in ["sha256", "sha256:latest", "sha256:01234", "a/sha256:012345"] {
            assert!(Tagged::read(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_could_be_a_path_or_nothing_is_no_name() {
        for text in [
            "",
            ":",
            ":tag",
            "a:",
            "a:b:c",
            "../x",
            "./x",
            "/etc/passwd",
            "a/../b",
            "a//b",
            "a b",
            "a\0b",
            "a\nb",
            "~/x",
            "-a",
            "a@b",
            "a@sha256:12",
            "a:-t",
            "é",
            "a/",
            "-",
            "http://x/y",
            "a:t@",
        ] {
            assert!(Reference::read(text).is_err(), "{text:?}");
        }
        assert!(Reference::read(&"a".repeat(10 << 20)).is_err());
    }
}
