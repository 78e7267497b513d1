//! Work that needs a processor for longer than a moment: checks against schemas, large JSON, assembled conversations.
//!
//! It runs on a few separate threads, so that the async workers stay free. Callers share those threads by the size of
//! their work: the caller that used the least goes first, and a large piece of work delays only its own caller.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;
use tokio::task::JoinError;

use lodge_store::ReadError;

use crate::read_view::{read_cause, read_code, read_hint};
use crate::shell::ShuttingDown;
use crate::suspects::carry;

/// Pieces of work that run at once: as many as there are async workers.
const RUNNING_MAX: usize = 2;
/// Pieces of work that may wait; more are refused.
const WAITING_MAX: usize = 4_096;
/// The least that a piece of work counts, in bytes: starting a thread is not free either.
const WEIGHT_MIN: u64 = 4_096;

/// The threads for such work, shared fairly between callers.
#[derive(Debug, Default)]
pub struct Compute {
    shares: Mutex<FairShares<oneshot::Sender<()>>>,
}

/// The additional weight of a piece of work, beyond the announced one.
#[derive(Debug, Default)]
pub struct Charge(AtomicU64);

impl Charge {
    pub fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Why a piece of work was not done.
#[derive(Debug, thiserror::Error)]
pub enum ComputeError {
    #[error("{WAITING_MAX} pieces of work wait for a processor")]
    Crowded,
    #[error(transparent)]
    ShuttingDown(#[from] ShuttingDown),
    #[error(transparent)]
    Thread(#[from] JoinError),
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl ComputeError {
    /// Stable, documented, never reused.
    pub fn code(&self) -> &'static str {
        match self {
            ComputeError::Crowded => "daemon.busy",
            ComputeError::ShuttingDown(error) => error.code(),
            ComputeError::Thread(_) => "daemon.internal",
            ComputeError::Read(error) => read_code(error),
        }
    }

    /// Why, where something else is to blame.
    pub fn cause(&self) -> Option<String> {
        match self {
            ComputeError::ShuttingDown(error) => error.cause(),
            ComputeError::Read(error) => read_cause(error),
            ComputeError::Crowded | ComputeError::Thread(_) => None,
        }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        match self {
            ComputeError::Crowded => Some("try again in a moment".to_owned()),
            ComputeError::ShuttingDown(error) => error.hint(),
            ComputeError::Read(error) => read_hint(error),
            ComputeError::Thread(_) => None,
        }
    }
}

impl Compute {
    /// Runs `work` off the async workers, charged to `caller` as `bytes` and what it adds itself. It runs to its end
    /// even if the caller is gone.
    pub async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        caller: &str,
        bytes: usize,
        work: impl FnOnce(&Charge) -> T + Send + 'static,
    ) -> Result<T, ComputeError> {
        let waits = self.shares().begin(caller, bytes as u64).map_err(|ComputeBusy| ComputeError::Crowded)?;
        // From here on the place is given back however this future ends.
        let mut place = ComputeSlot { compute: self.clone(), caller: caller.to_owned(), waits };
        if let Some(granted) = &mut place.waits {
            granted.await.map_err(|_| ShuttingDown)?;
            place.waits = None;
        }
        let worked = tokio::task::spawn_blocking(carry(move || {
            let charge = Charge::default();
            let done = work(&charge);
            place.compute.shares().charge(&place.caller, charge.0.into_inner());
            drop(place);
            done
        }));
        Ok(worked.await?)
    }

    fn shares(&self) -> std::sync::MutexGuard<'_, FairShares<oneshot::Sender<()>>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among those that run, or that wait to.
struct ComputeSlot {
    compute: Arc<Compute>,
    caller: String,
    /// Until it runs.
    waits: Option<oneshot::Receiver<()>>,
}

impl Drop for ComputeSlot {
    fn drop(&mut self) {
        let mut shares = self.compute.shares();
        // One that is dropped while it waits is passed over when its turn comes, unless it came just now.
        let mut free = self.waits.as_mut().is_none_or(|waits| {
            waits.close();
            waits.try_recv().is_ok()
        });
        while std::mem::replace(&mut free, false) {
            let Some(next) = shares.end() else { return };
            free = next.send(()).is_err();
        }
    }
}

impl FairShares<oneshot::Sender<()>> {
    fn begin(&mut self, caller: &str, bytes: u64) -> Result<Option<oneshot::Receiver<()>>, ComputeBusy> {
        let (grant, granted) = oneshot::channel();
        Ok(self.enter(caller, bytes, grant)?.then_some(granted))
    }
}

/// Too many wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ComputeBusy;

/// Start-time fair queueing: each piece of work has a virtual start, the later of now and the end of its caller's last
/// one, and ends its weight later. The earliest start goes first.
#[derive(Debug)]
struct FairShares<T> {
    running: usize,
    waiting: usize,
    /// The virtual time: the start of the piece of work that began last.
    now: u64,
    callers: BTreeMap<String, CallerShare<T>>,
}

#[derive(Debug)]
struct CallerShare<T> {
    /// When its last piece of work ends.
    end: u64,
    waiting: VecDeque<(u64, T)>,
}

impl<T> Default for FairShares<T> {
    fn default() -> Self {
        FairShares { running: 0, waiting: 0, now: 0, callers: BTreeMap::new() }
    }
}

impl<T> FairShares<T> {
    /// False: it runs now. True: `waiter` is given back by [`Self::end`] when its turn comes.
    fn enter(&mut self, caller: &str, bytes: u64, waiter: T) -> Result<bool, ComputeBusy> {
        if self.waiting >= WAITING_MAX {
            return Err(ComputeBusy);
        }
        let now = self.now;
        let known = match self.callers.get_mut(caller) {
            Some(known) => known,
            None => self
                .callers
                .entry(caller.to_owned())
                .or_insert_with(|| CallerShare { end: 0, waiting: VecDeque::new() }),
        };
        let start = known.end.max(now);
        known.end = start.saturating_add(bytes.max(WEIGHT_MIN));
        if self.running < RUNNING_MAX {
            self.running += 1;
            self.now = start;
            return Ok(false);
        }
        known.waiting.push_back((start, waiter));
        self.waiting += 1;
        Ok(true)
    }

    /// Work weighed more than it was announced with.
    fn charge(&mut self, caller: &str, bytes: u64) {
        if let Some(known) = self.callers.get_mut(caller) {
            known.end = known.end.saturating_add(bytes);
        }
    }

    /// A piece of work ended; the next one runs from now on, if one waits.
    fn end(&mut self) -> Option<T> {
        self.running -= 1;
        let first = |caller: &CallerShare<T>| caller.waiting.front().map(|(start, _)| *start);
        let next = self.callers.values_mut().filter(|caller| !caller.waiting.is_empty());
        let Some((start, waiter)) =
            next.min_by_key(|caller| first(caller)).and_then(|caller| caller.waiting.pop_front())
        else {
            if self.running == 0 {
                // No caller has used more than another.
                self.callers.clear();
            }
            return None;
        };
        self.waiting -= 1;
        self.running += 1;
        self.now = self.now.max(start);
        let now = self.now;
        self.callers.retain(|_, caller| !caller.waiting.is_empty() || caller.end > now);
        Some(waiter)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test owns its tasks by their handles")]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// All waiting work, in the order of execution.
    fn order(shares: &mut FairShares<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| shares.end()).collect()
    }

    #[test]
    fn small_work_of_one_caller_does_not_wait_behind_all_the_large_work_of_another() {
        let mut shares = FairShares::default();
        for _ in 0..RUNNING_MAX {
            assert_eq!(shares.enter("big", 8 * MIB, "big"), Ok(false));
        }
        for name in ["big 1", "big 2", "big 3"] {
            assert_eq!(shares.enter("big", 8 * MIB, name), Ok(true));
        }
        for name in ["small 1", "small 2"] {
            assert_eq!(shares.enter("small", 100, name), Ok(true));
        }
        assert_eq!(order(&mut shares), ["small 1", "small 2", "big 1", "big 2", "big 3"]);
    }

    #[test]
    fn callers_with_equal_work_alternate() {
        let mut shares = FairShares::default();
        for _ in 0..RUNNING_MAX {
            assert_eq!(shares.enter("other", MIB, "other"), Ok(false));
        }
        for (caller, name) in [("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2")] {
            assert_eq!(shares.enter(caller, MIB, name), Ok(true));
        }
        assert_eq!(order(&mut shares), ["a1", "b1", "a2", "b2"]);
    }

    #[test]
    fn what_work_turns_out_to_weigh_counts_for_the_next_of_its_caller() {
        let mut shares = FairShares::default();
        assert_eq!(shares.enter("a", 1, "a"), Ok(false));
        assert_eq!(shares.enter("b", 1, "b"), Ok(false));
        shares.charge("a", MIB);
        assert_eq!(shares.enter("a", 1, "a1"), Ok(true));
        assert_eq!(shares.enter("b", 1, "b1"), Ok(true));
        assert_eq!(order(&mut shares), ["b1", "a1"]);
    }

    #[test]
    fn too_many_are_refused_and_nobody_is_remembered_once_all_is_done() {
        let mut shares = FairShares::default();
        for at in 0..RUNNING_MAX + WAITING_MAX {
            assert_eq!(shares.enter("a", 1, "a"), Ok(at >= RUNNING_MAX));
        }
        assert_eq!(shares.enter("b", 1, "b"), Err(ComputeBusy));
        for _ in 0..RUNNING_MAX + WAITING_MAX {
            shares.end();
        }
        assert_eq!((shares.running, shares.waiting, shares.callers.len()), (0, 0, 0));
        assert_eq!(shares.enter("b", 1, "b"), Ok(false));
    }

    #[tokio::test]
    async fn a_place_is_given_back_however_the_work_ends() {
        let compute: Arc<Compute> = Arc::default();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (running, mut runs) = tokio::sync::mpsc::channel(RUNNING_MAX);
        let released = Arc::new(Mutex::new(released));
        let blocked = |compute: Arc<Compute>| {
            let (released, running) = (released.clone(), running.clone());
            tokio::spawn(async move {
                let work = move |_: &Charge| {
                    assert!(running.blocking_send(()).is_ok());
                    assert!(released.lock().unwrap().recv().is_err(), "nothing is sent, only let go");
                };
                compute.run("a", 1, work).await
            })
        };
        let all: Vec<_> = (0..RUNNING_MAX).map(|_| blocked(compute.clone())).collect();
        for _ in 0..RUNNING_MAX {
            runs.recv().await;
        }
        // One that waits is given up; the one behind it still has its turn.
        let given_up = compute.run("b", 1, |_| ());
        let mut given_up = Box::pin(given_up);
        assert!(futures_util::poll!(&mut given_up).is_pending());
        let mut behind = Box::pin(compute.run("c", 1, |_| 7));
        assert!(futures_util::poll!(&mut behind).is_pending());
        drop(given_up);
        drop(release);
        for one in all {
            one.await.unwrap().unwrap();
        }
        assert_eq!(behind.await.unwrap(), 7);
        assert_eq!(compute.run("d", 1, |_| 8).await.unwrap(), 8);
    }
}
