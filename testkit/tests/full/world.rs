//! A daemon, a scripted provider, and agents whose effects can be counted.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lodge_proto::client::{Client, ClientError};
use lodge_testkit::lodge::{Lodge, PATIENCE};
use lodge_testkit::mock::MockLlm;
use serde_json::{Value, json};

const KEY: &str = "sk-canary-0123456789abcdef";
const AGENTFILE: &str = "FROM scratch\nNAME tester\nMODEL mock/m\nBIN sh host:sh \"a shell\"\n\
    BIN mkdir host:mkdir \"make\"\nBIN sleep host:sleep \"wait\"\n";

#[derive(Debug)]
pub struct FullDiskWorld {
    pub lodge: Lodge,
    _mock: MockLlm,
}

impl FullDiskWorld {
    /// Without a daemon. The state directory is `home`, when that is elsewhere.
    pub fn asleep(home: Option<&Path>) -> FullDiskWorld {
        let lodge = Lodge::new();
        let made = home.map_or_else(|| lodge.home(), Path::to_owned);
        fs::DirBuilder::new().mode(0o700).create(&made).expect("a state directory");
        if let Some(home) = home {
            std::os::unix::fs::symlink(home, lodge.home()).expect("a link");
        }
        let mock = MockLlm::spawn_with(lodge.dir(), &["--key", KEY]).expect("a provider");
        let (path, url) = (lodge.home().join("providers.yaml"), mock.base_url());
        let text = format!(
            "providers:\n  - name: mock\n    kind: openai\n    base-url: {url}\n    api-key: {KEY}\n"
        );
        fs::write(&path, text).expect("a file");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("a mode");
        FullDiskWorld { lodge, _mock: mock }
    }

    pub async fn api(&self) -> ApiConnection {
        ApiConnection { client: self.lodge.client().await }
    }

    pub fn workspace(&self, agent: &str) -> PathBuf {
        self.lodge.home().join("agents").join(agent).join("workspace")
    }

    /// How often the tool of [`effect`] ran.
    pub fn effects(&self, agent: &str, name: &str) -> usize {
        let prefix = format!("{name}.ran.");
        let all = fs::read_dir(self.workspace(agent)).expect("a workspace").flatten();
        all.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count()
    }

    /// Lets a tool that waits go on.
    pub fn go(&self, agent: &str, name: &str) {
        fs::create_dir(self.workspace(agent).join(format!("{name}.go"))).expect("a directory");
    }
}

/// A call of a tool that leaves a trace for every time it runs. A directory needs no room of a tmpfs.
pub fn effect(name: &str) -> String {
    let script = format!("for n in 1 2 3 4; do mkdir {name}.ran.$n 2>/dev/null && break; done");
    format!("[[tool:sh|{}]]", json!(["-c", script]))
}

/// As [`effect`], and then waits for [`FullDiskWorld::go`].
pub fn waiting_effect(name: &str) -> String {
    let script = format!(
        "for n in 1 2 3 4; do mkdir {name}.ran.$n 2>/dev/null && break; done; until test -e {name}.go; do sleep 0.02; done"
    );
    format!("[[tool:sh|{}]]", json!(["-c", script]))
}

/// One connection.
#[derive(Debug)]
pub struct ApiConnection {
    pub client: Client,
}

impl ApiConnection {
    pub async fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        match self.client.call_value(method, params.clone()).await {
            Ok(result) => Ok(result),
            Err(ClientError::Refused(body)) => Err(serde_json::to_value(body).expect("an error is JSON")),
            Err(other) => panic!("{method} {params}: {other:?}"),
        }
    }

    pub async fn ok(&mut self, method: &str, params: Value) -> Value {
        let shown = params.to_string();
        self.call(method, params).await.unwrap_or_else(|error| panic!("{method} {shown}: {error}"))
    }

    /// Makes a call that must be refused because the disk is full, with a cause and a hint.
    pub async fn no_room(&mut self, method: &str, params: Value) -> Value {
        let shown = params.to_string();
        match self.call(method, params).await {
            Ok(result) => panic!("{method} {shown} was not refused: {result}"),
            Err(error) => {
                assert_eq!(error["data"]["code"], "daemon.disk_full", "{method} {shown}: {error}");
                assert!(error["data"]["cause"].is_string() && error["data"]["hint"].is_string(), "{error}");
                error
            }
        }
    }

    /// Calls until there is room for it.
    pub async fn insist(&mut self, method: &str, params: Value) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.call(method, params.clone()).await {
                Ok(result) => return result,
                Err(error) => {
                    assert_eq!(error["data"]["code"], "daemon.disk_full", "{method} {params}: {error}")
                }
            }
            assert!(Instant::now() < end, "{method} {params} is still refused");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub async fn until(&mut self, method: &str, params: Value, wanted: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let answer = self.ok(method, params.clone()).await;
            if wanted(&answer) {
                return answer;
            }
            assert!(Instant::now() < end, "{method} {params} still gives {answer:#}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn storage_is(&mut self, state: &str) -> Value {
        self.until("info", json!({}), |info| info["storage"]["state"] == state).await["storage"].clone()
    }

    pub async fn agent(&mut self, name: &str) -> String {
        let created = self
            .insist("agent/create", json!({"content": AGENTFILE, "name": name, "request_id": name}))
            .await;
        let id = created["id"].as_str().expect("an id").to_owned();
        self.agent_is(&id, "ready").await;
        id
    }

    pub async fn agent_is(&mut self, agent: &str, status: &str) -> Value {
        self.until("agent/get", json!({"agent": agent}), |view| view["status"] == status).await
    }

    pub async fn send(&mut self, agent: &str, session: &str, text: &str) -> String {
        let sent = self.ok("turn/send", json!({"agent": agent, "session": session, "text": text})).await;
        sent["id"].as_str().expect("an id").to_owned()
    }

    /// The turn, once it is over and done.
    pub async fn done(&mut self, turn: &str) -> Value {
        let turn = self.until("turn/get", json!({"turn": turn}), |turn| !turn["ended_at"].is_null()).await;
        assert_eq!(turn["status"], "done", "{turn:#}");
        turn
    }

    /// The whole log, which must be without a gap, in all and in every stream.
    pub async fn log(&mut self) -> Vec<Value> {
        let (mut events, mut since) = (Vec::new(), 0);
        loop {
            let page = self.ok("event/list", json!({"since": since, "limit": 500})).await;
            events.extend(page["events"].as_array().expect("events").iter().cloned());
            match page["next"].as_u64() {
                Some(next) => since = next,
                None => break,
            }
        }
        let mut heads = std::collections::BTreeMap::new();
        for (at, event) in events.iter().enumerate() {
            assert_eq!(event["seq"].as_u64(), Some(at as u64 + 1), "a gap in the log: {event}");
            let head = heads.entry(event["stream"].to_string()).or_insert(0);
            *head += 1;
            assert_eq!(event["stream_seq"].as_u64(), Some(*head), "a gap in a stream: {event}");
        }
        events
    }
}

/// Everything that an attached client receives, compared with the log at the end.
#[derive(Debug)]
pub struct AttachedListener {
    api: ApiConnection,
    heard: Vec<Value>,
}

impl AttachedListener {
    pub async fn new(world: &FullDiskWorld) -> AttachedListener {
        let mut api = world.api().await;
        api.ok("client/attach", json!({"all": true, "since": 0})).await;
        AttachedListener { api, heard: Vec::new() }
    }

    /// Reads everything up to the head of `log` and compares.
    pub async fn heard_all(&mut self, log: &[Value]) {
        while self.heard.len() < log.len() {
            let next =
                tokio::time::timeout(PATIENCE, self.api.client.next()).await.expect("an event in time");
            let note = next.expect("a connection");
            if note.method == "event" {
                self.heard.push(note.params["seq"].clone());
            }
        }
        let log: Vec<Value> = log.iter().map(|event| event["seq"].clone()).collect();
        assert_eq!(self.heard, log, "events were missed or doubled");
    }
}
