//! The end of an agent's sandbox, and of what it leaves.

use std::sync::Arc;
use std::time::Duration;

use lodge_exec::{DialError, KeeperCommand, LinkSender};

use super::actor::{Actor, GONE_WITHIN, GRACE};
use super::root;
use crate::chain;
use crate::crash;
use lodge_engine::{SandboxSeen, Seen};

/// Earlier incarnations whose secret is tried on a sandbox that should be gone.
const INCARNATIONS_TRIED: usize = 16;

impl Actor {
    /// `incarnation` is the newest that may live.
    pub(super) async fn bring_down(&mut self, incarnation: u32) -> Result<(), String> {
        let up = self.up.take();
        (self.calling, self.pulse) = (None, None);
        self.shell.set_living(&self.agent, None);
        // A keeper that is linked lives, even if somebody took its lock away.
        if up.is_some() || self.is_held() {
            let sender = match up {
                Some(up) => Some(up.sender),
                None => self.dial_any(incarnation).await,
            };
            match sender {
                Some(sender) => self.end(&*sender).await?,
                None => self.kill().await?,
            }
        }
        self.remove_run().await;
        Ok(())
    }

    /// A link for ending a sandbox of which only the newest possible incarnation is known.
    pub(super) async fn dial_any(&self, newest: u32) -> Option<Arc<dyn LinkSender>> {
        let sandbox = self.sandbox.as_str();
        for incarnation in (1..=newest).rev().take(INCARNATIONS_TRIED) {
            match self.shell.executor.dial(sandbox, &self.secret(incarnation), self.shell.epoch).await {
                Ok(link) => return Some(link.sender),
                Err(DialError::WrongSecret { .. }) => {}
                // It does not answer at all: another secret changes nothing.
                Err(_) => return None,
            }
        }
        None
    }

    /// Ends a sandbox whose keeper answers nobody.
    pub(super) async fn kill(&self) -> Result<(), String> {
        let sandbox = self.sandbox.as_str();
        let killed = self.shell.executor.kill_keeper(sandbox).await.map_err(|error| error.to_string())?;
        if killed && self.shell.executor.wait_gone(sandbox, GONE_WITHIN).await {
            return Ok(());
        }
        Err("it holds its lock, does not answer, and could not be killed".to_owned())
    }

    /// Ends everything in a sandbox, and does not return before it is gone or beyond our power.
    pub(super) async fn end(&self, sender: &dyn LinkSender) -> Result<(), String> {
        let sandbox = self.sandbox.as_str();
        let grace_ms = u32::try_from(GRACE.as_millis()).unwrap_or(u32::MAX);
        // One that takes nothing is killed below.
        match tokio::time::timeout(GRACE, sender.send(&KeeperCommand::End { grace_ms })).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(event = "keeper.unreachable", sandbox, error = chain(&error)),
            Err(_) => tracing::warn!(event = "keeper.unreachable", sandbox, error = "it takes nothing"),
        }
        crash::point("during_stop");
        if self.is_over(sender, GRACE + GONE_WITHIN).await {
            return Ok(());
        }
        sender.kill_keeper().await.map_err(|error| format!("its keeper could not be killed: {error}"))?;
        if self.is_over(sender, GONE_WITHIN).await {
            return Ok(());
        }
        Err("its processes are still there after being killed".to_owned())
    }

    async fn is_over(&self, sender: &dyn LinkSender, within: Duration) -> bool {
        let sandbox = self.sandbox.as_str();
        sender.wait_ended(within).await && self.shell.executor.wait_gone(sandbox, within).await
    }

    /// A sandbox that ended as asked leaves nothing open: its directory can go.
    async fn remove_run(&self) {
        let (sandbox, agent) = (self.sandbox.as_str(), self.agent.clone());
        let needed = self
            .shell
            .reader
            .read_few(move |store| Ok(store.has_live_turn(&agent)? || store.has_unarchived_job(&agent)?));
        if needed.await.unwrap_or(true) {
            return;
        }
        if let Err(error) = self.shell.executor.remove(sandbox).await {
            tracing::warn!(event = "sandbox.not_removed", sandbox, error = chain(&error));
        }
    }

    pub(super) async fn clear(&mut self) {
        if self.is_held() {
            return self.not_cleared("its sandbox still lives".to_owned()).await;
        }
        // Where the output of jobs was in the way when it was ended.
        self.remove_run().await;
        let (data_dir, agent) = (self.shell.config.data_dir.clone(), self.agent.clone());
        let removed = tokio::task::spawn_blocking(move || root::remove(&data_dir, &agent)).await;
        let detail = match removed {
            Ok(Ok(())) => {
                self.shell.tell(Seen::Sandbox(SandboxSeen::Cleared { agent: self.agent.clone() })).await;
                return super::forget_sandbox(&self.shell, &self.sandbox, &self.agent);
            }
            Ok(Err(error)) => chain(&error),
            Err(error) => error.to_string(),
        };
        self.not_cleared(detail).await;
    }

    async fn not_cleared(&self, detail: String) {
        tracing::error!(event = "agent.not_cleared", agent = %self.agent, detail);
        self.shell.tell(Seen::Sandbox(SandboxSeen::NotCleared { agent: self.agent.clone(), detail })).await;
    }
}
