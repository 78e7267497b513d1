//! What `lodge` says in the first hour: mistakes with the way out, names that are nearly right, and what things cost.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::terminal::terminal;
use crate::world::{AGENTFILE, ApiWorld, id, sh, told};

/// A server that answers each request with these bytes, or closes the connection if there are none.
fn server(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    // It ends with the test's process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            drop(stream.read(&mut [0; 4096]));
            drop(stream.write_all(answer.as_bytes()));
        }
    });
    format!("http://{addr}/v1")
}

/// What a command shows at a terminal with colours.
fn coloured(world: &ApiWorld, args: &[&str], env: &[(&str, &str)]) -> String {
    let (mut ours, theirs) = terminal();
    let mut command = world.lodge.cli_command(args);
    command.env_remove("NO_COLOR").env("TERM", "xterm").envs(env.iter().copied());
    command.stdout(theirs.try_clone().expect("a terminal")).stderr(Stdio::from(theirs));
    let mut child = command.spawn().expect("lodge");
    drop(command);
    let mut text = Vec::new();
    // A terminal whose other end is closed gives an error where a pipe gives an end.
    drop(ours.read_to_end(&mut text));
    assert!(child.wait().expect("an end").success());
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn a_providers_file_that_is_not_in_effect_is_reported_with_what_to_do() {
    let world = ApiWorld::new();
    let path = world.lodge.home().join("providers.yaml");
    let good = fs::read_to_string(&path).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("a mode");
    let chmod = format!("chmod 600 {}", path.display());
    for args in [&["provider", "ls"][..], &["provider", "test", "nosuch"]] {
        let (_, _, err) = world.cli(args);
        assert!(err.contains("hint: ") && err.contains(&chmod), "{args:?}: {err}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a mode");
    for (text, what) in [
        (
            "providers:\n  - name: a\n  kind: openai\n",
            ":3:3: `kind` is not aligned with the other keys of the entry on line 2",
        ),
        ("providers:\n  - name: a\n\tkind: openai\n", "not valid YAML"),
    ] {
        fs::write(&path, text).expect("a file");
        let (_, _, err) = world.cli(&["provider", "ls"]);
        assert!(err.contains(what) && err.contains("\nhint: align the keys of one provider"), "{err}");
    }
    fs::write(&path, "providers:\n  name: a\n").expect("a file");
    assert!(
        world.cli(&["provider", "ls"]).2.contains("expected a list, each entry of which begins with `-`")
    );
    fs::write(&path, good).expect("a file");
    assert_eq!(world.cli(&["provider", "ls"]).2, "");
    let (code, _, err) = world.cli(&["provider", "add", "x", "--kind", "openai", "--api-key", "-"]);
    assert!(
        code == 2 && err.contains("there is no key on stdin") && err.contains("\nhint: pipe it in"),
        "{err}"
    );
}

#[test]
fn a_server_that_is_no_model_server_is_reported_as_that() {
    let world = ApiWorld::new();
    let page = "HTTP/1.1 501 Not Implemented\r\ncontent-type: text/html\r\ncontent-length: 21\r\nconnection: close\r\n\r\n<html>nothing</html>\n";
    let (web, silent) = (server(page), server(""));
    for (name, url, what, hint) in [
        (
            "web",
            &web,
            "answered with status 501: a web page",
            "perhaps that is no model server: check the base-url",
        ),
        ("silent", &silent, "closed the connection without an answer", "check that the base-url of `silent`"),
    ] {
        world.lodge.cli_ok([
            "provider",
            "add",
            name,
            "--kind",
            "openai",
            "--base-url",
            url,
            "--api-key",
            "k",
        ]);
        for args in [&["provider", "test", name][..], &["provider", "test", name, "--model", "m"]] {
            let (code, _, err) = world.cli(args);
            assert!(code == 1 && err.contains(what) && err.contains(hint), "{args:?}: {err}");
            assert!(!err.contains("<html>"), "{err}");
        }
    }
}

#[tokio::test]
async fn an_agent_that_fails_and_is_tried_again_is_listed_and_says_why_wherever_it_is_used() {
    let world = ApiWorld::new();
    let broken = AGENTFILE.replace("mock/m", "nowhere/m").replace("NAME tester", "NAME later");
    let dir = world.lodge.agent_dir("later", &broken, &[]);
    let (code, _, err) = world.cli(&["run", dir.to_str().expect("UTF-8")]);
    assert!(
        code == 1 && err.contains("because: its model cannot be used: there is no provider `nowhere`"),
        "{err}"
    );
    assert!(err.contains("the agent starts automatically (next try "), "{err}");
    let listed = world.lodge.cli_ok(["ps"]);
    assert!(listed.contains("later") && listed.contains("failed (model, next try "), "{listed}");
    for args in [&["prompt", "later", "hi"][..], &["prompt", "later", "-d", "hi"]] {
        let (code, _, err) = world.cli(args);
        assert_eq!(code, 1);
        assert!(
            err.starts_with("error: agent `later` is failed\n  because: there is no provider `nowhere`"),
            "{err}"
        );
        assert!(err.contains("it is tried again at "), "{err}");
    }
    // One that is stopped is listed only with the others.
    world.lodge.cli_ok(["stop", "later"]);
    assert!(!world.lodge.cli_ok(["ps"]).contains("later"));
}

#[tokio::test]
async fn small_mistakes_are_answered_with_what_to_write() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "coder").await;
    api.answer("coder", "release", "[[reply:ok]]").await;
    for (args, code, what) in [
        (&["session", "show", "relase"][..], 1, "hint: did you mean `release`? `lodge session ls` lists all"),
        (&["provider", "test", "mokc"], 1, "hint: did you mean `mock`? `lodge provider ls` lists all"),
        (&["completion", "bash"], 2, "`lodge completions bash`"),
        (&["prompt", "codr", "hi"], 1, "hint: did you mean `coder`? `lodge ps -a` lists all agents"),
        (&["inspect", "codre"], 1, "did you mean `coder`?"),
        (&["list"], 2, "hint: `lodge ps` lists agents"),
        (&["version"], 2, "`lodge --version` prints the version"),
        (
            &["session", "list"],
            2,
            "error: there is no command `lodge session list`\n\nhint: `lodge session ls`",
        ),
        (&["events", "--since", "99999"], 1, "sequence 99999 is ahead of the log: the newest event is "),
    ] {
        let (found, out, err) = world.cli(args);
        assert_eq!((found, out.as_str()), (code, ""), "{args:?}: {err}");
        assert!(err.contains(what), "{args:?}: {err}");
    }
    let dir = world.lodge.agent_dir("two", AGENTFILE, &[]);
    let dir = dir.to_str().expect("UTF-8");
    let (_, _, err) = world.cli(&["run", dir, "-e", "foo=bar"]);
    assert!(err.contains("hint: write `FOO`: keys have capital letters"), "{err}");
    let (_, _, err) = world.cli(&["run", dir, "-e", "path=bar"]);
    assert!(err.contains("`PATH` is reserved"), "{err}");
    // A state directory that cannot be made.
    let mut command = world.lodge.cli_command(["ps"]);
    command.env("LODGE_HOME", "/proc/lodge-home").env_remove("LODGE_NO_AUTOSTART");
    let (code, _, err) = told(&command.output().expect("lodge runs"));
    assert_eq!(code, 3, "{err}");
    assert!(err.contains("because: the state directory /proc/lodge-home cannot be written"), "{err}");
    assert!(err.contains("\nhint: set LODGE_HOME to a directory that you can write"), "{err}");
    let mut daemon = world.lodge.daemon_command();
    let file = world.lodge.dir().join("a-file");
    fs::write(&file, "").expect("a file");
    let (code, _, err) = told(&daemon.env("LODGE_HOME", &file).output().expect("lodged runs"));
    assert!(
        code != 0 && err.contains(&format!("the state directory {} is not a directory", file.display())),
        "{err}"
    );
}

#[test]
fn all_programs_that_a_host_lacks_are_reported_with_their_lines() {
    let world = ApiWorld::new();
    let agentfile =
        "FROM scratch\nMODEL mock/m\nBIN one host:no-such-one\nBIN sh host:sh\nBIN two host:no-such-two\n";
    let dir = world.lodge.agent_dir("lacking", agentfile, &[]);
    let (code, _, err) = world.cli(&["run", dir.to_str().expect("UTF-8")]);
    assert_eq!(code, 1, "{err}");
    assert!(err.starts_with("error: this host lacks 2 programs of BIN lines\n"), "{err}");
    for line in ["because: Agentfile:3: BIN one: ", "because: Agentfile:5: BIN two: "] {
        assert!(err.contains(line), "{err}");
    }
    // Together with mistakes of other kinds, in the order of the lines.
    let mistaken = format!("{agentfile}CONFIG\nBIN\n");
    let dir = world.lodge.agent_dir("mistaken", &mistaken, &[]);
    let (code, _, err) = world.cli(&["run", dir.to_str().expect("UTF-8")]);
    assert_eq!(code, 1, "{err}");
    let lines = ["Agentfile:3:1", "Agentfile:5:1", "Agentfile:6:", "Agentfile:7:"].map(|line| err.find(line));
    assert!(lines.is_sorted() && lines.iter().all(Option::is_some), "{lines:?}\n{err}");
    assert!(err.contains("BIN two: there is no program `no-such-two` on this host"), "{err}");
    // An image may be meant for another host.
    let (code, _, err) = world.cli(&["image", "build", dir.to_str().expect("UTF-8")]);
    assert!(code == 1 && !err.contains("no-such-two"), "{err}");
}

#[test]
fn a_value_that_the_stock_runtime_cannot_use_fails_the_agent_and_is_named() {
    let world = ApiWorld::new();
    let agentfile = "FROM scratch\nMODEL mock/m\nCONFIG max-iterations=lots\n";
    let dir = world.lodge.agent_dir("wrong", agentfile, &[]);
    let (code, _, err) = world.cli(&["run", dir.to_str().expect("UTF-8")]);
    assert_eq!(code, 1, "{err}");
    let because =
        "because: a setting is missing or invalid: CONFIG values cannot be used: max-iterations is a whole";
    assert!(err.contains(because), "{err}");
    assert!(err.contains("hint: it is not retried automatically"), "{err}");
}

#[test]
fn a_misspelt_key_of_the_stock_runtime_is_a_warning() {
    let world = ApiWorld::new();
    let agentfile = "FROM scratch\nMODEL mock/m\nCONFIG max-itterations=9\nCONFIG notes-max-count=3\n\
        CONFIG top-k=3\n";
    let dir = world.lodge.agent_dir("misspelt", agentfile, &[]);
    let dir = dir.to_str().expect("UTF-8");
    let warning = "warning: CONFIG max-itterations: the stock runtime has no such key and ignores it; \
        did you mean `max-iterations`?\n";
    for args in [&["image", "build", dir, "-t", "misspelt"][..], &["run", "-d", dir]] {
        let (code, _, err) = world.cli(args);
        assert_eq!(code, 0, "{err}");
        assert!(err.contains(warning) && err.matches("warning:").count() == 1, "{err}");
    }
    assert!(world.lodge.cli_ok(["image", "inspect", "misspelt"]).contains("did you mean `max-iterations`?"));
    // Another runtime has keys of its own.
    let dir = world.lodge.agent_dir(
        "other",
        &format!("{agentfile}RUNTIME host:sh\n{}", "CONFIG max-itterations=9\n"),
        &[],
    );
    let (code, _, err) = world.cli(&["image", "build", dir.to_str().expect("UTF-8")]);
    assert!(code == 0 && !err.contains("warning:"), "{err}");
}

#[tokio::test]
async fn a_session_is_named_by_a_unique_prefix_and_shown_whole() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let first = api
        .say(
            "one",
            "review-1",
            &format!("{} [[reply:a]]", sh("i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo $i; done")),
        )
        .await;
    api.answer("one", "review-2", "[[reply:b]]").await;
    for args in [&["session", "show", "review-1"][..], &["session", "export", "review-1"]] {
        assert!(world.lodge.cli_ok(args.iter().copied()).contains("[[reply:a]]"));
    }
    let (code, _, err) = world.cli(&["session", "show", "review"]);
    assert_eq!(code, 1);
    assert!(
        err.contains("several sessions start with `review`\n\nhint: give more of the id: review-1, review-2"),
        "{err}"
    );
    let shown = world.lodge.cli_ok(["session", "show", "review-1"]);
    assert!(shown.contains("… 20 more lines (`--full` shows them)") && !shown.contains("  40\n"), "{shown}");
    assert!(world.lodge.cli_ok(["session", "show", "review-1", "--full"]).contains("  40\n"));
    // A generated id.
    let sent = api.ok("turn/send", json!({"agent": "one", "text": "[[reply:c]]"})).await;
    api.ended(id(&sent)).await;
    let whole = sent["session"].as_str().expect("a session").to_owned();
    let prefix = &whole[..whole.len() - 3];
    assert_eq!(world.cli_json(&["--json", "session", "show", prefix])["id"], json!(whole));
    assert_eq!(world.lodge.cli_ok(["prompt", "one", "-s", prefix, "[[reply:d]]"]), "d\n");
    assert_eq!(api.ok("session/get", json!({"session": whole})).await["turns"], 2);
    assert_eq!(world.lodge.cli_ok(["session", "rm", prefix]), format!("{whole}\n"));
    // A chosen id is never taken for the beginning of another where something would be created or deleted.
    assert_eq!(world.lodge.cli_ok(["session", "rm", "review-"]), "review-\n");
    assert_eq!(world.lodge.cli_ok(["prompt", "one", "-s", "rev", "[[reply:e]]"]), "e\n");
    let names = world.lodge.cli_ok(["-q", "session", "ls"]);
    assert!(
        ["review-1", "review-2", "rev"].iter().all(|name| names.lines().any(|line| line == *name)),
        "{names}"
    );
    assert_eq!(first["session"], "review-1");
}

#[tokio::test]
async fn messages_come_in_the_order_of_the_conversation_on_every_page_and_in_an_export() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let go = world.lodge.dir().join("go");
    // The second message is recorded before the first answer.
    let held = format!("first [[chunks:4]] [[hold-after:1:{}]]", go.display());
    let first = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": held})).await;
    let text = "second [[reply:answer]]";
    let second = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": text})).await;
    fs::write(go, "").expect("a file");
    api.ended(id(&first)).await;
    api.ended(id(&second)).await;
    let order = |messages: &[Value]| -> Vec<(u64, String)> {
        let of = |message: &Value| {
            (
                message["number"].as_u64().expect("a number"),
                message["role"].as_str().expect("a role").to_owned(),
            )
        };
        messages.iter().map(of).collect()
    };
    let expected: Vec<(u64, String)> = [(1, "user"), (1, "assistant"), (2, "user"), (2, "assistant")]
        .map(|(number, role)| (number, role.to_owned()))
        .to_vec();
    let page = api.ok("session/messages", json!({"session": "s"})).await;
    let all = page["messages"].as_array().expect("messages");
    assert_eq!(order(all), expected);
    assert!(all[1]["seq"].as_u64() > all[2]["seq"].as_u64(), "the case that this is about: {page:#}");
    // Page by page, backwards.
    let (mut pages, mut before) = (Vec::new(), Value::Null);
    loop {
        let page = api.ok("session/messages", json!({"session": "s", "limit": 1, "before": before})).await;
        let messages = page["messages"].as_array().expect("messages").clone();
        pages.splice(0..0, messages);
        before = page["next"].clone();
        if before.is_null() {
            break;
        }
    }
    assert_eq!(order(&pages), expected);
    let exported = world.lodge.cli_ok(["session", "export", "s"]);
    let lines: Vec<Value> =
        exported.lines().skip(1).map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(order(&lines), expected);
}

#[tokio::test]
async fn tokens_and_money_are_shown_where_a_person_looks() {
    let mut world = ApiWorld::asleep();
    let prices = "    prices:\n      m: {input: 1000, output: 1000}\n";
    world.put_providers(&format!("{}{prices}", world.provider("mock", &world.mock.base_url())));
    world.lodge.start();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let turn = api.say("one", "s", "[[reply:hello]]").await;
    let used = turn["usage"].clone();
    assert!(used["input_tokens"].as_u64() > Some(0) && used["cost_usd"].as_f64() > Some(0.0), "{used}");
    assert_eq!(world.cli_json(&["--json", "session", "ls"])[0]["usage"], used);
    assert_eq!(world.cli_json(&["--json", "inspect", "one"])["usage"], used);
    assert_eq!(world.cli_json(&["--json", "ps", "--wide"])[0]["usage"], used);
    // A listing that nobody asked it of does not compute it.
    assert!(world.cli_json(&["--json", "ps"])[0].get("usage").is_none());
    let total = used["input_tokens"].as_u64().unwrap_or(0) + used["output_tokens"].as_u64().unwrap_or(0);
    for (args, head) in [(&["session", "ls"][..], "TOKENS"), (&["ps", "--wide"], "COST")] {
        let table = world.lodge.cli_ok(args.iter().copied());
        assert!(
            table.contains(head) && table.contains(&format!(" {total} ")) && table.contains('$'),
            "{table}"
        );
    }
    assert!(world.lodge.cli_ok(["inspect", "one"]).contains(" tokens in, "));
    // What is not measured is not made up.
    let table = world.lodge.cli_ok(["ps"]);
    assert!(table.contains("CONTEXT") && !table.contains("HEALTHY"), "{table}");
    assert!(!world.lodge.cli_ok(["session", "ls"]).contains("HEALTHY"));
    // After an answer: on a terminal, and not in what a program reads.
    let screen = coloured(&world, &["prompt", "one", "[[reply:hello]]"], &[]);
    assert!(
        screen.contains("hello") && screen.contains(" tokens in, ") && screen.contains(" out, $"),
        "{screen}"
    );
    let (_, out, err) = world.cli(&["prompt", "one", "[[reply:hello]]"]);
    assert_eq!((out.as_str(), err.as_str()), ("hello\n", ""));
}

#[tokio::test]
async fn a_status_is_coloured_on_a_terminal_unless_no_color_is_set() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let screen = coloured(&world, &["ps"], &[]);
    assert!(screen.contains("\x1b[32mready\x1b[0m"), "{screen:?}");
    assert!(!coloured(&world, &["ps"], &[("NO_COLOR", "1")]).contains("\x1b["));
    assert!(!world.lodge.cli_ok(["ps"]).contains('\x1b'));
}

#[tokio::test]
async fn a_limit_can_be_set_when_an_agent_is_run() {
    let world = ApiWorld::new();
    let dir = world.lodge.agent_dir("small", &format!("{AGENTFILE}LIMIT pids 100\nLIMIT memory 1g\n"), &[]);
    let dir = dir.to_str().expect("UTF-8");
    let agent = world.cli_json(&["--json", "run", dir, "--name", "small", "--limit", "memory=512m"]);
    let limit = |name: &str| {
        let limits = agent["limits"].as_array().expect("limits");
        limits.iter().find(|limit| limit["name"] == name).map(|limit| limit["limit"].clone())
    };
    assert_eq!((limit("memory"), limit("pids")), (Some(json!(512 << 20)), Some(json!(100))));
    let (code, _, err) = world.cli(&["run", dir, "--limit", "memory=much"]);
    assert!(code == 1 && err.contains("hint: expected "), "{err}");
}

#[tokio::test]
async fn names_are_completed_from_the_daemon_and_none_is_started_for_that() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "coder").await;
    api.answer(&agent, "talk", "[[reply:x]]").await;
    assert_eq!(world.lodge.cli_ok(["complete-names", "agents"]), "coder\n");
    assert_eq!(world.lodge.cli_ok(["complete-names", "sessions"]), "talk\n");
    assert_eq!(world.lodge.cli_ok(["complete-names", "jobs"]), "");
    let turn = world.lodge.cli_ok(["complete-names", "turns"]);
    assert!(turn.starts_with("trn_") && turn.lines().count() == 1, "{turn}");
    // In a shell, by the script that it is given.
    let script = world.lodge.cli_ok(["completions", "bash"]);
    let lodge = lodge_testkit::lodge::bin("lodge");
    let ask = format!(
        "{script}\nlodge() {{ {} \"$@\"; }}\ncomplete() {{ :; }}\n\
         COMP_WORDS=(lodge prompt co) COMP_CWORD=2\n_lodge_names lodge co prompt\nprintf '%s\\n' \"${{COMPREPLY[*]}}\"\n\
         COMP_WORDS=(lodge session show \"\") COMP_CWORD=3\n_lodge_names lodge \"\" show\nprintf '%s\\n' \"${{COMPREPLY[*]}}\"\n\
         COMP_WORDS=(lodge turn attach \"\") COMP_CWORD=3\n_lodge_names lodge \"\" attach\nprintf '%s\\n' \"${{COMPREPLY[*]}}\"\n\
         COMP_WORDS=(lodge turn attach --agent \"\") COMP_CWORD=4\n_lodge_names lodge \"\" --agent\nprintf '%s\\n' \"${{COMPREPLY[*]}}\"\n\
         COMP_WORDS=(lodge help \"\") COMP_CWORD=2\n_lodge_names lodge \"\" help\nprintf '%s\\n' \"${{COMPREPLY[*]}}\"\n",
        lodge.display()
    );
    let mut bash = std::process::Command::new("bash");
    let file = world.lodge.dir().join("ask.bash");
    fs::write(&file, ask).expect("a file");
    bash.env("LODGE_HOME", world.lodge.home()).env("LODGE_NO_AUTOSTART", "1").arg(file);
    let (_, out, err) = told(&bash.stdin(Stdio::null()).output().expect("bash"));
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].split(' ').any(|word| word == "coder"), "{out}{err}");
    assert!(lines[1].split(' ').any(|word| word == "talk"), "{out}{err}");
    assert!(lines[2].split(' ').any(|word| word == turn.trim()), "{out}{err}");
    // A value is a name, and not a file.
    assert_eq!(lines[3], "coder", "{out}{err}");
    let topics = lines[4];
    assert!(topics.contains("agentfile") && !topics.contains("complete-names"), "{out}{err}");
    drop(api);
    world.lodge.kill9();
    let mut command = world.lodge.cli_command(["complete-names", "agents"]);
    command.env_remove("LODGE_NO_AUTOSTART");
    assert_eq!(told(&command.output().expect("lodge runs")), (0, String::new(), String::new()));
}

#[test]
fn a_port_that_is_taken_is_reported_by_the_command_that_starts_the_daemon() {
    let world = ApiWorld::asleep();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = taken.local_addr().expect("an address").to_string();
    let run = || {
        let mut command = world.lodge.cli_command(["ps"]);
        command.env_remove("LODGE_NO_AUTOSTART").env("LODGED_HTTP_ADDR", &addr);
        told(&command.output().expect("lodge runs"))
    };
    let (code, _, err) = run();
    let (again, _, quiet) = run();
    world.lodge.cli_ok(["shutdown", "--agents"]);
    assert_eq!((code, again), (0, 0), "{err}");
    assert!(
        err.contains("started lodged") && err.contains(&format!("{addr} is taken by another program")),
        "{err}"
    );
    assert_eq!(quiet, "");
}

#[test]
fn help_shows_commands_by_topic_and_explains_concepts() {
    let world = ApiWorld::asleep();
    let help = world.lodge.cli_ok(["--help"]);
    let places: Vec<usize> =
        ["First hour:", "Conversations:", "Background work:", "The daemon:", "Global options:", "Concepts:"]
            .iter()
            .map(|part| help.find(part).unwrap_or_else(|| panic!("`{part}` is missing: {help}")))
            .collect();
    assert!(places.is_sorted(), "{help}");
    assert!(!help.contains('\x1b') && !help.contains("complete-names"), "{help}");
    let first: Vec<&str> =
        help[places[0]..].lines().skip(1).take(5).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(first, ["code", "init", "run", "chat", "prompt"]);
    for (topic, word) in [
        ("agentfile", "FROM scratch"),
        ("models", "lodge provider add"),
        ("jobs", "lodge jobs run"),
        ("security", "NETWORK"),
    ] {
        assert!(world.lodge.cli_ok(["help", topic]).contains(word), "{topic}");
    }
    assert!(world.lodge.cli_ok(["help", "prompt"]).contains("Usage: lodge prompt"));
}
