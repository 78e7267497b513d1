//! Parses a job request for the engine. The engine decides whether the job is allowed: it knows the state and the bins
//! of the agent.

use lodge_core::limits::{JOB_OUTPUT_BYTES_MAX, JOB_OUTPUT_BYTES_MIN};
use lodge_core::{AgentId, SessionId};
use lodge_image::agentfile::{read_duration, read_size};
use lodge_proto::{ErrorBody, JobSubmitParams, base64};

use super::super::methods::{find_agent, internal, other_agent, session_id};
use crate::auth::ApiCaller;
use crate::read_view::ReadView;
use crate::shell::Shell;
use lodge_engine::jobs::{JobSpec, NewJob};

/// The requested job. A missing agent or bin is reported first, then parse errors.
pub(super) fn read(at: &ReadView<'_>, who: &ApiCaller, given: JobSubmitParams) -> Result<NewJob, ErrorBody> {
    if given.agent.is_empty() {
        return Err(ErrorBody::new("params.invalid", "`agent` is empty: name the agent that has the bin")
            .hint("`lodge ps -a` lists the agents"));
    }
    let agent = find_agent(at, &given.agent)?;
    if given.bin.is_empty() {
        return Err(ErrorBody::new("params.invalid", "`bin` is empty: name one of the agent's bins")
            .hint("`lodge agent inspect` lists them under tools"));
    }
    let session = given.session.as_deref().map(|session| own_session(at, &agent, session)).transpose()?;
    let work = JobSpec {
        bin: given.bin,
        args: given.args,
        stdin: stdin(given.stdin, given.stdin_base64)?,
        timeout_ms: given.timeout.as_deref().map(timeout_ms).transpose()?.unwrap_or(0),
        priority: given.priority.unwrap_or(0),
        output_bytes: given
            .output
            .as_deref()
            .map(|size| output_bytes(at, who, size))
            .transpose()?
            .unwrap_or(0),
        labels: given.labels,
    };
    Ok(NewJob { agent, session, work })
}

/// An unused session id is accepted: a job may precede the first message. Another agent's session is not.
fn own_session(at: &ReadView<'_>, agent: &AgentId, given: &str) -> Result<SessionId, ErrorBody> {
    let id = session_id(given)?;
    match at.store.session_fact(&id).map_err(internal)? {
        Some(fact) if fact.row.agent != *agent => Err(other_agent(at, &id, &fact.row.agent)),
        Some(_) | None => Ok(id),
    }
}

pub(in crate::api) fn stdin(text: Option<String>, base64: Option<String>) -> Result<Vec<u8>, ErrorBody> {
    match (text, base64) {
        (Some(_), Some(_)) => {
            Err(ErrorBody::new("params.invalid", "there are both `stdin` and `stdin_base64`")
                .hint("give one of them, not both: `stdin` for text, `stdin_base64` for other bytes"))
        }
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(base64)) => base64::decode(&base64).ok_or_else(|| {
            ErrorBody::new("params.invalid", "`stdin_base64` is not base64")
                .hint("it is written with A-Z a-z 0-9 + / and padded with =; text goes as `stdin`")
        }),
        (None, None) => Ok(Vec::new()),
    }
}

fn timeout_ms(given: &str) -> Result<u64, ErrorBody> {
    let ms = read_duration(given).and_then(|timeout| u64::try_from(timeout.as_millis()).ok());
    ms.ok_or_else(|| {
        let hint = "give a duration above 0 with units, such as `90s` or `1h30m`, of at most 365d";
        ErrorBody::new("params.invalid", format!("`{given}` is no timeout")).hint(hint)
    })
}

/// An operator may ask for more than the daemon is set to, an agent may not.
fn output_bytes(shell: &Shell, who: &ApiCaller, given: &str) -> Result<u64, ErrorBody> {
    let most = match who.agent() {
        None => JOB_OUTPUT_BYTES_MAX,
        Some(_) => shell.config.settings().job_output,
    };
    let bytes = read_size(given).filter(|bytes| (JOB_OUTPUT_BYTES_MIN..=most).contains(bytes));
    bytes.ok_or_else(|| {
        let hint = format!(
            "give a number of bytes from {JOB_OUTPUT_BYTES_MIN} to {most}, with an optional k, m or g (powers of 1024)"
        );
        ErrorBody::new("params.invalid", format!("`{given}` is no amount of output to keep")).hint(hint)
    })
}
