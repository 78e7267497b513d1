//! The progress of a transfer, for the connection that requested it.
//!
//! A transfer only counts bytes. The connection reads the counts when it has time, and a slow client gets fewer
//! notifications. Neither waits for the other.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lodge_image::Digest;
use lodge_image::oci::Descriptor;
use lodge_image::registry::TransferWatch;
use lodge_proto::{PROGRESS, Progress, ProgressPart, notification_text};
use serde_json::Value;
use tokio::sync::Notify;

/// Between two notifications of one call.
const TELL_EVERY: Duration = Duration::from_millis(100);
/// Parts that are reported. No ordinary image has as many.
const PARTS_MAX: usize = 4_096;
/// Parts of one notification.
const PARTS_TOLD: usize = 256;

/// Where a transfer writes down how far it is.
#[derive(Debug, Default)]
pub(super) struct ProgressBoard {
    state: Mutex<ProgressBoardState>,
    news: Notify,
}

#[derive(Debug, Default)]
struct ProgressBoardState {
    parts: Vec<ProgressPart>,
    places: HashMap<Digest, usize>,
    /// Parts that changed since the last report.
    changed: BTreeSet<usize>,
}

impl ProgressBoard {
    fn state(&self) -> MutexGuard<'_, ProgressBoardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a part down. One that is known may be there by now, or have to be moved after all.
    fn put(&self, digest: Digest, part: ProgressPart) {
        let mut state = self.state();
        let place = match state.places.get(&digest).copied() {
            Some(place) if state.parts[place].there == part.there => return,
            Some(place) => {
                state.parts[place].there = part.there;
                place
            }
            None if state.parts.len() >= PARTS_MAX => return,
            None => {
                let place = state.parts.len();
                state.places.insert(digest, place);
                state.parts.push(part);
                place
            }
        };
        state.changed.insert(place);
        self.news.notify_one();
    }

    /// Runs work and reports its progress meanwhile. `tell` returns whether the notification was sent at once.
    pub async fn during<T>(
        &self,
        id: &Value,
        tell: impl Fn(String) -> SendOutcome,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = std::pin::pin!(work);
        let done = loop {
            tokio::select! {
                biased;
                done = &mut work => break done,
                () = self.news.notified() => self.told(id, &tell),
            }
            tokio::select! {
                biased;
                done = &mut work => break done,
                () = tokio::time::sleep(TELL_EVERY) => {}
            }
        };
        self.told(id, &tell);
        done
    }

    /// Reports what changed since the last time, if anything did.
    fn told(&self, id: &Value, tell: impl Fn(String) -> SendOutcome) {
        let mut state = self.state();
        let places: Vec<usize> = state.changed.iter().take(PARTS_TOLD).copied().collect();
        if places.is_empty() {
            return;
        }
        let parts = places.iter().map(|place| state.parts[*place].clone()).collect();
        let note = notification_text(PROGRESS, &Progress { id: id.clone(), parts });
        if tell(note) == SendOutcome::Yes {
            for place in places {
                state.changed.remove(&place);
            }
        }
        if !state.changed.is_empty() {
            self.news.notify_one();
        }
    }
}

/// Whether a notification went out, or there was no room for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendOutcome {
    Yes,
    NoRoom,
}

impl TransferWatch for ProgressBoard {
    fn planned(&self, part: &Descriptor) {
        self.put(part.digest, shown(part));
    }

    fn there(&self, part: &Descriptor) {
        self.put(part.digest, ProgressPart { done_bytes: part.size, there: true, ..shown(part) });
    }

    fn moved(&self, part: &Digest, bytes: u64) {
        let mut state = self.state();
        let Some(place) = state.places.get(part).copied() else { return };
        let known = &mut state.parts[place];
        if known.done_bytes != bytes {
            known.done_bytes = bytes;
            state.changed.insert(place);
            self.news.notify_one();
        }
    }
}

/// A part of which nothing is moved yet.
fn shown(part: &Descriptor) -> ProgressPart {
    let title = part.title().unwrap_or(&part.media_type);
    // A tool has a part of the same name for each platform.
    let title = match &part.platform {
        Some(platform) => format!("{title} {platform}"),
        None => title.to_owned(),
    };
    ProgressPart {
        digest: part.digest.to_string(),
        title,
        done_bytes: 0,
        total_bytes: part.size,
        there: false,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use lodge_image::oci::{Platform, TITLE};

    use super::*;

    fn part(bytes: &[u8]) -> Descriptor {
        let annotations = [(TITLE.to_owned(), "x".to_owned())].into();
        Descriptor {
            media_type: "text/plain".to_owned(),
            digest: Digest::of(bytes),
            size: bytes.len() as u64,
            artifact_type: None,
            platform: None,
            annotations,
        }
    }

    #[test]
    fn a_part_is_reported_once_per_change_and_again_when_there_was_no_room() {
        let (board, told) = (ProgressBoard::default(), RefCell::new(Vec::new()));
        let look = |sent: SendOutcome| {
            board.told(&Value::from(7), |note| {
                let note: lodge_proto::Notification = serde_json::from_str(&note).unwrap();
                let progress: Progress = serde_json::from_value(note.params).unwrap();
                let shown: Vec<(u64, bool)> =
                    progress.parts.iter().map(|part| (part.done_bytes, part.there)).collect();
                told.borrow_mut().push(shown);
                sent
            });
            std::mem::take(&mut *told.borrow_mut())
        };
        assert_eq!(look(SendOutcome::Yes), Vec::<Vec<_>>::new());
        board.planned(&part(b"abc"));
        board.there(&part(b"de"));
        assert_eq!(look(SendOutcome::NoRoom), [[(0, false), (2, true)]]);
        board.moved(&Digest::of(b"abc"), 1);
        board.moved(&Digest::of(b"abc"), 2);
        assert_eq!(look(SendOutcome::Yes), [[(2, false), (2, true)]]);
        assert_eq!(look(SendOutcome::Yes), Vec::<Vec<_>>::new());
        board.moved(&Digest::of(b"abc"), 2);
        board.moved(&Digest::of(b"of another image"), 9);
        assert_eq!(look(SendOutcome::Yes), Vec::<Vec<_>>::new(), "nothing changed");
        board.moved(&Digest::of(b"abc"), 3);
        assert_eq!(look(SendOutcome::Yes), [[(3, false)]]);
    }

    #[test]
    fn a_part_of_one_platform_says_so_in_its_title() {
        let mut arm = part(b"abc");
        arm.platform = Some(Platform::read("linux/arm64").unwrap());
        assert_eq!([shown(&arm).title, shown(&part(b"de")).title], ["x linux/arm64", "x"]);
    }

    #[test]
    fn a_hostile_number_of_parts_costs_a_bounded_board() {
        let board = ProgressBoard::default();
        for number in 0..PARTS_MAX + 100 {
            board.planned(&part(number.to_string().as_bytes()));
        }
        assert_eq!(board.state().parts.len(), PARTS_MAX);
    }
}
