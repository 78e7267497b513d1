//! Both streams of a job as one, in the order in which they were written.
//!
//! A place in it is a number of bytes of both streams together, kept or not, so that it means the same for ever.

use lodge_exec::{OrderRuns, Speaker};

use super::read::Piece;

/// How far the streams of a job are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    pub stdout: u64,
    pub stderr: u64,
    /// Nothing will follow.
    pub over: bool,
}

impl Known {
    fn of(self, who: Speaker) -> u64 {
        match who {
            Speaker::Stdout => self.stdout,
            Speaker::Stderr => self.stderr,
        }
    }
}

/// A part of a stream without a hole: from the offset that was asked for, or from the first byte kept behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// At most `len_max` bytes of both streams from `offset` on, or from the first kept byte behind it.
///
/// `order` must have been read after `known`: then whatever is known of the stream whose turn it is belongs to its last
/// run, as long as the other one has not spoken since. Of the other one nothing is told beyond the marks before the job is
/// over.
pub fn merged<E>(
    order: &[u8],
    known: Known,
    offset: u64,
    len_max: usize,
    mut read: impl FnMut(Speaker, u64) -> Result<Stretch, E>,
) -> Result<Piece, E> {
    let mut piece = Piece { offset, bytes: Vec::new(), end: false };
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
    held: &'h mut [Option<Stretch>; 2],
    who: Speaker,
    at: u64,
    read: &mut impl FnMut(Speaker, u64) -> Result<Stretch, E>,
) -> Result<&'h Stretch, E> {
    let slot = match who {
        Speaker::Stdout => &mut held[0],
        Speaker::Stderr => &mut held[1],
    };
    // One without bytes says that nothing is kept from where it begins on.
    let fits = |held: &Stretch| held.bytes.is_empty() || at < held.offset + held.bytes.len() as u64;
    let stretch = match slot.take().filter(fits) {
        Some(held) => held,
        None => read(who, at)?,
    };
    Ok(slot.insert(stretch))
}

/// Runs, each as whose it is, where it begins in that stream, and how long it is.
struct Spans<'o> {
    runs: OrderRuns<'o>,
    known: Known,
    at: [u64; 2],
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    Marked,
    /// What follows the last mark.
    Rest(Speaker),
    /// What the other one had to say: where there was no room for more marks nobody knows when.
    Other(Speaker),
    Done,
}

impl<'o> Spans<'o> {
    fn new(order: &'o [u8], known: Known) -> Spans<'o> {
        Spans { runs: OrderRuns::new(order), known, at: [0; 2], stage: Stage::Marked }
    }

    fn span(&mut self, who: Speaker, len: u64) -> (Speaker, u64, u64) {
        let at = match who {
            Speaker::Stdout => &mut self.at[0],
            Speaker::Stderr => &mut self.at[1],
        };
        let from = *at;
        *at += len;
        (who, from, len)
    }

    fn left(&self, who: Speaker) -> u64 {
        let at = match who {
            Speaker::Stdout => self.at[0],
            Speaker::Stderr => self.at[1],
        };
        self.known.of(who).saturating_sub(at)
    }
}

impl Iterator for Spans<'_> {
    type Item = (Speaker, u64, u64);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.stage {
                Stage::Marked => match self.runs.next() {
                    Some((who, run)) => {
                        let left = self.left(who);
                        // A mark that is ahead of what is known: what comes after it has to wait.
                        if run > left && !self.known.over {
                            self.stage = Stage::Done;
                        }
                        return Some(self.span(who, run.min(left)));
                    }
                    None => self.stage = Stage::Rest(self.runs.turn()),
                },
                Stage::Rest(who) => {
                    self.stage = if self.known.over { Stage::Other(who.other()) } else { Stage::Done };
                    return Some(self.span(who, self.left(who)));
                }
                Stage::Other(who) => {
                    self.stage = Stage::Done;
                    return Some(self.span(who, self.left(who)));
                }
                Stage::Done => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Speaker::{Stderr, Stdout};

    /// What a job said, in order, with the marks of it.
    struct MarkedOutput {
        order: Vec<u8>,
        streams: [Vec<u8>; 2],
        merged: Vec<u8>,
    }

    fn said(spoken: &[(Speaker, &str)]) -> MarkedOutput {
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
        fn known(&self, over: bool) -> Known {
            Known { stdout: self.streams[0].len() as u64, stderr: self.streams[1].len() as u64, over }
        }

        fn piece(
            &self,
            known: Known,
            kept: impl Fn(Speaker, u64) -> bool,
            offset: u64,
            len_max: usize,
        ) -> Piece {
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
                Ok::<_, ()>(Stretch { offset: from, bytes })
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
    fn what_was_told_of_a_job_that_runs_stays_where_it_was_told() {
        let said = talk();
        let marks_max = said.order.len();
        // Every moment that a reader can meet: so much of both streams, and no fewer marks than belong to it.
        for (out, err) in
            (0..=said.streams[0].len()).flat_map(|out| (0..=said.streams[1].len()).map(move |err| (out, err)))
        {
            for marks in 0..=marks_max {
                let known = Known { stdout: out as u64, stderr: err as u64, over: false };
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

    /// Whether a keeper could have written so many marks and bytes: each mark follows the first bytes of the run after it,
    /// and comes before any of the run after that.
    fn reached(said: &MarkedOutput, order: &[u8], known: Known) -> bool {
        let all: Vec<(Speaker, u64)> =
            Spans::new(&said.order, said.known(true)).map(|(who, _, len)| (who, len)).collect();
        let marked = OrderRuns::new(order).count();
        let mut at = [0, 0];
        let mut max = [0, 0];
        for (index, (who, len)) in all.iter().enumerate() {
            let of = usize::from(*who == Stderr);
            at[of] += len;
            // The run under way and, unmarked so far, the beginning of the next.
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
        let kept = |who: Speaker, at: u64| who == Stderr || !(2..6).contains(&at);
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
