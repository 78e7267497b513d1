//! Reading the settings again, by request or by SIGHUP.

use std::sync::Arc;

use lodge_proto::{ErrorBody, SettingChange};
use tokio::sync::oneshot;

use super::methods::{Reply, answered};
use crate::config::ReloadPlan;
use crate::shell::{Shell, ShuttingDown};
use crate::tasks::TaskKind;
use crate::tls::Certificate;
use crate::view;
use lodge_engine::{Command, Observation, RequestKey};

/// Reads the same sources again and applies the differences; a mistake anywhere changes nothing. Listeners stay bound,
/// and running work keeps its old settings.
///
/// The caller may leave before it is done: what is recorded takes effect all the same.
pub async fn reload(shell: &Arc<Shell>, key: Option<RequestKey>) -> Reply {
    let (told, answer) = oneshot::channel();
    let worker = shell.clone();
    shell.spawn(TaskKind::Reload, async move { drop(told.send(reload_whole(&worker, key).await)) });
    answer.await.unwrap_or_else(|_| Err(ShuttingDown.into()))
}

async fn reload_whole(shell: &Arc<Shell>, key: Option<RequestKey>) -> Reply {
    // One at a time, so that the report matches the change.
    let _alone = shell.file_changes.lock().await;
    if let Some(known) = answered(shell, key.as_ref()).await? {
        return Ok(known);
    }
    let (mut reread, certificate) = {
        let shell = shell.clone();
        let read = tokio::task::spawn_blocking(move || (shell.config.reread(), shell.tls.read())).await;
        let (reread, certificate) =
            read.map_err(|error| ErrorBody::new("daemon.internal", error.to_string()))?;
        let reread = reread.map_err(|error| refused(&error, error.hint()))?;
        (reread, certificate.map_err(|error| refused(&error, error.hint()))?)
    };
    reread.told.changed.extend(certificate.as_ref().and_then(|new| certificate_change(shell, new)));
    let keys: Vec<String> = reread.told.changed.iter().map(|change| change.key.clone()).collect();
    let command = Command::Reloaded { keys: keys.clone(), answer: view::text(&reread.told) };
    let answer = view::rendered(&shell.ask(key, command).await?);
    put_into_effect(shell, reread, certificate).await;
    tracing::info!(event = "daemon.reloaded", keys = keys.join(","));
    Ok(answer)
}

async fn put_into_effect(shell: &Shell, reread: ReloadPlan, certificate: Option<Certificate>) {
    shell.config.swap(reread);
    if let Some(certificate) = certificate {
        shell.tls.put(certificate);
    }
    shell.level.set(&shell.config.settings().log_level);
    shell.report(Observation::Configured(shell.config.engine_settings())).await;
    shell.jobs.look_now();
    // The operator may have edited the providers together with the settings.
    shell.report(Observation::ProvidersChanged).await;
}

/// Compares the contents of certificate files: a renewed certificate has the same path.
fn certificate_change(shell: &Shell, new: &Certificate) -> Option<SettingChange> {
    let (from, to) = (shell.tls.current().map(|old| old.fingerprint()), new.fingerprint());
    let differs = from.as_ref() != Some(&to);
    differs.then(|| SettingChange { key: "tls-cert".to_owned(), from: from.into(), to: to.into() })
}

fn refused(error: &dyn std::error::Error, hint: String) -> ErrorBody {
    let mut body = ErrorBody::new("config.invalid", error.to_string()).hint(hint);
    body.data.cause = error.source().map(crate::chain);
    body
}
