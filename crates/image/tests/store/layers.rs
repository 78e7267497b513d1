//! Programs in layers of strangers.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;

use lodge_image::BlobError;
use lodge_image::oci::{Descriptor, PROGRAM_MAX, StreamError, extract_program};

use crate::TestStore;
use crate::tars::{TarBuilder, gzip, layer};

fn program(layers: &[Vec<u8>], path: &str) -> Result<Vec<u8>, String> {
    program_in(&TestStore::new(), layers, path)
}

fn program_in(store: &TestStore, layers: &[Vec<u8>], path: &str) -> Result<Vec<u8>, String> {
    let layers: Vec<Descriptor> = layers.iter().map(|bytes| layer(store, bytes)).collect();
    let mut program = Vec::new();
    match extract_program(&store.blobs, &layers, path, &mut program) {
        Ok(size) => {
            assert_eq!(size, program.len() as u64);
            Ok(program)
        }
        Err(StreamError::Bad(bad)) => Err(bad.why),
        Err(error) => panic!("{error:?}"),
    }
}

#[track_caller]
fn found(layers: &[Vec<u8>], path: &str, expected: &[u8]) {
    assert_eq!(program(layers, path).as_deref(), Ok(expected));
}

#[track_caller]
fn refused(layers: &[Vec<u8>], path: &str, why: &str) {
    let said = program(layers, path).unwrap_err();
    assert!(said.contains(why), "{said}");
}

fn tar() -> TarBuilder {
    TarBuilder::default()
}

#[test]
fn a_program_is_found_however_its_name_is_spelled_and_its_layer_packed() {
    for name in ["rg", "./rg", "/rg", "//rg", "././rg"] {
        found(&[tar().file(name, b"elf").gzip()], "rg", b"elf");
        found(&[tar().file(name, b"elf").end()], "rg", b"elf");
    }
    for name in ["usr/bin/rg", "./usr//bin/rg", "/usr/./bin/rg"] {
        found(&[tar().dir("usr/").dir("usr/bin").file(name, b"#!").gzip()], "usr/bin/rg", b"#!");
    }
    // An old kind of file, one without contents, and one that lies among others.
    found(&[tar().entry(0, "rg", b"elf").end()], "rg", b"elf");
    found(&[tar().file("rg", b"").end()], "rg", b"");
    found(&[tar().file("a", &[1; 700]).file("rg", b"elf").file("b", &[2; 5_000]).gzip()], "rg", b"elf");
}

#[test]
fn a_program_with_a_long_name_is_found_by_whatever_header_says_it() {
    let long = format!("{}/rg", "d".repeat(150));
    found(
        &[tar().entry(b'L', "././@LongLink", format!("{long}\0").as_bytes()).file("x", b"elf").end()],
        &long,
        b"elf",
    );
    found(&[tar().pax(b'x', &[("mtime", "1.5"), ("path", &long)]).file("x", b"elf").end()], &long, b"elf");
    let mut header = tar::Header::new_ustar();
    header.set_path(&long).unwrap();
    header.set_size(3);
    header.set_cksum();
    let mut split = header.as_bytes().to_vec();
    split.extend_from_slice(b"elf");
    split.resize(1_024, 0);
    found(&[TarBuilder(split).gzip()], &long, b"elf");
    // A comment for all is what some write, and means nothing.
    found(&[tar().pax(b'g', &[("comment", "0123")]).file("rg", b"elf").end()], "rg", b"elf");
}

#[test]
fn a_later_layer_goes_before_an_earlier_one_and_what_it_removes_is_gone() {
    let old = || tar().dir("bin").file("bin/rg", b"old").gzip();
    found(&[old(), tar().file("bin/rg", b"new").end()], "bin/rg", b"new");
    found(&[old(), tar().file("other", b"x").gzip()], "bin/rg", b"old");
    for gone in ["bin/.wh.rg", ".wh.bin", "bin/.wh..wh..opq", ".wh..wh..opq", "./bin/.wh.rg"] {
        refused(&[old(), tar().file(gone, b"").end()], "bin/rg", "it removes `bin/rg`");
        // It applies only to the layers below, in any order.
        found(&[old(), tar().file(gone, b"").file("bin/rg", b"new").end()], "bin/rg", b"new");
        found(&[old(), tar().file("bin/rg", b"new").file(gone, b"").end()], "bin/rg", b"new");
    }
    for other in ["bin/.wh.r", "bin/.wh.rg2", ".wh.bi", "bin/rg/.wh.x", "b/.wh..wh..opq", ".wh.", "bin/.wh."]
    {
        found(&[old(), tar().file(other, b"").end()], "bin/rg", b"old");
    }
    refused(&[old()], "bin/fd", "there is no `bin/fd`");
    refused(&[], "rg", "there is no `rg`");
}

#[test]
fn what_is_no_plain_file_is_no_program() {
    for (kind, what) in [
        (b'1', "a hard link"),
        (b'2', "a symbolic link"),
        (b'3', "a device"),
        (b'4', "a device"),
        (b'5', "a directory"),
        (b'6', "a pipe"),
        (b'7', "of an unknown kind"),
        (b'V', "of an unknown kind"),
    ] {
        refused(&[tar().link(kind, "rg", "/etc/passwd").gzip()], "rg", what);
        // It covers a program below.
        refused(&[tar().file("rg", b"elf").end(), tar().link(kind, "rg", "fd").gzip()], "rg", what);
    }
    refused(&[tar().entry(0, "rg/", b"").end()], "rg", "a directory");
    refused(&[tar().entry(b'S', "rg", b"elf").end()], "rg", "a file with holes");
}

#[test]
fn a_way_to_a_program_that_is_no_directory_is_refused() {
    let old = || tar().file("usr/bin/rg", b"elf").end();
    for (kind, what) in [(b'2', "a symbolic link"), (b'1', "a hard link"), (b'0', "a file")] {
        refused(&[old(), tar().link(kind, "usr/bin", "/elsewhere").end()], "usr/bin/rg", what);
        refused(&[tar().link(kind, "usr", "x").file("usr/bin/rg", b"elf").end()], "usr/bin/rg", what);
    }
}

#[test]
fn what_readers_could_differ_about_is_refused() {
    let refuse = |tar: TarBuilder, why| refused(&[tar.end()], "rg", why);
    refuse(tar().file("rg", b"one").file("./rg", b"two"), "occurs in it twice");
    refuse(tar().file("a/../rg", b"elf"), "no name of a file");
    refuse(tar().file("rg", b"elf").file("../../etc/passwd", b"x"), "no name of a file");
    refuse(tar().pax(b'x', &[("path", "rg"), ("path", "fd")]).file("x", b"elf"), "headers cannot be read");
    refuse(tar().pax(b'x', &[("path", "")]).file("rg", b"elf"), "headers cannot be read");
    refuse(tar().pax(b'x', &[("path", "rg\0x")]).file("rg", b"elf"), "no name of a file");
    refuse(tar().pax(b'x', &[("size", "1")]).file("rg", b"elf"), "two sizes");
    refuse(tar().pax(b'x', &[("size", "-1")]).file("rg", b"elf"), "headers cannot be read");
    refuse(tar().pax(b'g', &[("path", "rg")]).file("x", b"elf"), "describes all its entries");
    refuse(tar().pax(b'g', &[("size", "512")]).file("rg", b"elf"), "describes all its entries");
    refuse(tar().pax(b'x', &[("path", "rg")]).pax(b'x', &[("path", "fd")]).file("x", b""), "described twice");
    refuse(tar().entry(b'L', "", b"rg").entry(b'L', "", b"fd").file("x", b""), "two names");
    refuse(tar().entry(b'L', "", b"rg").pax(b'x', &[("path", "fd")]).file("x", b""), "two names");
    refuse(tar().entry(b'L', "", b"rg\0fd\0").file("x", b""), "no name of a file");
    refuse(tar().file("rg", b"elf").pax(b'x', &[("path", "fd")]), "ends where a file was to follow");
    refuse(tar().raw(b'2', "x", "y", &[0; 512], 512).file("rg", b"elf"), "is no file and has contents");
    refuse(tar().raw(b'5', "x", "", &[0; 512], 512).file("rg", b"elf"), "is no file and has contents");
    for broken in [
        "x",
        "5",
        "99999999 a=b\n",
        "6 a=bc",
        "4 ab\n",
        "0 a=b\n",
        "-1 a=b\n",
        "1 a=b\n",
        "18446744073709551615 a=b\n",
    ] {
        refuse(tar().entry(b'x', "", broken.as_bytes()).file("rg", b"elf"), "headers cannot be read");
    }
    let sparse = [("GNU.sparse.major", "1"), ("GNU.sparse.name", "rg"), ("GNU.sparse.realsize", "3")];
    refuse(tar().pax(b'x', &sparse).file("GNUSparseFile.0/rg", b"elf"), "a file with holes");
    found(&[tar().pax(b'x', &[("size", "3")]).file("rg", b"elf").end()], "rg", b"elf");
}

#[test]
fn an_archive_that_is_cut_off_or_goes_on_is_refused() {
    let whole = tar().file("a", &[1; 2_000]).file("rg", b"elf").gzip();
    let store = TestStore::new();
    for len in 1..whole.len() {
        program_in(&store, &[whole[..len].to_vec()], "rg").unwrap_err();
    }
    let plain = tar().file("rg", &[7; 2_000]).end();
    for len in (1..2_512).step_by(7) {
        program_in(&store, &[plain[..len].to_vec()], "rg").unwrap_err();
    }
    let with = |more: &[u8]| [whole.as_slice(), more].concat();
    refused(&[with(b"garbage")], "rg", "it cannot be read");
    refused(&[with(&gzip(b"garbage"))], "rg", "there is data after its end");
    refused(&[with(&tar().file("rg", b"new").gzip())], "rg", "there is data after its end");
    refused(&[[plain.clone(), vec![1]].concat()], "rg", "there is data after its end");
    // Two gzip members are one stream, as unpackers see it, and padding is ignored.
    found(&[with(&gzip(&[0; 5_000]))], "rg", b"elf");
    let tar = tar().file("rg", b"elf").end();
    found(&[[gzip(&tar[..700]), gzip(&tar[700..])].concat()], "rg", b"elf");
    found(&[[plain, vec![0; 10_240]].concat()], "rg", &[7; 2_000]);
    for nothing in [b"".as_slice(), &[0; 1_024]] {
        refused(&[nothing.to_vec()], "rg", "there is no `rg`");
    }
    refused(&[b"no archive at all".repeat(100)], "rg", "it is no tar archive");
}

#[test]
fn zstd_is_refused_by_its_name_and_by_its_look() {
    refused(&[vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0]], "rg", "packed with zstd");
    let store = TestStore::new();
    let mut named = layer(&store, &tar().file("rg", b"elf").end());
    named.media_type = "application/vnd.oci.image.layer.v1.tar+zstd".to_owned();
    let refused = extract_program(&store.blobs, &[named], "rg", &mut Vec::new());
    assert!(matches!(refused, Err(StreamError::Bad(bad)) if bad.why.contains("zstd")));
}

/// Something with as many zeros behind it, packed a thousand times smaller than they are.
fn bomb(tar: &[u8], zeros: usize) -> Vec<u8> {
    const PART: usize = 64 << 20;
    [gzip(tar), gzip(&vec![0; PART]).repeat(zeros / PART), gzip(&vec![0; zeros % PART])].concat()
}

#[test]
fn what_unpacks_to_more_than_anybody_needs_ends_at_the_bound() {
    // Behind the end of the archive, as a file beside the program, and as the program.
    let more = (2 << 30) + 1;
    let behind = bomb(&tar().file("rg", b"elf").end(), more);
    assert!(behind.len() < 32 << 20);
    refused(&[behind], "rg", "zeros");
    let beside = bomb(&tar().raw(b'0', "x", "", b"", more as u64).0, more);
    refused(&[beside], "rg", "unpacks to more than");
    refused(&[tar().raw(b'0', "rg", "", b"", PROGRAM_MAX + 1).gzip()], "rg", "larger than");
    refused(&[tar().raw(b'0', "x", "", b"", u64::MAX / 2).gzip()], "rg", "it cannot be read");
    // Headers.
    refused(&[tar().raw(b'L', "", "", b"", 2 << 20).end()], "rg", "headers are larger");
    let mut many = TarBuilder::default();
    let entry = tar().file("x", b"").0;
    (0..200_001).for_each(|_| many.0.extend_from_slice(&entry));
    refused(&[many.gzip()], "rg", "more than the 200000 entries");
    let mut names = TarBuilder::default();
    let name = tar().entry(b'K', "", &vec![b'x'; 1 << 20]).0;
    (0..65).for_each(|_| names.0.extend_from_slice(&name));
    refused(&[names.gzip()], "rg", "headers are larger");
}

#[test]
fn a_damaged_layer_is_reported_as_such_and_not_taken_for_a_bad_image() {
    let good = tar().file("rg", b"elf").gzip();
    for at in 0..good.len() {
        let store = TestStore::new();
        let layer = layer(&store, &good);
        let path = store.path(&layer.digest);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let mut bytes = good.clone();
        bytes[at] ^= 0x40;
        fs::write(&path, bytes).unwrap();
        let failed = extract_program(&store.blobs, &[layer], "rg", &mut Vec::new());
        assert!(matches!(failed, Err(StreamError::Blob(BlobError::Damaged { .. }))), "{at}: {failed:?}");
    }
    let store = TestStore::new();
    let missing = Descriptor::new(crate::tars::LAYER, lodge_image::Digest::of(b"x"), 1);
    let failed = extract_program(&store.blobs, &[missing], "rg", &mut Vec::new());
    assert!(matches!(failed, Err(StreamError::Blob(BlobError::Missing { .. }))));
}

#[test]
fn a_user_who_cannot_write_gets_the_reason() {
    struct FullWriter;
    impl Write for FullWriter {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let store = TestStore::new();
    let layer = layer(&store, &tar().file("rg", b"elf").gzip());
    let failed = extract_program(&store.blobs, &[layer], "rg", &mut FullWriter);
    assert!(matches!(failed, Err(StreamError::Io { cause }) if cause.kind() == io::ErrorKind::StorageFull));
}
