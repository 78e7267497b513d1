//! The rules for a job, for every caller: arguments, stdin, timeout, priority, labels.

use std::collections::BTreeMap;

use crate::job::{RESERVED_LABELS, SESSION_LABEL};
use crate::limits::{
    EXEC_ARGS_MAX, JOB_ARGS_BYTES_MAX, JOB_LABELS_MAX, JOB_PRIORITY_MAX, JOB_PRIORITY_MIN,
    JOB_STDIN_BYTES_MAX, JOB_TIMEOUT_MS_MAX, LABEL_KEY_BYTES_MAX, LABEL_VALUE_CHARS_MAX,
};

/// Why a job request is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobFault {
    #[error("{count} arguments are too many")]
    ArgsMany { count: usize },
    #[error("the arguments have {bytes} bytes")]
    ArgsLong { bytes: usize },
    #[error("argument {number} has a NUL byte")]
    ArgNul { number: usize },
    #[error("the stdin has {bytes} bytes")]
    StdinLong { bytes: usize },
    #[error("a timeout of {ms} ms is too long")]
    TimeoutLong { ms: u64 },
    #[error("{given} is no priority")]
    Priority { given: i32 },
    #[error("{count} labels are too many")]
    LabelsMany { count: usize },
    #[error("`{key}` is not the key of a label")]
    LabelKey { key: String },
    #[error("the label `{key}` has a value that is too long")]
    LabelValue { key: String },
    #[error("the label `{key}` is the daemon's own")]
    LabelReserved { key: String },
}

impl JobFault {
    pub fn code(&self) -> &'static str {
        match self {
            JobFault::ArgsMany { .. } | JobFault::ArgsLong { .. } | JobFault::StdinLong { .. } => {
                "job.too_large"
            }
            JobFault::ArgNul { .. } | JobFault::TimeoutLong { .. } | JobFault::Priority { .. } => {
                "params.invalid"
            }
            JobFault::LabelsMany { .. } | JobFault::LabelKey { .. } | JobFault::LabelValue { .. } => {
                "job.bad_label"
            }
            JobFault::LabelReserved { .. } => "job.label_reserved",
        }
    }

    pub fn hint(&self) -> String {
        match self {
            JobFault::ArgsMany { .. } => format!("{EXEC_ARGS_MAX} is the most; pass them on stdin"),
            JobFault::ArgsLong { .. } => {
                format!("{JOB_ARGS_BYTES_MAX} is the most; pass them on stdin, or in a file of the workspace")
            }
            JobFault::ArgNul { .. } => "no program can be given one; pass it on stdin".to_owned(),
            JobFault::StdinLong { .. } => {
                format!("{JOB_STDIN_BYTES_MAX} is the most; put it into a file of the workspace")
            }
            JobFault::TimeoutLong { .. } => {
                format!(
                    "365d, which is {JOB_TIMEOUT_MS_MAX} ms, is the most; without one it runs until it ends"
                )
            }
            JobFault::Priority { .. } => {
                format!("give a whole number from {JOB_PRIORITY_MIN} to {JOB_PRIORITY_MAX}")
            }
            JobFault::LabelsMany { .. } => format!("{JOB_LABELS_MAX} is the most"),
            JobFault::LabelKey { .. } => {
                format!("a key has 1 to {LABEL_KEY_BYTES_MAX} of A-Z a-z 0-9 . _ / -")
            }
            JobFault::LabelValue { .. } => format!("a value has at most {LABEL_VALUE_CHARS_MAX} letters"),
            JobFault::LabelReserved { key } if key == SESSION_LABEL => {
                "name the session instead: `session`, or `--session`".to_owned()
            }
            JobFault::LabelReserved { .. } => format!("keys that begin with `{RESERVED_LABELS}` are taken"),
        }
    }
}

pub fn check_args(args: &[String]) -> Result<(), JobFault> {
    if args.len() > EXEC_ARGS_MAX {
        return Err(JobFault::ArgsMany { count: args.len() });
    }
    let bytes = args.iter().map(String::len).sum();
    if bytes > JOB_ARGS_BYTES_MAX {
        return Err(JobFault::ArgsLong { bytes });
    }
    match args.iter().position(|arg| arg.contains('\0')) {
        Some(at) => Err(JobFault::ArgNul { number: at + 1 }),
        None => Ok(()),
    }
}

pub fn check_stdin(stdin: &[u8]) -> Result<(), JobFault> {
    if stdin.len() > JOB_STDIN_BYTES_MAX { Err(JobFault::StdinLong { bytes: stdin.len() }) } else { Ok(()) }
}

/// 0 is none.
pub fn check_timeout(ms: u64) -> Result<(), JobFault> {
    if ms > JOB_TIMEOUT_MS_MAX { Err(JobFault::TimeoutLong { ms }) } else { Ok(()) }
}

pub fn check_priority(given: i32) -> Result<(), JobFault> {
    if (JOB_PRIORITY_MIN..=JOB_PRIORITY_MAX).contains(&given) {
        Ok(())
    } else {
        Err(JobFault::Priority { given })
    }
}

pub fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), JobFault> {
    if labels.len() > JOB_LABELS_MAX {
        return Err(JobFault::LabelsMany { count: labels.len() });
    }
    for (key, value) in labels {
        let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"._/-".contains(&byte);
        if key.is_empty() || key.len() > LABEL_KEY_BYTES_MAX || !key.bytes().all(letters) {
            return Err(JobFault::LabelKey { key: key.clone() });
        }
        if key.starts_with(RESERVED_LABELS) {
            return Err(JobFault::LabelReserved { key: key.clone() });
        }
        if value.chars().count() > LABEL_VALUE_CHARS_MAX {
            return Err(JobFault::LabelValue { key: key.clone() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(key: &str, value: &str) -> Result<(), &'static str> {
        let labels = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        check_labels(&labels).map_err(|fault| fault.code())
    }

    #[test]
    fn a_label_has_a_plain_key_that_is_not_the_daemons() {
        let (long, longer) = ("k".repeat(LABEL_KEY_BYTES_MAX), "k".repeat(LABEL_KEY_BYTES_MAX + 1));
        for key in ["a", "A-b_c.d/e9", long.as_str(), "io.lodgement", "io"] {
            assert_eq!(labels(key, ""), Ok(()), "{key}");
        }
        for key in ["", "a b", "ä", "a=b", longer.as_str(), "io.lodge session"] {
            assert_eq!(labels(key, ""), Err("job.bad_label"), "{key}");
        }
        for key in [SESSION_LABEL, "io.lodge.", "io.lodge.anything"] {
            assert_eq!(labels(key, ""), Err("job.label_reserved"), "{key}");
        }
    }

    #[test]
    fn a_value_is_counted_in_letters_and_labels_are_counted() {
        assert_eq!(labels("k", &"ä".repeat(LABEL_VALUE_CHARS_MAX)), Ok(()));
        assert_eq!(labels("k", &"ä".repeat(LABEL_VALUE_CHARS_MAX + 1)), Err("job.bad_label"));
        let many = |count: usize| (0..count).map(|n| (format!("k{n}"), String::new())).collect();
        assert_eq!(check_labels(&many(JOB_LABELS_MAX)), Ok(()));
        let count = JOB_LABELS_MAX + 1;
        assert_eq!(check_labels(&many(count)), Err(JobFault::LabelsMany { count }));
    }

    #[test]
    fn what_no_program_can_be_given_is_refused() {
        let arg = |bytes: usize| ["x".repeat(bytes), "y".to_owned()];
        assert_eq!(check_args(&arg(JOB_ARGS_BYTES_MAX - 1)), Ok(()));
        let bytes = JOB_ARGS_BYTES_MAX + 1;
        assert_eq!(check_args(&arg(JOB_ARGS_BYTES_MAX)), Err(JobFault::ArgsLong { bytes }));
        let count = EXEC_ARGS_MAX + 1;
        assert_eq!(check_args(&vec![String::new(); count]), Err(JobFault::ArgsMany { count }));
        let nul = ["a".to_owned(), "b\0c".to_owned()];
        assert_eq!(check_args(&nul), Err(JobFault::ArgNul { number: 2 }));
        assert_eq!(check_stdin(&vec![0; JOB_STDIN_BYTES_MAX]), Ok(()));
        assert!(check_stdin(&vec![0; JOB_STDIN_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn a_timeout_is_a_year_at_most() {
        assert_eq!((check_timeout(0), check_timeout(JOB_TIMEOUT_MS_MAX)), (Ok(()), Ok(())));
        let ms = JOB_TIMEOUT_MS_MAX + 1;
        assert_eq!(check_timeout(ms), Err(JobFault::TimeoutLong { ms }));
        assert_eq!(JOB_TIMEOUT_MS_MAX, 365 * 24 * 60 * 60 * 1000, "as the hint says");
    }

    #[test]
    fn a_priority_has_its_range() {
        for (given, fits) in [(0, true), (100, true), (-100, true), (101, false), (i32::MIN, false)] {
            assert_eq!(check_priority(given).is_ok(), fits, "{given}");
        }
    }
}
