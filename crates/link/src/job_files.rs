//! The files of a long stream of a job: its head under the stream's own name, its end in segments.

/// A file that holds a part of a stream beyond its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Segment {
    /// Where in the stream its first byte is.
    pub base: u64,
}

/// The name of the segment that begins at `base`.
pub fn segment_name(stream_file: &str, base: u64) -> String {
    format!("{stream_file}.{base}")
}

impl Segment {
    /// The segment of this stream that a file is, if it is one.
    pub fn parse(stream_file: &str, name: &str) -> Option<Segment> {
        let digits = name.strip_prefix(stream_file)?.strip_prefix('.')?;
        let base: u64 = digits.parse().ok()?;
        // One name for each: `+7` and `007` are numbers, too.
        (base.to_string() == digits).then_some(Segment { base })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_has_exactly_one_name() {
        for base in [0, 7, u64::MAX] {
            let name = segment_name("stdout", base);
            assert_eq!(Segment::parse("stdout", &name), Some(Segment { base }));
            assert_eq!(Segment::parse("stderr", &name), None);
        }
        for other in ["stdout", "stdout.", "stdout.+7", "stdout.007", "stdout.-1", "stdout.7x", "stdouts.7"] {
            assert_eq!(Segment::parse("stdout", other), None, "{other}");
        }
    }
}
