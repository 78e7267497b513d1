//! Pulls for agents, and the removal of contents that nobody needs.

use std::sync::{Arc, PoisonError};

use lodge_core::AgentId;
use lodge_core::quarantine::WorkKind;
use lodge_core::record::AgentRow;
use lodge_image::Pins;
use lodge_proto::ErrorBody;
use tokio_util::sync::CancellationToken;

use crate::crash;
use crate::images::Ready;
use crate::shell::Shell;
use crate::tasks::TaskKind;
use lodge_engine::{Again, PullSeen, Seen};

/// What is pulled for an agent.
#[derive(Debug)]
pub(super) struct Pull {
    ask: u64,
    given_up: CancellationToken,
    /// What came, held until it is recorded.
    pins: Option<Pins>,
}

/// Finds or brings what an agent needs. An earlier pull for it is broken off.
pub(super) fn begin(shell: &Arc<Shell>, row: AgentRow, ask: u64) {
    let given_up = CancellationToken::new();
    let pull = Pull { ask, given_up: given_up.clone(), pins: None };
    let before = pulls(shell).insert(row.id.clone(), pull);
    if let Some(before) = before {
        before.given_up.cancel();
    }
    let puller = shell.clone();
    shell.spawn(TaskKind::ImagePull, async move {
        tokio::select! {
            // Dropping the rest breaks the transfer off, unless others wait for it.
            () = given_up.cancelled() => {}
            () = pull_for(&puller, row, ask) => {}
        }
    });
}

async fn pull_for(shell: &Arc<Shell>, row: AgentRow, ask: u64) {
    let agent = row.id.clone();
    let watched = shell.suspects.begin(WorkKind::Pull, agent.as_str(), &row.image_digest);
    let ready = async {
        crash::pill(WorkKind::Pull, &row.image);
        shell.images.ready(&row).await
    };
    let seen = match watched.watch(ready).await {
        Ok(Ready { rows, tools, runtime, pins }) => {
            if !hold(shell, &agent, ask, pins) {
                return;
            }
            Seen::Pull(PullSeen::Pulled { agent, ask, rows, tools, runtime })
        }
        Err(error) => {
            // What came and is of no recorded image, nor needed by one, belongs to nobody.
            collect(shell);
            Seen::Pull(PullSeen::Failed { agent, ask, detail: told(&error), again: again(&error) })
        }
    };
    shell.tell(seen).await;
}

/// Holds what came until [`drop_pull`]. False: nobody waits for it any more.
fn hold(shell: &Arc<Shell>, agent: &AgentId, ask: u64, pins: Pins) -> bool {
    match pulls(shell).get_mut(agent).filter(|pull| pull.ask == ask) {
        Some(pull) => {
            pull.pins = Some(pins);
            true
        }
        None => false,
    }
}

/// What an image is stays what it is, whoever brings it how often.
fn again(error: &ErrorBody) -> Again {
    match error.data.code.as_str() {
        "image.invalid"
        | "image.not_an_agent"
        | "bin.not_a_bin"
        | "bin.no_platform"
        | "agentfile.unsupported" => Again::Never,
        _other => Again::Later,
    }
}

/// An error with everything that helps, in one line.
pub(super) fn told(error: &ErrorBody) -> String {
    let cause = error.data.cause.as_deref().map(|cause| format!(": {cause}")).unwrap_or_default();
    let hint = error.data.hint.as_deref().map(|hint| format!(" ({hint})")).unwrap_or_default();
    format!("{}{cause}{hint}", error.message)
}

/// Breaks the pull of an agent off, or lets go of what it brought, which is recorded by now.
pub(super) fn drop_pull(shell: &Arc<Shell>, agent: &AgentId) {
    let dropped = pulls(shell).remove(agent);
    if let Some(pull) = dropped {
        if pull.pins.is_some() {
            crash::point("after_pulled");
        }
        pull.given_up.cancel();
    }
}

/// Removes contents that no image has.
pub(super) fn collect(shell: &Arc<Shell>) {
    shell.spawn(TaskKind::ImageCollection, shell.images.clone().collect());
}

fn pulls(shell: &Shell) -> std::sync::MutexGuard<'_, std::collections::HashMap<AgentId, Pull>> {
    shell.actors.pulls.lock().unwrap_or_else(PoisonError::into_inner)
}
