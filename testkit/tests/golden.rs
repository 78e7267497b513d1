//! The previous release's files: its state directory opens, its contents are complete, and its open work continues.
//!
//! `fixtures/golden/make` wrote them with that release's programs. They never change; a newer release gets golden
//! files of its own.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::fs;
use std::path::{Path, PathBuf};

use lodge_testkit::golden::{previous_lodged, unpack};
use lodge_testkit::lodge::{Lodge, bin, http, is_alive, rpc, until};
use serde_json::{Value, json};

/// A state directory and what its release printed of it. Root's agents have users of their own, so each kind of daemon
/// has its own directory.
struct GoldenState {
    state: &'static [u8],
    expected: &'static str,
}

const BY_ROOT: GoldenState = GoldenState {
    state: include_bytes!("../fixtures/golden/state-root.tar.gz"),
    expected: include_str!("../fixtures/golden/expected-root.json"),
};
const BY_USER: GoldenState = GoldenState {
    state: include_bytes!("../fixtures/golden/state-user.tar.gz"),
    expected: include_str!("../fixtures/golden/expected-user.json"),
};

fn golden() -> &'static GoldenState {
    // SAFETY: it cannot fail and touches no memory.
    if unsafe { libc::geteuid() } == 0 { &BY_ROOT } else { &BY_USER }
}

fn expected() -> Value {
    serde_json::from_str(golden().expected).expect("the fixture is JSON")
}

/// Fields that the previous release showed as constants. They are null until the use of the context is measured.
const NOT_MEASURED: [&str; 2] = ["context_state", "context_used_pct"];

/// Fields of a listing that depend on processes or on the time.
const OF_THE_MOMENT: [&str; 14] = [
    "deaths",
    "detail",
    "isolation",
    "last_active",
    "last_heartbeat_at",
    "limits",
    "limits_not_enforced",
    "liveness",
    "pid",
    "revivals",
    "started_at",
    "status",
    "turns",
    "last_turn",
];

/// The state directory as the previous release left it, for daemons of `lodged`.
fn furnished(lodged: PathBuf) -> Lodge {
    let lodge = Lodge::of(lodged);
    fs::create_dir(lodge.home()).expect("a directory can be made");
    unpack(golden().state, &lodge.home(), &["--strip-components=1"]);
    lodge
}

fn listing(lodge: &Lodge, args: &[&str]) -> Vec<Value> {
    let text = lodge.cli_ok(["--json"].iter().chain(args));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn exported(lodge: &Lodge, session: &str) -> Vec<Value> {
    let text = lodge.cli_ok(["session", "export", session]);
    text.lines().map(|line| serde_json::from_str(line).expect("JSON Lines")).collect()
}

/// Everything that was recorded is there as it was; keys may have been added.
fn check_kept(what: &str, before: &Value, now: &Value) {
    match (before, now) {
        (Value::Object(before), Value::Object(now)) => {
            for (key, value) in before.iter().filter(|(key, _)| !OF_THE_MOMENT.contains(&key.as_str())) {
                if NOT_MEASURED.contains(&key.as_str()) {
                    assert!(now.get(key).is_some_and(Value::is_null), "{what}.{key}");
                    continue;
                }
                check_kept(&format!("{what}.{key}"), value, now.get(key).unwrap_or(&Value::Null));
            }
        }
        (Value::Array(before), Value::Array(now)) => {
            assert_eq!(before.len(), now.len(), "{what}: {now:?}");
            before.iter().zip(now).for_each(|(before, now)| check_kept(what, before, now));
        }
        (before, now) => assert_eq!(before, now, "{what}"),
    }
}

fn check_listing(lodge: &Lodge, what: &str, key: &str, args: &[&str]) {
    let expected = expected();
    let now = listing(lodge, args);
    for before in expected[what].as_array().expect("a listing") {
        let same = now.iter().find(|found| found[key] == before[key]);
        let same = same.unwrap_or_else(|| panic!("{what}: {} is gone: {now:?}", before[key]));
        check_kept(&format!("{what} {}", before[key]), before, same);
    }
}

fn agent(lodge: &Lodge, name: &str) -> Value {
    serde_json::from_str(&lodge.cli_ok(["--json", "agent", "inspect", name])).expect("an agent")
}

fn call(lodge: &Lodge, method: &str, params: &Value) -> Value {
    let bearer = format!("Bearer {}", lodge.token());
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let (status, body) =
        http(&lodge.http_addr(), "POST", "/v1/rpc", &headers, &rpc(method, params)).expect("an answer");
    let answer: Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{status}: {body}"));
    assert!(answer["error"].is_null(), "{answer}");
    answer["result"].clone()
}

/// Waits for a turn's answer.
fn answer_of(lodge: &Lodge, turn: &str) -> String {
    until("the turn is done", || {
        let turn = call(lodge, "turn/get", &json!({"turn": turn}));
        (turn["status"] == "done").then(|| turn["text"].as_str().expect("a text").to_owned())
    })
}

fn is_ready(lodge: &Lodge, name: &str) -> Option<()> {
    ["ready", "working"].contains(&agent(lodge, name)["status"].as_str()?).then_some(())
}

fn workspace(lodge: &Lodge, name: &str) -> PathBuf {
    let id = agent(lodge, name)["id"].as_str().expect("an id").to_owned();
    lodge.home().join("agents").join(id).join("workspace")
}

fn effects(workspace: &Path, word: &str) -> usize {
    let effects = fs::read_to_string(workspace.join("effects.txt")).unwrap_or_default();
    effects.lines().filter(|line| *line == word).count()
}

/// Lets what waits in the workspace go on: it only has to be there.
fn open(workspace: &Path, gate: &str) {
    fs::write(workspace.join(gate), "").expect("the workspace can be written");
}

#[test]
fn a_state_directory_of_the_previous_release_opens_with_everything_that_was_recorded() {
    let mut lodge = furnished(bin("lodged"));
    lodge.start();
    check_listing(&lodge, "agents", "id", &["ps", "-a"]);
    check_listing(&lodge, "sessions", "id", &["session", "ls"]);
    check_listing(&lodge, "jobs", "id", &["jobs", "ls"]);
    check_listing(&lodge, "images", "digest", &["image", "ls"]);
    check_listing(&lodge, "bins", "digest", &["bin", "ls"]);
    check_listing(&lodge, "lineages", "id", &["lineage", "ls"]);
    let expected = expected();
    for (session, messages) in expected["messages"].as_object().expect("messages by session") {
        check_kept(session, messages, &json!(exported(&lodge, session)));
    }
    let job = expected["jobs"][0]["id"].as_str().expect("a job");
    assert_eq!(json!(lodge.cli_ok(["jobs", "logs", job])), expected["job_stdout"]);
    assert_eq!(agent(&lodge, "guest")["network"]["mode"], "host", "an existing agent keeps its network");
    assert_eq!(agent(&lodge, "packed")["network"]["mode"], "none");
}

#[test]
fn agents_of_the_previous_release_go_on_where_they_were() {
    let mut lodge = furnished(bin("lodged"));
    lodge.start();
    until("the agents come up", || is_ready(&lodge, "guest").and_then(|()| is_ready(&lodge, "packed")));
    // The turn and the job were interrupted with the whole machine: their progress is unknown.
    let turns = call(&lodge, "turn/list", &json!({"session": "gate"}));
    let answer = answer_of(&lodge, turns["turns"][0]["id"].as_str().expect("a turn"));
    assert!(answer.contains("unknown"), "{answer}");
    assert_eq!(effects(&workspace(&lodge, "guest"), "begun gated one"), 1, "the tool ran again");
    let lost = until("the job is over", || {
        listing(&lodge, &["jobs", "ls", "--agent", "guest"]).into_iter().find(|job| job["status"] == "error")
    });
    let lost = lost["id"].as_str().expect("an id").to_owned();
    assert_eq!(lodge.cli_ok(["jobs", "logs", &lost]), "first line\n");

    assert_eq!(lodge.cli_ok(["prompt", "guest", "-s", "diary", "a third note"]).trim(), "hello, note taken");
    let notes = lodge.cli_ok(["prompt", "guest", "-s", "diary", "recall"]);
    assert!(notes.contains("the first note") && notes.contains("a third note"), "{notes}");
    let said = lodge.cli_ok(["prompt", "packed", "-s", "voice", "again"]);
    assert!(said.contains("packed and proud"), "{said}");
    lodge.cli_ok(["start", "resting"]);
    assert_eq!(lodge.cli_ok(["prompt", "resting", "-s", "rest", "rested"]).trim(), "hello, note taken");
    lodge.cli_ok(["run", "guest:stable", "--name", "fresh", "--detach"]);
    assert_eq!(lodge.cli_ok(["prompt", "fresh", "hi"]).trim(), "hello, note taken");
}

#[test]
fn keepers_and_runtimes_of_the_previous_release_are_adopted_and_finish_what_they_run() {
    let mut lodge = furnished(bin("lodged"));
    let previous = previous_lodged(lodge.dir());
    let newer = lodge.replace_program(previous);
    lodge.start();
    until("the agents come up", || is_ready(&lodge, "guest").and_then(|()| is_ready(&lodge, "packed")));
    let workspace = workspace(&lodge, "guest");
    let turn = lodge.cli_ok(["prompt", "guest", "-s", "adopted", "--detach", "gated two"]).trim().to_owned();
    until("the tool runs", || (effects(&workspace, "begun gated two") == 1).then_some(()));
    lodge.cli_ok(["prompt", "guest", "-s", "yard", "build it"]);
    let job =
        until("the job runs", || listing(&lodge, &["jobs", "ls", "--status", "running"]).into_iter().next());
    let job = job["id"].as_str().expect("an id").to_owned();
    let mut keepers = lodge.keepers();
    keepers.sort_unstable();
    lodge.kill9();

    lodge.replace_program(newer);
    lodge.start();
    until("they are adopted", || is_ready(&lodge, "guest").and_then(|()| is_ready(&lodge, "packed")));
    let mut adopted = lodge.keepers();
    adopted.sort_unstable();
    assert_eq!(adopted, keepers, "a keeper was replaced");
    open(&workspace, "open-turn");
    let answer = answer_of(&lodge, &turn);
    assert!(answer.contains("passed"), "{answer}");
    assert_eq!((effects(&workspace, "begun gated two"), effects(&workspace, "ended gated two")), (1, 1));
    open(&workspace, "open-job");
    assert_eq!(lodge.cli(["jobs", "wait", &job]).status.code(), Some(3));
    assert_eq!(lodge.cli_ok(["jobs", "logs", &job]), "first line\nlast line\n");

    // In the old sandbox, with its old paths, and then in a new one.
    for note in ["in the old sandbox", "in the new one"] {
        assert_eq!(lodge.cli_ok(["prompt", "guest", "-s", "diary", note]).trim(), "hello, note taken");
        let said = lodge.cli_ok(["prompt", "packed", "-s", "voice", note]);
        assert!(said.contains("packed and proud"), "{said}");
        lodge.cli_ok(["restart", "guest", "packed"]);
        until("they come up", || is_ready(&lodge, "guest").and_then(|()| is_ready(&lodge, "packed")));
    }
    let notes = lodge.cli_ok(["prompt", "guest", "-s", "diary", "recall"]);
    assert!(notes.contains("in the old sandbox") && notes.contains("in the new one"), "{notes}");
    assert!(keepers.iter().all(|keeper| !is_alive(*keeper)), "an old keeper is still there");
}

#[test]
fn tokens_and_requests_of_the_previous_release_count_in_this_one_and_its_daemon_gets_no_token_over_tcp() {
    let mut lodge = furnished(bin("lodged"));
    let previous = previous_lodged(lodge.dir());
    let newer = lodge.replace_program(previous);
    lodge.start();
    // Its Unix socket is used as before.
    assert!(lodge.cli_ok(["info"]).contains(&lodge.http_addr()));
    let issued = [&["token", "issue"][..], &["token", "issue", "--agent", "guest"]];
    let tokens: Vec<String> = issued.iter().map(|args| lodge.cli_ok(*args).trim().to_owned()).collect();
    let request = json!({"name": "once", "request_id": "from before"});
    let first = call(&lodge, "token/issue", &request);
    let by_tcp = |lodge: &Lodge, token: &str| {
        let url = format!("http://{}", lodge.http_addr());
        let mut command = lodge.cli_command(["--daemon", url.as_str(), "-q", "ps", "-a"]);
        let output = command.env("LODGE_TOKEN", token).output().expect("lodge runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for token in &tokens {
        let (code, err) = by_tcp(&lodge, token);
        assert!(code == Some(1) && err.contains("the token was not sent"), "{code:?}: {err}");
    }
    lodge.kill9();

    lodge.replace_program(newer);
    lodge.start();
    for token in tokens.iter().chain([&lodge.token()]) {
        assert_eq!(by_tcp(&lodge, token), (Some(0), String::new()));
    }
    assert_eq!(
        call(&lodge, "token/issue", &request),
        first,
        "one token, although the caller has another name now"
    );
}
