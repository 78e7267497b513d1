//! Blobs that must not be collected, and blobs that are being received.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::Digest;

/// What all clones of a store know together.
#[derive(Debug, Default)]
pub(super) struct BlobState {
    held: Mutex<PinTable>,
    /// A transfer stopped receiving.
    pub(super) freed: Notify,
    /// Locked by a collection: there is one at a time.
    pub(super) collection: Mutex<()>,
}

#[derive(Debug, Default)]
pub(super) struct PinTable {
    pins: BTreeMap<Digest, usize>,
    pub(super) receiving: BTreeSet<Digest>,
    /// During a collection: everything that was pinned at some time since it began.
    spared: Option<BTreeSet<Digest>>,
}

/// Keeps blobs from being collected until it is dropped. A caller that writes or finds a blob and records it later
/// keeps a pin until then.
#[derive(Debug)]
pub struct Pins {
    shared: Arc<BlobState>,
    own: Mutex<BTreeSet<Digest>>,
}

impl BlobState {
    pub(super) fn lock_pins(&self) -> MutexGuard<'_, PinTable> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until the returned guard is dropped, blobs that were pinned at any time are spared, even if they are no longer
    /// pinned: they may have been recorded after the collection listed the needed ones.
    pub(super) fn spare(&self) -> CollectionGuard<'_> {
        let mut held = self.lock_pins();
        held.spared = Some(held.pins.keys().copied().collect());
        CollectionGuard { shared: self }
    }
}

pub(super) struct CollectionGuard<'a> {
    shared: &'a BlobState,
}

impl Drop for CollectionGuard<'_> {
    fn drop(&mut self) {
        self.shared.lock_pins().spared = None;
    }
}

impl PinTable {
    pub(super) fn is_spared(&self, digest: &Digest) -> bool {
        self.pins.contains_key(digest)
            || self.receiving.contains(digest)
            || self.spared.as_ref().is_some_and(|spared| spared.contains(digest))
    }
}

impl Pins {
    pub(super) fn new(shared: Arc<BlobState>) -> Pins {
        Pins { shared, own: Mutex::default() }
    }

    /// Keeps one more, whether it is there or not.
    pub fn keep(&self, digest: &Digest) {
        if !self.own.lock().unwrap_or_else(PoisonError::into_inner).insert(*digest) {
            return;
        }
        let mut held = self.shared.lock_pins();
        *held.pins.entry(*digest).or_default() += 1;
        if let Some(spared) = &mut held.spared {
            spared.insert(*digest);
        }
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let own = std::mem::take(self.own.get_mut().unwrap_or_else(PoisonError::into_inner));
        let mut held = self.shared.lock_pins();
        for digest in own {
            let left = held.pins.get(&digest).map_or(0, |count| count.saturating_sub(1));
            match left {
                0 => held.pins.remove(&digest),
                left => held.pins.insert(digest, left),
            };
        }
    }
}
