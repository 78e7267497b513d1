//! Work that kills the daemon each time it is computed is set aside; work beside which it is killed is not.

use std::io::Read;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use lodge_testkit::lodge::{PATIENCE, http, until};
use lodge_testkit::registry::{FaultCount, MockRegistry, RegistryFault};
use serde_json::{Value, json};

use crate::bins::tool;
use crate::checked::CheckedClient;
use crate::images_archive::{self, export, import};
use crate::images_moved::{layer, pushed};
use crate::world::{ApiWorld, id, told};

impl ApiWorld {
    /// From here on work of this kind with the word in it kills the daemon.
    fn restart_with_pill(&mut self, pill: &str) {
        self.lodge.kill9();
        self.lodge.set_env("LODGED_PILL", pill);
        self.lodge.start();
    }

    /// The reason why work kills the daemon is gone.
    fn restart_without_pill(&mut self) {
        self.lodge.kill9();
        self.lodge.unset_env("LODGED_PILL");
        self.lodge.start();
    }

    /// Waits until the daemon has died of the pill this many times, and lets the next one live.
    fn die(&mut self, times: usize) {
        for death in 1..=times {
            assert_eq!(self.lodge.wait_killed(PATIENCE), Some(true), "death {death}:\n{}", self.lodge.log());
            if death < times {
                self.lodge.spawn();
            }
        }
        self.lodge.start();
    }
}

/// Sends a search that kills the daemon until it is set aside.
async fn set_request_aside(world: &mut ApiWorld, pill: &Value) {
    set_call_aside(world, "session/search", pill).await;
}

async fn set_call_aside(world: &mut ApiWorld, method: &str, pill: &Value) {
    for _ in 0..3 {
        let mut client = world.lodge.client().await;
        assert!(client.call_value(method, pill.clone()).await.is_err());
        world.die(1);
    }
}

/// Two pieces of work that are set aside, in a world where nothing else is.
pub async fn two_aside(world: &mut ApiWorld) -> [Value; 2] {
    world.restart_with_pill("request:bitter");
    set_request_aside(world, &json!({"query": "bitter"})).await;
    set_request_aside(world, &json!({"query": "bitter too"})).await;
    let mut api = world.checked().await;
    let ids: Vec<Value> = aside(&mut api).await.into_iter().map(|work| work["id"].clone()).collect();
    ids.try_into().expect("two")
}

/// Sends the first message of the session `s`, which kills three daemons. The first may die before it has answered.
async fn send_pill(world: &mut ApiWorld, asked: Value) -> String {
    let mut client = world.lodge.client().await;
    drop(client.call_value("turn/send", asked).await);
    world.die(3);
    let mut api = world.checked().await;
    let turns = api.ok("turn/list", json!({"session": "s"})).await;
    id(&turns["turns"][0]).to_owned()
}

async fn aside(api: &mut CheckedClient) -> Vec<Value> {
    api.ok("quarantine/list", json!({})).await["work"].as_array().expect("a list").clone()
}

#[tokio::test]
async fn a_model_call_that_kills_the_daemon_is_set_aside_and_others_go_on() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let (agent, other) = (world.agent(&mut api, "ada").await, world.agent(&mut api, "bob").await);
    world.restart_with_pill("model_call:bitter");
    let asked = json!({"agent": agent, "session": "s", "text": "bitter [[reply:at last]]"});
    let turn = send_pill(&mut world, asked).await;
    let mut api = world.checked().await;
    let work = aside(&mut api).await;
    assert_eq!(work.len(), 1, "{work:?}");
    assert_eq!(
        (&work[0]["kind"], &work[0]["turn"], &work[0]["agent"], &work[0]["deaths"]),
        (&json!("model_call"), &json!(turn), &json!(agent), &json!(3))
    );
    let info = api.ok("info", json!({})).await;
    assert_eq!(info["quarantine"], json!(work));
    assert!(info["warnings"].to_string().contains("lodge quarantine retry"), "{}", info["warnings"]);
    let view = api.ok("turn/get", json!({"turn": turn})).await;
    assert_eq!((&view["status"], &view["waits_for"]), (&json!("waiting"), &json!("quarantine")));
    // The same agent and another one work on, and so does the next daemon.
    assert_eq!(api.say(&agent, "beside", "[[reply:fine]]").await["text"], "fine");
    assert_eq!(api.say(&other, "s2", "[[reply:fine]]").await["text"], "fine");
    let events = api.ok("event/list", json!({"agent": agent, "kind": "work.quarantined"})).await;
    let kinds: Vec<&str> =
        events["events"].as_array().unwrap().iter().filter_map(|event| event["kind"].as_str()).collect();
    assert_eq!(kinds, ["work.quarantined"]);
    // Retried while it still kills, it is set aside again after three more deaths.
    let (code, _, err) = world.cli(&["quarantine", "retry", work[0]["id"].as_str().unwrap()]);
    // It is recorded before the call is made again, which may be the daemon's end before its answer leaves.
    assert!(code == 0 || code == 3, "{code} {err}");
    world.die(3);
    let mut api = world.checked().await;
    let work = aside(&mut api).await;
    assert_eq!((work.len(), &work[0]["turn"]), (1, &json!(turn)));
    // And when the reason is gone it is answered.
    world.lodge.kill9();
    world.lodge.unset_env("LODGED_PILL");
    world.lodge.start();
    let listed = world.cli_json(&["quarantine", "ls", "--json"]);
    assert_eq!(listed[0]["id"], work[0]["id"]);
    let short = &work[0]["id"].as_str().unwrap()[..12];
    let (code, out, err) = world.cli(&["quarantine", "retry", short]);
    assert_eq!((code, out.trim()), (0, work[0]["id"].as_str().unwrap()), "{err}");
    let mut api = world.checked().await;
    let view = api.ended(&turn).await;
    assert_eq!((&view["status"], &view["text"]), (&json!("done"), &json!("at last")));
    assert!(aside(&mut api).await.is_empty());
    let (code, _, err) = world.cli(&["quarantine", "drop", short]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("lodge quarantine ls"), "{err}");
}

/// A command that waits while daemons come and go. It is killed when it is dropped.
struct WaitingCommand(Child);

impl Drop for WaitingCommand {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl WaitingCommand {
    fn new(world: &ApiWorld, args: &[&str]) -> WaitingCommand {
        let mut command = world.lodge.cli_command(args);
        WaitingCommand(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("lodge runs"))
    }

    /// Its exit code, stdout and stderr. A command that waits on is a failure.
    fn end(mut self) -> (i32, String, String) {
        let status = until("the command ended", || self.0.try_wait().expect("our child"));
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        self.0.stdout.take().expect("a pipe").read_to_end(&mut stdout).expect("its end");
        self.0.stderr.take().expect("a pipe").read_to_end(&mut stderr).expect("its end");
        told(&Output { status, stdout, stderr })
    }
}

fn next_steps(work: &Value) -> String {
    let id = id(work);
    format!("`lodge quarantine retry {id}` tries again, `lodge quarantine drop {id}` drops it")
}

#[tokio::test]
async fn a_prompt_that_waits_ends_when_its_turn_or_one_before_it_is_set_aside() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "ada").await;
    world.restart_with_pill("model_call:bitter");
    let mut api = world.checked().await;
    let first = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": "[[hang]]"})).await;
    // Both wait behind a turn that works, so that both are there when the daemon dies.
    let mut waiters = Vec::new();
    for text in ["bitter [[reply:at last]]", "[[reply:then]]"] {
        waiters.push(WaitingCommand::new(&world, &["prompt", "ada", "-s", "s", text]));
        let queued = waiters.len();
        api.until("session/get", json!({"session": "s"}), |view| {
            view["queued"].as_array().is_some_and(|turns| turns.len() == queued)
        })
        .await;
    }
    // The next turn kills the daemon, which may be before this answer leaves.
    api.last("turn/interrupt", json!({"turn": id(&first)})).await;
    world.die(3);
    let mut api = world.checked().await;
    let work = aside(&mut api).await.remove(0);
    let (pill, hint) = (work["turn"].as_str().unwrap(), next_steps(&work));
    for (waiter, what) in waiters.into_iter().zip([
        "the turn is in quarantine".to_owned(),
        format!("the turn waits behind {pill}, which is in quarantine"),
    ]) {
        let (code, out, err) = waiter.end();
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        let words = format!(
            "error: {what}\n  because: its model call killed the daemon 3 times in a row\n\n\
             hint: the turn stays: {hint}; `lodge session show s` shows it\n"
        );
        assert!(err.ends_with(&words), "{err}");
    }
    // Both turns are still there, and go on when it is decided.
    world.restart_without_pill();
    let (code, _, err) = world.cli(&["quarantine", "retry", id(&work)]);
    assert_eq!(code, 0, "{err}");
    let mut api = world.checked().await;
    assert_eq!(api.ended(pill).await["text"], "at last");
    let turns = api.ok("turn/list", json!({"session": "s"})).await;
    assert_eq!(api.ended(id(&turns["turns"][2])).await["text"], "then");
}

#[tokio::test]
async fn the_first_prompt_of_a_new_agent_ends_when_its_turn_is_set_aside() {
    let mut world = ApiWorld::new();
    world.restart_with_pill("model_call:bitter");
    let dir = world.lodge.agent_dir("ada", "FROM scratch\nNAME ada\nMODEL mock/m\n", &[]);
    let run = WaitingCommand::new(&world, &["run", dir.to_str().expect("a path"), "bitter"]);
    world.die(3);
    let (code, out, err) = run.end();
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    let mut api = world.checked().await;
    let work = aside(&mut api).await.remove(0);
    assert!(err.contains("error: the turn is in quarantine\n"), "{err}");
    assert!(err.contains(&next_steps(&work)), "{err}");
}

#[tokio::test]
async fn work_in_quarantine_is_shown_wherever_people_look() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "ada").await;
    world.agent(&mut api, "bob").await;
    world.restart_with_pill("model_call:bitter");
    let pill = send_pill(&mut world, json!({"agent": agent, "session": "s", "text": "bitter"})).await;
    let mut api = world.checked().await;
    let work = aside(&mut api).await.remove(0);
    let steps = next_steps(&work);
    let what = format!("{}: the model call of {pill} killed the daemon 3 times in a row", id(&work));
    // What is sent from now on is accepted, and waits.
    let prompt = WaitingCommand::new(&world, &["--json", "prompt", "ada", "-s", "s", "[[reply:then]]"]);
    let (code, out, err) = prompt.end();
    let behind: Value = serde_json::from_str(&out).expect("a turn");
    assert_eq!((code, &behind["status"], &behind["waits_for"]), (1, &json!("queued"), &json!("session")));
    assert_eq!(behind["quarantine"], work);
    assert!(
        err.starts_with(&format!("error: the turn waits behind {pill}, which is in quarantine\n")),
        "{err}"
    );
    let mut chat = world.lodge.cli_command(["chat", "ada", "-s", "s"]);
    let mut chat = chat.stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut chat.stdin.take().expect("a pipe"), b"hello\n").expect("a line");
    let (code, _, err) = WaitingCommand(chat).end();
    assert_eq!(code, 1, "{err}");
    assert!(err.contains(&format!("waits behind {pill}")) && err.contains(&steps), "{err}");
    // The API, as `--json` shows it.
    let turn = api.ok("turn/get", json!({"turn": pill})).await;
    assert_eq!((&turn["waits_for"], &turn["quarantine"]), (&json!("quarantine"), &work));
    for (args, path) in [
        (vec!["--json", "session", "show", "s"], "/quarantine/0"),
        (vec!["--json", "session", "show", "s"], "/turn_list/1/quarantine"),
        (vec!["--json", "session", "ls"], "/0/quarantine/0"),
        (vec!["--json", "lineage", "show", "ada"], "/open_turns/0/quarantine"),
        (vec!["--json", "inspect", "ada"], "/quarantine/0"),
        (vec!["--json", "ps"], "/0/quarantine/0"),
    ] {
        assert_eq!(world.cli_json(&args).pointer(path), Some(&work), "{args:?}");
    }
    assert_eq!(world.cli_json(&["--json", "inspect", "bob"]).get("quarantine"), None);
    // The same in words.
    let shown = world.lodge.cli_ok(["session", "show", "s"]);
    for line in [
        format!("  in quarantine: {what} ({steps})\n"),
        format!("\nwaiting: in quarantine ({})\n", id(&work)),
        format!("\nqueued: behind {pill}, which is in quarantine ({})\n", id(&work)),
    ] {
        assert!(shown.contains(&line), "{line}{shown}");
    }
    let shown = world.lodge.cli_ok(["lineage", "show", "ada"]);
    assert!(shown.contains(&format!("; in quarantine: {steps}\n")), "{shown}");
    assert!(shown.contains(&format!("; behind {pill}, which is in quarantine\n")), "{shown}");
    let shown = world.lodge.cli_ok(["inspect", "ada"]);
    assert!(shown.contains(&format!("{what}; {steps}\n")), "{shown}");
    let (_, out, err) = world.cli(&["ps"]);
    assert!(out.contains("ready (1 in quarantine)"), "{out}");
    assert_eq!(err, format!("ada: in quarantine: {what}\nhint: {steps}\n"));
    assert_eq!(world.cli(&["-q", "ps"]).2, "");
    // Decided, it is shown no more.
    world.restart_without_pill();
    let mut api = world.checked().await;
    api.ok("quarantine/drop", json!({"work": work["id"]})).await;
    api.ended(&pill).await;
    assert_eq!(world.cli(&["ps"]).2, "");
    assert_eq!(api.ended(id(&behind)).await["text"], "then");
}

#[tokio::test]
async fn a_schema_check_that_kills_the_daemon_is_set_aside_and_dropped_with_its_turn() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "ada").await;
    world.restart_with_pill("schema_check:bitter");
    let asked =
        json!({"agent": agent, "session": "s", "text": "[[reply:\"bitter\"]]", "schema": {"type": "string"}});
    let turn = send_pill(&mut world, asked).await;
    let mut api = world.checked().await;
    let work = aside(&mut api).await;
    assert_eq!((work.len(), &work[0]["kind"], &work[0]["turn"]), (1, &json!("schema_check"), &json!(turn)));
    let (code, _, err) = world.cli(&["quarantine", "drop", work[0]["id"].as_str().unwrap()]);
    assert_eq!(code, 0, "{err}");
    let view = api.ended(&turn).await;
    assert_eq!((&view["status"], &view["error"]["code"]), (&json!("failed"), &json!("work.quarantined")));
    assert!(aside(&mut api).await.is_empty());
}

#[tokio::test]
async fn a_request_that_kills_the_daemon_is_refused_when_it_is_sent_again() {
    let mut world = ApiWorld::new();
    let pill = json!({"query": "bitter"});
    world.restart_with_pill("request:bitter");
    set_request_aside(&mut world, &pill).await;
    let mut api = world.checked().await;
    let work = aside(&mut api).await;
    assert_eq!(
        (work.len(), &work[0]["kind"], &work[0]["detail"]),
        (1, &json!("request"), &json!("session/search"))
    );
    api.refused("session/search", pill.clone(), "work.quarantined").await;
    api.ok("session/search", json!({"query": "sweet"})).await;
    // The next daemon still refuses it, until an operator decides.
    world.lodge.kill9();
    world.lodge.unset_env("LODGED_PILL");
    world.lodge.start();
    let mut api = world.checked().await;
    api.refused("session/search", pill.clone(), "work.quarantined").await;
    api.ok("quarantine/drop", json!({"work": work[0]["id"]})).await;
    api.ok("session/search", pill).await;
}

#[tokio::test]
async fn a_pull_that_kills_the_daemon_fails_its_agent_which_is_not_tried_again_by_itself() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    tool(&mut api, "cat", "/bin/cat", &["cat"]).await;
    world.restart_with_pill("pull:bitter");
    let mut client = world.lodge.client().await;
    let agentfile = "FROM scratch\nNAME bitter\nMODEL mock/m\nBIN cat cat:latest\n";
    // Its answer may be lost with the daemon.
    drop(client.call_value("agent/create", json!({"content": agentfile, "name": "ada"})).await);
    world.die(3);
    let mut api = world.checked().await;
    let agent = api.agent_is("ada", "failed").await;
    assert!(agent.to_string().contains("lodge quarantine retry"), "{agent}");
    let work = aside(&mut api).await;
    assert_eq!((work.len(), &work[0]["kind"]), (1, &json!("pull")));
    let (code, _, err) = world.cli(&["start", "ada"]);
    assert_eq!(code, 1, "{err}");
    world.lodge.kill9();
    world.lodge.unset_env("LODGED_PILL");
    world.lodge.start();
    let mut api = world.checked().await;
    api.agent_is("ada", "failed").await;
    api.ok("quarantine/retry", json!({"work": work[0]["id"]})).await;
    api.agent_is("ada", "ready").await;
}

#[tokio::test]
async fn a_document_that_kills_the_daemon_fails_the_agent_that_it_was_pulled_for() {
    let registry = MockRegistry::start().expect("a registry");
    let digest = pushed(&registry).await;
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_SHUTDOWN_TIMEOUT", "1ms");
    world.lodge.start();
    let mut api = world.checked().await;
    // So that the pull is not over before the pill is there.
    let answer = RegistryFault::Answer { status: 503, headers: Vec::new(), body: Vec::new() };
    registry.fault("GET", &layer(&registry, &digest, "SOUL.md"), FaultCount::Always, answer);
    let image = format!("{}/team/reader:v1", registry.host());
    api.ok("agent/create", json!({"image": image, "name": "far"})).await;
    // Killed, it may be caught computing the pull, which would be the first of three deaths.
    world.lodge.terminate();
    assert_eq!(world.lodge.wait_killed(PATIENCE), Some(false));
    registry.forget_faults();
    world.lodge.set_env("LODGED_PILL", "document:");
    world.lodge.spawn();
    world.die(3);
    let mut api = world.checked().await;
    let agent = api.agent_is("far", "failed").await;
    assert!(agent.to_string().contains("lodge quarantine retry"), "{agent}");
    let work = aside(&mut api).await;
    assert_eq!((work.len(), &work[0]["kind"]), (1, &json!("pull")), "{work:?}");
    world.restart_without_pill();
    let mut api = world.checked().await;
    api.ok("quarantine/retry", json!({"work": work[0]["id"]})).await;
    api.until("agent/get", json!({"agent": "far"}), |agent| agent["status"] == "ready").await;
}

#[tokio::test]
async fn work_on_images_that_kills_the_daemon_is_refused_when_it_is_asked_for_again() {
    let registry = MockRegistry::start().expect("a registry");
    pushed(&registry).await;
    let mut world = ApiWorld::new();
    let source = |name: &str| json!({"content": format!("FROM scratch\nNAME {name}\nMODEL mock/m\n")});
    let image = format!("{}/team/reader:v1", registry.host());
    for (pill, method, given, other) in [
        ("build:bitter", "image/build", source("bitter"), Some(source("sweet"))),
        (
            "diff:bitter",
            "image/diff",
            json!({"from": "sweet", "to": "bitter"}),
            Some(json!({"from": "bitter", "to": "sweet"})),
        ),
        ("document:", "image/pull", json!({"image": image}), None),
    ] {
        world.restart_with_pill(pill);
        set_call_aside(&mut world, method, &given).await;
        let mut api = world.checked().await;
        let work = aside(&mut api).await;
        assert_eq!(
            (work.len(), &work[0]["kind"], &work[0]["detail"]),
            (1, &json!("request"), &json!(method)),
            "{work:?}"
        );
        api.refused(method, given.clone(), "work.quarantined").await;
        if let Some(other) = other {
            api.ok(method, other).await;
        }
        world.restart_without_pill();
        let mut api = world.checked().await;
        api.refused(method, given.clone(), "work.quarantined").await;
        api.ok("quarantine/drop", json!({"work": work[0]["id"]})).await;
        api.ok(method, given).await;
        assert!(aside(&mut api).await.is_empty());
    }
}

#[tokio::test]
async fn an_archive_that_kills_the_daemon_is_refused_and_others_are_not() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    for name in ["bitter", "sweet"] {
        let source = format!("FROM scratch\nNAME {name}\nMODEL mock/m\n");
        api.ok("image/build", json!({"content": source})).await;
    }
    let [bitter, sweet] = ["image=bitter", "image=sweet"].map(|image| export(&world.lodge, image));
    world.restart_with_pill("import:bitter");
    for _ in 0..3 {
        let bearer = format!("Bearer {}", world.lodge.token());
        let headers = [("authorization", bearer.as_str())];
        // The daemon dies, so there is no answer.
        drop(http(&world.lodge.http_addr(), "POST", "/v1/images/import", &headers, &bitter));
        world.die(1);
    }
    let refused =
        |world: &ApiWorld| images_archive::refused(&world.lodge, "POST", "/v1/images/import", &bitter);
    assert_eq!(refused(&world), (409, "work.quarantined".to_owned()));
    import(&world.lodge, &sweet);
    let mut api = world.checked().await;
    let work = aside(&mut api).await;
    assert_eq!(
        (work.len(), &work[0]["kind"], &work[0]["detail"]),
        (1, &json!("request"), &json!("image/import")),
        "{work:?}"
    );
    world.restart_without_pill();
    assert_eq!(refused(&world).1, "work.quarantined");
    let mut api = world.checked().await;
    api.ok("quarantine/retry", json!({"work": work[0]["id"]})).await;
    assert_eq!(import(&world.lodge, &bitter)["images"][0]["refs"], json!(["bitter:latest"]));
    assert!(aside(&mut api).await.is_empty());
}

#[tokio::test]
async fn twenty_ordinary_kills_in_a_row_set_nothing_aside() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "ada").await;
    let turn =
        id(&api.ok("turn/send", json!({"agent": agent, "session": "s", "text": "[[hang-after:3]]"})).await)
            .to_owned();
    // Moments that are different in every life, all of them within a minute of its start.
    for kill in 0..24_u64 {
        tokio::time::sleep(Duration::from_millis(kill * 37 % 211)).await;
        world.lodge.kill9();
        world.lodge.start();
    }
    let mut api = world.checked().await;
    assert!(aside(&mut api).await.is_empty());
    let view = api.ok("turn/get", json!({"turn": turn})).await;
    assert_eq!(view["status"], "running", "{view}");
    let params = json!({"session": "s"});
    api.until("turn/get", json!({"turn": turn}), |turn| turn["steps"][0]["attempt"].as_u64() > Some(1)).await;
    assert_eq!(api.ok("turn/list", params).await["turns"].as_array().unwrap().len(), 1);
    api.ok("turn/interrupt", json!({"turn": turn})).await;
}
