//! What the store promises to one who uses it alone.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, SystemTime};

use lodge_image::oci::Blob;
use lodge_image::{BlobError, Blobs, Digest};

use crate::{TestStore, blob_path, check_whole, names};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const NOBODY: u32 = 65_534;

fn mode(path: &std::path::Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn damage(store: &TestStore, digest: &Digest) {
    let path = store.path(digest);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[0] ^= 1;
    fs::write(&path, bytes).unwrap();
    // As if the disk had done it.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
}

#[test]
fn what_is_put_is_read_by_the_next_process_and_by_nobody_else() {
    let store = TestStore::new();
    let digest = store.blobs.put(&store.blobs.pins(), b"otters").unwrap();
    assert_eq!(digest, Digest::of(b"otters"));
    let blobs = store.reopened();
    assert_eq!(blobs.read(&digest, 6).unwrap(), b"otters");
    blobs.verify(&digest).unwrap();
    assert_eq!((mode(&store.dir()), mode(&store.path(&digest))), (0o700, 0o400));
    assert_eq!(mode(&store.dir().join("programs")), 0o755);
    assert!(matches!(blobs.read(&digest, 5), Err(BlobError::TooLong { max: 5, .. })));
    let other = Digest::of(b"none");
    assert!(matches!(blobs.read(&other, 5), Err(BlobError::Missing { digest }) if digest == other));
    check_whole(&store.dir());
}

#[test]
fn the_same_bytes_are_written_once() {
    let store = TestStore::new();
    let pins = store.blobs.pins();
    let digest = store.blobs.put(&pins, b"otters").unwrap();
    let first = fs::metadata(store.path(&digest)).unwrap().ino();
    store.blobs.put(&pins, b"otters").unwrap();
    assert_eq!(fs::metadata(store.path(&digest)).unwrap().ino(), first);
    let empty = store.blobs.put(&pins, b"").unwrap();
    assert_eq!(store.blobs.read(&empty, 0).unwrap(), b"");
}

#[test]
fn a_blob_of_another_size_is_not_there() {
    let store = TestStore::new();
    let pins = store.blobs.pins();
    let digest = store.blobs.put(&pins, b"otters").unwrap();
    assert!(store.blobs.has(&pins, &digest, 6).unwrap());
    assert!(!store.blobs.has(&pins, &digest, 5).unwrap());
    assert!(!store.blobs.has(&pins, &Digest::of(b"x"), 1).unwrap());
}

#[test]
fn a_damaged_blob_is_reported_in_every_way_of_reading_and_then_not_there_until_it_comes_again() {
    type Find = fn(&Blobs, &Digest) -> Result<(), BlobError>;
    let ways: [Find; 3] = [
        |blobs, digest| blobs.read(digest, 100).map(drop),
        |blobs, digest| blobs.verify(digest),
        |blobs, digest| blobs.open_checked(digest)?.drain(),
    ];
    for (nth, find) in ways.iter().enumerate() {
        let store = TestStore::new();
        let digest = store.blobs.put(&store.blobs.pins(), b"otters").unwrap();
        damage(&store, &digest);
        assert!(matches!(find(&store.blobs, &digest), Err(BlobError::Damaged { .. })), "way {nth}");
        let blobs = store.reopened();
        let pins = blobs.pins();
        assert!(!blobs.has(&pins, &digest, 6).unwrap(), "way {nth}");
        let mut incoming = blobs.receive(&pins, &digest, 6).unwrap();
        incoming.write(b"otters").unwrap();
        incoming.finish().unwrap();
        assert!(blobs.has(&pins, &digest, 6).unwrap(), "way {nth}");
        find(&blobs, &digest).unwrap();
    }
}

#[test]
fn bytes_that_are_put_replace_damaged_ones_that_nobody_read_yet() {
    let store = TestStore::new();
    let pins = store.blobs.pins();
    let digest = store.blobs.put(&pins, b"otters").unwrap();
    damage(&store, &digest);
    store.blobs.put(&pins, b"otters").unwrap();
    assert_eq!(store.blobs.read(&digest, 6).unwrap(), b"otters");
}

#[test]
fn blobs_that_are_put_together_are_there_together_and_written_once_and_damaged_ones_are_replaced() {
    let store = TestStore::new();
    let pins = store.blobs.pins();
    let known = store.blobs.put(&pins, b"known").unwrap();
    let hurt = store.blobs.put(&pins, b"hurt").unwrap();
    damage(&store, &hurt);
    let inode = fs::metadata(store.path(&known)).unwrap().ino();
    let all = [b"known".as_slice(), b"hurt", b"new", b"", b"new"].map(|bytes| Blob::new("", bytes.to_vec()));
    store.blobs.put_all(&pins, &all).unwrap();
    for blob in &all {
        assert_eq!(store.blobs.read(&blob.digest, 100).unwrap(), blob.bytes);
        assert_eq!(mode(&store.path(&blob.digest)), 0o400);
    }
    assert_eq!(fs::metadata(store.path(&known)).unwrap().ino(), inode);
    assert_eq!(names(&store.dir().join("temp")), Vec::<String>::new());
    assert_eq!(store.blobs.collect(&mut || Ok(BTreeSet::new())).unwrap().blobs, 0, "all are pinned");
    check_whole(&store.dir());
}

#[test]
fn a_blob_that_is_made_piece_by_piece_is_there_once_it_is_finished_and_pinned_from_then_on() {
    let store = TestStore::new();
    let pins = store.blobs.pins();
    let hurt = store.blobs.put(&store.blobs.pins(), b"otters swim").unwrap();
    damage(&store, &hurt);
    let mut fresh = store.blobs.begin(&pins).unwrap();
    fresh.write_all(b"otters ").unwrap();
    fresh.write_all(b"swim").unwrap();
    assert!(matches!(store.blobs.verify(&hurt), Err(BlobError::Damaged { .. })));
    assert_eq!(fresh.finish().unwrap(), (hurt, 11));
    assert_eq!(store.blobs.collect(&mut || Ok(BTreeSet::new())).unwrap().blobs, 0);
    assert_eq!(store.reopened().read(&hurt, 11).unwrap(), b"otters swim");
    assert_eq!(mode(&store.path(&hurt)), 0o400);
    let mut dropped = store.blobs.begin(&pins).unwrap();
    dropped.write_all(b"half").unwrap();
    drop(dropped);
    assert_eq!(names(&store.dir().join("temp")), Vec::<String>::new());
    assert_eq!(names(&store.dir().join("blobs/sha256")), [hurt.hex()]);
}

#[test]
fn a_checked_blob_can_be_read_in_pieces_and_its_end_is_asked_for_twice() {
    let store = TestStore::new();
    let digest = store.blobs.put(&store.blobs.pins(), b"otters").unwrap();
    let mut checked = store.blobs.open_checked(&digest).unwrap();
    let mut bytes = Vec::new();
    assert_eq!(checked.size(), 6);
    checked.read_to_end(&mut bytes).unwrap();
    checked.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, b"otters");
    damage(&store, &digest);
    let error = store.blobs.open_checked(&digest).unwrap().read_to_end(&mut bytes).unwrap_err();
    assert!(matches!(error.downcast(), Ok(BlobError::Damaged { .. })));
}

#[test]
fn a_transfer_goes_on_where_it_was_left_also_by_the_next_process() {
    let store = TestStore::new();
    let digest = Digest::of(b"otters swim");
    let mut incoming = store.blobs.receive(&store.blobs.pins(), &digest, 11).unwrap();
    assert!(incoming.is_empty());
    incoming.write(b"otters ").unwrap();
    drop(incoming);
    let blobs = store.reopened();
    let pins = blobs.pins();
    assert!(!blobs.has(&pins, &digest, 11).unwrap());
    let mut incoming = blobs.receive(&pins, &digest, 11).unwrap();
    assert_eq!(incoming.len(), 7);
    incoming.write(b"swim").unwrap();
    incoming.finish().unwrap();
    assert_eq!(blobs.read(&digest, 11).unwrap(), b"otters swim");
    assert_eq!((names(&store.dir().join("partial")), mode(&store.path(&digest))), (vec![], 0o400));
}

#[test]
fn what_a_blob_lacks_is_all_but_what_was_begun_and_nothing_once_it_is_there() {
    let store = TestStore::new();
    let pins = store.blobs.pins();
    let digest = Digest::of(b"otters swim");
    let lacks = |size| store.blobs.missing_bytes(&pins, &digest, size).unwrap();
    assert_eq!(lacks(11), 11);
    let mut incoming = store.blobs.receive(&pins, &digest, 11).unwrap();
    incoming.write(b"otters ").unwrap();
    assert_eq!((lacks(11), lacks(5)), (4, 5));
    incoming.write(b"swim").unwrap();
    incoming.finish().unwrap();
    assert_eq!(lacks(11), 0);
}

#[test]
fn a_transfer_that_brought_nothing_leaves_nothing() {
    let store = TestStore::new();
    let (pins, digest) = (store.blobs.pins(), Digest::of(b"otters"));
    drop(store.blobs.receive(&pins, &digest, 6).unwrap());
    let mut incoming = store.blobs.receive(&pins, &digest, 6).unwrap();
    incoming.write(b"beaver").unwrap();
    assert!(matches!(incoming.finish(), Err(BlobError::Wrong { .. })));
    assert_eq!(names(&store.dir().join("partial")), Vec::<String>::new());
    let none = Digest::of(b"");
    store.blobs.receive(&pins, &none, 0).unwrap().finish().unwrap();
    assert_eq!(store.blobs.read(&none, 0).unwrap(), b"");
}

#[test]
fn what_is_too_much_too_little_or_wrong_is_never_a_blob() {
    let store = TestStore::new();
    let pins = store.blobs.pins();
    let digest = Digest::of(b"otters");
    let mut incoming = store.blobs.receive(&pins, &digest, 6).unwrap();
    incoming.write(b"otter").unwrap();
    assert!(matches!(incoming.write(b"s!"), Err(BlobError::TooLarge { size: 6 })));
    assert_eq!(incoming.len(), 5);
    assert!(matches!(incoming.finish(), Err(BlobError::Short { len: 5, size: 6, .. })));
    let mut incoming = store.blobs.receive(&pins, &digest, 6).unwrap();
    assert_eq!(incoming.len(), 5);
    incoming.write(b"!").unwrap();
    assert!(matches!(incoming.finish(), Err(BlobError::Wrong { wanted, .. }) if wanted == digest));
    // It is discarded; otherwise it would be wrong permanently.
    let mut incoming = store.blobs.receive(&pins, &digest, 6).unwrap();
    assert_eq!(incoming.len(), 0);
    incoming.write(b"wrong").unwrap();
    incoming.restart().unwrap();
    incoming.write(b"otters").unwrap();
    assert_eq!(names(&store.dir().join("blobs/sha256")), Vec::<String>::new());
    incoming.finish().unwrap();
    assert_eq!(store.blobs.read(&digest, 6).unwrap(), b"otters");
}

#[test]
fn a_partial_file_that_is_longer_than_announced_begins_again() {
    let store = TestStore::new();
    let digest = Digest::of(b"otters");
    fs::write(store.dir().join("partial").join(digest.hex()), b"otters and more").unwrap();
    let mut incoming = store.blobs.receive(&store.blobs.pins(), &digest, 6).unwrap();
    assert!(incoming.is_empty());
    incoming.write(b"otters").unwrap();
    incoming.finish().unwrap();
    assert_eq!(fs::read(store.path(&digest)).unwrap(), b"otters");
}

#[test]
fn a_blob_has_one_transfer_at_a_time_and_the_next_can_wait_for_it() {
    let store = TestStore::new();
    let pins = store.blobs.pins();
    let digest = Digest::of(b"otters");
    let first = store.blobs.receive(&pins, &digest, 6).unwrap();
    assert!(matches!(store.blobs.receive(&pins, &digest, 6), Err(BlobError::Busy { .. })));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let waiting = tokio::spawn({
            let blobs = store.blobs.clone();
            async move { blobs.wait_until_free(&digest).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        waiting.await.unwrap();
        store.blobs.wait_until_free(&digest).await;
    });
    assert!(store.blobs.receive(&pins, &digest, 6).is_ok());
}

#[test]
fn a_process_killed_after_any_step_leaves_nothing_that_is_taken_for_a_blob() {
    let store = TestStore::new();
    let (whole, half) = (Digest::of(b"otters"), Digest::of(b"otters swim"));
    let partial = |digest: &Digest| store.dir().join("partial").join(digest.hex());
    fs::write(store.dir().join("temp/0"), b"ott").unwrap();
    // Whole and about to be renamed.
    fs::write(partial(&whole), b"otters").unwrap();
    fs::set_permissions(partial(&whole), fs::Permissions::from_mode(0o400)).unwrap();
    fs::write(partial(&half), b"otters").unwrap();
    fs::write(store.dir().join("partial/strange"), b"").unwrap();
    let blobs = store.reopened();
    check_whole(&store.dir());
    assert!(!store.dir().join("partial/strange").exists());
    let pins = blobs.pins();
    assert!(!blobs.has(&pins, &whole, 6).unwrap());
    blobs.receive(&pins, &whole, 6).unwrap().finish().unwrap();
    assert_eq!(blobs.read(&whole, 6).unwrap(), b"otters");
    assert_eq!(blobs.receive(&pins, &half, 11).unwrap().len(), 6);
}

#[test]
fn a_transfer_is_kept_for_a_week() {
    let store = TestStore::new();
    for (text, age) in [("old", 8 * DAY), ("young", 6 * DAY)] {
        let file = File::create(store.dir().join("partial").join(Digest::of(text.as_bytes()).hex())).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    }
    store.reopened();
    assert_eq!(names(&store.dir().join("partial")), [Digest::of(b"young").hex()]);
}

#[test]
fn what_nobody_wants_goes_and_what_is_wanted_or_pinned_stays() {
    let store = TestStore::new();
    let pins = store.blobs.pins();
    let put = |text: &[u8]| store.blobs.put(&store.blobs.pins(), text).unwrap();
    let (wanted, pinned, found, unwanted) = (put(b"w"), put(b"p"), put(b"f"), put(b"uu"));
    pins.keep(&pinned);
    assert!(store.blobs.has(&pins, &found, 1).unwrap());
    fs::write(store.dir().join("blobs/sha256/README"), b"").unwrap();
    let collected = store.blobs.collect(&mut || Ok(BTreeSet::from([wanted]))).unwrap();
    assert_eq!((collected.blobs, collected.bytes), (1, 2));
    for (digest, is_there) in [(wanted, true), (pinned, true), (found, true), (unwanted, false)] {
        assert_eq!(store.path(&digest).exists(), is_there);
    }
    drop(pins);
    assert_eq!(store.blobs.collect(&mut || Ok(BTreeSet::from([wanted]))).unwrap().blobs, 2);
    assert_eq!(names(&store.dir().join("blobs/sha256")), [wanted.hex(), "README".to_owned()]);
}

#[test]
fn a_collection_that_cannot_learn_what_is_wanted_removes_nothing() {
    let store = TestStore::new();
    let digest = store.blobs.put(&store.blobs.pins(), b"otters").unwrap();
    let failed = store.blobs.collect(&mut || Err(BlobError::Missing { digest }));
    assert!(matches!(failed, Err(BlobError::Missing { .. })));
    assert!(store.path(&digest).exists());
}

#[test]
fn what_is_pinned_and_recorded_during_a_collection_stays_though_its_pins_are_gone() {
    let store = TestStore::new();
    let before = store.blobs.pins();
    let put = |text: &[u8]| store.blobs.put(&store.blobs.pins(), text).unwrap();
    let (held, found, lost) = (put(b"held"), put(b"found"), put(b"lost"));
    before.keep(&held);
    let mut before = Some(before);
    let mut fresh = None;
    let collected = store.blobs.collect(&mut || {
        // A caller that started earlier records its blob and drops its pins; others find or add one.
        before.take();
        assert!(store.blobs.has(&store.blobs.pins(), &found, 5).unwrap());
        fresh = Some(put(b"fresh"));
        Ok(BTreeSet::new())
    });
    assert_eq!(collected.unwrap().blobs, 1);
    assert_eq!(
        [held, found, fresh.unwrap(), lost].map(|digest| store.path(&digest).exists()),
        [true, true, true, false]
    );
}

#[test]
fn a_program_is_made_once_can_be_run_by_all_and_goes_with_its_owner() {
    let store = TestStore::new();
    let owner = Digest::of(b"manifest");
    let pins = store.blobs.pins();
    let mut made = 0;
    for _ in 0..2 {
        let path = store.blobs.derived(&pins, &owner, "rg", &mut |file| {
            made += 1;
            file.write_all(b"#!/bin/sh\n").unwrap();
            Ok::<(), BlobError>(())
        });
        let path = path.unwrap();
        assert_eq!(path, store.dir().join("programs").join(owner.hex()).join("rg"));
        assert_eq!((mode(&path), mode(path.parent().unwrap()), made), (0o555, 0o755, 1));
    }
    store.blobs.collect(&mut || Ok(BTreeSet::new())).unwrap();
    assert_eq!(names(&store.dir().join("programs")).len(), 1);
    drop(pins);
    store.blobs.collect(&mut || Ok(BTreeSet::from([owner]))).unwrap();
    assert_eq!(names(&store.dir().join("programs")).len(), 1);
    assert_eq!(store.blobs.collect(&mut || Ok(BTreeSet::new())).unwrap().bytes, 10);
    assert_eq!(names(&store.dir().join("programs")).len(), 0);
}

#[test]
fn a_program_that_could_not_be_made_is_not_there() {
    let store = TestStore::new();
    let (pins, owner) = (store.blobs.pins(), Digest::of(b"manifest"));
    let failed = store.blobs.derived(&pins, &owner, "rg", &mut |file| {
        file.write_all(b"half").unwrap();
        Err(BlobError::Missing { digest: owner })
    });
    assert!(matches!(failed, Err(BlobError::Missing { .. })));
    assert_eq!(names(&store.dir().join("programs").join(owner.hex())).len(), 0);
    for name in ["", ".", "..", "../x", "/x", "a/b", ".hidden", "-x", &"x".repeat(64)] {
        let refused = store.blobs.derived(&pins, &owner, name, &mut |_| Ok::<(), BlobError>(()));
        assert!(matches!(refused, Err(BlobError::Name { .. })), "{name}");
    }
    check_whole(&store.dir());
}

#[test]
fn a_store_that_others_could_look_into_is_closed_again() {
    let store = TestStore::new();
    fs::set_permissions(store.dir(), fs::Permissions::from_mode(0o777)).unwrap();
    store.reopened();
    assert_eq!(mode(&store.dir()), 0o700);
}

/// Everything above, as an ordinary user without access; and a directory of another user.
#[test]
fn the_store_is_the_same_for_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        // Then everything above was run so.
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let own = dir.path().join("own");
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
    assert!(matches!(Blobs::open(&own), Err(BlobError::Io { cause, .. })
        if cause.kind() == std::io::ErrorKind::PermissionDenied));
    let program = dir.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let output = Command::new(&program)
        .args(["--test-threads=2", "blobs::", "links::", "full::", "kill::", "races::"])
        .env_clear()
        .env("TMPDIR", &own)
        .env("PATH", "/usr/bin:/bin")
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("links_in_the_store_lead_nowhere ... ok"));
    assert!(!blob_path(&own, &Digest::of(b"")).exists());
}
