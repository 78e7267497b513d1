//! Images as one file, ours and those of others.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::Command;

use lodge_image::oci::{Descriptor, StreamError, read_archive, write_archive};
use lodge_image::{BlobError, Digest};

use crate::bins::{made, put};
use crate::tars::{TarBuilder, gzip};
use crate::{TestStore, check_whole, names};

type ArchivedImages = Vec<(Descriptor, Option<String>)>;

const LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;

/// Two tools, of which one has two names and one none.
fn shelf(store: &TestStore) -> ArchivedImages {
    let pins = store.blobs.pins();
    let rg = put(&store.blobs, &pins, &made("rg"));
    let fd = put(&store.blobs, &pins, &made("fd"));
    let name = |name: &str| Some(name.to_owned());
    vec![(rg.clone(), name("stock/rg:latest")), (rg, name("registry.example/tools/rg:v1")), (fd, None)]
}

fn written(store: &TestStore, images: &ArchivedImages) -> Vec<u8> {
    let mut archive = Vec::new();
    write_archive(&store.blobs, images, &mut archive).unwrap();
    archive
}

fn read(store: &TestStore, archive: &[u8]) -> Result<ArchivedImages, StreamError> {
    read_archive(&store.blobs, &store.blobs.pins(), &mut &*archive).map(|archive| archive.images)
}

#[track_caller]
fn refused(archive: &[u8], why: &str) {
    let store = TestStore::new();
    match read(&store, archive) {
        Err(StreamError::Bad(bad)) => assert!(bad.why.contains(why), "{}", bad.why),
        other => panic!("{other:?}"),
    }
    check_whole(&store.dir());
    assert_eq!(names(store.above()), ["registry"]);
}

/// What an archive holds, by name.
fn entries(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut tar = tar::Archive::new(archive);
    let entries = tar.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        (name, bytes)
    });
    entries.collect()
}

fn packed(entries: &[(String, Vec<u8>)]) -> Vec<u8> {
    let add = |tar: TarBuilder, (name, bytes): &(String, Vec<u8>)| match name.ends_with('/') {
        true => tar.dir(name),
        false => tar.file(name, bytes),
    };
    entries.iter().fold(TarBuilder::default(), add).end()
}

#[test]
fn what_is_written_is_read_elsewhere_with_its_names_in_any_order_and_packed() {
    let store = TestStore::new();
    let images = shelf(&store);
    let archive = written(&store, &images);
    let mut turned = entries(&archive);
    turned.reverse();
    for archive in [archive.clone(), gzip(&archive), packed(&turned)] {
        let other = TestStore::new();
        assert_eq!(read(&other, &archive).unwrap(), images);
        assert_eq!(names(&other.dir().join("blobs/sha256")), names(&store.dir().join("blobs/sha256")));
        assert_eq!(written(&other, &images), written(&store, &images));
        // Once more, where everything is there.
        assert_eq!(read(&other, &archive).unwrap(), images);
    }
}

#[test]
fn an_archive_is_in_order_and_says_nothing_of_when_and_by_whom() {
    let store = TestStore::new();
    let archive = written(&store, &shelf(&store));
    let mut tar = tar::Archive::new(archive.as_slice());
    let mut found = Vec::new();
    for entry in tar.entries().unwrap() {
        let entry = entry.unwrap();
        let header = entry.header();
        assert_eq!((header.mtime().unwrap(), header.uid().unwrap(), header.gid().unwrap()), (0, 0, 0));
        assert_eq!(header.username_bytes(), Some(b"".as_slice()));
        found.push(String::from_utf8(entry.path_bytes().into_owned()).unwrap());
    }
    let mut sorted = found.clone();
    sorted.sort();
    assert_eq!(found, sorted);
    assert_eq!(found.first().map(String::as_str), Some("blobs/"));
    assert_eq!(found[found.len() - 2..], ["index.json", "oci-layout"]);
}

#[test]
fn what_was_taken_stays_while_it_is_pinned_and_goes_afterwards() {
    let store = TestStore::new();
    let archive = written(&store, &shelf(&store));
    let other = TestStore::new();
    let pins = other.blobs.pins();
    read_archive(&other.blobs, &pins, &mut archive.as_slice()).unwrap();
    let collect = || other.blobs.collect(&mut || Ok(Default::default())).unwrap().blobs;
    assert_eq!(collect(), 0);
    drop(pins);
    assert_eq!(collect(), names(&store.dir().join("blobs/sha256")).len() as u64);
}

#[test]
fn an_archive_that_lacks_a_part_or_has_a_wrong_one_is_refused() {
    let store = TestStore::new();
    let images = shelf(&store);
    let whole = entries(&written(&store, &images));
    for (nth, (name, bytes)) in whole.iter().enumerate().filter(|(_, (name, _))| !name.ends_with('/')) {
        let mut without = whole.clone();
        without.remove(nth);
        let why = if name.starts_with("blobs") { "it lacks sha256:" } else { "it is no archive of images" };
        refused(&packed(&without), why);
        let mut wrong = whole.clone();
        wrong[nth].1 = vec![b'x'; bytes.len()];
        let why = if name.starts_with("blobs") { "has the digest sha256:" } else { "cannot be read" };
        refused(&packed(&wrong), why);
        // Also where the right one is there already.
        if name.starts_with("blobs") {
            assert!(matches!(read(&store, &packed(&wrong)), Err(StreamError::Bad(_))));
        }
    }
}

#[test]
fn an_archive_that_is_cut_off_is_refused_and_leaves_nothing_half() {
    let store = TestStore::new();
    let archive = written(&store, &shelf(&store));
    let end = archive.len() - 1_024;
    for len in (0..end).step_by(311) {
        let other = TestStore::new();
        assert!(read(&other, &archive[..len]).is_err(), "{len}");
        check_whole(&other.dir());
    }
    refused(&[archive, vec![1]].concat(), "there is data after its end");
}

fn index(images: &str) -> Vec<u8> {
    format!(r#"{{"schemaVersion":2,"manifests":[{images}]}}"#).into_bytes()
}

#[test]
fn what_an_archive_of_images_has_no_use_for_is_refused_and_never_followed() {
    let store = TestStore::new();
    let whole = packed(&entries(&written(&store, &shelf(&store))));
    let base = || TarBuilder(whole[..whole.len() - 1_024].to_vec());
    let hex = Digest::of(b"x").hex();
    for name in ["index.json", "blobs/sha256/link", "link", &format!("blobs/sha256/{hex}")] {
        for (kind, what) in [(b'1', "hard link"), (b'2', "symbolic link"), (b'3', "device"), (b'6', "pipe")] {
            refused(&base().link(kind, name, "/etc/passwd").end(), what);
        }
    }
    refused(&base().link(b'2', "blobs", "/tmp").end(), "symbolic link");
    refused(&base().file("../outside", b"x").end(), "no name of a file");
    refused(&base().file("blobs/sha256/../../../x", b"x").end(), "no name of a file");
    refused(&base().file("blobs/sha256/short", b"x").end(), "is no digest");
    refused(&base().file(&format!("blobs/sha256/{}", hex.to_uppercase()), b"x").end(), "is no digest");
    refused(&base().file("index.json", &index("")).end(), "occurs in it twice");
    refused(
        &base().raw(b'0', &format!("blobs/sha256/{hex}"), "", b"", (1 << 30) + 1).end(),
        "at most 1073741824",
    );
    // A file that is not looked at does no harm: newer `docker save` has some.
    assert!(
        read(&TestStore::new(), &base().file("manifest.json", b"[]").file("repositories", b"{}").end())
            .is_ok()
    );
}

#[test]
fn layouts_and_indexes_that_say_nonsense_are_refused() {
    let of = |layout: &[u8], index: &[u8]| {
        TarBuilder::default().file("oci-layout", layout).file("index.json", index).end()
    };
    refused(&of(br#"{"imageLayoutVersion":"2.0.0"}"#, &index("")), "version 2.0.0");
    refused(&of(b"{}", &index("")), "oci-layout cannot be read");
    refused(&of(&[b' '; 5_000], &index("")), "larger than the 4096 bytes");
    refused(&of(LAYOUT, &index("")), "there is no image in it");
    refused(&of(LAYOUT, b"{}"), "there is no image in it");
    refused(&of(LAYOUT, b"[]"), "index.json cannot be read");
    refused(&of(LAYOUT, &index(r#"{"mediaType":"a/b","digest":"sha256:zz","size":1}"#)), "cannot be read");
    refused(&of(LAYOUT, &index(r#"{"mediaType":"a/b","digest":"sha512:00","size":1}"#)), "cannot be read");
    let named =
        |digest: &Digest, size: usize| format!(r#"{{"mediaType":"a/b","digest":"{digest}","size":{size}}}"#);
    refused(&of(LAYOUT, &index(&named(&Digest::of(b"gone"), 4))), "it lacks");
    let many = vec![named(&Digest::of(b"gone"), 4); 1_025].join(",");
    refused(&of(LAYOUT, &index(&many)), "1025 images");
    let with = |bytes: &[u8], size: usize| {
        let (digest, tar) = (Digest::of(bytes), TarBuilder::default());
        let tar = tar.file("oci-layout", LAYOUT).file("index.json", &index(&named(&digest, size)));
        tar.file(&format!("blobs/sha256/{}", digest.hex()), bytes).end()
    };
    refused(&with(b"no manifest", 11), "cannot be read");
    let inner = br#"{"schemaVersion":2,"manifests":[]}"#;
    refused(&with(inner, inner.len() + 1), "two sizes");
    assert!(read(&TestStore::new(), &with(inner, inner.len())).is_ok());
}

#[test]
fn an_index_in_an_index_is_refused() {
    let inner = br#"{"schemaVersion":2,"manifests":[]}"#.as_slice();
    let named = |bytes: &[u8]| {
        let kind = "application/vnd.oci.image.index.v1+json";
        format!(r#"{{"mediaType":"{kind}","digest":"{}","size":{}}}"#, Digest::of(bytes), bytes.len())
    };
    let outer = index(&named(inner));
    let tar = TarBuilder::default().file("oci-layout", LAYOUT).file("index.json", &index(&named(&outer)));
    let tar = [inner, &outer]
        .iter()
        .fold(tar, |tar, bytes| tar.file(&format!("blobs/sha256/{}", Digest::of(bytes).hex()), bytes));
    refused(&tar.end(), "index in an index");
}

#[test]
fn names_that_nothing_can_be_called_are_left_out() {
    let store = TestStore::new();
    let images = shelf(&store);
    let mut whole = entries(&written(&store, &images));
    let at = whole.iter().position(|(name, _)| name == "index.json").unwrap();
    let text = String::from_utf8(whole[at].1.clone()).unwrap();
    for (name, expected) in [("../../etc", None), ("a b", None), ("v1", Some("v1")), ("x:y", Some("x:y"))] {
        whole[at].1 = text.replace("stock/rg:latest", name).into_bytes();
        let read = read(&TestStore::new(), &packed(&whole)).unwrap();
        assert_eq!(read[0].1.as_deref(), expected);
    }
}

#[test]
fn zeros_without_end_are_not_read_to_their_end() {
    struct Zeros(u64);
    impl Read for Zeros {
        fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
            piece.fill(0);
            self.0 += piece.len() as u64;
            Ok(piece.len())
        }
    }
    let store = TestStore::new();
    let mut zeros = Zeros(0);
    let error = read_archive(&store.blobs, &store.blobs.pins(), &mut zeros).unwrap_err();
    assert!(error.to_string().contains("zeros"), "{error}");
    assert!(zeros.0 < 32 << 20, "{} were read", zeros.0);
}

#[test]
fn an_archive_of_docker_save_is_called_so() {
    let old = TarBuilder::default()
        .file("abc.json", b"{}")
        .dir("0123/")
        .file("0123/layer.tar", b"x")
        .link(b'2', "4567/layer.tar", "../0123/layer.tar")
        .file("manifest.json", b"[]");
    refused(&old.end(), "archive of `docker save`");
    refused(&TarBuilder::default().file("hello", b"x").end(), "it is no archive of images");
    refused(b"hello", "it is no tar archive");
    refused(&b"hello".repeat(1_000), "it is no tar archive");
    refused(b"", "it is no archive of images");
}

#[test]
fn the_other_side_of_a_transfer_may_fail() {
    struct TornReader<'a>(&'a [u8]);
    impl Read for TornReader<'_> {
        fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() { Err(io::ErrorKind::ConnectionReset.into()) } else { self.0.read(piece) }
        }
    }
    impl Write for TornReader<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.0.len());
            self.0 = &self.0[taken..];
            if taken == 0 { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(taken) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let store = TestStore::new();
    let images = shelf(&store);
    let archive = written(&store, &images);
    for archive in [archive.clone(), gzip(&archive)] {
        for len in (0..archive.len() - 1_024).step_by(311) {
            let other = TestStore::new();
            let failed = read_archive(&other.blobs, &other.blobs.pins(), &mut TornReader(&archive[..len]));
            let is_reset = matches!(&failed, Err(StreamError::Io { cause }) if cause.kind() == io::ErrorKind::ConnectionReset);
            assert!(is_reset, "{len}: {failed:?}");
            check_whole(&other.dir());
        }
    }
    for len in (0..archive.len()).step_by(311) {
        let failed = write_archive(&store.blobs, &images, &mut TornReader(&archive[..len]));
        assert!(
            matches!(failed, Err(StreamError::Io { cause }) if cause.kind() == io::ErrorKind::BrokenPipe)
        );
    }
}

#[test]
fn what_is_damaged_or_missing_is_not_exported() {
    let store = TestStore::new();
    let images = shelf(&store);
    for name in names(&store.dir().join("blobs/sha256")) {
        let path = store.dir().join("blobs/sha256").join(&name);
        let good = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let failed = write_archive(&store.blobs, &images, &mut io::sink());
        assert!(matches!(failed, Err(StreamError::Blob(BlobError::Missing { .. }))), "{failed:?}");
        for bad in [vec![b'x'; good.len()], [good.as_slice(), b"x"].concat()] {
            std::fs::write(&path, bad).unwrap();
            let failed = write_archive(&store.blobs, &images, &mut io::sink());
            assert!(matches!(failed, Err(StreamError::Blob(BlobError::Damaged { .. }))), "{failed:?}");
            std::fs::remove_file(&path).unwrap();
        }
        std::fs::write(&path, good).unwrap();
    }
    written(&store, &images);
}

/// Runs skopeo, which `make tools` installs for the tests.
#[track_caller]
fn skopeo(dir: &Path, args: &[&str]) -> Vec<u8> {
    let output = Command::new("skopeo").args(args).current_dir(dir).env("TMPDIR", dir).output();
    let output =
        output.unwrap_or_else(|error| panic!("`skopeo` cannot be run ({error}): `make tools` installs it"));
    assert!(output.status.success(), "skopeo {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn skopeo_reads_what_we_write_and_we_read_what_skopeo_writes() {
    let store = TestStore::new();
    let images = shelf(&store);
    let dir = store.above();
    std::fs::write(dir.join("ours.tar"), written(&store, &images)).unwrap();
    std::fs::write(dir.join("policy.json"), br#"{"default":[{"type":"insecureAcceptAnything"}]}"#).unwrap();
    let raw = skopeo(dir, &["inspect", "--raw", "oci-archive:ours.tar:stock/rg:latest"]);
    assert_eq!(Digest::of(&raw), images[0].0.digest);
    let amd64 = ["--override-os=linux", "--override-arch=amd64"];
    let seen = skopeo(dir, &[&amd64[..], &["inspect", "oci-archive:ours.tar:stock/rg:latest"]].concat());
    let seen: serde_json::Value = serde_json::from_slice(&seen).unwrap();
    assert_eq!((&seen["Architecture"], &seen["Os"]), (&"amd64".into(), &"linux".into()));
    assert_eq!(seen["Labels"]["io.lodge.bin.name"], "rg");
    let copy =
        ["--policy", "policy.json", "copy", "--all", "oci-archive:ours.tar:registry.example/tools/rg:v1"];
    skopeo(dir, &[&copy[..], &["oci-archive:theirs.tar:rg:v2"]].concat());
    let other = TestStore::new();
    let theirs = read(&other, &std::fs::read(dir.join("theirs.tar")).unwrap()).unwrap();
    assert_eq!(theirs, [(images[0].0.clone(), Some("rg:v2".to_owned()))]);
    // One platform of it is a single manifest.
    let copy =
        ["--policy", "policy.json", "copy", "oci-archive:ours.tar:stock/rg:latest", "oci-archive:one.tar:rg"];
    skopeo(dir, &[&amd64[..], &copy[..]].concat());
    assert_eq!(read(&other, &std::fs::read(dir.join("one.tar")).unwrap()).unwrap().len(), 1);
}
