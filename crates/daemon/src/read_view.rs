//! What one answer is made of: the store as of one commit, and the daemon around it.

use std::ops::Deref;
use std::sync::Arc;

use lodge_proto::ErrorBody;
use lodge_store::{ReadError, StoreSnapshot};

use crate::chain;
use crate::shell::Shell;
use crate::suspects::{self, Watched};

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

/// Boxed at once, so that there is one future for each type of answer and not one for each reading function.
type AnswerRead<T> = Box<dyn FnOnce(&ReadView<'_>) -> Result<T, ErrorBody> + Send>;

impl Shell {
    /// Reads for one answer, off the async workers.
    pub fn read<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&ReadView<'_>) -> Result<T, ErrorBody> + Send + 'static,
    ) -> impl Future<Output = Result<T, ErrorBody>> + Send {
        self.clone().read_boxed(Box::new(read))
    }

    async fn read_boxed<T: Send + 'static>(self: Arc<Self>, read: AnswerRead<T>) -> Result<T, ErrorBody> {
        let (shell, watched) = (self.clone(), suspects::current());
        let read = move |store: &dyn StoreSnapshot| {
            let _mark = watched.as_ref().map(Watched::mark);
            Ok(read(&ReadView { shell: &shell, store }))
        };
        self.reader.read(read).await.map_err(unread)?
    }

    /// As [`Shell::read`], for a few rows that are found by their keys: where the store is near, that is done right here.
    pub async fn read_few<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&ReadView<'_>) -> Result<T, ErrorBody> + Send + 'static,
    ) -> Result<T, ErrorBody> {
        if self.reader.is_near() { self.read_here(read) } else { self.read(read).await }
    }

    /// Reads for one answer on this thread, which may block.
    pub fn read_here<T>(
        &self,
        read: impl FnOnce(&ReadView<'_>) -> Result<T, ErrorBody>,
    ) -> Result<T, ErrorBody> {
        self.reader.here(|store| Ok(read(&ReadView { shell: self, store }))).map_err(unread)?
    }
}

/// Why something could not be read, as callers are told it.
#[expect(clippy::needless_pass_by_value, reason = "it is the argument of map_err")]
pub fn unread(error: ReadError) -> ErrorBody {
    match error {
        ReadError::Busy => ErrorBody::new("daemon.busy", error.to_string()).hint("ask again in a moment"),
        ReadError::Failed { .. } => ErrorBody::new("daemon.internal", error.to_string())
            .because(std::error::Error::source(&error).map(chain).unwrap_or_default()),
    }
}
