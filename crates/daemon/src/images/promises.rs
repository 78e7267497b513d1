//! Disk space that is promised to pulls and builds of images, so that those that begin together do not all count
//! on the same.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::room::Room;

/// What was promised and not given back.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    bytes: Mutex<u64>,
}

/// Room for so many bytes, until this is dropped.
#[derive(Debug)]
#[must_use = "it is promised as long as this is held"]
pub(crate) struct Promise<'p> {
    all: &'p Promises,
    bytes: u64,
}

impl Promises {
    /// Promises room, when none is needed or there is some beside what others were promised. What of that is written by now
    /// is counted twice: on a disk that is nearly full, later requests are refused until the others are done.
    pub(crate) fn make(&self, room: &Room, bytes: u64) -> Option<Promise<'_>> {
        let mut all = self.bytes();
        if bytes > 0 && !room.spares(all.saturating_add(bytes)) {
            return None;
        }
        *all = all.saturating_add(bytes);
        Some(Promise { all: self, bytes })
    }

    /// Whether there is room for so many bytes beside what was promised.
    pub(crate) fn leave(&self, room: &Room, bytes: u64) -> bool {
        room.spares(self.bytes().saturating_add(bytes))
    }

    fn bytes(&self) -> MutexGuard<'_, u64> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        let mut all = self.all.bytes();
        *all = all.saturating_sub(self.bytes);
    }
}
