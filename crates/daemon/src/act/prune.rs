//! Removes the directory of a dead sandbox. The sandbox's own task does it, so that it cannot race with a start.

use std::sync::Arc;
use std::time::Duration;

use lodge_core::agent::AgentState;
use lodge_core::{AgentId, SandboxId};
use tokio::sync::oneshot;

use super::actor::Actor;
use super::context::ActContext;
use super::{SandboxOrder, spawn_actor};
use crate::chain;

/// How long a busy task may take to answer. Longer than the end of a sandbox takes.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// What became of a sandbox's directory.
#[derive(Debug, PartialEq, Eq)]
pub enum PruneOutcome {
    Pruned,
    /// The sandbox lives or is about to start, or open work needs its files.
    Needed,
    Failed {
        detail: String,
    },
}

/// Asks the task of a dead sandbox to remove its directory.
pub async fn prune(context: &Arc<ActContext>, sandbox: &SandboxId, agent: &AgentId) -> PruneOutcome {
    let (answer, answered) = oneshot::channel();
    let order = Box::new(SandboxOrder::Prune(answer));
    let spawn = |orders| spawn_actor(context, sandbox, agent, orders);
    if context.actors.sandboxes.try_send(sandbox, order, spawn).is_err() {
        return PruneOutcome::Needed;
    }
    match tokio::time::timeout(ANSWER_WITHIN, answered).await {
        Ok(Ok(outcome)) => outcome,
        // The daemon is about to exit, or the task is busy.
        Ok(Err(_)) | Err(_) => PruneOutcome::Needed,
    }
}

impl Actor {
    /// Checks again: no start can happen while this task runs.
    pub(super) async fn prune(&self) -> PruneOutcome {
        let agent = self.agent.clone();
        let read = self.context.read_few(move |store| {
            // The directory has the only exit records of its tools and jobs, and the output that is not archived.
            let needed = store.has_live_turn(&agent)? || store.has_unarchived_job(&agent)?;
            Ok((store.agent_fact(&agent)?, needed))
        });
        let (found, needed) = match read.await {
            Ok((found, needed)) => (found.map(|found| found.row.state), needed),
            Err(error) => return PruneOutcome::Failed { detail: chain(&error) },
        };
        let over = match found {
            // Removed since the sweep found its sandbox.
            None | Some(AgentState::Stopped | AgentState::Failed(_) | AgentState::Removed) => true,
            Some(AgentState::Pulling | AgentState::Starting | AgentState::Ready | AgentState::Removing) => {
                false
            }
        };
        if !over || needed || self.up.is_some() || self.dialing.is_some() || self.is_held() {
            return PruneOutcome::Needed;
        }
        match self.context.executor.remove(self.sandbox.as_str()).await {
            Ok(()) => PruneOutcome::Pruned,
            Err(error) => PruneOutcome::Failed { detail: chain(&error) },
        }
    }
}
