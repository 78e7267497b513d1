//! A daemon, a model server that answers at once, and agents that use it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use lodge_proto::client::Client;
use lodge_testkit::lodge::{Lodge, PATIENCE};
use lodge_testkit::mock::MockLlm;
use serde_json::{Value, json};

use crate::proc::DaemonProcesses;
use crate::sample::Sample;

const BINS: &str = "BIN true host:true safe \"does nothing\"\n";
const SCRIPT: &str = "turns:\n  - steps:\n      - text: \"ok\"\n";

/// Where an agent's answers come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BenchModel {
    /// A script within the daemon.
    Script,
    /// An OpenAI-compatible server over HTTP.
    Http,
}

#[derive(Debug)]
pub(crate) struct BenchWorld {
    pub(crate) lodge: Lodge,
    pub(crate) mock: MockLlm,
    /// Beside the mock's log; outlives both.
    _dir: tempfile::TempDir,
    requests: u64,
}

impl BenchWorld {
    pub(crate) async fn start() -> BenchWorld {
        BenchWorld::start_with(&[]).await
    }

    /// With settings of the daemon as environment variables.
    pub(crate) async fn start_with(settings: &[(&str, &str)]) -> BenchWorld {
        BenchWorld::of(Lodge::new(), settings).await
    }

    /// On a daemon of the caller's choice.
    pub(crate) async fn of(mut lodge: Lodge, settings: &[(&str, &str)]) -> BenchWorld {
        let dir = tempfile::Builder::new().prefix("lodge-mock-").tempdir().expect("a temporary directory");
        let mock = MockLlm::spawn(dir.path()).expect("a model server");
        lodge.set_env("LODGED_LOG_LEVEL", "info");
        for (name, value) in settings {
            lodge.set_env(name, value);
        }
        lodge.start();
        let mut client = lodge.client().await;
        let provider = json!({"name": "mock", "kind": "openai", "base_url": mock.base_url(), "api_key": "k"});
        client.call_value("provider/add", provider).await.expect("a provider");
        BenchWorld { lodge, mock, _dir: dir, requests: 0 }
    }

    /// Creates an agent and returns its id, not waiting until it is ready.
    pub(crate) async fn create(&self, client: &mut Client, name: &str, model: BenchModel) -> String {
        let (word, add) = match model {
            BenchModel::Script => ("script/bench", "ADD bench.yaml \"what the model says\"\n"),
            BenchModel::Http => ("mock/instant", ""),
        };
        // A summary is a model call, and what is measured here are turns of one.
        let text = format!(
            "# syntax=lodge/agentfile:1\nFROM scratch\nNAME {name}\nMODEL {word}\n\
             CONFIG memory-strategy=sliding\n{BINS}{add}"
        );
        let dir = self.lodge.agent_dir(name, &text, &[("bench.yaml", SCRIPT)]);
        let made = client.call_value("agent/create", json!({"path": dir})).await;
        let made = made.unwrap_or_else(|error| panic!("{error:?}\n{}", self.lodge.log()));
        made["id"].as_str().expect("an agent has an id").to_owned()
    }

    /// An agent that is ready.
    pub(crate) async fn agent(&self, name: &str, model: BenchModel) -> String {
        let mut client = self.lodge.client().await;
        let id = self.create(&mut client, name, model).await;
        wait_ready(&mut client, &id).await;
        id
    }

    /// A connection that is attached to one session of an agent.
    pub(crate) async fn talk(&self, agent: &str, session: &str) -> BenchSession {
        let mut client = self.lodge.client().await;
        client.call_value("client/attach", json!({"session": session})).await.expect("an attachment");
        BenchSession { client, agent: agent.to_owned(), session: session.to_owned(), sent: 0 }
    }

    pub(crate) fn family(&self) -> DaemonProcesses {
        DaemonProcesses::of(self.lodge.pid().expect("a running daemon"), &self.lodge.keepers())
    }

    /// The model server's own time: one request on an open connection, without Lodge.
    pub(crate) fn mock_alone(&mut self, rounds: usize) -> Sample {
        let mut stream = TcpStream::connect(self.mock.address()).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut sample = Sample::default();
        for round in 0..=rounds {
            self.requests += 1;
            let body = json!({"model": "instant", "stream": true, "messages": [
                {"role": "user", "content": format!("alone {}", self.requests)}]});
            let body = body.to_string();
            let head = format!(
                "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            let from = Instant::now();
            stream.write_all(head.as_bytes()).expect("a request");
            let mut reply = Vec::new();
            let mut bytes = [0; 4096];
            while !reply.ends_with(b"0\r\n\r\n") {
                let count = stream.read(&mut bytes).expect("a reply");
                assert!(count > 0, "the model server hung up");
                reply.extend_from_slice(&bytes[..count]);
            }
            // The first opens the connection's way.
            if round > 0 {
                sample.push(from.elapsed());
            }
        }
        sample
    }
}

/// Waits until an agent is ready.
pub(crate) async fn wait_ready(client: &mut Client, agent: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let seen: Value = client.call_value("agent/get", json!({"agent": agent})).await.expect("an agent");
        match seen["status"].as_str() {
            Some("ready") => return,
            Some("failed") => panic!("the agent failed: {seen}"),
            Some(_) | None => assert!(Instant::now() < until, "not ready: {seen}"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// One person in one session.
#[derive(Debug)]
pub(crate) struct BenchSession {
    pub(crate) client: Client,
    pub(crate) agent: String,
    pub(crate) session: String,
    sent: u64,
}

impl BenchSession {
    /// Sends a message and waits for the end of its turn, as a client sees it.
    pub(crate) async fn turn(&mut self, text: &str) -> Duration {
        self.sent += 1;
        let params = json!({
            "agent": self.agent,
            "session": self.session,
            "text": text,
            "request_id": format!("{}-{}", self.session, self.sent),
        });
        let from = Instant::now();
        let sent = self.client.call_value("turn/send", params).await.expect("an accepted turn");
        self.finished(sent["id"].as_str().expect("a turn has an id")).await;
        from.elapsed()
    }

    async fn finished(&mut self, turn: &str) {
        loop {
            let note = tokio::time::timeout(PATIENCE, self.client.next()).await.expect("an event in time");
            let note = note.expect("a connection that lives");
            if note.method != "event" || note.params["data"]["turn"].as_str() != Some(turn) {
                continue;
            }
            match note.params["kind"].as_str() {
                Some("turn.finished") => return,
                Some("turn.failed" | "turn.interrupted") => panic!("a turn broke off: {}", note.params),
                Some(_) | None => {}
            }
        }
    }
}

/// One who changes what is recorded, and waits for it.
#[derive(Debug)]
pub(crate) struct BenchTalker {
    pub(crate) client: Client,
    agent: String,
}

impl BenchTalker {
    /// Behind a turn whose model never answers, so that a message is recorded and nothing else happens.
    pub(crate) async fn of(world: &BenchWorld, agent: &str) -> BenchTalker {
        let mut talker = BenchTalker { client: world.lodge.client().await, agent: agent.to_owned() };
        talker.send_message("[[hang]]").await;
        talker
    }

    /// Records a message, and returns its turn.
    pub(crate) async fn send_message(&mut self, text: &str) -> String {
        let turn = json!({"agent": self.agent, "session": "commits", "text": text});
        let turn = self.client.call_value("turn/send", turn).await.expect("an accepted turn");
        turn["id"].as_str().expect("a turn has an id").to_owned()
    }

    /// How long one durable change takes; it is taken back afterwards.
    pub(crate) async fn commit(&mut self) -> Duration {
        let from = Instant::now();
        let turn = self.send_message("recorded and never run").await;
        let took = from.elapsed();
        self.client.call_value("turn/interrupt", json!({"turn": turn})).await.expect("an ended turn");
        took
    }
}
