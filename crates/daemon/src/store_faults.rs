//! A store that fails as a remote one can, so that a test can show what the daemon does about it. Only in debug builds.
//!
//! `LODGED_STORE_FAULT` names a file. What is in it holds for every write until the file changes: `away`, `unsure` (away, but
//! the batch was written), `fenced`, or nothing.

use std::path::PathBuf;

use lodge_core::record::{ResidentIds, StoredState, Write};
use lodge_store::{BatchWriter, WriteError, Writer};

/// The writer with faults, if a test asks a debug build for them.
pub fn with_faults(writer: Writer) -> Writer {
    match std::env::var_os("LODGED_STORE_FAULT").filter(|_| cfg!(debug_assertions)) {
        Some(path) => writer.wrap(|store| FaultyStore { store, path: path.into(), unsure: false }),
        None => writer,
    }
}

#[derive(Debug)]
struct FaultyStore {
    store: Box<dyn BatchWriter>,
    path: PathBuf,
    /// The batch that is given next is on disk already.
    unsure: bool,
}

impl BatchWriter for FaultyStore {
    fn write(&mut self, writes: &[&Write]) -> Result<(), WriteError> {
        let fault = std::fs::read_to_string(&self.path).unwrap_or_default();
        match fault.trim() {
            "away" => Err(WriteError::Away { cause: "a test cut the connection".into() }),
            "unsure" => {
                if !std::mem::replace(&mut self.unsure, true) {
                    self.store.write(writes)?;
                }
                Err(WriteError::Away { cause: "a test cut the connection after the commit".into() })
            }
            "fenced" => Err(WriteError::Fenced { cause: "a test gave the store to another daemon".into() }),
            // By the batch number a real store recognizes that it has this batch.
            _ if std::mem::take(&mut self.unsure) => Ok(()),
            _ => self.store.write(writes),
        }
    }

    fn reload(&mut self, epoch: u64, remembered: &ResidentIds) -> Result<StoredState, WriteError> {
        self.store.reload(epoch, remembered)
    }

    fn rest(&self) {
        self.store.rest();
    }
}
