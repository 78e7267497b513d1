//! Many who use one store at once.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use lodge_image::{BlobError, Digest};

use crate::{StoreChoices, TestStore, check_whole};

const CONTENTS: usize = 8;
const ROUNDS: usize = 150;

fn content(nth: usize) -> Vec<u8> {
    vec![b'a' + u8::try_from(nth).unwrap(); 100 * (nth + 1)]
}

/// Each writer records what it has while it is pinned, as the daemon does, and then finds it; the record is what is wanted.
#[test]
fn nothing_that_was_recorded_while_it_was_pinned_is_ever_collected() {
    let store = TestStore::new();
    let recorded: Mutex<BTreeSet<(usize, Digest)>> = Mutex::default();
    let is_over = AtomicBool::new(false);
    let write = |writer: usize| {
        let mut chance = StoreChoices::new(writer as u64);
        for _ in 0..ROUNDS {
            let bytes = content(chance.below(CONTENTS));
            let digest = Digest::of(&bytes);
            let pins = store.blobs.pins();
            if chance.below(2) == 0 {
                store.blobs.put(&pins, &bytes).unwrap();
            } else if !store.blobs.has(&pins, &digest, bytes.len() as u64).unwrap() {
                match store.blobs.receive(&pins, &digest, bytes.len() as u64) {
                    Ok(mut incoming) => {
                        let there = usize::try_from(incoming.len()).unwrap();
                        incoming.write(&bytes[there..]).unwrap();
                        incoming.finish().unwrap();
                    }
                    Err(BlobError::Busy { .. }) => continue,
                    Err(error) => panic!("{error:?}"),
                }
            }
            recorded.lock().unwrap().insert((writer, digest));
            drop(pins);
            assert_eq!(store.blobs.read(&digest, 1 << 20).unwrap(), bytes);
            recorded.lock().unwrap().remove(&(writer, digest));
        }
    };
    let collected = thread::scope(|scope| {
        let collecting = [(); 2].map(|()| {
            scope.spawn(|| {
                let mut collected = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let wanted =
                        &mut || Ok(recorded.lock().unwrap().iter().map(|(_, digest)| *digest).collect());
                    collected += store.blobs.collect(wanted).unwrap().blobs;
                }
                collected
            })
        });
        let write = &write;
        let writing = [1, 2, 3, 4].map(|writer| scope.spawn(move || write(writer)));
        let wrote = writing.map(|thread| thread.join());
        is_over.store(true, Ordering::Relaxed);
        let collected: u64 = collecting.map(|thread| thread.join().unwrap()).iter().sum();
        wrote.into_iter().for_each(Result::unwrap);
        collected
    });
    assert!(collected > 0);
    check_whole(&store.dir());
    store.blobs.collect(&mut || Ok(BTreeSet::new())).unwrap();
    assert!(crate::names(&store.dir().join("blobs/sha256")).is_empty());
}

#[test]
fn a_program_that_many_want_at_once_is_whole_for_each() {
    let store = TestStore::new();
    let owner = Digest::of(b"manifest");
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let pins = store.blobs.pins();
                for _ in 0..20 {
                    let path = store.blobs.derived(&pins, &owner, "rg", &mut |file| {
                        std::io::Write::write_all(file, &content(7)).unwrap();
                        Ok::<(), BlobError>(())
                    });
                    assert_eq!(std::fs::read(path.unwrap()).unwrap(), content(7));
                    store.blobs.collect(&mut || Ok(BTreeSet::new())).unwrap();
                }
            });
        }
    });
}
