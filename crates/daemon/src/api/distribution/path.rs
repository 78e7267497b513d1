//! What a path below `/v2/` asks for. Names have any number of slashes, so it is read from its end.

use lodge_image::Digest;

/// Of a name; longer names do not exist.
const NAME_MAX: usize = 255;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum DistributionRequest {
    Base,
    Catalog,
    Tags { name: String },
    Manifest { name: String, version: ManifestReference },
    Blob { name: String, digest: Digest },
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ManifestReference {
    Tag(String),
    Digest(Digest),
}

impl DistributionRequest {
    pub fn read(rest: &str) -> Option<DistributionRequest> {
        if rest.is_empty() {
            return Some(DistributionRequest::Base);
        }
        if rest == "_catalog" {
            return Some(DistributionRequest::Catalog);
        }
        if let Some(name) = rest.strip_suffix("/tags/list") {
            return Some(DistributionRequest::Tags { name: named(name)? });
        }
        let (head, last) = rest.rsplit_once('/')?;
        if let Some(name) = head.strip_suffix("/manifests") {
            let version = match last.parse() {
                Ok(digest) => ManifestReference::Digest(digest),
                Err(_) => ManifestReference::Tag(last.to_owned()),
            };
            return Some(DistributionRequest::Manifest { name: named(name)?, version });
        }
        let name = head.strip_suffix("/blobs")?;
        Some(DistributionRequest::Blob { name: named(name)?, digest: last.parse().ok()? })
    }
}

fn named(name: &str) -> Option<String> {
    (!name.is_empty() && name.len() <= NAME_MAX).then(|| name.to_owned())
}

/// Whether clients that follow the specification can request a name.
pub(super) fn is_repository(name: &str) -> bool {
    let part = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
            && part.ends_with(|last: char| last.is_ascii_lowercase() || last.is_ascii_digit())
            && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b))
    };
    name.len() <= NAME_MAX && name.split('/').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_from_their_end_whatever_the_name_is() {
        let digest = Digest::of(b"x");
        let check = |rest: &str, wanted: Option<DistributionRequest>| {
            assert_eq!(DistributionRequest::read(rest), wanted, "{rest}")
        };
        let name = |text: &str| text.to_owned();
        check("", Some(DistributionRequest::Base));
        check("_catalog", Some(DistributionRequest::Catalog));
        check("a/tags/list", Some(DistributionRequest::Tags { name: name("a") }));
        check("a/b/c/tags/list", Some(DistributionRequest::Tags { name: name("a/b/c") }));
        let version = || ManifestReference::Tag(name("v1"));
        check("a/manifests/v1", Some(DistributionRequest::Manifest { name: name("a"), version: version() }));
        check(
            "a/b/manifests/v1",
            Some(DistributionRequest::Manifest { name: name("a/b"), version: version() }),
        );
        check(
            "manifests/manifests/v1",
            Some(DistributionRequest::Manifest { name: name("manifests"), version: version() }),
        );
        check(
            &format!("a/manifests/{digest}"),
            Some(DistributionRequest::Manifest {
                name: name("a"),
                version: ManifestReference::Digest(digest),
            }),
        );
        check(&format!("a/b/blobs/{digest}"), Some(DistributionRequest::Blob { name: name("a/b"), digest }));
        for nothing in [
            "a",
            "a/b",
            "tags/list",
            "/manifests/v1",
            "a/blobs/v1",
            "a/blobs/uploads/",
            "a/referrers/x",
            "a/blobs/",
        ] {
            check(nothing, None);
        }
        check(&format!("{}/tags/list", "a".repeat(NAME_MAX + 1)), None);
    }

    #[test]
    fn names_that_other_clients_cannot_write_are_not_shown_to_them() {
        for good in ["a", "a/b", "a-b/c_d", "registry.example/a"] {
            assert!(is_repository(good), "{good}");
        }
        for bad in ["", "A", "a//b", "-a", "a-", "localhost:5000/a", "a/", "é"] {
            assert!(!is_repository(bad), "{bad}");
        }
    }
}
