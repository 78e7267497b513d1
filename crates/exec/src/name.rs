//! Typed names of execs.

use std::fmt;

use lodge_core::{ExecId, JobId};
use lodge_link::{ExecKind, RUNTIME_EXEC_PREFIX};

/// The name of an exec in its sandbox. `Display` writes the id that the link uses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExecName {
    /// The agent's runtime: one exec per run, so that asking for it twice starts it once.
    Runtime {
        run: u32,
    },
    Tool(ExecId),
    Job(JobId),
    /// A command of a client in a standalone sandbox.
    Command(ExecId),
}

impl ExecName {
    /// The exec with this id. `None`: the id does not belong to this kind.
    pub fn from_link(kind: ExecKind, exec: &str) -> Option<ExecName> {
        match kind {
            ExecKind::Runtime => {
                let run = exec.strip_prefix(RUNTIME_EXEC_PREFIX)?.parse().ok()?;
                Some(ExecName::Runtime { run })
            }
            ExecKind::Tool => exec.parse().ok().map(ExecName::Tool),
            ExecKind::Job => exec.parse().ok().map(ExecName::Job),
            ExecKind::Command => exec.parse().ok().map(ExecName::Command),
        }
    }

    pub fn kind(&self) -> ExecKind {
        match self {
            ExecName::Runtime { .. } => ExecKind::Runtime,
            ExecName::Tool(_) => ExecKind::Tool,
            ExecName::Job(_) => ExecKind::Job,
            ExecName::Command(_) => ExecKind::Command,
        }
    }
}

impl fmt::Display for ExecName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExecName::Runtime { run } => write!(out, "{RUNTIME_EXEC_PREFIX}{run}"),
            ExecName::Tool(exec) | ExecName::Command(exec) => exec.fmt(out),
            ExecName::Job(job) => job.fmt(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> [ExecName; 3] {
        [
            ExecName::Runtime { run: 12 },
            ExecName::Tool("exe_0cs9p3gf2abcdefgh".parse().unwrap()),
            ExecName::Job("job_0cs9p3gf2abcdefgh".parse().unwrap()),
        ]
    }

    #[test]
    fn an_id_names_an_exec_of_its_own_kind_only() {
        for name in names() {
            let id = name.to_string();
            for kind in [ExecKind::Runtime, ExecKind::Tool, ExecKind::Job] {
                let expected = (kind == name.kind()).then(|| name.clone());
                assert_eq!(ExecName::from_link(kind, &id), expected, "{id} as {kind:?}");
            }
        }
        assert_eq!(ExecName::from_link(ExecKind::Runtime, "exe_runtime"), None);
    }

    #[test]
    fn ids_follow_the_rule_that_derives_the_kind_for_earlier_keepers() {
        for name in names() {
            assert_eq!(ExecKind::of_id(&name.to_string()), name.kind());
        }
    }
}
