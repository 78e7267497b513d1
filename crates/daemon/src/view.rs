//! From what is recorded to what clients see: the one file that knows both shapes.

mod answers;
mod bins;
mod errors;
mod images;
mod jobs;
mod sandboxes;
mod sessions;

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use lodge_core::agent::{AgentState, FailReason};
use lodge_core::lineage::{LineageState, Policy};
use lodge_core::liveness::Liveness;
use lodge_core::park::ParkReason;
use lodge_core::quarantine::QuarantineRow;
use lodge_core::record::{AgentRow, EventRow, LineageRow, MountRecord, StepRow, ToolRecord, TurnRow, Usage};
use lodge_core::summary::TurnDetail;
use lodge_core::token::TokenRow;
use lodge_core::turn::TurnState;
use lodge_core::{AgentId, Timestamp, TurnId};
use lodge_proto::{
    AgentUpdated, AgentView, Event, HttpView, LayerView, LineageView, Mount, QuarantineView, StepView,
    TokenView, ToolView, TurnError, TurnView, TurnWaitView, UsageView,
};
use serde::Serialize;
use serde_json::{Map, Value};

pub use self::answers::{EngineReply, answer_view, image_not_found, no_image, rendered, text};
pub use self::bins::{bin, bin_detail, new_bin};
pub(crate) use self::errors::{client_errors, error_body};
pub use self::errors::{for_model, refused};
pub use self::images::{agentfile, capability, image, image_detail};
pub use self::jobs::{job, no_job};
pub use self::sandboxes::{exec, sandbox};
pub use self::sessions::{epoch, exported, hit, message, no_session, other_agent, session, session_exists};
use crate::host_trees::HOST_PATH;
use crate::shell::Http;
use lodge_engine::UpdateTiming;

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

/// The TCP listener, and the fingerprint of its certificate.
pub fn http(http: &Http, certificate: Option<String>) -> HttpView {
    let (state, addr, reason) = match http {
        Http::Off => ("off", None, None),
        Http::Listening { addr, .. } => ("listening", Some(addr), None),
        Http::Taken { addr, reason } => ("taken", Some(addr), Some(reason)),
        Http::NoCertificate { addr, reason, .. } => ("no_certificate", Some(addr), Some(reason)),
    };
    let (addr, reason) = (addr.cloned(), reason.cloned());
    HttpView { state: state.to_owned(), addr, url: http.url(), certificate, reason }
}

/// A layer of the fence as clients see it. Of one that has two ways it says which.
pub fn layer(layer: lodge_exec::Layer) -> LayerView {
    let in_force = layer.missing.is_none();
    let way = match layer.name.as_str() {
        "kill" => Some("by cgroup.kill".to_owned()),
        "limit_memory" | "limit_pids" | "limit_cpu_time" => Some("by cgroup".to_owned()),
        _other => None,
    };
    let way = way.filter(|_| in_force);
    LayerView { name: layer.name, in_force, why: layer.missing.or(way) }
}

/// A shape as JSON. The shapes of the API have string keys and finite numbers, so this cannot fail.
pub fn json<T: Serialize>(shape: &T) -> Value {
    serde_json::to_value(shape).unwrap_or(Value::Null)
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
        limits: crate::limits::view(&row.spec, living.map(|living| living.limits.as_slice())),
        limits_not_enforced: crate::limits::not_enforced(&row.spec),
        quarantine: Vec::new(),
        capabilities: row.spec.capabilities.iter().map(|name| capability(name)).collect(),
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

pub(crate) fn updated(agent: AgentView, in_force: &UpdateTiming) -> AgentUpdated {
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

pub fn token(row: &TokenRow, now: Timestamp) -> TokenView {
    TokenView {
        id: row.id.to_string(),
        issuer: row.holder.issuer().to_owned(),
        name: row.name.clone(),
        agent: row.holder.agent().map(ToString::to_string),
        status: row.standing(now).word().to_owned(),
        issued_at: at(row.issued_at),
        expires_at: at(row.expires_at),
        revoked_at: row.revoked_at.map(at),
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

pub fn turn(row: &TurnRow, steps: &[StepRow], text: String, partial: bool) -> TurnView {
    TurnView {
        id: row.id.to_string(),
        session: row.session.to_string(),
        agent: row.agent.to_string(),
        number: row.number,
        active: row.place.dropped == 0,
        replaces: row.place.replaces.as_ref().map(TurnId::to_string),
        status: row.state.word().to_owned(),
        waits_for: None,
        quarantine: None,
        message: None,
        since: None,
        waiting: wait(row),
        text,
        partial,
        steps: steps.iter().map(step).collect(),
        usage: usage(row.usage),
        error: row.failure.as_ref().map(|failure| TurnError {
            code: failure.code.clone(),
            message: failure.message.clone(),
            hint: failure.hint.clone(),
        }),
        created_at: row.created_at.to_string(),
        ended_at: row.ended_at.map(|at| at.to_string()),
    }
}

/// What a waiting turn waits for, apart from its agent and its slot.
fn wait(row: &TurnRow) -> Option<TurnWaitView> {
    let park = row.park.as_ref().filter(|_| row.state == TurnState::Waiting)?;
    match park {
        ParkReason::Provider(wait) if wait.is_held() => Some(TurnWaitView {
            reason: park.word().to_owned(),
            provider: Some(wait.provider.clone()),
            code: wait.failure.code.clone(),
            message: wait.failure.message.clone(),
            hint: wait.failure.hint.clone(),
            attempt: wait.failures,
            since: at(wait.first_at()),
            next_at: wait.next_at().map(at),
            until: Some(at(wait.until())),
        }),
        ParkReason::Provider(_) => None,
    }
}

pub fn usage(usage: Usage) -> UsageView {
    UsageView {
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
        cached_tokens: usage.cached_tokens,
        cost_usd: usage.micro_usd.map(dollars),
    }
}

fn dollars(micro_usd: u64) -> f64 {
    // Beyond 2^53 millionths, nine billion dollars, the last digit is lost.
    micro_usd as f64 / 1e6
}

pub fn full_turn(full: TurnDetail) -> TurnView {
    let waits_for =
        full.wait_reasons.as_ref().map(|wait_reasons| wait_reasons.waits_for(&full.row.id).to_owned());
    let quarantine = full.wait_reasons.and_then(|wait_reasons| wait_reasons.quarantine);
    TurnView {
        waits_for,
        quarantine: quarantine.map(|row| quarantined(&row, "quarantined")),
        message: full.extras.message,
        since: full.extras.since,
        ..turn(&full.row, &full.steps, full.text, full.partial)
    }
}

pub fn quarantined(row: &QuarantineRow, status: &str) -> QuarantineView {
    QuarantineView {
        id: row.id.to_string(),
        kind: row.work.kind.word().to_owned(),
        status: status.to_owned(),
        agent: row.agent.as_ref().map(ToString::to_string),
        turn: lodge_engine::turn_of(&row.work).map(|turn| turn.to_string()),
        detail: Some(row.detail.clone()).filter(|detail| !detail.is_empty()),
        deaths: row.deaths,
        since: row.since.to_string(),
    }
}

fn step(row: &StepRow) -> StepView {
    StepView {
        id: row.id.to_string(),
        kind: row.kind().word().to_owned(),
        name: row.name.clone(),
        status: row.state.word().to_owned(),
        attempt: row.attempt,
        exit_code: row.exit_code,
        signal: row.signal,
        cause: row.cause.map(|cause| cause.word().to_owned()),
        started_at: row.started_at.to_string(),
        ended_at: row.ended_at.map(|at| at.to_string()),
    }
}

pub fn event(row: &EventRow) -> Event {
    Event {
        seq: row.seq,
        stream: row.stream.clone(),
        stream_seq: row.stream_seq,
        at: at(row.at),
        kind: row.body.kind().word().to_owned(),
        data: event_data(row),
    }
}

fn at(time: Timestamp) -> String {
    time.to_string()
}

/// The fields of an event, with the agent whose stream it is in.
fn event_data(row: &EventRow) -> Map<String, Value> {
    let mut data = row.body.data();
    let is_agents = row.stream.strip_prefix(AgentId::PREFIX).is_some_and(|rest| rest.starts_with('_'));
    if is_agents {
        data.insert("agent".to_owned(), Value::from(row.stream.as_str()));
    }
    data
}
