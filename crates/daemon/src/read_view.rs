//! What one answer is made of: the store as of one commit, and the daemon around it.

use std::ops::Deref;
use std::sync::Arc;

use lodge_proto::ErrorBody;
use lodge_store::{ReadError, StoreSnapshot};

use crate::chain;
use crate::compute::ComputeError;
use crate::shell::Shell;
use crate::suspects::{self, SuspectWatch};

/// One snapshot of the store. Everything that an answer says of the store is read through one of these, so that it never
/// mixes two states.
#[derive(Clone, Copy)]
pub struct ReadView<'a> {
    pub shell: &'a Shell,
    pub store: &'a dyn StoreSnapshot,
}

impl Deref for ReadView<'_> {
    type Target = Shell;

    fn deref(&self) -> &Shell {
        self.shell
    }
}

/// Boxed at once, so that there is one future per type of answer and not one per reading function.
type AnswerRead<T, E> = Box<dyn FnOnce(&ReadView<'_>) -> Result<T, E> + Send>;

/// What a reading function fails with, which the failure of the store itself can be turned into.
pub trait ReadFailure: Send + 'static {
    fn of_store(error: ReadError) -> Self;
}

impl ReadFailure for ErrorBody {
    fn of_store(error: ReadError) -> ErrorBody {
        unread(error)
    }
}

impl ReadFailure for ComputeError {
    fn of_store(error: ReadError) -> ComputeError {
        error.into()
    }
}

impl Shell {
    /// Reads for one answer, off the async workers.
    pub fn read<T: Send + 'static, E: ReadFailure>(
        self: &Arc<Self>,
        read: impl FnOnce(&ReadView<'_>) -> Result<T, E> + Send + 'static,
    ) -> impl Future<Output = Result<T, E>> + Send {
        self.clone().read_boxed(Box::new(read))
    }

    async fn read_boxed<T: Send + 'static, E: ReadFailure>(
        self: Arc<Self>,
        read: AnswerRead<T, E>,
    ) -> Result<T, E> {
        let (shell, watched) = (self.clone(), suspects::current());
        let read = move |store: &dyn StoreSnapshot| {
            let _mark = watched.as_ref().map(SuspectWatch::mark);
            Ok(read(&ReadView { shell: &shell, store }))
        };
        self.reader.read(read).await.map_err(E::of_store)?
    }

    /// As [`Shell::read`], for a few rows that are found by their keys: where the store is near, that is done right here.
    pub async fn read_few<T: Send + 'static, E: ReadFailure>(
        self: &Arc<Self>,
        read: impl FnOnce(&ReadView<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        if self.reader.is_near() { self.read_here(read) } else { self.read(read).await }
    }

    /// Reads for one answer on this thread, which may block.
    pub fn read_here<T, E: ReadFailure>(
        &self,
        read: impl FnOnce(&ReadView<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.reader.here(|store| Ok(read(&ReadView { shell: self, store }))).map_err(E::of_store)?
    }
}

/// The error for callers when a read failed.
#[expect(clippy::needless_pass_by_value, reason = "it is the argument of map_err")]
pub fn unread(error: ReadError) -> ErrorBody {
    let mut body = ErrorBody::new(read_code(&error), error.to_string());
    (body.data.cause, body.data.hint) = (read_cause(&error), read_hint(&error));
    body
}

/// Stable, documented, never reused.
pub fn read_code(error: &ReadError) -> &'static str {
    match error {
        ReadError::Busy => "daemon.busy",
        ReadError::Failed { .. } => "daemon.internal",
    }
}

pub fn read_cause(error: &ReadError) -> Option<String> {
    match error {
        ReadError::Busy => None,
        ReadError::Failed { .. } => Some(std::error::Error::source(error).map(chain).unwrap_or_default()),
    }
}

/// What to do next.
pub fn read_hint(error: &ReadError) -> Option<String> {
    match error {
        ReadError::Busy => Some("try again in a moment".to_owned()),
        ReadError::Failed { .. } => None,
    }
}
