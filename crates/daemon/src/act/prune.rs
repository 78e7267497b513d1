//! Taking away what a dead sandbox left. By the sandbox's own task, so that it never meets a start.

use std::sync::Arc;
use std::time::Duration;

use lodge_core::agent::AgentState;
use lodge_core::{AgentId, SandboxId};
use tokio::sync::{mpsc, oneshot};

use super::actor::Actor;
use super::{Order, task_of};
use crate::chain;
use crate::shell::Shell;

/// How long a task that is busy may take to answer; longer than ending a sandbox takes.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// What became of a sandbox's directory.
#[derive(Debug, PartialEq, Eq)]
pub enum Pruning {
    Pruned,
    /// Something lives there or is about to, or open work needs what is there.
    Needed,
    Failed {
        detail: String,
    },
}

/// Asks the task of an agent's dead sandbox to take away its directory.
pub async fn prune(shell: &Arc<Shell>, sandbox: &SandboxId, agent: &AgentId) -> Pruning {
    let (answer, answered) = oneshot::channel();
    match task_of(shell, sandbox, agent).try_send(Box::new(Order::Prune(answer))) {
        Ok(()) => match tokio::time::timeout(ANSWER_WITHIN, answered).await {
            Ok(Ok(pruning)) => pruning,
            // It ended, with its agent removed, and that takes care of the directory; or it is busy with it.
            Ok(Err(_)) | Err(_) => Pruning::Needed,
        },
        Err(mpsc::error::TrySendError::Full(_) | mpsc::error::TrySendError::Closed(_)) => Pruning::Needed,
    }
}

impl Actor {
    /// Looks again, now that nothing can be started meanwhile.
    pub(super) async fn prune(&self) -> Pruning {
        let agent = self.agent.clone();
        let read = self.shell.reader.read_few(move |store| {
            // The exit records of its tools are all that is known of them. So is the output of its jobs that is not in the
            // archive, and how they ended.
            let needed = store.has_live_turn(&agent)? || store.has_unarchived_job(&agent)?;
            Ok((store.agent(&agent)?, needed))
        });
        let (found, needed) = match read.await {
            Ok((Some(found), needed)) => (found.row, needed),
            Ok((None, _)) => return Pruning::Needed,
            Err(error) => return Pruning::Failed { detail: chain(&error) },
        };
        let over = match found.state {
            AgentState::Stopped | AgentState::Failed(_) | AgentState::Removed => true,
            AgentState::Pulling | AgentState::Starting | AgentState::Ready | AgentState::Removing => false,
        };
        if !over || needed || self.up.is_some() || self.calling.is_some() || self.is_held() {
            return Pruning::Needed;
        }
        match self.shell.executor.remove(self.sandbox.as_str()).await {
            Ok(()) => Pruning::Pruned,
            Err(error) => Pruning::Failed { detail: chain(&error) },
        }
    }
}
