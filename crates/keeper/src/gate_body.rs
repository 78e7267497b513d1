//! The end of a request's body, so that later bytes of the client are not forwarded.

/// Most digits of a chunk's size.
const SIZE_DIGITS_MAX: u8 = 15;
/// Longest line of a chunk's size or of what follows the last one.
const LINE_MAX: u32 = 8 * 1024;

/// A body that is being passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BodyRelay {
    /// This many bytes are still to come.
    Sized(u64),
    Chunked(ChunkState),
}

/// Where in a chunked body the next byte belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChunkState {
    Size {
        size: u64,
        digits: u8,
    },
    /// The rest of the line with a size, which is `len` bytes long so far.
    AfterSize {
        size: u64,
        len: u32,
    },
    Data {
        left: u64,
    },
    /// The line's end behind the data.
    DataEnd,
    /// A line behind the last chunk, `len` bytes long so far.
    Trailer {
        len: u32,
    },
    Over,
}

/// The body is not what its head promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MalformedBody;

impl BodyRelay {
    pub(crate) fn chunked() -> BodyRelay {
        BodyRelay::Chunked(ChunkState::Size { size: 0, digits: 0 })
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self, BodyRelay::Sized(0) | BodyRelay::Chunked(ChunkState::Over))
    }

    /// How many of these bytes still belong to the body.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<usize, MalformedBody> {
        match self {
            BodyRelay::Sized(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= taken as u64;
                Ok(taken)
            }
            BodyRelay::Chunked(chunk) => take_chunked(chunk, bytes),
        }
    }
}

fn take_chunked(chunk: &mut ChunkState, bytes: &[u8]) -> Result<usize, MalformedBody> {
    let mut at = 0;
    while at < bytes.len() && *chunk != ChunkState::Over {
        if let ChunkState::Data { left } = chunk {
            let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len() - at);
            *left -= taken as u64;
            at += taken;
            if *left == 0 {
                *chunk = ChunkState::DataEnd;
            }
        } else {
            *chunk = after(chunk, bytes[at])?;
            at += 1;
        }
    }
    Ok(at)
}

/// The place behind one byte that is not data.
fn after(chunk: &ChunkState, byte: u8) -> Result<ChunkState, MalformedBody> {
    Ok(match *chunk {
        ChunkState::Size { size, digits } => match char::from(byte).to_digit(16) {
            Some(digit) if digits < SIZE_DIGITS_MAX => {
                ChunkState::Size { size: size * 16 + u64::from(digit), digits: digits + 1 }
            }
            Some(_) => return Err(MalformedBody),
            None if digits == 0 => return Err(MalformedBody),
            None => after(&ChunkState::AfterSize { size, len: 0 }, byte)?,
        },
        ChunkState::AfterSize { size: 0, .. } if byte == b'\n' => ChunkState::Trailer { len: 0 },
        ChunkState::AfterSize { size, .. } if byte == b'\n' => ChunkState::Data { left: size },
        ChunkState::AfterSize { size, len } if len < LINE_MAX => ChunkState::AfterSize { size, len: len + 1 },
        ChunkState::DataEnd if byte == b'\r' => ChunkState::DataEnd,
        ChunkState::DataEnd if byte == b'\n' => ChunkState::Size { size: 0, digits: 0 },
        ChunkState::Trailer { len: 0 } if byte == b'\n' => ChunkState::Over,
        ChunkState::Trailer { .. } if byte == b'\n' => ChunkState::Trailer { len: 0 },
        ChunkState::Trailer { len } if byte == b'\r' => ChunkState::Trailer { len },
        ChunkState::Trailer { len } if len < LINE_MAX => ChunkState::Trailer { len: len + 1 },
        ChunkState::AfterSize { .. } | ChunkState::DataEnd | ChunkState::Trailer { .. } => {
            return Err(MalformedBody);
        }
        ChunkState::Data { left } => ChunkState::Data { left },
        ChunkState::Over => ChunkState::Over,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds a body in pieces of `step` bytes and says how much of it belongs to it.
    fn length(body: &BodyRelay, bytes: &[u8], step: usize) -> Result<(usize, bool), MalformedBody> {
        let (mut body, mut at) = (body.clone(), 0);
        for piece in bytes.chunks(step) {
            let taken = body.take(piece)?;
            at += taken;
            if taken < piece.len() {
                break;
            }
        }
        Ok((at, body.is_over()))
    }

    #[test]
    fn a_body_ends_where_its_head_says_however_it_arrives() {
        let chunked = "5;name=value\r\nhello\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n";
        for (body, text) in [
            (BodyRelay::Sized(5), "hello"),
            (BodyRelay::Sized(0), ""),
            (BodyRelay::chunked(), chunked),
            (BodyRelay::chunked(), "0\r\n\r\n"),
        ] {
            let sent = format!("{text}GET http://other.example/ HTTP/1.1\r\n\r\n");
            for step in 1..sent.len() {
                assert_eq!(
                    length(&body, sent.as_bytes(), step),
                    Ok((text.len(), true)),
                    "{text:?} by {step}"
                );
            }
            for cut in 0..text.len() {
                assert_eq!(length(&body, &text.as_bytes()[..cut], 3), Ok((cut, false)), "{text:?} to {cut}");
            }
        }
    }

    #[test]
    fn a_body_that_breaks_its_own_rules_is_not_passed_on() {
        let long = format!("1;{}", "x".repeat(10_000));
        for text in ["x", "\r\n", "5\r\nhelloX", "1234567890abcdef\r\n", long.as_str()] {
            assert_eq!(length(&BodyRelay::chunked(), text.as_bytes(), 7), Err(MalformedBody), "{text:.20}");
        }
    }
}
