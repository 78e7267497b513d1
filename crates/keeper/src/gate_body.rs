//! Where the body of a request ends, so that what a client sends after it goes to nobody.

/// Most digits of a chunk's size.
const SIZE_DIGITS_MAX: u8 = 15;
/// Longest line of a chunk's size or of what follows the last one.
const LINE_MAX: u32 = 8 * 1024;

/// A body that is being passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    /// So many bytes are still to come.
    Sized(u64),
    Chunked(Chunk),
}

/// Where in a chunked body the next byte belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Chunk {
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
pub(crate) struct Broken;

impl Body {
    pub(crate) fn chunked() -> Body {
        Body::Chunked(Chunk::Size { size: 0, digits: 0 })
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Body::Sized(0) | Body::Chunked(Chunk::Over))
    }

    /// How many of these bytes still belong to the body.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        match self {
            Body::Sized(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= taken as u64;
                Ok(taken)
            }
            Body::Chunked(chunk) => take_chunked(chunk, bytes),
        }
    }
}

fn take_chunked(chunk: &mut Chunk, bytes: &[u8]) -> Result<usize, Broken> {
    let mut at = 0;
    while at < bytes.len() && *chunk != Chunk::Over {
        if let Chunk::Data { left } = chunk {
            let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len() - at);
            *left -= taken as u64;
            at += taken;
            if *left == 0 {
                *chunk = Chunk::DataEnd;
            }
        } else {
            *chunk = after(chunk, bytes[at])?;
            at += 1;
        }
    }
    Ok(at)
}

/// The place behind one byte that is not data.
fn after(chunk: &Chunk, byte: u8) -> Result<Chunk, Broken> {
    Ok(match *chunk {
        Chunk::Size { size, digits } => match char::from(byte).to_digit(16) {
            Some(digit) if digits < SIZE_DIGITS_MAX => {
                Chunk::Size { size: size * 16 + u64::from(digit), digits: digits + 1 }
            }
            Some(_) => return Err(Broken),
            None if digits == 0 => return Err(Broken),
            None => after(&Chunk::AfterSize { size, len: 0 }, byte)?,
        },
        Chunk::AfterSize { size: 0, .. } if byte == b'\n' => Chunk::Trailer { len: 0 },
        Chunk::AfterSize { size, .. } if byte == b'\n' => Chunk::Data { left: size },
        Chunk::AfterSize { size, len } if len < LINE_MAX => Chunk::AfterSize { size, len: len + 1 },
        Chunk::DataEnd if byte == b'\r' => Chunk::DataEnd,
        Chunk::DataEnd if byte == b'\n' => Chunk::Size { size: 0, digits: 0 },
        Chunk::Trailer { len: 0 } if byte == b'\n' => Chunk::Over,
        Chunk::Trailer { .. } if byte == b'\n' => Chunk::Trailer { len: 0 },
        Chunk::Trailer { len } if byte == b'\r' => Chunk::Trailer { len },
        Chunk::Trailer { len } if len < LINE_MAX => Chunk::Trailer { len: len + 1 },
        Chunk::AfterSize { .. } | Chunk::DataEnd | Chunk::Trailer { .. } => return Err(Broken),
        Chunk::Data { left } => Chunk::Data { left },
        Chunk::Over => Chunk::Over,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds a body in pieces of `step` bytes and says how much of it belongs to it.
    fn length(body: &Body, bytes: &[u8], step: usize) -> Result<(usize, bool), Broken> {
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
            (Body::Sized(5), "hello"),
            (Body::Sized(0), ""),
            (Body::chunked(), chunked),
            (Body::chunked(), "0\r\n\r\n"),
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
            assert_eq!(length(&Body::chunked(), text.as_bytes(), 7), Err(Broken), "{text:.20}");
        }
    }
}
