//! Pulls for agents, and the collection of unused contents.

use std::sync::{Arc, PoisonError};

use lodge_core::AgentId;
use lodge_core::quarantine::WorkKind;
use lodge_core::record::AgentRow;
use tokio_util::sync::CancellationToken;

use super::context::ActContext;
use super::ports::{ImagePins, ObtainedImages, PullFailure};
use crate::crash;
use crate::tasks::TaskKind;
use lodge_engine::{Observation, PullObservation};

/// The pull of one agent.
#[derive(Debug)]
pub(super) struct AgentPull {
    ask: u64,
    cancelled: CancellationToken,
    /// Pins the pulled contents until they are recorded.
    pins: Option<Box<dyn ImagePins>>,
}

/// Finds or pulls what an agent needs. Cancels an earlier pull for the same agent.
pub(super) fn begin(context: &Arc<ActContext>, row: AgentRow, ask: u64) {
    let cancelled = CancellationToken::new();
    let pull = AgentPull { ask, cancelled: cancelled.clone(), pins: None };
    let before = pulls(context).insert(row.id.clone(), pull);
    if let Some(before) = before {
        before.cancelled.cancel();
    }
    let puller = context.clone();
    context.spawn(TaskKind::ImagePull, async move {
        tokio::select! {
            biased;
            // Dropping the other future cancels the transfer, unless another caller waits for it.
            () = cancelled.cancelled() => {}
            () = pull_for(&puller, row, ask) => {}
        }
    });
}

async fn pull_for(context: &Arc<ActContext>, row: AgentRow, ask: u64) {
    let agent = row.id.clone();
    let watched = context.suspects.begin(WorkKind::Pull, agent.as_str(), &row.image_digest);
    let ready = async {
        crash::pill(WorkKind::Pull, &row.image);
        context.agent_images.obtain(&row).await
    };
    let seen = match watched.watch(ready).await {
        Ok(ObtainedImages { rows, tools, runtime, pins }) => {
            if !keep_pins(context, &agent, ask, pins) {
                return;
            }
            Observation::Pull(PullObservation::Pulled { agent, ask, rows, tools, runtime })
        }
        Err(PullFailure { detail, again }) => {
            // Contents that were received may belong to no recorded image.
            collect(context);
            Observation::Pull(PullObservation::Failed { agent, ask, detail, again })
        }
    };
    context.report(seen).await;
}

/// Keeps the pins until [`drop_pull`]. False: the pull was cancelled or replaced.
fn keep_pins(context: &Arc<ActContext>, agent: &AgentId, ask: u64, pins: Box<dyn ImagePins>) -> bool {
    match pulls(context).get_mut(agent).filter(|pull| pull.ask == ask) {
        Some(pull) => {
            pull.pins = Some(pins);
            true
        }
        None => false,
    }
}

/// Cancels the pull of an agent, or drops its pins when the contents are recorded.
pub(super) fn drop_pull(context: &Arc<ActContext>, agent: &AgentId) {
    let dropped = pulls(context).remove(agent);
    if let Some(pull) = dropped {
        if pull.pins.is_some() {
            crash::point("after_pulled");
        }
        pull.cancelled.cancel();
    }
}

/// Removes contents that no image has.
pub(super) fn collect(context: &Arc<ActContext>) {
    context.spawn(TaskKind::ImageCollection, context.agent_images.collect());
}

fn pulls(context: &ActContext) -> std::sync::MutexGuard<'_, std::collections::BTreeMap<AgentId, AgentPull>> {
    context.actors.pulls.lock().unwrap_or_else(PoisonError::into_inner)
}
