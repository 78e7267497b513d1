//! The start of an agent's sandbox. Missing requirements are reported before anything is created.

use lodge_core::record::ImageRecord;
use lodge_exec::Link;

use super::actor::Actor;
use super::dialing::KeeperDial;
use super::ports::{PrepareError, ReadSize};
use crate::chain;
use crate::crash;
use lodge_engine::{AgentObservation, Observation, SandboxPlan, StartMode, StartRequirement};

impl Actor {
    /// Starts the agent's keeper and its runtime.
    pub(super) async fn start(&mut self, plan: SandboxPlan, how: StartMode) {
        let run = plan.run;
        let image = match self.load_image(&plan).await {
            Ok(image) => image,
            Err(ImageUnavailable::Missing(detail)) => {
                return self.report_lack(run, StartRequirement::Image, detail).await;
            }
            Err(ImageUnavailable::Unread(detail)) => {
                return self.postpone_dial(Box::new(KeeperDial::new(plan, how)), detail).await;
            }
        };
        if let Some(detail) = unset_configs(&plan, &image) {
            return self.report_lack(run, StartRequirement::Config, detail).await;
        }
        if let Err(detail) = self.context.models.check(&plan.settings.model) {
            return self.report_lack(run, StartRequirement::Model, detail).await;
        }
        match self.start_keeper(&plan, &image).await {
            Ok(link) => self.attach_link(link, plan, image, how).await,
            Err(PrepareError::Incomplete(detail)) => {
                self.report_lack(run, StartRequirement::Image, detail).await
            }
            Err(PrepareError::Failed(detail)) => self.report_start_failure(run, detail).await,
        }
    }

    pub(super) async fn report_lack(&self, run: u32, lack: StartRequirement, detail: String) {
        self.context
            .report(Observation::Agent(AgentObservation::Lacks {
                agent: self.agent.clone(),
                run,
                lack,
                detail,
            }))
            .await;
    }

    pub(super) async fn report_start_failure(&self, run: u32, detail: String) {
        self.context
            .report(Observation::Agent(AgentObservation::SpawnFailed {
                agent: self.agent.clone(),
                run,
                detail,
            }))
            .await;
    }

    pub(super) async fn load_image(&self, plan: &SandboxPlan) -> Result<ImageRecord, ImageUnavailable> {
        let digest = plan.image_digest.clone();
        let image = self.context.read(ReadSize::Row, move |store| (store.image(&digest), 0)).await;
        let image = image.map_err(|error| ImageUnavailable::Unread(chain(&error)))?;
        let mut image =
            image.ok_or_else(|| ImageUnavailable::Missing("its image is not in the store".to_owned()))?;
        // The agent's own settings override those of its image.
        image.configs.extend(plan.settings.configs.clone());
        Ok(image)
    }

    async fn start_keeper(&self, plan: &SandboxPlan, image: &ImageRecord) -> Result<Link, PrepareError> {
        let failed = PrepareError::Failed;
        let secret = self.secret(plan.incarnation);
        let spec = self.context.files.prepare(plan, image, secret.clone()).await?;
        // The preparation may wait for a registry, so only the start takes a slot. The semaphore is never closed.
        let _slot = self.context.starting.acquire().await.ok();
        let executor = &self.context.executor;
        executor.start(&spec).await.map_err(|error| failed(chain(&error)))?;
        crash::point("during_start");
        let dialled = executor.dial(plan.sandbox.as_str(), &secret, self.context.epoch).await;
        dialled.map_err(|error| failed(chain(&error)))
    }
}

/// Why the image of a sandbox could not be loaded.
pub(super) enum ImageUnavailable {
    Missing(String),
    /// The store could not be read. A later read may succeed.
    Unread(String),
}

/// Names the required settings that are not set, and how to set them.
fn unset_configs(plan: &SandboxPlan, image: &ImageRecord) -> Option<String> {
    let keys: Vec<&str> = image.unset(&plan.settings.configs).collect();
    let first = keys.first()?;
    let (listed, name) = (keys.join(", "), &plan.name);
    Some(format!(
        "CONFIG {listed} must be set and is not: run `lodge agent update {name} --config {first}=…`, or write \
         `CONFIG {first}=…` in its Agentfile"
    ))
}
