//! Splits the body of a successful reply into events or lines.

use crate::context::CallLimits;
use crate::dialect::{AnswerProgress, AnswerReader, Framing};
use crate::draft::{FinishedDraft, OnText};
use crate::error::{AnswerFault, AnswerLimit, UnreadableAnswer};
use crate::lines::LineParser;
use crate::sse::SseParser;

const PAGE_BYTES_SHOWN: usize = 1000;

pub(crate) struct AnswerFrames {
    framing: Framing,
    limits: CallLimits,
    reader: Box<dyn AnswerReader>,
    body: FrameDecoder,
    pub(crate) received: usize,
    waiting: Vec<String>,
}

enum FrameDecoder {
    /// Nothing but white space so far.
    Unknown,
    Events(SseParser),
    Lines(LineParser),
    Json(Vec<u8>),
}

impl AnswerFrames {
    pub(crate) fn new(framing: Framing, limits: CallLimits, reader: Box<dyn AnswerReader>) -> Self {
        Self { framing, limits, reader, body: FrameDecoder::Unknown, received: 0, waiting: Vec::new() }
    }

    pub(crate) fn progress(&self) -> AnswerProgress {
        self.reader.progress()
    }

    pub(crate) fn finish(self) -> Result<FinishedDraft, AnswerFault> {
        self.reader.finish()
    }

    pub(crate) fn push(&mut self, bytes: &[u8], on_text: OnText<'_>) -> Result<(), AnswerFault> {
        let limits = self.limits;
        self.received += bytes.len();
        if self.received > limits.received_bytes_max {
            return Err(AnswerFault::Oversize {
                what: AnswerLimit::Received,
                limit: limits.received_bytes_max,
            });
        }
        if let FrameDecoder::Unknown = self.body {
            // The first byte is more reliable than the content type that servers send.
            self.body = match (bytes.iter().find(|byte| !byte.is_ascii_whitespace()), self.framing) {
                (None, _) => return Ok(()),
                (Some(b'<'), _) => {
                    let shown = &bytes[..bytes.len().min(PAGE_BYTES_SHOWN)];
                    let text = String::from_utf8_lossy(shown).into_owned();
                    return Err(AnswerFault::Nonsense { what: UnreadableAnswer::WebPage, text });
                }
                (Some(b'{'), Framing::Events) => FrameDecoder::Json(Vec::new()),
                (Some(_), Framing::Events) => FrameDecoder::Events(SseParser::default()),
                (Some(_), Framing::Lines) => FrameDecoder::Lines(LineParser::default()),
            };
        }
        let pushed = match &mut self.body {
            FrameDecoder::Unknown => Ok(()),
            FrameDecoder::Json(body) => {
                // What is written in JSON takes more room than what it says, but not without end.
                let limit = limits.answer_bytes_max.saturating_mul(2);
                if body.len() + bytes.len() > limit {
                    return Err(AnswerFault::Oversize { what: AnswerLimit::Received, limit });
                }
                body.extend_from_slice(bytes);
                Ok(())
            }
            FrameDecoder::Events(parser) => parser.push(bytes, limits.line_bytes_max, &mut self.waiting),
            FrameDecoder::Lines(parser) => parser.push(bytes, limits.line_bytes_max, &mut self.waiting),
        };
        self.take_waiting(on_text)?;
        pushed
    }

    /// The connection ended in good order.
    pub(crate) fn end(&mut self, on_text: OnText<'_>) -> Result<(), AnswerFault> {
        let whole = self.waiting.len();
        match &mut self.body {
            FrameDecoder::Unknown => return Err(AnswerFault::Incomplete),
            FrameDecoder::Json(body) => {
                let body = std::mem::take(body);
                let text = String::from_utf8(body).map_err(|error| {
                    let shown = &error.as_bytes()[..error.as_bytes().len().min(PAGE_BYTES_SHOWN)];
                    let text = String::from_utf8_lossy(shown).into_owned();
                    AnswerFault::Nonsense { what: UnreadableAnswer::NotUtf8, text }
                })?;
                return self.reader.complete(&text, on_text);
            }
            FrameDecoder::Events(parser) => parser.finish(self.limits.line_bytes_max, &mut self.waiting)?,
            FrameDecoder::Lines(parser) => parser.finish(&mut self.waiting)?,
        }
        let unfinished = self.waiting.len() > whole;
        match self.take_waiting(on_text) {
            // Half a piece at the end is a cut, not nonsense.
            Err(AnswerFault::Nonsense { what: UnreadableAnswer::NotJson, .. }) if unfinished => {
                Err(AnswerFault::Incomplete)
            }
            other => other,
        }
    }

    fn take_waiting(&mut self, on_text: OnText<'_>) -> Result<(), AnswerFault> {
        let mut waiting = std::mem::take(&mut self.waiting);
        for piece in waiting.drain(..) {
            if self.reader.progress() == AnswerProgress::Done {
                break;
            }
            self.reader.event(&piece, on_text)?;
        }
        self.waiting = waiting;
        Ok(())
    }
}
