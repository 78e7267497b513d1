//! WebSockets: calls and, after `client/attach`, notifications, on one connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response as HttpResponse;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use lodge_engine::RenderedAnswer;
use lodge_proto::{
    ApiMethod, AttachClient, Attached, DetachClient, Done, ErrorBody, Gap, METHODS, REQUEST_BYTES_MAX,
    Request, Response, notification_text, result_text,
};
use serde_json::Value;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::progress::{ProgressBoard, SendOutcome};
use super::{Api, attach, envelope, methods, params};
use crate::auth::ApiCaller;
use crate::hub::{EventFilter, LiveNotice};
use crate::tasks::{TaskKind, named};
use crate::view;

/// Messages that may wait for a slow client: then its followers wait, as cursors, and its calls do.
const OUTBOX_MAX: usize = 64;
/// What is collected of waiting messages until it is written. Nothing stays in it: each round ends with a flush.
const WRITE_BUFFER_BYTES: usize = 8 << 10;
/// Calls of one connection at the same time.
const CALLS_MAX: u32 = 64;
/// How long a peer may take to read the final messages.
const GOODBYE_WITHIN: Duration = Duration::from_secs(1);
/// Attachments of one connection.
const ATTACHMENTS_MAX: usize = 32;

pub(super) async fn upgrade(
    State(api): State<Arc<Api>>,
    axum::Extension(who): axum::Extension<ApiCaller>,
    upgrade: WebSocketUpgrade,
) -> HttpResponse {
    upgrade
        .max_message_size(REQUEST_BYTES_MAX)
        .max_frame_size(REQUEST_BYTES_MAX)
        .write_buffer_size(WRITE_BUFFER_BYTES)
        .on_upgrade(move |socket| serve(api, who, socket))
}

/// Serves one connection until either side ends it, its token is over, or the daemon stops.
async fn serve(api: Arc<Api>, who: ApiCaller, socket: WebSocket) {
    let (sink, mut stream) = socket.split();
    let (outbox, waiting) = mpsc::channel::<Message>(OUTBOX_MAX);
    let closing = api.shell.end.child_token();
    let stop = api.shell.stop.clone();
    // Until this is dropped the daemon waits for this connection, within its patience.
    let open = api.sockets.token();
    let writer =
        SocketWriter { sink, waiting, closing: closing.clone(), stop: stop.clone(), who: who.clone() };
    // Dropped with this connection, however it ends.
    let mut tasks = JoinSet::new();
    tasks.spawn(named(TaskKind::SocketWriter, writer.run()));
    let mut connection = SocketConnection {
        api,
        who: who.clone(),
        outbox,
        following: closing.child_token(),
        closing: closing.clone(),
        calls: Arc::new(Semaphore::new(CALLS_MAX as usize)),
        attachments: HashMap::new(),
        followers: JoinSet::new(),
        next_attachment: 1,
    };
    tokio::select! {
        // Also while a client that reads nothing holds everything else up.
        _ = who.over() => {
            connection.following.cancel();
            drop(tokio::time::timeout(GOODBYE_WITHIN, connection.flush()).await);
        }
        () = connection.listen(&mut stream, &stop) => {
            if stop.is_cancelled() {
                connection.flush().await;
            }
        }
    }
    closing.cancel();
    // The writer ends with `closing`.
    while tasks.join_next().await.is_some() {}
    drop(open);
}

/// Sends what waits, in order, and the last word.
struct SocketWriter {
    sink: SplitSink<WebSocket, Message>,
    waiting: mpsc::Receiver<Message>,
    closing: CancellationToken,
    stop: CancellationToken,
    who: ApiCaller,
}

impl SocketWriter {
    async fn run(mut self) {
        loop {
            let next = tokio::select! {
                () = self.closing.cancelled() => break,
                next = self.waiting.recv() => next,
            };
            let Some(message) = next else { break };
            // The messages that wait are sent, unless the peer does not take them.
            let late = async {
                self.closing.cancelled().await;
                tokio::time::sleep(GOODBYE_WITHIN).await;
            };
            let sent = tokio::select! {
                () = late => break,
                sent = Self::send_all(&mut self.sink, &mut self.waiting, message) => sent,
            };
            if sent.is_err() {
                break;
            }
        }
        self.closing.cancel();
        // A peer that is gone, or takes nothing, gets no goodbye.
        drop(tokio::time::timeout(GOODBYE_WITHIN, self.last_word()).await);
    }

    /// Sends a message with those that wait behind it: one call to the kernel for all of them.
    async fn send_all(
        sink: &mut SplitSink<WebSocket, Message>,
        waiting: &mut mpsc::Receiver<Message>,
        first: Message,
    ) -> Result<(), axum::Error> {
        sink.feed(first).await?;
        for _ in 1..OUTBOX_MAX {
            let Ok(next) = waiting.try_recv() else { break };
            sink.feed(next).await?;
        }
        sink.flush().await
    }

    async fn last_word(&mut self) -> Result<(), axum::Error> {
        if self.stop.is_cancelled() {
            self.sink.send(going_away()).await?;
        } else if self.who.is_over() {
            self.sink.send(token_over()).await?;
        }
        self.sink.close().await
    }
}

struct SocketConnection {
    api: Arc<Api>,
    who: ApiCaller,
    outbox: mpsc::Sender<Message>,
    /// Cancelled with `closing`, or before it: no more events.
    following: CancellationToken,
    closing: CancellationToken,
    calls: Arc<Semaphore>,
    attachments: HashMap<u64, CancellationToken>,
    followers: JoinSet<()>,
    next_attachment: u64,
}

impl SocketConnection {
    async fn listen(&mut self, stream: &mut SplitStream<WebSocket>, stop: &CancellationToken) {
        let closing = self.closing.clone();
        loop {
            let message = tokio::select! {
                () = closing.cancelled() => break,
                () = stop.cancelled() => break,
                message = stream.next() => message,
            };
            match message {
                Some(Ok(Message::Text(text))) => self.heard(text.into()).await,
                Some(Ok(Message::Binary(bytes))) => self.heard(bytes).await,
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Err(error)) if is_too_large(&error) => {
                    self.close_too_large().await;
                    break;
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => break,
            }
        }
    }

    /// Waits until calls that were taken are answered and the answers are on their way.
    async fn flush(&self) {
        tokio::select! {
            () = self.closing.cancelled() => {}
            all = self.calls.acquire_many(CALLS_MAX) => drop(all),
        }
        tokio::select! {
            () = self.closing.cancelled() => {}
            all = self.outbox.reserve_many(OUTBOX_MAX) => drop(all),
        }
    }

    async fn heard(&mut self, bytes: Bytes) {
        let value = match super::parse(&self.api.shell, &self.who, bytes).await {
            Ok(value) => value,
            Err(error) => return send(&self.outbox, error_text(Value::Null, error)).await,
        };
        let request = match envelope(value) {
            Ok(request) => request,
            Err((id, error)) => return send(&self.outbox, error_text(id, error)).await,
        };
        match request.method.as_str() {
            AttachClient::NAME => self.attach(request.id, request.params).await,
            DetachClient::NAME => self.detach(request.id, request.params).await,
            _ => {
                // Waits when too many calls are open: the client is delayed, not refused.
                let Ok(permit) = self.calls.clone().acquire_owned().await else { return };
                let call = SocketCall {
                    api: self.api.clone(),
                    who: self.who.clone(),
                    outbox: self.outbox.clone(),
                    closing: self.closing.clone(),
                };
                // A task of the daemon, not of the connection: a change continues when its client disconnects.
                let shell = self.api.shell.clone();
                shell.spawn(TaskKind::SocketCall, async move {
                    call.run(request).await;
                    drop(permit);
                });
            }
        }
    }

    /// Ends the connection with the reason that the standard has for a message over the limit.
    async fn close_too_large(&self) {
        let reason = format!("a message is over {REQUEST_BYTES_MAX} bytes");
        let goodbye = Message::Close(Some(CloseFrame { code: close_code::SIZE, reason: reason.into() }));
        drop(self.outbox.send(goodbye).await);
        // Once all slots are free, the writer has taken every message.
        tokio::select! {
            () = self.closing.cancelled() => {}
            all = self.outbox.reserve_many(OUTBOX_MAX) => drop(all),
        }
    }

    async fn attach(&mut self, id: Value, given: Value) {
        let attachment = self.next_attachment;
        match self.attached(attachment, given).await {
            Err(error) => send(&self.outbox, error_text(id, error)).await,
            Ok((attached, filter)) => {
                self.next_attachment += 1;
                let token = self.following.child_token();
                self.attachments.insert(attachment, token.clone());
                let since = attached.seq;
                // Before the answer: text that streams from here on is not missed.
                let live = self.api.shell.hub.live();
                let RenderedAnswer(attached) = view::text(&attached);
                send(&self.outbox, result_text(&id, &attached)).await;
                let follower = Follower {
                    api: self.api.clone(),
                    closing: self.closing.clone(),
                    outbox: self.outbox.clone(),
                    filter,
                    cursor: since,
                };
                let follow = async move {
                    tokio::select! {
                        () = token.cancelled() => {}
                        () = follower.run(live) => {}
                    }
                };
                while self.followers.try_join_next().is_some() {}
                self.followers.spawn(named(TaskKind::SocketFollower, follow));
            }
        }
    }

    async fn attached(&self, attachment: u64, given: Value) -> Result<(Attached, EventFilter), ErrorBody> {
        let given = params::<AttachClient>(given)?;
        if self.attachments.len() >= ATTACHMENTS_MAX {
            let message = format!("a connection has at most {ATTACHMENTS_MAX} attachments");
            return Err(ErrorBody::new("daemon.busy", message));
        }
        let who = self.who.clone();
        self.api.shell.read(move |at| attach::attach(at, &who, attachment, given)).await
    }

    async fn detach(&mut self, id: Value, given: Value) {
        let answer = match params::<DetachClient>(given) {
            Err(error) => error_text(id, error),
            Ok(given) => {
                let found = self.attachments.remove(&given.attachment);
                if let Some(token) = &found {
                    token.cancel();
                }
                result_text(&id, &view::text(&Done { done: found.is_some() }).0)
            }
        };
        send(&self.outbox, answer).await;
    }
}

/// One call of a connection.
struct SocketCall {
    api: Arc<Api>,
    who: ApiCaller,
    outbox: mpsc::Sender<Message>,
    closing: CancellationToken,
}

impl SocketCall {
    async fn run(self, request: Request) {
        let Request { id, method, params, .. } = request;
        let board = Arc::new(ProgressBoard::default());
        let call = methods::call(&self.api, &self.who, &method, params, board.clone());
        let call = board.during(&id, |note| self.tell(note), call);
        // A requested change continues when its client disconnects, and only the answer is dropped. A read, which may
        // wait long, is cancelled.
        let told = if changes(&method) {
            call.await
        } else {
            tokio::select! {
                () = self.closing.cancelled() => return,
                told = call => told,
            }
        };
        let answer = match told {
            Ok(RenderedAnswer(result)) => result_text(&id, &result),
            Err(error) => error_text(id, error),
        };
        tokio::select! {
            () = self.closing.cancelled() => {}
            () = send(&self.outbox, answer) => {}
        }
    }

    /// Sends a notification that may also be sent later.
    fn tell(&self, note: String) -> SendOutcome {
        match self.outbox.try_send(Message::text(note)) {
            Ok(()) => SendOutcome::Yes,
            Err(_) => SendOutcome::NoRoom,
        }
    }
}

/// Follows the log for one attachment.
struct Follower {
    api: Arc<Api>,
    closing: CancellationToken,
    outbox: mpsc::Sender<Message>,
    filter: EventFilter,
    cursor: u64,
}

impl Follower {
    async fn run(mut self, mut live: tokio::sync::broadcast::Receiver<Arc<LiveNotice>>) {
        let shell = self.api.shell.clone();
        let mut head = shell.hub.watch();
        let mut dropped = 0;
        loop {
            let page = match shell.hub.page(&shell.reader, self.cursor, &self.filter).await {
                Ok((page, cursor)) => {
                    self.cursor = cursor;
                    page
                }
                Err(error) => {
                    tracing::error!(event = "follower.failed", %error);
                    // A client that gets no more events must know; it reconnects with its cursor.
                    return self.closing.cancel();
                }
            };
            for event in &page {
                send(&self.outbox, notification_text("event", &view::event(event))).await;
            }
            if self.cursor < shell.hub.head() {
                continue;
            }
            tokio::select! {
                // There may be no further text that could report the loss.
                Ok(room) = self.outbox.reserve(), if dropped > 0 => {
                    room.send(gap(std::mem::take(&mut dropped)));
                }
                changed = head.changed() => if changed.is_err() { return },
                news = live.recv() => match news {
                    Ok(news) if self.filter.takes_live(&news) => self.preview(&news, &mut dropped),
                    Ok(_) => {}
                    Err(RecvError::Lagged(missed)) => dropped += missed,
                    Err(RecvError::Closed) => return,
                },
            }
        }
    }

    /// Live text and output are sent if there is room. A slow client loses some, and gets the number of lost bytes.
    fn preview(&self, live: &LiveNotice, dropped: &mut u64) {
        if *dropped > 0 {
            if self.outbox.try_send(gap(*dropped)).is_err() {
                *dropped += 1;
                return;
            }
            *dropped = 0;
        }
        let note = match live {
            LiveNotice::Delta(delta) => notification_text("delta", delta),
            LiveNotice::Output(output) => notification_text("output", output),
        };
        if self.outbox.try_send(Message::text(note)).is_err() {
            *dropped += 1;
        }
    }
}

fn changes(method: &str) -> bool {
    METHODS.iter().any(|doc| doc.name == method && doc.mutates)
}

fn gap(dropped: u64) -> Message {
    Message::text(notification_text("gap", &Gap { dropped }))
}

/// Distinguishes a shutdown from a crash: the client does not start the daemon again.
fn going_away() -> Message {
    let reason = "the daemon is shutting down".into();
    Message::Close(Some(CloseFrame { code: close_code::AWAY, reason }))
}

/// The client need not come back with the same token.
fn token_over() -> Message {
    let reason = "the token was revoked, or its time is over".into();
    Message::Close(Some(CloseFrame { code: close_code::POLICY, reason }))
}

fn is_too_large(error: &axum::Error) -> bool {
    use tokio_tungstenite::tungstenite::Error;
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<Error>());
    matches!(cause, Some(Error::Capacity(_)))
}

fn error_text(id: Value, error: ErrorBody) -> String {
    serde_json::to_string(&Response::err(id, error)).unwrap_or_default()
}

/// Waits for room in the outbox. A closed one means the connection is over.
async fn send(outbox: &mpsc::Sender<Message>, message: String) {
    drop(outbox.send(Message::text(message)).await);
}
