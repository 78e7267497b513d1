//! Agents and lineages, as clients see them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use lodge_core::agent::{AgentState, FailReason};
use lodge_core::lineage::{LineageState, Policy};
use lodge_core::liveness::Liveness;
use lodge_core::park::{ParkReason, ProviderWait};
use lodge_core::record::{AgentRow, LineageRow, MountRecord, ToolRecord};
use lodge_core::{Timestamp, TurnId};
use lodge_engine::{AgentAnswer, UpdateTiming};
use lodge_proto::{AgentUpdated, AgentView, AgentWaitView, LayerView, LineageView, Mount, ToolView};

use super::answers::AnswerView;
use super::{at, images, quarantine};
use crate::host_trees::HOST_PATH;

pub(super) fn answer(answer: &AgentAnswer) -> AnswerView {
    match answer {
        AgentAnswer::Agent(found) => {
            let aside = found.quarantine.iter().map(|row| quarantine::quarantined(row, "quarantined"));
            let shown = AgentView { quarantine: aside.collect(), ..agent(&found.row, found.at_work, None) };
            match &found.in_force {
                Some(in_force) => AnswerView::AgentUpdated(Box::new(updated(shown, in_force))),
                None => AnswerView::Agent(Box::new(shown)),
            }
        }
        AgentAnswer::Lineage(found) => {
            let last_turn = found.last_turn.clone();
            let shown = lineage(&found.row, &found.agent_name, found.policy, last_turn);
            AnswerView::Lineage(Box::new(shown))
        }
    }
}

/// Facts about a live sandbox from the host, never stored.
#[derive(Debug)]
pub struct LiveSandbox {
    pub pid: Option<u32>,
    pub layers: Vec<LayerView>,
    /// Also empty for a keeper that knows no limits.
    pub limits: Vec<lodge_exec::EnforcedLimit>,
    /// The runtime's process, as its sandbox numbers it; 0: not known.
    runtime: AtomicU32,
    /// The last message of the runtime; 0: none yet.
    pub heard_ms: AtomicI64,
    pub liveness: Mutex<Liveness>,
}

impl LiveSandbox {
    pub fn new(pid: Option<u32>, layers: Vec<LayerView>, limits: Vec<lodge_exec::EnforcedLimit>) -> Self {
        LiveSandbox {
            pid,
            layers,
            limits,
            runtime: AtomicU32::new(0),
            heard_ms: AtomicI64::new(0),
            liveness: Mutex::new(Liveness::Active),
        }
    }

    pub fn set_runtime(&self, pid: u32) {
        self.runtime.store(pid, Ordering::Relaxed);
    }

    /// The runtime's process on this host.
    pub fn runtime_pid(&self, executor: &dyn lodge_exec::Executor) -> Option<u32> {
        executor.process_of(self.pid?, self.runtime.load(Ordering::Relaxed))
    }

    pub fn record_line(&self, now: Timestamp) {
        self.heard_ms.store(now.ms(), Ordering::Relaxed);
    }

    pub fn set_liveness(&self, level: Liveness) {
        *self.liveness.lock().unwrap_or_else(PoisonError::into_inner) = level;
    }

    fn last_heard(&self) -> Option<Timestamp> {
        Some(self.heard_ms.load(Ordering::Relaxed)).filter(|ms| *ms != 0).map(Timestamp::from_ms)
    }
}

/// How alive an agent looks: as dead as it was when it failed, also while its sandbox is still being ended, or as its
/// process does.
fn liveness(row: &AgentRow, living: Option<&LiveSandbox>) -> Option<&'static str> {
    if matches!(row.state, AgentState::Failed(FailReason::Crashed)) {
        return Some(Liveness::Crashed.word());
    }
    living.map(|living| living.liveness.lock().unwrap_or_else(PoisonError::into_inner).word())
}

pub fn agent(row: &AgentRow, working: bool, living: Option<&LiveSandbox>) -> AgentView {
    let status = match row.state {
        AgentState::Ready if working => "working",
        state => state.word(),
    };
    let reason = match row.state {
        AgentState::Failed(reason) => Some(reason.word().to_owned()),
        AgentState::Pulling
        | AgentState::Starting
        | AgentState::Ready
        | AgentState::Stopped
        | AgentState::Removing
        | AgentState::Removed => None,
    };
    let limits = row.spec.limits.unwrap_or_default();
    AgentView {
        id: row.id.to_string(),
        name: row.name.clone(),
        image: row.image.clone(),
        image_digest: row.image_digest.clone(),
        model: row.spec.model.clone(),
        status: status.to_owned(),
        failure_reason: reason,
        failure_detail: row.failure_detail.clone(),
        attempt: Some(row.retry.failures).filter(|failures| *failures > 0),
        retry_at: row.retry.at.map(at),
        lineage: row.lineage.to_string(),
        context_state: None,
        usage: None,
        liveness: liveness(row, living).map(str::to_owned),
        last_heartbeat_at: living.and_then(LiveSandbox::last_heard).map(at),
        pid: living.and_then(|living| living.pid),
        started_at: row.started_at.map(|at| at.to_string()),
        created_at: row.created_at.to_string(),
        labels: row.spec.labels.clone(),
        mounts: row.spec.mounts.iter().map(mount).collect(),
        sandbox: row.sandbox.to_string(),
        network: images::network(row.spec.network.clone()),
        isolation: living.map(|living| living.layers.clone()).unwrap_or_default(),
        limits: crate::limits::view(limits, living.map(|living| living.limits.as_slice())),
        limits_not_enforced: crate::limits::not_enforced(limits),
        quarantine: Vec::new(),
        waiting: Vec::new(),
        capabilities: row.spec.capabilities.iter().map(|name| images::capability(name)).collect(),
    }
}

/// What the parked turns of an agent wait for: turns that wait for one provider are one entry.
pub fn agent_waits(parked: &[ParkReason]) -> Vec<AgentWaitView> {
    let mut by_provider: BTreeMap<&str, Vec<&ProviderWait>> = BTreeMap::new();
    for reason in parked {
        match reason {
            ParkReason::Provider(wait) if wait.is_held() => {
                by_provider.entry(&wait.provider).or_default().push(wait);
            }
            ParkReason::Provider(_) => {}
        }
    }
    let views = by_provider.into_iter().filter_map(|(provider, waits)| {
        // All of them have the newest failure of the provider, unless a crash came between.
        let newest = waits.iter().max_by_key(|wait| wait.failures)?;
        Some(AgentWaitView {
            reason: ParkReason::Provider((*newest).clone()).word().to_owned(),
            provider: Some(provider.to_owned()),
            turns: u32::try_from(waits.len()).unwrap_or(u32::MAX),
            code: newest.failure.code.clone(),
            message: newest.failure.message.clone(),
            hint: newest.failure.hint.clone(),
            attempt: newest.failures,
            since: at(waits.iter().map(|wait| wait.first_at()).min()?),
            next_at: newest.next_at().map(at),
            until: waits.iter().map(|wait| wait.until()).min().map(at),
        })
    });
    views.collect()
}

fn updated(agent: AgentView, in_force: &UpdateTiming) -> AgentUpdated {
    let (after_turns, after_jobs) = match in_force {
        UpdateTiming::Now | UpdateTiming::NextStart => (Vec::new(), Vec::new()),
        UpdateTiming::After { turns, jobs } => {
            (turns.iter().map(ToString::to_string).collect(), jobs.iter().map(ToString::to_string).collect())
        }
    };
    AgentUpdated { agent, in_force: in_force.word().to_owned(), after_turns, after_jobs }
}

pub fn lineage(row: &LineageRow, agent_name: &str, policy: Policy, last_turn: Option<TurnId>) -> LineageView {
    let ended_reason = match row.state {
        LineageState::Ended(reason) => Some(reason.word().to_owned()),
        LineageState::Active | LineageState::Orphaned | LineageState::AskPending | LineageState::Reaped => {
            None
        }
    };
    LineageView {
        id: row.id.to_string(),
        agent: row.agent.to_string(),
        agent_name: agent_name.to_owned(),
        status: row.state.word().to_owned(),
        ended_reason,
        policy: policy.word().to_owned(),
        revivals: row.revivals,
        deaths: row.deaths,
        detail: row.detail.clone(),
        last_turn: last_turn.map(|turn| turn.to_string()),
        created_at: at(row.created_at),
        ended_at: row.ended_at.map(at),
    }
}

/// A mount, and the owner whose rights the agent has in it.
pub fn mount(record: &MountRecord) -> Mount {
    Mount {
        host: record.host.clone(),
        target: record.target.clone(),
        read_only: record.read_only,
        description: record.description.clone(),
        map_root: record.owner.is_some_and(|owner| owner.uid == 0 || owner.gid == Some(0)),
        owner: record.owner.map(|owner| match owner.gid {
            Some(gid) => format!("{}:{gid}", owner.uid),
            None => owner.uid.to_string(),
        }),
    }
}

pub fn tools(row: &AgentRow) -> Vec<ToolView> {
    row.spec
        .tools
        .iter()
        .map(|tool| ToolView {
            name: tool.name.clone(),
            description: tool.description.clone(),
            source: tool.source.clone(),
            // Empty until it was pulled.
            path: Some(tool.path.clone()).filter(|path| !path.is_empty()),
            digest: Some(tool.digest.clone()).filter(|digest| !digest.is_empty()),
            safe: tool.safe,
            portable: !tool.is_of_host(),
            note: tool.is_of_host().then(|| "a host program: a convenience, not a boundary".to_owned()),
            opens: opens(tool),
        })
        .collect()
}

/// What a shell can start beside the agent's tools.
fn opens(tool: &ToolRecord) -> Option<String> {
    let opens = match (tool.shell, tool.is_of_host()) {
        (false, _) => return None,
        (true, true) => format!("every program of the host in {}", HOST_PATH.join(", ")),
        (true, false) => "the utilities that are built into it".to_owned(),
    };
    Some(opens)
}
