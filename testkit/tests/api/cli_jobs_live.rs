//! `lodge jobs` across deaths of the daemon, `stop` with jobs, and jobs in a chat.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};

use lodge_testkit::lodge::until;
use serde_json::json;

use crate::cli_jobs::{is, submit, workspace};
use crate::terminal::{TerminalSession, shown};
use crate::world::{ApiWorld, family, kill};

async fn with_agent() -> ApiWorld {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    world
}

/// A command whose output is read.
fn begun(world: &ApiWorld, args: &[&str]) -> Child {
    let mut command = world.lodge.cli_command(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("lodge")
}

/// Reads up to a line.
fn read_to(reader: &mut impl BufRead, line: &str) -> String {
    let mut text = String::new();
    loop {
        let before = text.len();
        assert!(reader.read_line(&mut text).expect("output") > 0, "`{line}` does not come: {text}");
        if text[before..].trim_end() == line {
            return text;
        }
    }
}

/// How many sockets a command has open.
fn sockets(command: &Child) -> usize {
    let open = fs::read_dir(format!("/proc/{}/fd", command.id())).expect("a process").flatten();
    let leads = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    leads.filter(|to| to.to_string_lossy().starts_with("socket:")).count()
}

/// Prints this many lines on each stream, then waits for a file, and repeats.
const IN_PARTS: &str = "for part in 1 2 3; do i=0; while [ $i -lt 500 ]; do echo \"$part $i\"; i=$((i+1)); done; \
    echo \"part $part\"; echo \"err $part\" >&2; until test -e go$part; do sleep 0.02; done; done; exit 5";

fn parts() -> String {
    let part = |part: usize| {
        let lines: String = (0..500).map(|at| format!("{part} {at}\n")).collect();
        format!("{lines}part {part}\n")
    };
    (1..=3).map(part).collect()
}

#[tokio::test]
async fn a_client_that_follows_or_waits_continues_across_kills_of_the_daemon_with_every_byte_once() {
    let mut world = with_agent().await;
    let workspace = workspace(&world, "one");
    let job = submit(&world, &[], IN_PARTS);
    let mut logs = begun(&world, &["jobs", "logs", "-f", &job]);
    let mut merged = begun(&world, &["jobs", "logs", "-f", "--merged", &job]);
    let wait = begun(&world, &["jobs", "wait", &job]);
    let mut out = BufReader::new(logs.stdout.take().expect("stdout"));
    let mut both = BufReader::new(merged.stdout.take().expect("stdout"));
    let (mut seen, mut seen_both) = (String::new(), String::new());
    for part in 1..=3 {
        seen += &read_to(&mut out, &format!("part {part}"));
        seen_both += &read_to(&mut both, &format!("err {part}"));
        if part == 1 {
            // A command that finds no daemon at its start does not wait for one; the one that prints has found it.
            let found = || (sockets(&wait) >= sockets(&merged)).then_some(());
            until("the one that waits has a connection, too", found);
        }
        world.lodge.kill9();
        // What is written without a daemon is not lost either.
        fs::write(workspace.join(format!("go{part}")), "").expect("a file");
        world.lodge.start();
    }
    let waited = wait.wait_with_output().expect("an end");
    assert_eq!(waited.status.code(), Some(5), "{}", String::from_utf8_lossy(&waited.stderr));
    out.read_to_string(&mut seen).expect("output");
    both.read_to_string(&mut seen_both).expect("output");
    assert!(logs.wait().expect("an end").success() && merged.wait().expect("an end").success());
    assert_eq!(seen, parts());
    let errs: String = (1..=3).map(|part| format!("err {part}\n")).collect();
    let (of_err, of_out): (Vec<&str>, Vec<&str>) =
        seen_both.lines().partition(|line| line.starts_with("err"));
    assert_eq!(of_out.join("\n") + "\n", parts());
    assert_eq!(of_err.join("\n") + "\n", errs);
    let mut told = String::new();
    logs.stderr.take().expect("stderr").read_to_string(&mut told).expect("output");
    let words: String =
        told.lines().filter(|line| line.starts_with("err")).map(|line| format!("{line}\n")).collect();
    assert_eq!(words, errs, "{told}");
    assert!(told.contains("connection to the daemon lost; reconnecting"), "{told}");
    // And afterwards it is all still there.
    assert_eq!(world.lodge.cli_ok(["jobs", "logs", &job]), parts());
}

#[tokio::test]
async fn an_interrupted_client_leaves_the_job_alone() {
    let world = with_agent().await;
    let workspace = workspace(&world, "one");
    let script = "echo begun; until test -e go; do sleep 0.02; done";
    let mut run = begun(&world, &["jobs", "run", "one", "--wait", "--", "sh", "-c", script]);
    let mut out = BufReader::new(run.stdout.take().expect("stdout"));
    read_to(&mut out, "begun");
    kill(run.id() as i32, libc::SIGINT);
    assert_eq!(run.wait().expect("an end").code(), Some(130));
    let job = world.lodge.cli_ok(["jobs", "ls", "-q"]).trim().to_owned();
    let mut told = String::new();
    run.stderr.take().expect("stderr").read_to_string(&mut told).expect("output");
    assert!(told.contains(&format!("the job is still running: lodge jobs logs -f {job}")), "{told}");
    fs::write(workspace.join("go"), "").expect("a file");
    assert_eq!(world.cli(&["jobs", "wait", &job]).0, 0);
}

#[tokio::test]
async fn a_stop_cancels_jobs_and_says_so_or_waits_or_is_refused() {
    let world = with_agent().await;
    let workspace = workspace(&world, "one");
    let job = submit(&world, &[], "sleep 600");
    is(&world, &job, "running");
    let (code, out, err) = world.cli(&["stop", "one", "--jobs", "refuse"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("agent `one`") && err.contains("`--jobs wait` waits for them"), "{err}");
    is(&world, &job, "running");
    let (code, out, err) = world.cli(&["restart", "one"]);
    assert_eq!((code, out.as_str()), (0, "one\n"), "{err}");
    assert!(err.contains(&format!("cancelled 1 job: {job} (sh -c \"sleep 600\")")), "{err}");
    is(&world, &job, "cancelled");
    // Waiting takes as long as the job does.
    let job = submit(&world, &[], "until test -e go; do sleep 0.02; done; exit 4");
    is(&world, &job, "running");
    let stop = begun(&world, &["stop", "one", "--jobs", "wait"]);
    is(&world, &job, "running");
    fs::write(workspace.join("go"), "").expect("a file");
    let stopped = stop.wait_with_output().expect("an end");
    assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    assert_eq!(is(&world, &job, "done")["exit_code"], 4);
    assert_eq!(world.cli_json(&["--json", "inspect", "one"])["status"], "stopped");
}

#[tokio::test]
async fn however_many_jobs_wait_the_one_that_a_restart_costs_is_reported() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_MAX_JOBS", "1");
    world.lodge.start();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let asked = json!({"agent": "one", "bin": "sleep", "args": ["600"]});
    let job = api.ok("job/submit", asked.clone()).await["id"].as_str().expect("an id").to_owned();
    for _ in 0..300 {
        api.ok("job/submit", asked.clone()).await;
    }
    let (code, out, err) = world.cli(&["restart", "one"]);
    assert_eq!((code, out.as_str()), (0, "one\n"), "{err}");
    assert!(err.contains(&format!("cancelled 1 job: {job} (sleep 600)")), "{err}");
    let (code, _, err) = world.cli(&["stop", "one"]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("cancelled 300 jobs: "), "{err}");
}

#[tokio::test]
async fn at_a_terminal_a_stop_asks_what_becomes_of_jobs() {
    let world = with_agent().await;
    let workspace = workspace(&world, "one");
    let job = submit(&world, &[], "until test -e go; do sleep 0.02; done");
    is(&world, &job, "running");
    let mut typing = TerminalSession::at(world.lodge.cli_command(["stop", "one"]));
    typing.see("one has 1 job:");
    typing.see(&job);
    typing.see("[c]ancel them, [w]ait for them, or [n]o");
    typing.type_in("perhaps\n");
    typing.see("[c]ancel them");
    typing.type_in("n\n");
    typing.see("one was not stopped");
    assert_eq!(typing.end(), 1);
    is(&world, &job, "running");
    let mut typing = TerminalSession::at(world.lodge.cli_command(["restart", "one"]));
    typing.see("[w]ait for them");
    typing.type_in("w\n");
    typing.see(&format!("waits for {job}"));
    fs::write(workspace.join("go"), "").expect("a file");
    assert_eq!(typing.end(), 0);
    assert_eq!(is(&world, &job, "done")["exit_code"], 0);
    let job = submit(&world, &[], "sleep 600");
    is(&world, &job, "running");
    let mut typing = TerminalSession::at(world.lodge.cli_command(["stop", "one"]));
    typing.see("[c]ancel them");
    typing.type_in("c\n");
    typing.see("cancelled 1 job");
    assert_eq!(typing.end(), 0);
    is(&world, &job, "cancelled");
    // Without jobs there is no question.
    world.lodge.cli_ok(["start", "one"]);
    assert_eq!(TerminalSession::at(world.lodge.cli_command(["stop", "one"])).end(), 0);
}

#[tokio::test]
async fn a_chat_lists_shows_and_cancels_the_jobs_of_its_session_and_tells_their_ends() {
    let world = with_agent().await;
    let workspace = workspace(&world, "one");
    let mut api = world.checked().await;
    api.answer("one", "s", "[[reply:hello]]").await;
    let other = submit(&world, &["-s", "other"], "true");
    let waits = "i=0; while [ $i -lt 30 ]; do echo \"line $i\"; i=$((i+1)); done; until test -e go; do sleep 0.02; done";
    let first = submit(&world, &["-s", "s"], waits);
    is(&world, &first, "running");
    let mut typing = TerminalSession::at(world.lodge.cli_command(["chat", "one", "-s", "s"]));
    typing.see("hello");
    typing.type_in("/jobs\r");
    typing.see(&first);
    typing.see("running");
    typing.see("› ");
    typing.type_in("/jobs weird\r");
    typing.see("pending, running, done, error, cancelled");
    until("its lines are there", || {
        (world.lodge.cli_ok(["jobs", "logs", &first]).lines().count() == 30).then_some(())
    });
    typing.type_in(&format!("/job {first}\r"));
    typing.see("running for");
    typing.see("stdout:\r\n  line 20\r\n");
    typing.see("line 29\r\n");
    typing.type_in(&format!("/cancel {other}\r"));
    typing.see("is not a job of this session");
    typing.type_in("/job\r");
    typing.see("write it as `/job ID`");
    // Its end is shown while the user types, and the typed text is kept.
    typing.type_in("half a li");
    typing.see("half a li");
    fs::write(workspace.join("go"), "").expect("a file");
    typing.see(&format!("{first} sh -c"));
    typing.see("exit 0 after");
    typing.see("› half a li");
    typing.type_in("\u{15}");
    let second = submit(&world, &["-s", "s"], "sleep 600");
    is(&world, &second, "running");
    typing.type_in(&format!("/cancel {second}\r"));
    typing.see("cancelled");
    is(&world, &second, "cancelled");
    typing.type_in("/jobs done\r");
    typing.see(&first);
    typing.type_in("\u{4}");
    typing.see("to continue");
    assert_eq!(typing.end(), 0);
}

#[tokio::test]
async fn the_example_starts_a_job_talks_on_and_hears_of_its_end() {
    let world = ApiWorld::new();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/background");
    world.lodge.cli_ok(["run", example.to_str().expect("UTF-8"), "--name", "builder"]);
    let say = |text: &str| world.lodge.cli_ok(["prompt", "builder", "-s", "demo", text]);
    let answer = say("please build it");
    let job = world.lodge.cli_ok(["jobs", "ls", "-q", "--session", "demo"]).trim().to_owned();
    assert!(job.starts_with("job_") && answer.contains(&job), "{answer}");
    // However long the next turn takes, the job is at work then.
    let keeper = world.cli_json(&["--json", "inspect", "builder"])["pid"].as_u64().expect("a pid");
    let keeper = i32::try_from(keeper).expect("a pid");
    let is_job = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("/opt/bins/sh\0-c\0for part in")
    };
    let shell = until("the job runs", || family(keeper).into_iter().find(is_job));
    kill(shell, libc::SIGSTOP);
    let between = say("how are you?");
    kill(shell, libc::SIGCONT);
    assert!(between.contains("“how are you?”") && !between.contains("job_"), "{between}");
    assert_eq!(world.cli(&["jobs", "wait", &job]).0, 0);
    assert!(world.lodge.cli_ok(["jobs", "logs", &job]).ends_with("part 5 of 5\nbuilt\n"));
    let told = say("what is new?");
    assert!(told.contains(&job) && told.contains("exit code 0") && told.contains("what is new?"), "{told}");
    // Once.
    assert!(!say("and now?").contains(&job));
}

#[tokio::test]
async fn the_calls_of_a_model_to_its_jobs_are_shown_as_one_would_type_them() {
    let world = with_agent().await;
    let submit = json!({"bin": "sh", "args": ["-c", "echo built"]});
    let text = format!("[[tool:job_submit|{submit}]] [[reply:started]]");
    let watched = shown(&world, &["prompt", "one", "-s", "s", &text], Some("1"));
    let job = world.lodge.cli_ok(["jobs", "ls", "-q"]).trim().to_owned();
    assert!(watched.contains("⚙ job_submit sh -c \"echo built\""), "{watched}");
    assert!(watched.contains(&format!("→ job_submit: {job}")), "{watched}");
    is(&world, &job, "done");
    let text = format!("[[tool:job_watch|{}]] [[reply:ok]]", json!({"job_id": job}));
    let watched = shown(&world, &["prompt", "one", "-s", "s", &text], Some("1"));
    assert!(watched.contains(&format!("⚙ job_watch {job}")), "{watched}");
}
