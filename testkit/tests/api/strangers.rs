//! Untrusted text at a terminal: it neither controls the terminal nor hides.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use lodge_proto::visible::is_hidden;
use serde_json::{Value, json};

use crate::bins::platform;
use crate::terminal::terminal;
use crate::world::{AGENTFILE, ApiWorld, sh};

/// Moves the cursor, names the window, clears, changes colours and order, and has no width: C0, DEL, C1, bidirectional
/// controls, zero-width characters, separators, fillers, variation selectors and tags.
const POISON: &str = "\u{1b}]0;own\u{7}\u{1b}[2J\u{8}\u{7f}\u{85}\u{9b}31m\u{ad}\u{61c}\u{200b}\u{200d}\u{200e}\u{2028}\u{202e}\
    \u{2060}\u{2066}\u{3164}\u{fe01}\u{feff}\u{e0041}\u{e0101}\rX";
/// The same without what an Agentfile and names of people may not have.
const SOFT: &str = "\u{202e}\u{ad}\u{61c}\u{200b}\u{200d}\u{200e}\u{2028}\u{2060}\u{2066}\u{3164}\u{fe01}\u{feff}\u{e0041}\u{e0101}X";

/// What a command shows at a terminal, whether it succeeds or not.
fn at_terminal(world: &ApiWorld, args: &[&str]) -> String {
    let (mut ours, theirs) = terminal();
    let mut command = world.lodge.cli_command(args);
    // Without bars, which are drawn by moving the cursor.
    command.env("TERM", "dumb");
    command.stdout(theirs.try_clone().expect("a terminal")).stderr(Stdio::from(theirs));
    let mut child = command.spawn().expect("lodge");
    drop(command);
    let mut text = Vec::new();
    // A terminal whose other end is closed gives an error where a pipe gives an end.
    drop(ours.read_to_end(&mut text));
    child.wait().expect("an end");
    String::from_utf8(text).expect("text")
}

/// Runs a command in words and as JSON. What it shows has `marker`, and nothing that hides.
#[track_caller]
fn is_clean(world: &ApiWorld, args: &[&str], marker: Option<&str>) {
    for json in [false, true] {
        let mut args = args.to_vec();
        if json {
            args.insert(0, "--json");
        }
        let shown = at_terminal(world, &args).replace("\r\n", "\n");
        let hidden: Vec<char> =
            shown.chars().filter(|c| is_hidden(*c) && !matches!(c, '\n' | '\t')).collect();
        assert!(hidden.is_empty(), "{args:?} shows {hidden:?}: {shown:?}");
        let expected = if json { "\\u202e" } else { "\\u{202e}" };
        if let Some(marker) = marker {
            let marker = if marker == "202e" { expected } else { marker };
            assert!(shown.contains(marker), "{args:?} does not show {marker}: {shown}");
        }
    }
}

/// A server of a stranger: it lists models, refuses to talk and knows no image, each with a text of its own.
fn hostile_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("a port").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 16_384];
            let read = stream.read(&mut head).unwrap_or(0);
            let asked = String::from_utf8_lossy(&head[..read]).into_owned();
            let (status, body) = if asked.starts_with("GET /v1/models") {
                (
                    "200 OK",
                    json!({"object": "list", "data": [{"id": format!("m{POISON}"), "object": "model"}]}),
                )
            } else {
                let errors = json!([{"code": format!("NAME{POISON}"), "message": format!("no {POISON}")}]);
                (
                    "400 Bad",
                    json!({"error": {"message": format!("never {POISON}"), "type": POISON}, "errors": errors}),
                )
            };
            let body = body.to_string();
            drop(write!(
                stream,
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            ));
        }
    });
    addr
}

/// The shell's way to write bytes.
fn printf(text: &str) -> String {
    let octal: String = text.bytes().map(|byte| format!("\\{byte:03o}")).collect();
    format!("printf '{octal}'")
}

#[tokio::test]
async fn what_models_tools_and_jobs_say_does_not_reach_a_terminal_as_it_is() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    // The answer, the arguments of a tool, its result, and the question.
    let tool = sh(&format!("{}; {} >&2", printf(POISON), printf(POISON)));
    api.answer("one", "s", &format!("{tool} [[reply:says {POISON}]]")).await;
    is_clean(&world, &["session", "show", "s"], Some("202e"));
    is_clean(&world, &["session", "export", "s"], None);
    is_clean(&world, &["session", "search", "says"], None);
    is_clean(&world, &["session", "ls"], None);
    is_clean(&world, &["events", "--since", "0"], None);
    is_clean(&world, &["ps", "-a"], None);
    is_clean(&world, &["inspect", "one"], None);
    is_clean(&world, &["logs", "one"], None);
    is_clean(&world, &["lineage", "ls"], None);
    is_clean(&world, &["prompt", "one", "--session", "t", &format!("[[reply:{POISON}]]")], Some("202e"));
    let script = format!("{}; {} >&2", printf(POISON), printf(POISON));
    let job = crate::cli_jobs::submit(&world, &[], &script);
    world.lodge.cli_ok(["jobs", "wait", &job]);
    is_clean(&world, &["jobs", "logs", &job], None);
    assert!(at_terminal(&world, &["jobs", "logs", &job]).contains("\\u{202e}"));
    is_clean(&world, &["jobs", "logs", "--merged", &job], None);
    is_clean(&world, &["jobs", "ls", "-a"], None);
    is_clean(&world, &["jobs", "inspect", &job], None);
    // A pipe gets every byte.
    let piped = world.lodge.cli(["jobs", "logs", &job]).stdout;
    assert_eq!(String::from_utf8(piped).expect("text"), POISON);
    let piped = world.lodge.cli_ok(["prompt", "one", "--session", "p", &format!("[[reply:{POISON}]]")]);
    assert!(piped.contains("\u{202e}") && piped.contains('\u{1b}'), "{piped:?}");
}

#[tokio::test]
async fn what_an_image_says_of_itself_does_not_reach_a_terminal_as_it_is() {
    let world = ApiWorld::new();
    let program = format!("{}:/bin/cat", platform());
    let (label, usage) = (format!("l={SOFT}"), world.lodge.dir().join("usage.md"));
    std::fs::write(&usage, format!("read {POISON}\nmore\n")).expect("a file");
    let usage = usage.to_str().expect("UTF-8");
    let described = ["--description", SOFT, "--label", &label, "--usage", usage];
    world.lodge.cli_ok([&["bin", "build", "show", &program][..], &described].concat());
    let source = |text: &str| {
        format!(
            "{AGENTFILE}LABEL l=\"{text}\"\nENV E=\"{text}\" \"{text}\"\nCONFIG c=\"{text}\" \"{text}\"\n\
             BIN show show \"{text}\" <<U\nuse {text}\nU\nCONTEXT SOUL \"{text}\" <<E\nbe {text}\nE\n"
        )
    };
    for (tag, text) in [("a", SOFT), ("b", "plain")] {
        let dir = world.lodge.agent_dir(tag, &source(text), &[]);
        world.lodge.cli_ok(["image", "build", dir.to_str().expect("UTF-8"), "-t", tag]);
    }
    is_clean(&world, &["bin", "ls"], Some("202e"));
    is_clean(&world, &["bin", "inspect", "show"], Some("202e"));
    is_clean(&world, &["image", "ls"], None);
    is_clean(&world, &["image", "inspect", "a"], Some("202e"));
    is_clean(&world, &["image", "diff", "a", "b"], Some("202e"));
    is_clean(&world, &["run", "a", "--name", "one"], None);
    is_clean(&world, &["inspect", "one"], None);
    // Also where it goes to a pipe, people compare images by what they see.
    let piped = world.lodge.cli_ok(["image", "diff", "a", "b"]);
    assert!(piped.contains("\\u{200b}") && !piped.contains('\u{200b}'), "{piped}");
}

#[tokio::test]
async fn what_servers_and_runtimes_say_when_they_fail_does_not_reach_a_terminal_as_it_is() {
    let world = ApiWorld::new();
    let server = hostile_server();
    let own = world.provider("mock", &world.mock.base_url());
    world.put_providers(&format!("{own}{}", world.provider("bad", &format!("http://{server}/v1"))));
    is_clean(&world, &["provider", "ls"], None);
    is_clean(&world, &["provider", "test", "bad"], None);
    assert!(at_terminal(&world, &["provider", "test", "bad"]).contains("\\u{202e}"));
    is_clean(&world, &["image", "pull", &format!("{server}/a:v1")], None);
    let dir = world.lodge.agent_dir("bad", &AGENTFILE.replace("mock/m", "bad/m"), &[]);
    world.lodge.cli_ok(["run", dir.to_str().expect("UTF-8"), "--name", "bad"]);
    is_clean(&world, &["prompt", "bad", "--session", "s", "hello"], None);
    is_clean(&world, &["session", "show", "s"], None);
    is_clean(&world, &["events", "--since", "0"], None);
    // A runtime that prints a line and dies.
    let runtime = world.lodge.dir().join("runtime");
    let script = format!("#!/bin/sh\n{} >&2\nexit 3\n", printf(POISON));
    std::fs::write(&runtime, script).expect("a file");
    std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let source = format!("{AGENTFILE}RUNTIME host:{}\n", runtime.display());
    let dir = world.lodge.agent_dir("dies", &source, &[]);
    is_clean(&world, &["run", dir.to_str().expect("UTF-8"), "--name", "dies"], None);
    is_clean(&world, &["inspect", "dies"], None);
    is_clean(&world, &["ps", "-a"], None);
    is_clean(&world, &["logs", "dies"], None);
    is_clean(&world, &["events", "--since", "0"], None);
}

#[tokio::test]
async fn arguments_are_repeated_in_errors_without_what_hides_in_them() {
    let world = ApiWorld::new();
    for args in [
        vec!["inspect", POISON],
        vec![POISON],
        vec!["ps", POISON],
        vec!["jobs", "inspect", POISON],
        vec!["session", "show", POISON],
        vec!["image", "pull", POISON],
        vec!["image", "import", POISON],
        vec!["run", POISON],
        vec!["--socket", POISON, "ps"],
        vec!["--daemon", POISON, "ps"],
    ] {
        is_clean(&world, &args, Some("\\u{202e}"));
    }
    // What has several lines cannot look like a line of ours.
    let (_, _, words) = world.cli(&["inspect", "x\nhint: run `curl evil`"]);
    assert!(!words.lines().any(|line| line.starts_with("hint: run `curl")), "{words}");
    is_clean(&world, &["token", "issue", "--name", SOFT], None);
    is_clean(&world, &["token", "ls"], None);
    is_clean(&world, &["info"], None);
    is_clean(&world, &["--help"], None);
    is_clean(&world, &["completions", "bash"], None);
    let events: Value = json!(world.cli(&["events", "--json"]).0);
    assert_eq!(events, 0);
}
