//! The field encoding below frames, records and specs: little-endian integers, length-prefixed bytes.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::limits::{LIST_MAX, TEXT_MAX};

/// Why bytes are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeError {
    /// They end within a field that every version has.
    Short,
    /// A list claims more elements than [`LIST_MAX`].
    TooMany,
    /// A text is not UTF-8.
    NotText,
    /// A tag has no meaning in any version known here.
    BadTag(u8),
    /// They do not open with the mark of their kind.
    BadMagic,
    /// They are not what was sealed.
    BadSeal,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Short => out.write_str("the data ends too early"),
            DecodeError::TooMany => out.write_str("a list is too long"),
            DecodeError::NotText => out.write_str("a text is not UTF-8"),
            DecodeError::BadTag(tag) => write!(out, "unknown tag {tag}"),
            DecodeError::BadMagic => out.write_str("the data is of another kind"),
            DecodeError::BadSeal => out.write_str("the data was damaged"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Appends fields to a buffer.
#[derive(Debug, Default)]
pub(crate) struct FieldWriter {
    pub(crate) out: Vec<u8>,
}

impl FieldWriter {
    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.out.push(value);
        self
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.out.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.out.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.u32(count(value.len()));
        self.out.extend_from_slice(value);
        self
    }

    pub(crate) fn os(&mut self, value: &OsStr) -> &mut Self {
        self.bytes(value.as_bytes())
    }

    pub(crate) fn fixed(&mut self, value: &[u8]) -> &mut Self {
        self.out.extend_from_slice(value);
        self
    }

    /// A text that people read, cut at [`TEXT_MAX`].
    pub(crate) fn text(&mut self, value: &str) -> &mut Self {
        let mut end = value.len().min(TEXT_MAX);
        while !value.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes(&value.as_bytes()[..end])
    }

    /// Each element is length-prefixed, so that elements can grow fields too.
    pub(crate) fn list<T>(&mut self, items: &[T], mut put: impl FnMut(&mut FieldWriter, &T)) -> &mut Self {
        self.u32(count(items.len()));
        for item in items {
            let at = self.out.len();
            self.u32(0);
            put(self, item);
            let len = count(self.out.len() - at - 4);
            self.out[at..at + 4].copy_from_slice(&len.to_le_bytes());
        }
        self
    }
}

/// Lengths are bounded far below 4 GiB by `limits`, so saturating never happens in a valid frame.
fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Takes fields off the front of a slice.
#[derive(Debug)]
pub(crate) struct FieldReader<'a> {
    rest: &'a [u8],
}

impl<'a> FieldReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> FieldReader<'a> {
        FieldReader { rest: bytes }
    }

    /// Whether an earlier version would have ended here.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn fixed<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.fixed()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.fixed()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.fixed()?))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.u32()? as usize;
        let (head, rest) = self.rest.split_at_checked(len).ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn os(&mut self) -> Result<OsString, DecodeError> {
        Ok(OsString::from_vec(self.bytes()?.to_vec()))
    }

    pub(crate) fn text(&mut self) -> Result<String, DecodeError> {
        let text = std::str::from_utf8(self.bytes()?).map_err(|_| DecodeError::NotText)?;
        Ok(text.to_owned())
    }

    pub(crate) fn list<T>(
        &mut self,
        mut take: impl FnMut(&mut FieldReader<'a>) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let len = self.u32()? as usize;
        if len > LIST_MAX {
            return Err(DecodeError::TooMany);
        }
        // Every element costs at least its length, so a lying count cannot reserve more than was sent.
        let mut items = Vec::with_capacity(len.min(self.rest.len() / 4));
        for _ in 0..len {
            items.push(take(&mut FieldReader::new(self.bytes()?))?);
        }
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_comes_back() {
        let mut put = FieldWriter::default();
        put.u8(7).u32(70_000).u64(1 << 40).bytes(b"ab").text("cd").list(&[1u32, 2], |put, n| {
            put.u32(*n);
        });
        let mut take = FieldReader::new(&put.out);
        assert_eq!(take.u8(), Ok(7));
        assert_eq!(take.u32(), Ok(70_000));
        assert_eq!(take.u64(), Ok(1 << 40));
        assert_eq!(take.bytes(), Ok(&b"ab"[..]));
        assert_eq!(take.text(), Ok("cd".to_owned()));
        assert_eq!(take.list(|take| take.u32()), Ok(vec![1, 2]));
        assert!(take.rest.is_empty());
    }

    #[test]
    fn a_cut_field_is_short_and_a_huge_list_is_refused() {
        assert_eq!(FieldReader::new(&[1, 2, 3]).u32(), Err(DecodeError::Short));
        assert_eq!(FieldReader::new(&[9, 0, 0, 0, 1]).bytes(), Err(DecodeError::Short));
        assert_eq!(FieldReader::new(&[255; 8]).list(|take| take.u8()), Err(DecodeError::TooMany));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let mut put = FieldWriter::default();
        put.text(&"ä".repeat(TEXT_MAX));
        let text = FieldReader::new(&put.out).text().unwrap();
        assert!(text.len() <= TEXT_MAX && text.chars().all(|c| c == 'ä'));
    }
}
