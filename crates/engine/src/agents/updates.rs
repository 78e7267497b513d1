//! Agents that become another while they keep their name, their sessions and their files.
//!
//! Turns that run finish on what they began with; then the runtime is replaced, and what waited goes on with it. Not while
//! jobs run: turns go on with what was before until those are over.

use std::collections::BTreeMap;

use lodge_core::agent::{AgentEvent, AgentState};
use lodge_core::event::AgentUpdated;
use lodge_core::job::JobState;
use lodge_core::lineage::LineageEvent;
use lodge_core::record::{
    AgentRow, AgentSpec, AgentWrite, LimitsRecord, MountRecord, NextSpec, Retry, RuntimeRecord, ToolRecord,
};
use lodge_core::{AgentId, JobId};

use super::Agent;
use super::ends::BreakOff;
use super::refusal::AgentRefusal;
use crate::answer::AgentAnswer;
use crate::jobs::Which;
use crate::{Answer, Caller, Change, Engine, ImageChange, Refusal, RunningJobs, Update};

/// From when on an update counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InForce {
    Now,
    NextStart,
    /// After these, which run on what was before.
    After {
        turns: Vec<lodge_core::TurnId>,
        jobs: Vec<JobId>,
    },
}

impl InForce {
    pub fn word(&self) -> &'static str {
        match self {
            InForce::Now => "now",
            InForce::NextStart => "next_start",
            InForce::After { .. } => "after_turns",
        }
    }
}

impl Engine {
    /// A new process in place of whatever there is. One commit: whoever dies in between, the next daemon finds an agent
    /// that is starting.
    pub(crate) fn restart_agent(
        &mut self,
        caller: Caller,
        id: &AgentId,
        jobs: RunningJobs,
    ) -> Result<(), Refusal> {
        self.spare_jobs(id, jobs)?;
        let agent = self.unasked(id)?;
        agent
            .row
            .state
            .next(AgentEvent::RestartAsked)
            .map_err(|refused| AgentRefusal::wrong_state(&agent.row, refused.state))?;
        self.take_next(id);
        self.cancel_jobs(id, Which::Running, "its agent was restarted");
        self.break_off_turns(id, &BreakOff::Interrupt);
        if let Some(agent) = self.agents.get_mut(id) {
            agent.row.retry = Retry::default();
        }
        self.open_lineage(id);
        self.replace(id);
        self.reply_agent(caller, id);
        Ok(())
    }

    /// Records what an agent is from now on, or from the end of its running turns on.
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
                InForce::After {
                    turns: self.running_turns(&id),
                    jobs: self.jobs.in_state(&id, JobState::Running),
                }
            }
            (true, false) | (false, true | false) => {
                self.take_next(&id);
                if state.takes_turns() || retries || !replaces { InForce::Now } else { InForce::NextStart }
            }
        };
        // An image goes after the agent that named it has another, and once.
        if let Some(superseded) = superseded {
            self.images_left(superseded.images().map(str::to_owned).collect());
        }
        if let Some(put) = put {
            self.name_put(put);
        }
        self.agent_event(&id, |name| AgentUpdated { name, status: in_force.word().to_owned() });
        if replaces && !works && (state.takes_turns() || retries) {
            self.replace(&id);
        }
        if let Some(answer) = self.agent_answer(&id) {
            let answer = AgentAnswer { in_force: Some(in_force), ..answer };
            self.reply(caller, Answer::Agent(Box::new(answer)));
        }
        Ok(())
    }

    /// Once the last turn and the last job of an agent that ran are over, what it is to become counts.
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

    /// Makes an agent what it is to become, without a word to its runtime.
    pub(crate) fn take_next(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let Some(next) = agent.row.next.take() else { return };
        let mut left: Vec<String> = agent.row.images().map(str::to_owned).collect();
        (agent.row.image, agent.row.image_digest, agent.row.spec) =
            (next.image, next.image_digest, next.spec);
        left.retain(|digest| agent.row.images().all(|kept| kept != digest));
        self.write_spec(id);
        self.images_left(left);
    }

    /// Starts a new sandbox in place of the one there is: whoever brings it up ends the old one first.
    fn replace(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::RestartAsked) else { return };
        agent.row.incarnation += 1;
        // One that waited for its revival has it.
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

/// What an agent is, or will be when its turns are over.
fn current(row: &AgentRow) -> NextSpec {
    row.next.clone().unwrap_or_else(|| NextSpec {
        image: row.image.clone(),
        image_digest: row.image_digest.clone(),
        spec: row.spec.clone(),
    })
}

/// The change as a pure step, so that two changes at once are two changes.
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
        spec.limits = Some(limited(spec.limits.unwrap_or_default(), limits));
    }
    if let Some(policy) = change.revival_policy {
        spec.revival_policy = Some(policy.code());
    }
    next
}

/// Another image: what came with the old one goes, what somebody chose for this agent stays.
fn take_image(next: &mut NextSpec, image: ImageChange) {
    let ImageChange { name, digest, old, new } = image;
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
    // The program of that name may be another by now.
    let source = |spec: &AgentSpec| spec.runtime.as_ref().map(|runtime| runtime.source.clone());
    if source(spec) == source(&old) {
        let image =
            |runtime: &Option<RuntimeRecord>| runtime.as_ref().and_then(|runtime| runtime.image.clone());
        // One that was pulled is the same for ever.
        if image(&spec.runtime).is_none() || image(&spec.runtime) != image(&new.runtime) {
            spec.runtime = new.runtime;
        }
    }
    // These are the image's alone.
    let tools = new.tools.into_iter().map(|tool| pulled_already(&spec.tools, tool));
    spec.tools = tools.collect();
    spec.network = match (spec.network.take(), new.network) {
        // One that had the host's network before there was another default keeps it, until its Agentfile says otherwise.
        (None, Some(network)) if network.by_default => None,
        (_, network) => network,
    };
}

/// A tool as it was pulled, if it was: a digest names the same program for ever. What it says of itself comes from its image
/// unless somebody said it better.
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

/// Each limit that is given goes before the one there was.
fn limited(before: LimitsRecord, given: LimitsRecord) -> LimitsRecord {
    LimitsRecord {
        memory_bytes: given.memory_bytes.or(before.memory_bytes),
        pids: given.pids.or(before.pids),
        cpu_ms: given.cpu_ms.or(before.cpu_ms),
        disk_bytes: given.disk_bytes.or(before.disk_bytes),
        output_bytes: given.output_bytes.or(before.output_bytes),
        budget_micro_usd: given.budget_micro_usd.or(before.budget_micro_usd),
        budget_tokens: given.budget_tokens.or(before.budget_tokens),
        context_tokens: given.context_tokens.or(before.context_tokens),
    }
}

/// Whether a runtime has to be started anew to know of a change. Labels and the policy are the daemon's own business,
/// but for the label that the agent is told.
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
