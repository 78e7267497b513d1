//! A client that stays attached through every death of the daemon, and keeps the events that it received.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lodge_proto::client::{Client, ClientError, Target};
use lodge_proto::{AttachClient, AttachParams, Event};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::report::BrokenPromise;

/// Between two attempts to reach a daemon that may not be there.
const RECONNECT: Duration = Duration::from_millis(3);

/// Follows all events from the first one on, until it is dropped.
#[derive(Debug)]
pub struct EventFollower {
    shared: Arc<FollowerState>,
    /// Ends when it is dropped.
    _task: JoinSet<()>,
}

#[derive(Debug, Default)]
struct FollowerState {
    saw: Mutex<FollowedEvents>,
    head: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct FollowedEvents {
    events: Vec<Event>,
    cursor: u64,
    broken: Vec<(BrokenPromise, String)>,
}

impl EventFollower {
    /// Must be called within a runtime.
    pub fn start(target: Target, token: String) -> EventFollower {
        let shared: Arc<FollowerState> = Arc::default();
        let mut task = JoinSet::new();
        task.spawn(follow(shared.clone(), target, token));
        EventFollower { shared, _task: task }
    }

    /// Looks at every event so far.
    pub fn with<T>(&self, look: impl FnOnce(&[Event]) -> T) -> T {
        look(&self.shared.lock().events)
    }

    /// How many events there were so far.
    pub fn count(&self) -> usize {
        self.with(<[Event]>::len)
    }

    /// Whether one of the events after the first `from` is one that is looked for.
    pub fn any(&self, from: usize, is: impl Fn(&Event) -> bool) -> bool {
        self.with(|events| events.iter().skip(from).any(is))
    }

    /// Waits until an event after the first `from` is one that is looked for; false when none came in time.
    pub async fn wait_for(&self, from: usize, within: Duration, is: impl Fn(&Event) -> bool) -> bool {
        let mut head = self.shared.head.subscribe();
        let look = async {
            while !self.any(from, &is) {
                if head.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(within, look).await.is_ok()
    }

    pub fn cursor(&self) -> u64 {
        self.shared.lock().cursor
    }

    /// What went wrong while following, once.
    pub fn take_broken(&self) -> Vec<(BrokenPromise, String)> {
        std::mem::take(&mut self.shared.lock().broken)
    }
}

impl FollowerState {
    fn lock(&self) -> std::sync::MutexGuard<'_, FollowedEvents> {
        self.saw.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn broke(&self, broken: BrokenPromise, what: String) {
        self.lock().broken.push((broken, what));
    }

    fn saw(&self, event: Event) {
        let mut saw = self.lock();
        let (seq, cursor) = (event.seq, saw.cursor);
        if seq > cursor + 1 {
            saw.broken.push((BrokenPromise::EventMissed, format!("after event {cursor} came {seq}")));
        }
        if seq <= cursor {
            saw.broken
                .push((BrokenPromise::EventDoubled, format!("after event {cursor} came {seq}: {event:?}")));
        }
        saw.cursor = cursor.max(seq);
        saw.events.push(event);
        drop(saw);
        self.head.send_replace(seq);
    }
}

async fn follow(shared: Arc<FollowerState>, target: Target, token: String) {
    let mut log: Option<String> = None;
    loop {
        let Ok(mut client) = Client::connect(&target, &token).await else {
            tokio::time::sleep(RECONNECT).await;
            continue;
        };
        let since = shared.lock().cursor;
        let wanted =
            AttachParams { all: true, since: Some(since), log: log.clone(), ..AttachParams::default() };
        match client.call::<AttachClient>(&wanted).await {
            Ok(attached) if attached.seq == since => log = Some(attached.log),
            Ok(attached) => {
                return shared.broke(
                    BrokenPromise::EventMissed,
                    format!("attached at {since}, told {}", attached.seq),
                );
            }
            // A log that is shorter than the events that we received lost a published event.
            Err(ClientError::Refused(body)) => {
                return shared.broke(BrokenPromise::Lost, format!("the log at {since}: {}", body.message));
            }
            Err(_) => continue,
        }
        while let Ok(note) = client.next().await {
            if note.method != "event" {
                continue;
            }
            match serde_json::from_value(note.params) {
                Ok(event) => shared.saw(event),
                Err(error) => {
                    shared.broke(BrokenPromise::Wrong, format!("an event that cannot be read: {error}"))
                }
            }
        }
    }
}
