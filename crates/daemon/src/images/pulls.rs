//! Transfers that several callers may wait for. A transfer is cancelled when its last caller stops waiting.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{Shared, WeakShared};
use lodge_image::oci::Descriptor;
use lodge_image::registry::TransferWatch;
use lodge_image::{Digest, Pins, RemoteImage};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::ImageError;
use super::image_tree::ImageTree;
use crate::crash;

/// Images that are transferred at once; others wait. Each has one connection per part in transfer, which a slow registry can
/// keep open, and each push also occupies a thread.
pub(super) const TRANSFERS_MAX: usize = 32;

/// The result of a transfer. It is not collected as long as this value exists.
#[derive(Debug)]
pub(crate) struct PinnedImage {
    pub tree: ImageTree,
    _pins: Pins,
}

impl PinnedImage {
    pub(crate) fn new(tree: ImageTree, pins: Pins) -> PinnedImage {
        PinnedImage { tree, _pins: pins }
    }
}

pub(crate) type TransferResult = Result<Arc<PinnedImage>, ImageError>;
pub(crate) type TransferFuture = Pin<Box<dyn Future<Output = TransferResult> + Send>>;

/// A transfer. It exists while a caller waits for it.
struct Transfer {
    progress: Arc<TransferProgress>,
    running: WeakShared<TransferFuture>,
}

/// The current transfers, by the requested image.
pub(crate) struct Transfers {
    all: Mutex<BTreeMap<RemoteImage, Transfer>>,
    moving: Semaphore,
}

impl Default for Transfers {
    fn default() -> Transfers {
        Transfers { all: Mutex::default(), moving: Semaphore::new(TRANSFERS_MAX) }
    }
}

impl Transfers {
    /// A slot for the transfer of one image. The owner of a slot never waits for another slot.
    pub(crate) async fn slot(&self) -> Option<SemaphorePermit<'_>> {
        self.moving.acquire().await.ok()
    }

    /// Waits for the transfer of `at`, and starts it if there is none. When the last waiting future is dropped, the transfer is
    /// cancelled, and the received bytes stay for the next attempt.
    pub(crate) async fn join(
        &self,
        at: &RemoteImage,
        watch: Arc<dyn TransferWatch>,
        begin: impl FnOnce(Arc<TransferProgress>) -> TransferFuture,
    ) -> TransferResult {
        let (progress, running) = self.find_or_start(at, begin);
        let _watching = progress.watch(watch);
        running.await
    }

    fn find_or_start(
        &self,
        at: &RemoteImage,
        begin: impl FnOnce(Arc<TransferProgress>) -> TransferFuture,
    ) -> (Arc<TransferProgress>, Shared<TransferFuture>) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(at)
            && let Some(running) = known.running.upgrade()
        {
            return (known.progress.clone(), running);
        }
        all.retain(|_, known| known.running.upgrade().is_some());
        let progress = Arc::new(TransferProgress::default());
        let running = begin(progress.clone()).shared();
        if let Some(weak) = running.downgrade() {
            all.insert(at.clone(), Transfer { progress: progress.clone(), running: weak });
        }
        (progress, running)
    }
}

impl std::fmt::Debug for Transfers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let waited_for = all.iter().filter(|(_, known)| known.running.upgrade().is_some());
        f.debug_set().entries(waited_for.map(|(at, _)| at.to_string())).finish()
    }
}

/// Reports the progress of a transfer to all its watchers. A late watcher gets the past progress first.
#[derive(Default)]
pub(crate) struct TransferProgress {
    state: Mutex<TransferProgressState>,
}

#[derive(Default)]
struct TransferProgressState {
    parts: BTreeMap<Digest, TransferPart>,
    watchers: BTreeMap<u64, Arc<dyn TransferWatch>>,
    next: u64,
}

struct TransferPart {
    descriptor: Descriptor,
    status: PartStatus,
    moved: u64,
}

/// Whether a part has to be transferred or was in the store before.
#[derive(Clone, Copy)]
enum PartStatus {
    Planned,
    There,
}

impl PartStatus {
    fn notify(self, part: &Descriptor, watch: &dyn TransferWatch) {
        match self {
            PartStatus::Planned => watch.planned(part),
            PartStatus::There => watch.there(part),
        }
    }
}

impl TransferProgress {
    fn state(&self) -> MutexGuard<'_, TransferProgressState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_part(&self, part: &Descriptor, status: PartStatus) {
        let mut state = self.state();
        let known = state.parts.entry(part.digest);
        known.or_insert_with(|| TransferPart { descriptor: part.clone(), status, moved: 0 }).status = status;
        state.watchers.values().for_each(|watch| status.notify(part, &**watch));
    }

    /// Notifies `watch` until the returned guard is dropped.
    fn watch(self: &Arc<Self>, watch: Arc<dyn TransferWatch>) -> WatcherGuard {
        let mut state = self.state();
        for (digest, part) in &state.parts {
            part.status.notify(&part.descriptor, &*watch);
            if part.moved > 0 {
                watch.moved(digest, part.moved);
            }
        }
        let number = state.next;
        state.next += 1;
        state.watchers.insert(number, watch);
        WatcherGuard { progress: self.clone(), number }
    }
}

struct WatcherGuard {
    progress: Arc<TransferProgress>,
    number: u64,
}

impl Drop for WatcherGuard {
    fn drop(&mut self) {
        self.progress.state().watchers.remove(&self.number);
    }
}

impl TransferWatch for TransferProgress {
    fn planned(&self, part: &Descriptor) {
        self.record_part(part, PartStatus::Planned);
    }

    fn there(&self, part: &Descriptor) {
        self.record_part(part, PartStatus::There);
    }

    fn moved(&self, part: &Digest, bytes: u64) {
        crash::point("during_pull");
        let mut state = self.state();
        if let Some(known) = state.parts.get_mut(part) {
            known.moved = bytes;
        }
        state.watchers.values().for_each(|watch| watch.moved(part, bytes));
    }
}

/// Ignores the progress of a transfer.
#[derive(Debug)]
pub(crate) struct NoWatcher;

impl TransferWatch for NoWatcher {
    fn planned(&self, _part: &Descriptor) {}
    fn there(&self, _part: &Descriptor) {}
    fn moved(&self, _part: &Digest, _bytes: u64) {}
}
