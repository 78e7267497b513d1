//! Parses one JSON object per line, however the bytes are split.

use crate::error::{AnswerFault, AnswerLimit, UnreadableAnswer};

#[derive(Debug, Default)]
pub(crate) struct LineParser {
    line: Vec<u8>,
}

impl LineParser {
    /// Reads `bytes` and pushes each line they complete onto `lines`; empty ones say nothing.
    pub(crate) fn push(
        &mut self,
        mut bytes: &[u8],
        bytes_max: usize,
        lines: &mut Vec<String>,
    ) -> Result<(), AnswerFault> {
        while !bytes.is_empty() {
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let piece = &bytes[..end.unwrap_or(bytes.len())];
            if self.line.len() + piece.len() > bytes_max {
                return Err(AnswerFault::Oversize { what: AnswerLimit::Line, limit: bytes_max });
            }
            self.line.extend_from_slice(piece);
            let Some(end) = end else { break };
            bytes = &bytes[end + 1..];
            self.end_line(lines)?;
        }
        Ok(())
    }

    /// The stream is over: the last line may lack its end.
    pub(crate) fn finish(&mut self, lines: &mut Vec<String>) -> Result<(), AnswerFault> {
        match self.end_line(lines) {
            // Half a character is half a line.
            Err(AnswerFault::Nonsense { what: UnreadableAnswer::NotUtf8, .. }) => {
                Err(AnswerFault::Incomplete)
            }
            other => other,
        }
    }

    fn end_line(&mut self, lines: &mut Vec<String>) -> Result<(), AnswerFault> {
        let line = std::mem::take(&mut self.line);
        let text = std::str::from_utf8(&line).map_err(|_| {
            let text = String::from_utf8_lossy(&line).into_owned();
            AnswerFault::Nonsense { what: UnreadableAnswer::NotUtf8, text }
        })?;
        if !text.trim().is_empty() {
            lines.push(text.to_owned());
        }
        self.line = line;
        self.line.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pieces: &[&[u8]]) -> Result<Vec<String>, AnswerFault> {
        let (mut parser, mut lines) = (LineParser::default(), Vec::new());
        for piece in pieces {
            parser.push(piece, 16, &mut lines)?;
        }
        parser.finish(&mut lines)?;
        Ok(lines)
    }

    #[test]
    fn lines_read_the_same_however_they_are_cut() {
        let bytes = "{\"a\":\"é\"}\r\n\n{}\n {\"b\":1}".as_bytes();
        let expected = ["{\"a\":\"é\"}\r", "{}", " {\"b\":1}"];
        for cut in 0..=bytes.len() {
            assert_eq!(parse(&[&bytes[..cut], &bytes[cut..]]).unwrap(), expected, "cut at {cut}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(parse(&single).unwrap(), expected);
    }

    #[test]
    fn long_lines_and_lines_that_are_not_text_are_refused() {
        assert_eq!(parse(&[&[b'x'; 17]]), Err(AnswerFault::Oversize { what: AnswerLimit::Line, limit: 16 }));
        let odd = AnswerFault::Nonsense { what: UnreadableAnswer::NotUtf8, text: "\u{fffd}".into() };
        assert_eq!(parse(&[b"\xff\n"]), Err(odd));
        assert_eq!(parse(&[b"\"\xc3"]), Err(AnswerFault::Incomplete), "a character that was cut");
    }
}
