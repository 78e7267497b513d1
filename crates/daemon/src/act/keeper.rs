//! The keeper of one sandbox, for every task that has one: its secret, a link to it, its end.

use std::sync::Arc;
use std::time::Duration;

use lodge_core::SandboxId;
use lodge_exec::{DialError, KeeperCommand, KeeperSecret, LinkSender};

use super::actor::{GONE_WITHIN, GRACE};
use super::context::ActContext;
use crate::auth::derive;
use crate::chain;
use crate::crash;

/// How many incarnations' secrets are tried on a sandbox that has to end.
const INCARNATIONS_TRIED: usize = 16;

/// The keeper of a sandbox, whether it lives or not.
pub(super) struct SandboxKeeper<'a> {
    pub(super) context: &'a ActContext,
    pub(super) sandbox: &'a SandboxId,
}

impl SandboxKeeper<'_> {
    /// Whether the sandbox has a keeper.
    pub(super) fn is_held(&self) -> bool {
        self.context.executor.is_held(self.sandbox.as_str())
    }

    pub(super) fn secret(&self, incarnation: u32) -> KeeperSecret {
        let incarnation = incarnation.to_string();
        KeeperSecret::new(derive(&self.context.state_key.0, &["keeper", self.sandbox.as_str(), &incarnation]))
    }

    /// Dials a sandbox whose incarnation is unknown, to end it. `newest` is the newest possible one.
    pub(super) async fn dial_any(&self, newest: u32) -> Option<Arc<dyn LinkSender>> {
        let sandbox = self.sandbox.as_str();
        for incarnation in (1..=newest).rev().take(INCARNATIONS_TRIED) {
            match self.context.executor.dial(sandbox, &self.secret(incarnation), self.context.epoch).await {
                Ok(link) => return Some(link.sender),
                Err(DialError::WrongSecret { .. }) => {}
                // The keeper does not answer. Another secret does not help.
                Err(_) => return None,
            }
        }
        None
    }

    /// Ends the sandbox. `sender` is the link to its keeper, if there is one; `newest` the newest incarnation that may live.
    pub(super) async fn end_any(
        &self,
        sender: Option<Arc<dyn LinkSender>>,
        newest: u32,
    ) -> Result<(), String> {
        // A connected keeper lives, even if its lock file was removed.
        if sender.is_none() && !self.is_held() {
            return Ok(());
        }
        let sender = match sender {
            Some(sender) => Some(sender),
            None => self.dial_any(newest).await,
        };
        match sender {
            Some(sender) => self.end(&*sender).await,
            None => self.kill().await,
        }
    }

    /// Kills a keeper that does not answer.
    pub(super) async fn kill(&self) -> Result<(), String> {
        let sandbox = self.sandbox.as_str();
        self.context.executor.kill_keeper(sandbox).await.map_err(|error| error.to_string())?;
        // A keeper that could not be found may be ending by itself.
        if self.context.executor.wait_gone(sandbox, GONE_WITHIN).await {
            return Ok(());
        }
        Err("it holds its lock, does not answer, and could not be killed".to_owned())
    }

    /// Ends everything in a sandbox. Returns when it is gone, or when it survived SIGKILL.
    pub(super) async fn end(&self, sender: &dyn LinkSender) -> Result<(), String> {
        let sandbox = self.sandbox.as_str();
        let grace_ms = u32::try_from(GRACE.as_millis()).unwrap_or(u32::MAX);
        // A keeper that does not read is killed below.
        match tokio::time::timeout(GRACE, sender.send(&KeeperCommand::End { grace_ms })).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(event = "keeper.unreachable", sandbox, error = chain(&error)),
            Err(_) => tracing::warn!(event = "keeper.unreachable", sandbox, error = "it takes nothing"),
        }
        crash::point("during_stop");
        if self.is_over(sender, GRACE + GONE_WITHIN).await {
            return Ok(());
        }
        self.kill_connected(sender).await
    }

    /// Kills a connected keeper, also one whose lock file was removed.
    pub(super) async fn kill_connected(&self, sender: &dyn LinkSender) -> Result<(), String> {
        sender.kill_keeper().await.map_err(|error| format!("its keeper could not be killed: {error}"))?;
        if self.is_over(sender, GONE_WITHIN).await {
            return Ok(());
        }
        Err("its processes are still there after being killed".to_owned())
    }

    async fn is_over(&self, sender: &dyn LinkSender, within: Duration) -> bool {
        let sandbox = self.sandbox.as_str();
        sender.wait_ended(within).await && self.context.executor.wait_gone(sandbox, within).await
    }
}
