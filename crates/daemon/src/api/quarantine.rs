//! Work in quarantine: listing and release. Quarantined requests are refused here.

use std::sync::Arc;

use lodge_core::WorkId;
use lodge_core::quarantine::{QuarantineRow, WorkKind};
use lodge_proto::{
    ApiMethod, DropQuarantined, ErrorBody, ListQuarantine, QuarantineList, QuarantineListParams,
    QuarantineRef, QuarantineView, RetryQuarantined, error_code, hex,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::methods::{Reply, changed, internal, no_method, page, reply, unique_id};
use super::params;
use crate::auth::ApiCaller;
use crate::crash;
use crate::read_view::ReadView;
use crate::shell::Shell;
use crate::suspects::SuspectWatch;
use crate::view;
use lodge_engine::{Answer, Command, Release, RequestKey, WorkCommand, WorkRefusal};

pub(super) async fn call(shell: &Arc<Shell>, key: Option<RequestKey>, method: &str, given: Value) -> Reply {
    match method {
        ListQuarantine::NAME => {
            let given = params::<ListQuarantine>(given)?;
            shell.read(move |at| reply::<ListQuarantine>(list(at, &given))).await
        }
        RetryQuarantined::NAME => {
            let given = params::<RetryQuarantined>(given)?;
            changed::<RetryQuarantined>(&release(shell, key, given, Release::Retry).await?)
        }
        DropQuarantined::NAME => {
            let given = params::<DropQuarantined>(given)?;
            changed::<DropQuarantined>(&release(shell, key, given, Release::Drop).await?)
        }
        _other => Err(no_method(method)),
    }
}

async fn release(
    shell: &Arc<Shell>,
    key: Option<RequestKey>,
    given: QuarantineRef,
    how: Release,
) -> Result<Answer, ErrorBody> {
    let id = shell.read(move |at| find(at, &given.work)).await?;
    Ok(shell.ask(key, Command::Work(WorkCommand::Release { id, how })).await?)
}

fn list(at: &ReadView<'_>, given: &QuarantineListParams) -> Result<QuarantineList, ErrorBody> {
    let limit = page(given.limit) as usize;
    let after = given.after.as_deref().unwrap_or_default();
    let mut work: Vec<QuarantineView> =
        all(at)?.into_iter().filter(|view| view.id.as_str() > after).take(limit + 1).collect();
    let more = work.len() > limit;
    work.truncate(limit);
    let next = work.last().filter(|_| more).map(|last| last.id.clone());
    Ok(QuarantineList { work, next })
}

pub(super) fn all(at: &ReadView<'_>) -> Result<Vec<QuarantineView>, ErrorBody> {
    let rows = at.store.quarantine().map_err(internal)?;
    Ok(rows.iter().map(|row| view::quarantined(row, "quarantined")).collect())
}

pub(super) fn warning(work: &QuarantineView) -> String {
    let QuarantineView { id, kind, deaths, .. } = work;
    format!(
        "quarantine: {id} ({kind}) killed the daemon {deaths} times: `lodge quarantine retry {id}` or `lodge quarantine drop {id}`"
    )
}

/// By its id, or any unique prefix of it.
fn find(at: &ReadView<'_>, given: &str) -> Result<WorkId, ErrorBody> {
    let rows = at.store.quarantine().map_err(internal)?;
    let matches =
        |row: &&QuarantineRow| row.id.as_str().starts_with(given) && given.len() > WorkId::PREFIX.len();
    let found: Vec<WorkId> = rows.iter().filter(matches).map(|row| row.id.clone()).collect();
    unique_id(found, given, error_code!("work.ambiguous"), "pieces of work")?
        .ok_or_else(|| view::refused(WorkRefusal::NotFound { given: given.to_owned() }))
}

/// Watches a request while it is computed, and refuses one that is set aside. What an operator needs to look at the daemon
/// and to decide is never refused.
pub(super) fn suspect(
    shell: &Shell,
    who: &ApiCaller,
    method: &str,
    given: &Value,
) -> Result<Option<SuspectWatch>, ErrorBody> {
    match method.split_once('/').map_or(method, |(noun, _)| noun) {
        "info" | "rpc" | "daemon" | "quarantine" | "client" => return Ok(None),
        _other => {}
    }
    let digest = digest(&who.caller, method, given);
    if shell.suspects.refuses(&digest) {
        return Err(refused(method));
    }
    let watched = shell.suspects.begin(WorkKind::Request, &digest, method);
    if crash::has_pill(WorkKind::Request.word()) {
        let _mark = watched.mark();
        crash::pill(WorkKind::Request, &given.to_string());
    }
    Ok(Some(watched))
}

/// Watches what is computed of a body that is read while it comes, up to a place in it that is known by the digest of
/// everything before. None: it is set aside.
pub(super) fn watch_block(shell: &Shell, caller: &str, method: &str, so_far: &[u8]) -> Option<SuspectWatch> {
    let mut hash = Sha256::new();
    for part in [caller.as_bytes(), &[0], method.as_bytes(), &[0], so_far] {
        hash.update(part);
    }
    let digest = short(&hash.finalize());
    (!shell.suspects.refuses(&digest)).then(|| shell.suspects.begin(WorkKind::Request, &digest, method))
}

pub(super) fn refused(method: &str) -> ErrorBody {
    let what = format!("this `{method}` killed the daemon several times and is not computed again");
    ErrorBody::new("work.quarantined", what).hint(
        "an operator lists it with `lodge quarantine ls` and has it computed again with `lodge quarantine retry`",
    )
}

/// The same for the same request, with any `request_id`.
fn digest(caller: &str, method: &str, given: &Value) -> String {
    let mut hash = HashWriter(Sha256::new());
    hash.0.update(caller.as_bytes());
    hash.0.update([0]);
    hash.0.update(method.as_bytes());
    match given {
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(name, _)| *name != "request_id") {
                hash.0.update([0]);
                hash.0.update(name.as_bytes());
                hash.0.update([0]);
                // Writing to a hash cannot fail.
                drop(serde_json::to_writer(&mut hash, value));
            }
        }
        // Parameters are an object, or the method refuses them.
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {}
    }
    short(&hash.0.finalize())
}

/// Enough of a digest to distinguish requests.
fn short(digest: &[u8]) -> String {
    hex::encode(&digest[..16])
}

struct HashWriter(Sha256);

impl std::io::Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_request_that_is_sent_again_is_the_same_and_any_other_is_not() {
        let of = |caller: &str, given: Value| digest(caller, "turn/send", &given);
        let first = of("me", json!({"text": "hi", "agent": "a", "request_id": "1"}));
        assert_eq!(first.len(), 32);
        assert_eq!(first, of("me", json!({"agent": "a", "text": "hi", "request_id": "2"})));
        for other in [
            of("you", json!({"text": "hi", "agent": "a"})),
            of("me", json!({"text": "hi!", "agent": "a"})),
            of("me", json!({"texthi": "", "agent": "a"})),
            digest("me", "turn/sendtext", &json!({"agent": "a"})),
        ] {
            assert_ne!(first, other);
        }
    }
}
