//! The queues of the tasks of sandboxes: one task per sandbox, started by the first order and ended when it has nothing
//! to do.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use lodge_core::SandboxId;
use tokio::sync::mpsc;

/// Orders that may wait for the task of one sandbox. Admission keeps their number below this, because a live turn has only a
/// few. If the queue is full, the writer waits for the task.
const ORDERS_MAX: usize = 8 * lodge_core::limits::LIVE_TURNS_MAX;

/// The queue of each task, by its sandbox. Orders are boxed, because each queue allocates space for dozens of them.
#[derive(Debug)]
pub(super) struct TaskQueues<T>(Mutex<BTreeMap<SandboxId, mpsc::Sender<Box<T>>>>);

impl<T> Default for TaskQueues<T> {
    fn default() -> Self {
        TaskQueues(Mutex::default())
    }
}

/// An order that did not fit into the queue of its task.
pub(super) type UnsentOrder<T> = (mpsc::Sender<Box<T>>, Box<T>);

impl<T> TaskQueues<T> {
    /// Sends an order to the task of a sandbox, which `spawn` starts if there is none. Called in the order of commits.
    pub(super) fn send(&self, sandbox: &SandboxId, order: T, spawn: impl Fn(mpsc::Receiver<Box<T>>)) {
        let mut order = Box::new(order);
        loop {
            let Err((sender, unsent)) = self.try_send(sandbox, order, &spawn) else { return };
            tracing::warn!(event = "sandbox.behind", %sandbox, waiting = ORDERS_MAX);
            match sender.blocking_send(unsent) {
                Ok(()) => return,
                // The task emptied its queue and ended.
                Err(mpsc::error::SendError(unsent)) => order = unsent,
            }
        }
    }

    /// Sends an order under the lock of the queues, so that no task ends with an order in its queue.
    pub(super) fn try_send(
        &self,
        sandbox: &SandboxId,
        order: Box<T>,
        spawn: impl Fn(mpsc::Receiver<Box<T>>),
    ) -> Result<(), UnsentOrder<T>> {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The task usually exists, and then the id is not cloned.
        if let Some(sender) = queues.get(sandbox) {
            return match sender.try_send(order) {
                // The queue of a known task is closed only when the daemon is about to exit.
                Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
                Err(mpsc::error::TrySendError::Full(order)) => Err((sender.clone(), order)),
            };
        }
        let (sender, orders) = mpsc::channel(ORDERS_MAX);
        spawn(orders);
        queues.insert(sandbox.clone(), sender.clone());
        sender.try_send(order).map_err(|unsent| (sender, unsent.into_inner()))
    }

    /// Releases the queue of a sandbox whose task has nothing to do, unless an order waits. Then the task ends.
    pub(super) fn release(&self, sandbox: &SandboxId, orders: &mpsc::Receiver<Box<T>>) -> bool {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !orders.is_empty() {
            return false;
        }
        queues.remove(sandbox);
        true
    }
}
