//! The body of a successful reply, cut into events or lines, however it arrives.

use crate::context::Limits;
use crate::dialect::{Framing, Progress, Reads};
use crate::draft::{OnText, Written};
use crate::error::{Fault, Nonsense, Oversize};
use crate::lines::LineParser;
use crate::sse::SseParser;

const PAGE_BYTES_SHOWN: usize = 1000;

pub(crate) struct Frames {
    framing: Framing,
    limits: Limits,
    reader: Box<dyn Reads>,
    body: Body,
    pub(crate) received: usize,
    waiting: Vec<String>,
}

enum Body {
    /// Nothing but white space so far.
    Unknown,
    Events(SseParser),
    Lines(LineParser),
    Json(Vec<u8>),
}

impl Frames {
    pub(crate) fn new(framing: Framing, limits: Limits, reader: Box<dyn Reads>) -> Self {
        Self { framing, limits, reader, body: Body::Unknown, received: 0, waiting: Vec::new() }
    }

    pub(crate) fn progress(&self) -> Progress {
        self.reader.progress()
    }

    pub(crate) fn finish(self) -> Result<Written, Fault> {
        self.reader.finish()
    }

    pub(crate) fn push(&mut self, bytes: &[u8], on_text: OnText<'_>) -> Result<(), Fault> {
        let limits = self.limits;
        self.received += bytes.len();
        if self.received > limits.received_bytes_max {
            return Err(Fault::Oversize { what: Oversize::Received, limit: limits.received_bytes_max });
        }
        if let Body::Unknown = self.body {
            // The first byte tells them apart more reliably than the content type servers send.
            self.body = match (bytes.iter().find(|byte| !byte.is_ascii_whitespace()), self.framing) {
                (None, _) => return Ok(()),
                (Some(b'<'), _) => {
                    let shown = &bytes[..bytes.len().min(PAGE_BYTES_SHOWN)];
                    let text = String::from_utf8_lossy(shown).into_owned();
                    return Err(Fault::Nonsense { what: Nonsense::WebPage, text });
                }
                (Some(b'{'), Framing::Events) => Body::Json(Vec::new()),
                (Some(_), Framing::Events) => Body::Events(SseParser::default()),
                (Some(_), Framing::Lines) => Body::Lines(LineParser::default()),
            };
        }
        let pushed = match &mut self.body {
            Body::Unknown => Ok(()),
            Body::Json(body) => {
                // What is written in JSON takes more room than what it says, but not without end.
                let limit = limits.answer_bytes_max.saturating_mul(2);
                if body.len() + bytes.len() > limit {
                    return Err(Fault::Oversize { what: Oversize::Received, limit });
                }
                body.extend_from_slice(bytes);
                Ok(())
            }
            Body::Events(parser) => parser.push(bytes, limits.line_bytes_max, &mut self.waiting),
            Body::Lines(parser) => parser.push(bytes, limits.line_bytes_max, &mut self.waiting),
        };
        self.take_waiting(on_text)?;
        pushed
    }

    /// The connection ended in good order.
    pub(crate) fn end(&mut self, on_text: OnText<'_>) -> Result<(), Fault> {
        let whole = self.waiting.len();
        match &mut self.body {
            Body::Unknown => return Err(Fault::Incomplete),
            Body::Json(body) => {
                let body = std::mem::take(body);
                let text = String::from_utf8(body).map_err(|error| {
                    let shown = &error.as_bytes()[..error.as_bytes().len().min(PAGE_BYTES_SHOWN)];
                    let text = String::from_utf8_lossy(shown).into_owned();
                    Fault::Nonsense { what: Nonsense::NotUtf8, text }
                })?;
                return self.reader.whole(&text, on_text);
            }
            Body::Events(parser) => parser.finish(self.limits.line_bytes_max, &mut self.waiting)?,
            Body::Lines(parser) => parser.finish(&mut self.waiting)?,
        }
        let unfinished = self.waiting.len() > whole;
        match self.take_waiting(on_text) {
            // Half a piece at the end is a cut, not nonsense.
            Err(Fault::Nonsense { what: Nonsense::NotJson, .. }) if unfinished => Err(Fault::Incomplete),
            other => other,
        }
    }

    fn take_waiting(&mut self, on_text: OnText<'_>) -> Result<(), Fault> {
        let mut waiting = std::mem::take(&mut self.waiting);
        for piece in waiting.drain(..) {
            if self.reader.progress() == Progress::Done {
                break;
            }
            self.reader.event(&piece, on_text)?;
        }
        self.waiting = waiting;
        Ok(())
    }
}
