//! `job/output`: a piece of what a job wrote, now or as soon as there is one.

use std::sync::Arc;
use std::time::Duration;

use lodge_core::JobId;
use lodge_core::job::JobRow;
use lodge_proto::{ApiMethod, ErrorBody, JobOutput, JobOutputParams, ReadJobOutput, base64};
use tokio::sync::watch::Receiver;

use super::{job_id, job_now, refused};
use crate::auth::ApiCaller;
use crate::jobs::{OutputProgress, OutputSelection, OutputSlice};
use crate::shell::Shell;

/// Bytes of one answer: as many as fit well into a message, and at most.
const PIECE_DEFAULT: u64 = 256 * 1024;
const PIECE_MAX: u64 = 1024 * 1024;
const WAIT_MAX_MS: u64 = 30_000;

pub(super) async fn output(
    shell: &Arc<Shell>,
    who: &ApiCaller,
    given: JobOutputParams,
) -> Result<JobOutput, ErrorBody> {
    let id = job_id(shell, given.job).await?;
    let pick = given.stream.as_deref().map_or(Ok(OutputSelection::Stdout), pick)?;
    let len_max = usize::try_from(given.limit.unwrap_or(PIECE_DEFAULT).clamp(1, PIECE_MAX)).unwrap_or(1);
    let offset = given.offset.unwrap_or(0);
    let mut reading = JobOutputReader::new(shell, &id, pick, offset, len_max);
    let wait = Duration::from_millis(given.wait_ms.unwrap_or(0).min(WAIT_MAX_MS));
    let late = tokio::time::sleep(wait);
    tokio::pin!(late);
    let piece = loop {
        let piece = reading.read().await?;
        if reading.moves(&piece) || wait.is_zero() {
            break piece;
        }
        tokio::select! {
            () = &mut late => break piece,
            () = shell.stop.cancelled() => break piece,
            _ = who.over() => return Err(refused(who, ReadJobOutput::NAME)),
            more = reading.more() => if !more { break reading.read().await? },
        }
    };
    Ok(answer(&id, pick, offset, piece))
}

pub(super) fn pick(word: &str) -> Result<OutputSelection, ErrorBody> {
    OutputSelection::from_word(word).ok_or_else(|| {
        ErrorBody::new("params.invalid", format!("`{word}` is not a stream of a job"))
            .hint("those are stdout, stderr and merged")
    })
}

/// Reads the output of a job piece by piece, and waits for the next.
pub(super) struct JobOutputReader {
    shell: Arc<Shell>,
    id: JobId,
    pick: OutputSelection,
    pub offset: u64,
    len_max: usize,
    changed: Receiver<OutputProgress>,
}

impl JobOutputReader {
    /// From now on nothing is missed.
    pub fn new(
        shell: &Arc<Shell>,
        id: &JobId,
        pick: OutputSelection,
        offset: u64,
        len_max: usize,
    ) -> JobOutputReader {
        let changed = shell.job_changed(id);
        JobOutputReader { shell: shell.clone(), id: id.clone(), pick, offset, len_max, changed }
    }

    pub async fn row(&self) -> Result<JobRow, ErrorBody> {
        let row = job_now(&self.shell, &self.id).await?.row;
        if row.output_removed {
            let message = format!("the output of {} was removed", self.id);
            return Err(ErrorBody::new("job.output_removed", message)
                .hint("`job-retention-bytes` limits the kept output of old jobs"));
        }
        Ok(row)
    }

    /// What there is at the offset.
    pub async fn read(&self) -> Result<OutputSlice, ErrorBody> {
        let row = self.row().await?;
        Ok(self.shell.job_read(&row, self.pick, self.offset, self.len_max).await?)
    }

    /// Whether a piece says anything.
    pub fn moves(&self, piece: &OutputSlice) -> bool {
        piece.end || !piece.bytes.is_empty() || piece.offset > self.offset
    }

    /// Waits until there is something behind the offset, or the job is over. False: there is nothing to wait for.
    pub async fn more(&mut self) -> bool {
        let (pick, offset) = (self.pick, self.offset);
        let there_is = move |written: &OutputProgress| {
            let bytes = match pick {
                OutputSelection::Stdout => written.stdout,
                OutputSelection::Stderr => written.stderr,
                OutputSelection::Merged => written.stdout.saturating_add(written.stderr),
            };
            written.ended || bytes > offset
        };
        loop {
            // A count from before the last read is not new.
            if self.changed.changed().await.is_err() {
                return false;
            }
            if there_is(&self.changed.borrow_and_update()) {
                return true;
            }
        }
    }
}

fn answer(id: &JobId, pick: OutputSelection, asked: u64, piece: OutputSlice) -> JobOutput {
    let OutputSlice { offset, bytes, end } = piece;
    let whole = bytes.len();
    let (data, encoding, taken) = written(bytes);
    JobOutput {
        job: id.to_string(),
        stream: pick.word().to_owned(),
        offset,
        next: offset + taken as u64,
        data,
        encoding: encoding.to_owned(),
        dropped: offset.saturating_sub(asked),
        end: end && taken == whole,
    }
}

/// Bytes as JSON can carry them, and how many of them. A letter that is cut off at the end is left for the next piece.
pub(in crate::api) fn written(bytes: Vec<u8>) -> (String, &'static str, usize) {
    let error = match String::from_utf8(bytes) {
        Ok(text) => {
            let taken = text.len();
            return (text, "utf8", taken);
        }
        Err(error) => error,
    };
    let (valid, cut) = (error.utf8_error().valid_up_to(), error.utf8_error().error_len().is_none());
    let bytes = error.into_bytes();
    if cut && valid > 0 {
        return (String::from_utf8_lossy(&bytes[..valid]).into_owned(), "utf8", valid);
    }
    (base64::encode(&bytes), "base64", bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_reported_as_text_up_to_a_letter_that_is_cut_and_other_bytes_as_base64() {
        let check = |bytes: &[u8], data: &str, encoding: &str, taken: usize| {
            assert_eq!(written(bytes.to_vec()), (data.to_owned(), encoding, taken), "{bytes:?}");
        };
        check(b"", "", "utf8", 0);
        check("aä".as_bytes(), "aä", "utf8", 3);
        check(&"aä".as_bytes()[..2], "a", "utf8", 1);
        check(&"ä".as_bytes()[..1], "ww==", "base64", 1);
        check(b"a\xffb", "Yf9i", "base64", 3);
        check(b"a\0b", "a\0b", "utf8", 3);
    }

    #[test]
    fn the_end_is_not_reported_before_the_last_byte_is() {
        let id = "job_1".parse().unwrap();
        let piece = |bytes: &[u8]| OutputSlice { offset: 10, bytes: bytes.to_vec(), end: true };
        let cut = answer(&id, OutputSelection::Stdout, 4, piece(&"aä".as_bytes()[..2]));
        assert_eq!((cut.dropped, cut.offset, cut.next, cut.end), (6, 10, 11, false));
        let rest = answer(
            &id,
            OutputSelection::Stdout,
            11,
            OutputSlice { offset: 11, ..piece(&"ä".as_bytes()[..1]) },
        );
        assert_eq!((rest.dropped, rest.next, rest.end, rest.encoding.as_str()), (0, 12, true, "base64"));
    }
}
