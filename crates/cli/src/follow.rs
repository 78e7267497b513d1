//! A connection that survives the daemon: repeats calls, and resumes events at the cursor.
//!
//! Owns: the cursor, reconnecting. Never: what events mean (see `answer` and `commands`).

use std::time::Duration;

use lodge_proto::client::{Client, ClientError, DaemonProcess};
use lodge_proto::{
    ApiMethod, AttachClient, AttachParams, AttachState, Delta, Event, KnownCode, Notification, Progress,
    error_code,
};
use tokio::time::{Instant, sleep};

use crate::connect::DaemonAddress;
use crate::failure::{CommandExit, CommandFailure};
use crate::progress::TransferMeter;
use crate::words::Words;

/// How long we try to get a daemon back.
const RECONNECT_MAX: Duration = Duration::from_secs(60);
/// How long another program may take to replace a daemon that was shut down, as in an upgrade. The CLI does not restart
/// it.
const REPLACED_MAX: Duration = Duration::from_secs(2);
/// How long another program may take to restart the daemon before the CLI does.
const RESTART_GRACE: Duration = Duration::from_millis(300);
/// The code of a refusal or an end because of a shutdown.
pub(crate) const SHUTTING_DOWN: KnownCode = error_code!("daemon.shutting_down");
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// What happened, each event once and in order.
#[derive(Debug)]
pub(crate) enum FollowedItem {
    Event(Event),
    Preview(Delta),
}

/// What to watch.
#[derive(Debug, Clone)]
pub(crate) enum FollowScope {
    Agent(String),
    /// A sandbox that belongs to no agent.
    Sandbox(String),
    All,
}

/// The position of an attachment.
#[derive(Debug)]
struct FollowPosition {
    scope: FollowScope,
    cursor: u64,
    log: String,
}

/// The daemon, as one command sees it.
#[derive(Debug)]
pub(crate) struct DaemonClient<'a> {
    address: &'a DaemonAddress,
    words: &'a Words,
    client: Client,
    watch: Option<FollowPosition>,
}

impl<'a> DaemonClient<'a> {
    pub(crate) async fn open(
        address: &'a DaemonAddress,
        words: &'a Words,
    ) -> Result<DaemonClient<'a>, CommandFailure> {
        let client = address.connect(words).await?;
        Ok(DaemonClient { address, words, client, watch: None })
    }

    /// A single call over plain HTTP, for changes that carry a `request_id`. Anything unusual is left to an ordinary
    /// connection, which calls again.
    pub(crate) async fn ask<M: ApiMethod>(
        address: &'a DaemonAddress,
        words: &'a Words,
        params: M::Params,
    ) -> Result<M::Reply, CommandFailure> {
        let garbled = |cause| CommandFailure::from(ClientError::Garbled { cause });
        match address.post(M::NAME, serde_json::to_value(&params).map_err(garbled)?).await {
            Ok(answer) => serde_json::from_value(answer).map_err(garbled),
            Err(refused @ ClientError::Refused(_)) => Err(refused.into()),
            Err(_) => DaemonClient::open(address, words).await?.call::<M>(params).await,
        }
    }

    /// Calls once: for changes that may not happen twice.
    pub(crate) async fn call_once<M: ApiMethod>(
        &mut self,
        params: M::Params,
    ) -> Result<M::Reply, CommandFailure> {
        Ok(self.client.call::<M>(&params).await?)
    }

    /// Calls until there is an answer: for reading, and for changes that carry a `request_id`.
    pub(crate) async fn call<M: ApiMethod>(&mut self, params: M::Params) -> Result<M::Reply, CommandFailure> {
        loop {
            match self.client.call::<M>(&params).await {
                Ok(answer) => return Ok(answer),
                Err(ClientError::Lost) => self.reconnect().await?,
                Err(other) => return Err(other.into()),
            }
        }
    }

    /// Like `call`, for long calls: shows progress. The same call again continues the same transfer.
    pub(crate) async fn transfer<M: ApiMethod>(
        &mut self,
        params: M::Params,
        meter: &TransferMeter,
    ) -> Result<M::Reply, CommandFailure> {
        loop {
            let told = |progress: &Progress| meter.add(&progress.parts);
            let call = self.client.call_with_progress::<M>(&params, told);
            match meter.during(call).await {
                Ok(answer) => return Ok(answer),
                Err(ClientError::Lost) => self.reconnect().await?,
                Err(other) => return Err(other.into()),
            }
        }
    }

    /// Like `call`, for commands that only watch: it does not start a daemon that was shut down.
    pub(crate) async fn call_without_start<M: ApiMethod>(
        &mut self,
        params: M::Params,
    ) -> Result<M::Reply, CommandFailure> {
        loop {
            match self.client.call::<M>(&params).await {
                Ok(answer) => return Ok(answer),
                Err(ClientError::Lost) => self.lost().await?,
                Err(other) => match CommandFailure::from(other) {
                    failure if failure.is(SHUTTING_DOWN) => self.replaced().await?,
                    failure => return Err(failure),
                },
            }
        }
    }

    /// Attaches, and returns what is there now. Everything after that comes from `next`.
    pub(crate) async fn watch(
        &mut self,
        scope: FollowScope,
        since: Option<u64>,
    ) -> Result<AttachState, CommandFailure> {
        loop {
            let params = attach_params(&scope, since, None);
            match self.client.call::<AttachClient>(&params).await {
                Ok(attached) => {
                    self.watch = Some(FollowPosition { scope, cursor: attached.seq, log: attached.log });
                    return Ok(attached.state);
                }
                Err(ClientError::Lost) => self.reconnect().await?,
                Err(other) => return Err(other.into()),
            }
        }
    }

    /// The last event that was seen, or where the watching began.
    pub(crate) fn cursor(&self) -> Option<u64> {
        self.watch.as_ref().map(|watch| watch.cursor)
    }

    /// The next event after the cursor, or a preview. Waits for as long as nothing happens.
    pub(crate) async fn next(&mut self) -> Result<FollowedItem, CommandFailure> {
        loop {
            match self.client.next().await {
                Ok(note) => {
                    let cursor = self.watch.as_mut().map(|watch| &mut watch.cursor);
                    if let Some(seen) = read_notification(note, cursor)? {
                        return Ok(seen);
                    }
                }
                Err(ClientError::Lost) => self.lost().await?,
                Err(other) => return Err(other.into()),
            }
        }
    }

    /// The daemon's process, where it can be seen from here.
    pub(crate) fn process(&self, pid: u32) -> Option<DaemonProcess> {
        self.client.daemon_process(pid)
    }

    /// Waits until the daemon has closed the connection.
    pub(crate) async fn wait_until_closed(&mut self) {
        while self.client.next().await.is_ok() {}
    }

    /// After a crash we start the daemon again; after a shutdown we do not.
    async fn lost(&mut self) -> Result<(), CommandFailure> {
        if self.client.was_shut_down() { self.replaced().await } else { self.reconnect().await }
    }

    /// Waits a moment for the daemon that takes the place of one that was shut down.
    async fn replaced(&mut self) -> Result<(), CommandFailure> {
        let lost_at = Instant::now();
        let mut pause = PAUSE_MIN;
        while lost_at.elapsed() < REPLACED_MAX {
            if let Ok(client) = self.address.dial().await {
                self.client = client;
                if self.reattach().await? {
                    self.words.print_note("the daemon was shut down; reconnected to the new one");
                    return Ok(());
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        Err(CommandFailure::new(CommandExit::NoDaemon, "the daemon was shut down")
            .with_code(SHUTTING_DOWN.as_str()))
    }

    async fn reconnect(&mut self) -> Result<(), CommandFailure> {
        self.words.print_note("connection to the daemon lost; reconnecting");
        let lost_at = Instant::now();
        let mut pause = PAUSE_MIN;
        loop {
            let waited = lost_at.elapsed();
            let dialled = if waited < RESTART_GRACE {
                self.address.dial().await.map_err(CommandFailure::from)
            } else {
                self.address.connect(self.words).await
            };
            match dialled {
                Ok(client) => {
                    self.client = client;
                    if self.reattach().await? {
                        return Ok(());
                    }
                }
                Err(failure) if waited >= RECONNECT_MAX => return Err(did_not_return(failure)),
                // No daemon yet, or one that is still coming up or going down: worth another try.
                Err(failure) if failure.exit() == CommandExit::NoDaemon || is_passing(&failure) => {}
                Err(failure) if waited < RESTART_GRACE => drop(failure),
                Err(failure) => return Err(failure),
            }
            if lost_at.elapsed() >= RECONNECT_MAX {
                return Err(CommandFailure::new(CommandExit::NoDaemon, "the daemon did not come back"));
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Continues from the cursor. False if the connection was lost again.
    async fn reattach(&mut self) -> Result<bool, CommandFailure> {
        let Some(watch) = &mut self.watch else { return Ok(true) };
        let params = attach_params(&watch.scope, Some(watch.cursor), Some(watch.log.clone()));
        match self.client.call::<AttachClient>(&params).await {
            Ok(attached) => {
                watch.log = attached.log;
                Ok(true)
            }
            Err(ClientError::Lost) => Ok(false),
            Err(other) => match CommandFailure::from(other) {
                failure if is_passing(&failure) => Ok(false),
                failure => Err(failure),
            },
        }
    }
}

/// Whether the refusal is over in a moment.
fn is_passing(failure: &CommandFailure) -> bool {
    failure.is(SHUTTING_DOWN) || failure.is(error_code!("daemon.busy"))
}

fn did_not_return(failure: CommandFailure) -> CommandFailure {
    let given_up = CommandFailure::new(CommandExit::NoDaemon, "the daemon did not come back");
    match failure {
        CommandFailure::Told(report) => {
            let because = [vec![report.what], report.because].concat().join("\n");
            let told = given_up.because(because);
            match report.hint {
                Some(hint) => told.hint(hint),
                None => told,
            }
        }
        CommandFailure::Silent(_) | CommandFailure::PipeClosed => given_up,
    }
}

fn attach_params(scope: &FollowScope, since: Option<u64>, log: Option<String>) -> AttachParams {
    let base = AttachParams { since, log, ..AttachParams::default() };
    match scope {
        FollowScope::Agent(agent) => AttachParams { agent: Some(agent.clone()), ..base },
        FollowScope::Sandbox(sandbox) => AttachParams { sandbox: Some(sandbox.clone()), ..base },
        FollowScope::All => AttachParams { all: true, ..base },
    }
}

/// Reads a notification and moves the cursor. Events that were seen before return nothing.
fn read_notification(
    note: Notification,
    cursor: Option<&mut u64>,
) -> Result<Option<FollowedItem>, CommandFailure> {
    let garbled = |cause| CommandFailure::from(ClientError::Garbled { cause });
    match note.method.as_str() {
        "event" => {
            let event: Event = serde_json::from_value(note.params).map_err(garbled)?;
            match cursor {
                Some(cursor) if event.seq <= *cursor => return Ok(None),
                Some(cursor) => *cursor = event.seq,
                None => {}
            }
            Ok(Some(FollowedItem::Event(event)))
        }
        "delta" => Ok(Some(FollowedItem::Preview(serde_json::from_value(note.params).map_err(garbled)?))),
        // A gap only means lost previews, which the events make up for; unknown kinds are for newer clients.
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(seq: u64) -> Notification {
        let params = json!({"seq": seq, "stream": "agt_1", "stream_seq": 1, "at": "", "kind": "agent.ready", "data": {}});
        Notification::new("event", params)
    }

    #[test]
    fn an_event_that_was_seen_before_is_not_seen_again() {
        let mut cursor = 4;
        assert!(read_notification(event(4), Some(&mut cursor)).unwrap().is_none());
        assert!(read_notification(event(5), Some(&mut cursor)).unwrap().is_some());
        assert!(read_notification(event(5), Some(&mut cursor)).unwrap().is_none());
        assert_eq!(cursor, 5);
    }

    #[test]
    fn an_unknown_notification_is_no_error_and_a_broken_event_is_one() {
        assert!(read_notification(Notification::new("gap", json!({"dropped": 3})), None).unwrap().is_none());
        assert!(read_notification(Notification::new("news", json!(1)), None).unwrap().is_none());
        assert!(read_notification(Notification::new("event", json!({})), None).is_err());
    }
}
