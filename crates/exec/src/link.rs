//! A link to a keeper: commands in one direction, events in the other.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use lodge_link::{KeeperCommand, KeeperEvent, Welcome};

use crate::error::SendError;
use crate::executor::ExecFuture;

/// A proven connection to a keeper.
#[derive(Debug)]
pub struct Link {
    pub welcome: Welcome,
    pub sender: Arc<dyn LinkSender>,
    pub receiver: Box<dyn LinkReceiver>,
}

/// Sends commands to a keeper. Shared by everyone who has the link.
pub trait LinkSender: std::fmt::Debug + Send + Sync {
    /// Hands a command to the connection, whole or not at all: if the future is dropped halfway, the link is closed.
    fn send<'a>(&'a self, command: &'a KeeperCommand) -> ExecFuture<'a, Result<(), SendError>>;

    /// Kills the keeper of this link, and with it everything in its sandbox.
    ///
    /// For a keeper that does not answer. Otherwise send [`KeeperCommand::End`].
    fn kill_keeper(&self) -> ExecFuture<'_, io::Result<()>>;

    /// Waits until the keeper of this link has ended, regardless of its files. False: it is alive.
    ///
    /// Also true if the process at the other end cannot be identified. Then only
    /// [`Executor::wait_gone`](crate::Executor::wait_gone) gives proof.
    fn wait_ended(&self, within: Duration) -> ExecFuture<'_, bool>;

    /// Closes the link for everyone who shares it.
    fn close(&self);
}

/// Receives the events of a keeper, in the order in which it sent them.
pub trait LinkReceiver: std::fmt::Debug + Send + Sync {
    /// The next event. `None`: the connection is lost, or the keeper violates the protocol.
    ///
    /// Polled, not awaited: an agent's task waits for the next event all the time, and a boxed future for each would cost
    /// every line of a runtime an allocation.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<KeeperEvent>>;
}

impl Link {
    pub async fn send(&self, command: &KeeperCommand) -> Result<(), SendError> {
        self.sender.send(command).await
    }

    /// As [`LinkReceiver::poll_event`]. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<KeeperEvent> {
        std::future::poll_fn(|context| self.receiver.poll_event(context)).await
    }
}
