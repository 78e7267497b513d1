//! The command line as scripts see it: codes, streams, shapes.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use lodge_testkit::lodge::Lodge;
use serde_json::{Value, json};

use crate::world::{AGENTFILE, ApiWorld, id, kill, sh, told};

const AGENT_FIELDS: &str = "id name image image_digest model status failure_reason failure_detail lineage context_state \
    liveness last_heartbeat_at pid started_at created_at labels mounts sandbox isolation";
const SESSION_FIELDS: &str =
    "id agent sender turns last_active context_state context_used_pct generation epoch";
const TURN_FIELDS: &str = "id session agent status text steps usage";
const STEP_FIELDS: &str = "id kind name status started_at ended_at";
const EVENT_FIELDS: &str = "seq stream stream_seq at kind data";
const INFO_FIELDS: &str = "version epoch executor socket http_addr data_dir pid agents isolation config";

#[track_caller]
fn has(value: &Value, fields: &str) {
    for field in fields.split_whitespace() {
        assert!(value.get(field).is_some(), "`{field}` is missing: {value:#}");
    }
}

#[tokio::test]
async fn json_has_an_array_for_listings_an_object_for_one_thing_and_lines_for_streams() {
    let world = ApiWorld::new();
    let dir = world.lodge.agent_dir("one", AGENTFILE, &[]);
    let agent = world.cli_json(&[
        "--json",
        "run",
        dir.to_str().expect("UTF-8"),
        "--name",
        "one",
        "--label",
        "team=a",
    ]);
    has(&agent, AGENT_FIELDS);
    let turn =
        world.cli_json(&["--json", "prompt", "one", "-s", "s", &format!("{} [[reply:hi]]", sh("echo x"))]);
    has(&turn, TURN_FIELDS);
    has(&turn["usage"], "input_tokens output_tokens cost_usd");
    assert_eq!(
        (&turn["status"], &turn["text"], turn["steps"].as_array().expect("steps").len()),
        (&json!("done"), &json!("hi"), 3)
    );
    turn["steps"].as_array().expect("steps").iter().for_each(|step| has(step, STEP_FIELDS));
    let list = world.cli_json(&["--json", "ps"]);
    has(&list[0], AGENT_FIELDS);
    assert_eq!(world.cli_json(&["--json", "ps", "--label", "team=b"]), json!([]));
    has(
        &world.cli_json(&["--json", "agent", "inspect", "one"]),
        &format!("{AGENT_FIELDS} root tools agentfile"),
    );
    let sessions = world.cli_json(&["--json", "session", "ls"]);
    has(&sessions[0], SESSION_FIELDS);
    let shown = world.cli_json(&["--json", "session", "show", "s"]);
    has(&shown, &format!("{SESSION_FIELDS} messages turn_list"));
    assert_eq!((&shown["turns"], &sessions[0]["turns"]), (&json!(1), &json!(1)));
    assert_eq!(shown["turn_list"].as_array().expect("turns").len(), 1);
    assert_eq!(shown["messages"].as_array().expect("messages").len(), 4);
    has(&world.cli_json(&["--json", "info"]), INFO_FIELDS);
    has(&world.cli_json(&["--json", "provider", "ls"])[0], "name kind base_url api_key models");
    has(&world.cli_json(&["--json", "agent", "logs", "one"]), "path text");
    let lines = world.lodge.cli_ok(["--json", "events"]);
    let events: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    events.iter().for_each(|event| has(event, EVENT_FIELDS));
    for (place, event) in events.iter().enumerate() {
        assert_eq!(event["seq"], json!(place + 1));
        let at = event["at"].as_str().expect("a time");
        assert!(at.len() == 24 && at.ends_with('Z') && at.as_bytes()[19] == b'.', "{at}");
    }
    // An empty listing is an empty array, and an error says nothing on stdout.
    let (code, out, err) = world.cli(&["--json", "agent", "inspect", "nobody"]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert_eq!(world.cli_json(&["--json", "rm", "-f", "one"])["status"], "removed");
    assert_eq!(world.cli_json(&["--json", "ps", "-a"]), json!([]));
}

#[tokio::test]
async fn references_are_an_id_a_name_or_a_unique_beginning_of_an_id() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let (one, two) = (world.agent(&mut api, "one").await, world.agent(&mut api, "two").await);
    assert_eq!(world.lodge.cli_ok(["ps", "-q"]), format!("{one}\n{two}\n"));
    let shared = one.bytes().zip(two.bytes()).take_while(|(a, b)| a == b).count();
    for reference in [one.as_str(), "one", &one[..=shared], &one[..one.len() - 1]] {
        assert_eq!(world.cli_json(&["--json", "inspect", reference])["id"], json!(one), "{reference}");
    }
    let (code, _, err) = world.cli(&["inspect", &one[..shared]]);
    assert_eq!(code, 1);
    assert!(err.starts_with("error: several agents start with") && err.contains(&two), "{err}");
    for reference in ["agt_", "ne", "On", "agt_zzzz"] {
        assert_eq!(world.cli(&["inspect", reference]).0, 1, "{reference}");
    }
}

#[tokio::test]
async fn errors_have_one_form_and_usage_has_its_own_code() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let (code, out, err) = world.cli(&["rm", "one"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert_eq!(err, "error: agent `one` is ready\n\nhint: stop it first, or run `lodge rm -f one`\n");
    let (code, _, err) = world.cli(&["inspect", "nobody"]);
    assert_eq!(
        (code, err.as_str()),
        (1, "error: no agent `nobody`\n\nhint: `lodge ps -a` lists all agents\n")
    );
    for usage in [
        vec![],
        vec!["dance"],
        vec!["prompt"],
        vec!["ps", "--label", "x"],
        vec!["events", "--since", "x"],
        vec!["run"],
    ] {
        let (code, out, err) = world.cli(&usage);
        assert_eq!((code, out.as_str()), (2, ""), "{usage:?}: {err}");
    }
    for fine in [vec!["--help"], vec!["--version"], vec!["run", "--help"], vec!["completions", "bash"]] {
        let (code, out, err) = world.cli(&fine);
        assert!(code == 0 && !out.is_empty() && err.is_empty(), "{fine:?}: {err}");
    }
    let (code, _, err) = world.cli(&["run", "/no/such/dir"]);
    assert!(code == 1 && err.starts_with("error: ") && err.contains("\nhint: "), "{err}");
    // Of several, each failure is reported and the rest is done.
    let (code, out, err) = world.cli(&["stop", "nobody", "one"]);
    assert_eq!((code, out.as_str()), (1, "one\n"), "{err}");
    assert!(err.contains("error: no agent `nobody`"), "{err}");
}

#[tokio::test]
async fn a_prompt_comes_from_words_from_stdin_or_from_a_dash() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    assert_eq!(world.lodge.cli_ok(["prompt", "one", "[[reply:a", "b]]"]), "a b\n");
    for args in [vec!["prompt", "one"], vec!["prompt", "one", "-"]] {
        let mut child = world
            .lodge
            .cli_command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("lodge");
        child.stdin.take().expect("stdin").write_all(b"[[reply:piped]]\n").expect("a prompt");
        let (code, out, err) = told(&child.wait_with_output().expect("an end"));
        assert_eq!((code, out.as_str()), (0, "piped\n"), "{err}");
    }
    let messages = api.ok("session/list", json!({})).await;
    assert_eq!(messages["sessions"].as_array().expect("sessions").len(), 3);
    // The line end that `echo` adds is not part of it.
    let session = id(&messages["sessions"][0]);
    let text = api.ok("session/messages", json!({"session": session})).await["messages"][0]["text"].clone();
    assert_eq!(text, "[[reply:piped]]");
    let (code, _, err) = world.cli(&["prompt", "one", " "]);
    assert!(code == 2 && err.contains("the text is empty") && err.contains("\nhint: "), "{code} {err}");
    let turn = world.lodge.cli_ok(["prompt", "one", "--detach", "[[reply:later]]"]);
    assert!(turn.starts_with("trn_"), "{turn}");
    assert_eq!(api.ended(turn.trim()).await["text"], "later");
    world.lodge.cli_ok(["prompt", "one", "--sender", "ann", "[[reply:x]]"]);
    assert_eq!(world.cli(&["prompt", "one", "--sender", "ann", "-s", "x", "hi"]).0, 2);
}

#[tokio::test]
async fn a_conversation_is_shown_with_its_tools() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    world.lodge.cli_ok([
        "prompt",
        "one",
        "-s",
        "talk",
        &format!("hello {} [[reply:bye]]", sh("echo from the tool")),
    ]);
    let shown = world.lodge.cli_ok(["session", "show", "talk"]);
    let places: Vec<usize> = ["hello", "⚙ sh -c", "from the tool", "bye"]
        .iter()
        .map(|part| shown.rfind(part).unwrap_or_else(|| panic!("`{part}` is missing: {shown}")))
        .collect();
    assert!(places[1] < places[2] && places[2] < places[3], "{shown}");
    let listed = world.lodge.cli_ok(["session", "ls"]);
    assert!(listed.starts_with("ID") && listed.contains("talk"), "{listed}");
    assert_eq!(world.lodge.cli_ok(["-q", "session", "ls"]), "talk\n");
    let table = world.lodge.cli_ok(["ps"]);
    let head: Vec<&str> = table.lines().next().expect("a head").split_whitespace().collect();
    assert_eq!(head, ["ID", "NAME", "IMAGE", "MODEL", "STATUS", "CONTEXT", "CREATED"]);
    assert!(!table.contains('\x1b'));
}

#[tokio::test]
async fn events_are_listed_and_followed_from_a_sequence() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let count = api.log().await.len();
    let since = (count - 2).to_string();
    assert_eq!(world.lodge.cli_ok(["events", "--since", &since]).lines().count(), 2);
    let args = ["--json", "events", "-f", "--since", &since];
    let mut child = world.lodge.cli_command(args).stdout(Stdio::piped()).spawn().expect("lodge");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
    let mut next =
        || serde_json::from_str::<Value>(&lines.next().expect("a line").expect("text")).expect("JSON");
    assert_eq!((next()["seq"].clone(), next()["seq"].clone()), (json!(count - 1), json!(count)));
    api.answer(&agent, "s", "[[reply:x]]").await;
    let mut seen = count;
    loop {
        let event = next();
        seen += 1;
        assert_eq!(event["seq"], json!(seen));
        if event["kind"] == "turn.finished" {
            break;
        }
    }
    // Ctrl-C is an interruption.
    kill(i32::try_from(child.id()).expect("a pid"), libc::SIGINT);
    assert_eq!(child.wait().expect("an end").code(), Some(130));
    let (code, _, err) = world.cli(&["events", "--since", "999999"]);
    assert!(code == 1 && err.contains("ahead of the log"), "{err}");
    let only = world.lodge.cli_ok(["--json", "events", "--kind", "agent", "--agent", "one"]);
    assert!(only.lines().all(|line| line.contains("\"kind\":\"agent.")), "{only}");
}

#[tokio::test]
async fn an_interrupted_prompt_exits_with_130_and_its_turn_goes_on() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let go = world.lodge.dir().join("go");
    let text = format!("[[chunks:60]] [[hold-after:30:{}]]", go.display());
    let mut child = world
        .lodge
        .cli_command(["prompt", "one", "-s", "s", &text])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("lodge");
    // The detach message appears only after the turn was accepted: wait for its first output.
    let mut first = [0; 5];
    child.stdout.as_mut().expect("a pipe").read_exact(&mut first).expect("the beginning of an answer");
    assert_eq!(api.ok("agent/get", json!({"agent": agent})).await["status"], "working");
    kill(i32::try_from(child.id()).expect("a pid"), libc::SIGINT);
    let (code, _, err) = told(&child.wait_with_output().expect("an end"));
    assert_eq!(code, 130, "{err}");
    assert!(err.contains("the turn is still running: lodge turn attach trn_"), "{err}");
    std::fs::write(go, "").expect("a file");
    let over = |page: &Value| page["turns"][0]["status"] == "done";
    api.until("turn/list", json!({"session": "s"}), over).await;
}

#[tokio::test]
async fn a_closed_pipe_is_no_failure() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    api.answer(&agent, "s", "[[big:300000]]").await;
    for args in
        [vec!["session", "show", "s"], vec!["--json", "events"], vec!["prompt", "one", "[[big:300000]]"]]
    {
        let mut child = world
            .lodge
            .cli_command(&args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("lodge");
        let mut first = [0; 16];
        let mut stdout = child.stdout.take().expect("stdout");
        stdout.read_exact(&mut first).expect("a beginning");
        drop(stdout);
        let (code, _, err) = told(&child.wait_with_output().expect("an end"));
        assert_eq!((code, err.as_str()), (0, ""), "{args:?}");
    }
}

#[test]
fn without_a_daemon_the_exit_code_is_three_and_nothing_is_made() {
    let lodge = Lodge::new();
    for args in [
        vec!["ps"],
        vec!["--no-autostart", "info"],
        vec!["shutdown"],
        vec!["--daemon", "http://127.0.0.1:9", "ps"],
    ] {
        let mut command = lodge.cli_command(&args);
        if args.contains(&"--no-autostart") {
            command.env_remove("LODGE_NO_AUTOSTART");
        }
        let (code, out, err) = told(&command.output().expect("lodge runs"));
        assert_eq!((code, out.as_str()), (3, ""), "{args:?}: {err}");
        assert!(err.starts_with("error: no daemon answers at "), "{err}");
    }
    assert!(!lodge.home().exists());
    let (code, _, err) = told(&lodge.cli(["--daemon", "nonsense", "ps"]));
    assert!(code == 2 && err.contains("hint: write it as `http://127.0.0.1:5500`"), "{err}");
}
