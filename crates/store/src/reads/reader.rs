//! The threads that reads run on.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::{ReadError, Result, SnapshotSource, StoreSnapshot};

/// Reads that run at the same time.
const THREADS_MAX: usize = 4;
/// Reads that may wait for a thread; more are refused.
pub const READ_QUEUE_MAX: usize = 1_024;
const STACK_BYTES: usize = 512 * 1024;

type QueuedRead = Box<dyn FnOnce(&dyn SnapshotSource) + Send>;

/// Reads snapshots, on its own threads or on the caller's.
///
/// The threads are named `read`. They start on demand, and end when the store rests or the reader is dropped. A read
/// whose caller is gone is skipped. In builds that unwind, a read that panics is an error of its caller.
#[derive(Debug)]
pub struct Reader {
    threads: Arc<ReadThreads>,
}

#[derive(Debug)]
struct ReadThreads {
    source: Box<dyn SnapshotSource>,
    queue: Mutex<ReadQueue>,
    ready: Condvar,
}

#[derive(Default)]
struct ReadQueue {
    jobs: VecDeque<QueuedRead>,
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
    /// Idle threads end.
    resting: bool,
}

impl std::fmt::Debug for ReadQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadQueue").field("jobs", &self.jobs.len()).field("threads", &self.threads).finish()
    }
}

impl Reader {
    pub fn new(source: impl SnapshotSource + 'static) -> Reader {
        let threads =
            ReadThreads { source: Box::new(source), queue: Mutex::default(), ready: Condvar::new() };
        Reader { threads: Arc::new(threads) }
    }

    /// Runs `read` on one snapshot, on a thread of the reader. For callers that must not block.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn StoreSnapshot) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        self.submit(Box::new(move |source| {
            if !answer.is_closed() {
                // A caller that went away meanwhile is no error.
                drop(answer.send(snapshot(source, read).flatten()));
            }
        }))?;
        answered.await.unwrap_or_else(|_| Err(ReadError::failed("the reading code panicked")))
    }

    /// As [`Reader::read`], for a few rows that are found by their keys.
    pub async fn read_few<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn StoreSnapshot) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if self.is_near() { self.here(read) } else { self.read(read).await }
    }

    /// Whether a few rows may be read on an async worker.
    pub fn is_near(&self) -> bool {
        self.threads.source.is_near()
    }

    /// Runs `read` on one snapshot, on this thread, which may block.
    pub fn here<T>(&self, read: impl FnOnce(&dyn StoreSnapshot) -> Result<T>) -> Result<T> {
        snapshot(self.threads.source.as_ref(), read).flatten()
    }

    /// Releases memory that only saves time.
    pub fn rest(&self) {
        self.threads.end_idle_threads();
        self.threads.source.rest();
    }

    fn submit(&self, job: QueuedRead) -> Result<()> {
        let mut queue = self.threads.queue();
        if queue.jobs.len() >= READ_QUEUE_MAX {
            return Err(ReadError::Busy);
        }
        queue.jobs.push_back(job);
        queue.resting = false;
        // A thread that was woken counts as idle until it runs.
        if queue.jobs.len() > queue.idle && queue.threads < THREADS_MAX {
            let threads = self.threads.clone();
            let started = std::thread::Builder::new()
                .name("read".into())
                .stack_size(STACK_BYTES)
                .spawn(move || threads.work());
            match started {
                Ok(_) => queue.threads += 1,
                // Another thread does it later.
                Err(_) if queue.threads > 0 => {}
                Err(cause) => {
                    queue.jobs.pop_back();
                    return Err(ReadError::failed(cause));
                }
            }
        }
        let wake = queue.idle > 0;
        drop(queue);
        if wake {
            self.threads.ready.notify_one();
        }
        Ok(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.threads.end_idle_threads();
    }
}

impl ReadThreads {
    fn queue(&self) -> MutexGuard<'_, ReadQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_idle_threads(&self) {
        self.queue().resting = true;
        self.ready.notify_all();
    }

    /// One thread: reads until there is nothing to read and the reader rests.
    fn work(&self) {
        let mut queue = self.queue();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                // The caller sees that its answer channel closed.
                drop(catch_unwind(AssertUnwindSafe(|| job(self.source.as_ref()))));
                queue = self.queue();
            } else if queue.resting {
                queue.threads -= 1;
                return;
            } else {
                queue.idle += 1;
                queue = self.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            }
        }
    }
}

fn snapshot<T>(source: &dyn SnapshotSource, read: impl FnOnce(&dyn StoreSnapshot) -> T) -> Result<T> {
    let (mut read, mut done) = (Some(read), None);
    source.snapshot(&mut |snapshot| {
        if let Some(read) = read.take() {
            done = Some(read(snapshot));
        }
    })?;
    done.ok_or_else(|| ReadError::failed("the source made no snapshot"))
}
