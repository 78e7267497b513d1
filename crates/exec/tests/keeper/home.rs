//! A state directory of its own for each test, and one sandbox in it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lodge_exec::{
    ExecKind, Executor, ExitRecord, KeeperCommand, KeeperEvent, KeeperSecret, Link, PrivateRoot, SandboxSpec,
    StartExec, SystemExecutor,
};

pub(crate) const BOX: &str = "box";
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct SandboxHome {
    base: PathBuf,
    /// None if another part of the test owns the directory.
    _dir: Option<tempfile::TempDir>,
    pub(crate) host: SystemExecutor,
    pub(crate) root: PathBuf,
    pub(crate) secret: KeeperSecret,
    pub(crate) uid: Option<u32>,
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The keeper's bytes. `LODGE_TEST_KEEPER` names one that is built already.
pub(crate) fn keeper() -> &'static [u8] {
    static KEEPER: OnceLock<Vec<u8>> = OnceLock::new();
    KEEPER.get_or_init(|| {
        if let Some(path) = std::env::var_os("LODGE_TEST_KEEPER") {
            return fs::read(path).unwrap();
        }
        let built = Process::new(env!("CARGO"))
            .args(["build", "--quiet", "-p", "lodge-keeper"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(built.success());
        let test = std::env::current_exe().unwrap();
        fs::read(test.ancestors().nth(2).unwrap().join("keeper")).unwrap()
    })
}

impl SandboxHome {
    pub(crate) fn new() -> SandboxHome {
        let dir = tempfile::tempdir().unwrap();
        let mut home = SandboxHome::at(dir.path());
        home._dir = Some(dir);
        home
    }

    /// A home in a directory that outlives it.
    pub(crate) fn at(base: &Path) -> SandboxHome {
        static NEXT_UID: AtomicU32 = AtomicU32::new(0);
        let state = base.join("state");
        let host = SystemExecutor::open(&state, keeper()).unwrap();
        let root = state.join("agents/a/root");
        fs::create_dir_all(&root).unwrap();
        let root = root.canonicalize().unwrap();
        // No two tests may share one: the kernel counts processes by user.
        let first = 100_000 + std::process::id() * 64;
        let uid = is_root().then(|| first + NEXT_UID.fetch_add(1, Ordering::Relaxed));
        if let Some(uid) = uid {
            chown(&root, Some(uid), Some(uid)).unwrap();
        }
        fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).unwrap();
        furnish(&root, uid);
        SandboxHome {
            host,
            root,
            secret: KeeperSecret::new([7; 32]),
            uid,
            base: base.canonicalize().unwrap(),
            _dir: None,
        }
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.base.join("state").canonicalize().unwrap()
    }

    pub(crate) fn run(&self) -> PathBuf {
        self.state().join("run").join(BOX)
    }

    pub(crate) fn exec_dir(&self, exec: &str) -> PathBuf {
        self.run().join("exec").join(exec)
    }

    /// Execs that were claimed and not forgotten.
    pub(crate) fn execs(&self) -> Vec<String> {
        let entries = fs::read_dir(self.run().join("exec")).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        // A directory without an exec, which the next one gets, has a name that no exec can have.
        let mut names: Vec<String> = names.filter(|name| lodge_link::is_valid_id(name)).collect();
        names.sort();
        names
    }

    pub(crate) fn spec(&self) -> SandboxSpec {
        SandboxSpec {
            id: BOX.to_owned(),
            incarnation: 1,
            secret: self.secret.clone(),
            root: self.root.clone(),
            private_root: Some(PrivateRoot {
                hostname: BOX.to_owned(),
                host_trees: host_trees(),
                // Scripts of tests write where they start.
                writable: vec!["".into()],
                host_etc: None,
            }),
            uid: self.uid,
            binds: Vec::new(),
            network: lodge_exec::Network::Host,
            limits: lodge_exec::Limits::default(),
            log: self.state().join("log"),
            logs: None,
            failpoint: None,
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.state().join("log")).unwrap_or_default()
    }

    /// A keeper that behaves as on a host without some things, and a link to it.
    pub(crate) async fn up_without(&self, failpoint: Option<&str>) -> Link {
        // Without a bind of its own, the root is reached through directories that are closed to its user.
        for dir in self.root.ancestors().skip(1).take_while(|dir| dir.starts_with(&self.base)) {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o711)).unwrap();
        }
        let failpoint = failpoint.map(str::to_owned);
        self.host.start(&SandboxSpec { failpoint, ..self.spec() }).await.unwrap();
        self.dial(1).await
    }

    pub(crate) async fn dial(&self, epoch: u64) -> Link {
        self.host.dial(BOX, &self.secret, epoch).await.unwrap()
    }

    /// A keeper and a link to it.
    pub(crate) async fn up(&self) -> Link {
        self.host.start(&self.spec()).await.unwrap();
        self.dial(1).await
    }

    pub(crate) fn sh(&self, exec: &str, script: &str) -> StartExec {
        StartExec {
            exec: exec.to_owned(),
            kind: ExecKind::Tool,
            argv: vec!["/bin/sh".into(), "-c".into(), script.into()],
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            cwd: self.root.clone(),
            stdin: Vec::new(),
            output_cap: 1 << 20,
            timeout_ms: 0,
            output_max: 0,
            job_head: 0,
            job_segment: 0,
            keep_free: 0,
        }
    }

    /// A script as a job that keeps this many bytes of the beginning of each stream, and segments of that length.
    pub(crate) fn job(&self, exec: &str, script: &str, (job_head, job_segment): (u64, u64)) -> StartExec {
        StartExec { kind: ExecKind::Job, job_head, job_segment, ..self.sh(exec, script) }
    }

    /// Runs a script to its end.
    pub(crate) async fn run_sh(&self, link: &mut Link, exec: &str, script: &str) -> ExitRecord {
        link.send(&KeeperCommand::Start(self.sh(exec, script))).await.unwrap();
        exited(link, exec).await
    }

    pub(crate) fn stdout(&self, exec: &str) -> String {
        let captured = self.host.read_output(BOX, exec, lodge_exec::ExecStream::Stdout, 1 << 20, 0).unwrap();
        String::from_utf8(captured.head).unwrap()
    }

    /// Pid of the keeper as the host sees it.
    pub(crate) fn keeper_pid(&self) -> Option<i32> {
        let text = fs::read_to_string(self.run().join("pid")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    }

    pub(crate) fn kill_keeper(&self) {
        let pid = rustix::process::Pid::from_raw(self.keeper_pid().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
}

/// What the daemon puts into an agent's directory: a way from its former path, and where programs of the host are.
fn furnish(root: &Path, uid: Option<u32>) {
    let make = |path: PathBuf| {
        fs::create_dir_all(&path).unwrap();
        if let Some(uid) = uid {
            chown(&path, Some(uid), Some(uid)).unwrap();
        }
    };
    make(root.join("tmp"));
    make(root.join("var/tmp"));
    let former = root.join(root.strip_prefix("/").unwrap());
    make(former.parent().unwrap().to_owned());
    symlink("/", former).unwrap();
    // Some programs are found by a link there.
    make(root.join("etc/alternatives"));
    if let Ok(to) = fs::read_link("/etc/alternatives/awk") {
        symlink(to, root.join("etc/alternatives/awk")).unwrap();
    }
    for name in PROGRAM_PLACES {
        if let Ok(to) = fs::read_link(Path::new("/").join(name)) {
            symlink(to, root.join(name)).unwrap();
        }
    }
}

const PROGRAM_PLACES: [&str; 5] = ["usr", "bin", "sbin", "lib", "lib64"];

/// Directories of the host that programs need, without links to them.
fn host_trees() -> Vec<PathBuf> {
    let places = PROGRAM_PLACES.map(|name| Path::new("/").join(name));
    places.into_iter().filter(|path| path.symlink_metadata().is_ok_and(|found| found.is_dir())).collect()
}

impl Drop for SandboxHome {
    fn drop(&mut self) {
        let until = Instant::now() + PATIENCE;
        // If the lock is taken, the recorded pid belongs to its owner, so it cannot have been reused.
        while self.host.is_held(BOX) && Instant::now() < until {
            if let Some(pid) = self.keeper_pid().and_then(rustix::process::Pid::from_raw)
                && rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_err()
            {}
            std::thread::yield_now();
        }
        // With it goes the sandbox's cgroup. What a killed keeper left there may still be ending.
        let removed = || {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            // This executor removes without waiting.
            matches!(self.host.remove(BOX).as_mut().poll(&mut context), std::task::Poll::Ready(Ok(())))
        };
        while !removed() && Instant::now() < until {
            std::thread::yield_now();
        }
    }
}

pub(crate) async fn next(link: &mut Link) -> KeeperEvent {
    tokio::time::timeout(PATIENCE, link.next()).await.expect("no event").expect("the link was lost")
}

/// Waits for the end of an exec.
pub(crate) async fn exited(link: &mut Link, exec: &str) -> ExitRecord {
    loop {
        match next(link).await {
            KeeperEvent::Exited { exec: ended, record, .. } if ended == exec => return record,
            KeeperEvent::Refused { exec, why, .. } => panic!("{exec} was refused: {why}"),
            _ => {}
        }
    }
}

/// Waits for a condition, with a bound.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Pids on the host whose command line contains `mark`.
pub(crate) fn processes_with(mark: &str) -> Vec<i32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let line = fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).unwrap_or_default();
        let own = std::process::id().cast_signed();
        *pid != own && line.windows(mark.len()).any(|part| part == mark.as_bytes())
    })
    .collect()
}

/// The command lines that contain `mark`, with spaces between their words.
pub(crate) fn command_lines_with(mark: &str) -> Vec<String> {
    let line = |pid: i32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let lines = processes_with(mark).into_iter().map(line).filter(|line| !line.is_empty());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).collect()
}

/// How many of these processes are stopped.
pub(crate) fn stopped_with(mark: &str) -> usize {
    let is_stopped = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    };
    processes_with(mark).iter().filter(|pid| is_stopped(pid)).count()
}

/// An argument that no other process has.
pub(crate) fn mark() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("31{:07}{:03}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
