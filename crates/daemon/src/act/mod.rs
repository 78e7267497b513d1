//! Acting: committed effects are applied by one task per sandbox and one per model call.
//!
//! Every effect carries its id and is idempotent.

mod actor;
mod attach;
mod context;
mod dialing;
mod ending;
mod events;
mod history;
pub(crate) mod host;
mod jobs;
mod keeper;
pub(crate) mod layout;
mod model;
mod notes;
pub mod ports;
mod prune;
mod pulls;
mod pulse;
mod result;
mod root;
mod runtime;
mod standalone;
mod starting;
mod task_queues;
mod tools;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

pub use context::{ActContext, ActParts, ActPorts, InputRefusal, starting_slots};
pub use layout::Layout;
use lodge_core::{AgentId, SandboxId, TurnId};
pub use prune::{PruneOutcome, prune};
pub(crate) use root::mask;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use self::task_queues::TaskQueues;
use crate::tasks::TaskKind;
use lodge_engine::{
    AgentEffect, AgentLookup, AgentObservation, Effect, JobOrder, ModelEffect, Observation, PullEffect,
    SandboxEffect, StandaloneEffect, TurnObservation, WorkEffect,
};

/// An order to the task of a sandbox.
#[derive(Debug)]
enum SandboxOrder {
    /// Apply an effect. Effects arrive in the order of commits.
    Do(SandboxEffect),
    /// Remove the directory of the dead sandbox, unless it is needed.
    Prune(oneshot::Sender<PruneOutcome>),
}

/// The tasks that act.
#[derive(Debug, Default)]
pub struct Actors {
    sandboxes: TaskQueues<SandboxOrder>,
    standalones: TaskQueues<StandaloneEffect>,
    models: Mutex<BTreeMap<TurnId, CancellationToken>>,
    profiles: Mutex<BTreeMap<AgentId, Arc<runtime::Profile>>>,
    pulls: Mutex<BTreeMap<AgentId, pulls::AgentPull>>,
}

impl Actors {
    fn profile(&self, agent: &AgentId) -> Option<Arc<runtime::Profile>> {
        self.profiles.lock().unwrap_or_else(PoisonError::into_inner).get(agent).cloned()
    }

    /// Forgets the turn's call, which ended. A cancelled call is forgotten already, and the turn may have another one.
    fn call_ended(&self, turn: &TurnId, cancel: &CancellationToken) {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if !cancel.is_cancelled() {
            models.remove(turn);
        }
    }

    /// Whether no model is called, and nothing is pulled.
    pub fn is_idle(&self) -> bool {
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        models.is_empty() && pulls.is_empty()
    }

    /// Forgets what the runtime of a removed agent registered. A model call of a living agent may need it while its sandbox is
    /// replaced.
    fn forget_profile(&self, agent: &AgentId) {
        self.profiles.lock().unwrap_or_else(PoisonError::into_inner).remove(agent);
    }

    /// Cancels every call. A rebuilt engine knows none of them and orders again what it needs.
    pub fn cancel_calls(&self) {
        let calls = std::mem::take(&mut *self.models.lock().unwrap_or_else(PoisonError::into_inner));
        for call in calls.into_values() {
            call.cancel();
        }
    }

    fn set_profile(&self, agent: &AgentId, profile: runtime::Profile) {
        self.profiles.lock().unwrap_or_else(PoisonError::into_inner).insert(agent.clone(), Arc::new(profile));
    }
}

/// Applies one effect, or sends it to the task that does.
pub fn act(context: &Arc<ActContext>, effect: Effect) {
    match effect {
        Effect::Sandbox { sandbox, agent, what } => {
            let is_settled = matches!(what, SandboxEffect::Job(JobOrder::Forget { .. }));
            send_to_sandbox(context, &sandbox, &agent, SandboxOrder::Do(what));
            if is_settled {
                context.outputs.archived(&agent);
            }
        }
        Effect::Standalone { sandbox, what } => {
            let spawn = |orders| {
                let task = standalone::run(context.clone(), sandbox.clone(), orders);
                context.spawn(TaskKind::Standalone, task);
            };
            context.actors.standalones.send(&sandbox, what, spawn);
        }
        Effect::Job(what) => jobs::act(context, what),
        Effect::Model(ModelEffect::Call(order)) => {
            let token = CancellationToken::new();
            let turn = order.turn.clone();
            context.actors.models.lock().unwrap_or_else(PoisonError::into_inner).insert(turn, token.clone());
            context.spawn(TaskKind::ModelCall, model::call(context.clone(), *order, token));
        }
        Effect::Model(ModelEffect::Cancel { turn }) => {
            if let Some(token) =
                context.actors.models.lock().unwrap_or_else(PoisonError::into_inner).remove(&turn)
            {
                token.cancel();
            }
        }
        Effect::Model(ModelEffect::ProviderTimer { provider, wake, delay_ms }) => {
            let due = Observation::Turn(TurnObservation::ProviderDue { provider, wake });
            report_after(context, TaskKind::ProviderPause, delay_ms, due);
        }
        Effect::Agent(AgentEffect::RevivalTimer { agent, run, delay_ms }) => {
            let due = Observation::Agent(AgentObservation::RevivalDue { agent, run });
            report_after(context, TaskKind::AgentPause, delay_ms, due);
        }
        Effect::Agent(AgentEffect::RetryTimer { agent, run, delay_ms }) => {
            let due = Observation::Agent(AgentObservation::RetryDue { agent, run });
            report_after(context, TaskKind::AgentPause, delay_ms, due);
        }
        Effect::Agent(AgentEffect::LookUp { agent, ask }) => look_up(context, agent, ask),
        Effect::Pull(PullEffect::Begin { row, ask }) => pulls::begin(context, *row, ask),
        Effect::Pull(PullEffect::Drop { agent }) => pulls::drop_pull(context, &agent),
        Effect::Pull(PullEffect::Collect) => pulls::collect(context),
        Effect::Token(row) => context.access.put(*row, context.clock.now()),
        Effect::Work(WorkEffect::Decided { work, is_aside }) => context.suspects.decided(&work, is_aside),
        Effect::LookUpSandbox { ask, sandbox, exec } => standalone::look_up(context, ask, sandbox, exec),
    }
}

/// Reads an agent from the store, and reports it.
fn look_up(context: &Arc<ActContext>, agent: AgentId, ask: u64) {
    let reporter = context.clone();
    context.spawn(TaskKind::AgentLookup, async move {
        let id = agent.clone();
        let found = match reporter.read_few(move |store| store.agent_fact(&id)).await {
            Ok(Some(fact)) => AgentLookup::Found(Box::new(fact)),
            Ok(None) => AgentLookup::NotThere,
            Err(error) => {
                tracing::warn!(event = "agent.not_read", %agent, error = crate::chain(&error));
                AgentLookup::Unreadable
            }
        };
        reporter.report(Observation::Agent(AgentObservation::LookedUp { agent, ask, found })).await;
    });
}

/// Reports an observation after a pause. If the daemon ends before, the next daemon starts its own timer.
fn report_after(context: &Arc<ActContext>, kind: TaskKind, delay_ms: u64, due: Observation) {
    let reporter = context.clone();
    context.spawn(kind, async move {
        tokio::time::sleep(std::time::Duration::from_millis(delay_ms)).await;
        reporter.report(due).await;
    });
}

/// Sends an order to the task of an agent's sandbox. Called in the order of commits.
fn send_to_sandbox(context: &Arc<ActContext>, sandbox: &SandboxId, agent: &AgentId, order: SandboxOrder) {
    context.actors.sandboxes.send(sandbox, order, |orders| spawn_actor(context, sandbox, agent, orders));
}

fn spawn_actor(
    context: &Arc<ActContext>,
    sandbox: &SandboxId,
    agent: &AgentId,
    orders: mpsc::Receiver<Box<SandboxOrder>>,
) {
    let owned = (sandbox.clone(), agent.clone());
    context.spawn(TaskKind::Sandbox, actor::run(context.clone(), owned, orders));
}
