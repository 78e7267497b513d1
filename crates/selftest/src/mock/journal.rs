//! The log: one JSON line when a request has arrived, one when it is over.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::clock::now_us;

/// One request, as the server saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestLine {
    /// From 1, in order of arrival.
    pub number: u64,
    /// The connection it came on, numbered from 1.
    pub connection: u64,
    /// Microseconds since 1970.
    pub at_us: u64,
    pub model: String,
    /// The last user message.
    pub user: String,
    /// Assistant messages since the last user message.
    pub step: usize,
    pub messages: usize,
    /// Bytes of each message: text, arguments, ids.
    pub lengths: Vec<u64>,
    /// A hash over all messages: equal requests have equal digests.
    pub digest: String,
    /// `None` when the server was started without a key.
    pub key_ok: Option<bool>,
    /// `None` while it is being answered.
    pub outcome: Option<RequestOutcome>,
    pub done_at_us: Option<u64>,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestOutcome {
    /// Answered to the end.
    Done,
    /// Failed on purpose: refused, cut or garbled.
    Failed,
    /// The client went away first.
    Gone,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum JournalLine {
    Request(Arrival),
    Done { number: u64, at_us: u64, outcome: RequestOutcome },
}

#[derive(Serialize, Deserialize)]
pub(super) struct Arrival {
    pub(super) number: u64,
    pub(super) connection: u64,
    pub(super) at_us: u64,
    pub(super) model: String,
    pub(super) user: String,
    pub(super) step: usize,
    pub(super) messages: usize,
    pub(super) lengths: Vec<u64>,
    pub(super) digest: String,
    pub(super) key_ok: Option<bool>,
}

/// Where lines go; without a file they go nowhere.
#[derive(Debug)]
pub(super) struct Journal {
    file: Option<Mutex<File>>,
}

impl Journal {
    pub(super) fn open(path: Option<&Path>) -> io::Result<Self> {
        let open = |path| OpenOptions::new().create(true).append(true).open(path);
        Ok(Self { file: path.map(open).transpose()?.map(Mutex::new) })
    }

    pub(super) fn arrived(&self, arrival: Arrival) -> io::Result<()> {
        self.write(&JournalLine::Request(arrival))
    }

    pub(super) fn done(&self, number: u64, outcome: RequestOutcome) -> io::Result<()> {
        self.write(&JournalLine::Done { number, at_us: now_us(), outcome })
    }

    fn write(&self, line: &JournalLine) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        // One write per line, so that concurrent readers see complete lines.
        file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&bytes)
    }
}

/// The requests in a log; a last line that is still being written is left out.
pub(super) fn read(path: &Path) -> io::Result<Vec<RequestLine>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let mut requests: Vec<RequestLine> = Vec::new();
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        match serde_json::from_str(line)? {
            JournalLine::Request(arrival) => requests.push(RequestLine::from(arrival)),
            JournalLine::Done { number, at_us, outcome } => {
                if let Some(request) = requests.iter_mut().rfind(|request| request.number == number) {
                    (request.outcome, request.done_at_us) = (Some(outcome), Some(at_us));
                }
            }
        }
    }
    requests.sort_by_key(|request| request.number);
    Ok(requests)
}

impl From<Arrival> for RequestLine {
    fn from(arrival: Arrival) -> Self {
        Self {
            number: arrival.number,
            connection: arrival.connection,
            at_us: arrival.at_us,
            model: arrival.model,
            user: arrival.user,
            step: arrival.step,
            messages: arrival.messages,
            lengths: arrival.lengths,
            digest: arrival.digest,
            key_ok: arrival.key_ok,
            outcome: None,
            done_at_us: None,
        }
    }
}
