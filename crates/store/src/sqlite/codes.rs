//! The stored numbers of states and kinds, as SQL text names them.
//!
//! They are in the text of a statement instead of bound to it: the planner uses a partial index only if the text shows
//! that its condition holds.

use lodge_core::agent::{AgentState, FailReason};
use lodge_core::job::JobState;
use lodge_core::quarantine::WorkKind;
use lodge_core::record::ImageKind;
use lodge_core::sandbox::{SandboxExecState, SandboxState};
use lodge_core::turn::TurnState;

/// One text of several constants, put together by the compiler.
macro_rules! sql {
    ($($part:expr),+ $(,)?) => {{
        const PARTS: &[&str] = &[$($part),+];
        const BYTES: [u8; $crate::sqlite::codes::length(PARTS)] = $crate::sqlite::codes::joined(PARTS);
        const TEXT: &str = match str::from_utf8(&BYTES) {
            Ok(text) => text,
            Err(_) => panic!("texts in a row are a text"),
        };
        TEXT
    }};
}
pub(crate) use sql;

/// What several turns used together, for `rows::usage_sum`. Turns that used nothing have no price, and need none.
pub(crate) const USAGE_SUM: &str = "coalesce(sum(input_tokens), 0) AS input_tokens, \
    coalesce(sum(output_tokens), 0) AS output_tokens, coalesce(sum(cached_tokens), 0) AS cached_tokens, \
    coalesce(sum(micro_usd), 0) AS micro_usd, \
    count(*) FILTER (WHERE micro_usd IS NULL AND input_tokens + output_tokens > 0) AS unpriced";

pub(crate) const AGENT_PULLING: &str = digits(AgentState::Pulling.codes().0);
pub(crate) const AGENT_STARTING: &str = digits(AgentState::Starting.codes().0);
pub(crate) const AGENT_READY: &str = digits(AgentState::Ready.codes().0);
/// All other states have lower codes.
pub(crate) const AGENT_REMOVED: &str = digits(AgentState::Removed.codes().0);
const AGENT_STOPPED: &str = digits(AgentState::Stopped.codes().0);
const AGENT_FAILED: &str = digits(AgentState::Failed(FailReason::Crashed).codes().0);
/// Whether a row of `agents` is not at rest, as `AgentRow::is_at_rest` has it.
pub(crate) const AGENT_LIVE: &str = sql!(
    "state < ",
    AGENT_REMOVED,
    " AND (state NOT IN (",
    AGENT_STOPPED,
    ", ",
    AGENT_FAILED,
    ") OR retry_at IS NOT NULL OR next_digest IS NOT NULL)"
);
pub(crate) const TURN_RUNNING: &str = digits(TurnState::Running.code());
pub(crate) const TURN_WAITING: &str = digits(TurnState::Waiting.code());
/// The lowest code of an ended turn.
pub(crate) const TURN_OVER: &str = digits(TurnState::Done.code());
pub(crate) const JOB_RUNNING: &str = digits(JobState::Running.code());
/// The lowest code of an ended job.
pub(crate) const JOB_OVER: &str = digits(JobState::Done.code());
/// The lowest code of a sandbox at rest.
pub(crate) const SANDBOX_RESTS: &str = digits(SandboxState::Stopped.code());
pub(crate) const SANDBOX_DELETED: &str = digits(SandboxState::Deleted.code());
/// The lowest code of an exec that is over.
pub(crate) const EXEC_OVER: &str = digits(SandboxExecState::Finished.code());
pub(crate) const WORK_MODEL_CALL: &str = digits(WorkKind::ModelCall.code() as i64);
pub(crate) const WORK_SCHEMA_CHECK: &str = digits(WorkKind::SchemaCheck.code() as i64);
pub(crate) const IMAGE_AGENT: &str = digits(ImageKind::Agent.code());
pub(crate) const IMAGE_BIN: &str = digits(ImageKind::Bin.code());

const fn digits(code: i64) -> &'static str {
    const SMALL: [&str; 13] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12"];
    SMALL[code as usize]
}

pub(crate) const fn length(parts: &[&str]) -> usize {
    let (mut sum, mut part) = (0, 0);
    while part < parts.len() {
        sum += parts[part].len();
        part += 1;
    }
    sum
}

pub(crate) const fn joined<const LENGTH: usize>(parts: &[&str]) -> [u8; LENGTH] {
    let (mut all, mut at, mut part) = ([0; LENGTH], 0, 0);
    while part < parts.len() {
        let (bytes, mut next) = (parts[part].as_bytes(), 0);
        while next < bytes.len() {
            all[at] = bytes[next];
            at += 1;
            next += 1;
        }
        part += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_part_the_states_as_core_does() {
        let number = |text: &str| text.parse::<i64>().unwrap();
        for state in TurnState::ALL {
            assert_eq!(state.is_live(), state.code() < number(TURN_OVER), "{state:?}");
        }
        for state in JobState::ALL {
            assert_eq!(state.is_open(), state.code() < number(JOB_OVER), "{state:?}");
        }
        let known = |code| AgentState::from_codes(code, None).or(AgentState::from_codes(code, Some(1)));
        for state in (0..100).filter_map(known) {
            assert_eq!(state != AgentState::Removed, state.codes().0 < number(AGENT_REMOVED), "{state:?}");
        }
        for state in SandboxState::ALL {
            assert_eq!(state.is_live(), state.code() < number(SANDBOX_RESTS), "{state:?}");
        }
        for state in SandboxExecState::ALL {
            assert_eq!(state.is_open(), state.code() < number(EXEC_OVER), "{state:?}");
        }
        assert_eq!(sql!("a < ", TURN_OVER, " ü"), "a < 10 ü");
    }

    /// A number in SQL text tells a reader nothing, and goes wrong silently.
    #[test]
    fn no_statement_has_the_number_of_a_state_in_it() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sqlite");
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().is_some_and(|name| name == "codes.rs" || path.is_dir()) {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for (line, words) in text.lines().enumerate() {
                let compared = ["state", "kind", "role"].iter().any(|column| {
                    [" < ", " > ", " = ", " >= ", " <= ", " != ", " IN ("].iter().any(|operator| {
                        let Some((_, after)) = words.split_once(&format!("{column}{operator}")) else {
                            return false;
                        };
                        after.starts_with(|next: char| next.is_ascii_digit())
                    })
                });
                assert!(!compared, "{}:{}: {words}", path.display(), line + 1);
            }
        }
    }
}
