//! `/v1/events`: the log as server-sent events, resumed with `Last-Event-ID`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response as HttpResponse};
use lodge_core::record::EventRow;
use lodge_proto::{ApiMethod, ErrorBody, EventListParams, ListEvents};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;

use super::{Api, http, methods, params, scope};
use crate::auth::ApiCaller;
use crate::hub::EventFilter;
use crate::read_view::ReadView;
use crate::view;

const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventQuery {
    since: Option<u64>,
    agent: Option<String>,
    session: Option<String>,
    kind: Option<String>,
}

struct EventFollow {
    api: Arc<Api>,
    who: ApiCaller,
    filter: EventFilter,
    cursor: u64,
    head: watch::Receiver<u64>,
    page: VecDeque<Arc<EventRow>>,
}

pub(super) async fn events(
    State(api): State<Arc<Api>>,
    axum::Extension(who): axum::Extension<ApiCaller>,
    wanted: Result<Query<EventQuery>, axum::extract::rejection::QueryRejection>,
    headers: HeaderMap,
) -> HttpResponse {
    match follow(api, who, wanted, &headers).await {
        Ok(follow) => {
            let stream = futures_util::stream::unfold(follow, next);
            Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
        }
        Err(error) => http::failed(Value::Null, error),
    }
}

async fn follow(
    api: Arc<Api>,
    who: ApiCaller,
    wanted: Result<Query<EventQuery>, axum::extract::rejection::QueryRejection>,
    headers: &HeaderMap,
) -> Result<EventFollow, ErrorBody> {
    let Query(wanted) = wanted.map_err(|error| {
        ErrorBody::new("params.invalid", "the query does not fit")
            .because(error.body_text())
            .hint("since, agent, session and kind are known")
    })?;
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let last = last.map(|last| {
        last.parse().map_err(|_| ErrorBody::new("params.invalid", "Last-Event-ID is not a sequence number"))
    });
    let head = api.shell.hub.head();
    let cursor = last.transpose()?.or(wanted.since).unwrap_or(head);
    if cursor > head {
        return Err(methods::future(cursor, head));
    }
    let given = view::json(&EventListParams {
        agent: wanted.agent,
        session: wanted.session,
        ..EventListParams::default()
    });
    // What may be listed may be followed, and nothing else.
    let caller = who.clone();
    let read = move |at: &ReadView<'_>| {
        let given = params::<ListEvents>(scope::narrow(at, &caller, ListEvents::NAME, given)?)?;
        let agent = given.agent.as_deref().map(|agent| methods::find_agent(at, agent)).transpose()?;
        Ok::<_, ErrorBody>((agent.map(|agent| agent.to_string()), given.session))
    };
    let (stream, session) = api.shell.read_few(read).await?;
    let filter = scope::events(&who, EventFilter { stream, session, job: None, kind: wanted.kind });
    let watch = api.shell.hub.watch();
    Ok(EventFollow { api, who, filter, cursor, head: watch, page: VecDeque::new() })
}

async fn next(mut follow: EventFollow) -> Option<(Result<SseEvent, Infallible>, EventFollow)> {
    loop {
        if follow.who.is_over() {
            return None;
        }
        if let Some(event) = follow.page.pop_front() {
            let json = serde_json::to_string(&view::event(&event)).unwrap_or_default();
            let sse =
                SseEvent::default().id(event.seq.to_string()).event(event.body.kind().word()).data(json);
            return Some((Ok(sse), follow));
        }
        let shell = follow.api.shell.clone();
        let (page, cursor) = shell.hub.page(&shell.reader, follow.cursor, &follow.filter).await.ok()?;
        follow.page = page.into();
        follow.cursor = cursor;
        if !follow.page.is_empty() || follow.cursor < shell.hub.head() {
            continue;
        }
        // Without this an open stream would block the daemon's shutdown.
        tokio::select! {
            () = shell.stop.cancelled() => return None,
            _ = follow.who.over() => return None,
            changed = follow.head.changed() => changed.ok()?,
        }
    }
}
