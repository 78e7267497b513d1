//! The state that all tasks of `act/` share: the interfaces they use, the tasks themselves, and the live sandboxes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use lodge_core::{AgentId, SandboxId};
use lodge_engine::{Input, Observation};
use lodge_exec::Executor;
use lodge_store::ReadError;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Actors;
use super::ports::{
    AgentFiles, AgentImages, Clock, ComputeThreads, JobOutputs, ModelCalls, ReadSize, StandaloneFiles,
    WorkReads, WorkStore,
};
use crate::auth::Access;
use crate::compute::{Charge, ComputeError};
use crate::config::Config;
use crate::hub::Hub;
use crate::shell::StateKey;
use crate::suspects::Suspects;
use crate::tasks::{TaskKind, named};
use crate::view::LiveSandbox;

/// Sandboxes that are prepared or started at once; others wait. A thousand at once would each exceed their timeouts.
const STARTING_MAX: usize = 16;

/// The interfaces that acting works through.
#[derive(Debug)]
pub struct ActPorts {
    pub clock: Arc<dyn Clock>,
    pub executor: Arc<dyn Executor>,
    pub store: Arc<dyn WorkStore>,
    pub threads: Arc<dyn ComputeThreads>,
    pub models: Arc<dyn ModelCalls>,
    pub agent_images: Arc<dyn AgentImages>,
    pub files: Arc<dyn AgentFiles>,
    pub sandbox_files: Arc<dyn StandaloneFiles>,
    pub outputs: Arc<dyn JobOutputs>,
}

/// What acting shares. `ports` is reached by `Deref`.
#[derive(Debug)]
pub struct ActContext {
    pub config: Arc<Config>,
    pub epoch: u64,
    pub state_key: StateKey,
    pub hub: Hub,
    /// Marks of what is computed now, for the next daemon.
    pub suspects: Suspects,
    /// Tokens that are valid now.
    pub access: Arc<Access>,
    /// Sandboxes that are prepared or started now.
    pub starting: Arc<Semaphore>,
    /// Cancelled when every request was answered or dropped: all tasks end.
    pub end: CancellationToken,
    /// Every task that is not a connection. The daemon waits for them when it ends.
    pub tasks: TaskTracker,
    pub actors: Actors,
    pub ports: ActPorts,
    handle: tokio::runtime::Handle,
    inputs: mpsc::Sender<Input>,
    living: Mutex<BTreeMap<AgentId, Arc<LiveSandbox>>>,
    /// Standalone sandboxes whose keeper is connected.
    standalone: Mutex<BTreeMap<SandboxId, Arc<LiveSandbox>>>,
}

/// What an [`ActContext`] starts with.
#[derive(Debug)]
pub struct ActParts {
    pub config: Arc<Config>,
    pub epoch: u64,
    pub state_key: [u8; 32],
    /// The sequence of the newest event.
    pub head: u64,
    pub suspects: Suspects,
    pub access: Arc<Access>,
    pub starting: Arc<Semaphore>,
    pub ports: ActPorts,
    pub inputs: mpsc::Sender<Input>,
}

/// Why the engine does not accept an input now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputRefusal {
    QueueFull,
    /// The daemon is about to exit.
    Closed,
}

impl std::ops::Deref for ActContext {
    type Target = ActPorts;

    fn deref(&self) -> &ActPorts {
        &self.ports
    }
}

/// The slots for [`ActParts::starting`].
pub fn starting_slots() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(STARTING_MAX))
}

impl ActContext {
    /// Tasks run on the current runtime.
    pub fn new(parts: ActParts) -> Arc<ActContext> {
        Arc::new(ActContext {
            config: parts.config,
            epoch: parts.epoch,
            state_key: StateKey(parts.state_key),
            hub: Hub::new(parts.head),
            suspects: parts.suspects,
            access: parts.access,
            starting: parts.starting,
            end: CancellationToken::new(),
            tasks: TaskTracker::new(),
            actors: Actors::default(),
            ports: parts.ports,
            handle: tokio::runtime::Handle::current(),
            inputs: parts.inputs,
            living: Mutex::default(),
            standalone: Mutex::default(),
        })
    }

    /// Applies one effect, or sends it to the task that does.
    pub fn act(self: &Arc<Self>, effect: lodge_engine::Effect) {
        super::act(self, effect);
    }

    /// Reports an observation to the engine. Waits for space in the queue: an observation is never dropped.
    pub async fn report(&self, seen: Observation) {
        // The engine is gone only when the process is about to exit.
        drop(self.inputs.send(Input::Seen(seen)).await);
    }

    /// As [`ActContext::report`], on a thread that may block.
    pub fn report_blocking(&self, seen: Observation) {
        // The engine is gone only when the process is about to exit.
        drop(self.inputs.blocking_send(Input::Seen(seen)));
    }

    /// Hands an input to the engine if its queue has space.
    pub fn try_input(&self, input: Input) -> Result<(), InputRefusal> {
        self.inputs.try_send(input).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => InputRefusal::QueueFull,
            mpsc::error::TrySendError::Closed(_) => InputRefusal::Closed,
        })
    }

    /// Reads a few rows from one snapshot.
    pub(super) async fn read_few<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn WorkReads) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, ComputeError> {
        self.read(ReadSize::Few, move |store| (read(store), 0)).await
    }

    /// Reads from one snapshot. `read` also returns how many bytes it read.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        size: ReadSize,
        read: impl FnOnce(&dyn WorkReads) -> (Result<T, ReadError>, u64) + Send + 'static,
    ) -> Result<T, ComputeError> {
        let (answer, answered) = oneshot::channel();
        let read = move |store: &dyn WorkReads| {
            let (result, bytes) = read(store);
            // A caller that is gone is not an error.
            drop(answer.send(result));
            bytes
        };
        self.store.read(size, Box::new(read)).await?;
        let result = answered.await.unwrap_or_else(|_| Err(ReadError::failed("the read was not made")));
        Ok(result?)
    }

    /// Runs CPU-bound work off the async workers.
    pub(super) async fn compute<T: Send + 'static>(
        &self,
        caller: &str,
        bytes: usize,
        work: impl FnOnce(&Charge) -> T + Send + 'static,
    ) -> Result<T, ComputeError> {
        let (answer, answered) = oneshot::channel();
        let work = move |charge: &Charge| drop(answer.send(work(charge)));
        self.threads.run(caller, bytes, Box::new(work)).await?;
        answered.await.map_err(|_| crate::shell::ShuttingDown.into())
    }

    pub fn living(&self, agent: &AgentId) -> Option<Arc<LiveSandbox>> {
        self.live_sandboxes().get(agent).cloned()
    }

    pub fn set_living(&self, agent: &AgentId, living: Arc<LiveSandbox>) {
        self.live_sandboxes().insert(agent.clone(), living);
    }

    /// The sandbox of an agent ended, or is about to.
    pub fn drop_living(&self, agent: &AgentId) {
        self.live_sandboxes().remove(agent);
    }

    /// A standalone sandbox whose keeper is connected.
    pub fn living_standalone(&self, sandbox: &SandboxId) -> Option<Arc<LiveSandbox>> {
        self.standalone.lock().unwrap_or_else(PoisonError::into_inner).get(sandbox).cloned()
    }

    pub(super) fn set_living_standalone(&self, sandbox: &SandboxId, living: Option<Arc<LiveSandbox>>) {
        let mut all = self.standalone.lock().unwrap_or_else(PoisonError::into_inner);
        match living {
            Some(living) => drop(all.insert(sandbox.clone(), living)),
            None => drop(all.remove(sandbox)),
        }
    }

    /// All live sandboxes of agents.
    pub fn all_living(&self) -> Vec<(AgentId, Arc<LiveSandbox>)> {
        self.live_sandboxes().iter().map(|(agent, living)| (agent.clone(), living.clone())).collect()
    }

    /// Removes a live sandbox, unless another one replaced it. True: it was removed.
    pub fn forget_living(&self, agent: &AgentId, seen: &Arc<LiveSandbox>) -> bool {
        let mut all = self.live_sandboxes();
        let same = all.get(agent).is_some_and(|living| Arc::ptr_eq(living, seen));
        same && all.remove(agent).is_some()
    }

    fn live_sandboxes(&self) -> std::sync::MutexGuard<'_, BTreeMap<AgentId, Arc<LiveSandbox>>> {
        self.living.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a task that ends with the daemon. What happens if it fails: see `TaskKind`.
    pub fn spawn(&self, kind: TaskKind, future: impl Future<Output = ()> + Send + 'static) {
        let end = self.end.clone();
        // Without the box, every task would contain its future twice.
        let future = Box::pin(future);
        let task = async move {
            tokio::select! {
                biased;
                () = end.cancelled() => {}
                () = future => {}
            }
        };
        self.tasks.spawn_on(named(kind, task), &self.handle);
    }
}
