//! Standalone sandboxes and the execs in them. Fields are added, never renamed.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::agents::{LayerView, LimitView, Mount};
use crate::images::NetworkView;

params! {
    pub struct SandboxCreateParams {
        /// An id of your own: 4 to 64 of `A-Z a-z 0-9 _ -`. It is never used again, even after the sandbox is deleted.
        id: Option<String>,
        /// Needs the docker executor.
        image: Option<String>,
        /// The tools of the sandbox, by name: `host:PROGRAM` each.
        bins: BTreeMap<String, String>,
        /// Whether it has the tool `sh` with the ordinary utilities of the host.
        shell: bool,
        mounts: Vec<Mount>,
        env: BTreeMap<String, String>,
        labels: BTreeMap<String, String>,
        /// `none`, `public`, `lan` or `host`, or a list of `host[:port]`, CIDRs and `loopback:PORT`; `public` when absent.
        network: Vec<String>,
        /// As LIMIT in an Agentfile: memory, pids, cpu-time, disk and output.
        limits: BTreeMap<String, String>,
        request_id: Option<String>,
    }

    pub struct SandboxListParams {
        /// Also sandboxes that are stopped, failed or deleted.
        all: bool,
        /// pending, ready, stopped, failed, deleting or deleted.
        status: Option<String>,
        /// All of them must be there, with these values.
        labels: BTreeMap<String, String>,
        /// Older than this sandbox: the `next` of the page before.
        before: Option<String>,
        limit: Option<u32>,
    }

    /// A sandbox named by id or unique id prefix.
    pub struct SandboxRef {
        sandbox: String,
    }

    pub struct SandboxChangeParams {
        sandbox: String,
        request_id: Option<String>,
    }

    pub struct ExecRunParams {
        /// By id or unique id prefix.
        sandbox: String,
        /// An id of your own. It is never used again.
        id: Option<String>,
        /// The program, by its name in the sandbox or its path there, and its arguments.
        command: Vec<String>,
        /// The directory to start in, as the sandbox sees it; `/workspace` when absent.
        cwd: Option<String>,
        /// Overrides the environment of the sandbox.
        env: BTreeMap<String, String>,
        stdin: Option<String>,
        /// Instead of `stdin`, for bytes that are no text.
        stdin_base64: Option<String>,
        request_id: Option<String>,
    }

    pub struct ExecListParams {
        sandbox: Option<String>,
        /// running, finished, failed or cancelled.
        status: Option<String>,
        /// Older than this exec: the `next` of the page before.
        before: Option<String>,
        limit: Option<u32>,
    }

    /// An exec named by id or unique id prefix.
    pub struct ExecRef {
        exec: String,
    }

    pub struct ExecCancelParams {
        exec: String,
        request_id: Option<String>,
    }

    pub struct ExecOutputParams {
        exec: String,
        /// Where to read stdout from; absent: stdout is not read.
        stdout_from: Option<u64>,
        /// Where to read stderr from; absent: stderr is not read.
        stderr_from: Option<u64>,
        /// Most bytes of each stream.
        limit: Option<u64>,
        /// How long to wait for more output or the end, 30 s at most.
        wait_ms: Option<u64>,
    }
}

shapes! {
    pub struct SandboxView {
        id: String,
        /// pending, ready, stopped, failed, deleting or deleted.
        status: String,
        /// It is being stopped. Until it is stopped, its status stays.
        stopping: bool,
        executor: String,
        image: Option<String>,
        services: Vec<String>,
        /// Why it failed, or why it is not deleted yet: start, died, not_ended or not_removed.
        error_code: Option<String>,
        error: Option<String>,
        created_at: String,
        changed_at: String,
        ready_at: Option<String>,
        deleted_at: Option<String>,
        labels: BTreeMap<String, String>,
        env: BTreeMap<String, String>,
        bins: Vec<SandboxBinView>,
        mounts: Vec<Mount>,
        network: NetworkView,
        limits: Vec<LimitView>,
        /// The layers of isolation, while it is ready.
        isolation: Vec<LayerView>,
        /// Its first process on the host, while it is ready.
        pid: Option<u32>,
        /// Its own user on the host.
        uid: Option<u32>,
    }

    pub struct SandboxBinView {
        name: String,
        source: String,
        /// The program on the host.
        path: String,
    }

    pub struct SandboxList {
        sandboxes: Vec<SandboxView>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<String>,
    }

    pub struct ExecView {
        id: String,
        sandbox: String,
        command: Vec<String>,
        cwd: Option<String>,
        env: BTreeMap<String, String>,
        /// running, finished (it ran and ended, with any exit code), failed or cancelled.
        status: String,
        exit_code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
        /// The limit that it ran into.
        cause: Option<String>,
        /// Why it failed: not_found, not_executable, not_started or lost.
        error_code: Option<String>,
        error: Option<String>,
        /// A cancel was requested, and it has not ended yet.
        cancelling: bool,
        /// Files in the state directory, relative to it (`data_dir` of `info`). In the sandbox they are in `/var/log/lodge`.
        stdout_path: String,
        stderr_path: String,
        /// All that was written, kept or not.
        stdout_bytes: u64,
        stderr_bytes: u64,
        /// Some of its output was not kept.
        truncated: bool,
        started_at: String,
        finished_at: Option<String>,
    }

    pub struct ExecList {
        execs: Vec<ExecView>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<String>,
    }

    pub struct ExecOutput {
        exec: ExecView,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stdout: Option<ExecOutputPiece>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stderr: Option<ExecOutputPiece>,
    }

    pub struct ExecOutputPiece {
        /// Where `data` begins.
        offset: u64,
        /// The offset to ask for next.
        next: u64,
        data: String,
        /// utf8 or base64.
        encoding: String,
        /// There is nothing behind `next`, and never will be.
        end: bool,
    }
}
