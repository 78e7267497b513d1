//! Tools, made and read.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};

use lodge_image::oci::{
    BIN, BadImage, BinImage, Blob, Descriptor, Index, MANIFEST, Manifest, ManifestDocument, MediaDialect,
    NewBin, PackedImage, Platform, StreamError, TITLE, extract_program, pack_bin, read_bin,
};
use lodge_image::{Blobs, Digest, Pins};

use crate::tars::{LAYER, TarBuilder};
use crate::{TestStore, check_whole, names};

pub(crate) fn platform(text: &str) -> Platform {
    Platform::read(text).unwrap()
}

/// A tool to build, and its programs before packing.
pub(crate) struct TestTool {
    new: NewBin,
    programs: Vec<(Platform, Vec<u8>)>,
}

pub(crate) fn tool(name: &str) -> TestTool {
    TestTool {
        new: NewBin {
            name: name.to_owned(),
            description: Some("searches".to_owned()),
            usage: Some("# rg\nSearches.\n".to_owned()),
            labels: BTreeMap::from([("org.opencontainers.image.version".to_owned(), "1.2".to_owned())]),
            programs: Vec::new(),
        },
        programs: vec![
            (platform("linux/arm64"), b"arm program".to_vec()),
            (platform("linux/amd64"), b"amd program".to_vec()),
        ],
    }
}

impl TestTool {
    /// The image with the layers that its programs became, which are read from the store where they were made.
    fn pack(&self) -> Result<PackedImage, StreamError> {
        let store = TestStore::new();
        let (mut new, pins) = (self.new.clone(), store.blobs.pins());
        for (platform, program) in &self.programs {
            let layer = new.pack_program(&store.blobs, &pins, program.len() as u64, &mut &program[..])?;
            new.programs.push((platform.clone(), layer));
        }
        let mut packed = pack_bin(&new)?;
        let layers = names(&store.dir().join("blobs/sha256")).into_iter().map(|name| {
            let digest = format!("sha256:{name}").parse().unwrap();
            Blob::new(LAYER, store.blobs.read(&digest, u64::MAX).unwrap())
        });
        packed.blobs.splice(..0, layers);
        Ok(packed)
    }
}

pub(crate) fn made(name: &str) -> PackedImage {
    tool(name).pack().unwrap()
}

pub(crate) fn put(blobs: &Blobs, pins: &Pins, packed: &PackedImage) -> Descriptor {
    blobs.put_all(pins, &packed.blobs).unwrap();
    packed.blobs.last().unwrap().descriptor()
}

fn bytes<'p>(packed: &'p PackedImage, digest: &Digest) -> &'p [u8] {
    &packed.blobs.iter().find(|blob| blob.digest == *digest).unwrap().bytes
}

fn index_of(packed: &PackedImage) -> (Index, Vec<(Descriptor, Manifest)>) {
    let ManifestDocument::Index(index) = ManifestDocument::read(bytes(packed, &packed.digest)).unwrap()
    else {
        panic!()
    };
    let manifests = index.manifests.iter().map(|named| {
        let ManifestDocument::Manifest(manifest) =
            ManifestDocument::read(bytes(packed, &named.digest)).unwrap()
        else {
            panic!()
        };
        (named.clone(), manifest)
    });
    let manifests = manifests.collect();
    (index, manifests)
}

fn read(packed: &PackedImage) -> BinImage {
    let (index, manifests) = index_of(packed);
    read_bin(&index, &manifests, &mut |part| Ok(bytes(packed, &part.digest).to_vec())).unwrap()
}

#[test]
fn a_tool_is_read_as_it_was_made() {
    let (new, packed) = (tool("rg").new, made("rg"));
    let bin = read(&packed);
    assert_eq!(
        (&bin.name, &bin.description, &bin.usage, &bin.labels),
        (&new.name, &new.description, &new.usage, &new.labels)
    );
    let store = TestStore::new();
    put(&store.blobs, &store.blobs.pins(), &packed);
    let mut found = Vec::new();
    for made in &bin.platforms {
        let mut program = Vec::new();
        extract_program(&store.blobs, &made.layers, &made.path, &mut program).unwrap();
        found.push((made.platform.to_string(), String::from_utf8(program).unwrap()));
    }
    let expected = [("linux/amd64", "amd program"), ("linux/arm64", "arm program")];
    assert_eq!(found, expected.map(|(platform, program)| (platform.to_owned(), program.to_owned())));
}

#[test]
fn a_tool_is_what_others_can_read() {
    let packed = made("rg");
    let (index, manifests) = index_of(&packed);
    assert_eq!(index.artifact_type.as_deref(), Some(BIN));
    let said: Vec<(&str, &str)> = index.annotations.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(
        said,
        [
            ("io.lodge.bin.description", "searches"),
            ("io.lodge.bin.name", "rg"),
            ("io.lodge.bin.path", "/"),
            ("io.lodge.bin.usage", "/USAGE.md"),
            ("org.opencontainers.image.version", "1.2"),
        ]
    );
    for (named, manifest) in &manifests {
        assert_eq!((manifest.annotations.len(), manifest.artifact_type.as_ref()), (5, None));
        let titles: Vec<_> =
            manifest.layers.iter().map(|layer| (layer.media_type.as_str(), layer.title())).collect();
        // Both are layers that every client knows.
        assert_eq!(titles, [(LAYER, Some("rg")), (LAYER, Some("/USAGE.md"))]);
        let config: serde_json::Value =
            serde_json::from_slice(bytes(&packed, &manifest.config.digest)).unwrap();
        let program = only_file(bytes(&packed, &manifest.layers[0].digest));
        let usage = only_file(bytes(&packed, &manifest.layers[1].digest));
        assert_eq!(config["rootfs"]["diff_ids"], serde_json::json!([program.diff_id, usage.diff_id]));
        assert_eq!((program.name.as_str(), program.mode), ("rg", 0o755));
        assert_eq!((usage.name.as_str(), usage.mode), ("USAGE.md", 0o644));
        assert_eq!(usage.contents, b"# rg\nSearches.\n");
        assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/rg"]));
        assert_eq!(config["config"]["Labels"]["io.lodge.bin.name"], "rg");
        assert_eq!(config["architecture"], named.platform.as_ref().unwrap().architecture.as_str());
        assert_eq!(config["os"], "linux");
    }
}

struct LayerFile {
    diff_id: Digest,
    name: String,
    mode: u32,
    contents: Vec<u8>,
}

/// The one file of a layer, which says nothing of where and when it was made.
fn only_file(layer: &[u8]) -> LayerFile {
    // No name, no time, no system.
    assert_eq!(layer[..10], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255]);
    let mut tar = Vec::new();
    flate2::read::GzDecoder::new(layer).read_to_end(&mut tar).unwrap();
    let mut archive = tar::Archive::new(tar.as_slice());
    let mut entries = archive.entries().unwrap();
    let mut entry = entries.next().unwrap().unwrap();
    let header = entry.header().clone();
    assert_eq!((header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()), (0, 0, 0));
    let (name, mode) = (entry.path().unwrap().to_str().unwrap().to_owned(), header.mode().unwrap());
    let mut contents = Vec::new();
    entry.read_to_end(&mut contents).unwrap();
    assert!(entries.next().is_none());
    LayerFile { diff_id: Digest::of(&tar), name, mode, contents }
}

/// A change of this digest changes the image of every tool: only for a reason.
#[test]
fn the_same_programs_are_the_same_image_in_whatever_order_they_come() {
    let mut other = tool("rg");
    other.programs.reverse();
    let packed = made("rg");
    assert_eq!(packed, other.pack().unwrap());
    assert_eq!(packed.digest.to_string(), include_str!("bin.digest").trim());
    other.programs[0].1.push(b'!');
    assert_ne!(packed.digest, other.pack().unwrap().digest);
    // The same program for two platforms is stored once.
    other.programs[1].1 = other.programs[0].1.clone();
    assert_eq!(other.pack().unwrap().blobs.len(), packed.blobs.len() - 1);
}

/// Gives a few bytes at a time, and now and then none yet.
struct DrippingReader<'a>(&'a [u8], usize);

impl Read for DrippingReader<'_> {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        self.1 += 1;
        if self.1.is_multiple_of(5) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let most = piece.len().min(1 + self.1 * 37 % 9_000);
        self.0.read(&mut piece[..most])
    }
}

#[test]
fn a_layer_is_the_same_however_its_program_comes_and_as_if_it_was_packed_at_once() {
    let (store, new) = (TestStore::new(), tool("rg").new);
    let pins = store.blobs.pins();
    for size in [1, 511, 512, 513, 1_024, 65_536, 3_000_001] {
        let program = crate::StoreChoices::new(size as u64).bytes(size);
        let drips = &mut DrippingReader(&program, 0);
        let layer = new.pack_program(&store.blobs, &pins, size as u64, drips).unwrap();
        let at_once = new.pack_program(&store.blobs, &pins, size as u64, &mut &program[..]).unwrap();
        assert_eq!(layer, at_once, "{size}");
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        header.set_path("rg").unwrap();
        header.set_size(size as u64);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        tar.append(&header, &program[..]).unwrap();
        let tar = tar.into_inner().unwrap();
        let mut gzip = flate2::GzBuilder::new()
            .mtime(0)
            .operating_system(255)
            .write(Vec::new(), flate2::Compression::new(6));
        gzip.write_all(&tar).unwrap();
        let packed = gzip.finish().unwrap();
        assert_eq!(fs::read(store.path(&Digest::of(&packed))).unwrap(), packed, "{size}");
    }
    check_whole(&store.dir());
}

#[test]
fn a_program_that_is_not_as_long_as_it_was_said_or_cannot_be_read_leaves_nothing() {
    struct BrokenReader;
    impl Read for BrokenReader {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }
    let (store, new) = (TestStore::new(), tool("rg").new);
    let pins = store.blobs.pins();
    let pack = |size: u64, from: &mut dyn Read| new.pack_program(&store.blobs, &pins, size, from);
    for size in [3, 5, 1 << 30] {
        let error = pack(size, &mut &b"four"[..]).unwrap_err();
        assert!(matches!(&error, StreamError::Bad(bad) if bad.why.contains("changed")), "{error:?}");
    }
    let error = pack((1 << 30) + 1, &mut io::repeat(0)).unwrap_err();
    assert!(matches!(&error, StreamError::Bad(bad) if bad.why.contains("up to")), "{error:?}");
    let error = pack(9, &mut (&b"four"[..]).chain(BrokenReader)).unwrap_err();
    assert!(
        matches!(&error, StreamError::Io { cause } if cause.kind() == io::ErrorKind::PermissionDenied),
        "{error:?}"
    );
    for below in ["blobs/sha256", "temp"] {
        assert_eq!(names(&store.dir().join(below)), Vec::<String>::new());
    }
}

#[test]
fn what_cannot_be_a_tool_is_not_made() {
    type ToolChange = fn(&mut TestTool);
    let changes: [(ToolChange, &str); 11] = [
        (|tool| tool.new.name = "../rg".to_owned(), "cannot be the name"),
        (|tool| tool.new.name = String::new(), "cannot be the name"),
        (|tool| tool.new.name = "a/b".to_owned(), "cannot be the name"),
        (|tool| tool.new.name = "USAGE.md".to_owned(), "has the name of its usage file"),
        (|tool| tool.programs.clear(), "no program for any platform"),
        (|tool| tool.programs[0].0 = platform("linux/amd64"), "two programs for linux/amd64"),
        (|tool| tool.programs[0].0 = platform("linux/x86_64"), "two programs for linux/amd64"),
        (|tool| tool.programs[0].1.clear(), "has 0 bytes"),
        (|tool| tool.new.usage = Some("x".repeat((64 << 10) + 1)), "usage is longer"),
        (|tool| tool.new.description = Some("\x1b[31m".to_owned()), "no plain text"),
        (
            |tool| drop(tool.new.labels.insert("io.openotters.bin.name".to_owned(), "fd".to_owned())),
            "cannot be a label",
        ),
    ];
    for (change, why) in changes {
        let mut tool = tool("rg");
        change(&mut tool);
        let said = tool.pack().unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
    }
}

fn layered(annotations: &[(&str, &str)], layers: Vec<Descriptor>) -> Manifest {
    Manifest {
        dialect: MediaDialect::Oci,
        artifact_type: None,
        config: Blob::new("application/vnd.oci.image.config.v1+json", CONFIG.to_vec()).descriptor(),
        layers,
        annotations: map(annotations),
    }
}

const CONFIG: &[u8] = br#"{"os":"linux","architecture":"arm","variant":"v7","config":{"Labels":{"vnd.openotters.bin.name":"labelled"}}}"#;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn tar_layer(media_type: &str) -> Descriptor {
    Descriptor::new(media_type, Digest::of(media_type.as_bytes()), 9)
}

/// Reads an index of these, each a platform with its manifest.
fn read_index(
    annotations: &[(&str, &str)],
    manifests: &[(Option<&str>, Manifest)],
    usage: &[u8],
) -> Result<BinImage, BadImage> {
    let manifests: Vec<(Descriptor, Manifest)> = manifests
        .iter()
        .enumerate()
        .map(|(nth, (on, manifest))| {
            let mut named = Descriptor::new(MANIFEST, Digest::of(&[u8::try_from(nth).unwrap()]), 1);
            named.platform = on.map(|text| {
                let (os, architecture) = text.split_once('/').unwrap();
                Platform { os: os.to_owned(), architecture: architecture.to_owned(), variant: None }
            });
            (named, manifest.clone())
        })
        .collect();
    let index = Index {
        dialect: MediaDialect::Oci,
        artifact_type: None,
        manifests: manifests.iter().map(|(named, _)| named.clone()).collect(),
        annotations: map(annotations),
    };
    read_bin(&index, &manifests, &mut |part| {
        Ok(if part.media_type.ends_with("+json") { CONFIG.to_vec() } else { usage.to_vec() })
    })
}

#[test]
fn tools_of_others_are_read_by_every_name_they_had() {
    let plain = || layered(&[], vec![tar_layer(LAYER)]);
    for prefix in ["io.lodge.bin", "io.openotters.bin", "vnd.openotters.bin"] {
        let (name, path) = (format!("{prefix}.name"), format!("{prefix}.path"));
        let bin = read_index(
            &[(&name, "rg"), (&path, "/usr/./bin/"), ("x", "y")],
            &[(Some("linux/amd64"), plain())],
            b"",
        );
        let bin = bin.unwrap();
        assert_eq!((bin.name.as_str(), bin.platforms[0].path.as_str()), ("rg", "usr/bin/rg"));
        assert_eq!((bin.labels, bin.usage), (map(&[("x", "y")]), None));
    }
    // A manifest says it for itself, and what cannot annotate labels.
    let own = layered(&[("io.lodge.bin.name", "own")], vec![tar_layer(LAYER)]);
    assert_eq!(read_index(&[], &[(Some("linux/amd64"), own)], b"").unwrap().name, "own");
    let docker = layered(&[], vec![tar_layer("application/vnd.docker.image.rootfs.diff.tar.gzip")]);
    let bin = read_index(&[], &[(None, docker)], b"").unwrap();
    assert_eq!(
        (bin.name.as_str(), bin.platforms[0].platform.to_string().as_str()),
        ("labelled", "linux/arm/v7")
    );
    let none = |annotations: &[(&str, &str)]| read_index(annotations, &[(Some("linux/amd64"), plain())], b"");
    for bad in ["..", "a/b", "/rg", "-rg", "r g", "\u{202e}"] {
        assert!(none(&[("io.lodge.bin.name", bad)]).is_err(), "{bad}");
    }
    for bad in ["/../x", "..", "a\0b", "a\u{1b}b", "a\nb", &"x".repeat(2_000)] {
        assert!(none(&[("io.lodge.bin.name", "rg"), ("io.lodge.bin.path", bad)]).is_err(), "{bad}");
    }
    for (key, good) in [("a.b", true), ("a\u{1b}[2J", false), ("a\n", false)] {
        assert_eq!(none(&[("io.lodge.bin.name", "rg"), (key, "v")]).is_ok(), good, "{key:?}");
    }
}

#[test]
fn an_image_that_does_not_say_so_is_no_tool() {
    let config = br#"{"os":"linux","architecture":"amd64"}"#;
    let manifest = layered(&[], vec![tar_layer(LAYER)]);
    let index = Index {
        dialect: MediaDialect::Oci,
        artifact_type: None,
        manifests: vec![],
        annotations: BTreeMap::new(),
    };
    let named = Descriptor::new(MANIFEST, Digest::of(b""), 1);
    let said = read_bin(&index, &[(named, manifest)], &mut |_| Ok(config.to_vec())).unwrap_err().why;
    assert!(said.contains("io.lodge.bin.name"), "{said}");
    assert!(read_bin(&index, &[], &mut |_| panic!()).is_err());
}

#[test]
fn attestations_are_passed_over_and_platforms_stand_once() {
    let plain = || layered(&[], vec![tar_layer(LAYER)]);
    let name = [("io.lodge.bin.name", "rg")];
    let read = |platforms: &[Option<&str>]| {
        let manifests: Vec<_> = platforms.iter().map(|on| (*on, plain())).collect();
        read_index(&name, &manifests, b"").map(|bin| bin.platforms.len())
    };
    assert_eq!(read(&[Some("unknown/unknown"), Some("linux/amd64"), Some("unknown/unknown")]), Ok(1));
    assert!(read(&[Some("unknown/unknown")]).is_err());
    for twice in [["linux/amd64", "linux/amd64"], ["linux/amd64", "linux/x86_64"]] {
        let said = read(&twice.map(Some)).unwrap_err().why;
        assert!(said.contains("two programs for linux/amd64"), "{said}");
    }
    assert!(read(&[Some("../etc/linux")]).is_err());
    let only_text = layered(&[], vec![tar_layer("text/markdown")]);
    assert!(
        read_index(&name, &[(Some("linux/amd64"), only_text)], b"").unwrap_err().why.contains("no layers")
    );
}

#[test]
fn a_usage_is_found_where_the_tool_says_and_is_a_text_of_bounded_size() {
    let with_usage = |title: &str, size: u64| with_usage("text/markdown", title, size);
    let name = ("io.lodge.bin.name", "rg");
    let other = ("io.openotters.bin.usage", "/doc/rg.md");
    for (said, title, expected) in [
        (vec![name], "/USAGE.md", Some("use")),
        (vec![name], "USAGE.md", Some("use")),
        (vec![name, other], "doc/rg.md", Some("use")),
        (vec![name, other], "/USAGE.md", None),
    ] {
        assert_eq!(read_index(&said, &with_usage(title, 3), b"use").unwrap().usage.as_deref(), expected);
    }
    assert!(read_index(&[name], &with_usage("/USAGE.md", 65_537), b"use").is_err());
    assert!(read_index(&[name], &with_usage("/USAGE.md", 2), b"\xff\xfe").is_err());
}

/// A tool with a layer of this type behind that of its program.
fn with_usage(media_type: &str, title: &str, size: u64) -> [(Option<&'static str>, Manifest); 1] {
    let mut usage = Descriptor::new(media_type, Digest::of(b"usage"), size);
    usage.annotations.insert(TITLE.to_owned(), title.to_owned());
    [(Some("linux/amd64"), layered(&[], vec![tar_layer(LAYER), usage]))]
}

#[test]
fn a_usage_in_a_layer_is_one_plain_file_and_what_is_about_it_is_bounded() {
    let read = |at: &str, layer: &[u8]| {
        let said = [("io.lodge.bin.name", "rg"), ("io.lodge.bin.usage", at)];
        let bin = read_index(&said, &with_usage(LAYER, at, layer.len() as u64), layer);
        bin.map(|bin| bin.usage).map_err(|error| error.why)
    };
    let file = |name: &str| TarBuilder::default().file(name, b"use");
    for layer in [file("USAGE.md").end(), file("USAGE.md").gzip(), file("./USAGE.md").gzip()] {
        assert_eq!(read("/USAGE.md", &layer), Ok(Some("use".to_owned())));
    }
    let beside = TarBuilder::default().dir("doc").file("doc/rg.md", b"use").file("other", b"").gzip();
    assert_eq!(read("/doc/rg.md", &beside), Ok(Some("use".to_owned())));
    let long = |len: usize| TarBuilder::default().file("USAGE.md", &vec![b'x'; len]);
    assert_eq!(read("/USAGE.md", &long(64 << 10).gzip()).unwrap().unwrap().len(), 64 << 10);
    for (layer, why) in [
        (file("usage.md").gzip(), "there is no `USAGE.md`"),
        (Vec::new(), "there is no `USAGE.md`"),
        (file("USAGE.md").file("USAGE.md", b"use").gzip(), "twice"),
        (TarBuilder::default().dir("USAGE.md").gzip(), "no plain file"),
        (TarBuilder::default().link(b'2', "USAGE.md", "/etc/shadow").gzip(), "no plain file"),
        (TarBuilder::default().file("USAGE.md", b"\xff\xfe").gzip(), "no text"),
        (long((64 << 10) + 1).gzip(), "longer than 65536"),
        (long(200 << 10).end(), "at most 98304 are read"),
        (long(16 << 20).gzip(), "unpacks to more than the 98304 bytes"),
        (file("USAGE.md").gzip()[..20].to_vec(), "no tar archive"),
        (b"no layer".to_vec(), "its usage: "),
    ] {
        let said = read("/USAGE.md", &layer).unwrap_err();
        assert!(said.contains(why), "{why}: {said}");
    }
}

#[test]
fn the_program_for_a_host_is_that_of_its_own_platform_or_none() {
    let choose = |there: &[&str], host: &str| {
        let mut tool = tool("rg");
        tool.programs = there.iter().map(|text| (platform(text), b"x".to_vec())).collect();
        let bin = read(&tool.pack().unwrap());
        bin.choose(&platform(host)).map(|found| found.platform.to_string())
    };
    for (there, host, expected) in [
        (vec!["linux/amd64", "linux/arm64"], "linux/amd64", Some("linux/amd64")),
        (vec!["linux/amd64", "linux/arm64"], "linux/arm64/v8", Some("linux/arm64")),
        (vec!["linux/amd64"], "linux/arm64", None),
        (vec!["darwin/arm64"], "linux/arm64", None),
        (vec!["linux/arm/v6", "linux/arm/v7"], "linux/arm/v7", Some("linux/arm/v7")),
        (vec!["linux/arm/v5", "linux/arm/v6"], "linux/arm/v7", Some("linux/arm/v6")),
        (vec!["linux/arm/v7"], "linux/arm/v6", None),
        (vec!["linux/arm"], "linux/arm/v7", Some("linux/arm")),
        (vec!["linux/amd64/v3"], "linux/amd64", None),
        (vec!["linux/amd64/v3", "linux/amd64"], "linux/amd64", Some("linux/amd64")),
    ] {
        assert_eq!(choose(&there, host).as_deref(), expected, "{there:?} on {host}");
    }
}
