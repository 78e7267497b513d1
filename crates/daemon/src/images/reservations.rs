//! Disk space that is reserved for pulls and builds of images, so that concurrent ones do not count on the same space.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::room::Room;

/// The bytes that are reserved now.
#[derive(Debug, Default)]
pub(crate) struct SpaceReservations {
    bytes: Mutex<u64>,
}

/// Reserves space until it is dropped.
#[derive(Debug)]
#[must_use = "the space is reserved only while this value exists"]
pub(crate) struct SpaceReservation<'p> {
    all: &'p SpaceReservations,
    bytes: u64,
}

impl SpaceReservations {
    /// Reserves space if the disk has it in addition to all reservations. Bytes that other holders have already written count
    /// twice: on a nearly full disk, later requests are refused until earlier ones end.
    pub(crate) fn reserve(&self, room: &Room, bytes: u64) -> Option<SpaceReservation<'_>> {
        let mut all = self.bytes();
        if bytes > 0 && !room.spares(all.saturating_add(bytes)) {
            return None;
        }
        *all = all.saturating_add(bytes);
        Some(SpaceReservation { all: self, bytes })
    }

    /// Whether the disk has space for this many bytes in addition to all reservations.
    pub(crate) fn has_room_for(&self, room: &Room, bytes: u64) -> bool {
        room.spares(self.bytes().saturating_add(bytes))
    }

    fn bytes(&self) -> MutexGuard<'_, u64> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SpaceReservation<'_> {
    fn drop(&mut self) {
        let mut all = self.all.bytes();
        *all = all.saturating_sub(self.bytes);
    }
}
