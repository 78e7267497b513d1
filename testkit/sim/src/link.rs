//! A link between a daemon's task and a keeper: commands reach the keeper later, events wait in a queue.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lodge_core::SandboxId;
use lodge_exec::{ExecFuture, KeeperCommand, KeeperEvent, LinkReceiver, LinkSender, SendError};

use crate::port::SimPort;

/// The longest pause between two checks of a condition.
const LOOK_MS_MAX: u64 = 250;

/// Events that reached the daemon's end of a link.
#[derive(Debug, Default)]
pub struct LinkQueue(Mutex<LinkQueueState>);

#[derive(Debug, Default)]
struct LinkQueueState {
    events: VecDeque<KeeperEvent>,
    closed: bool,
    waker: Option<Waker>,
}

impl LinkQueue {
    pub fn push(&self, event: KeeperEvent) {
        let mut queue = self.lock();
        if !queue.closed {
            queue.events.push_back(event);
        }
        wake(queue);
    }

    /// Closes the queue. Queued events can still be read.
    pub fn close(&self) {
        let mut queue = self.lock();
        queue.closed = true;
        wake(queue);
    }

    fn lock(&self) -> MutexGuard<'_, LinkQueueState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wake(mut queue: MutexGuard<'_, LinkQueueState>) {
    let waker = queue.waker.take();
    drop(queue);
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[derive(Debug)]
pub struct SimReceiver(pub Arc<LinkQueue>);

impl LinkReceiver for SimReceiver {
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<KeeperEvent>> {
        let mut queue = self.0.lock();
        match queue.events.pop_front() {
            Some(event) => Poll::Ready(Some(event)),
            None if queue.closed => Poll::Ready(None),
            None => {
                queue.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[derive(Debug)]
pub struct SimSender {
    pub port: SimPort,
    pub sandbox: SandboxId,
    pub link: u64,
    /// The keeper at the other end.
    pub keeper: u64,
}

impl LinkSender for SimSender {
    fn send<'a>(&'a self, command: &'a KeeperCommand) -> ExecFuture<'a, Result<(), SendError>> {
        Box::pin(async move {
            // A command that is not sent whole leaves the connection useless.
            let mut unsent = UnsentCommand { sender: self, is_sent: false };
            // A stopped keeper reads nothing, and the socket is full at some point.
            self.port.wait_until(Duration::MAX, |world| !world.is_clogged(&self.sandbox, self.link)).await;
            unsent.is_sent = true;
            let sent =
                self.port.with(|world| world.send_to_keeper(&self.sandbox, self.link, command.clone()));
            sent.then_some(()).ok_or(SendError::Lost { cause: None })
        })
    }

    fn kill_keeper(&self) -> ExecFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.port.pause(10).await;
            self.port.with(|world| match world.keeper_serial(&self.sandbox) {
                Some(serial) if serial == self.keeper => world.try_kill_keeper(&self.sandbox),
                Some(_) | None => true,
            });
            Ok(())
        })
    }

    fn wait_ended(&self, within: Duration) -> ExecFuture<'_, bool> {
        Box::pin(self.port.wait_until(within, |world| {
            world.keeper_serial(&self.sandbox).is_none_or(|serial| serial != self.keeper)
        }))
    }

    fn close(&self) {
        self.port.with(|world| world.close_link(&self.sandbox, self.link));
    }
}

/// Closes the link of a command that was given up halfway.
struct UnsentCommand<'s> {
    sender: &'s SimSender,
    is_sent: bool,
}

impl Drop for UnsentCommand<'_> {
    fn drop(&mut self) {
        if !self.is_sent {
            self.sender.port.if_alive(|world| world.close_link(&self.sender.sandbox, self.sender.link));
        }
    }
}

/// The pauses between looks: short at first.
pub fn next_look(pause_ms: u64) -> u64 {
    (pause_ms * 2).clamp(1, LOOK_MS_MAX)
}
