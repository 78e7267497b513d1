//! Which work this daemon computes right now, kept where the next daemon finds it.
//!
//! Work that kills the daemon is given to the next one, and would kill that one too. So all work that the daemon
//! computes itself is marked in a small file meanwhile. The file is mapped: a mark is one store to memory, and survives
//! any end of the process. After a power loss the file is ignored.
//!
//! Only computing is marked, not waiting: a future is marked while it is polled ([`SuspectWatch::watch`]), a closure while it
//! runs ([`carry`]). A daemon that is killed from outside at some moment is hardly ever caught with a mark, and one such
//! death says nothing: see [`record::judge`].

mod file;
mod record;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::future::poll_fn;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use lodge_core::quarantine::{Suspect, Work, WorkKind};

use self::file::SuspectFile;
use self::record::{DaemonAge, SLOTS, SlotRecord};

/// The work that is computed now, and the quarantined requests.
#[derive(Debug)]
pub struct Suspects {
    shared: Arc<SharedSuspects>,
    refused: Mutex<HashSet<String>>,
}

#[derive(Debug)]
struct SharedSuspects {
    /// Absent where there is no room for it: then nothing is marked.
    file: Option<SuspectFile>,
    slots: Mutex<SuspectSlots>,
}

#[derive(Debug)]
struct SuspectSlots {
    free: BTreeSet<usize>,
    used: HashMap<Work, SuspectSlot>,
}

#[derive(Debug)]
struct SuspectSlot {
    at: usize,
    /// How many watch this work now.
    watchers: usize,
    /// The work was computed when earlier daemons died: its slot is kept while it is not watched.
    is_counted: bool,
}

impl Suspects {
    /// Reads the file of the last daemon in `dir` and starts over. Returns the work to quarantine.
    pub fn open(dir: &Path, boot: &str) -> (Suspects, Vec<Suspect>) {
        let kept =
            file::read(&dir.join(file::NAME)).map(|bytes| record::judge(&bytes, boot)).unwrap_or_default();
        let convicted: Vec<Suspect> =
            kept.iter().filter(|suspect| record::is_convicted(suspect)).cloned().collect();
        let file = match SuspectFile::create(&dir.join(file::NAME), boot) {
            Ok(file) => Some(file),
            Err(error) => {
                tracing::warn!(event = "suspects.not_kept", error = crate::chain(&error));
                None
            }
        };
        let mut slots = SuspectSlots { free: (0..SLOTS).collect(), used: HashMap::new() };
        for suspect in kept {
            slots.put(file.as_ref(), &suspect);
        }
        let shared = Arc::new(SharedSuspects { file, slots: Mutex::new(slots) });
        *NEWEST.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&shared);
        let suspects = Suspects { shared, refused: Mutex::default() };
        for suspect in convicted.iter().filter(|suspect| suspect.work.kind == WorkKind::Request) {
            suspects.refuse(&suspect.work.subject);
        }
        (suspects, convicted)
    }

    /// Marks nothing.
    pub fn unrecorded() -> Suspects {
        let slots = SuspectSlots { free: BTreeSet::new(), used: HashMap::new() };
        let shared = Arc::new(SharedSuspects { file: None, slots: Mutex::new(slots) });
        Suspects { shared, refused: Mutex::default() }
    }

    /// Watches work from here on. Nothing is marked before it is computed.
    pub fn begin(&self, kind: WorkKind, subject: &str, detail: &str) -> SuspectWatch {
        let work = Work { kind, subject: subject.to_owned() };
        let at = self.shared.slots().begin(self.shared.file.as_ref(), &work, detail);
        SuspectWatch(Arc::new(WorkWatch { shared: self.shared.clone(), work, at }))
    }

    /// The daemon has lived long enough: its death from here on says nothing about what it computes.
    pub fn settle(&self) {
        self.set_age(DaemonAge::Settled);
    }

    /// The daemon ends on request.
    pub fn close(&self) {
        self.set_age(DaemonAge::Closed);
    }

    fn set_age(&self, age: DaemonAge) {
        if let Some(file) = &self.shared.file {
            file.age().store(age.code(), Ordering::Release);
        }
        self.shared.slots().forget_counts(self.shared.file.as_ref());
    }

    /// The quarantine or the release of the work is recorded: earlier deaths no longer count.
    pub fn decided(&self, work: &Work, is_aside: bool) {
        self.shared.slots().forget_count(self.shared.file.as_ref(), work);
        if work.kind == WorkKind::Request {
            match is_aside {
                true => self.refuse(&work.subject),
                false => drop(self.refused().remove(&work.subject)),
            }
        }
    }

    /// Whether requests with this digest are set aside.
    pub fn refuses(&self, digest: &str) -> bool {
        let refused = self.refused();
        !refused.is_empty() && refused.contains(digest)
    }

    pub fn refuse(&self, digest: &str) {
        self.refused().insert(digest.to_owned());
    }

    fn refused(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedSuspects {
    fn slots(&self) -> std::sync::MutexGuard<'_, SuspectSlots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn absolve(&self) {
        if let Some(file) = &self.file {
            file.age().store(DaemonAge::Closed.code(), Ordering::Release);
        }
    }
}

impl SuspectSlots {
    /// The slot of work that is watched now; none where all are taken.
    fn begin(&mut self, file: Option<&SuspectFile>, work: &Work, detail: &str) -> Option<usize> {
        if let Some(slot) = self.used.get_mut(work) {
            slot.watchers += 1;
            return Some(slot.at);
        }
        let record = SlotRecord::new(work, detail, 0)?;
        let at = self.free.pop_first()?;
        file?.write(at, &record);
        self.used.insert(work.clone(), SuspectSlot { at, watchers: 1, is_counted: false });
        Some(at)
    }

    fn end(&mut self, file: Option<&SuspectFile>, work: &Work) {
        let Some(slot) = self.used.get_mut(work) else { return };
        slot.watchers = slot.watchers.saturating_sub(1);
        if slot.watchers == 0 && !slot.is_counted {
            self.clear(file, work);
        }
    }

    /// Keeps the count of an earlier daemon's work.
    fn put(&mut self, file: Option<&SuspectFile>, suspect: &Suspect) {
        let Suspect { work, detail, deaths } = suspect;
        let Some(record) = SlotRecord::new(work, detail, *deaths) else { return };
        let Some(at) = self.free.pop_first() else { return };
        if let Some(file) = file {
            file.write(at, &record);
        }
        self.used.insert(work.clone(), SuspectSlot { at, watchers: 0, is_counted: true });
    }

    fn forget_count(&mut self, file: Option<&SuspectFile>, work: &Work) {
        let Some(slot) = self.used.get_mut(work) else { return };
        slot.is_counted = false;
        if let Some(file) = file {
            file.deaths(slot.at).store(0, Ordering::Release);
        }
        if slot.watchers == 0 {
            self.clear(file, work);
        }
    }

    fn forget_counts(&mut self, file: Option<&SuspectFile>) {
        let counted = self.used.iter().filter(|(_, slot)| slot.is_counted);
        let counted: Vec<Work> = counted.map(|(work, _)| work.clone()).collect();
        counted.iter().for_each(|work| self.forget_count(file, work));
    }

    fn clear(&mut self, file: Option<&SuspectFile>, work: &Work) {
        if let Some(slot) = self.used.remove(work) {
            if let Some(file) = file {
                file.clear(slot.at);
            }
            self.free.insert(slot.at);
        }
    }
}

/// Work that is watched for as long as this or a clone of it is there.
#[derive(Debug, Clone)]
pub struct SuspectWatch(Arc<WorkWatch>);

#[derive(Debug)]
struct WorkWatch {
    shared: Arc<SharedSuspects>,
    work: Work,
    at: Option<usize>,
}

impl Drop for WorkWatch {
    fn drop(&mut self) {
        if self.at.is_some() {
            self.shared.slots().end(self.shared.file.as_ref(), &self.work);
        }
    }
}

impl WorkWatch {
    fn computing(&self) -> Option<&std::sync::atomic::AtomicU32> {
        Some(self.shared.file.as_ref()?.computing(self.at?))
    }
}

impl SuspectWatch {
    /// Marks the work until the guard is dropped, on this thread.
    pub fn mark(&self) -> Mark {
        if let Some(computing) = self.0.computing() {
            computing.fetch_add(1, Ordering::AcqRel);
        }
        HERE.with_borrow_mut(|here| here.push(self.clone()));
        Mark(())
    }

    /// Marks the work whenever the future is polled: while it waits, nothing is computed.
    pub async fn watch<F: Future>(&self, future: F) -> F::Output {
        // A future that was moved in here would have its room twice.
        let mut future = Box::pin(future);
        poll_fn(|context| {
            let _mark = self.mark();
            future.as_mut().poll(context)
        })
        .await
    }
}

/// Work is marked while this is there.
#[derive(Debug)]
pub struct Mark(());

impl Drop for Mark {
    fn drop(&mut self) {
        // Guards end in the reverse order of their beginning, on the thread where they began.
        let ended = HERE.with_borrow_mut(Vec::pop);
        if let Some(computing) = ended.as_ref().and_then(|watched| watched.0.computing()) {
            computing.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

thread_local! {
    /// What this thread computes, the innermost last.
    static HERE: RefCell<Vec<SuspectWatch>> = const { RefCell::new(Vec::new()) };
}

/// What this thread computes now.
pub fn current() -> Option<SuspectWatch> {
    HERE.with_borrow(|here| here.last().cloned())
}

/// Work for another thread, which counts there as what this thread computes.
pub fn carry<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let watched = current();
    move || {
        let _mark = watched.as_ref().map(SuspectWatch::mark);
        work()
    }
}

/// A future for another task, which counts there as what this thread computes.
pub fn follow<T>(future: impl Future<Output = T>) -> impl Future<Output = T> {
    let watched = current();
    async move {
        match watched {
            Some(watched) => watched.watch(future).await,
            None => future.await,
        }
    }
}

/// The marks of the daemon that this process is, for [`absolve`].
static NEWEST: Mutex<Weak<SharedSuspects>> = Mutex::new(Weak::new());

/// What is about to end the process is not what any thread computes.
pub fn absolve() {
    if let Some(shared) = NEWEST.lock().unwrap_or_else(PoisonError::into_inner).upgrade() {
        shared.absolve();
    }
}

#[cfg(test)]
mod tests;
