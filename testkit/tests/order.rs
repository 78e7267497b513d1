//! The order of what lodged and a keeper do to files during a turn, as `strace` saw it.
//!
//! After power loss only what the database synced is certain. So an intent must be synced before its exec is claimed,
//! and an outcome before the exec's files go.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use lodge_testkit::lodge::{Lodge, until};
use lodge_testkit::mock::MockLlm;

const CALLS: &str = "trace=pwrite64,fdatasync,mkdirat,renameat,unlinkat";
const AGENTFILE: &str = "FROM scratch\nNAME tester\nMODEL mock/m\nBIN sh host:sh \"a shell\"\n";
/// The right to look into processes that do not let themselves be looked into: CAP_SYS_PTRACE.
const MAY_LOOK: u64 = 1 << 19;

/// A daemon that must not outlive its test.
struct TracedDaemon(Child);

impl Drop for TracedDaemon {
    fn drop(&mut self) {
        // It may have ended by itself, which is fine.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn an_intent_is_synced_before_its_exec_is_claimed_and_an_outcome_before_its_files_go() {
    let lodge = Lodge::new();
    fs::DirBuilder::new().mode(0o700).create(lodge.home()).expect("a state directory");
    let mock = MockLlm::spawn(lodge.dir()).expect("a provider");
    let provider = format!(
        "providers:\n  - name: mock\n    kind: openai\n    base-url: {}\n    api-key: k\n",
        mock.base_url()
    );
    let (file, private) = (lodge.home().join("providers.yaml"), fs::Permissions::from_mode(0o600));
    fs::write(&file, provider).and_then(|()| fs::set_permissions(file, private)).expect("a file");
    let trace = lodge.dir().join("trace");
    let mut daemon = traced(&lodge, &trace);
    let socket = lodge.home().join("lodge.sock");
    until("the daemon answers", || std::os::unix::net::UnixStream::connect(&socket).ok());
    let agent = lodge.agent_dir("one", AGENTFILE, &[]);
    let message = r#"[[tool:sh|["-c","echo one"]]] [[tool:sh|["-c","echo two"]]] [[reply:done]]"#;
    assert_eq!(lodge.cli_ok(["run".as_ref(), agent.as_os_str(), message.as_ref()]).trim(), "done");
    lodge.cli_ok(["shutdown", "--agents"]);
    assert!(daemon.0.wait().expect("our child").success());
    // What traced it ends after it did, and writes its last lines then.
    let text = until("the trace is whole", || {
        let text = fs::read_to_string(&trace).ok()?;
        text.contains("\"lock\"").then_some(text)
    });
    assert_eq!(read(&text).expect("a trace"), 2, "both calls were followed to their end");
}

/// Starts the daemon so that everything it and its keepers do is written down. A host where that cannot be done fails
/// the test: what was not tried was not shown.
fn traced(lodge: &Lodge, trace: &Path) -> TracedDaemon {
    let daemon = lodge.daemon_command();
    let mut command = match may_look() {
        true => Command::new("strace"),
        // An ordinary user has that right in a namespace of their own.
        false => {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-current-user", "--keep-caps", "strace"]);
            command
        }
    };
    // Beside it and not above it (`-D`): what is started here is the daemon itself.
    command.args(["-D", "-f", "--seccomp-bpf", "-qq", "-y", "-s", "4096", "-e", CALLS, "-e", "signal=none"]);
    command.arg("-o").arg(trace);
    if !may_look() {
        // The capability is for the observer: the daemon runs as an ordinary user.
        command.args(["setpriv", "--ambient-caps=-all", "--inh-caps=-all"]);
    }
    command.arg(daemon.get_program()).args(daemon.get_args()).env_clear();
    for (key, value) in daemon.get_envs() {
        if let Some(value) = value {
            command.env(key, value);
        }
    }
    // By which strace itself is found.
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    TracedDaemon(quiet.spawn().expect("strace runs"))
}

fn may_look() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mine = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mine.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|caps| caps & MAY_LOOK != 0)
}

/// A write to a file of the database: its number, and the file as the trace names it.
type TracedWrite<'a> = (usize, &'a str);

/// The state of each exec, and the WAL write that must be synced before it continues.
#[derive(Debug, Default)]
struct ExecOrder<'a> {
    intent: Option<TracedWrite<'a>>,
    recorded: bool,
    outcome: Option<TracedWrite<'a>>,
    gone: bool,
}

/// Follows every tool call through the trace in order. Returns how many completed, or what came too early.
///
/// For an ordinary user the trace contains no paths of a daemon's files, only their numbers. Then a write counts for
/// the file with the same number, and a file without a name belongs to the exec that was claimed last.
fn read(trace: &str) -> Result<usize, String> {
    let mut execs: BTreeMap<String, ExecOrder<'_>> = BTreeMap::new();
    let (mut syncing, mut synced) =
        (BTreeMap::<&str, TracedWrite<'_>>::new(), BTreeMap::<&str, usize>::new());
    let (mut writes, mut last) = (0, None);
    for line in trace.lines() {
        let (pid, call) = line.split_once(' ').ok_or_else(|| line.to_owned())?;
        let call = call.trim_start();
        let file = file(call);
        let is_wal = !file.contains('<') || file.contains("daemon.db-wal>");
        if call.starts_with("pwrite64(") && is_wal {
            writes += 1;
            for id in ids(call) {
                let exec = execs.entry(id).or_default();
                exec.intent.get_or_insert((writes, file));
                if exec.recorded {
                    exec.outcome.get_or_insert((writes, file));
                }
            }
        } else if call.starts_with("fdatasync(") && is_wal {
            syncing.insert(pid, (writes, file));
        }
        let is_sync = call.starts_with("fdatasync(") || call.starts_with("<... fdatasync resumed>");
        if is_sync && call.ends_with("= 0") {
            synced.extend(syncing.remove(pid).map(|(writes, file)| (file, writes)));
        }
        let is_synced = |write: Option<TracedWrite<'_>>| {
            write.is_some_and(|(number, file)| synced.get(file).is_some_and(|synced| number <= *synced))
        };
        // A cgroup bears the name of its exec, too, and a number.
        let name = call.split('"').nth(1).unwrap_or_default();
        let is_cgroup = name.starts_with("exe_") && name.contains('.');
        let is_named = file.contains('<');
        if is_cgroup || is_named && !call.contains("/exec>") && !call.contains("/exec/") {
            continue;
        }
        if call.starts_with("mkdirat(") {
            let Some(id) = ids(call).pop() else { continue };
            if !is_synced(execs.entry(id.clone()).or_default().intent) {
                return Err(format!("claimed before its intent was synced: {line}"));
            }
            last = Some(id);
        }
        let id = ids(call).pop().or_else(|| last.clone().filter(|_| !is_named));
        let Some(exec) = id.and_then(|id| execs.get_mut(&id)) else { continue };
        exec.recorded |= call.starts_with("renameat(");
        if call.starts_with("unlinkat(") && call.ends_with("= 0") {
            if !is_synced(exec.outcome) {
                return Err(format!("its files went before its outcome was synced: {line}"));
            }
            exec.gone = true;
        }
    }
    Ok(execs.values().filter(|exec| exec.gone).count())
}

/// The file that a call is about: its first argument.
fn file(call: &str) -> &str {
    let arguments = call.split_once('(').map_or("", |(_, rest)| rest);
    arguments.split([',', ')', ' ']).next().unwrap_or_default()
}

/// The ids of tool calls in a line. The runtime's own exec has none of this kind.
fn ids(line: &str) -> Vec<String> {
    let after = line.match_indices("exe_").map(|(at, _)| &line[at..]);
    let ids =
        after.map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or(""));
    ids.filter(|id| !id.starts_with("exe_runtime")).map(str::to_owned).collect()
}

#[test]
fn a_daemon_that_goes_on_before_it_synced_is_noticed_with_paths_and_without() {
    for [wal_file, execs, exec] in
        [["3</h/daemon.db-wal>", "4</h/run/s/exec>", "5</h/run/s/exec/exe_1abc>"], ["3", "4", "5"]]
    {
        let id = "exe_1abc";
        let wal = format!("1 pwrite64({wal_file}, \"\\0{id}\\0\", 9, 0) = 9\n");
        let sync = format!("1 fdatasync({wal_file}) = 0\n");
        let other = "1 fdatasync(9</h/daemon.db>) = 0\n";
        let claim = format!("2 mkdirat({execs}, \"{id}\", 0700) = 0\n");
        let record = format!("2 renameat({exec}, \"exit.new\", {exec}, \"exit\") = 0\n");
        let gone = format!("2 unlinkat({exec}, \"stdout\", 0) = 0\n");
        let (wal, sync) = (&*wal, &*sync);
        assert_eq!(read(&[wal, sync, &claim, &record, wal, sync, &gone].concat()), Ok(1));
        assert!(read(&[wal, &claim, sync, &record, wal, sync, &gone].concat()).is_err());
        assert!(read(&[wal, other, &claim].concat()).is_err());
        assert!(read(&[&*claim, wal, sync].concat()).is_err());
        assert!(read(&[wal, sync, &claim, &record, wal, &gone, sync].concat()).is_err());
        assert!(read(&[wal, sync, &claim, &record, &gone, wal, sync].concat()).is_err());
        let late = format!("1 fdatasync({wal_file} <unfinished ...>\n");
        let ended = "1 <... fdatasync resumed>) = 0\n";
        assert!(read(&[wal, &late, &claim, ended].concat()).is_err());
        assert_eq!(read(&[wal, &late, ended, &claim].concat()), Ok(0));
    }
}
