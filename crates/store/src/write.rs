//! The interface for writing: batches, each on disk as a whole or not at all.

use lodge_core::record::{ResidentIds, StoredState, Write};

/// Why a batch is not known to be on disk.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Rolled back: nothing of it is on disk. It may be tried again when there is room.
    #[error("the disk is full")]
    Full {
        #[source]
        cause: BoxedCause,
    },
    /// The store cannot be reached. It may be unknown whether the batch is on disk, so no caller is answered: the same
    /// batch is retried until the store gives another result.
    #[error("the store cannot be reached")]
    Away {
        #[source]
        cause: BoxedCause,
    },
    /// Another daemon owns the store, and rejects later decisions of this one. If an earlier attempt was
    /// [`WriteError::Away`], the batch may be on disk: then the other daemon has it and continues from it.
    #[error("another daemon owns the store")]
    Fenced {
        #[source]
        cause: BoxedCause,
    },
    /// The disk or the database is in doubt: nothing may be tried again.
    #[error("the database could not be written")]
    Failed {
        #[source]
        cause: BoxedCause,
    },
}

type BoxedCause = Box<dyn std::error::Error + Send + Sync>;

/// The one writer of a store.
pub trait BatchWriter: std::fmt::Debug + Send {
    /// Applies all writes in order, as one: returns when they are on disk.
    ///
    /// After [`WriteError::Away`] the caller gives the same writes again before any others. An implementation that lost its
    /// connection in the middle of a commit then finds out whether they are on disk already, and writes them only if not.
    fn write(&mut self, writes: &[&Write]) -> Result<(), WriteError>;
    /// Everything an engine needs to go on, as it is on disk now, and beside it what is known of `remembered`.
    fn reload(&mut self, epoch: u64, remembered: &ResidentIds) -> Result<StoredState, WriteError>;
    /// Gives back memory that only saves time.
    fn rest(&self);
    /// Makes a limit of the store tighter, so that a test reaches it.
    #[doc(hidden)]
    fn limit(&mut self, _limit: TestLimit) {}
}

#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub enum TestLimit {
    /// The file grows no further, as on a full disk.
    Pages(u32),
    Wal(WalLimits),
}

/// The WAL lengths, in pages, that trigger checkpoints.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct WalLimits {
    /// From here on it is copied back on the side …
    pub checkpoint_pages: u32,
    /// … what was written meanwhile by the writer, when it is no more than this, so that the WAL starts over …
    pub rest_pages: u32,
    /// … and from here on all of it by the writer, which then waits for readers.
    pub restart_pages: u32,
    /// Between two attempts.
    pub stride_pages: u32,
}

/// On disk, flushed. Only the store can build one.
#[derive(Debug)]
#[must_use]
pub struct Committed<T>(T);

impl<T> Committed<T> {
    pub(crate) fn new(value: T) -> Self {
        Committed(value)
    }

    pub fn into_inner(self) -> T {
        self.0
    }
}

/// What was not written, and why. The error says whether any of it can be on disk.
#[derive(Debug)]
pub struct FailedBatch<T> {
    pub error: WriteError,
    pub carried: T,
}

/// Turns written batches into what may leave the daemon.
#[derive(Debug)]
pub struct Writer {
    store: Box<dyn BatchWriter>,
}

impl Writer {
    pub fn new(store: impl BatchWriter + 'static) -> Writer {
        Writer { store: Box::new(store) }
    }

    /// Puts another writer around the store's own.
    pub fn wrap<W: BatchWriter + 'static>(self, wrap: impl FnOnce(Box<dyn BatchWriter>) -> W) -> Writer {
        Writer::new(wrap(self.store))
    }

    /// Applies all writes in order, as one, and returns what was carried once they are on disk.
    pub fn commit<'w, T>(
        &mut self,
        writes: impl IntoIterator<Item = &'w Write>,
        carried: T,
    ) -> Result<Committed<T>, FailedBatch<T>> {
        let writes: Vec<&Write> = writes.into_iter().collect();
        match self.store.write(&writes) {
            Ok(()) => Ok(Committed(carried)),
            Err(error) => Err(FailedBatch { error, carried }),
        }
    }

    /// Everything an engine needs to go on, as it is on disk now, and beside it what is known of `remembered`.
    pub fn reload(&mut self, epoch: u64, remembered: &ResidentIds) -> Result<StoredState, WriteError> {
        self.store.reload(epoch, remembered)
    }

    /// Gives back memory that only saves time.
    pub fn rest(&self) {
        self.store.rest();
    }

    #[doc(hidden)]
    pub fn limit_pages(&mut self, pages: u32) {
        self.store.limit(TestLimit::Pages(pages));
    }

    #[doc(hidden)]
    pub fn limit_wal(&mut self, limits: WalLimits) {
        self.store.limit(TestLimit::Wal(limits));
    }
}
