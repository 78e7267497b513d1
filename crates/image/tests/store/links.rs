//! Links and pipes in the store, and in place of it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;

use lodge_image::{BlobError, Blobs, Digest};

use crate::{TestStore, names};

#[test]
fn links_in_the_store_lead_nowhere() {
    let store = TestStore::new();
    let outside = store.above().join("outside");
    fs::write(&outside, b"otters").unwrap();
    let digest = Digest::of(b"otters");
    let pins = store.blobs.pins();
    // As a blob: missing, damaged for readers, and replaced.
    symlink(&outside, store.path(&digest)).unwrap();
    assert!(!store.blobs.has(&pins, &digest, 6).unwrap());
    assert!(matches!(store.blobs.read(&digest, 6), Err(BlobError::Damaged { .. })));
    store.blobs.put(&pins, b"otters").unwrap();
    assert!(fs::symlink_metadata(store.path(&digest)).unwrap().is_file());
    // As a partial file, also after it is written.
    let other = Digest::of(b"swim");
    symlink(&outside, store.dir().join("partial").join(other.hex())).unwrap();
    let mut incoming = store.blobs.receive(&pins, &other, 4).unwrap();
    assert!(incoming.is_empty());
    incoming.write(b"swim").unwrap();
    incoming.finish().unwrap();
    // As a program's directory and as a program.
    let target = store.above().join("elsewhere");
    fs::create_dir(&target).unwrap();
    symlink(&target, store.dir().join("programs").join(digest.hex())).unwrap();
    let make = &mut |file: &mut File| file.write_all(b"run").map_err(|_| BlobError::Missing { digest });
    store.blobs.derived(&pins, &digest, "rg", make).unwrap();
    fs::remove_file(store.dir().join("programs").join(digest.hex()).join("rg")).unwrap();
    symlink(&outside, store.dir().join("programs").join(digest.hex()).join("rg")).unwrap();
    let path = store.blobs.derived(&pins, &digest, "rg", make).unwrap();
    assert!(fs::symlink_metadata(path).unwrap().is_file());
    // As something to be collected.
    drop(pins);
    let gone = Digest::of(b"gone");
    symlink(&outside, store.path(&gone)).unwrap();
    symlink(&target, store.dir().join("programs").join(gone.hex())).unwrap();
    store.blobs.collect(&mut || Ok(BTreeSet::new())).unwrap();
    assert!(fs::symlink_metadata(store.path(&gone)).is_err());
    assert!(fs::symlink_metadata(store.dir().join("programs").join(gone.hex())).is_err());
    assert_eq!(fs::read(&outside).unwrap(), b"otters");
    assert_eq!(names(&target), Vec::<String>::new());
}

#[test]
fn a_pipe_with_the_name_of_a_blob_keeps_nobody_waiting() {
    let store = TestStore::new();
    let digest = Digest::of(b"otters");
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, store.path(&digest), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(matches!(store.blobs.read(&digest, 6), Err(BlobError::Damaged { .. })));
    store.blobs.put(&store.blobs.pins(), b"otters").unwrap();
    assert_eq!(store.blobs.read(&digest, 6).unwrap(), b"otters");
}

#[test]
fn a_store_that_is_a_link_or_has_one_for_a_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    let link = dir.path().join("registry");
    symlink(&other, &link).unwrap();
    assert!(matches!(Blobs::open(&link), Err(BlobError::Io { .. })));
    assert_eq!(names(&other), Vec::<String>::new());
    let real = dir.path().join("real");
    drop(Blobs::open(&real).unwrap());
    for inner in ["blobs", "partial", "programs", "temp"] {
        fs::rename(real.join(inner), dir.path().join("moved")).unwrap();
        symlink(&other, real.join(inner)).unwrap();
        assert!(matches!(Blobs::open(&real), Err(BlobError::Io { .. })), "{inner}");
        fs::remove_file(real.join(inner)).unwrap();
        fs::rename(dir.path().join("moved"), real.join(inner)).unwrap();
    }
    assert!(Blobs::open(&real).is_ok());
}
