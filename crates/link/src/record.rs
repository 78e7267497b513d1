//! How an exec ended, as its keeper writes it to `exec/<id>/exit`.

use crate::wire::{DecodeError, Put, Take};

const MAGIC: &[u8; 4] = b"LXR1";

/// How a main process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It exited by itself.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
    /// It never ran: the claim was made, the program could not be started.
    NotStarted { errno: i32, why: String },
}

/// Bytes of one stream: all that were written, and those that fit under the cap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    pub seen: u64,
    pub kept: u64,
}

/// What the main process and the children it waited for used up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub user_us: u64,
    pub system_us: u64,
    pub max_rss_kb: u64,
}

/// The outcome of one exec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitRecord {
    pub ended: Ended,
    pub started_ms: u64,
    pub finished_ms: u64,
    pub stdout: Counted,
    pub stderr: Counted,
    pub usage: Usage,
    /// What the keeper had to do with it beyond waiting, or empty.
    pub note: String,
}

impl ExitRecord {
    pub fn encode(&self) -> Vec<u8> {
        let mut put = Put::default();
        put.fixed(MAGIC);
        match &self.ended {
            Ended::Code(code) => put.u8(1).u32(code.cast_unsigned()).text(""),
            Ended::Signal(signal) => put.u8(2).u32(signal.cast_unsigned()).text(""),
            Ended::NotStarted { errno, why } => put.u8(3).u32(errno.cast_unsigned()).text(why),
        };
        put.u64(self.started_ms).u64(self.finished_ms);
        put.u64(self.stdout.seen).u64(self.stdout.kept).u64(self.stderr.seen).u64(self.stderr.kept);
        put.u64(self.usage.user_us).u64(self.usage.system_us).u64(self.usage.max_rss_kb);
        put.text(&self.note);
        put.out
    }

    pub fn decode(bytes: &[u8]) -> Result<ExitRecord, DecodeError> {
        let mut take = Take::new(bytes);
        if &take.fixed::<4>()? != MAGIC {
            return Err(DecodeError::BadMagic);
        }
        let (tag, number, why) = (take.u8()?, take.u32()?.cast_signed(), take.text()?);
        let ended = match tag {
            1 => Ended::Code(number),
            2 => Ended::Signal(number),
            3 => Ended::NotStarted { errno: number, why },
            unknown => return Err(DecodeError::BadTag(unknown)),
        };
        Ok(ExitRecord {
            ended,
            started_ms: take.u64()?,
            finished_ms: take.u64()?,
            stdout: Counted { seen: take.u64()?, kept: take.u64()? },
            stderr: Counted { seen: take.u64()?, kept: take.u64()? },
            usage: Usage { user_us: take.u64()?, system_us: take.u64()?, max_rss_kb: take.u64()? },
            note: take.text()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ended: Ended) -> ExitRecord {
        ExitRecord {
            ended,
            started_ms: 1,
            finished_ms: 2,
            stdout: Counted { seen: 3, kept: 4 },
            stderr: Counted { seen: 5, kept: 6 },
            usage: Usage { user_us: 7, system_us: 8, max_rss_kb: 9 },
            note: "cut".to_owned(),
        }
    }

    #[test]
    fn a_record_comes_back_and_ignores_what_later_versions_add() {
        let refused = Ended::NotStarted { errno: 2, why: "no program".to_owned() };
        for ended in [Ended::Code(-1), Ended::Signal(9), refused] {
            let record = sample(ended);
            let mut bytes = record.encode();
            assert_eq!(ExitRecord::decode(&bytes), Ok(record.clone()));
            bytes.extend_from_slice(b"added later");
            assert_eq!(ExitRecord::decode(&bytes), Ok(record));
        }
    }

    #[test]
    fn every_cut_of_a_record_is_refused() {
        let bytes = sample(Ended::Code(0)).encode();
        for len in 0..bytes.len() {
            assert!(ExitRecord::decode(&bytes[..len]).is_err(), "cut at {len}");
        }
    }
}
