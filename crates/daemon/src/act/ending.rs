//! The end of an agent's sandbox, and the removal of its files.

use super::actor::Actor;
use crate::chain;
use lodge_engine::{Observation, SandboxObservation};

impl Actor {
    /// Ends the sandbox. `incarnation` is the newest that may live.
    pub(super) async fn end_sandbox(&mut self, incarnation: u32) -> Result<(), String> {
        let up = self.up.take();
        (self.dialing, self.pulse) = (None, None);
        self.context.drop_living(&self.agent);
        self.keeper().end_any(up.map(|up| up.sender), incarnation).await?;
        self.remove_run_directory().await;
        Ok(())
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
