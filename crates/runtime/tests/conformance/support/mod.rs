//! A daemon for tests: starts a runtime as a child and talks to it over its pipes.
//!
//! Owns: the child, its agent root, and a bound on every wait. Never: knowledge of one particular runtime.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use lodge_runtime_messages::{
    AgentIdentity, ConversationEpoch, DaemonMethod, ErrorReply, ExecReply, InitializeReply,
    InitializeRequest, ModelStreamReply, PROTOCOL, PingRequest, REFUSED, RuntimeRequest, ToolDeclaration,
    TurnRunRequest, write_error,
};
use serde::Serialize;
use serde_json::{Value, json};

const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// The command line of a runtime, without `serve --root …`.
pub(crate) type CommandLine = Vec<String>;

/// The stock runtime, or the one that `LODGE_RUNTIME_COMMAND` names.
pub(crate) fn stock_or_given() -> CommandLine {
    match std::env::var("LODGE_RUNTIME_COMMAND") {
        Ok(given) => given.split_whitespace().map(str::to_owned).collect(),
        Err(_) => stock(),
    }
}

pub(crate) fn stock() -> CommandLine {
    vec![env!("CARGO_BIN_EXE_runtime").to_owned()]
}

pub(crate) fn tiny() -> CommandLine {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tiny-runtime/runtime.py");
    vec!["python3".to_owned(), script.display().to_string()]
}

pub(crate) struct FakeDaemon {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
    log: Option<JoinHandle<String>>,
    pub(crate) root: PathBuf,
    next_id: u64,
}

impl FakeDaemon {
    /// Starts a runtime on an empty agent root, and does not initialize it.
    pub(crate) fn start(command: &CommandLine) -> Self {
        let root = new_root();
        let mut child = Command::new(&command[0])
            .args(&command[1..])
            .args(["serve", "--root"])
            .arg(&root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("could not start `{}`: {error}", command[0]));
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut stderr = child.stderr.take().unwrap();
        let (sender, lines) = channel();
        // Ends with the child's stdout, or when the test has ended and dropped the receiver.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let message = serde_json::from_str(&line.unwrap()).expect("stdout carries JSON lines only");
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let log = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        FakeDaemon { child, stdin: Some(stdin), lines, log: Some(log), root, next_id: 1 }
    }

    /// Starts a runtime and initializes it at epoch 1 with the tools `cat` and `grep`.
    pub(crate) fn ready(command: &CommandLine, configs: Value) -> Self {
        let mut daemon = Self::start(command);
        let params = daemon.params(1, configs);
        let reply = daemon.request(InitializeRequest::METHOD, params);
        serde_json::from_value::<InitializeReply>(reply).expect("the reply fits the protocol");
        daemon
    }

    /// Params of an `initialize`, to be changed as the test needs.
    pub(crate) fn params(&self, epoch: u64, configs: Value) -> Value {
        let tool = |name: &str, description: &str| ToolDeclaration {
            name: name.to_owned(),
            description: description.to_owned(),
            usage: None,
        };
        value(&InitializeRequest {
            protocol: PROTOCOL,
            epoch,
            agent: AgentIdentity { id: "agt_1".into(), name: "tester".into(), model: "script/one".into() },
            root: Some(self.root.clone()),
            configs: serde_json::from_value(configs).unwrap(),
            context: Vec::new(),
            tools: vec![tool("cat", "Shows files."), tool("grep", "Finds.")],
        })
    }

    pub(crate) fn write_context(&self, file: &str, text: &str) {
        fs::write(self.root.join("etc/context").join(file), text).unwrap();
    }

    pub(crate) fn write_raw(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        stdin.write_all(bytes).unwrap();
        stdin.flush().unwrap();
    }

    fn write(&mut self, message: Value) {
        self.write_raw(format!("{message}\n").as_bytes());
    }

    /// The next message. If it is a request, it is one of the protocol.
    pub(crate) fn next(&mut self) -> Value {
        let message = self.lines.recv_timeout(ANSWER_WITHIN).expect("the runtime says something");
        if let Some(method) = message["method"].as_str()
            && let Err(error) = RuntimeRequest::parse(method, message["params"].clone())
        {
            panic!("{error}: {message}");
        }
        message
    }

    /// Sends a request whose reply is the next message, and returns the whole reply.
    pub(crate) fn reply(&mut self, method: &str, params: Value) -> Value {
        let id = self.next_id;
        self.next_id += 1;
        self.write(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        let reply = self.next();
        assert_eq!((&reply["jsonrpc"], &reply["id"]), (&json!("2.0"), &json!(id)), "{reply}");
        reply
    }

    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        let mut reply = self.reply(method, params);
        assert!(reply.get("result").is_some(), "{method} was refused: {reply}");
        reply["result"].take()
    }

    /// Sends a request that must be refused, and returns the dotted code.
    pub(crate) fn refused(&mut self, method: &str, params: Value) -> String {
        let reply = self.reply(method, params);
        assert!(reply["error"]["message"].is_string(), "{method} was not refused: {reply}");
        reply["error"]["data"]["code"].as_str().unwrap_or("").to_owned()
    }

    /// The next message, which must be a request of this method.
    pub(crate) fn asked(&mut self, method: &str) -> Value {
        let message = self.next();
        assert_eq!(message["method"], method, "{message}");
        assert!(message["id"].is_string(), "{message}");
        message
    }

    pub(crate) fn answer(&mut self, request: &Value, result: Value) {
        self.write(json!({"jsonrpc": "2.0", "id": request["id"], "result": result}));
    }

    pub(crate) fn answer_error(&mut self, request: &Value, code: &str) {
        let mut line = Vec::new();
        write_error(&mut line, &request["id"], &ErrorReply::new(REFUSED, "no".to_owned(), code));
        line.push(b'\n');
        self.write_raw(&line);
    }

    /// Proves that the runtime has nothing more to say: lines keep their order, so a reply to `ping` comes next.
    pub(crate) fn quiet(&mut self) {
        assert_eq!(self.request(PingRequest::METHOD, value(&PingRequest {})), json!({}));
    }

    /// Runs a fresh turn and returns its first `model/stream`.
    pub(crate) fn run(&mut self, turn: &str, number: u32) -> Value {
        let mut params = fresh_turn(turn, number, ConversationEpoch::default());
        // An older daemon does not send it.
        params.as_object_mut().unwrap().remove("epoch");
        assert_eq!(self.request(TurnRunRequest::METHOD, params), json!({}));
        self.asked("model/stream")
    }

    /// Runs a fresh turn in the given epoch, and returns what it asks for first.
    pub(crate) fn run_in(&mut self, turn: &str, number: u32, epoch: ConversationEpoch) -> Value {
        assert_eq!(self.request(TurnRunRequest::METHOD, fresh_turn(turn, number, epoch)), json!({}));
        self.next()
    }

    /// Answers a `model/stream` with a text that ends the turn.
    pub(crate) fn finish(&mut self, request: &Value) {
        self.answer(request, value(&ModelStreamReply { finished: true, calls: Vec::new() }));
    }

    /// Answers a `model/stream` with tool calls, and a field of a later version.
    pub(crate) fn call(&mut self, request: &Value, calls: Value) {
        self.answer(request, json!({"finished": false, "text_bytes": 0, "calls": calls}));
    }

    /// Answers an `exec/run` whose program ended well.
    pub(crate) fn ran(&mut self, request: &Value) {
        let (status, exit_code) = (Some("done".to_owned()), Some(0));
        self.answer(request, value(&ExecReply { status, exit_code, ..ExecReply::default() }));
    }

    pub(crate) fn terminate(&mut self) {
        let pid = libc::pid_t::try_from(self.child.id()).unwrap();
        // SAFETY: the child was not waited for yet, so its pid is still its own.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    }

    /// Waits for the end of the runtime without closing its stdin.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        // Its stdout closes when it ends, which is a wait with a bound.
        let rest = self.lines.recv_timeout(ANSWER_WITHIN);
        assert!(rest.is_err(), "the runtime went on: {rest:?}");
        let stdin = self.stdin.take();
        let status = self.child.wait().unwrap();
        drop(stdin);
        status
    }

    /// Closes stdin and returns how the runtime ended and what it logged.
    pub(crate) fn close(mut self) -> (ExitStatus, String) {
        drop(self.stdin.take());
        let status = self.wait();
        (status, self.log.take().unwrap().join().unwrap())
    }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let (_killed, _reaped) = (self.child.kill(), self.child.wait());
        let _left_behind = fs::remove_dir_all(&self.root);
    }
}

fn new_root() -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = format!("root-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(root.join("etc/context")).unwrap();
    root
}

fn value(message: &impl Serialize) -> Value {
    serde_json::to_value(message).unwrap()
}

fn fresh_turn(turn: &str, number: u32, epoch: ConversationEpoch) -> Value {
    let (turn, session) = (turn.to_owned(), "ses_1".to_owned());
    value(&TurnRunRequest { turn, session, number, step: 1, calls: Vec::new(), epoch })
}
