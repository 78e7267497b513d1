//! One life of a daemon: the real `act/`, on a runtime with a paused clock.

use std::sync::{Arc, Mutex, PoisonError};

use lodge_core::record::EventRow;
use lodge_core::{AgentId, SandboxId};
use lodge_daemon::act::ports::Suspects;
use lodge_daemon::act::{ActContext, ActParts, ActPorts, prune, starting_slots};
use lodge_daemon::config::Config;
use lodge_daemon::tasks::TaskKind;
use lodge_engine::{Effect, Input, Ticket};
use lodge_proto::ErrorBody;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::port::SimPort;
use crate::world::SimWorld;

/// As in the daemon.
const INPUTS_MAX: usize = 1_024;
/// The most inputs that are taken at once.
const TAKEN_MAX: usize = 128;

/// An order of the world to the daemon's process. Orders are applied in sequence.
#[derive(Debug)]
pub enum LifeOrder {
    Start,
    Act(Box<Effect>),
    /// Release an answer.
    Reply {
        ticket: Ticket,
        reply: Result<Value, ErrorBody>,
    },
    /// Publish the newest event on disk.
    Publish(Box<EventRow>),
    CancelCalls,
    /// Sweep a sandbox.
    Prune(SandboxId, AgentId),
    /// Kill the process after the earlier orders.
    Die(&'static str),
    /// The process was killed.
    Kill,
}

/// Why the daemon's process paused.
#[derive(Debug)]
pub enum Pause {
    /// It has reported an observation.
    Inputs(Vec<Input>),
    /// The world has an event now.
    Attention,
    /// The requested time was reached.
    Time,
}

#[derive(Debug)]
pub struct SimLife {
    // Dropped before the runtime, so that a killed process has no later effects.
    context: Arc<ActContext>,
    inputs: mpsc::Receiver<Input>,
    port: SimPort,
    runtime: Runtime,
}

impl SimLife {
    pub fn new(world: &Arc<Mutex<SimWorld>>, config: &Arc<Config>) -> SimLife {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap_or_else(|error| panic!("a runtime without I/O cannot fail: {error}"));
        let entered = runtime.enter();
        let port = SimPort::new(world);
        let locked = world.lock().unwrap_or_else(PoisonError::into_inner);
        let (epoch, head) = (locked.disk.epoch(), locked.disk.head());
        let access = locked.daemon.as_ref().map(|daemon| daemon.access.clone()).unwrap_or_default();
        drop(locked);
        let (sender, inputs) = mpsc::channel(INPUTS_MAX);
        let shared = Arc::new(port.clone());
        let ports = ActPorts {
            clock: shared.clone(),
            executor: shared.clone(),
            store: shared.clone(),
            threads: shared.clone(),
            models: shared.clone(),
            agent_images: shared.clone(),
            files: shared.clone(),
            sandbox_files: shared.clone(),
            outputs: shared,
        };
        let context = ActContext::new(ActParts {
            config: config.clone(),
            epoch,
            state_key: [7; 32],
            head,
            suspects: Suspects::unrecorded(),
            access,
            starting: starting_slots(),
            ports,
            inputs: sender,
        });
        drop(entered);
        SimLife { context, inputs, port, runtime }
    }

    /// The time of the world.
    pub fn now(&self) -> u64 {
        let _entered = self.runtime.enter();
        self.port.now()
    }

    pub fn is_idle(&self) -> bool {
        self.context.actors.is_idle()
    }

    pub fn apply_order(&mut self, order: LifeOrder) {
        let _entered = self.runtime.enter();
        match order {
            LifeOrder::Act(effect) => self.context.act(*effect),
            LifeOrder::Publish(event) => self.context.hub.publish(vec![*event]),
            LifeOrder::CancelCalls => self.context.actors.cancel_calls(),
            LifeOrder::Prune(sandbox, agent) => {
                let context = self.context.clone();
                self.context.spawn(TaskKind::Sweep, async move {
                    drop(prune(&context, &sandbox, &agent).await);
                });
            }
            LifeOrder::Start | LifeOrder::Reply { .. } | LifeOrder::Die(_) | LifeOrder::Kill => {}
        }
    }

    /// Runs the daemon until the world has an event, at most until `at`.
    pub fn run_until(&mut self, at: u64) -> Pause {
        let SimLife { inputs, port, runtime, .. } = self;
        runtime.block_on(async {
            // Ready tasks run once, even if the time is reached already.
            tokio::task::yield_now().await;
            let mut taken = Vec::new();
            tokio::select! {
                biased;
                () = port.attention.notified() => Pause::Attention,
                _ = inputs.recv_many(&mut taken, TAKEN_MAX) => Pause::Inputs(taken),
                () = tokio::time::sleep_until(port.instant(at)) => Pause::Time,
            }
        })
    }
}
