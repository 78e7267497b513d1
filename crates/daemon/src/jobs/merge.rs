//! Both streams of a job as one, in the order in which they were written.
//!
//! A place in it is a number of bytes of both streams together, kept or not, so that its meaning never changes.

use lodge_exec::{OrderRuns, StreamKind};

use super::read::OutputSlice;

/// How far the streams of a job are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamEnds {
    pub stdout: u64,
    pub stderr: u64,
    /// Nothing will follow.
    pub over: bool,
}

impl StreamEnds {
    fn of(self, who: StreamKind) -> u64 {
        match who {
            StreamKind::Stdout => self.stdout,
            StreamKind::Stderr => self.stderr,
        }
    }
}

/// A part of a stream without a hole: from the requested offset, or from the next byte that was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputSpan {
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// At most `len_max` bytes of both streams from `offset` on, or from the first kept byte behind it.
///
/// `order` must be read after `known`: then all known bytes of the current stream belong to its last run, as long as
/// the other stream has not written since. Bytes of the other stream beyond the marks are not returned before the job
/// has ended.
pub fn merged<E>(
    order: &[u8],
    known: StreamEnds,
    offset: u64,
    len_max: usize,
    mut read: impl FnMut(StreamKind, u64) -> Result<OutputSpan, E>,
) -> Result<OutputSlice, E> {
    let mut piece = OutputSlice { offset, bytes: Vec::new(), end: false };
    let mut held = [None, None];
    let mut place = 0;
    for (who, from, len) in Spans::new(order, known) {
        let mut at = from + offset.saturating_sub(place).min(len);
        place += len;
        while at < from + len {
            if piece.bytes.len() == len_max {
                return Ok(piece);
            }
            let stretch = stretch(&mut held, who, at, &mut read)?;
            let kept_from = stretch.offset.max(at);
            if kept_from > at || stretch.bytes.is_empty() {
                if !piece.bytes.is_empty() {
                    return Ok(piece);
                }
                at = if stretch.bytes.is_empty() { from + len } else { kept_from.min(from + len) };
                continue;
            }
            let first = usize::try_from(at - stretch.offset).unwrap_or(usize::MAX);
            let rest = stretch.bytes.get(first..).unwrap_or_default();
            let most =
                usize::try_from(from + len - at).unwrap_or(usize::MAX).min(len_max - piece.bytes.len());
            let taken = &rest[..rest.len().min(most)];
            if piece.bytes.is_empty() {
                piece.offset = place - (from + len - at);
            }
            piece.bytes.extend_from_slice(taken);
            at += taken.len() as u64;
        }
    }
    if piece.bytes.is_empty() && known.over {
        piece.offset = place.max(offset);
    }
    piece.end = known.over;
    Ok(piece)
}

/// The part of a stream that has the byte at `at`, or begins behind it: the one at hand, or the next.
fn stretch<'h, E>(
    held: &'h mut [Option<OutputSpan>; 2],
    who: StreamKind,
    at: u64,
    read: &mut impl FnMut(StreamKind, u64) -> Result<OutputSpan, E>,
) -> Result<&'h OutputSpan, E> {
    let slot = match who {
        StreamKind::Stdout => &mut held[0],
        StreamKind::Stderr => &mut held[1],
    };
    // One without bytes says that nothing is kept from where it begins on.
    let fits = |held: &OutputSpan| held.bytes.is_empty() || at < held.offset + held.bytes.len() as u64;
    let stretch = match slot.take().filter(fits) {
        Some(held) => held,
        None => read(who, at)?,
    };
    Ok(slot.insert(stretch))
}

/// Runs, each as whose it is, where it begins in that stream, and how long it is.
struct Spans<'o> {
    runs: OrderRuns<'o>,
    known: StreamEnds,
    at: [u64; 2],
    stage: MergeStage,
}

#[derive(Clone, Copy)]
enum MergeStage {
    Marked,
    /// What follows the last mark.
    Rest(StreamKind),
    /// The rest of the other stream: beyond the last mark its order is unknown.
    Other(StreamKind),
    Done,
}

impl<'o> Spans<'o> {
    fn new(order: &'o [u8], known: StreamEnds) -> Spans<'o> {
        Spans { runs: OrderRuns::new(order), known, at: [0; 2], stage: MergeStage::Marked }
    }

    fn span(&mut self, who: StreamKind, len: u64) -> (StreamKind, u64, u64) {
        let at = match who {
            StreamKind::Stdout => &mut self.at[0],
            StreamKind::Stderr => &mut self.at[1],
        };
        let from = *at;
        *at += len;
        (who, from, len)
    }

    fn left(&self, who: StreamKind) -> u64 {
        let at = match who {
            StreamKind::Stdout => self.at[0],
            StreamKind::Stderr => self.at[1],
        };
        self.known.of(who).saturating_sub(at)
    }
}

impl Iterator for Spans<'_> {
    type Item = (StreamKind, u64, u64);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.stage {
                MergeStage::Marked => match self.runs.next() {
                    Some((who, run)) => {
                        let left = self.left(who);
                        // A mark that is ahead of what is known: what comes after it has to wait.
                        if run > left && !self.known.over {
                            self.stage = MergeStage::Done;
                        }
                        return Some(self.span(who, run.min(left)));
                    }
                    None => self.stage = MergeStage::Rest(self.runs.turn()),
                },
                MergeStage::Rest(who) => {
                    self.stage =
                        if self.known.over { MergeStage::Other(who.other()) } else { MergeStage::Done };
                    return Some(self.span(who, self.left(who)));
                }
                MergeStage::Other(who) => {
                    self.stage = MergeStage::Done;
                    return Some(self.span(who, self.left(who)));
                }
                MergeStage::Done => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use StreamKind::{Stderr, Stdout};

    /// The output of a job, in order, with its marks.
    struct MarkedOutput {
        order: Vec<u8>,
        streams: [Vec<u8>; 2],
        merged: Vec<u8>,
    }

    fn said(spoken: &[(StreamKind, &str)]) -> MarkedOutput {
        let mut marks = crate::jobs::tests::Marks::default();
        let (mut order, mut streams, mut merged) = (Vec::new(), [Vec::new(), Vec::new()], Vec::new());
        for (who, text) in spoken {
            order.extend(marks.spoke(*who, text.len() as u64));
            streams[usize::from(*who == Stderr)].extend(text.bytes());
            merged.extend(text.bytes());
        }
        MarkedOutput { order, streams, merged }
    }

    impl MarkedOutput {
        fn known(&self, over: bool) -> StreamEnds {
            StreamEnds { stdout: self.streams[0].len() as u64, stderr: self.streams[1].len() as u64, over }
        }

        fn piece(
            &self,
            known: StreamEnds,
            kept: impl Fn(StreamKind, u64) -> bool,
            offset: u64,
            len_max: usize,
        ) -> OutputSlice {
            merged(&self.order, known, offset, len_max, |who, at| {
                let bytes = &self.streams[usize::from(who == Stderr)];
                let mut from = at;
                while from < bytes.len() as u64 && !kept(who, from) {
                    from += 1;
                }
                let mut upto = from;
                while upto < bytes.len() as u64 && kept(who, upto) && upto < from + 3 {
                    upto += 1;
                }
                let bytes = bytes.get(from as usize..upto as usize).unwrap_or_default().to_vec();
                Ok::<_, ()>(OutputSpan { offset: from, bytes })
            })
            .unwrap()
        }
    }

    fn talk() -> MarkedOutput {
        said(&[
            (Stderr, "warning\n"),
            (Stdout, "one\n"),
            (Stdout, "two\n"),
            (Stderr, "oh\n"),
            (Stdout, "three\n"),
            (Stderr, "end\n"),
        ])
    }

    #[test]
    fn both_streams_come_in_the_order_in_which_they_spoke_from_any_offset_in_pieces_of_any_length() {
        let said = talk();
        for offset in 0..=said.merged.len() {
            for len_max in 1..=said.merged.len() + 1 {
                let piece = said.piece(said.known(true), |_, _| true, offset as u64, len_max);
                let upto = said.merged.len().min(offset + len_max);
                assert_eq!(piece.offset, offset as u64);
                assert_eq!(piece.bytes, &said.merged[offset..upto], "{offset} {len_max}");
                assert!(!piece.end || upto == said.merged.len());
            }
        }
        assert!(said.piece(said.known(true), |_, _| true, said.merged.len() as u64, 9).end);
    }

    #[test]
    fn what_was_reported_of_a_job_that_runs_stays_where_it_was_reported() {
        let said = talk();
        let marks_max = said.order.len();
        // Every moment that a reader can meet: so much of both streams, and no fewer marks than belong to it.
        for (out, err) in
            (0..=said.streams[0].len()).flat_map(|out| (0..=said.streams[1].len()).map(move |err| (out, err)))
        {
            for marks in 0..=marks_max {
                let known = StreamEnds { stdout: out as u64, stderr: err as u64, over: false };
                let reached = reached(&said, &said.order[..marks], known);
                if !reached {
                    continue;
                }
                let now = MarkedOutput {
                    order: said.order[..marks].to_vec(),
                    streams: said.streams.clone(),
                    merged: Vec::new(),
                };
                let told = now.piece(known, |_, _| true, 0, 1_000).bytes;
                assert!(
                    said.merged.starts_with(&told),
                    "{out} {err} {marks}: {:?}",
                    String::from_utf8_lossy(&told)
                );
            }
        }
    }

    /// Whether a keeper could have written this many marks and bytes: each mark follows the first bytes of the run
    /// after it, and precedes the run after that.
    fn reached(said: &MarkedOutput, order: &[u8], known: StreamEnds) -> bool {
        let all: Vec<(StreamKind, u64)> =
            Spans::new(&said.order, said.known(true)).map(|(who, _, len)| (who, len)).collect();
        let marked = OrderRuns::new(order).count();
        let mut at = [0, 0];
        let mut max = [0, 0];
        for (index, (who, len)) in all.iter().enumerate() {
            let of = usize::from(*who == Stderr);
            at[of] += len;
            // The current run and, unmarked so far, the beginning of the next.
            if index <= marked + 1 {
                max[of] = at[of];
            }
        }
        known.stdout <= max[0] && known.stderr <= max[1]
    }

    #[test]
    fn holes_are_passed_over_and_places_stay_what_they_are() {
        let said = talk();
        // The middle of stdout was dropped: "e\ntw".
        let kept = |who: StreamKind, at: u64| who == Stderr || !(2..6).contains(&at);
        let first = said.piece(said.known(true), kept, 0, 1_000);
        assert_eq!((first.offset, first.bytes.as_slice()), (0, &b"warning\non"[..]));
        let next = said.piece(said.known(true), kept, 10, 1_000);
        assert_eq!((next.offset, next.bytes.as_slice()), (14, &b"o\noh\nthree\nend\n"[..]));
        assert!(next.end);
        let nothing = said.piece(said.known(true), |_, _| false, 3, 1_000);
        assert_eq!((nothing.offset, nothing.end), (said.merged.len() as u64, true));
    }

    #[test]
    fn without_marks_one_stream_follows_the_other_once_the_job_is_over() {
        let mut said = said(&[(Stdout, "a"), (Stderr, "b"), (Stdout, "c")]);
        said.order.clear();
        assert_eq!(said.piece(said.known(false), |_, _| true, 0, 9).bytes, b"ac");
        assert_eq!(said.piece(said.known(true), |_, _| true, 0, 9).bytes, b"acb");
    }
}
