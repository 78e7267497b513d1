//! What subscribers read: a ring of the newest events, the head of the log, live text and live output.
//!
//! A subscriber is a cursor, not a queue: it is woken by "the log is at N" and reads pages, from the ring or from
//! the store. Only committed events come here.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use lodge_core::record::EventRow;
use lodge_proto::{Delta, Output};
use lodge_store::{ReadError, Reader, StoreSnapshot};
use tokio::sync::{broadcast, watch};

/// Events kept in memory for subscribers that keep up.
const RING_MAX: usize = 512;
/// And bytes of them: an event can have a whole answer in it.
const RING_BYTES_MAX: usize = 16 << 20;
/// Live text and output a slow client may be behind before it loses some.
const LIVE_MAX: usize = 1_024;
/// How long what is on disk may take to be published.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(1);
/// Events read at once.
pub const PAGE: u32 = 256;

/// A page of events, and the cursor after it.
type EventsAfter = (Vec<Arc<EventRow>>, u64);

#[derive(Debug)]
pub struct Hub {
    ring: RwLock<Ring>,
    head: watch::Sender<u64>,
    live: broadcast::Sender<Arc<Live>>,
}

/// The newest events, in order and without gaps.
#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<Arc<EventRow>>,
    bytes: usize,
}

impl Ring {
    /// Keeps an event, and as many before it as there is room for.
    fn push(&mut self, event: EventRow) {
        self.bytes += event.body.weight();
        self.events.push_back(Arc::new(event));
        while self.events.len() > RING_MAX || self.bytes > RING_BYTES_MAX {
            let Some(oldest) = self.events.pop_front() else { return };
            self.bytes -= oldest.body.weight();
        }
    }
}

/// What is told at once, without sequence, and never again.
#[derive(Debug)]
pub enum Live {
    Delta(Delta),
    Output(Output),
}

/// Which events somebody wants.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    pub stream: Option<String>,
    pub session: Option<String>,
    pub job: Option<String>,
    pub kind: Option<String>,
}

impl Filter {
    pub fn takes(&self, event: &EventRow) -> bool {
        self.stream.as_ref().is_none_or(|stream| *stream == event.stream)
            && self.session.as_ref().is_none_or(|session| event.body.session() == Some(session))
            && self.job.as_ref().is_none_or(|job| event.body.job() == Some(job))
            && self.kind.as_ref().is_none_or(|kind| event.body.kind().word() == kind)
    }

    pub fn takes_live(&self, live: &Live) -> bool {
        let (agent, session, job) = match live {
            Live::Delta(delta) => (&delta.agent, Some(&delta.session), None),
            Live::Output(output) => (&output.agent, output.session.as_ref(), Some(&output.job)),
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
            live: broadcast::Sender::new(LIVE_MAX),
        }
    }

    /// Takes events that are on disk, in order.
    pub fn publish(&self, events: Vec<EventRow>) {
        let Some(last) = events.last().map(|event| event.seq) else { return };
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        events.into_iter().for_each(|event| ring.push(event));
        drop(ring);
        self.head.send_replace(last);
    }

    /// Lets go of the ring: who comes now reads from the store, and the next events are kept again.
    pub fn rest(&self) {
        *self.ring.write().unwrap_or_else(PoisonError::into_inner) = Ring::default();
    }

    pub fn preview(&self, delta: Delta) {
        // Nobody listening is the ordinary case.
        drop(self.live.send(Arc::new(Live::Delta(delta))));
    }

    /// Whether anybody is attached.
    pub fn is_heard(&self) -> bool {
        self.live.receiver_count() > 0
    }

    /// A job has written more.
    pub fn wrote(&self, output: Output) {
        drop(self.live.send(Arc::new(Live::Output(output))));
    }

    pub fn head(&self) -> u64 {
        *self.head.borrow()
    }

    /// Waits until all that is on disk by now is published, which happens next: a caller that read elsewhere of what became
    /// of something finds its events here.
    pub async fn caught_up(&self, reader: &Reader) -> Result<(), ReadError> {
        let (mut watch, head) = (self.watch(), reader.read_few(|store| store.head()).await?);
        // Only a daemon that ends publishes nothing any more.
        drop(tokio::time::timeout(PUBLISHED_WITHIN, watch.wait_for(|at| *at >= head)).await);
        Ok(())
    }

    pub fn watch(&self) -> watch::Receiver<u64> {
        self.head.subscribe()
    }

    pub fn live(&self) -> broadcast::Receiver<Arc<Live>> {
        self.live.subscribe()
    }

    /// A page of matching events after `since`, and the cursor after it. An empty page with a moved cursor means
    /// that there was nothing for this filter.
    pub async fn page(&self, reader: &Reader, since: u64, filter: &Filter) -> Result<EventsAfter, ReadError> {
        // Before reading: what is published while the store is read was perhaps not seen there.
        let head = self.head();
        if let Some(page) = self.page_in_memory(since, head, filter) {
            return Ok(page);
        }
        let filter = filter.clone();
        reader.read(move |store| stored_page(store, since, head, &filter)).await
    }

    /// The same for who has a snapshot already.
    pub fn page_at(
        &self,
        store: &dyn StoreSnapshot,
        since: u64,
        filter: &Filter,
    ) -> Result<EventsAfter, ReadError> {
        let head = self.head();
        match self.page_in_memory(since, head, filter) {
            Some(page) => Ok(page),
            None => stored_page(store, since, head, filter),
        }
    }

    fn page_in_memory(&self, since: u64, head: u64, filter: &Filter) -> Option<EventsAfter> {
        if since >= head { Some((Vec::new(), since)) } else { self.ring_page(since, filter) }
    }

    fn ring_page(&self, since: u64, filter: &Filter) -> Option<EventsAfter> {
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
    filter: &Filter,
) -> Result<EventsAfter, ReadError> {
    let (events, last) = store.events(since, filter.stream.as_deref(), PAGE)?;
    // With a stream filter the store passes over other streams: an incomplete page means nothing is left.
    let last = if events.is_empty() && last == since { head } else { last };
    Ok((events.into_iter().filter(|event| filter.takes(event)).map(Arc::new).collect(), last))
}
