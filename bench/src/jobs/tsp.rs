//! task-spooler: one program that is daemon and client, with a directory of its own.

use std::fs;
use std::process::{Command, Stdio};

use lodge_testkit::lodge::until;

use crate::jobs::tools::TspTool;

/// Finished jobs that it remembers. By default it forgets all but a thousand.
const FINISHED_MAX: &str = "100000";

#[derive(Debug)]
pub(crate) struct Tsp {
    tool: TspTool,
    dir: tempfile::TempDir,
}

impl Tsp {
    /// A daemon that runs this many jobs in parallel.
    pub(crate) fn start(tool: &TspTool, width: usize) -> Tsp {
        let dir = tempfile::Builder::new().prefix("bench-tsp-").tempdir().expect("a temporary directory");
        let tsp = Tsp { tool: tool.clone(), dir };
        tsp.ok(&["-S", &width.to_string()]);
        tsp
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.tool.program);
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("TS_SOCKET", self.socket())
            .env("TS_MAXFINISHED", FINISHED_MAX)
            .env("TMPDIR", self.dir.path())
            .args(args)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Runs it, which must succeed, and returns what it says.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let output = self.command(args).output().expect("tsp runs");
        assert!(output.status.success(), "tsp {args:?}: {}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub(crate) fn finished(&self) -> usize {
        self.in_state("finished").len()
    }

    fn in_state(&self, state: &str) -> Vec<String> {
        let list = self.command(&["-l"]).output().map(|output| output.stdout).unwrap_or_default();
        let list = String::from_utf8_lossy(&list).into_owned();
        let words = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        words.filter(|words| words.get(1) == Some(&state)).map(|words| words[0].to_owned()).collect()
    }

    /// The daemon, which went into the background by itself.
    pub(crate) fn pid(&self) -> Option<u32> {
        let socket = format!("TS_SOCKET={}", self.socket());
        let is_ours = |pid: &u32| {
            let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            environ.split(|byte| *byte == 0).any(|entry| entry == socket.as_bytes())
                && program.ends_with("tsp")
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(is_ours)
    }

    fn socket(&self) -> String {
        self.dir.path().join("socket").to_string_lossy().into_owned()
    }
}

impl Drop for Tsp {
    fn drop(&mut self) {
        // Ending the daemon would leave its jobs alone.
        for job in self.in_state("running") {
            drop(self.command(&["-k", &job]).stdout(Stdio::null()).status());
        }
        if !std::thread::panicking() {
            until("task-spooler's jobs have ended", || self.in_state("running").is_empty().then_some(()));
        }
        drop(self.command(&["-K"]).stdout(Stdio::null()).status());
        if !std::thread::panicking() {
            until("task-spooler has ended", || self.pid().is_none().then_some(()));
        }
    }
}
