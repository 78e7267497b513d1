//! The end of an agent's sandbox, and the removal of its files.

use std::sync::Arc;
use std::time::Duration;

use lodge_exec::{DialError, KeeperCommand, LinkSender};

use super::actor::{Actor, GONE_WITHIN, GRACE};
use crate::chain;
use crate::crash;
use lodge_engine::{Observation, SandboxObservation};

/// How many incarnations' secrets are tried on a sandbox that has to end.
const INCARNATIONS_TRIED: usize = 16;

impl Actor {
    /// Ends the sandbox. `incarnation` is the newest that may live.
    pub(super) async fn end_sandbox(&mut self, incarnation: u32) -> Result<(), String> {
        let up = self.up.take();
        (self.dialing, self.pulse) = (None, None);
        self.context.drop_living(&self.agent);
        // A connected keeper lives, even if its lock file was removed.
        if up.is_some() || self.is_held() {
            let sender = match up {
                Some(up) => Some(up.sender),
                None => self.dial_any(incarnation).await,
            };
            match sender {
                Some(sender) => self.end_keeper(&*sender).await?,
                None => self.kill_keeper().await?,
            }
        }
        self.remove_run_directory().await;
        Ok(())
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

    /// Kills a keeper that does not answer.
    pub(super) async fn kill_keeper(&self) -> Result<(), String> {
        let sandbox = self.sandbox.as_str();
        self.context.executor.kill_keeper(sandbox).await.map_err(|error| error.to_string())?;
        // A keeper that could not be found may be ending by itself.
        if self.context.executor.wait_gone(sandbox, GONE_WITHIN).await {
            return Ok(());
        }
        Err("it holds its lock, does not answer, and could not be killed".to_owned())
    }

    /// Ends everything in a sandbox. Returns when it is gone, or when it survived SIGKILL.
    pub(super) async fn end_keeper(&self, sender: &dyn LinkSender) -> Result<(), String> {
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

    /// Removes the directory of an ended sandbox, unless open work needs it.
    async fn remove_run_directory(&self) {
        let (sandbox, agent) = (self.sandbox.as_str(), self.agent.clone());
        let needed = self
            .context
            .read_few(move |store| Ok(store.has_live_turn(&agent)? || store.has_unarchived_job(&agent)?));
        if needed.await.unwrap_or(true) {
            return;
        }
        if let Err(error) = self.context.executor.remove(sandbox).await {
            tracing::warn!(event = "sandbox.not_removed", sandbox, error = chain(&error));
        }
    }

    pub(super) async fn remove_agent_files(&mut self) {
        if self.is_held() {
            return self.report_not_cleared("its sandbox still lives".to_owned()).await;
        }
        // Output that was not archived yet may have kept the directory when the sandbox ended.
        self.remove_run_directory().await;
        let detail = match self.context.files.remove(&self.agent).await {
            Ok(()) => {
                self.context.actors.forget_profile(&self.agent);
                self.context
                    .report(Observation::Sandbox(SandboxObservation::Cleared { agent: self.agent.clone() }))
                    .await;
                return;
            }
            Err(detail) => detail,
        };
        self.report_not_cleared(detail).await;
    }

    async fn report_not_cleared(&self, detail: String) {
        tracing::error!(event = "agent.not_cleared", agent = %self.agent, detail);
        self.context
            .report(Observation::Sandbox(SandboxObservation::NotCleared {
                agent: self.agent.clone(),
                detail,
            }))
            .await;
    }
}
