//! Acting: what was committed is done, by one task per agent and one per model call.
//!
//! Every effect carries its id and can be asked for twice without harm.

mod actor;
mod calling;
mod ending;
mod history;
mod jobs;
mod layout;
mod model;
mod notes;
mod prune;
mod pulls;
mod pulse;
mod result;
mod root;
mod runtime;
mod starting;
mod tools;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use lodge_core::{AgentId, TurnId};
pub use prune::{Pruning, prune};
pub(crate) use root::mask;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::engine::Effect;
use crate::shell::Shell;
use crate::tasks::TaskKind;

/// Effects that may wait for one agent's task. A turn in flight has a few at most, so admission keeps this from being
/// reached; if it were, the writer would wait for the task.
const EFFECTS_MAX: usize = 8 * lodge_core::limits::LIVE_TURNS_MAX;

/// What an agent's task is told.
#[derive(Debug)]
enum Order {
    /// In the order of commits.
    Do(Effect),
    /// Take away what its dead sandbox left, if nobody needs it.
    Prune(oneshot::Sender<Pruning>),
}

/// The tasks that act.
#[derive(Debug, Default)]
pub struct Actors {
    /// Boxed, as a queue keeps room for dozens of effects.
    agents: Mutex<HashMap<AgentId, mpsc::Sender<Box<Order>>>>,
    models: Mutex<HashMap<TurnId, CancellationToken>>,
    profiles: Mutex<HashMap<AgentId, Arc<runtime::Profile>>>,
    pulls: Mutex<HashMap<AgentId, pulls::Pull>>,
}

impl Actors {
    fn profile(&self, agent: &AgentId) -> Option<Arc<runtime::Profile>> {
        self.profiles.lock().unwrap_or_else(PoisonError::into_inner).get(agent).cloned()
    }

    /// The turn's call is over; the engine starts no other before it has heard so.
    fn call_ended(&self, turn: &TurnId) {
        self.models.lock().unwrap_or_else(PoisonError::into_inner).remove(turn);
    }

    /// Breaks off every call: an engine that was rebuilt knows none of them and asks again for what it needs.
    pub fn cancel_calls(&self) {
        for (_, call) in self.models.lock().unwrap_or_else(PoisonError::into_inner).drain() {
            call.cancel();
        }
    }

    fn set_profile(&self, agent: &AgentId, profile: runtime::Profile) {
        self.profiles.lock().unwrap_or_else(PoisonError::into_inner).insert(agent.clone(), Arc::new(profile));
    }
}

/// Does one effect, or hands it to the task whose business it is.
pub fn act(shell: &Arc<Shell>, effect: Effect) {
    match effect {
        Effect::CallModel(order) => {
            let token = CancellationToken::new();
            let turn = order.turn.clone();
            shell.actors.models.lock().unwrap_or_else(PoisonError::into_inner).insert(turn, token.clone());
            shell.spawn(TaskKind::ModelCall, model::call(shell.clone(), *order, token));
        }
        Effect::CancelModel { turn } => {
            if let Some(token) =
                shell.actors.models.lock().unwrap_or_else(PoisonError::into_inner).remove(&turn)
            {
                token.cancel();
            }
        }
        Effect::ReviveLater { agent, run, delay_ms } => {
            let teller = shell.clone();
            shell.spawn(TaskKind::RevivalPause, async move {
                tokio::time::sleep(std::time::Duration::from_millis(delay_ms)).await;
                teller.tell(crate::engine::Seen::RevivalDue { agent, run }).await;
            });
        }
        Effect::Pull { row, ask } => pulls::begin(shell, *row, ask),
        Effect::DropPull { agent } => pulls::drop_pull(shell, &agent),
        Effect::CollectImages => pulls::collect(shell),
        Effect::Token(row) => shell.access.put(*row),
        Effect::Quarantine { work, is_aside } => shell.suspects.decided(&work, is_aside),
        Effect::RemoveOutput { jobs } => shell.jobs.remove(jobs),
        Effect::RetryLater { agent, run, delay_ms } => {
            let teller = shell.clone();
            shell.spawn(TaskKind::RetryPause, async move {
                tokio::time::sleep(std::time::Duration::from_millis(delay_ms)).await;
                teller.tell(crate::engine::Seen::RetryDue { agent, run }).await;
            });
        }
        Effect::Up { ref row, .. } => to_agent(shell, &row.id.clone(), effect),
        Effect::Down { ref agent, .. }
        | Effect::KillRuntime { ref agent, .. }
        | Effect::KillSandbox { ref agent, .. }
        | Effect::Clear { ref agent, .. }
        | Effect::NoteFailure { ref agent, .. }
        | Effect::RunTurn { ref agent, .. }
        | Effect::DropTurn { ref agent, .. }
        | Effect::Answer { ref agent, .. }
        | Effect::StartExec { ref agent, .. }
        | Effect::KillExec { ref agent, .. }
        | Effect::ForgetExec { ref agent, .. } => to_agent(shell, &agent.clone(), effect),
        Effect::Job { agent, what } => jobs::act(shell, &agent, what),
    }
}

/// Hands an effect to an agent's task, which is started when there is none. Called in the order of commits.
fn to_agent(shell: &Arc<Shell>, agent: &AgentId, effect: Effect) {
    let sender = task_of(shell, agent);
    match sender.try_send(Box::new(Order::Do(effect))) {
        Ok(()) => {}
        Err(mpsc::error::TrySendError::Full(order)) => {
            tracing::warn!(event = "agent.behind", %agent, waiting = EFFECTS_MAX);
            // Closed only when the daemon is about to exit.
            drop(sender.blocking_send(order));
        }
        Err(mpsc::error::TrySendError::Closed(_)) => {}
    }
}

fn task_of(shell: &Arc<Shell>, agent: &AgentId) -> mpsc::Sender<Box<Order>> {
    let mut agents = shell.actors.agents.lock().unwrap_or_else(PoisonError::into_inner);
    let task = agents.entry(agent.clone()).or_insert_with(|| {
        let (sender, orders) = mpsc::channel(EFFECTS_MAX);
        shell.spawn(TaskKind::Agent, actor::run(shell.clone(), agent.clone(), orders));
        sender
    });
    task.clone()
}

/// Forgets an agent that was removed.
fn forget_agent(shell: &Shell, agent: &AgentId) {
    shell.actors.agents.lock().unwrap_or_else(PoisonError::into_inner).remove(agent);
    shell.actors.profiles.lock().unwrap_or_else(PoisonError::into_inner).remove(agent);
    shell.set_living(agent, None);
}
