//! The images that an agent needs before it can start: present, or pulled.
//!
//! Every [`Effect::Pull(PullEffect::Begin)`] is followed by another one for the same agent, or by one [`Effect::Pull(PullEffect::Drop)`] when its end is
//! recorded: until then the pull keeps its contents.

use lodge_core::AgentId;
use lodge_core::agent::{AgentEvent, AgentState};
use lodge_core::record::{AgentRow, ImageRow, ImageState, RuntimeRecord, ToolRecord};

use crate::{AutoRetry, Effect, Engine, PullEffect};

/// The result of a pull.
#[derive(Debug)]
pub(crate) struct PulledImages {
    pub rows: Vec<ImageRow>,
    pub tools: Vec<ToolRecord>,
    pub runtime: Option<RuntimeRecord>,
}

impl Engine {
    /// Orders the images that a pulling agent needs. An agent whose image is complete and that has no tools from other
    /// images continues at once.
    pub(crate) fn fetch(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get(id) else { return };
        if agent.row.state != AgentState::Pulling {
            return;
        }
        if !self.must_pull(&agent.row) {
            return self.image_ready(id);
        }
        if self.quarantined_pull(&agent.row).is_some() {
            return self.refuse_pull(id);
        }
        self.asks += 1;
        let ask = self.asks;
        if let Some(agent) = self.agents.get_mut(id) {
            agent.pull = Some(ask);
            self.step.act(Effect::Pull(PullEffect::Begin { row: Box::new(agent.row.clone()), ask }));
        }
    }

    /// Only the store of images knows whether the programs of tools are present, even if they were before.
    fn must_pull(&self, row: &AgentRow) -> bool {
        let announced =
            self.images.get(&row.image_digest).is_some_and(|held| held.state == ImageState::Announced);
        let tools = row.spec.tools.iter().any(|tool| tool.image.is_some());
        announced || tools || row.spec.runtime.as_ref().is_some_and(|runtime| runtime.image.is_some())
    }

    /// Records the pulled images and starts the agent. An answer to an earlier order is ignored.
    pub(crate) fn pulled(&mut self, id: &AgentId, ask: u64, images: PulledImages) {
        let PulledImages { rows, tools, runtime } = images;
        let Some(agent) = self.agents.get_mut(id).filter(|agent| agent.pull == Some(ask)) else { return };
        let spec = &mut agent.row.spec;
        // Removes images without a user: a tool that was replaced, or that is not needed.
        let mut left: Vec<String> = rows.iter().map(|row| row.digest.clone()).collect();
        let same = spec.tools == tools && spec.runtime == runtime;
        if !same {
            left.extend(spec.images().map(str::to_owned));
            (spec.tools, spec.runtime) = (tools, runtime);
        }
        for row in rows {
            self.put_row(row);
        }
        if !same {
            self.write_spec(id);
        }
        self.release_images(left);
        self.image_ready(id);
    }

    /// The pull is retried automatically, unless that is useless.
    pub(crate) fn pull_failed(&mut self, id: &AgentId, ask: u64, detail: String, again: AutoRetry) {
        let Some(agent) = self.agents.get(id).filter(|agent| agent.pull == Some(ask)) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::ImageFailed) else { return };
        self.fail(id, next, detail, again);
    }
}
