//! Limits that a tool call hit, as they are recorded and shown.

/// The resource that a tool call exhausted. Codes are stored: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    Oom,
    Pids,
    CpuTime,
    Disk,
    Timeout,
    Output,
}

impl Cause {
    pub const ALL: [Cause; 6] =
        [Cause::Oom, Cause::Pids, Cause::CpuTime, Cause::Disk, Cause::Timeout, Cause::Output];

    pub fn code(self) -> i64 {
        match self {
            Cause::Oom => 1,
            Cause::Pids => 2,
            Cause::CpuTime => 3,
            Cause::Disk => 4,
            Cause::Timeout => 5,
            Cause::Output => 6,
        }
    }

    pub fn from_code(code: i64) -> Option<Cause> {
        Cause::ALL.into_iter().find(|cause| cause.code() == code)
    }

    /// The word people see and scripts compare with.
    pub fn word(self) -> &'static str {
        match self {
            Cause::Oom => "oom",
            Cause::Pids => "pids",
            Cause::CpuTime => "cpu_time",
            Cause::Disk => "disk",
            Cause::Timeout => "timeout",
            Cause::Output => "output",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_survives_being_stored_and_has_a_word_of_its_own() {
        let words: std::collections::BTreeSet<&str> = Cause::ALL.iter().map(|cause| cause.word()).collect();
        assert_eq!(words.len(), Cause::ALL.len());
        for cause in Cause::ALL {
            assert_eq!(Cause::from_code(cause.code()), Some(cause));
        }
    }
}
