//! `output.db`, opened when it is needed first: a daemon without jobs has none.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lodge_store::{OutputOpenError, OutputReads, OutputStore, OutputWriter};

use crate::chain;
use crate::shell::now;

#[derive(Debug)]
pub struct ArchiveDb {
    dir: PathBuf,
    state: Mutex<OutputDbState>,
}

#[derive(Debug)]
struct OutputDbState {
    opened: DbOpenState,
    /// What a person should know of it.
    trouble: Vec<String>,
}

#[derive(Debug)]
enum DbOpenState {
    NotYet,
    /// The writer takes the store, once.
    Open {
        store: Option<Box<dyn OutputWriter>>,
        reader: Arc<dyn OutputReads>,
    },
    /// Until the next daemon.
    Failed,
}

/// Why the archive cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveOpenError {
    /// For want of room: later, perhaps.
    Full,
    Failed,
}

impl ArchiveDb {
    pub fn new(dir: &Path) -> ArchiveDb {
        ArchiveDb {
            dir: dir.to_owned(),
            state: Mutex::new(OutputDbState { opened: DbOpenState::NotYet, trouble: Vec::new() }),
        }
    }

    /// What reads the archive. None: nothing was ever archived.
    pub fn reader(&self) -> Result<Option<Arc<dyn OutputReads>>, ArchiveOpenError> {
        let mut state = self.state();
        if matches!(state.opened, DbOpenState::NotYet) {
            if !self.dir.join("output.db").exists() {
                return Ok(None);
            }
            self.open(&mut state)?;
        }
        match &state.opened {
            DbOpenState::Open { reader, .. } => Ok(Some(reader.clone())),
            DbOpenState::NotYet | DbOpenState::Failed => Err(ArchiveOpenError::Failed),
        }
    }

    /// What writes the archive, which is made if there is none. For one caller: there is one store.
    pub fn store(&self) -> Result<Box<dyn OutputWriter>, ArchiveOpenError> {
        let mut state = self.state();
        if matches!(state.opened, DbOpenState::NotYet) {
            self.open(&mut state)?;
        }
        match &mut state.opened {
            DbOpenState::Open { store, .. } => store.take().ok_or(ArchiveOpenError::Failed),
            DbOpenState::NotYet | DbOpenState::Failed => Err(ArchiveOpenError::Failed),
        }
    }

    fn open(&self, state: &mut OutputDbState) -> Result<(), ArchiveOpenError> {
        match OutputStore::open(&self.dir, now()) {
            Ok(opened) => {
                if let Some(aside) = opened.set_aside {
                    let to = aside.to.display();
                    tracing::error!(event = "archive.set_aside", %to, why = aside.why);
                    state.trouble.push(format!(
                        "job output: output.db was damaged and lies in {to}; a new one was begun"
                    ));
                }
                state.opened = DbOpenState::Open {
                    store: Some(Box::new(opened.store)),
                    reader: Arc::new(opened.reader),
                };
                Ok(())
            }
            Err(OutputOpenError::Full { .. }) => Err(ArchiveOpenError::Full),
            Err(error) => {
                let (why, hint) = (chain(&error), error.hint());
                tracing::error!(event = "archive.not_opened", code = error.code(), error = why, hint);
                state.trouble.push(format!("job output: {why}; it stays in the files of its jobs ({hint})"));
                state.opened = DbOpenState::Failed;
                Err(ArchiveOpenError::Failed)
            }
        }
    }

    /// Nothing more can be written until the next daemon; what is there can be read.
    pub fn broke(&self, why: &str, hint: &str) {
        tracing::error!(event = "archive.failed", error = why, hint);
        let told = format!("job output: {why}; it stays in the files of its jobs ({hint})");
        self.state().trouble.push(told);
    }

    /// Gives back what only saves time.
    pub fn rest(&self) {
        match &self.state().opened {
            DbOpenState::Open { reader, .. } => reader.rest(),
            DbOpenState::NotYet | DbOpenState::Failed => {}
        }
    }

    pub fn trouble(&self) -> Vec<String> {
        self.state().trouble.clone()
    }

    fn state(&self) -> MutexGuard<'_, OutputDbState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
