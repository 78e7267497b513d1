//! The command line and the daemon it needs: started by itself, lost, found again.

use std::io::Write;
use std::process::{Command, Stdio};

use lodge_testkit::lodge::{Lodge, is_alive, until};
use serde_json::{Value, json};

use crate::world::{A_TOKEN, AGENTFILE, ApiWorld, KEY, kill, sh, told};

/// A state directory whose daemon was started automatically; it is ended with this.
struct Unattended(ApiWorld);

impl Unattended {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.0.lodge.cli_command(args);
        command.env_remove("LODGE_NO_AUTOSTART").env("LODGED_HTTP_ADDR", "127.0.0.1:0");
        command
    }

    /// The daemon's pid, from its lock.
    fn daemon(&self) -> Option<i32> {
        let text = std::fs::read_to_string(self.0.lodge.home().join("anchor.lock")).ok()?;
        let pid = text.strip_prefix("pid ")?.split(',').next()?.parse().ok()?;
        is_alive(pid).then_some(pid)
    }
}

impl Drop for Unattended {
    fn drop(&mut self) {
        if let Some(pid) = self.daemon() {
            kill(pid, libc::SIGKILL);
        }
    }
}

#[test]
fn a_daemon_is_started_when_none_answers_and_outlives_the_command() {
    let home = Unattended(ApiWorld::asleep());
    let (code, out, err) = told(&home.command(&["--json", "info"]).output().expect("lodge runs"));
    assert_eq!(code, 0, "{err}");
    let info: Value = serde_json::from_str(&out).expect("JSON");
    let pid = home.daemon().expect("a daemon");
    assert_eq!((&info["pid"], &info["epoch"]), (&json!(pid), &json!(1)));
    assert!(err.starts_with(&format!("started lodged (pid {pid}) on /")), "{err}");
    assert_eq!(
        told(&home.command(&["-q", "ps"]).output().expect("lodge runs")),
        (0, String::new(), String::new())
    );
    assert_eq!(home.daemon(), Some(pid));
}

#[test]
fn two_commands_at_once_start_one_daemon() {
    let home = Unattended(ApiWorld::asleep());
    let children: Vec<_> = (0..4)
        .map(|_| {
            home.command(&["--json", "info"])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("lodge")
        })
        .collect();
    let mut pids = Vec::new();
    for child in children {
        let (code, out, err) = told(&child.wait_with_output().expect("an end"));
        assert_eq!(code, 0, "{err}");
        pids.push(serde_json::from_str::<Value>(&out).expect("JSON")["pid"].clone());
    }
    assert!(pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
}

#[test]
fn a_daemon_that_cannot_start_says_why_through_the_command() {
    let home = Unattended(ApiWorld::asleep());
    std::fs::write(home.0.lodge.home().join("lodged.yaml"), "serve:\n  htp-addr: x\n").expect("a file");
    let (code, out, err) = told(&home.command(&["ps"]).output().expect("lodge runs"));
    assert_eq!((code, out.as_str()), (3, ""), "{err}");
    assert!(err.starts_with("error: could not start the daemon\n"), "{err}");
    assert!(err.contains("unknown key `htp-addr`") && err.contains("\nhint: "), "{err}");
}

#[test]
fn a_prompt_whose_daemon_is_killed_starts_another_and_prints_the_answer_once() {
    let home = Unattended(ApiWorld::asleep());
    let world = &home.0;
    let dir = world.lodge.agent_dir("one", AGENTFILE, &[]);
    let run = home.command(&["--json", "run", dir.to_str().expect("UTF-8")]).output().expect("lodge runs");
    let (code, out, err) = told(&run);
    assert_eq!(code, 0, "{err}");
    let agent: Value = serde_json::from_str(&out).expect("JSON");
    let workspace =
        world.lodge.home().join("agents").join(agent["id"].as_str().expect("an id")).join("workspace");
    let text =
        format!("{} [[reply:the one answer]]", sh("echo run >> runs; until test -e go; do sleep 0.02; done"));
    let child = home
        .command(&["prompt", "tester", &text])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("lodge");
    until("the tool runs", || workspace.join("runs").exists().then_some(()));
    let first = home.daemon().expect("a daemon");
    kill(first, libc::SIGKILL);
    until("another daemon", || home.daemon().filter(|pid| *pid != first));
    std::fs::write(workspace.join("go"), "").expect("a file");
    let (code, out, err) = told(&child.wait_with_output().expect("an end"));
    assert_eq!((code, out.as_str()), (0, "the one answer\n"), "{err}");
    assert!(err.contains("connection to the daemon lost; reconnecting"), "{err}");
    assert_eq!(std::fs::read_to_string(workspace.join("runs")).expect("a file"), "run\n");
    assert_eq!(world.mock.requests().expect("a log").len(), 2);
}

/// An agent of this home that waits in a tool until there is a file `go` in the directory that is returned.
fn waiting_agent(home: &Unattended) -> (std::path::PathBuf, String) {
    let dir = home.0.lodge.agent_dir("one", AGENTFILE, &[]);
    let run = home.command(&["--json", "run", dir.to_str().expect("UTF-8")]).output().expect("lodge runs");
    let (code, out, err) = told(&run);
    assert_eq!(code, 0, "{err}");
    let agent: Value = serde_json::from_str(&out).expect("JSON");
    let agents = home.0.lodge.home().join("agents");
    let text =
        format!("{} [[reply:the one answer]]", sh("echo run >> runs; until test -e go; do sleep 0.02; done"));
    (agents.join(agent["id"].as_str().expect("an id")).join("workspace"), text)
}

fn spawn(home: &Unattended, args: &[&str]) -> std::process::Child {
    home.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("lodge")
}

/// Reads until the follower has printed something: then it is attached.
fn first_line(child: &mut std::process::Child) {
    let mut stdout = std::io::BufReader::new(child.stdout.as_mut().expect("stdout"));
    std::io::BufRead::read_line(&mut stdout, &mut String::new()).expect("a line");
}

#[test]
fn a_shutdown_ends_who_only_follows_and_nobody_undoes_it() {
    let home = Unattended(ApiWorld::asleep());
    let (workspace, text) = waiting_agent(&home);
    let prompt = spawn(&home, &["prompt", "tester", &text]);
    until("the tool runs", || workspace.join("runs").exists().then_some(()));
    let mut events = spawn(&home, &["events", "-f", "--since", "0"]);
    first_line(&mut events);
    let told_logs = told(&home.command(&["--json", "agent", "logs", "tester"]).output().expect("lodge runs"));
    let log: Value = serde_json::from_str(&told_logs.1).expect("JSON");
    let log = std::fs::OpenOptions::new().append(true).open(log["path"].as_str().expect("a path"));
    writeln!(log.expect("a log"), "a line").expect("a line");
    let mut logs = spawn(&home, &["logs", "-f", "tester"]);
    first_line(&mut logs);
    let daemon = home.daemon().expect("a daemon");
    let (code, _, err) = told(&home.command(&["shutdown"]).output().expect("lodge runs"));
    assert_eq!(code, 0, "{err}");
    let (code, out, err) = told(&prompt.wait_with_output().expect("an end"));
    let words = "error: the daemon was shut down; the turn continues when a daemon is running again\n";
    assert_eq!((code, out.as_str(), err.as_str()), (3, "", words));
    let (code, _, err) = told(&events.wait_with_output().expect("an end"));
    assert_eq!((code, err.as_str()), (3, "error: the daemon was shut down\n"));
    let (code, _, err) = told(&logs.wait_with_output().expect("an end"));
    assert_eq!((code, err.as_str()), (3, "error: the daemon was shut down\n"));
    // Its last connection closes before it ends.
    until("the daemon is gone", || (!is_alive(daemon)).then_some(()));
    assert_eq!(home.daemon(), None, "somebody brought it back");
    std::fs::write(workspace.join("go"), "").expect("a file");
    let (code, out, err) =
        told(&home.command(&["prompt", "tester", "[[reply:and on]]"]).output().expect("lodge runs"));
    assert_eq!((code, out.as_str()), (0, "and on\n"), "{err}");
}

#[test]
fn a_daemon_that_is_replaced_at_once_is_followed_on() {
    let home = Unattended(ApiWorld::asleep());
    let (workspace, text) = waiting_agent(&home);
    let prompt = spawn(&home, &["prompt", "tester", &text]);
    until("the tool runs", || workspace.join("runs").exists().then_some(()));
    // It is stopped until the next daemon is ready.
    let pid = prompt.id().cast_signed();
    kill(pid, libc::SIGSTOP);
    for args in [&["shutdown"][..], &["info"]] {
        let (code, _, err) = told(&home.command(args).output().expect("lodge runs"));
        assert_eq!(code, 0, "{args:?}: {err}");
    }
    kill(pid, libc::SIGCONT);
    std::fs::write(workspace.join("go"), "").expect("a file");
    let (code, out, err) = told(&prompt.wait_with_output().expect("an end"));
    assert_eq!((code, out.as_str()), (0, "the one answer\n"), "{err}");
    assert_eq!(err, "the daemon was shut down; reconnected to the new one\n");
}

#[tokio::test]
async fn providers_are_added_shown_masked_tested_and_removed() {
    let world = ApiWorld::new();
    let url = world.mock.base_url();
    let add = [
        "provider",
        "add",
        "work",
        "--kind",
        "openai",
        "--base-url",
        &url,
        "--models",
        "m,n",
        "--api-key",
        "-",
    ];
    let mut child =
        world.lodge.cli_command(add).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("lodge");
    child.stdin.take().expect("stdin").write_all(format!("{KEY}\n").as_bytes()).expect("a key");
    let (code, out, err) = told(&child.wait_with_output().expect("an end"));
    assert_eq!((code, out.as_str()), (0, "work\n"), "{err}");
    let listed = world.lodge.cli_ok(["provider", "ls"]);
    assert!(listed.contains("work") && listed.contains("m,n") && !listed.contains(KEY), "{listed}");
    assert!(!world.lodge.cli_ok(["--json", "provider", "ls"]).contains(KEY));
    assert!(world.lodge.cli_ok(["provider", "ls", "--reveal"]).contains(KEY));
    let (code, out, err) = world.cli(&["provider", "test", "work"]);
    assert_eq!((code, out.as_str()), (0, "mock\n"), "{err}");
    assert!(err.starts_with("m of work answered in "), "{err}");
    let (code, _, err) = world.cli(&["provider", "add", "work", "--kind", "script"]);
    assert!(code == 1 && err.contains("hint: "), "{err}");
    assert_eq!(world.cli(&["provider", "add", "x", "--kind", "oracle"]).0, 2);
    assert_eq!(world.cli(&["provider", "add", "play", "--kind", "script"]).0, 0);
    let (code, out, err) = world.cli(&["provider", "rm", "nosuch", "work"]);
    assert_eq!((code, out.as_str()), (1, "work\n"), "each is done: {err}");
    let removed = world.cli_json(&["--json", "provider", "rm", "play"]);
    assert_eq!(removed, json!({"name": "play", "removed": true}));
    assert_eq!(world.cli(&["provider", "rm", "work"]).0, 1);
    assert_eq!(world.cli(&["provider", "test", "work"]).0, 1);
    let file = std::fs::read_to_string(world.lodge.home().join("providers.yaml")).expect("a file");
    assert!(file.contains("name: mock") && !file.contains("work"), "{file}");
}

#[tokio::test]
async fn the_command_line_obeys_its_variables_and_flags_for_where_the_daemon_is() {
    let world = ApiWorld::new();
    let away = Lodge::new();
    let (addr, socket) =
        (format!("http://{}", world.lodge.http_addr()), world.lodge.home().join("lodge.sock"));
    let socket = socket.to_str().expect("UTF-8");
    let token = world.lodge.token();
    let run = |args: &[&str], env: &[(&str, &str)]| {
        told(&away.cli_command(args).envs(env.iter().copied()).output().expect("lodge runs"))
    };
    for (args, env) in [
        (vec!["--socket", socket, "-q", "ps"], vec![]),
        (vec!["-q", "ps"], vec![("LODGE_SOCKET", socket)]),
        (vec!["--daemon", addr.as_str(), "-q", "ps"], vec![("LODGE_TOKEN", token.as_str())]),
        (vec!["-q", "ps"], vec![("LODGE_DAEMON", addr.as_str()), ("LODGE_TOKEN", token.as_str())]),
    ] {
        assert_eq!(run(&args, &env), (0, String::new(), String::new()), "{args:?} {env:?}");
    }
    let (code, _, err) = run(&["--socket", socket, "ps"], &[("LODGE_TOKEN", A_TOKEN)]);
    assert!(
        code == 1 && err.contains("not one of this daemon's") && err.contains("LODGE_TOKEN"),
        "{code} {err}"
    );
    assert_eq!(run(&["--socket", socket, "--daemon", &addr, "ps"], &[]).0, 2);
}

#[tokio::test]
async fn run_takes_a_directory_a_file_or_stdin_and_can_tidy_up() {
    let world = ApiWorld::new();
    let dir = world.lodge.agent_dir("one", AGENTFILE, &[]);
    let dir = dir.to_str().expect("UTF-8");
    let out = world.lodge.cli_ok(["run", dir, "--name", "a"]);
    assert!(out.starts_with("a agt_"), "{out}");
    world.lodge.cli_ok(["run", &format!("{dir}/Agentfile"), "--name", "b"]);
    let mut child = world
        .lodge
        .cli_command(["-q", "run", "-", "--name", "c"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("lodge");
    child.stdin.take().expect("stdin").write_all(AGENTFILE.as_bytes()).expect("an Agentfile");
    let (code, out, _) = told(&child.wait_with_output().expect("an end"));
    assert!(code == 0 && out.starts_with("agt_"), "{out}");
    assert_eq!(world.lodge.cli_ok(["run", dir, "--name", "d", "--rm", "[[reply:hello]]"]), "hello\n");
    let names: Vec<Value> = world
        .cli_json(&["--json", "ps", "-a"])
        .as_array()
        .expect("agents")
        .iter()
        .map(|agent| agent["name"].clone())
        .collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(world.lodge.cli_ok(["stop", "a", "b"]), "a\nb\n");
    assert_eq!(world.lodge.cli_ok(["-q", "ps"]).lines().count(), 1);
    assert_eq!(world.lodge.cli_ok(["start", "a"]), "a\n");
    assert_eq!(world.lodge.cli_ok(["rm", "b"]), "b\n");
    assert_eq!(world.lodge.cli_ok(["rm", "-f", "a", "c"]), "a\nc\n");
    // A name that is taken is reported; a name from the command line is not replaced.
    let (code, out, err) = world.cli(&["run", dir]);
    assert!(code == 0 && out.starts_with("tester agt_") && err.is_empty(), "{out}{err}");
    let (code, out, err) = world.cli(&["run", dir]);
    assert!(code == 0 && out.starts_with("tester-2 agt_"), "{out}{err}");
    let expected = format!(
        "`tester` is taken: this one is `tester-2`\n\
         to change `tester` itself: lodge agent update tester --image {dir}\n"
    );
    assert_eq!(err, expected);
    assert_eq!(world.lodge.cli_ok(["rm", "-f", "tester", "tester-2"]), "tester\ntester-2\n");
    // An agent that does not start is reported with the reason.
    let broken = world.lodge.agent_dir("broken", &format!("{AGENTFILE}EXEC [\"nonsense\"]\n"), &[]);
    let (code, _, err) = world.cli(&["run", broken.to_str().expect("UTF-8")]);
    assert!(
        code == 1 && err.starts_with("error: tester did not become ready\n  because: it crashed"),
        "{err}"
    );
    assert!(
        err.contains("hint: it is not retried automatically: fix the cause, then run `lodge start tester`")
            && err.contains("`lodge logs tester`"),
        "{err}"
    );
    assert!(!world.lodge.cli_ok(["logs", "tester"]).is_empty());
}
