//! The kind of an exec: part of its claim, of its exit record, and of every event about it.

use crate::wire::{DecodeError, FieldReader, FieldWriter};

/// What the ids of execs that are runtimes begin with; the number of the run follows.
pub const RUNTIME_EXEC_PREFIX: &str = "exe_runtime";
/// What the ids of execs that are jobs begin with.
const JOB_EXEC_PREFIX: &str = "job_";
/// Opens a claim.
const CLAIM_MAGIC: &[u8; 4] = b"LXC1";

/// What an exec is for, which decides where its streams go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecKind {
    /// Output goes to files in the exec's directory.
    Tool,
    /// Lines of stdin and stdout are relayed; stderr goes to the sandbox's log.
    Runtime,
    /// A program that runs in the background. Both ends of a long output are kept, and its progress is reported.
    Job,
    /// A command of a client in a standalone sandbox. Output goes to the sandbox's log directory, and its progress is
    /// reported.
    Command,
}

impl ExecKind {
    /// Whether it is called for a result: it is limited, captured and left to end by itself.
    pub fn is_called(self) -> bool {
        match self {
            ExecKind::Tool | ExecKind::Job | ExecKind::Command => true,
            ExecKind::Runtime => false,
        }
    }

    /// The kind of an exec of which only the id is known: a keeper of an earlier release reported or recorded it, or the
    /// exec was never claimed.
    pub fn of_id(exec: &str) -> ExecKind {
        if exec.starts_with(JOB_EXEC_PREFIX) {
            ExecKind::Job
        } else if exec.starts_with(RUNTIME_EXEC_PREFIX) {
            ExecKind::Runtime
        } else {
            ExecKind::Tool
        }
    }

    /// The claim of an exec. It names the exec, because the file may contain the record of an earlier exec.
    pub fn claim(self, exec: &str) -> Vec<u8> {
        let mut put = FieldWriter::default();
        put.fixed(CLAIM_MAGIC).text(exec);
        self.put(&mut put);
        put.out
    }

    /// Reads a file that begins with the claim of an exec. `None`: it begins with something else.
    pub fn of_claim(bytes: &[u8], exec: &str) -> Option<ExecKind> {
        let mut take = FieldReader::new(bytes);
        let is_claim = take.fixed().is_ok_and(|magic: [u8; 4]| &magic == CLAIM_MAGIC);
        if !is_claim || take.text().ok()? != exec {
            return None;
        }
        ExecKind::from_code(take.u8().ok()?)
    }

    pub(crate) fn put(self, put: &mut FieldWriter) {
        put.u8(match self {
            ExecKind::Tool => 1,
            ExecKind::Runtime => 2,
            ExecKind::Job => 3,
            ExecKind::Command => 4,
        });
    }

    /// Reads the last field of an event, a known exec or a record. `None`: a kind that a later version added.
    pub(crate) fn take(take: &mut FieldReader<'_>, exec: &str) -> Result<Option<ExecKind>, DecodeError> {
        // Keepers of earlier releases send and record no kind.
        if take.is_empty() {
            return Ok(Some(ExecKind::of_id(exec)));
        }
        Ok(ExecKind::from_code(take.u8()?))
    }

    pub(crate) fn from_code(code: u8) -> Option<ExecKind> {
        match code {
            1 => Some(ExecKind::Tool),
            2 => Some(ExecKind::Runtime),
            3 => Some(ExecKind::Job),
            4 => Some(ExecKind::Command),
            _later => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [ExecKind; 4] = [ExecKind::Tool, ExecKind::Runtime, ExecKind::Job, ExecKind::Command];

    #[test]
    fn a_claim_has_the_kind_of_its_own_exec_and_of_no_other() {
        for kind in KINDS {
            let mut claim = kind.claim("e1");
            for len in 0..claim.len() {
                assert_eq!(ExecKind::of_claim(&claim[..len], "e1"), None, "cut at {len}");
            }
            claim.extend_from_slice(b"what the file held before");
            assert_eq!(ExecKind::of_claim(&claim, "e1"), Some(kind));
            assert_eq!(ExecKind::of_claim(&claim, "e2"), None);
        }
        assert_eq!(ExecKind::of_claim(&[0; 64], "e1"), None);
    }

    #[test]
    fn the_ids_of_earlier_releases_give_the_kind() {
        assert_eq!(ExecKind::of_id("exe_0cs9p3gf2abcdefgh"), ExecKind::Tool);
        assert_eq!(ExecKind::of_id("exe_runtime12"), ExecKind::Runtime);
        assert_eq!(ExecKind::of_id("job_0cs9p3gf2abcdefgh"), ExecKind::Job);
    }
}
