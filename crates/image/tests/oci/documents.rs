//! Manifests and indexes, as others write them and as they must not be.

use std::collections::BTreeMap;

use lodge_image::Digest;
use lodge_image::oci::{
    DOCKER_INDEX, DOCKER_MANIFEST, Descriptor, INDEX, Index, LAYER_MAX, LAYERS_MAX, MANIFEST, MANIFEST_MAX,
    Manifest, ManifestDocument, MediaDialect, PLATFORMS_MAX, Platform,
};

const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn part(media_type: &str, size: &str) -> String {
    format!(r#"{{"mediaType":"{media_type}","digest":"sha256:{HEX}","size":{size}}}"#)
}

fn manifest_of(media_type: &str, config: &str, layers: &str) -> String {
    format!(r#"{{"schemaVersion":2,"mediaType":"{media_type}","config":{config},"layers":[{layers}]}}"#)
}

fn good() -> String {
    manifest_of(MANIFEST, &part("a/config", "2"), &part("a/layer", "3"))
}

fn index_of(media_type: &str, manifests: &str) -> String {
    format!(r#"{{"schemaVersion":2,"mediaType":"{media_type}","manifests":[{manifests}]}}"#)
}

#[track_caller]
fn refused(document: &str, because: &str) {
    let why = match ManifestDocument::read(document.as_bytes()) {
        Ok(read) => panic!("read as {read:?}"),
        Err(bad) => bad.to_string(),
    };
    assert!(why.contains(because), "{why}");
    assert!(why.len() < 500 && !why.contains(char::is_control), "{why:?}");
}

#[test]
fn a_document_that_is_written_is_read_as_it_was_and_always_the_same() {
    let digest = Digest::of(b"x");
    let mut layer = Descriptor::new("application/x", digest, 7);
    layer.annotations.insert("b".to_owned(), "\u{1} \" é".to_owned());
    layer.annotations.insert("a".to_owned(), String::new());
    layer.platform = Some(Platform::read("linux/arm/v7").expect("a platform"));
    layer.artifact_type = Some("a/b".to_owned());
    let manifest = ManifestDocument::Manifest(Manifest {
        dialect: MediaDialect::Oci,
        artifact_type: Some("application/vnd.x+json".to_owned()),
        config: Descriptor::new("a/c", digest, 0),
        layers: vec![layer.clone(), layer.clone()],
        annotations: BTreeMap::from([("k".to_owned(), "v".to_owned())]),
    });
    let index = ManifestDocument::Index(Index {
        dialect: MediaDialect::Docker,
        artifact_type: None,
        manifests: vec![layer],
        annotations: BTreeMap::new(),
    });
    for (document, media_type) in [(manifest, MANIFEST), (index, DOCKER_INDEX)] {
        let bytes = document.write().expect("small");
        let again = ManifestDocument::read(&bytes).expect("good");
        assert_eq!((again.media_type(), again.write()), (media_type, Ok(bytes)));
        assert_eq!(again, document);
    }
}

#[test]
fn documents_of_others_are_read_with_whatever_else_they_say() {
    let docker = manifest_of(DOCKER_MANIFEST, &part("a/config", "2"), "");
    let unnamed = format!(r#"{{"schemaVersion":2,"config":{},"layers":[]}}"#, part("a/config", "2"));
    let with_nulls = format!(
        r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","config":{},"layers":null,"annotations":null,"artifactType":""}}"#,
        part("a/config", "2")
    );
    let with_more = format!(
        r#"{{"schemaVersion":2,"config":{config},"layers":[],"subject":{config},"new":[{{"a":1}},-2.5e3,null,true,"x"]}}"#,
        config = part("a/config", "2")
    );
    for (document, media_type) in [
        (good(), MANIFEST),
        (docker, DOCKER_MANIFEST),
        (unnamed, MANIFEST),
        (with_nulls, MANIFEST),
        (with_more, MANIFEST),
        (index_of(INDEX, ""), INDEX),
        (index_of(DOCKER_INDEX, &part(DOCKER_MANIFEST, "5")), DOCKER_INDEX),
    ] {
        let read = ManifestDocument::read(document.as_bytes());
        assert_eq!(read.map(|read| read.media_type()), Ok(media_type), "{document}");
    }
}

#[test]
fn what_two_readers_could_read_in_two_ways_is_refused() {
    let config = part("a/config", "2");
    let both = format!(r#"{{"schemaVersion":2,"config":{config},"layers":[],"manifests":[]}}"#);
    refused(&both, "at once");
    refused(&manifest_of(INDEX, &config, ""), "mediaType");
    refused(&index_of(MANIFEST, ""), "mediaType");
    refused(&good().replacen("\"config\"", "\"layers\":[],\"config\"", 1), "`layers` occurs in it twice");
    let twice = r#"{"schemaVersion":2,"manifests":[],"x":{"y":[{"z":1,"z":1}]}}"#;
    refused(twice, "`z` occurs in it twice");
    let annotated = r#"{"schemaVersion":2,"manifests":[],"annotations":{"a":"1","\u0061":"2"}}"#;
    refused(annotated, "`a` occurs in it twice");
    refused(&format!("{} {{}}", good()), "cannot be read");
}

#[test]
fn versions_digests_and_sizes_that_are_none_are_refused_with_the_reason() {
    let replaced = |from: &str, to: &str| good().replacen(from, to, 1);
    refused(&replaced("\"schemaVersion\":2", "\"schemaVersion\":1"), "version 1");
    refused(&replaced("\"schemaVersion\":2,", ""), "schemaVersion");
    refused(&replaced(MANIFEST, "application/vnd.docker.distribution.manifest.v1+json"), "is no manifest");
    refused(&replaced(&format!("sha256:{HEX}"), &format!("sha512:{HEX}{HEX}")), "a digest is `sha256:`");
    refused(&replaced(HEX, &HEX.to_uppercase()), "a digest is `sha256:`");
    refused(&replaced(HEX, "../../etc/passwd"), "a digest is `sha256:`");
    refused(&replaced("\"size\":2", "\"size\":-1"), "-1 bytes");
    refused(&replaced("\"size\":2", "\"size\":2.5"), "cannot be read");
    refused(&replaced("\"size\":2", "\"size\":\"2\""), "cannot be read");
    refused(&replaced("\"size\":2", "\"size\":99999999999999999999999"), "cannot be read");
    refused(&replaced("\"size\":2", &format!("\"size\":{}", MANIFEST_MAX + 1)), "at most");
    refused(&replaced("\"size\":3", &format!("\"size\":{}", LAYER_MAX + 1)), "at most");
    refused(&index_of(INDEX, &part(MANIFEST, &(MANIFEST_MAX + 1).to_string())), "at most");
    refused(&replaced("a/layer", "layer"), "one of the layers has the media type `layer`");
    refused(&replaced("a/layer", "a/\\u0000"), "media type");
    refused(&replaced("a/layer", &format!("a/{}", "b".repeat(300))), "media type");
    refused(
        &replaced("\"size\":3", "\"size\":3,\"platform\":{\"os\":\"../x\",\"architecture\":\"y\"}"),
        "is for",
    );
    refused("", "cannot be read");
    refused("null", "cannot be read");
    refused("[]", "cannot be read");
    refused(r#"{"schemaVersion":2}"#, "neither");
    let as_lists = format!(r#"[2,"{MANIFEST}",null,{},[],null,null]"#, part("a/config", "2"));
    refused(&as_lists, "expected an object");
    refused(
        &replaced(&part("a/layer", "3"), &format!(r#"["a/layer","sha256:{HEX}",3]"#)),
        "expected an object",
    );
}

#[test]
fn documents_as_large_as_allowed_are_read_and_larger_ones_are_not() {
    let layers = |count: usize| vec![part("a/layer", "3"); count].join(",");
    let many = |count| manifest_of(MANIFEST, &part("a/config", "2"), &layers(count));
    assert!(ManifestDocument::read(many(LAYERS_MAX).as_bytes()).is_ok());
    refused(&many(LAYERS_MAX + 1), "layers");
    let platforms = |count: usize| index_of(INDEX, &vec![part(MANIFEST, "3"); count].join(","));
    assert!(ManifestDocument::read(platforms(PLATFORMS_MAX).as_bytes()).is_ok());
    refused(&platforms(PLATFORMS_MAX + 1), "manifests");
    let padded = |bytes: usize| format!("{}{}", " ".repeat(bytes - good().len()), good());
    let max = usize::try_from(MANIFEST_MAX).expect("small");
    assert!(ManifestDocument::read(padded(max).as_bytes()).is_ok());
    refused(&padded(max + 1), "bytes");
    let nested = |depth: usize| {
        format!(r#"{{"schemaVersion":2,"manifests":[],"x":{}{}}}"#, "[".repeat(depth), "]".repeat(depth))
    };
    assert!(ManifestDocument::read(nested(30).as_bytes()).is_ok());
    refused(&nested(40), "nested");
    refused(&nested(1_000_000), "cannot be read");
    let written = ManifestDocument::Index(Index {
        dialect: MediaDialect::Oci,
        artifact_type: None,
        manifests: Vec::new(),
        annotations: BTreeMap::from([("k".to_owned(), "v".repeat(max))]),
    });
    assert!(written.write().is_err());
}

#[test]
fn platforms_are_read_in_the_words_of_all_and_run_where_they_fit() {
    for (text, plain) in [
        ("linux/amd64", "linux/amd64"),
        ("linux/x86_64", "linux/amd64"),
        ("linux/aarch64", "linux/arm64"),
        ("linux/arm64/v8", "linux/arm64"),
        ("linux/arm/v7", "linux/arm/v7"),
        ("macos/arm64", "darwin/arm64"),
    ] {
        assert_eq!(Platform::read(text).map(|platform| platform.to_string()), Ok(plain.to_owned()));
    }
    for text in ["", "linux", "linux/", "/amd64", "linux/amd64/", "a/b/c/d", "Linux/amd64", "a/..", "a/b c"] {
        assert!(Platform::read(text).is_err(), "{text}");
    }
    let platform = |text: &str| Platform::read(text).expect("a platform");
    let runs = |made: &str, host: &str| platform(host).suited().any(|suited| suited == platform(made));
    let here = Platform::here().to_string();
    assert!(runs(&here, &here) && runs("linux/arm64/v8", "linux/arm64") && runs("linux/arm", "linux/arm/v7"));
    assert!(runs("linux/arm/v6", "linux/arm/v7") && !runs("linux/arm/v7", "linux/arm/v6"));
    for (made, host) in [
        ("linux/amd64", "linux/arm64"),
        ("darwin/arm64", "linux/arm64"),
        ("linux/amd64/v3", "linux/amd64"),
        ("linux/arm/v7", "linux/arm"),
    ] {
        assert!(!runs(made, host), "{made} on {host}");
    }
}
