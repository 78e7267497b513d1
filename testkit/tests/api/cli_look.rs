//! Looking on: events with names, agents that are no more, tries and revivals, tables at a terminal, completions.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use lodge_testkit::lodge::until;
use serde_json::{Value, json};

use crate::terminal::terminal;
use crate::world::{AGENTFILE, ApiWorld, id, kill, sh, told};

/// What a command shows at a terminal of this width.
fn shown(world: &ApiWorld, args: &[&str], columns: u16) -> String {
    let (mut ours, theirs) = terminal();
    let size = libc::winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the pointer is to a live `winsize`, which is what this request reads.
    assert_eq!(unsafe { libc::ioctl(ours.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }, 0);
    let mut command = world.lodge.cli_command(args);
    command.env("NO_COLOR", "1").stdin(Stdio::null());
    command.stdout(theirs.try_clone().expect("a terminal")).stderr(Stdio::from(theirs));
    let mut child = command.spawn().expect("lodge");
    drop(command);
    let mut text = Vec::new();
    // A terminal whose other end is closed gives an error where a pipe gives an end.
    drop(ours.read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text).replace("\r\n", "\n");
    assert!(child.wait().expect("an end").success(), "{text}");
    text
}

#[tokio::test]
async fn events_have_names_and_the_newest_can_be_asked_for() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let (one, two) = (world.agent(&mut api, "one").await, world.agent(&mut api, "two").await);
    for _ in 0..6 {
        api.answer(&one, "s", &format!("{} [[reply:x]]", sh("true"))).await;
    }
    api.answer(&two, "t", "[[reply:y]]").await;
    let all = world.lodge.cli_ok(["events"]);
    let lines: Vec<&str> = all.lines().collect();
    assert_eq!(lines.len(), api.log().await.len());
    assert!(
        lines
            .iter()
            .all(|line| line.contains(" daemon ") || line.contains(" one ") || line.contains(" two ")),
        "{all}"
    );
    assert!(!all.contains(&one) && !all.contains(&two), "{all}");
    let tail = |n: usize| lines[lines.len() - n..].join("\n") + "\n";
    assert_eq!(world.lodge.cli_ok(["events", "-n", "3"]), tail(3));
    assert_eq!(world.lodge.cli_ok(["events", "-n", "999"]), all);
    assert_eq!(world.lodge.cli_ok(["events", "-n", "9", "--since", &(lines.len() - 2).to_string()]), tail(2));
    let of_one: Vec<&&str> = lines.iter().filter(|line| line.contains(" one ")).collect();
    let newest = world.lodge.cli_ok(["events", "-n", "2", "--agent", "one"]);
    assert_eq!(
        newest.lines().collect::<Vec<_>>(),
        of_one[of_one.len() - 2..].iter().map(|line| **line).collect::<Vec<_>>()
    );
    // A family and a kind, which stand far back in the log.
    for kind in ["daemon", "daemon.*", "daemon.started"] {
        let found = world.lodge.cli_ok(["--json", "events", "-n", "2", "--kind", kind]);
        assert_eq!(found.lines().count(), 1, "{found}");
    }
    // Who follows sees the newest first, and then what happens.
    let args = ["events", "-f", "-n", "1"];
    let mut child = world.lodge.cli_command(args).stdout(Stdio::piped()).spawn().expect("lodge");
    let mut followed = std::io::BufReader::new(child.stdout.take().expect("stdout"));
    let mut next = || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut followed, &mut line).expect("a line");
        line
    };
    assert_eq!(next(), tail(1));
    api.answer(&two, "t", "[[reply:z]]").await;
    assert!(next().contains(" two           turn.accepted"));
    kill(i32::try_from(child.id()).expect("a pid"), libc::SIGINT);
    assert_eq!(child.wait().expect("an end").code(), Some(130));
}

#[tokio::test]
async fn a_terminal_gets_a_screenful_and_no_line_that_wraps() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let one = world.agent(&mut api, "an-agent-with-a-rather-long-name").await;
    for _ in 0..5 {
        api.answer(&one, "s", &format!("{} [[reply:a longer answer than there is room for]]", sh("true")))
            .await;
    }
    let count = api.log().await.len();
    assert!(count > 50, "{count}");
    let screen = shown(&world, &["events"], 80);
    let note = "older events are left out: `-n N` shows more, `--since 0` shows all";
    assert_eq!((screen.lines().count(), screen.lines().last()), (51, Some(note)));
    assert_eq!(shown(&world, &["-q", "events"], 80).lines().count(), 50);
    assert_eq!(shown(&world, &["events", "--since", "0"], 80).lines().count(), count);
    for args in [
        vec!["events"],
        vec!["ps"],
        vec!["session", "ls"],
        vec!["image", "ls"],
        vec!["token", "ls"],
        vec!["provider", "ls"],
    ] {
        let screen = shown(&world, &args, 80);
        let widest = screen.lines().map(|line| line.chars().count()).max();
        assert!(widest.is_some_and(|widest| widest <= 80), "{args:?}: {screen}");
    }
    let screen = shown(&world, &["ps"], 80);
    assert!(screen.contains(&one) && screen.contains("  an-agent-") && screen.contains('…'), "{screen}");
    for columns in [70, 60, 50] {
        let screen = shown(&world, &["ps"], columns);
        let widest = screen.lines().map(|line| line.chars().count()).max();
        assert!(widest.is_some_and(|widest| widest <= usize::from(columns)), "{screen}");
        assert!(screen.contains(&one) && screen.contains("  an-agen"), "{screen}");
    }
    // A program gets everything, however wide.
    assert!(world.lodge.cli_ok(["ps"]).contains("an-agent-with-a-rather-long-name"));
}

#[tokio::test]
async fn agents_that_were_removed_are_found_by_name_where_their_history_is() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let old = world.agent(&mut api, "coder").await;
    api.answer(&old, "first", "[[reply:remember me]]").await;
    world.lodge.cli_ok(["rm", "-f", "coder"]);
    let listed = world.cli_json(&["--json", "session", "ls", "--agent", "coder"]);
    assert_eq!((id(&listed[0]), &listed[0]["agent_removed"]), ("first", &json!(true)));
    assert_eq!(
        world
            .cli_json(&["--json", "session", "search", "--agent", "coder", "remember"])
            .as_array()
            .expect("hits")
            .len(),
        2
    );
    assert_eq!(
        world.cli_json(&["--json", "lineage", "ls", "--agent", "coder"])[0]["ended_reason"],
        "removed"
    );
    let events = world.lodge.cli_ok(["events", "--agent", "coder"]);
    assert!(
        events.contains("agent.removed") && events.lines().all(|line| line.contains(" coder ")),
        "{events}"
    );
    // What is there goes before what was: a new agent of that name is another one.
    let new = world.agent(&mut api, "coder").await;
    assert_eq!(world.cli_json(&["--json", "session", "ls", "--agent", "coder"]), json!([]));
    assert_eq!(
        world.cli_json(&["--json", "session", "ls", "--agent", &old]).as_array().expect("sessions").len(),
        1
    );
    world.lodge.cli_ok(["rm", "-f", "coder"]);
    let (code, out, err) = world.cli(&["session", "ls", "--agent", "coder"]);
    let expected = format!(
        "error: several agents that were removed had the name `coder`\n\n\
         hint: give the id of one, the newest first: {new}, {old}\n"
    );
    assert_eq!((code, out.as_str(), err.as_str()), (1, "", expected.as_str()));
    // What needs an agent that is there does not find one that is not.
    assert_eq!(world.cli(&["inspect", "coder"]).0, 1);
}

#[tokio::test]
async fn what_waits_for_a_decision_is_shown_with_its_open_turn_and_tools() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    api.ok("agent/create", json!({"content": AGENTFILE, "name": "one", "revival_policy": "ask"})).await;
    let view = api.agent_is("one", "ready").await;
    let text = format!("{} [[reply:never]]", sh("touch began; sleep 600"));
    let turn = api.ok("turn/send", json!({"agent": "one", "session": "talk", "text": text})).await;
    let began = world.lodge.home().join("agents").join(id(&view)).join("workspace/began");
    until("the tool runs", || began.exists().then_some(()));
    kill(i32::try_from(view["pid"].as_u64().expect("a pid")).expect("a pid"), libc::SIGKILL);
    api.agent_is("one", "failed").await;
    let (code, out, err) = world.cli(&["lineage", "show", "one"]);
    assert_eq!(code, 0, "{err}");
    let row =
        |key: &str| out.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{key}: {out}"));
    assert!(row("waits since").contains("Z ("), "{out}");
    let open = row("open turn");
    assert!(open.contains(&format!("{} (", id(&turn))) && open.contains("in session talk: "), "{out}");
    assert!(open.contains("; no outcome yet: tool sh, begun "), "{out}");
    assert!(err.starts_with("1 lineage waits for your decision: one (its sandbox died)\nhint: "), "{err}");
    let detail = world.cli_json(&["--json", "lineage", "show", "one"]);
    assert_eq!((&detail["status"], &detail["open_turns"][0]["id"]), (&json!("ask_pending"), &turn["id"]));
    assert!(detail["since"].is_string(), "{detail:#}");
    world.lodge.cli_ok(["lineage", "resolve", "one", "--reap"]);
    let detail = world.cli_json(&["--json", "lineage", "show", detail["id"].as_str().expect("an id")]);
    assert_eq!((&detail["since"], &detail["open_turns"]), (&Value::Null, &json!([])));
}

#[tokio::test]
async fn a_listing_tells_of_the_next_try() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let dir = world.lodge.agent_dir("one", &AGENTFILE.replace("mock/m", "later/m"), &[]);
    let (code, out, err) = world.cli(&["run", dir.to_str().expect("UTF-8")]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(
        err.starts_with(
            "error: tester did not become ready\n  because: its model cannot be used: there is no provider `later`"
        ),
        "{err}"
    );
    assert!(
        err.contains("hint: add the provider with `lodge provider add`, and the agent starts automatically"),
        "{err}"
    );
    api.until("agent/get", json!({"agent": "tester"}), |agent| agent["attempt"].as_u64() >= Some(3)).await;
    let listed = world.lodge.cli_ok(["ps", "-a"]);
    // Between two tries it has failed, and while one is made it starts.
    assert!(listed.contains("failed (model, next try ") || listed.contains("(try "), "{listed}");
    assert_eq!(world.lodge.cli_ok(["stop", "tester"]), "tester\n");
    assert!(world.lodge.cli_ok(["ps", "-a"]).contains("  stopped  "));
}

#[test]
fn completions_are_scripts_that_their_shells_can_read() {
    let world = ApiWorld::asleep();
    for (shell, check) in
        [("bash", ["bash", "-n"]), ("zsh", ["zsh", "-n"]), ("fish", ["fish", "--no-execute"])]
    {
        let script = world.lodge.cli_ok(["completions", shell]);
        for word in [
            "update",
            "regenerate",
            "revoke",
            "resolve",
            "snapshot",
            "schema",
            "since",
            "unmount",
            "reload",
            "kill",
        ] {
            assert!(script.contains(word), "{shell} lacks `{word}`");
        }
        let read = Command::new(check[0])
            .args([check[1], "/dev/stdin"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        // Not every machine has every shell.
        let Ok(mut read) = read else { continue };
        read.stdin.take().expect("stdin").write_all(script.as_bytes()).expect("a script");
        let read = read.wait_with_output().expect("an end");
        assert!(read.status.success(), "{shell}: {}", String::from_utf8_lossy(&read.stderr));
    }
    assert_eq!(world.cli(&["completions", "tcsh"]).0, 2);
}

#[tokio::test]
async fn a_caller_that_may_see_one_agent_gets_a_listing_of_it() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let (one, two) = (world.agent(&mut api, "one").await, world.agent(&mut api, "two").await);
    let token = world.lodge.cli_ok(["token", "issue", "--agent", "one"]);
    let with_token = |args: &[&str]| {
        told(&world.lodge.cli_command(args).env("LODGE_TOKEN", token.trim()).output().expect("lodge runs"))
    };
    let (code, out, err) = with_token(&["ps"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains(&one) && !out.contains(&two), "{out}");
    let (code, out, err) = with_token(&["inspect", "one"]);
    assert!(code == 0 && out.contains(&one), "{out}{err}");
    // A forbidden listing is refused if it was the request itself.
    assert_eq!(with_token(&["lineage", "ls"]).0, 1);
}

#[tokio::test]
async fn a_session_is_listed_with_its_first_words_and_shown_with_the_ids_of_its_turns() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let long = format!("[[reply:a]] please {}", "look ".repeat(40));
    let first = api.say("one", "s", &long).await;
    let second = api.say("one", "s", "[[reply:b]] and again").await;
    let listed = world.cli_json(&["--json", "session", "ls"]);
    let title: String = long.chars().take(60).collect();
    assert_eq!(listed[0]["title"], json!(title));
    assert!(world.lodge.cli_ok(["session", "ls"]).contains("[[reply:a]] please look"));
    let shown = world.lodge.cli_ok(["session", "show", "s"]);
    for (number, turn) in [(1, &first), (2, &second)] {
        assert!(shown.contains(&format!("turn {number} ({})", id(turn))), "{shown}");
    }
    // Turns that a rewind removed are found and activated again by their text.
    let (code, _, err) = world.cli(&["session", "rewind", "s", "2"]);
    assert!(code == 0 && err.contains("`lodge session activate s TURN`"), "{err}");
    assert!(err.contains("`lodge session show s --all`"), "{err}");
    assert!(world.lodge.cli_ok(["session", "show", "s", "--all"]).contains(id(&second)));
    world.lodge.cli_ok(["session", "activate", "s", id(&second)]);
}

#[tokio::test]
async fn secrets_of_an_image_and_kinds_that_are_none_are_not_shown() {
    let world = ApiWorld::new();
    // Keywords may be written in any case, and values with escapes.
    let secrets = "ENV A_TOKEN=hunt\nENV DB_PASSWORD=hunter2\nenv MY_TOKEN=hunter3\nENV APP_SECRET=\"hunter\\\"4\" \"of the till\"\n";
    let agentfile = format!("{AGENTFILE}{secrets}ENV PLACE=here\n");
    let dir = world.lodge.agent_dir("kept", &agentfile, &[]);
    world.lodge.cli_ok(["image", "build", dir.to_str().expect("UTF-8"), "-t", "kept"]);
    for args in [vec!["image", "inspect", "kept"], vec!["--json", "image", "inspect", "kept"]] {
        let out = world.lodge.cli_ok(args);
        assert!(!out.contains("hunter") && out.contains("[masked]") && out.contains("here"), "{out}");
    }
    world.lodge.cli_ok(["run", "kept", "--name", "keeps", "--detach"]);
    let out = world.lodge.cli_ok(["--json", "inspect", "keeps"]);
    assert!(!out.contains("hunter") && out.contains("ENV DB_PASSWORD=[masked]"), "{out}");
    // Nor what is left of one when another is a part of it.
    assert!(!out.contains("\\\"4"), "{out}");
    let (code, out, err) = world.cli(&["events", "--kind", "nosuchkind"]);
    let expected = "error: there are no events of the kind `nosuchkind`\n\n\
        hint: the families are agent, daemon, exec, job, lineage, sandbox, session, turn, work\n";
    assert_eq!((code, out.as_str(), err.as_str()), (2, "", expected));
}
