//! A process that is killed at any moment of its work, again and again.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use lodge_image::oci::Blob;
use lodge_image::{BlobError, Blobs, Digest};

use crate::{StoreChoices, TestStore, check_whole, names};

const DIR: &str = "LODGE_TEST_KILL";
const SEED: &str = "LODGE_TEST_SEED";
const KILLS: u64 = 40;
const CONTENTS: usize = 12;

/// Blobs with even numbers are needed permanently once they exist.
fn content(nth: usize) -> Vec<u8> {
    StoreChoices::new(nth as u64).bytes(3_000 * (nth + 1))
}

fn wanted() -> BTreeSet<Digest> {
    (0..CONTENTS).step_by(2).map(|nth| Digest::of(&content(nth))).collect()
}

/// Uses the store in every way, and says what is done.
fn use_for_ever(dir: &Path, seed: u64) -> ! {
    let blobs = Blobs::open(dir).unwrap();
    let mut chance = StoreChoices::new(seed);
    let wanted = wanted();
    println!("begun");
    loop {
        let nth = chance.below(CONTENTS);
        let bytes = content(nth);
        let digest = Digest::of(&bytes);
        let pins = blobs.pins();
        match chance.below(6) {
            0 => {
                blobs.put(&pins, &bytes).unwrap();
                println!("there {nth}");
            }
            1 => {
                let mut incoming = blobs.receive(&pins, &digest, bytes.len() as u64).unwrap();
                let there = usize::try_from(incoming.len()).unwrap();
                for piece in bytes[there..].chunks(1_000) {
                    incoming.write(piece).unwrap();
                    println!("piece");
                }
                incoming.finish().unwrap();
                println!("there {nth}");
            }
            2 => {
                let owner = Digest::of(&[u8::try_from(nth).unwrap()]);
                let make = &mut |file: &mut std::fs::File| {
                    bytes.chunks(1_000).for_each(|piece| file.write_all(piece).unwrap());
                    Ok::<(), BlobError>(())
                };
                blobs.derived(&pins, &owner, &format!("p{nth}"), make).unwrap();
                println!("made");
            }
            3 => {
                let all = [Blob::new("", bytes), Blob::new("", content((nth + 2) % CONTENTS))];
                blobs.put_all(&pins, &all).unwrap();
                println!("there {nth}");
                println!("there {}", (nth + 2) % CONTENTS);
            }
            4 => {
                let mut fresh = blobs.begin(&pins).unwrap();
                for piece in bytes.chunks(1_000) {
                    fresh.write_all(piece).unwrap();
                    println!("piece");
                }
                assert_eq!(fresh.finish().unwrap(), (digest, bytes.len() as u64));
                println!("there {nth}");
            }
            _ => {
                drop(pins);
                blobs.collect(&mut || Ok(wanted.clone())).unwrap();
                println!("collected");
            }
        }
    }
}

/// Ends with the test, however that ends.
struct KilledProcess(Child);

impl Drop for KilledProcess {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).unwrap();
    }
}

#[test]
fn after_any_kill_blobs_are_complete_and_acknowledged_ones_exist() {
    if let (Some(dir), Ok(seed)) = (std::env::var_os(DIR), std::env::var(SEED)) {
        use_for_ever(Path::new(&dir), seed.parse().unwrap());
    }
    let store = TestStore::new();
    let mut there = BTreeSet::new();
    for seed in 0..KILLS {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::after_any_kill_blobs_are_complete_and_acknowledged_ones_exist"])
            .arg("--nocapture")
            .env(DIR, store.dir())
            .env(SEED, seed.to_string())
            .stdout(Stdio::piped())
            .spawn();
        let mut victim = KilledProcess(child.unwrap());
        let mut said = BufReader::new(victim.0.stdout.take().unwrap()).lines();
        assert!(said.by_ref().any(|line| line.unwrap() == "begun"), "it did not begin");
        // After this many steps, in the middle of the next one.
        for line in said.by_ref().take(StoreChoices::new(seed).below(60)) {
            note(&mut there, &line.unwrap());
        }
        victim.0.kill().unwrap();
        // Its output before its death counts as well; the last line may be incomplete.
        for line in said.map_while(Result::ok) {
            note(&mut there, &line);
        }
        drop(victim);
        drop(store.reopened());
        check(&store, &there);
    }
    assert_eq!(there.len(), CONTENTS / 2);
}

fn note(there: &mut BTreeSet<usize>, line: &str) {
    if let Some(nth) = line.strip_prefix("there ").and_then(|nth| nth.parse::<usize>().ok())
        && nth.is_multiple_of(2)
    {
        there.insert(nth);
    }
}

fn check(store: &TestStore, there: &BTreeSet<usize>) {
    check_whole(&store.dir());
    for nth in there {
        assert!(store.path(&Digest::of(&content(*nth))).exists(), "{nth} is gone");
    }
    let programs = store.dir().join("programs");
    for owner in names(&programs) {
        for name in names(&programs.join(&owner)) {
            let nth: usize = name.strip_prefix('p').unwrap().parse().unwrap();
            assert_eq!(std::fs::read(programs.join(&owner).join(&name)).unwrap(), content(nth));
        }
    }
}
