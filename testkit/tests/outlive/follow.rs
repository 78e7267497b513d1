//! A client that reconnects automatically, continues from its cursor, and records duplicate and missing events.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lodge_proto::client::{Client, ClientError, Target};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

/// Between two attempts to reach a daemon that may not be there.
const RECONNECT: Duration = Duration::from_millis(5);

/// What is followed, and how.
#[derive(Debug, Clone)]
pub enum FollowTarget {
    /// The whole log, whose numbers have no gap.
    All,
    /// One agent's events, whose own numbers have none.
    Agent(String),
    /// The whole log as server-sent events, with `Last-Event-ID` as the cursor.
    ServerSent,
}

#[derive(Debug, Default)]
struct OutliveEvents {
    events: Vec<Value>,
    wrong: Vec<String>,
    connections: usize,
}

/// Follows from the first event on, until it is dropped.
#[derive(Debug)]
pub struct OutliveFollower {
    saw: Arc<Mutex<OutliveEvents>>,
    task: JoinHandle<()>,
}

impl OutliveFollower {
    pub fn start(target: Target, token: String, what: FollowTarget) -> OutliveFollower {
        let saw: Arc<Mutex<OutliveEvents>> = Arc::default();
        let task = tokio::spawn(follow(saw.clone(), target, token, what));
        OutliveFollower { saw, task }
    }

    /// The events so far, if all were new and none was left out.
    #[track_caller]
    pub fn with<T>(&self, look: impl FnOnce(&[Value]) -> T) -> T {
        let saw = self.saw.lock().expect("nobody panicked");
        assert!(saw.wrong.is_empty(), "{:#?}", saw.wrong);
        assert!(!self.task.is_finished(), "it does not follow any more");
        look(&saw.events)
    }

    pub fn connections(&self) -> usize {
        self.saw.lock().expect("nobody panicked").connections
    }

    /// How a turn ended, once it did.
    pub fn end_of(&self, turn: &str) -> Option<Value> {
        let is_end = |event: &&Value| {
            event["data"]["turn"] == turn
                && matches!(
                    event["kind"].as_str(),
                    Some("turn.finished" | "turn.failed" | "turn.interrupted")
                )
        };
        self.with(|events| events.iter().find(is_end).cloned())
    }
}

impl Drop for OutliveFollower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Follows through one connection after the other.
async fn follow(saw: Arc<Mutex<OutliveEvents>>, target: Target, token: String, what: FollowTarget) {
    let mut log = Value::Null;
    loop {
        match &what {
            FollowTarget::All => attached(&saw, &target, &token, json!({"all": true}), &mut log).await,
            FollowTarget::Agent(agent) => {
                attached(&saw, &target, &token, json!({"agent": agent}), &mut log).await
            }
            FollowTarget::ServerSent => server_sent(&saw, &target, &token).await.unwrap_or_default(),
        }
        if !saw.lock().expect("nobody panicked").wrong.is_empty() {
            return;
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

/// One attachment, for as long as its connection lives.
async fn attached(
    saw: &Mutex<OutliveEvents>,
    target: &Target,
    token: &str,
    mut wanted: Value,
    log: &mut Value,
) {
    let Ok(mut client) = Client::connect(target, token).await else { return };
    wanted["since"] = saw.lock().expect("nobody panicked").cursor().into();
    wanted["log"] = log.clone();
    let number = if wanted["all"] == true { "seq" } else { "stream_seq" };
    match client.call_value("client/attach", wanted).await {
        Ok(attached) => *log = attached["log"].clone(),
        Err(ClientError::Refused(body)) if body.data.code != "daemon.shutting_down" => {
            return saw.lock().expect("nobody panicked").wrong.push(format!("{body:?}"));
        }
        Err(_) => return,
    }
    saw.lock().expect("nobody panicked").connections += 1;
    while let Ok(note) = client.next().await {
        if note.method == "event" {
            saw.lock().expect("nobody panicked").take(number, note.params);
        }
    }
}

/// One stream, for as long as its connection lives.
async fn server_sent(saw: &Mutex<OutliveEvents>, target: &Target, token: &str) -> io::Result<()> {
    let Target::Unix(socket) = target else { panic!("these tests use the Unix socket") };
    let mut stream = UnixStream::connect(socket).await?;
    let cursor = saw.lock().expect("nobody panicked").cursor();
    let head = format!(
        "GET /v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\nlast-event-id: {cursor}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    while lines.read_line(&mut line).await? > 0 {
        let mut saw = saw.lock().expect("nobody panicked");
        if line.starts_with("HTTP/1.1 ") {
            // One that is about to end refuses with 503; anything else than a stream is a mistake.
            match line.split(' ').nth(1) {
                Some("200") => saw.connections += 1,
                Some("503") => return Ok(()),
                _ => saw.wrong.push(line.clone()),
            }
        }
        // Half a line is half an event, which comes again.
        if let Some(data) = line.strip_prefix("data: ").filter(|data| data.ends_with('\n')) {
            saw.take("seq", serde_json::from_str(data).expect("an event"));
        }
        line.clear();
    }
    Ok(())
}

impl OutliveEvents {
    fn cursor(&self) -> u64 {
        self.events.last().map_or(0, |event| event["seq"].as_u64().expect("a sequence"))
    }

    fn take(&mut self, number: &str, event: Value) {
        let of = |event: &Value| event[number].as_u64().expect("a number");
        let last = self.events.last().map_or(0, of);
        if of(&event) != last + 1 {
            self.wrong.push(format!("after {last} came {event}"));
        }
        self.events.push(event);
    }
}
