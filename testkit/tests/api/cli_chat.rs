//! `lodge chat`, typed into a real terminal and over a pipe.

use std::io::Write;
use std::process::Stdio;

use lodge_testkit::lodge::{PATIENCE, pause, until};
use serde_json::json;

use crate::terminal::{TerminalSession, terminal};
use crate::world::{ApiWorld, sh, told};

#[tokio::test]
async fn a_conversation_at_a_terminal_can_be_interrupted_and_taken_up_again() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "ada").await;
    let mut typing = TerminalSession::at(world.lodge.cli_command(["chat", "ada", "-s", "s1"]));
    typing.see("session s1 starts with your first line");
    typing.type_in("/help\r");
    typing.see("/session new");
    typing.see("› ");
    typing.type_in("/nope\r");
    typing.see("there is no command `/nope`");
    // The cursor goes back and a word is put in the middle.
    typing.type_in("[[reply:]]\u{1b}[D\u{1b}[Done two\r");
    typing.see("one two");
    typing.see("one two\r\n");
    typing.see("› ");
    // Escape ends the turn, not the chat.
    typing.type_in(&format!("{} [[reply:never]]\r", sh("touch began; sleep 600")));
    typing.see("⚙ sh -c");
    let began = world.lodge.home().join("agents").join(&agent).join("workspace/began");
    let deadline = std::time::Instant::now() + PATIENCE;
    while !began.exists() {
        assert!(std::time::Instant::now() < deadline, "the tool does not run");
        pause();
    }
    typing.type_in("\u{1b}");
    typing.see("[interrupted] /retry continues it");
    typing.see("› ");
    // An earlier line is fetched back, emptied, and another sent.
    typing.type_in("\u{1b}[A\u{3}[[reply:still here]]\r");
    typing.see("still here\r\n");
    typing.type_in("\u{4}");
    typing.see("to continue: lodge chat ada -s s1");
    assert_eq!(typing.end(), 0);
    let turns = api.ok("turn/list", json!({"session": "s1"})).await;
    let statuses: Vec<&str> =
        turns["turns"].as_array().unwrap().iter().map(|turn| turn["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["done", "interrupted", "done"]);
    // Taken up again it shows where it stood.
    let mut typing = TerminalSession::at(world.lodge.cli_command(["chat", "ada", "--session", "s1"]));
    typing.see("3 turns so far");
    typing.see("still here");
    typing.type_in("/session new\r");
    typing.see("your next line starts a new session");
    typing.type_in("/session\r");
    typing.see("your next line starts a new session");
    typing.type_in("/session s1\r");
    typing.see("3 turns so far");
    typing.type_in("/session has space\r");
    typing.see("`has space` cannot be a session");
    typing.see("still in session s1");
    typing.type_in("/quit\r");
    assert_eq!(typing.end(), 0);
}

#[tokio::test]
async fn a_session_of_another_agent_is_refused_with_the_name_of_that_agent() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "ada").await;
    world.agent(&mut api, "bob").await;
    api.answer("ada", "s1", "[[reply:hello]]").await;
    let mut typing = TerminalSession::at(world.lodge.cli_command(["chat", "bob", "-s", "s1"]));
    typing.see("session `s1` belongs to the agent `ada`");
    typing.see("`lodge chat ada -s s1` continues it");
    assert_eq!(typing.end(), 1);
}

#[tokio::test]
async fn a_turn_can_be_left_and_lines_that_are_typed_meanwhile_are_sent_after_it() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "ada").await;
    let workspace = world.lodge.home().join("agents").join(&agent).join("workspace");
    let waits = format!("{} [[reply:first]]", sh("touch began; until test -e go; do sleep 0.05; done"));
    let began = || until("the tool runs", || workspace.join("began").exists().then_some(()));
    let mut typing = TerminalSession::at(world.lodge.cli_command(["chat", "ada", "-s", "q"]));
    typing.see("starts with your first line");
    typing.type_in(&format!("{waits}\r"));
    typing.see("⚙ sh -c");
    began();
    typing.type_in("[[reply:second]]\r");
    typing.see("queued: [[reply:second]]");
    typing.type_in("[[reply:third]]\r");
    typing.see("queued: [[reply:third]]");
    typing.type_in("unsent");
    std::fs::write(workspace.join("go"), "").expect("a file");
    typing.see("  → sh: exit 0, 0 bytes");
    for answer in ["first\r\n", "second\r\n", "third\r\n"] {
        typing.see(answer);
    }
    typing.see("› unsent");
    typing.type_in("\u{15}\u{4}");
    assert_eq!(typing.end(), 0);
    // Both ways to leave are immediate, and the turn continues.
    for (session, keys) in [("q", "\u{4}"), ("q2", "/quit\r")] {
        for file in ["began", "go"] {
            std::fs::remove_file(workspace.join(file)).expect("a file");
        }
        let mut typing = TerminalSession::at(world.lodge.cli_command(["chat", "ada", "-s", session]));
        typing.see("› ");
        typing.type_in(&format!("{waits}\r"));
        typing.see("⚙ sh -c");
        began();
        typing.type_in("never sent\r");
        typing.see("queued: never sent");
        typing.type_in(keys);
        typing.see("not sent: 1 queued line");
        typing.see(&format!("the turn is still running: lodge chat ada -s {session}"));
        assert_eq!(typing.end(), 0);
        std::fs::write(workspace.join("go"), "").expect("a file");
        api.until("session/get", json!({"session": session}), |view| view["running"].is_null()).await;
    }
    let turns = api.ok("turn/list", json!({"session": "q"})).await;
    let texts: Vec<&str> =
        turns["turns"].as_array().unwrap().iter().map(|turn| turn["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["first", "second", "third", "first"]);
}

#[tokio::test]
async fn a_conversation_with_an_agent_that_does_not_run_begins_with_how_to_start_it() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "ada").await;
    world.lodge.cli_ok(["stop", "ada"]);
    let mut typing = TerminalSession::at(world.lodge.cli_command(["chat", "ada"]));
    typing.see("ada is not running (stopped): `lodge start ada` starts it");
    typing.type_in("\u{4}");
    assert_eq!(typing.end(), 0);
}

#[tokio::test]
async fn run_without_a_prompt_at_a_terminal_is_a_conversation() {
    let world = ApiWorld::new();
    let dir = world.lodge.agent_dir("talker", crate::world::AGENTFILE, &[]);
    let mut command = world.lodge.cli_command(["run"]);
    command.arg(dir);
    let mut typing = TerminalSession::at(command);
    typing.see("/help lists commands");
    typing.type_in("[[reply:at your service]]\r");
    typing.see("at your service\r\n");
    typing.type_in("\u{4}");
    assert_eq!(typing.end(), 0);
}

#[tokio::test]
async fn lines_of_a_pipe_are_turns_of_one_session_and_a_failed_one_is_reported() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "ada").await;
    let piped = |args: &[&str], lines: &str| {
        let mut command = world.lodge.cli_command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("lodge");
        child.stdin.take().unwrap().write_all(lines.as_bytes()).expect("a pipe");
        told(&child.wait_with_output().expect("an end"))
    };
    let (code, out, err) =
        piped(&["chat", "ada", "-s", "p"], "[[reply:one]]\n\n//[[reply:two]]\n/quit\n[[reply:x]]\n");
    assert_eq!((code, out.as_str()), (0, "one\ntwo\n"), "{err}");
    let messages = api.ok("session/messages", json!({"session": "p"})).await;
    assert_eq!(messages["messages"][2]["text"], "/[[reply:two]]");
    let (code, out, err) = piped(&["chat", "ada"], "[[status:400]]\n[[reply:after]]\n");
    assert_eq!((code, out.as_str()), (1, "after\n"), "{err}");
    assert!(err.contains("error: the turn failed"), "{err}");
    let (code, out, _) = piped(&["chat", "ada", "--json"], "[[reply:a]]\n[[reply:b]]\n");
    let texts: Vec<serde_json::Value> = out
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON Lines")["text"].clone())
        .collect();
    assert_eq!((code, texts), (0, vec![json!("a"), json!("b")]));
    let (code, _, err) = piped(&["chat", "nobody"], "");
    assert_eq!(code, 1);
    assert!(err.contains("no agent `nobody`"), "{err}");
}

#[tokio::test]
async fn a_terminal_without_a_screen_for_the_line_is_read_line_by_line() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "ada").await;
    let mut typing = TerminalSession::at(world.lodge.cli_command(["chat", "ada", "--json"]));
    typing.type_in("[[reply:an object]]\n");
    typing.see(r#""text":"an object""#);
    // The end of what is typed, as a terminal that edits its own lines has it.
    typing.type_in("\u{4}");
    assert_eq!(typing.end(), 0);
    // What goes into a file is the answer, without what is drawn around it.
    let (mut ours, theirs) = terminal();
    let mut command = world.lodge.cli_command(["chat", "ada", "-q"]);
    command.stdin(theirs).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("lodge");
    drop(command);
    ours.write_all(b"[[reply:plain]]\n\x04").expect("a terminal");
    let (code, out, err) = told(&child.wait_with_output().expect("an end"));
    assert_eq!((code, out.as_str()), (0, "plain\n"), "{err}");
}
