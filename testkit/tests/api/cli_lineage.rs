//! What people see and type about work whose process died: `kill`, `lineage`, `reap`, and what `ps` says of it.

use std::process::Stdio;

use lodge_testkit::lodge::until;
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{AGENTFILE, ApiWorld, id, kill, told};

const LINEAGE_FIELDS: &str = "id agent status ended_reason policy revivals last_turn";

/// Creates an agent that asks and kills its keeper; returns it as it was before.
async fn asking(api: &mut CheckedClient, name: &str) -> Value {
    api.ok("agent/create", json!({"content": AGENTFILE, "name": name, "revival_policy": "ask"})).await;
    let view = api.agent_is(name, "ready").await;
    kill(i32::try_from(view["pid"].as_u64().expect("a pid")).expect("a pid"), libc::SIGKILL);
    api.agent_is(name, "failed").await;
    view
}

/// What a command prints, with single spaces between its words.
fn plain(world: &ApiWorld, args: &[&str]) -> String {
    let text = world.lodge.cli_ok(args);
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n");
    lines.collect()
}

fn lineage(view: &Value) -> &str {
    view["lineage"].as_str().expect("an id")
}

#[tokio::test]
async fn an_agent_that_waits_for_a_decision_says_so_everywhere_with_the_next_step() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let one = asking(&mut api, "one").await;
    let asks = lineage(&one);
    let words = format!(
        "1 lineage waits for your decision: one (its sandbox died)\n\
         hint: `lodge lineage resolve {asks} --revive` continues it, `--reap` drops it\n"
    );
    let (code, out, err) = world.cli(&["lineage", "ls"]);
    let expected = format!(
        "LINEAGE                 AGENT   STATUS        POLICY   REVIVALS   LAST TURN\n\
         {asks}   one     ask_pending   ask      0          -\n"
    );
    assert_eq!((code, out.as_str(), err.as_str()), (0, expected.as_str(), words.as_str()));
    for args in [vec!["ps"], vec!["ps", "-a"], vec!["lineage", "show", "one"]] {
        let (code, _, err) = world.cli(&args);
        assert_eq!((code, err.as_str()), (0, words.as_str()), "{args:?}");
    }
    assert!(world.lodge.cli_ok(["ps", "-a"]).contains("failed (crashed, waits for your decision)"));
    let shown = plain(&world, &["inspect", "one"]);
    let row = format!("decision waits for yours: `lodge lineage resolve {asks} --revive`");
    assert!(shown.contains(&row) && shown.contains("\npolicy ask\n"), "{shown}");
    // Who wants data alone gets data alone.
    for args in [vec!["-q", "lineage", "ls"], vec!["-q", "ps", "-a"], vec!["--json", "lineage", "ls"]] {
        let (code, _, err) = world.cli(&args);
        assert_eq!((code, err.as_str()), (0, ""), "{args:?}");
    }
    let two = asking(&mut api, "two").await;
    let (_, _, err) = world.cli(&["lineage", "ls"]);
    assert!(err.starts_with("2 lineages wait for your decision: one (its sandbox died), two ("), "{err}");
    let (code, out, err) = world.cli(&["lineage", "resolve", asks, "--revive"]);
    assert_eq!((code, out, err), (0, format!("{asks}\n"), "one continues its work\n".to_owned()));
    let (code, out, err) = world.cli(&["lineage", "resolve", asks, "--reap"]);
    let settled = format!(
        "error: lineage {asks} is active: there is nothing to resolve\n\n\
         hint: `lodge lineage ls` shows which lineages wait for a decision\n"
    );
    assert_eq!((code, out.as_str(), err.as_str()), (1, "", settled.as_str()));
    // By its agent's name, too.
    let settled = world.cli_json(&["--json", "lineage", "resolve", "two", "--reap"]);
    assert_eq!((&settled["id"], &settled["status"]), (&two["lineage"], &json!("reaped")));
    assert_eq!(world.cli(&["lineage", "resolve", "two", "--reap"]).0, 1);
    api.agent_is("one", "ready").await;
    assert_eq!(world.cli(&["ps"]).2, "");
}

#[tokio::test]
async fn a_kill_ends_work_for_good_and_says_so() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    for name in ["one", "two", "three"] {
        world.agent(&mut api, name).await;
    }
    let before = api.ok("agent/get", json!({"agent": "one"})).await;
    let (code, out, err) = world.cli(&["kill", "one", "nobody", "two"]);
    assert_eq!((code, out.as_str()), (1, "one\ntwo\n"));
    for line in [
        "the work of one ended permanently; `lodge start one` starts new work",
        "the work of two ended permanently; `lodge start two` starts new work",
        "error: no agent `nobody`",
    ] {
        assert!(err.contains(line), "{err}");
    }
    let killed = world.cli_json(&["--json", "agent", "kill", "three"]);
    assert_eq!((&killed["name"], &killed["status"]), (&json!("three"), &json!("stopped")));
    let again = world.cli(&["kill", "one"]);
    let words = "the work of one had already ended; `lodge start one` starts new work\n";
    assert_eq!((again.0, again.1.as_str(), again.2.as_str()), (0, "one\n", words));
    until("nothing lives", || world.lodge.keepers().is_empty().then_some(()));
    let listed = world.lodge.cli_ok(["lineage", "ls", "--agent", "one"]);
    assert!(listed.lines().nth(1).is_some_and(|line| line.contains("ended (killed)")), "{listed}");
    // Also one about which a question is open: that is a decision, too.
    let four = asking(&mut api, "four").await;
    assert_eq!(world.lodge.cli_ok(["kill", "four"]), "four\n");
    let shown = world.cli_json(&["--json", "lineage", "show", lineage(&four)]);
    assert_eq!((&shown["status"], &shown["ended_reason"]), (&json!("ended"), &json!("killed")));
    world.lodge.cli_ok(["start", "one"]);
    let lineages = world.cli_json(&["--json", "lineage", "ls", "--agent", "one"]);
    let ids: Vec<&str> = lineages.as_array().expect("a list").iter().map(id).collect();
    assert_eq!((ids.len(), ids[0]), (2, lineage(&before)));
    for field in LINEAGE_FIELDS.split_whitespace() {
        assert!(lineages[0].get(field).is_some(), "`{field}` is missing: {lineages:#}");
    }
    let shown = world.cli_json(&["--json", "lineage", "show", ids[1]]);
    assert_eq!((&shown["status"], &shown["agent_name"]), (&json!("active"), &json!("one")));
    assert_eq!(world.cli_json(&["--json", "lineage", "ls", "--status", "ask_pending"]), json!([]));
    assert_eq!(world.lodge.cli_ok(["-q", "lineage", "ls", "--status", "active"]), format!("{}\n", ids[1]));
}

/// Starts a prompt that waits for its model, and returns it with its agent as it is then.
async fn prompting(world: &ApiWorld, api: &mut CheckedClient, name: &str) -> (std::process::Child, Value) {
    let mut command = world.lodge.cli_command(["prompt", name, "-s", name, "[[hang]]"]);
    let prompt = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("lodge");
    api.agent_is(name, "working").await;
    let view = api.ok("agent/get", json!({"agent": name})).await;
    (prompt, view)
}

fn keeper(view: &Value) -> i32 {
    i32::try_from(view["pid"].as_u64().expect("a pid")).expect("a pid")
}

#[tokio::test]
async fn a_prompt_whose_agent_dies_says_what_is_true_of_its_turn() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    for (name, policy) in [("asks", "ask"), ("reaps", "reap")] {
        api.ok("agent/create", json!({"content": AGENTFILE, "name": name, "revival_policy": policy})).await;
        api.agent_is(name, "ready").await;
    }
    let (prompt, view) = prompting(&world, &mut api, "asks").await;
    kill(keeper(&view), libc::SIGKILL);
    let (code, out, err) = told(&prompt.wait_with_output().expect("an end"));
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.starts_with("error: asks failed before the turn was over\n  because: it crashed"), "{err}");
    let hint = format!("hint: the turn waits for your decision: `lodge lineage resolve {} ", lineage(&view));
    assert!(err.contains(&hint) && !err.contains("lodge start"), "{err}");

    let (prompt, view) = prompting(&world, &mut api, "reaps").await;
    kill(keeper(&view), libc::SIGKILL);
    let (code, _, err) = told(&prompt.wait_with_output().expect("an end"));
    let words = "error: the turn was interrupted\n  because: reaps failed\n  because: it crashed";
    assert!(code == 1 && err.starts_with(words), "{err}");
    assert!(err.contains("hint: run `lodge start reaps`, then `lodge turn retry trn_"), "{err}");
}

#[tokio::test]
async fn a_prompt_whose_agent_is_ended_by_somebody_says_by_what() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    for (name, command, how) in [
        ("one", vec!["stop", "one"], "one was stopped"),
        ("two", vec!["kill", "two"], "two was killed"),
        ("three", vec!["-q", "rm", "-f", "three"], "three was removed"),
    ] {
        world.agent(&mut api, name).await;
        let (prompt, _) = prompting(&world, &mut api, name).await;
        world.lodge.cli_ok(&command);
        let (code, _, err) = told(&prompt.wait_with_output().expect("an end"));
        assert_eq!(code, 1, "{err}");
        let words = format!("error: the turn was interrupted\n  because: {how}\n");
        assert!(err.starts_with(&words), "{err}");
    }
    world.agent(&mut api, "four").await;
    let (prompt, _) = prompting(&world, &mut api, "four").await;
    let session = world.cli_json(&["--json", "session", "show", "four"]);
    let turn = session["messages"][0]["turn"].clone();
    api.ok("turn/interrupt", json!({"turn": turn})).await;
    let (_, _, err) = told(&prompt.wait_with_output().expect("an end"));
    assert!(err.contains("\n  because: `turn/interrupt` was called"), "{err}");
}

#[tokio::test]
async fn a_prompt_whose_agent_dies_too_often_says_how_its_turn_goes_on() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_BACKOFF_BASE", "10ms");
    world.lodge.set_env("LODGED_BACKOFF_CAP", "10ms");
    world.lodge.start();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let (prompt, mut view) = prompting(&world, &mut api, "one").await;
    while view["status"] != "failed" {
        let last = view["pid"].clone();
        kill(keeper(&view), libc::SIGKILL);
        view = api
            .until("agent/get", json!({"agent": "one"}), |view| {
                view["status"] == "failed" || (view["pid"].is_u64() && view["pid"] != last)
            })
            .await;
    }
    let (code, _, err) = told(&prompt.wait_with_output().expect("an end"));
    assert!(code == 1 && err.starts_with("error: one failed before the turn was over\n"), "{err}");
    assert!(err.contains("it died 6 times in a row"), "{err}");
    assert!(err.contains("hint: the turn waits: run `lodge start one` and it continues"), "{err}");
}

#[tokio::test]
async fn a_stale_agent_is_listed_as_one() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_HEARTBEAT_STALE", "300ms");
    world.lodge.set_env("LODGED_HEARTBEAT_CRASHED", "600s");
    world.lodge.start();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let view = api.ok("agent/get", json!({"agent": agent})).await;
    assert!(!world.lodge.cli_ok(["ps"]).contains('('));
    let shown = plain(&world, &["inspect", "one"]);
    for (label, pid) in [("keeper", &view["pid"]), ("runtime", &view["runtime_pid"])] {
        assert!(pid.is_u64() && shown.contains(&format!("\n{label} pid {pid}\n")), "{shown}");
    }
    let sent = json!({"agent": agent, "session": "s", "text": "[[hang]]"});
    api.ok("turn/send", sent).await;
    api.agent_is(&agent, "working").await;
    let keeper = i32::try_from(view["pid"].as_u64().expect("a pid")).expect("a pid");
    kill(keeper, libc::SIGSTOP);
    api.until("agent/get", json!({"agent": agent}), |view| view["liveness"] == "stale").await;
    assert!(world.lodge.cli_ok(["ps"]).contains("working (stale)"));
    assert!(plain(&world, &["inspect", "one"]).contains("\nliveness stale\n"));
    kill(keeper, libc::SIGCONT);
}

#[tokio::test]
async fn a_sweep_tells_what_it_took_away() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    std::fs::create_dir(world.lodge.home().join("run/sbx_stray")).expect("a directory");
    let (code, out, err) = world.cli(&["reap"]);
    let table = "PRUNED      AGENT   WHY\nsbx_stray   -       no agent has it\n";
    assert_eq!((code, out.as_str(), err.as_str()), (0, table, "2 sandboxes: 1 alive, 1 pruned\n"));
    assert_eq!(world.cli(&["reap"]), (0, String::new(), "1 sandbox: 1 alive\n".to_owned()));
    assert_eq!(world.cli_json(&["--json", "reap"])["pruned"], json!([]));
}
