//! Random faults in random order: the store is correct afterwards, and the next attempt works.

use std::time::Duration;

use lodge_image::Digest;
use lodge_image::oci::Descriptor;
use lodge_image::registry::RegistryTerms;
use lodge_testkit::registry::{FaultCount, MockRegistry, RegistryFault};

use crate::common::*;

const ROUNDS: u64 = 120;
/// Nothing is tried so often that it could not be counted: tries × (blobs and documents) × requests of each try.
const REQUESTS_MAX: usize = 5 * 12 * 8;

/// Some troubles can only be waited for.
const SILENCE: Duration = Duration::from_millis(500);

struct ChaosChoices(u64);

impl ChaosChoices {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len() as u64) as usize]
    }

    fn fault(&mut self, mock: &MockRegistry) -> RegistryFault {
        let size = self.below(5_000);
        match self.below(10) {
            0 => RegistryFault::CutAt(size),
            1 => RegistryFault::Body(bytes(size, size as usize)),
            2 => RegistryFault::Length(size),
            3 => RegistryFault::NoRanges,
            4 => RegistryFault::TakeOnly(size),
            5 => {
                let name =
                    self.pick(&["Content-Range", "Range", "Docker-Content-Digest", "Content-Encoding"]);
                let value =
                    self.pick(&["", "0-5", "bytes 7-9/10", "sha256:00", "gzip", "0-99999999999999999999"]);
                RegistryFault::Header(name.to_owned(), value.to_owned())
            }
            6 => {
                let known = mock.url("/v2/");
                let location = self.pick(&["", "/", "//", "http://10.0.0.1/", "?", "%zz", &known]).to_owned();
                let status = [301, 302, 303, 307, 308][self.below(5) as usize];
                RegistryFault::Answer {
                    status,
                    headers: vec![("Location".to_owned(), location)],
                    body: Vec::new(),
                }
            }
            7 => {
                let challenge = self.pick(&["Basic", "Bearer realm=x", "Bearer realm=\"/\"", "?"]).to_owned();
                let headers = vec![("WWW-Authenticate".to_owned(), challenge)];
                RegistryFault::Answer { status: 401, headers, body: Vec::new() }
            }
            status => {
                let status = [200, 201, 202, 204, 206, 400, 403, 404, 416, 429, 500, 503, 599]
                    [(self.below(13) + status) as usize % 13];
                RegistryFault::Answer { status, headers: Vec::new(), body: bytes(size, size as usize) }
            }
        }
    }
}

fn right(here: &LocalStore, seed: u64) {
    for digest in here.stored() {
        let parsed: Digest = digest.parse().unwrap();
        assert!(here.blobs.verify(&parsed).is_ok(), "{digest} of seed {seed}");
    }
}

#[tokio::test]
async fn a_pull_through_any_trouble_leaves_only_what_is_right_and_works_once_it_is_over() {
    for seed in 1..=ROUNDS {
        let mock = MockRegistry::start().unwrap();
        let layers: Vec<_> = (0..4).map(|number| bytes(seed * 10 + number, 4_000)).collect();
        let (_, digests) = image(&mock, &layers);
        let here = LocalStore::new(RegistryTerms { silence: SILENCE, ..quick() });
        let mut chance = ChaosChoices(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for _ in 0..1 + chance.below(6) {
            let fault = chance.fault(&mock);
            let part = chance.pick(&["/manifests/", "/blobs/", &digests[0], "/v2/"]);
            mock.fault("GET", part, FaultCount::Next(1 + chance.below(4) as u32), fault);
        }
        let first = here.pull(&remote(&mock.host(), "thing:v1")).await;
        right(&here, seed);
        assert!(mock.seen().len() < REQUESTS_MAX, "{} of seed {seed}", mock.seen().len());
        mock.forget_faults();
        here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
        right(&here, seed);
        let read: Vec<_> = digests.iter().map(|digest| here.read(digest)).collect();
        assert_eq!(read, layers, "seed {seed}, first {first:?}");
    }
}

#[tokio::test]
async fn a_push_through_any_trouble_names_nothing_that_is_not_there_and_works_once_it_is_over() {
    for seed in 1..=ROUNDS {
        let mock = MockRegistry::start().unwrap();
        let here =
            LocalStore::new(RegistryTerms { chunk: 1_500, silence: SILENCE, whole: SILENCE, ..quick() });
        let layers: Vec<_> = (0..3).map(|number| bytes(seed * 10 + number, 4_000)).collect();
        here.put(CONFIG);
        for layer in &layers {
            here.put(layer);
        }
        let manifest = written(&manifest_of(CONFIG, &layers));
        let image = Descriptor::new(MANIFEST, here.put(&manifest), manifest.len() as u64);
        let mut chance = ChaosChoices(seed.wrapping_mul(0xd134_2543_de82_ef95));
        for _ in 0..1 + chance.below(6) {
            let method = chance.pick(&["HEAD", "POST", "PATCH", "PUT", "GET"]);
            let fault = chance.fault(&mock);
            mock.fault(
                method,
                chance.pick(&["/blobs/", "/manifests/"]),
                FaultCount::Next(1 + chance.below(4) as u32),
                fault,
            );
        }
        let first = here.push(&image, &remote(&mock.host(), "thing:v1")).await;
        assert!(mock.seen().len() < REQUESTS_MAX, "{} of seed {seed}", mock.seen().len());
        mock.forget_faults();
        // A registry that claims to have a blob is believed, so after such a lie a named blob may be missing: the
        // next push repairs it.
        here.push(&image, &remote(&mock.host(), "thing:v1")).await.unwrap();
        let there = LocalStore::new(quick());
        let pulled = there.pull(&remote(&mock.host(), "thing:v1")).await;
        assert_eq!(pulled.unwrap(), image, "seed {seed}, first {first:?}");
    }
}
