//! A disk that takes no more, in the middle of a write.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use lodge_image::oci::Blob;
use lodge_image::{BlobError, Blobs, Digest};

use crate::{TestStore, check_whole, names};

const DIR: &str = "LODGE_TEST_FULL";
const SIZE: usize = 300 << 10;

fn bytes() -> Vec<u8> {
    crate::StoreChoices::new(7).bytes(SIZE)
}

/// What happens where no file can grow over 64 KiB.
fn fill(dir: &Path) {
    let bytes = bytes();
    let digest = Digest::of(&bytes);
    let blobs = Blobs::open(dir).unwrap();
    let pins = blobs.pins();
    let full = |error: &BlobError| error.is_full();
    assert!(blobs.put(&pins, &bytes).is_err_and(|error| full(&error)));
    // What has room is not there either when it comes with what has none.
    let small = Blob::new("", b"small".to_vec());
    let all = [small.clone(), Blob::new("", bytes.clone())];
    assert!(blobs.put_all(&pins, &all).is_err_and(|error| full(&error)));
    assert!(!blobs.has(&pins, &small.digest, 5).unwrap());
    let mut fresh = blobs.begin(&pins).unwrap();
    let error = fresh.write_all(&bytes).unwrap_err().downcast::<BlobError>().unwrap();
    assert!(full(&error), "{error:?}");
    drop(fresh);
    assert_eq!(names(&dir.join("temp")), Vec::<String>::new());
    let mut incoming = blobs.receive(&pins, &digest, SIZE as u64).unwrap();
    assert!(incoming.write(&bytes).is_err_and(|error| full(&error)));
    let so_far = incoming.len();
    assert!(so_far > 0 && so_far < SIZE as u64, "{so_far}");
    assert!(matches!(incoming.finish(), Err(BlobError::Short { .. })));
    assert_eq!(blobs.receive(&pins, &digest, SIZE as u64).unwrap().len(), so_far);
}

#[test]
fn a_full_disk_leaves_no_half_blob_and_a_transfer_that_goes_on() {
    if let Some(dir) = std::env::var_os(DIR) {
        return fill(Path::new(&dir));
    }
    let store = TestStore::new();
    // A shell sets the limit, and makes it an error where it would be a signal.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 128; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "full::a_full_disk_leaves_no_half_blob_and_a_transfer_that_goes_on", "--nocapture"])
        .env(DIR, store.dir())
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    check_whole(&store.dir());
    assert_eq!(names(&store.dir().join("blobs/sha256")), Vec::<String>::new());
    // There is room again.
    let (blobs, bytes) = (store.reopened(), bytes());
    let digest = Digest::of(&bytes);
    let mut incoming = blobs.receive(&blobs.pins(), &digest, SIZE as u64).unwrap();
    let so_far = usize::try_from(incoming.len()).unwrap();
    assert!(so_far > 0);
    incoming.write(&bytes[so_far..]).unwrap();
    incoming.finish().unwrap();
    assert_eq!(fs::read(store.path(&digest)).unwrap(), bytes);
}
