//! The names of images, as people type them.
//!
//! Owns: what can be a name, and the one way it is written down. Never: knows which images there are.

use std::fmt;

use crate::Digest;
use crate::agentfile::names;

const TAG_DEFAULT: &str = "latest";
const DIGEST_KIND: &str = "sha256:";
/// The shortest digest prefix that is accepted, so that no short name is taken for a digest.
const DIGEST_SHORT: usize = 6;
const DIGEST_LETTERS: usize = 64;

/// What a reference asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// `[host[:port]/]name[/name…]:tag`; without a tag, `latest` was meant.
    Name(TaggedName),
    /// `sha256:…`, whole or the beginning of one.
    Digest(String),
}

/// A name with its tag. It is written in one way only, so that the same name is the same text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaggedName(String);

/// Why a text names no image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` cannot be the name of an image", crate::agentfile::shown(given))]
pub struct BadReference {
    given: String,
}

/// An image in a registry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RemoteImage {
    /// `host` or `host:port`.
    pub host: String,
    pub repository: String,
    pub version: ImageVersion,
}

/// Which of the images of a repository.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImageVersion {
    Tag(String),
    Digest(Digest),
}

impl BadReference {
    pub fn hint(&self) -> &'static str {
        if self.given.contains("://") {
            return "leave out the part before the host: `registry.example/name:tag`";
        }
        "names are `name`, `name:tag` or `registry.example/name:tag`"
    }
}

impl Reference {
    pub fn read(text: &str) -> Result<Reference, BadReference> {
        if let Some((_, digest)) = Reference::pinned(text)? {
            return Ok(Reference::Digest(digest.to_string()));
        }
        if is_digest(text) {
            return Ok(Reference::Digest(text.to_owned()));
        }
        TaggedName::read(text).map(Reference::Name)
    }

    /// Reads `name[:tag]@sha256:…`: a name, and what it led to once. `None` when nothing is pinned.
    pub fn pinned(text: &str) -> Result<Option<(TaggedName, Digest)>, BadReference> {
        let Some((name, digest)) = text.split_once('@') else { return Ok(None) };
        let bad = || BadReference { given: text.to_owned() };
        let name = TaggedName::read(name).map_err(|_| bad())?;
        Ok(Some((name, digest.parse().map_err(|_| bad())?)))
    }

    /// The beginning of a digest that a name could be meant as, should there be no image of that name.
    pub fn short_digest(text: &str) -> Option<String> {
        (text.len() >= DIGEST_SHORT && is_hex(text)).then(|| format!("{DIGEST_KIND}{text}"))
    }
}

impl TaggedName {
    pub fn read(text: &str) -> Result<TaggedName, BadReference> {
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
        // A valid NAME is a valid reference too. Otherwise its image could not be requested.
        let plain = names::path_name(name) && names::image_tag(tag);
        if plain || names::image_ref(&whole) { Ok(TaggedName(whole)) } else { Err(bad()) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether BIN and RUNTIME would take it for a program of the host, so that no tool can be called so.
    pub fn reads_as_program(&self) -> bool {
        names::reads_as_program(&self.0)
    }

    /// The name with what it leads to now, as [`Reference::pinned`] reads it.
    pub fn pin(&self, digest: &Digest) -> String {
        format!("{}@{digest}", self.0)
    }
}

impl RemoteImage {
    /// Reads `host/name[:tag][@sha256:…]`; the digest goes before the tag. `None` when it names no registry: its first
    /// part has neither a dot nor a port and is not `localhost`.
    pub fn read(text: &str) -> Result<Option<RemoteImage>, BadReference> {
        let bad = || BadReference { given: text.to_owned() };
        let (name, digest) = match Reference::pinned(text)? {
            Some((name, digest)) => (name, Some(digest)),
            None if is_digest(text) => return Ok(None),
            None => (TaggedName::read(text)?, None),
        };
        let Some((host, rest)) = name.as_str().split_once('/').filter(|(host, _)| names::is_registry(host))
        else {
            return Ok(None);
        };
        let (repository, tag) = rest.split_once(':').ok_or_else(bad)?;
        let version = digest.map_or_else(|| ImageVersion::Tag(tag.to_owned()), ImageVersion::Digest);
        Ok(Some(RemoteImage { host: host.to_ascii_lowercase(), repository: repository.to_owned(), version }))
    }

    /// The same repository, and another of its images.
    pub fn with(&self, version: ImageVersion) -> RemoteImage {
        RemoteImage { version, ..self.clone() }
    }
}

impl fmt::Display for RemoteImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.repository)?;
        match &self.version {
            ImageVersion::Tag(tag) => write!(f, ":{tag}"),
            ImageVersion::Digest(digest) => write!(f, "@{digest}"),
        }
    }
}

impl fmt::Display for TaggedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The hint how to get the tools that come with Lodge.
pub fn stock_hint(reference: &str) -> Option<&'static str> {
    reference.starts_with("stock/").then_some(
        "`make stock` builds the tools that come with Lodge; `lodge image import --yes target/stock/stock.tar` imports them",
    )
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
            assert_eq!(Reference::read(text), Ok(Reference::Name(TaggedName(written.to_owned()))), "{text}");
        }
    }

    #[test]
    fn an_address_or_the_stock_tools_as_a_source_are_refused_with_what_to_do() {
        let hint = |text: &str| RemoteImage::read(text).unwrap_err().hint();
        assert!(hint("https://registry.example/a:v1").starts_with("leave out"));
        assert!(hint("a b").starts_with("names are"));
        assert!(stock_hint("stock/rg:latest").is_some_and(|hint| hint.contains("make stock")));
        assert_eq!((stock_hint("rg"), stock_hint("r.example/stock/rg")), (None, None));
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
    fn what_is_pinned_is_read_as_it_was_written() {
        let digest: Digest = DIGEST.parse().expect("a digest");
        for (text, name) in [("rg", "rg:latest"), ("stock/rg:1", "stock/rg:1"), ("rg-", "rg-:latest")] {
            let pinned = TaggedName::read(text).expect("a name").pin(&digest);
            assert_eq!(pinned, format!("{name}@{DIGEST}"));
            assert_eq!(Reference::pinned(&pinned), Ok(Some((TaggedName(name.to_owned()), digest))));
        }
        assert_eq!(Reference::pinned("rg"), Ok(None));
        for text in ["rg@", "@", "rg@sha256:0123", "../rg@", "rg@sha512:00", "a@b@c"] {
            assert!(Reference::pinned(text).is_err(), "{text}");
        }
        for name in ["", "../rg", "a b", "sha256:012345", "a@a"] {
            assert!(Reference::read(&format!("{name}@{DIGEST}")).is_err(), "{name}");
        }
    }

    #[test]
    fn a_registry_is_named_by_a_dot_a_port_or_localhost() {
        let digest: Digest = DIGEST.parse().expect("a digest");
        let tag = |tag: &str| ImageVersion::Tag(tag.to_owned());
        for (text, host, repository, version) in [
            ("localhost/a", "localhost", "a", tag("latest")),
            ("localhost:5000/a/b:v1", "localhost:5000", "a/b", tag("v1")),
            ("Registry.Example/a", "registry.example", "a", tag("latest")),
            ("[::1]:5000/a:1", "[::1]:5000", "a", tag("1")),
            ("10.0.0.1/a:b", "10.0.0.1", "a", tag("b")),
            (&format!("r.example/a@{DIGEST}"), "r.example", "a", ImageVersion::Digest(digest)),
            (&format!("r.example/a:v1@{DIGEST}"), "r.example", "a", ImageVersion::Digest(digest)),
        ] {
            let remote = RemoteImage { host: host.to_owned(), repository: repository.to_owned(), version };
            assert_eq!(RemoteImage::read(text), Ok(Some(remote.clone())), "{text}");
            assert_eq!(RemoteImage::read(&remote.to_string()), Ok(Some(remote)), "{text}");
        }
        for text in ["a", "a:b", "agents/a:v1", DIGEST, "sha256:012345", &format!("a/b@{DIGEST}")] {
            assert_eq!(RemoteImage::read(text), Ok(None), "{text}");
        }
        for text in [
            "r.example/",
            "r.example//a",
            "r.example:0/a",
            "r.example:99999/a",
            "r..example/a",
            "r.example/../a",
            "user@r.example/a",
            "user:secret@r.example/a",
            "https://r.example/a",
            "r.example/a?x=1",
            "r.example/a#b",
            "r.example/a%2f",
            "[::1/a",
            "[fe80::1%25eth0]:1/a",
            "-r.example/a",
            "r.example/a:b:c",
            "r.example/a@sha256:0123",
            "r.example/a\r\nx:1",
        ] {
            assert!(RemoteImage::read(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_begins_as_a_program_of_the_host_does_is_taken_for_one() {
        for text in ["host", "host:v1", "host:5000/rg"] {
            assert!(TaggedName::read(text).expect("a name").reads_as_program(), "{text}");
        }
        for text in ["hosts", "stock/host", "host/rg", "host.example/host:v1", "Host"] {
            assert!(!TaggedName::read(text).expect("a name").reads_as_program(), "{text}");
        }
    }

    #[test]
    fn nothing_can_be_called_what_is_read_as_a_digest() {
        for text in [DIGEST, "sha256:012345", "sha256:abcdef"] {
            assert!(TaggedName::read(text).is_err(), "{text}");
        }
        for text in ["sha256", "sha256:latest", "sha256:01234", "a/sha256:012345"] {
            assert!(TaggedName::read(text).is_ok(), "{text}");
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
