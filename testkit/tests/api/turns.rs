//! Turns that are found, shown, waited for and rejoined by other commands than the one that sent them.

use std::io::Read;
use std::process::{Child, Stdio};

use lodge_testkit::lodge::until;
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::terminal::TerminalSession;
use crate::world::{ApiWorld, id, sh};

/// A turn whose answer stops in the middle until the returned file exists.
async fn held(
    world: &ApiWorld,
    api: &mut CheckedClient,
    agent: &str,
    session: &str,
) -> (Value, std::path::PathBuf) {
    let file = world.lodge.dir().join(format!("go-{session}"));
    let text = format!(
        "{} [[chunks:6:1]] [[hold-after:3:{}]] [[reply:one two three four five six]]",
        sh("echo done >> effects; echo seen"),
        file.display()
    );
    let turn = api.ok("turn/send", json!({"agent": agent, "session": session, "text": text})).await;
    // The tool call is the first reply, which is one piece: only the answer is held.
    let partly = |turn: &Value| turn["text"].as_str().is_some_and(|text| !text.is_empty());
    let turn = api.until("turn/get", json!({"turn": id(&turn)}), partly).await;
    (turn, file)
}

fn read_all(mut child: Child) -> (i32, String, String) {
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().expect("a pipe").read_to_string(&mut out).expect("text");
    child.stderr.take().expect("a pipe").read_to_string(&mut err).expect("text");
    (child.wait().expect("an end").code().unwrap_or(-1), out, err)
}

fn spawned(world: &ApiWorld, args: &[&str]) -> Child {
    let mut command = world.lodge.cli_command(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("lodge")
}

#[tokio::test]
async fn turns_are_listed_newest_first_by_agent_session_and_status_in_pages() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let (one, two) = (world.agent(&mut api, "one").await, world.agent(&mut api, "two").await);
    for n in 1..=3 {
        api.answer(&one, "s", &format!("q{n} [[reply:a{n}]]")).await;
    }
    api.answer(&two, "t", "other [[reply:b]]").await;
    assert_eq!(api.say(&two, "t", "[[status:400]]").await["status"], "failed");
    let messages = |page: &Value| -> Vec<String> {
        let turns = page["turns"].as_array().expect("turns");
        let first_word = |turn: &Value| {
            let text = turn["message"].as_str().expect("a message");
            text.split_whitespace().next().expect("a word").to_owned()
        };
        turns.iter().map(first_word).collect()
    };
    let all = api.ok("turn/list", json!({})).await;
    assert_eq!(messages(&all), ["[[status:400]]", "other", "q3", "q2", "q1"]);
    let first = api.ok("turn/list", json!({"agent": "one", "limit": 2})).await;
    assert_eq!(messages(&first), ["q3", "q2"]);
    let rest = api.ok("turn/list", json!({"agent": "one", "limit": 2, "after": first["next"]})).await;
    assert_eq!((messages(&rest), &rest["next"]), (vec!["q1".to_owned()], &Value::Null));
    let failed = api.ok("turn/list", json!({"status": "failed"})).await;
    assert_eq!(messages(&failed), ["[[status:400]]"]);
    let session = api.ok("turn/list", json!({"session": "s", "newest_first": true})).await;
    assert_eq!(messages(&session), ["q3", "q2", "q1"]);
    assert_eq!(messages(&api.ok("turn/list", json!({"status": "running"})).await), [""; 0]);
    // Without that, a session is listed along its path, as before.
    let path = api.ok("turn/list", json!({"session": "s"})).await;
    let texts: Vec<&Value> =
        path["turns"].as_array().expect("turns").iter().map(|turn| &turn["text"]).collect();
    assert_eq!(texts, ["a1", "a2", "a3"]);
    api.refused("turn/list", json!({"status": "lost"}), "params.invalid").await;
    // A prefix means a turn only if it is unique.
    let newest = id(&session["turns"][0]).to_owned();
    let found = api.ok("turn/get", json!({"turn": &newest[..newest.len() - 1]})).await;
    assert_eq!((&found["id"], &found["message"]), (&json!(newest), &json!("q3 [[reply:a3]]")));
    api.refused("turn/get", json!({"turn": "trn_"}), "turn.not_found").await;
    let (old, new) = (id(&session["turns"][1]), newest.as_str());
    let shared = new.bytes().zip(old.bytes()).take_while(|(a, b)| a == b).count();
    api.refused("turn/get", json!({"turn": &new[..shared]}), "turn.ambiguous").await;
    // The command.
    let listed = world.cli_json(&["turn", "ls", "--agent", "one", "-n", "2", "--json"]);
    let ids = |turns: &Value| -> Vec<String> {
        turns.as_array().expect("an array").iter().map(|turn| id(turn).to_owned()).collect()
    };
    assert_eq!(ids(&listed), ids(&first["turns"]));
    let quiet = world.lodge.cli_ok(["turn", "ls", "-q", "--status", "failed"]);
    assert_eq!(quiet.trim(), id(&failed["turns"][0]));
    let (code, out, _) = world.cli(&["turn", "show", "--session", "s"]);
    assert_eq!(code, 0);
    for words in [newest.as_str(), "done", "agent one, session s, turn 3", "q3 [[reply:a3]]", "model", "a3"] {
        assert!(out.contains(words), "{words} is not in {out}");
    }
    let (code, _, err) = world.cli(&["turn", "attach", "--session", "s"]);
    assert_eq!(code, 1);
    assert!(err.contains("no turn of session s is running") && err.contains(&newest), "{err}");
}

#[tokio::test]
async fn an_attached_turn_is_shown_from_its_beginning_and_each_byte_once_though_the_daemon_is_killed() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "ada").await;
    let (turn, go) = held(&world, &mut api, &agent, "s").await;
    let mut attached = TerminalSession::at(world.lodge.cli_command(["turn", "attach", "--session", "s"]));
    attached.see("⚙ sh -c");
    attached.see("→ sh: exit 0");
    attached.see("one ");
    let mut waiting = TerminalSession::at(world.lodge.cli_command(["turn", "wait", "--agent", "ada"]));
    waiting.see("⚙ sh -c");
    let mut piped = spawned(&world, &["turn", "attach", id(&turn)]);
    // It is connected once it has printed what was said before.
    let mut first = [0; 4];
    piped.stdout.as_mut().expect("a pipe").read_exact(&mut first).expect("text");
    world.lodge.kill9();
    attached.see("connection to the daemon lost");
    world.lodge.start();
    std::fs::write(go, "").expect("a file");
    attached.see("five six\r\n");
    assert_eq!(attached.end(), 0);
    let (code, out, err) = read_all(piped);
    assert_eq!((code, &first, out.as_str()), (0, b"one ", "two three four five six\n"), "{err}");
    waiting.see("one two three four five six\r\n");
    assert_eq!(waiting.end(), 0);
    // The tool ran once, and a turn that is over is shown in the same way.
    let mut api = api.again(&world.lodge).await;
    let effects = world.lodge.home().join("agents").join(&agent).join("workspace/effects");
    assert_eq!(std::fs::read_to_string(effects).expect("a file"), "done\n");
    for verb in ["attach", "wait"] {
        assert_eq!(world.lodge.cli_ok(["turn", verb, id(&turn)]), "one two three four five six\n");
    }
    let shown = world.cli_json(&["turn", "attach", "--json", id(&turn)]);
    assert_eq!((&shown["status"], &shown["steps"][1]["exit_code"]), (&json!("done"), &json!(0)));
    assert_eq!(api.ok("turn/get", json!({"turn": id(&turn)})).await["status"], "done");
}

#[tokio::test]
async fn a_wait_ends_as_the_prompt_would_have() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "ada").await;
    let detached = world.lodge.cli(["prompt", "-d", "ada", "-s", "s", "[[status:400]]"]);
    let (out, err) = (String::from_utf8_lossy(&detached.stdout), String::from_utf8_lossy(&detached.stderr));
    let turn = out.trim().to_owned();
    assert!(turn.starts_with("trn_") && detached.status.success(), "{out}{err}");
    assert!(err.contains(&format!("to rejoin it: lodge turn attach {turn}")), "{err}");
    let waited = world.cli(&["turn", "wait", &turn]);
    let prompted = world.cli(&["prompt", "ada", "-s", "other", "[[status:400]]"]);
    assert_eq!((waited.0, &waited.1), (prompted.0, &prompted.1));
    let without_hint = |text: &str| text.lines().take(2).collect::<Vec<_>>().join("\n");
    assert_eq!(without_hint(&waited.2), without_hint(&prompted.2));
    // Interrupted, by the selection of its agent.
    let (turn, _) = held(&world, &mut api, &agent, "held").await;
    let waiting = spawned(&world, &["turn", "wait", id(&turn)]);
    let (code, out, _) = world.cli(&["turn", "interrupt", "--agent", "ada"]);
    assert_eq!((code, out.trim()), (0, id(&turn)));
    let (code, _, err) = read_all(waiting);
    assert_eq!(code, 1);
    assert!(err.contains("the turn was interrupted"), "{err}");
    assert_eq!(world.cli(&["turn", "interrupt", id(&turn)]).0, 1);
    assert_eq!(world.cli(&["turn", "wait"]).0, 2);
}

#[tokio::test]
async fn a_chat_joins_the_turn_that_runs_and_escape_interrupts_it() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "ada").await;
    let (_, go) = held(&world, &mut api, &agent, "s").await;
    let mut chat = TerminalSession::at(world.lodge.cli_command(["chat", "ada", "-s", "s"]));
    chat.see("1 turn so far");
    chat.see("⚙ sh -c");
    chat.see("one ");
    std::fs::write(go, "").expect("a file");
    chat.see("five six\r\n");
    chat.see("› ");
    chat.type_in("[[reply:and on]]\r");
    chat.see("and on\r\n");
    chat.type_in("\u{4}");
    assert_eq!(chat.end(), 0);
    let (turn, _) = held(&world, &mut api, &agent, "t").await;
    let mut chat = TerminalSession::at(world.lodge.cli_command(["chat", "ada", "-s", "t"]));
    chat.see("one ");
    chat.type_in("\u{1b}");
    chat.see("[interrupted]");
    chat.see("› ");
    chat.type_in("\u{4}");
    assert_eq!(chat.end(), 0);
    until("the turn ends", || {
        (world.cli(&["turn", "show", "-s", "t"]).1.contains("interrupted")).then_some(())
    });
    assert_eq!(api.ok("turn/get", json!({"turn": id(&turn)})).await["status"], "interrupted");
}
