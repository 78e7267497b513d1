//! Updates of agents, which keep their name, sessions and files.
//!
//! Running turns finish with the old settings. Then the runtime is replaced, and waiting turns continue with the new
//! one. While jobs run, turns continue with the old settings.

use std::collections::BTreeMap;

use lodge_core::agent::{AgentEvent, AgentState};
use lodge_core::event::AgentUpdated;
use lodge_core::job::JobState;
use lodge_core::lineage::LineageEvent;
use lodge_core::record::{
    AgentRow, AgentSpec, AgentWrite, MountRecord, NextSpec, RuntimeRecord, StartRetry, ToolRecord,
};
use lodge_core::{AgentId, JobId};

use super::Agent;
use super::ends::OpenTurnsFate;
use super::refusal::AgentRefusal;
use crate::jobs::CancelScope;
use crate::{
    AgentAnswer, AgentImageChange, AgentSnapshot, Caller, Change, Engine, Refusal, RunningJobs, Update,
};

/// When an update takes effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpdateTiming {
    Now,
    NextStart,
    /// After these, which run with the old settings.
    After {
        turns: Vec<lodge_core::TurnId>,
        jobs: Vec<JobId>,
    },
}

impl UpdateTiming {
    pub fn word(&self) -> &'static str {
        match self {
            UpdateTiming::Now => "now",
            UpdateTiming::NextStart => "next_start",
            UpdateTiming::After { .. } => "after_turns",
        }
    }
}

impl Engine {
    /// Replaces the current process. This is one commit: after a crash in between, the next daemon finds an agent that
    /// is starting.
    pub(crate) fn restart_agent(
        &mut self,
        caller: Caller,
        id: &AgentId,
        jobs: RunningJobs,
    ) -> Result<(), Refusal> {
        self.refuse_if_jobs_run(id, jobs)?;
        let agent = self.agent_to_change(id)?;
        agent
            .row
            .state
            .next(AgentEvent::RestartAsked)
            .map_err(|refused| AgentRefusal::wrong_state(&agent.row, refused.state))?;
        self.take_next(id);
        self.cancel_jobs(id, CancelScope::Running, "its agent was restarted");
        self.settle_open_turns(id, &OpenTurnsFate::Interrupt);
        if let Some(agent) = self.agents.get_mut(id) {
            agent.row.retry = StartRetry::default();
        }
        self.open_lineage(id);
        self.replace(id);
        self.reply_agent(caller, id);
        Ok(())
    }

    /// Records the settings of an agent, in effect now or after its running turns.
    pub(crate) fn update_agent(&mut self, caller: Caller, update: Update) -> Result<(), Refusal> {
        let Update { agent: id, change, image } = update;
        if let Some(image) = &image {
            self.check_refs(image.row.contents.kind(), &image.tags)?;
        }
        let has_jobs = self.jobs.running_of(&id) > 0;
        let agent = self.agent_mut(&id)?;
        match agent.row.state {
            AgentState::Removing | AgentState::Removed => {
                return Err(AgentRefusal::wrong_state(&agent.row, agent.row.state).into());
            }
            AgentState::Pulling
            | AgentState::Starting
            | AgentState::Ready
            | AgentState::Stopped
            | AgentState::Failed(_) => {}
        }
        let next = changed(current(&agent.row), change);
        let waits = agent.row.next.is_some();
        let (state, retries) = (agent.row.state, agent.row.retry.at.is_some());
        let works = agent.running > 0 || has_jobs;
        let replaces = waits || needs_runtime(&current(&agent.row), &next);
        let superseded = agent.row.next.replace(next);
        let put = image.map(|image| self.put_image(image));
        let in_force = match (replaces, works) {
            (true, true) => {
                self.write_spec(&id);
                UpdateTiming::After {
                    turns: self.running_turns(&id),
                    jobs: self.jobs.in_state(&id, JobState::Running),
                }
            }
            (true, false) | (false, true | false) => {
                self.take_next(&id);
                if state.takes_turns() || retries || !replaces {
                    UpdateTiming::Now
                } else {
                    UpdateTiming::NextStart
                }
            }
        };
        // The old image is released once, after the agent has the new one.
        if let Some(superseded) = superseded {
            self.release_images(superseded.images().map(str::to_owned).collect());
        }
        if let Some(put) = put {
            self.name_stored_image(put);
        }
        self.agent_event(&id, |name| AgentUpdated { name, status: in_force.word().to_owned() });
        if replaces && !works && (state.takes_turns() || retries) {
            self.replace(&id);
        }
        if let Some(answer) = self.agent_snapshot(&id) {
            let answer = AgentSnapshot { in_force: Some(in_force), ..answer };
            self.reply(caller, AgentAnswer::Agent(Box::new(answer)));
        }
        Ok(())
    }

    /// Applies a pending update after the last turn and the last job of the agent have ended.
    pub(crate) fn update_due(&mut self, id: &AgentId) {
        let rests = |agent: &&Agent| agent.running == 0 && self.jobs.running_of(id) == 0;
        let waits = self.agents.get(id).filter(|agent| agent.row.next.is_some());
        let Some(agent) = waits.filter(rests) else { return };
        let lives = agent.row.state.takes_turns();
        self.take_next(id);
        if lives {
            self.replace(id);
        }
    }

    /// Applies a pending update without a message to the runtime.
    pub(crate) fn take_next(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let Some(next) = agent.row.next.take() else { return };
        let mut left: Vec<String> = agent.row.images().map(str::to_owned).collect();
        (agent.row.image, agent.row.image_digest, agent.row.spec) =
            (next.image, next.image_digest, next.spec);
        self.outages.model_changed();
        left.retain(|digest| agent.row.images().all(|kept| kept != digest));
        self.write_spec(id);
        self.release_images(left);
    }

    /// Starts a new sandbox in place of the current one. The task that starts it ends the old one first.
    fn replace(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::RestartAsked) else { return };
        agent.row.incarnation += 1;
        // An agent that waited for its revival gets it.
        self.move_lineage(id, LineageEvent::Stopped);
        self.set_state(id, next, None);
        self.fetch(id);
    }

    pub(crate) fn write_spec(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get(id) else { return };
        let AgentRow { image, image_digest, spec, next, .. } = agent.row.clone();
        let (spec, next) = (Box::new(spec), next.map(Box::new));
        self.step.write(AgentWrite::Spec { id: id.clone(), image, image_digest, spec, next });
    }

    fn running_turns(&self, id: &AgentId) -> Vec<lodge_core::TurnId> {
        let running = self.turns.values().filter(|turn| turn.row.agent == *id && turn.is_running());
        let mut turns: Vec<lodge_core::TurnId> = running.map(|turn| turn.row.id.clone()).collect();
        turns.sort();
        turns
    }
}

/// The settings of an agent, including a pending update.
fn current(row: &AgentRow) -> NextSpec {
    row.next.clone().unwrap_or_else(|| NextSpec {
        image: row.image.clone(),
        image_digest: row.image_digest.clone(),
        spec: row.spec.clone(),
    })
}

/// The change as a pure step, so that two concurrent changes are both applied.
fn changed(mut next: NextSpec, change: Change) -> NextSpec {
    if let Some(image) = change.image {
        take_image(&mut next, image);
    }
    let spec = &mut next.spec;
    if let Some(model) = change.model {
        spec.model = model;
    }
    merge(&mut spec.env, change.env);
    merge(&mut spec.configs, change.configs);
    merge(&mut spec.labels, change.labels);
    spec.mounts.retain(|mount| !change.unmounts.contains(&mount.target));
    for mount in change.mounts {
        put_mount(&mut spec.mounts, mount);
    }
    if let Some(limits) = change.limits {
        spec.limits = Some(spec.limits.unwrap_or_default().changed_by(limits));
    }
    if let Some(policy) = change.revival_policy {
        spec.revival_policy = Some(policy.code());
    }
    next
}

/// Changes the image: the defaults of the old image are removed, and explicit settings of this agent stay.
fn take_image(next: &mut NextSpec, image: AgentImageChange) {
    let AgentImageChange { name, digest, old, new } = image;
    let spec = &mut next.spec;
    (next.image, next.image_digest) = (name, digest);
    if spec.model == old.model && !new.model.is_empty() {
        spec.model = new.model;
    }
    spec.labels.retain(|key, value| old.labels.get(key) != Some(value));
    for (key, value) in new.labels {
        spec.labels.entry(key).or_insert(value);
    }
    if spec.revival_policy == old.revival_policy {
        spec.revival_policy = new.revival_policy;
    }
    if spec.limits == old.limits {
        spec.limits = new.limits;
    }
    let added = |name: &String| !old.capabilities.contains(name) && !new.capabilities.contains(name);
    let mut capabilities = new.capabilities.clone();
    capabilities.extend(spec.capabilities.iter().filter(|name| added(name)).cloned());
    spec.capabilities = capabilities;
    // The name may refer to another program by now.
    let source = |spec: &AgentSpec| spec.runtime.as_ref().map(|runtime| runtime.source.clone());
    if source(spec) == source(&old) {
        let image =
            |runtime: &Option<RuntimeRecord>| runtime.as_ref().and_then(|runtime| runtime.image.clone());
        // A pulled runtime does not change: its digest names it.
        if image(&spec.runtime).is_none() || image(&spec.runtime) != image(&new.runtime) {
            spec.runtime = new.runtime;
        }
    }
    // Only the image sets these.
    let tools = new.tools.into_iter().map(|tool| pulled_already(&spec.tools, tool));
    spec.tools = tools.collect();
    spec.network = match (spec.network.take(), new.network) {
        // An agent that had the host's network before the default changed keeps it, until its Agentfile sets another.
        (None, Some(network)) if network.by_default => None,
        (_, network) => network,
    };
}

/// The tool as it was pulled, if it was: a digest always names the same program. The description comes from the tool's
/// image unless the agent overrides it.
fn pulled_already(known: &[ToolRecord], tool: ToolRecord) -> ToolRecord {
    let same = |known: &&ToolRecord| {
        (&known.name, &known.source, &known.image, known.safe)
            == (&tool.name, &tool.source, &tool.image, tool.safe)
            && (tool.description.is_empty() || tool.description == known.description)
            && (tool.usage.is_none() || tool.usage == known.usage)
    };
    let found = known.iter().filter(|known| known.image.is_some()).find(same);
    found.cloned().unwrap_or(tool)
}

fn merge(map: &mut BTreeMap<String, String>, changes: BTreeMap<String, Option<String>>) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(map.insert(key, value)),
            None => drop(map.remove(&key)),
        }
    }
}

fn put_mount(mounts: &mut Vec<MountRecord>, mount: MountRecord) {
    match mounts.iter_mut().find(|known| known.target == mount.target) {
        Some(known) => *known = mount,
        None => mounts.push(mount),
    }
}

/// Whether a runtime must be restarted to see a change. Labels and the policy concern only the daemon, except for the
/// label that the agent reads.
fn needs_runtime(before: &NextSpec, after: &NextSpec) -> bool {
    let told = |next: &NextSpec| NextSpec {
        spec: AgentSpec {
            labels: next.spec.labels.get_key_value("description").map(owned).into_iter().collect(),
            revival_policy: None,
            ..next.spec.clone()
        },
        ..next.clone()
    };
    told(before) != told(after)
}

fn owned((key, value): (&String, &String)) -> (String, String) {
    (key.clone(), value.clone())
}
