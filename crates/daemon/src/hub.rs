//! Events for subscribers: a ring of the newest events, the head of the log, live text and live output.
//!
//! A subscriber is a cursor, not a queue: it is woken when the head moves, and reads pages from the ring or from the store.
//! Only committed events are published.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use lodge_core::record::EventRow;
use lodge_proto::{Delta, Output};
use lodge_store::{ReadError, Reader, StoreSnapshot};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, broadcast, watch};

/// Events kept in memory for subscribers that keep up.
const RING_MAX: usize = 512;
/// The most bytes of these events. One event can contain a complete answer.
const RING_BYTES_MAX: usize = 16 << 20;
/// Live notices that may wait for a slow client before it misses some.
const LIVE_MAX: usize = 1_024;
/// How long the publication of committed events may take.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(1);
/// Events read at once.
pub const PAGE: u32 = 256;

/// A page of events, and the cursor after it.
type EventsAfter = (Vec<Arc<EventRow>>, u64);

#[derive(Debug)]
pub struct Hub {
    ring: RwLock<Ring>,
    head: watch::Sender<u64>,
    published: Notify,
    live: broadcast::Sender<Arc<LiveNotice>>,
}

/// The newest events, in order and without gaps.
#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<Arc<EventRow>>,
    bytes: usize,
}

impl Ring {
    /// Adds an event, and drops the oldest ones over the limits.
    fn push(&mut self, event: EventRow) {
        self.bytes += event.body.weight();
        self.events.push_back(Arc::new(event));
        while self.events.len() > RING_MAX || self.bytes > RING_BYTES_MAX {
            let Some(oldest) = self.events.pop_front() else { return };
            self.bytes -= oldest.body.weight();
        }
    }
}

/// A notice that is sent at once, without a sequence number, and never replayed.
#[derive(Debug)]
pub enum LiveNotice {
    Delta(Delta),
    Output(Output),
}

/// The events that a subscriber wants.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    pub stream: Option<String>,
    pub session: Option<String>,
    pub job: Option<String>,
    pub kind: Option<String>,
}

impl EventFilter {
    pub fn takes(&self, event: &EventRow) -> bool {
        self.stream.as_ref().is_none_or(|stream| *stream == event.stream)
            && self.session.as_ref().is_none_or(|session| event.body.session() == Some(session))
            && self.job.as_ref().is_none_or(|job| event.body.job() == Some(job))
            && self.kind.as_ref().is_none_or(|kind| event.body.kind().word() == kind)
    }

    pub fn takes_live(&self, live: &LiveNotice) -> bool {
        let (agent, session, job) = match live {
            LiveNotice::Delta(delta) => (&delta.agent, Some(&delta.session), None),
            LiveNotice::Output(output) => (&output.agent, output.session.as_ref(), Some(&output.job)),
        };
        let fits = |wanted: &Option<String>, is: Option<&String>| wanted.is_none() || wanted.as_ref() == is;
        self.kind.is_none()
            && fits(&self.stream, Some(agent))
            && fits(&self.session, session)
            && fits(&self.job, job)
    }
}

impl Hub {
    pub fn new(head: u64) -> Self {
        Hub {
            ring: RwLock::default(),
            head: watch::Sender::new(head),
            published: Notify::new(),
            live: broadcast::Sender::new(LIVE_MAX),
        }
    }

    /// Publishes committed events, in order.
    pub fn publish(&self, events: Vec<EventRow>) {
        let Some(last) = events.last().map(|event| event.seq) else { return };
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        events.into_iter().for_each(|event| ring.push(event));
        drop(ring);
        self.head.send_replace(last);
        self.published.notify_waiters();
    }

    /// Frees the ring. Subscribers read older events from the store; new events are added again.
    pub fn rest(&self) {
        *self.ring.write().unwrap_or_else(PoisonError::into_inner) = Ring::default();
    }

    pub fn publish_text(&self, delta: Delta) {
        // Usually no client is attached, and the send fails.
        drop(self.live.send(Arc::new(LiveNotice::Delta(delta))));
    }

    /// Whether a client is attached.
    pub fn has_subscribers(&self) -> bool {
        self.live.receiver_count() > 0
    }

    /// Notifies clients that a job has written more.
    pub fn publish_output(&self, output: Output) {
        drop(self.live.send(Arc::new(LiveNotice::Output(output))));
    }

    pub fn head(&self) -> u64 {
        *self.head.borrow()
    }

    /// Waits until all events that are on disk now are published, so that a caller that read a result from the store finds its
    /// events here.
    pub async fn wait_published(&self, reader: &Reader) -> Result<(), ReadError> {
        let (mut watch, head) = (self.watch(), reader.read_few(|store| store.head()).await?);
        // The timeout passes only while the daemon ends.
        drop(tokio::time::timeout(PUBLISHED_WITHIN, watch.wait_for(|at| *at >= head)).await);
        Ok(())
    }

    pub fn watch(&self) -> watch::Receiver<u64> {
        self.head.subscribe()
    }

    /// Completes with the next publication after this call. Waiting tasks continue in the order in which they began to wait.
    pub fn next_publication(&self) -> Notified<'_> {
        self.published.notified()
    }

    pub fn live(&self) -> broadcast::Receiver<Arc<LiveNotice>> {
        self.live.subscribe()
    }

    /// A page of matching events after `since`, and the cursor after it. An empty page with a moved cursor means
    /// that there was nothing for this filter.
    pub async fn page(
        &self,
        reader: &Reader,
        since: u64,
        filter: &EventFilter,
    ) -> Result<EventsAfter, ReadError> {
        // Read the head first: the snapshot may lack events that are published during the read.
        let head = self.head();
        if let Some(page) = self.page_in_memory(since, head, filter) {
            return Ok(page);
        }
        let filter = filter.clone();
        reader.read(move |store| stored_page(store, since, head, &filter)).await
    }

    /// As [`Hub::page`], for a caller that has a snapshot.
    pub fn page_at(
        &self,
        store: &dyn StoreSnapshot,
        since: u64,
        filter: &EventFilter,
    ) -> Result<EventsAfter, ReadError> {
        let head = self.head();
        match self.page_in_memory(since, head, filter) {
            Some(page) => Ok(page),
            None => stored_page(store, since, head, filter),
        }
    }

    fn page_in_memory(&self, since: u64, head: u64, filter: &EventFilter) -> Option<EventsAfter> {
        if since >= head { Some((Vec::new(), since)) } else { self.ring_page(since, filter) }
    }

    fn ring_page(&self, since: u64, filter: &EventFilter) -> Option<EventsAfter> {
        let ring = self.ring.read().unwrap_or_else(PoisonError::into_inner);
        let oldest = ring.events.front()?.seq;
        if since + 1 < oldest {
            return None;
        }
        let skip = usize::try_from(since + 1 - oldest).ok()?;
        let page: Vec<&Arc<EventRow>> = ring.events.iter().skip(skip).take(PAGE as usize).collect();
        let last = page.last()?.seq;
        Some((page.into_iter().filter(|event| filter.takes(event)).cloned().collect(), last))
    }
}

fn stored_page(
    store: &dyn StoreSnapshot,
    since: u64,
    head: u64,
    filter: &EventFilter,
) -> Result<EventsAfter, ReadError> {
    let (events, last) = store.events(since, filter.stream.as_deref(), PAGE)?;
    // With a stream filter, the store skips other streams: an empty page means that no event is left.
    let last = if events.is_empty() && last == since { head } else { last };
    Ok((events.into_iter().filter(|event| filter.takes(event)).map(Arc::new).collect(), last))
}
