//! pueue: its daemon in the foreground with a configuration and a directory of its own, its client, and its socket.
//!
//! The protocol of the socket: a big-endian length of eight bytes, and that many bytes. The first message is the shared
//! secret and its answer the version; the others are CBOR.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use lodge_testkit::lodge::{PATIENCE, until};
use serde_json::{Value, json};

use crate::jobs::tools::PueueTool;

/// More than any answer here takes.
const ANSWER_BYTES_MAX: u64 = 1 << 30;
const DONE: &[u8] = b"\x64Done";

#[derive(Debug)]
pub(crate) struct Pueue {
    tool: PueueTool,
    dir: tempfile::TempDir,
    daemon: Child,
}

impl Pueue {
    /// A daemon that runs this many jobs in parallel.
    pub(crate) fn start(tool: &PueueTool, width: usize) -> Pueue {
        let pueue = Pueue::start_on(tool, directory());
        pueue.ok(&["parallel", &width.to_string()]);
        pueue
    }

    /// A directory for a daemon that already has these finished jobs.
    pub(crate) fn filled(jobs: usize, groups: usize) -> tempfile::TempDir {
        let dir = directory();
        fs::create_dir_all(dir.path().join("state")).expect("a directory");
        let state = finished_state(dir.path(), jobs, groups).to_string();
        fs::write(dir.path().join("state/state.json"), state).expect("a written state");
        dir
    }

    pub(crate) fn start_on(tool: &PueueTool, dir: tempfile::TempDir) -> Pueue {
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("run")).expect("a directory");
        let config = json!({
            "client": {}, "daemon": {},
            "shared": {
                "pueue_directory": at("state"), "runtime_directory": at("run"), "alias_file": at("aliases.yml"),
                "use_unix_socket": true, "unix_socket_path": at("socket"), "pid_path": at("run/pid"),
            },
        });
        // JSON is YAML too.
        fs::write(at("pueue.yml"), config.to_string()).expect("a configuration");
        let mut command = Command::new(&tool.daemon);
        environment(&mut command, dir.path());
        let log = fs::File::create(at("log")).expect("a log");
        command.stdout(Stdio::null()).stderr(log);
        let daemon = command.spawn().expect("pueued runs");
        let mut pueue = Pueue { tool: tool.clone(), dir, daemon };
        until("pueued answers", || {
            if let Ok(Some(status)) = pueue.daemon.try_wait() {
                let log = fs::read_to_string(pueue.dir.path().join("log")).unwrap_or_default();
                panic!("pueued ended with {status}:\n{log}");
            }
            UnixStream::connect(pueue.dir.path().join("socket")).ok()
        });
        pueue
    }

    pub(crate) fn pid(&self) -> u32 {
        self.daemon.id()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.tool.client);
        environment(&mut command, self.dir.path());
        command.args(args);
        command
    }

    /// Runs the client, which must succeed, and returns what it says.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let output = self.command(args).output().expect("pueue runs");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "pueue {args:?}: {}\n{out}\n{err}", output.status);
        out.into_owned()
    }

    pub(crate) fn connect(&self) -> PueueConnection {
        let stream = UnixStream::connect(self.dir.path().join("socket")).expect("pueue's socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut wire = PueueConnection { stream, dir: self.dir.path().to_string_lossy().into_owned() };
        let secret = fs::read(self.dir.path().join("state/shared_secret")).expect("pueue's secret");
        wire.send(&secret);
        let version = wire.receive();
        assert!(!version.is_empty(), "pueue refused its own secret");
        wire
    }
}

impl Drop for Pueue {
    fn drop(&mut self) {
        // Also ends the jobs that still run.
        drop(self.command(&["shutdown"]).stdout(Stdio::null()).stderr(Stdio::null()).status());
        if !std::thread::panicking() {
            until("pueued has ended", || self.daemon.try_wait().ok().flatten());
        }
        drop(self.daemon.kill());
        drop(self.daemon.wait());
    }
}

fn directory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("bench-pueue-").tempdir().expect("a temporary directory")
}

fn environment(command: &mut Command, dir: &Path) {
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", dir)
        .env("PUEUE_CONFIG_PATH", dir.join("pueue.yml"))
        .current_dir(dir)
        .stdin(Stdio::null());
}

/// A connection past its handshake.
#[derive(Debug)]
pub(crate) struct PueueConnection {
    stream: UnixStream,
    dir: String,
}

impl PueueConnection {
    /// Submits a command line and waits until it was taken.
    pub(crate) fn add(&mut self, line: &str) {
        let add = json!({
            "command": line, "path": self.dir, "envs": {"PATH": "/usr/bin:/bin"}, "start_immediately": false,
            "stashed": false, "group": "default", "enqueue_at": null, "dependencies": [], "priority": null,
            "label": null,
        });
        let mut bytes = Vec::new();
        cbor(&json!({"Add": add}), &mut bytes);
        self.send(&bytes);
        let answer = self.receive();
        // A map of one entry whose key is the kind of the answer.
        assert!(answer.get(2..).is_some_and(|rest| rest.starts_with(b"AddedTask")), "pueue took no job");
    }

    /// Asks for everything it has, as there is no asking for less.
    pub(crate) fn status(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        cbor(&json!("Status"), &mut bytes);
        self.send(&bytes);
        self.receive()
    }

    pub(crate) fn finished(&mut self) -> usize {
        // The four-letter text of that state, which no command here contains.
        self.status().windows(DONE.len()).filter(|bytes| *bytes == DONE).count()
    }

    fn send(&mut self, payload: &[u8]) {
        let mut bytes = (payload.len() as u64).to_be_bytes().to_vec();
        bytes.extend_from_slice(payload);
        self.stream.write_all(&bytes).expect("pueue listens");
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut length = [0; 8];
        self.stream.read_exact(&mut length).expect("pueue answers");
        let length = u64::from_be_bytes(length);
        assert!(length <= ANSWER_BYTES_MAX, "an answer of {length} bytes");
        let mut payload = vec![0; usize::try_from(length).expect("a length that was checked")];
        self.stream.read_exact(&mut payload).expect("pueue answers wholly");
        payload
    }
}

/// What the messages above consist of, as CBOR.
fn cbor(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(0xf6),
        Value::Bool(false) => out.push(0xf4),
        Value::Bool(true) => out.push(0xf5),
        Value::Number(number) => head(0, number.as_u64().expect("a whole number"), out),
        Value::String(text) => {
            head(3, text.len() as u64, out);
            out.extend_from_slice(text.as_bytes());
        }
        Value::Array(items) => {
            head(4, items.len() as u64, out);
            items.iter().for_each(|item| cbor(item, out));
        }
        Value::Object(entries) => {
            head(5, entries.len() as u64, out);
            for (key, value) in entries {
                cbor(&Value::from(key.as_str()), out);
                cbor(value, out);
            }
        }
    }
}

/// A major type with its number.
fn head(major: u8, number: u64, out: &mut Vec<u8>) {
    let bytes = number.to_be_bytes();
    match number {
        0..=23 => out.push((major << 5) | bytes[7]),
        24..=0xff => out.extend([(major << 5) | 24, bytes[7]]),
        0x100..=0xffff => out.extend([(major << 5) | 25, bytes[6], bytes[7]]),
        0x1_0000..=u64::MAX => {
            out.push((major << 5) | 27);
            out.extend(bytes);
        }
    }
}

/// The state that pueue would have written after this many jobs.
fn finished_state(dir: &Path, jobs: usize, groups: usize) -> Value {
    let at = |second: usize| {
        format!("2026-01-01T{:02}:{:02}:{:02}.000000000Z", second / 3600 % 24, second / 60 % 60, second % 60)
    };
    let group = |number: usize| if number == 0 { "default".to_owned() } else { format!("group{number}") };
    let known: serde_json::Map<String, Value> =
        (0..groups).map(|n| (group(n), json!({"status": "Running", "parallel_tasks": 1}))).collect();
    let task = |n: usize| {
        let result = if n % 100 == 7 { json!({"Failed": 1}) } else { json!("Success") };
        json!({
            "id": n, "created_at": at(n), "original_command": "true", "command": "true", "path": dir,
            "envs": {"PATH": "/usr/bin:/bin"}, "group": group(n % groups), "dependencies": [], "priority": 0,
            "label": format!("batch{}", n % 1_000),
            "status": {"Done": {"enqueued_at": at(n), "start": at(n), "end": at(n + 1), "result": result}},
        })
    };
    let tasks: serde_json::Map<String, Value> = (0..jobs).map(|n| (n.to_string(), task(n))).collect();
    json!({"tasks": tasks, "groups": known})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_written_as_cbor_says() {
        let mut bytes = Vec::new();
        cbor(&json!({"a": [null, true, 24, "x".repeat(24)]}), &mut bytes);
        let mut expected = vec![0xa1, 0x61, b'a', 0x84, 0xf6, 0xf5, 0x18, 24, 0x78, 24];
        expected.extend([b'x'; 24]);
        assert_eq!(bytes, expected);
    }
}
