//! Transfers that several may wait for. One lasts exactly as long as somebody does.

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
use super::whole::Whole;
use crate::crash;

/// Images whose contents are moved at once; more of them wait. Each has a connection for each of its parts that are under
/// way, for as long as a registry likes, and one that is pushed a thread as well.
pub(super) const MOVING_MAX: usize = 32;

/// What a transfer brought. It is kept from being collected as long as somebody has this.
#[derive(Debug)]
pub(crate) struct Held {
    pub whole: Whole,
    _pins: Pins,
}

impl Held {
    pub(crate) fn new(whole: Whole, pins: Pins) -> Held {
        Held { whole, _pins: pins }
    }
}

pub(crate) type TransferResult = Result<Arc<Held>, ImageError>;
pub(crate) type Running = Pin<Box<dyn Future<Output = TransferResult> + Send>>;

/// A transfer, as long as somebody waits for it.
struct Transfer {
    fan: Arc<Fan>,
    running: WeakShared<Running>,
}

/// The transfers that somebody waits for, by what was asked for.
pub(crate) struct Transfers {
    all: Mutex<BTreeMap<RemoteImage, Transfer>>,
    moving: Semaphore,
}

impl Default for Transfers {
    fn default() -> Transfers {
        Transfers { all: Mutex::default(), moving: Semaphore::new(MOVING_MAX) }
    }
}

impl Transfers {
    /// The right to move the contents of an image. Whoever holds it waits for no other transfer to begin.
    pub(crate) async fn slot(&self) -> Option<SemaphorePermit<'_>> {
        self.moving.acquire().await.ok()
    }

    /// Waits for the transfer of `at`, which is begun when there is none. Whoever drops this waits no more; when nobody
    /// does, it is broken off, and what came so far stays to be gone on with.
    pub(crate) async fn join(
        &self,
        at: &RemoteImage,
        watch: Arc<dyn TransferWatch>,
        begin: impl FnOnce(Arc<Fan>) -> Running,
    ) -> TransferResult {
        let (fan, running) = self.enter(at, begin);
        let _watching = fan.watch(watch);
        running.await
    }

    fn enter(
        &self,
        at: &RemoteImage,
        begin: impl FnOnce(Arc<Fan>) -> Running,
    ) -> (Arc<Fan>, Shared<Running>) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(at)
            && let Some(running) = known.running.upgrade()
        {
            return (known.fan.clone(), running);
        }
        all.retain(|_, known| known.running.upgrade().is_some());
        let fan = Arc::new(Fan::default());
        let running = begin(fan.clone()).shared();
        if let Some(weak) = running.downgrade() {
            all.insert(at.clone(), Transfer { fan: fan.clone(), running: weak });
        }
        (fan, running)
    }
}

impl std::fmt::Debug for Transfers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let waited_for = all.iter().filter(|(_, known)| known.running.upgrade().is_some());
        f.debug_set().entries(waited_for.map(|(at, _)| at.to_string())).finish()
    }
}

/// Tells how far a transfer is to everybody who watches it. Whoever comes later is told what was before.
#[derive(Default)]
pub(crate) struct Fan {
    state: Mutex<FanState>,
}

#[derive(Default)]
struct FanState {
    parts: BTreeMap<Digest, TransferPart>,
    watchers: BTreeMap<u64, Arc<dyn TransferWatch>>,
    next: u64,
}

struct TransferPart {
    descriptor: Descriptor,
    way: Way,
    moved: u64,
}

/// Whether a part has one before it.
#[derive(Clone, Copy)]
enum Way {
    Planned,
    There,
}

impl Way {
    fn tell(self, part: &Descriptor, watch: &dyn TransferWatch) {
        match self {
            Way::Planned => watch.planned(part),
            Way::There => watch.there(part),
        }
    }
}

impl Fan {
    fn state(&self) -> MutexGuard<'_, FanState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn found(&self, part: &Descriptor, way: Way) {
        let mut state = self.state();
        let known = state.parts.entry(part.digest);
        known.or_insert_with(|| TransferPart { descriptor: part.clone(), way, moved: 0 }).way = way;
        state.watchers.values().for_each(|watch| way.tell(part, &**watch));
    }

    /// Tells `watch` until what this returns is dropped.
    fn watch(self: &Arc<Self>, watch: Arc<dyn TransferWatch>) -> Watching {
        let mut state = self.state();
        for (digest, part) in &state.parts {
            part.way.tell(&part.descriptor, &*watch);
            if part.moved > 0 {
                watch.moved(digest, part.moved);
            }
        }
        let number = state.next;
        state.next += 1;
        state.watchers.insert(number, watch);
        Watching { fan: self.clone(), number }
    }
}

struct Watching {
    fan: Arc<Fan>,
    number: u64,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.fan.state().watchers.remove(&self.number);
    }
}

impl TransferWatch for Fan {
    fn planned(&self, part: &Descriptor) {
        self.found(part, Way::Planned);
    }

    fn there(&self, part: &Descriptor) {
        self.found(part, Way::There);
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

/// Nobody who looks.
#[derive(Debug)]
pub(crate) struct Unwatched;

impl TransferWatch for Unwatched {
    fn planned(&self, _part: &Descriptor) {}
    fn there(&self, _part: &Descriptor) {}
    fn moved(&self, _part: &Digest, _bytes: u64) {}
}
