//! What happens when what dies, beyond what the tests of the API and of the crash scheduler show.

use std::fs;
use std::io::Read;
use std::process::Stdio;

use lodge_testkit::lodge::{is_alive, until};
use lodge_testkit::mock::RequestOutcome;
use serde_json::{Value, json};

use crate::processes::{at_work, events, let_go, lines, pid, runtime_of, stands_still, workspace};
use crate::world::{AGENTFILE, ApiWorld, id, kill, sh};

fn kill9(pid: i32) {
    kill(pid, libc::SIGKILL);
    until("it is dead", || (!is_alive(pid)).then_some(()));
}

#[tokio::test]
async fn a_client_that_dies_in_the_middle_of_an_answer_takes_no_word_of_it_along() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let cursor = api.log().await.len();
    let go = world.lodge.dir().join("go");
    let text = format!("[[chunks:60]] [[hold-after:30:{}]]", go.display());
    let mut client = world.lodge.cli_command(["prompt", "one", &text]);
    let mut client = client.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("lodge runs");
    let mut first = [0; 5];
    client.stdout.take().expect("a pipe").read_exact(&mut first).expect("the beginning of an answer");
    client.kill().expect("our child can be killed");
    client.wait().expect("our child can be waited for");
    let view = api.ok("agent/get", json!({"agent": agent})).await;
    assert_eq!(view["status"], "working", "an answer that is not whole was taken for one");
    fs::write(go, "").expect("a file");
    // The next process continues where the first one was.
    let mut next = api.again(&world.lodge).await;
    next.ok("client/attach", json!({"agent": agent, "since": cursor})).await;
    let seen = next.events_to("turn.finished").await;
    let numbers: Vec<u64> = seen.iter().map(|event| event["seq"].as_u64().expect("a number")).collect();
    assert_eq!(numbers, (cursor as u64 + 1..).take(seen.len()).collect::<Vec<_>>());
    let turn = seen.last().expect("an end")["data"]["turn"].clone();
    let turn = api.ok("turn/get", json!({"turn": turn})).await;
    let words: String = (1..=60).map(|word| format!("word{word} ")).collect();
    assert_eq!((&turn["status"], &turn["text"]), (&json!("done"), &json!(words)), "{turn:#}");
    assert_eq!(world.mock.requests().expect("a log").len(), 1, "the model was asked again");
}

#[tokio::test]
async fn a_daemon_that_dies_in_the_middle_of_an_answer_makes_no_client_print_a_word_twice() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let go = world.lodge.dir().join("go");
    let text = format!("[[chunks:60]] [[hold-after:30:{}]]", go.display());
    let mut client = world.lodge.cli_command(["prompt", "one", &text]);
    let mut client = client.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("lodge runs");
    let mut out = client.stdout.take().expect("a pipe");
    let mut first = [0; 5];
    out.read_exact(&mut first).expect("the beginning of an answer");
    world.lodge.kill9();
    fs::write(go, "").expect("a file");
    world.lodge.start();
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("the rest of the answer");
    assert!(client.wait().expect("our child can be waited for").success());
    let words: String = (1..=60).map(|word| format!("word{word} ")).collect();
    assert_eq!(format!("{}{rest}", String::from_utf8_lossy(&first)), format!("{words}\n"));
    assert_eq!(world.mock.requests().expect("a log").len(), 2, "the model was asked again");
}

#[tokio::test]
async fn a_runtime_that_died_while_no_daemon_was_there_is_replaced_in_its_sandbox_by_the_next_one() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let (busy, idle) = (world.agent(&mut api, "busy").await, world.agent(&mut api, "idle").await);
    let sent = at_work(&world, &mut api, &busy).await;
    let mut before = Vec::new();
    for agent in [&busy, &idle] {
        before.push(api.ok("agent/get", json!({"agent": agent})).await);
    }
    world.lodge.kill9();
    before.iter().for_each(|view| kill9(runtime_of(pid(view))));
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    for (view, status) in before.iter().zip(["working", "ready"]) {
        let back = |now: &Value| now["runs"] == 2 && now["status"] == status;
        let after = api.until("agent/get", json!({"agent": id(view)}), back).await;
        assert_eq!(pid(&after), pid(view), "its sandbox was replaced");
        assert_eq!((&after["incarnation"], &after["lineage"]), (&json!(1), &view["lineage"]));
    }
    let_go(&world, &mut api, &sent).await;
    assert_eq!(api.answer(&idle, "s", "[[reply:fine]]").await, "fine");
}

#[tokio::test]
async fn under_the_policy_ask_a_death_that_nobody_watched_is_asked_about_like_any_other() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let mut before = Vec::new();
    for name in ["runtime", "keeper"] {
        let create = json!({"content": AGENTFILE, "name": name, "revival_policy": "ask"});
        let agent = id(&api.ok("agent/create", create).await).to_owned();
        let view = api.agent_is(&agent, "ready").await;
        before.push((at_work(&world, &mut api, &agent).await, view));
    }
    world.lodge.kill9();
    kill9(runtime_of(pid(&before[0].1)));
    kill9(pid(&before[1].1));
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    for (sent, view) in &before {
        api.agent_is(id(view), "failed").await;
        let lineage = api.ok("lineage/get", json!({"lineage": view["lineage"]})).await;
        assert_eq!(lineage["status"], "ask_pending", "{lineage:#}");
        assert_eq!(api.ok("turn/get", json!({"turn": id(sent)})).await["status"], "waiting");
    }
    until("nothing of them runs", || world.lodge.keepers().is_empty().then_some(()));
    // The tool of the first was ended in an orderly way, so its end is known.
    for ((sent, view), tool) in before.iter().zip(["done", "unknown"]) {
        let decision = json!({"lineage": view["lineage"], "decision": "revive"});
        api.ok("lineage/resolve", decision).await;
        let turn = api.ended(id(sent)).await;
        assert_eq!((&turn["status"], &turn["steps"][1]["status"]), (&json!("done"), &json!(tool)));
        assert_eq!(lines(&workspace(&world, id(view)).join("begun")), 1, "the tool ran twice");
    }
}

#[tokio::test]
async fn a_model_call_goes_on_while_its_runtime_dies_and_is_not_made_again() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let view = api.ok("agent/get", json!({"agent": agent})).await;
    let go = world.lodge.dir().join("go");
    let text = format!("[[chunks:60]] [[hold-after:30:{}]] a long answer", go.display());
    let sent = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": text})).await;
    let requests = || world.mock.requests_for("a long answer").expect("a log");
    until("the model was asked", || (requests().len() == 1).then_some(()));
    kill9(runtime_of(pid(&view)));
    assert_eq!(requests()[0].outcome, None, "the call was broken off when the runtime died");
    fs::write(go, "").expect("a file");
    let turn = api.ended(id(&sent)).await;
    assert_eq!(turn["status"], "done", "{turn:#}");
    assert!(turn["text"].as_str().expect("a text").ends_with("word60 "), "{turn:#}");
    // The model's own note of it comes behind the last word.
    until("the call is over", || (requests()[0].outcome == Some(RequestOutcome::Done)).then_some(()));
    assert_eq!(requests().len(), 1, "it was made again");
    let after = api.ok("agent/get", json!({"agent": agent})).await;
    assert_eq!((&after["runs"], pid(&after)), (&json!(2), pid(&view)));
    assert!(events(&mut api, "turn.step_restarted").await.is_empty());
}

#[tokio::test]
async fn an_answer_that_came_while_the_runtime_could_not_take_it_is_given_to_the_next_one() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let view = api.ok("agent/get", json!({"agent": agent})).await;
    let go = world.lodge.dir().join("go");
    let hold = format!("[[hold:{}]]", go.display());
    let text = format!("{hold} {} [[reply:{{{{tool}}}}]]", sh("echo ran >> ran; echo a late call"));
    let sent = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": text})).await;
    let requests = || world.mock.requests_for("a late call").expect("a log");
    until("the model was asked", || (requests().len() == 1).then_some(()));
    let runtime = runtime_of(pid(&view));
    kill(runtime, libc::SIGSTOP);
    until("it stands still", || stands_still(runtime).then_some(()));
    fs::write(go, "").expect("a file");
    let answered = |turn: &Value| turn["steps"][0]["status"] == "done";
    let turn = api.until("turn/get", json!({"turn": id(&sent)}), answered).await;
    assert_eq!(turn["steps"].as_array().expect("steps").len(), 1, "a tool that nobody asked for: {turn:#}");
    kill9(runtime);
    let turn = api.ended(id(&sent)).await;
    assert_eq!((&turn["status"], &turn["text"]), (&json!("done"), &json!("a late call\n")), "{turn:#}");
    let asked: Vec<usize> = requests().iter().map(|request| request.step).collect();
    assert_eq!(asked, [0, 1], "an answer that was there was asked for again");
    assert_eq!(lines(&workspace(&world, &agent).join("ran")), 1, "the tool ran twice");
}

#[tokio::test]
async fn when_everything_dies_live_agents_come_back_with_their_work_and_stopped_ones_do_not() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let mut agents = Vec::new();
    for name in ["busy", "calling", "idle", "asleep"] {
        agents.push(world.agent(&mut api, name).await);
    }
    api.ok("agent/stop", json!({"agent": "asleep"})).await;
    let tool = at_work(&world, &mut api, &agents[0]).await;
    let next = json!({"agent": agents[0], "session": agents[0], "text": "[[reply:next]]"});
    let queued = api.ok("turn/send", next).await;
    let call =
        api.ok("turn/send", json!({"agent": agents[1], "session": "c", "text": "[[hang-once]]"})).await;
    until("the model was asked", || {
        (!world.mock.requests_for("[[hang-once]]").expect("a log").is_empty()).then_some(())
    });
    let keepers = world.lodge.keepers();
    assert_eq!(keepers.len(), 3);
    world.lodge.kill9();
    keepers.into_iter().for_each(kill9);
    until("nothing is left", || world.lodge.keepers().is_empty().then_some(()));
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    let cut = api.ended(id(&tool)).await;
    assert_eq!((&cut["status"], &cut["steps"][1]["status"]), (&json!("done"), &json!("unknown")), "{cut:#}");
    assert_eq!(lines(&workspace(&world, &agents[0]).join("begun")), 1, "the tool ran twice");
    assert_eq!(api.ended(id(&queued)).await["text"], "next");
    assert_eq!(api.ended(id(&call)).await["status"], "done");
    for agent in &agents[..3] {
        let back = |view: &Value| view["status"] == "ready" && view["incarnation"] == 2;
        api.until("agent/get", json!({"agent": agent}), back).await;
    }
    assert_eq!(api.ok("agent/get", json!({"agent": "asleep"})).await["status"], "stopped");
    assert_eq!(world.lodge.keepers().len(), 3);
    assert!(fs::exists(workspace(&world, &agents[3])).expect("a path"), "its files went with its process");
}
