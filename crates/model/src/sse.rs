//! Parses server-sent events, however the bytes are split.

use crate::error::{AnswerFault, AnswerLimit, UnreadableAnswer};

/// Feeds on chunks and hands out each event's data.
#[derive(Debug, Default)]
pub(crate) struct SseParser {
    line: Vec<u8>,
    /// The data lines of the event being read, joined by newlines.
    data: String,
    has_data: bool,
    /// The last byte was a CR that ended a line, so an LF right after it belongs to it.
    after_cr: bool,
    past_first_line: bool,
}

impl SseParser {
    /// Reads `bytes` and pushes the data of each event they complete onto `events`.
    ///
    /// A line, and the data of an event, may have `bytes_max` bytes.
    pub(crate) fn push(
        &mut self,
        mut bytes: &[u8],
        bytes_max: usize,
        events: &mut Vec<String>,
    ) -> Result<(), AnswerFault> {
        while !bytes.is_empty() {
            if self.after_cr {
                self.after_cr = false;
                if let Some(rest) = bytes.strip_prefix(b"\n") {
                    bytes = rest;
                    continue;
                }
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let piece = &bytes[..end.unwrap_or(bytes.len())];
            if self.line.len() + piece.len() > bytes_max {
                return Err(too_long(bytes_max));
            }
            self.line.extend_from_slice(piece);
            let Some(end) = end else { break };
            self.after_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            self.end_line(bytes_max, events)?;
        }
        Ok(())
    }

    /// The stream is over: some servers do not end their last event with an empty line.
    pub(crate) fn finish(&mut self, bytes_max: usize, events: &mut Vec<String>) -> Result<(), AnswerFault> {
        match self.end_line(bytes_max, events) {
            Ok(()) => {}
            // Half a character is half a line.
            Err(AnswerFault::Nonsense { what: UnreadableAnswer::NotUtf8, .. }) => {
                return Err(AnswerFault::Incomplete);
            }
            Err(fault) => return Err(fault),
        }
        self.end_event(events);
        Ok(())
    }

    fn end_line(&mut self, bytes_max: usize, events: &mut Vec<String>) -> Result<(), AnswerFault> {
        let line = std::mem::take(&mut self.line);
        let mut rest = line.as_slice();
        if !self.past_first_line {
            self.past_first_line = true;
            rest = rest.strip_prefix(b"\xef\xbb\xbf").unwrap_or(rest);
        }
        if rest.is_empty() {
            self.end_event(events);
        } else if let Some(value) = data_of(rest) {
            let value = std::str::from_utf8(value).map_err(|_| not_utf8(value))?;
            if self.data.len() + value.len() + 1 > bytes_max {
                return Err(too_long(bytes_max));
            }
            if self.has_data {
                self.data.push('\n');
            }
            self.data.push_str(value);
            self.has_data = true;
        }
        // The buffer is kept, so that a long stream does not allocate for every line.
        self.line = line;
        self.line.clear();
        Ok(())
    }

    fn end_event(&mut self, events: &mut Vec<String>) {
        if std::mem::take(&mut self.has_data) {
            events.push(std::mem::take(&mut self.data));
        }
    }
}

/// The value of a `data` field; comments and all other fields mean nothing here.
fn data_of(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(b"data")?;
    if rest.is_empty() {
        return Some(rest);
    }
    let value = rest.strip_prefix(b":")?;
    Some(value.strip_prefix(b" ").unwrap_or(value))
}

fn too_long(limit: usize) -> AnswerFault {
    AnswerFault::Oversize { what: AnswerLimit::Line, limit }
}

fn not_utf8(value: &[u8]) -> AnswerFault {
    AnswerFault::Nonsense {
        what: UnreadableAnswer::NotUtf8,
        text: String::from_utf8_lossy(value).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 64;

    fn parse(pieces: &[&[u8]]) -> Result<Vec<String>, AnswerFault> {
        let (mut parser, mut events) = (SseParser::default(), Vec::new());
        for piece in pieces {
            parser.push(piece, LIMIT, &mut events)?;
        }
        parser.finish(LIMIT, &mut events)?;
        Ok(events)
    }

    #[track_caller]
    fn check(stream: &str, expected: &[&str]) {
        let bytes = stream.as_bytes();
        assert_eq!(parse(&[bytes]).unwrap(), expected, "in one piece");
        for cut in 0..=bytes.len() {
            assert_eq!(parse(&[&bytes[..cut], &bytes[cut..]]).unwrap(), expected, "cut at {cut}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(parse(&single).unwrap(), expected, "byte by byte");
    }

    #[test]
    fn line_ends_comments_and_fields_read_the_same_however_cut() {
        check("data: a\n\ndata: b\n\n", &["a", "b"]);
        check("data: a\r\n\r\ndata: b\r\n\r\n", &["a", "b"]);
        check("data: a\r\rdata: b\r\r", &["a", "b"]);
        check(": hello\ndata:a\n: more\ndata: b\n\n", &["a\nb"]);
        check("event: x\nid: 1\nretry: 5\ndata: é😀\n\n", &["é😀"]);
        check("\u{feff}data: a\n\n\n\n", &["a"]);
        check("data\n\ndata:\n\ndatabase: no\n\n", &["", ""]);
        check("data: unfinished", &["unfinished"]);
        check("<html>\n\n</html>", &[]);
    }

    #[test]
    fn long_lines_and_long_events_are_refused() {
        let long = format!("data: {}", "x".repeat(LIMIT));
        assert_eq!(parse(&[long.as_bytes()]), Err(too_long(LIMIT)));
        let many = "data: 0123456789\n".repeat(LIMIT / 10);
        assert_eq!(parse(&[many.as_bytes()]), Err(too_long(LIMIT)));
    }

    #[test]
    fn data_that_is_not_text_is_refused() {
        assert_eq!(parse(&[b"data: \xff\n\n"]), Err(not_utf8(b"\xff")));
        assert_eq!(parse(&[b"data: \xc3"]), Err(AnswerFault::Incomplete), "a character that was cut");
    }
}
