//! Acting: what was committed is done, by one task per sandbox and one per model call.
//!
//! Every effect carries its id and can be asked for twice without harm.

mod actor;
mod calling;
mod ending;
mod events;
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

use lodge_core::{AgentId, SandboxId, TurnId};
pub use prune::{Pruning, prune};
pub(crate) use root::mask;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::shell::Shell;
use crate::tasks::TaskKind;
use lodge_engine::{AgentSeen, Effect, JobOrder, ModelEffect, PullEffect, SandboxEffect, Seen, Timer};

/// Effects that may wait for the task of one sandbox. A turn in flight has a few at most, so admission keeps this from being
/// reached; if it were, the writer would wait for the task.
const EFFECTS_MAX: usize = 8 * lodge_core::limits::LIVE_TURNS_MAX;

/// What a sandbox's task is asked to do.
#[derive(Debug)]
enum Order {
    /// In the order of commits.
    Do(SandboxEffect),
    /// Take away what the dead sandbox left, if nobody needs it.
    Prune(oneshot::Sender<Pruning>),
}

/// The tasks that act.
#[derive(Debug, Default)]
pub struct Actors {
    /// Boxed, as a queue keeps room for dozens of effects.
    sandboxes: Mutex<HashMap<SandboxId, mpsc::Sender<Box<Order>>>>,
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
        Effect::Sandbox { sandbox, agent, what } => {
            let is_settled = matches!(what, SandboxEffect::Job(JobOrder::Forget { .. }));
            to_sandbox(shell, &sandbox, &agent, Order::Do(what));
            if is_settled {
                crate::jobs::settled(shell, &agent);
            }
        }
        Effect::Job(what) => jobs::act(shell, what),
        Effect::Model(ModelEffect::Call(order)) => {
            let token = CancellationToken::new();
            let turn = order.turn.clone();
            shell.actors.models.lock().unwrap_or_else(PoisonError::into_inner).insert(turn, token.clone());
            shell.spawn(TaskKind::ModelCall, model::call(shell.clone(), *order, token));
        }
        Effect::Model(ModelEffect::Cancel { turn }) => {
            if let Some(token) =
                shell.actors.models.lock().unwrap_or_else(PoisonError::into_inner).remove(&turn)
            {
                token.cancel();
            }
        }
        Effect::Timer(timer) => start_timer(shell, timer),
        Effect::Pull(PullEffect::Begin { row, ask }) => pulls::begin(shell, *row, ask),
        Effect::Pull(PullEffect::Drop { agent }) => pulls::drop_pull(shell, &agent),
        Effect::Pull(PullEffect::Collect) => pulls::collect(shell),
        Effect::Token(row) => shell.access.put(*row),
        Effect::Quarantine { work, is_aside } => shell.suspects.decided(&work, is_aside),
        Effect::RemoveOutput { jobs } => shell.jobs.remove(jobs),
    }
}

/// Says something after a pause, unless the daemon ends before: the next one starts its own.
fn start_timer(shell: &Arc<Shell>, timer: Timer) {
    let teller = shell.clone();
    let (delay_ms, due) = match timer {
        Timer::Revival { agent, run, delay_ms } => (delay_ms, AgentSeen::RevivalDue { agent, run }),
        Timer::Retry { agent, run, delay_ms } => (delay_ms, AgentSeen::RetryDue { agent, run }),
    };
    shell.spawn(TaskKind::AgentPause, async move {
        tokio::time::sleep(std::time::Duration::from_millis(delay_ms)).await;
        teller.tell(Seen::Agent(due)).await;
    });
}

/// Hands an order to the task of a sandbox, which is started when there is none. Called in the order of commits.
fn to_sandbox(shell: &Arc<Shell>, sandbox: &SandboxId, agent: &AgentId, order: Order) {
    let sender = task_of(shell, sandbox, agent);
    match sender.try_send(Box::new(order)) {
        Ok(()) => {}
        Err(mpsc::error::TrySendError::Full(order)) => {
            tracing::warn!(event = "agent.behind", %agent, waiting = EFFECTS_MAX);
            // Closed only when the daemon is about to exit.
            drop(sender.blocking_send(order));
        }
        Err(mpsc::error::TrySendError::Closed(_)) => {}
    }
}

fn task_of(shell: &Arc<Shell>, sandbox: &SandboxId, agent: &AgentId) -> mpsc::Sender<Box<Order>> {
    let mut sandboxes = shell.actors.sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
    // Found in most cases, and then the id is not copied.
    if let Some(task) = sandboxes.get(sandbox) {
        return task.clone();
    }
    let (sender, orders) = mpsc::channel(EFFECTS_MAX);
    let owned = (sandbox.clone(), agent.clone());
    shell.spawn(TaskKind::Sandbox, actor::run(shell.clone(), owned, orders));
    sandboxes.insert(sandbox.clone(), sender.clone());
    sender
}

/// Forgets the sandbox of an agent that was removed.
fn forget_sandbox(shell: &Shell, sandbox: &SandboxId, agent: &AgentId) {
    shell.actors.sandboxes.lock().unwrap_or_else(PoisonError::into_inner).remove(sandbox);
    shell.actors.profiles.lock().unwrap_or_else(PoisonError::into_inner).remove(agent);
    shell.set_living(agent, None);
}
