//! Progress of a transfer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use lodge_image::Digest;
use lodge_image::oci::Descriptor;
use lodge_image::registry::{RegistryTerms, TransferWatch};
use lodge_testkit::registry::MockRegistry;

use crate::common::*;

/// The longest step in the reported progress of an upload.
const STEP: u64 = 1 << 20;
const LONG: usize = 5 * STEP as usize / 2;

#[derive(Default)]
struct TransferRecord {
    platforms: Mutex<BTreeMap<Digest, Option<String>>>,
    steps: Mutex<BTreeMap<Digest, Vec<u64>>>,
}

impl TransferWatch for TransferRecord {
    fn planned(&self, part: &Descriptor) {
        let platform = part.platform.as_ref().map(ToString::to_string);
        self.platforms.lock().unwrap().insert(part.digest, platform);
    }

    fn there(&self, part: &Descriptor) {
        self.planned(part);
    }

    fn moved(&self, part: &Digest, bytes: u64) {
        self.steps.lock().unwrap().entry(*part).or_default().push(bytes);
    }
}

#[tokio::test]
async fn parts_of_one_platform_are_reported_with_it_and_one_that_is_sent_in_small_steps() {
    let mock = MockRegistry::start().unwrap();
    // With chunks of the default size.
    let here = LocalStore::new(RegistryTerms { chunk: RegistryTerms::default().chunk, ..quick() });
    let (long, shared, other) = (bytes(1, LONG), bytes(2, 10), bytes(3, 10));
    for blob in [CONFIG, &long, &shared, &other] {
        here.put(blob);
    }
    let amd = written(&manifest_of(CONFIG, &[long.clone(), shared.clone()]));
    let arm = written(&manifest_of(CONFIG, &[shared.clone(), other.clone()]));
    let index = written(&index_of(&[("amd64", &amd), ("arm64", &arm)]));
    here.put(&amd);
    here.put(&arm);
    let image = Descriptor::new(INDEX, here.put(&index), index.len() as u64);
    let at = remote(&mock.host(), "thing:v1");
    let pushed = Arc::new(TransferRecord::default());
    here.registries.push(&here.blobs, &image, &at, pushed.clone()).await.unwrap();
    let there = LocalStore::new(quick());
    let (_, document) = there.resolve(&at).await.unwrap();
    let pulled = Arc::new(TransferRecord::default());
    there.registries.fetch(&there.blobs, &there.pins, &at, &document, pulled.clone()).await.unwrap();
    for told in [&pushed, &pulled] {
        let platforms = told.platforms.lock().unwrap();
        let platform = |bytes: &[u8]| platforms[&Digest::of(bytes)].as_deref();
        assert_eq!([platform(&long), platform(&amd)], [Some("linux/amd64"); 2]);
        assert_eq!([platform(&other), platform(&arm)], [Some("linux/arm64"); 2]);
        assert_eq!([platform(&shared), platform(CONFIG)], [None; 2]);
        let steps = &told.steps.lock().unwrap()[&Digest::of(&long)];
        assert!(last_attempt(steps).last() == Some(&(LONG as u64)), "{steps:?}");
    }
    let steps = &pushed.steps.lock().unwrap()[&Digest::of(&long)];
    let all = [&[0], last_attempt(steps)].concat();
    assert!(all.windows(2).all(|pair| pair[1] - pair[0] <= STEP), "{steps:?}");
}

/// The steps of the last attempt: on a busy machine a transfer stalls, and is repeated from its beginning.
fn last_attempt(steps: &[u64]) -> &[u64] {
    let begin = steps.windows(2).rposition(|pair| pair[1] < pair[0]).map_or(0, |at| at + 1);
    &steps[begin..]
}
