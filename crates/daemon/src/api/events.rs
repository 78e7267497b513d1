//! `event/list`: the log in pages, forwards from a cursor or backwards from a place.

use std::sync::Arc;

use lodge_core::record::EventRow;
use lodge_proto::{ApiMethod, ErrorBody, Event, EventList, EventListParams, ListEvents};
use lodge_store::PAGE_BYTES_MAX;
use serde_json::Value;

use super::methods::{Reply, find_agent_ever, future, internal, no_method, page, reply};
use super::{params, sandboxes, scope};
use crate::auth::ApiCaller;
use crate::hub::{EventFilter, PAGE};
use crate::read_view::ReadView;
use crate::shell::Shell;
use crate::view;

pub(super) async fn call(shell: &Arc<Shell>, who: &ApiCaller, method: &str, given: Value) -> Reply {
    match method {
        ListEvents::NAME => {
            shell.hub.wait_published(&shell.reader).await.map_err(internal)?;
            let (who, given) = (who.clone(), params::<ListEvents>(given)?);
            shell.read(move |at| reply::<ListEvents>(list(at, &who, &given))).await
        }
        _other => Err(no_method(method)),
    }
}

fn list(at: &ReadView<'_>, who: &ApiCaller, given: &EventListParams) -> Result<EventList, ErrorBody> {
    let agent = given.agent.as_deref().map(|agent| find_agent_ever(at, agent)).transpose()?;
    // Before the sandbox is looked for: an agent's token always names its agent, and must not learn which sandboxes exist.
    if agent.is_some() && given.sandbox.is_some() {
        return Err(ErrorBody::new("params.invalid", "there are both `agent` and `sandbox`")
            .hint("an event belongs to one of them: name one"));
    }
    let sandbox = given.sandbox.as_deref().map(|sandbox| sandboxes::find(at, sandbox)).transpose()?;
    let sandbox = sandbox.map(|sandbox| sandbox.to_string());
    let filter = scope::events(
        who,
        EventFilter {
            stream: agent.map(|agent| agent.to_string()).or(sandbox),
            session: given.session.clone(),
            job: None,
            kind: given.kind.clone(),
        },
    );
    let (head, since) = (at.hub.head(), given.since.unwrap_or(0));
    if since > head {
        return Err(future(since, head));
    }
    let wanted = EventRange { filter, since, head, limit: page(given.limit) as usize };
    let (events, next) = match given.before {
        None => oldest(at, &wanted)?,
        Some(before) => newest(at, &wanted, before)?,
    };
    Ok(EventList { events, head, log: at.log.clone(), next })
}

/// A page that is full after a number of events or bytes.
struct EventPage {
    events: Vec<Event>,
    limit: usize,
    bytes: usize,
}

impl EventPage {
    fn new(limit: usize) -> EventPage {
        EventPage { events: Vec::new(), limit, bytes: 0 }
    }

    fn is_full(&self) -> bool {
        self.events.len() >= self.limit || self.bytes >= PAGE_BYTES_MAX
    }

    fn put(&mut self, event: &EventRow) {
        if !self.is_full() {
            self.bytes += event.body.weight();
            self.events.push(view::event(event));
        }
    }
}

struct EventRange {
    filter: EventFilter,
    since: u64,
    head: u64,
    limit: usize,
}

/// The first ones after `since`, and where the next page begins.
fn oldest(at: &ReadView<'_>, wanted: &EventRange) -> Result<(Vec<Event>, Option<u64>), ErrorBody> {
    let &EventRange { ref filter, since, head, limit } = wanted;
    let mut cursor = since;
    let mut page = EventPage::new(limit);
    while !page.is_full() && cursor < head {
        let (found, last) = at.hub.page_at(at.store, cursor, filter).map_err(internal)?;
        cursor = last;
        found.iter().for_each(|event| page.put(event));
    }
    let is_full = page.is_full();
    let events = page.events;
    let next = events.last().map(|last| last.seq).filter(|last| is_full && *last < head);
    Ok((events, next))
}

/// The last ones before `before`, the oldest of them first, and where the page before begins.
fn newest(
    at: &ReadView<'_>,
    wanted: &EventRange,
    before: u64,
) -> Result<(Vec<Event>, Option<u64>), ErrorBody> {
    let &EventRange { ref filter, since, head, limit } = wanted;
    // Events that are written and not yet published are invisible.
    let mut cursor = before.min(head + 1);
    let mut page = EventPage::new(limit);
    while !page.is_full() && cursor > since + 1 {
        let found = at.store.events_before(cursor, filter.stream.as_deref(), PAGE).map_err(internal)?;
        cursor = found.1;
        let fits = found.0.iter().filter(|event| event.seq > since && filter.takes(event));
        fits.for_each(|event| page.put(event));
    }
    let is_full = page.is_full();
    let mut events = page.events;
    let next = events.last().map(|last| last.seq).filter(|last| is_full && *last > since + 1);
    events.reverse();
    Ok((events, next))
}
