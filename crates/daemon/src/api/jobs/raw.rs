//! `GET /v1/jobs/{id}/stdout|stderr|merged`: what a job wrote, as it wrote it.
//!
//! A body is produced in pieces, each after the client has taken the one before: for output of any size and clients of
//! any speed, one piece is in memory. A body that is cut, by the end of the daemon or of the token, does not end
//! properly, so that no client takes a part for the whole.

use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response as HttpResponse};
use lodge_core::job::{JobRow, JobStreamBytes};
use lodge_proto::{ApiMethod, ErrorBody, JobOutputParams, ReadJobOutput};
use serde::Deserialize;
use serde_json::Value;

use super::super::range::{ByteRange, OutOfRange, wanted_range};
use super::super::{Api, http, params, scope};
use super::find;
use super::output::{JobOutputReader, pick};
use crate::auth::ApiCaller;
use crate::jobs::{OutputSelection, OutputSlice};
use crate::read_view::ReadView;
use crate::view;

/// Bytes that are read at once.
const PIECE: usize = 128 * 1024;
/// The position of the body's first byte in the stream.
const OFFSET: HeaderName = HeaderName::from_static("lodge-offset");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct OutputQuery {
    offset: Option<u64>,
    follow: Option<String>,
}

/// Whether a body ends with what there is, or with the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FollowEnd {
    CaughtUp,
    Over,
}

pub(in super::super) async fn get(
    State(api): State<Arc<Api>>,
    axum::Extension(who): axum::Extension<ApiCaller>,
    Path((job, stream)): Path<(String, String)>,
    asked: Result<Query<OutputQuery>, QueryRejection>,
    headers: HeaderMap,
) -> HttpResponse {
    match answer(api, who, &job, &stream, asked, &headers).await {
        Ok(response) => response,
        Err(error) => http::failed(Value::Null, error),
    }
}

async fn answer(
    api: Arc<Api>,
    who: ApiCaller,
    job: &str,
    stream: &str,
    asked: Result<Query<OutputQuery>, QueryRejection>,
    headers: &HeaderMap,
) -> Result<HttpResponse, ErrorBody> {
    let Query(asked) = asked.map_err(|error| {
        ErrorBody::new("params.invalid", "the query does not fit")
            .because(error.body_text())
            .hint("offset and follow are known")
    })?;
    let until = follow(asked.follow.as_deref())?;
    let pick = pick(stream)?;
    // What may be read with a call may be read here, and nothing else.
    let given = view::json(&JobOutputParams { job: job.to_owned(), ..JobOutputParams::default() });
    let caller = who.clone();
    let read = move |at: &ReadView<'_>| {
        let given = scope::narrow(at, &caller, ReadJobOutput::NAME, given)?;
        let given = params::<ReadJobOutput>(given)?;
        find(at, &given.job, None)
    };
    let id = api.shell.read_few(read).await?;
    let mut reading = JobOutputReader::new(&api.shell, &id, pick, asked.offset.unwrap_or(0), PIECE);
    let row = reading.row().await?;
    let mut whole = whole(&row, pick);
    let mut range = match (whole, asked.offset, headers.get(header::RANGE)) {
        (Some(length), None, Some(range)) => {
            let range = range.to_str().unwrap_or_default();
            wanted_range(range, length).map_err(|OutOfRange| {
                ErrorBody::new("job.bad_range", format!("there are {length} bytes, and none in `{range}`"))
                    .hint("leave the header `Range` out for everything")
            })?
        }
        // Where the end is not known, or something is missing, the header is as if it were not there.
        (None, _, _) | (_, Some(_), _) | (_, _, None) => None,
    };
    if let Some(range) = &range {
        reading.offset = range.first;
    }
    let mut first = reading.read().await?;
    if whole.is_some() && first.offset > reading.offset {
        // All output was kept, and the archive was replaced since: the promised length would be wrong.
        (whole, range) = (None, None);
        reading.offset = asked.offset.unwrap_or(0);
        first = reading.read().await?;
    }
    let mut response = OutputResponse { whole, range, first: &first, offset: reading.offset }.head();
    let left = range.map(|range| range.last - range.first + 1);
    *response.body_mut() = Body::from_stream(futures_util::stream::unfold(
        Some(OutputFollow { api, who, reading, until, left, first: Some(first) }),
        next,
    ));
    Ok(response)
}

fn follow(given: Option<&str>) -> Result<FollowEnd, ErrorBody> {
    match given {
        None | Some("0" | "false") => Ok(FollowEnd::CaughtUp),
        Some("1" | "true") => Ok(FollowEnd::Over),
        Some(other) => Err(ErrorBody::new("params.invalid", format!("`follow` cannot be `{other}`"))
            .hint("`follow=1` waits for more output until the job ends")),
    }
}

/// How long the output is, once that is known and nothing of it is missing.
fn whole(row: &JobRow, pick: OutputSelection) -> Option<u64> {
    let (stdout, stderr) = (row.progress.stdout, row.progress.stderr);
    let length = |stream: JobStreamBytes| (stream.seen == stream.kept).then_some(stream.seen);
    if row.progress.state.is_open() {
        return None;
    }
    match pick {
        OutputSelection::Stdout => length(stdout),
        OutputSelection::Stderr => length(stderr),
        OutputSelection::Merged => length(stdout)?.checked_add(length(stderr)?),
    }
}

struct OutputResponse<'a> {
    whole: Option<u64>,
    range: Option<ByteRange>,
    first: &'a OutputSlice,
    /// From where on it is read.
    offset: u64,
}

impl OutputResponse<'_> {
    /// Everything but the body.
    fn head(&self) -> HttpResponse {
        let status = if self.range.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
        let mut response = status.into_response();
        let headers = response.headers_mut();
        // A program's output is shown by no browser as anything but text, and kept by none.
        let fixed = [
            (header::CONTENT_TYPE, kind(&self.first.bytes)),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::CACHE_CONTROL, "no-store"),
        ];
        for (name, value) in fixed {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.insert(OFFSET, HeaderValue::from(self.first.offset));
        if let Some(whole) = self.whole {
            headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
            let length = match self.range {
                Some(range) => range.last - range.first + 1,
                None => whole.saturating_sub(self.offset),
            };
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
            if let Some(range) = self.range
                && let Ok(value) = HeaderValue::from_str(&range.told(whole))
            {
                headers.insert(header::CONTENT_RANGE, value);
            }
        }
        response
    }
}

/// By what it begins with: nothing yet counts as text.
fn kind(bytes: &[u8]) -> &'static str {
    let text = match std::str::from_utf8(bytes) {
        Ok(_) => true,
        // A letter that is cut by the end of the piece.
        Err(error) => error.error_len().is_none(),
    };
    if text && !bytes.contains(&0) { "text/plain; charset=utf-8" } else { "application/octet-stream" }
}

struct OutputFollow {
    api: Arc<Api>,
    who: ApiCaller,
    reading: JobOutputReader,
    until: FollowEnd,
    /// Bytes that may still be sent, when they were counted.
    left: Option<u64>,
    /// The piece that was read for the head.
    first: Option<OutputSlice>,
}

async fn next(following: Option<OutputFollow>) -> Option<(io::Result<Bytes>, Option<OutputFollow>)> {
    let mut following = following?;
    match following.piece().await {
        Ok(Some(bytes)) => Some((Ok(bytes), Some(following))),
        Ok(None) => None,
        Err(error) => Some((Err(error), None)),
    }
}

impl OutputFollow {
    /// The next bytes of the body; none when it is whole.
    async fn piece(&mut self) -> io::Result<Option<Bytes>> {
        if self.left == Some(0) {
            return Ok(None);
        }
        let mut waited = true;
        loop {
            if self.who.is_over() {
                return Err(io::Error::other("the token is over"));
            }
            let piece = match self.first.take() {
                Some(piece) => piece,
                None => self.reading.read().await.map_err(|error| io::Error::other(error.message))?,
            };
            if let Some(bytes) = self.take(piece.offset, piece.bytes) {
                return Ok(Some(bytes));
            }
            if piece.end || self.until == FollowEnd::CaughtUp || !waited {
                return Ok(None);
            }
            let shell = self.api.shell.clone();
            tokio::select! {
                () = shell.stop.cancelled() => return Err(io::Error::other("the daemon is shutting down")),
                _ = self.who.over() => return Err(io::Error::other("the token is over")),
                more = self.reading.more() => waited = more,
            }
        }
    }

    /// What goes out of a piece, if anything does.
    fn take(&mut self, offset: u64, mut bytes: Vec<u8>) -> Option<Bytes> {
        let most = self.left.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX));
        bytes.truncate(most);
        self.reading.offset = offset + bytes.len() as u64;
        self.left = self.left.map(|left| left - bytes.len() as u64);
        (!bytes.is_empty()).then(|| Bytes::from(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_like_text_is_sent_as_text() {
        for text in [&b""[..], b"hi\n", "\u{e4}".as_bytes(), &"a\u{e4}".as_bytes()[..2]] {
            assert_eq!(kind(text), "text/plain; charset=utf-8", "{text:?}");
        }
        for other in [&b"a\0"[..], b"\xff\xfe", b"\x7fELF\x02\x01\x01\0"] {
            assert_eq!(kind(other), "application/octet-stream", "{other:?}");
        }
    }
}
