//! How an exec ended: plain in a frame, sealed in `exec/<id>/exit`.
//!
//! A disk may lose the end of a file, or keep its length and lose its contents. The seal distinguishes a record from
//! such remains. A frame needs no seal.

use crate::bounds::LimitHit;
use crate::sha256::Sha256;
use crate::wire::{DecodeError, FieldReader, FieldWriter};

const MAGIC: &[u8; 4] = b"LXR1";
/// Opens a sealed record. Its seal follows, then the length of the bare record, then that itself.
const SEALED: &[u8; 4] = b"LXR2";
/// Bytes of a record's digest that seal it.
const SEAL_LEN: usize = 16;

/// How a main process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitOutcome {
    /// It exited by itself.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
    /// It never ran: the claim was made, the program could not be started.
    NotStarted { errno: i32, why: String },
}

/// Bytes of one stream: all that were written, and those that fit under the cap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamCount {
    pub seen: u64,
    pub kept: u64,
}

/// What the main process and the children it waited for used up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceUsage {
    pub user_us: u64,
    pub system_us: u64,
    pub max_rss_kb: u64,
}

/// The outcome of one exec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitRecord {
    pub ended: ExitOutcome,
    pub started_ms: u64,
    pub finished_ms: u64,
    pub stdout: StreamCount,
    pub stderr: StreamCount,
    pub usage: ResourceUsage,
    /// What the keeper had to do with it beyond waiting, or empty.
    pub note: String,
    /// The limit that it ran into, if that is known.
    pub cause: Option<LimitHit>,
}

impl ExitRecord {
    pub fn encode(&self) -> Vec<u8> {
        let mut put = FieldWriter::default();
        put.fixed(MAGIC);
        match &self.ended {
            ExitOutcome::Code(code) => put.u8(1).u32(code.cast_unsigned()).text(""),
            ExitOutcome::Signal(signal) => put.u8(2).u32(signal.cast_unsigned()).text(""),
            ExitOutcome::NotStarted { errno, why } => put.u8(3).u32(errno.cast_unsigned()).text(why),
        };
        put.u64(self.started_ms).u64(self.finished_ms);
        put.u64(self.stdout.seen).u64(self.stdout.kept).u64(self.stderr.seen).u64(self.stderr.kept);
        put.u64(self.usage.user_us).u64(self.usage.system_us).u64(self.usage.max_rss_kb);
        put.text(&self.note);
        LimitHit::put(self.cause.as_ref(), &mut put);
        put.out
    }

    /// The record as it is written to a file. It names its exec, because the space may contain the record of an
    /// earlier exec.
    pub fn seal(&self, exec: &str) -> Vec<u8> {
        let mut named = FieldWriter { out: self.encode() };
        named.text(exec);
        let mut put = FieldWriter::default();
        put.fixed(SEALED).fixed(&seal_of(&named.out)).bytes(&named.out);
        put.out
    }

    /// Reads a file that holds the sealed record of this exec, or one of a keeper that did not seal or name it yet.
    pub fn unseal(bytes: &[u8], exec: &str) -> Result<ExitRecord, DecodeError> {
        let mut take = FieldReader::new(bytes);
        if &take.fixed::<4>()? != SEALED {
            return ExitRecord::decode(bytes);
        }
        let seal = take.fixed::<SEAL_LEN>()?;
        let bare = take.bytes()?;
        if seal_of(bare) != seal {
            return Err(DecodeError::BadSeal);
        }
        let mut take = FieldReader::new(bare);
        let record = ExitRecord::take(&mut take)?;
        let is_its_own = take.is_empty() || take.text()? == exec;
        if is_its_own { Ok(record) } else { Err(DecodeError::BadSeal) }
    }

    pub fn decode(bytes: &[u8]) -> Result<ExitRecord, DecodeError> {
        ExitRecord::take(&mut FieldReader::new(bytes))
    }

    fn take(take: &mut FieldReader<'_>) -> Result<ExitRecord, DecodeError> {
        if &take.fixed::<4>()? != MAGIC {
            return Err(DecodeError::BadMagic);
        }
        let (tag, number, why) = (take.u8()?, take.u32()?.cast_signed(), take.text()?);
        let ended = match tag {
            1 => ExitOutcome::Code(number),
            2 => ExitOutcome::Signal(number),
            3 => ExitOutcome::NotStarted { errno: number, why },
            unknown => return Err(DecodeError::BadTag(unknown)),
        };
        Ok(ExitRecord {
            ended,
            started_ms: take.u64()?,
            finished_ms: take.u64()?,
            stdout: StreamCount { seen: take.u64()?, kept: take.u64()? },
            stderr: StreamCount { seen: take.u64()?, kept: take.u64()? },
            usage: ResourceUsage { user_us: take.u64()?, system_us: take.u64()?, max_rss_kb: take.u64()? },
            note: take.text()?,
            // Keepers before this one knew of none.
            cause: if take.is_empty() { None } else { LimitHit::take(take)? },
        })
    }
}

fn seal_of(bare: &[u8]) -> [u8; SEAL_LEN] {
    let mut seal = [0; SEAL_LEN];
    seal.copy_from_slice(&Sha256::of(bare)[..SEAL_LEN]);
    seal
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::Resource;
    use crate::limits;

    /// Length of a cause at the end of a record.
    const CAUSE_LEN: usize = 17;
    const EXEC: &str = "e1";

    fn sample(ended: ExitOutcome) -> ExitRecord {
        ExitRecord {
            ended,
            started_ms: 1,
            finished_ms: 2,
            stdout: StreamCount { seen: 3, kept: 4 },
            stderr: StreamCount { seen: 5, kept: 6 },
            usage: ResourceUsage { user_us: 7, system_us: 8, max_rss_kb: 9 },
            note: "cut".to_owned(),
            cause: Some(LimitHit { resource: Resource::Memory, limit: 10, used: 11 }),
        }
    }

    #[test]
    fn a_record_comes_back_and_ignores_what_later_versions_add() {
        let refused = ExitOutcome::NotStarted { errno: 2, why: "no program".to_owned() };
        for ended in [ExitOutcome::Code(-1), ExitOutcome::Signal(9), refused] {
            let record = sample(ended);
            let mut bytes = record.encode();
            assert_eq!(ExitRecord::decode(&bytes), Ok(record.clone()));
            bytes.extend_from_slice(b"added later");
            assert_eq!(ExitRecord::decode(&bytes), Ok(record));
        }
    }

    #[test]
    fn every_cut_of_a_record_is_refused() {
        let bytes = sample(ExitOutcome::Code(0)).encode();
        let earlier = bytes.len() - CAUSE_LEN;
        for len in (0..bytes.len()).filter(|len| *len != earlier) {
            assert!(ExitRecord::decode(&bytes[..len]).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn a_record_of_a_keeper_that_knew_no_causes_has_none() {
        let record = sample(ExitOutcome::Signal(9));
        let bytes = record.encode();
        let back = ExitRecord::decode(&bytes[..bytes.len() - CAUSE_LEN]);
        assert_eq!(back, Ok(ExitRecord { cause: None, ..record }));
    }

    #[test]
    fn a_cause_that_a_later_keeper_tells_is_none() {
        let record = ExitRecord { cause: None, ..sample(ExitOutcome::Code(1)) };
        let mut bytes = record.encode();
        let at = bytes.len() - CAUSE_LEN;
        bytes[at] = 250;
        assert_eq!(ExitRecord::decode(&bytes), Ok(record));
    }

    /// A record as long as one can be, so that it lies in several sectors.
    fn long() -> ExitRecord {
        let why = "w".repeat(limits::TEXT_MAX);
        let note = "n".repeat(limits::TEXT_MAX);
        ExitRecord { note, ..sample(ExitOutcome::NotStarted { errno: 5, why }) }
    }

    #[test]
    fn a_sealed_record_comes_back_and_so_does_a_bare_one() {
        for record in [sample(ExitOutcome::Code(3)), long()] {
            let mut sealed = record.seal(EXEC);
            assert!(sealed.len() <= limits::RECORD_MAX);
            sealed.extend_from_slice(&[0; 512]);
            assert_eq!(ExitRecord::unseal(&sealed, EXEC), Ok(record.clone()));
            assert_eq!(ExitRecord::unseal(&record.encode(), EXEC), Ok(record));
        }
    }

    #[test]
    fn a_sealed_record_of_another_exec_is_none_and_one_that_names_nobody_is_anybodys() {
        let record = sample(ExitOutcome::Code(3));
        assert!(ExitRecord::unseal(&record.seal(EXEC), "e2").is_err());
        let (bare, mut put) = (record.encode(), FieldWriter::default());
        put.fixed(SEALED).fixed(&seal_of(&bare)).bytes(&bare);
        assert_eq!(ExitRecord::unseal(&put.out, EXEC), Ok(record));
    }

    #[test]
    fn no_remains_of_a_sealed_record_are_read_as_an_outcome() {
        for record in [sample(ExitOutcome::Code(0)), long()] {
            let sealed = record.seal(EXEC);
            for len in 0..sealed.len() {
                assert!(ExitRecord::unseal(&sealed[..len], EXEC).is_err(), "cut at {len}");
            }
            for sector in 0..sealed.len().div_ceil(512) {
                let (from, to) = (sector * 512, sealed.len().min(sector * 512 + 512));
                let mut lost = sealed.clone();
                lost[from..to].fill(0);
                assert!(ExitRecord::unseal(&lost, EXEC).is_err(), "sector {sector}");
                lost[from..].fill(0);
                assert!(ExitRecord::unseal(&lost, EXEC).is_err(), "zeroes from sector {sector}");
            }
            // Few enough to be fast, and in step with no field.
            for at in (0..sealed.len()).step_by(29) {
                let mut flipped = sealed.clone();
                flipped[at] ^= 1;
                assert!(ExitRecord::unseal(&flipped, EXEC).is_err(), "byte {at}");
            }
        }
        for zeroes in [0, 1, 512, limits::RECORD_MAX] {
            assert!(ExitRecord::unseal(&vec![0; zeroes], EXEC).is_err(), "{zeroes} zeroes");
        }
    }
}
