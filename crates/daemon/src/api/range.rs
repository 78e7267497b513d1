//! The `ByteRange` header, for one range of bytes.

/// From the first to the last byte, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::api) struct ByteRange {
    pub first: u64,
    pub last: u64,
}

impl ByteRange {
    /// As the header `Content-ByteRange` has it.
    pub fn told(&self, length: u64) -> String {
        format!("bytes {}-{}/{length}", self.first, self.last)
    }
}

/// None of the requested bytes exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::api) struct OutOfRange;

/// The requested range of this many bytes. None: everything, also for a header that a server may ignore, because it is
/// malformed or has several ranges.
pub(in crate::api) fn wanted_range(header: &str, length: u64) -> Result<Option<ByteRange>, OutOfRange> {
    let Some((first, last)) = header.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Ok(None);
    };
    let range = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => (first, last.min(length.saturating_sub(1))),
        (Some(first), None) if last.is_empty() => (first, length.saturating_sub(1)),
        // The last bytes.
        (None, Some(count)) if first.is_empty() => {
            let first = if count == 0 { length } else { length.saturating_sub(count) };
            (first, length.saturating_sub(1))
        }
        (Some(_), Some(_)) | (Some(_) | None, None) | (None, Some(_)) => return Ok(None),
    };
    if range.0 >= length {
        return Err(OutOfRange);
    }
    Ok(Some(ByteRange { first: range.0, last: range.1 }))
}

fn number(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_is_understood_and_anything_else_is_the_whole() {
        let check = |header: &str, wanted: Option<(u64, u64)>| {
            let range = wanted_range(header, 100).unwrap().map(|range| (range.first, range.last));
            assert_eq!(range, wanted, "{header}");
        };
        check("bytes=0-0", Some((0, 0)));
        check("bytes=10-19", Some((10, 19)));
        check("bytes=10-", Some((10, 99)));
        check("bytes=90-500", Some((90, 99)));
        check("bytes=-5", Some((95, 99)));
        check("bytes=-500", Some((0, 99)));
        for whole in
            ["", "bytes=", "bytes=-", "bytes=5-4", "bytes=0-1,4-5", "lines=0-1", "bytes=+1-2", "bytes= 1-2"]
        {
            check(whole, None);
        }
    }

    #[test]
    fn a_range_behind_the_end_cannot_be_served() {
        for (header, length) in
            [("bytes=100-", 100), ("bytes=100-200", 100), ("bytes=-0", 100), ("bytes=0-", 0)]
        {
            assert_eq!(wanted_range(header, length), Err(OutOfRange), "{header}");
        }
    }
}
