//! Good images with a little that is changed by chance: read or refused, and nothing else.

use std::io::Write;

use lodge_image::Digest;
use lodge_image::oci::{Descriptor, ManifestDocument, StreamError, extract_program, read_archive, read_bin};

use crate::bins::{made, put};
use crate::tars::{LAYER, TarBuilder, gzip, layer};
use crate::{StoreChoices, TestStore, check_whole, names};

const ROUNDS: u64 = 400;

/// Some bytes changed, left out, doubled, or put from elsewhere.
fn changed(chance: &mut StoreChoices, good: &[u8]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for _ in 0..=chance.below(4) {
        if bytes.is_empty() {
            break;
        }
        let at = chance.below(bytes.len());
        let end = (at + 1 + chance.below(600)).min(bytes.len());
        match chance.below(6) {
            0 => bytes[at] = chance.bytes(1)[0],
            1 => bytes[at] ^= 1 << chance.below(8),
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..end)),
            4 => {
                let part = bytes[at..end].to_vec();
                let to = chance.below(bytes.len());
                bytes.splice(to..to, part);
            }
            _ => {
                let filler = [0, 0xff, b'7', b'/'][chance.below(4)];
                bytes[at..end].fill(filler);
            }
        }
    }
    bytes
}

/// The checksums of a tar file are corrected; otherwise they would reveal most changes.
fn mended(mut tar: Vec<u8>) -> Vec<u8> {
    for block in tar.chunks_exact_mut(512).filter(|block| block[257..262] == *b"ustar") {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    tar
}

#[test]
fn a_changed_layer_gives_the_program_or_a_reason() {
    let good = TarBuilder::default()
        .dir("usr/bin")
        .pax(b'x', &[("path", "usr/bin/fd"), ("mtime", "1")])
        .file("x", b"fd")
        .entry(b'L', "././@LongLink", b"usr/bin/rg\0")
        .file("y", &[7; 1_500])
        .file(".wh.gone", b"")
        .link(b'2', "link", "usr")
        .end();
    let (mut found, mut refused) = (0, 0);
    for seed in 0..ROUNDS {
        let mut chance = StoreChoices::new(seed);
        let bytes = match chance.below(3) {
            0 => mended(changed(&mut chance, &good)),
            1 => gzip(&mended(changed(&mut chance, &good))),
            _ => changed(&mut chance, &gzip(&good)),
        };
        let store = TestStore::new();
        let layer = layer(&store, &bytes);
        let mut program = Vec::new();
        match extract_program(&store.blobs, &[layer], "usr/bin/rg", &mut program) {
            Ok(size) => {
                assert_eq!(size, program.len() as u64, "seed {seed}");
                found += 1;
            }
            Err(StreamError::Bad(_)) => refused += 1,
            Err(error) => panic!("seed {seed}: {error:?}"),
        }
    }
    assert!(found > ROUNDS / 20 && refused > ROUNDS / 4, "{found} found, {refused} refused");
}

#[test]
fn a_changed_archive_is_read_or_refused_and_every_blob_that_came_is_right() {
    let store = TestStore::new();
    let image = put(&store.blobs, &store.blobs.pins(), &made("rg"));
    let mut good = Vec::new();
    lodge_image::oci::write_archive(&store.blobs, &[(image, Some("rg:v1".to_owned()))], &mut good).unwrap();
    let (mut read, mut refused) = (0, 0);
    for seed in 0..ROUNDS {
        let mut chance = StoreChoices::new(seed);
        let bytes = mended(changed(&mut chance, &good));
        let bytes = if chance.below(4) == 0 { gzip(&bytes) } else { bytes };
        let store = TestStore::new();
        match read_archive(&store.blobs, &store.blobs.pins(), &mut bytes.as_slice()) {
            Ok(_) => read += 1,
            Err(StreamError::Bad(_)) => refused += 1,
            Err(error) => panic!("seed {seed}: {error:?}"),
        }
        check_whole(&store.dir());
        assert_eq!(names(store.above()), ["registry"], "seed {seed}");
    }
    assert!(read > ROUNDS / 20 && refused > ROUNDS / 4, "{read} read, {refused} refused");
}

#[test]
fn a_changed_tool_is_read_or_refused_and_its_name_is_one() {
    let packed = made("rg");
    let text = |digest: &Digest| &packed.blobs.iter().find(|blob| blob.digest == *digest).unwrap().bytes;
    let ManifestDocument::Index(good) = ManifestDocument::read(text(&packed.digest)).unwrap() else {
        panic!()
    };
    let words: [&[u8]; 12] = [
        b"/",
        b"..",
        b"unknown",
        b"linux",
        b"\\u0000",
        b"null",
        b"[]",
        b"{}",
        b"-1",
        b"\"",
        b"USAGE.md",
        b"tar",
    ];
    let word = |chance: &mut StoreChoices, good: &[u8]| {
        let mut bytes = good.to_vec();
        for _ in 0..=chance.below(3) {
            let word = words[chance.below(words.len())];
            let at = chance.below(bytes.len());
            let end = (at + chance.below(12)).min(bytes.len());
            bytes.splice(at..end, word.iter().copied());
        }
        bytes
    };
    let (mut read, mut refused) = (0, 0);
    for seed in 0..ROUNDS * 5 {
        let mut chance = StoreChoices::new(seed);
        let index = word(&mut chance, text(&packed.digest));
        let index = if chance.below(2) == 0 { index } else { text(&packed.digest).clone() };
        let Ok(ManifestDocument::Index(index)) = ManifestDocument::read(&index) else {
            refused += 1;
            continue;
        };
        let manifests: Vec<_> = good
            .manifests
            .iter()
            .zip(&index.manifests)
            .filter_map(|(good, named)| {
                let bytes = word(&mut chance, text(&good.digest));
                let bytes = if chance.below(2) == 0 { bytes } else { text(&good.digest).clone() };
                match ManifestDocument::read(&bytes) {
                    Ok(ManifestDocument::Manifest(manifest)) => Some((named.clone(), manifest)),
                    Ok(ManifestDocument::Index(_)) | Err(_) => None,
                }
            })
            .collect();
        let bin = read_bin(&index, &manifests, &mut |part: &Descriptor| {
            let there = packed.blobs.iter().find(|blob| blob.digest == part.digest);
            there.map(|blob| blob.bytes.clone()).ok_or_else(|| std::io::ErrorKind::NotFound.into())
        });
        match bin {
            Ok(bin) => {
                read += 1;
                assert!(!bin.name.contains(['/', '\0']) && !bin.name.starts_with('.'), "seed {seed}");
                for platform in &bin.platforms {
                    assert!(
                        !platform.path.split('/').any(|part| matches!(part, "" | "." | "..")),
                        "seed {seed}"
                    );
                    assert!(platform.layers.iter().all(|layer| layer.media_type != "text/markdown"));
                }
            }
            Err(bad) => {
                refused += 1;
                assert!(!bad.why.is_empty());
            }
        }
    }
    assert!(read > ROUNDS / 2 && refused > ROUNDS, "{read} read, {refused} refused");
}

#[test]
fn noise_is_no_layer_and_no_archive() {
    for seed in 0..ROUNDS {
        let mut chance = StoreChoices::new(seed);
        let len = chance.below(4_000);
        let mut noise = chance.bytes(len);
        if chance.below(2) == 0 {
            // Noise behind the begin of something.
            let begin: &[u8] = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255][..], &[0x28, 0xb5], LAYER.as_bytes()]
                [chance.below(3)];
            noise.splice(..0, begin.iter().copied());
        }
        let store = TestStore::new();
        let read = read_archive(&store.blobs, &store.blobs.pins(), &mut noise.as_slice());
        assert!(matches!(read, Err(StreamError::Bad(_))), "seed {seed}");
        let layer = layer(&store, &noise);
        let mut nowhere = Vec::new();
        assert!(extract_program(&store.blobs, &[layer], "rg", &mut nowhere).is_err(), "seed {seed}");
        nowhere.flush().unwrap();
        assert!(nowhere.is_empty());
    }
}
