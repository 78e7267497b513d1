//! Turns that failed or were interrupted and are continued: what they finished is neither lost nor done again.

use std::path::PathBuf;

use lodge_testkit::lodge::until;
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::terminal::TerminalSession;
use crate::world::{AGENTFILE, ApiWorld, KEY, id, sh};

fn workspace(world: &ApiWorld, agent: &str) -> PathBuf {
    world.lodge.home().join("agents").join(agent).join("workspace")
}

fn effects(world: &ApiWorld, agent: &str) -> usize {
    std::fs::read_to_string(workspace(world, agent).join("effects")).expect("a file").lines().count()
}

/// Starts a turn, and waits until its tool runs.
async fn begun(world: &ApiWorld, api: &mut CheckedClient, agent: &str, text: &str) -> String {
    let turn = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": text})).await;
    let began = workspace(world, agent).join("began");
    until("the tool runs", || began.exists().then_some(()));
    std::fs::remove_file(began).expect("a file");
    id(&turn).to_owned()
}

async fn use_key(world: &ApiWorld, api: &mut CheckedClient, key: &str) {
    world.put_providers(&world.provider("mock", &world.mock.base_url()).replace(KEY, key));
    api.ok("daemon/reload", json!({})).await;
}

#[tokio::test]
async fn a_failed_turn_is_continued_and_its_finished_tool_ran_once() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "ada").await;
    let script = "echo ran >> effects; touch began; until test -e go; do sleep 0.02; done; echo seen";
    let old = begun(&world, &mut api, &agent, &format!("{} [[reply:after {{{{tool}}}}]]", sh(script))).await;
    // The key is wrong when the model is called with the result.
    use_key(&world, &mut api, "sk-wrong").await;
    std::fs::write(workspace(&world, &agent).join("go"), "").expect("a file");
    let failed = api.ended(&old).await;
    assert_eq!(failed["status"], "failed", "{failed:#}");
    let hint = format!("run `lodge turn retry {old}` to continue it");
    for args in [["session", "show", "s"], ["turn", "show", &old], ["turn", "wait", &old]] {
        let (_, out, err) = world.cli(&args);
        assert!(format!("{out}{err}").contains(&hint), "{args:?}: {out}{err}");
    }
    use_key(&world, &mut api, KEY).await;
    let (code, out, err) = world.cli(&["turn", "retry", "--session", "s"]);
    assert_eq!((code, out.as_str()), (0, "after seen\n"), "{err}");
    assert!(err.contains("continues after 1 model call and 1 tool call, which are not repeated"), "{err}");
    assert_eq!(effects(&world, &agent), 1);
    // It took the place of the other, with its steps; the cost of those stays there.
    let turns = api.ok("turn/list", json!({"session": "s"})).await;
    let [new] = turns["turns"].as_array().expect("turns").as_slice() else { panic!("{turns:#}") };
    assert_eq!((&new["replaces"], &new["number"], &new["status"]), (&json!(old), &json!(1), &json!("done")));
    let kinds: Vec<&Value> =
        new["steps"].as_array().expect("steps").iter().map(|step| &step["kind"]).collect();
    assert_eq!(kinds, ["model", "tool", "model"]);
    let messages = api.ok("session/messages", json!({"session": "s"})).await;
    let roles: Vec<&Value> =
        messages["messages"].as_array().expect("messages").iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
    // Neither the old one nor the new one can be continued now.
    let inactive = api.refused("turn/retry", json!({"turn": old}), "turn.inactive").await;
    assert!(
        inactive["data"]["hint"].as_str().expect("a hint").contains("lodge session activate s"),
        "{inactive}"
    );
    let (code, _, err) = world.cli(&["turn", "wait", &old]);
    assert_eq!(code, 1);
    let hint = format!("run `lodge session activate s {old}`, then `lodge turn retry {old}`");
    assert!(err.contains(&hint), "{err}");
    let done = api.refused("turn/retry", json!({"turn": new["id"]}), "turn.done").await;
    assert!(done["data"]["hint"].as_str().expect("a hint").contains("lodge session regenerate s"), "{done}");
}

#[tokio::test]
async fn a_retry_that_was_acknowledged_survives_a_kill_and_a_cut_tool_is_reported_and_not_repeated() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "ada").await;
    let text = format!("{} [[reply:told: {{{{tool}}}}]]", sh("echo ran >> effects; touch began; sleep 600"));
    let old = begun(&world, &mut api, &agent, &text).await;
    let open = api.refused("turn/retry", json!({"turn": old}), "turn.open").await;
    let hint = open["data"]["hint"].as_str().expect("a hint");
    assert!(hint.contains("lodge turn attach") && hint.contains("lodge turn interrupt"), "{hint}");
    api.ok("turn/interrupt", json!({"turn": old})).await;
    let params = json!({"turn": old, "request_id": "once"});
    let new = api.ok("turn/retry", params.clone()).await;
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    assert_eq!(api.ok("turn/retry", params).await["id"], new["id"]);
    let ended = api.ended(id(&new)).await;
    let answer = ended["text"].as_str().expect("a text");
    assert!(answer.starts_with("told: [this call had started when the turn was interrupted."), "{ended:#}");
    assert!(answer.contains("outcome is unknown"), "{answer}");
    assert_eq!(effects(&world, &agent), 1);
    assert_eq!(ended["steps"][1]["status"], "interrupted");
    let all = api.ok("turn/list", json!({"session": "s", "all": true})).await;
    assert_eq!(all["turns"].as_array().expect("turns").len(), 2, "one retry is one turn");
}

#[tokio::test]
async fn a_cut_tool_that_is_declared_safe_runs_again() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let content = AGENTFILE.replace("BIN sh host:sh \"a shell\"", "BIN sh host:sh safe \"a shell\"");
    let created = api.ok("agent/create", json!({"content": content, "name": "ada"})).await;
    let agent = id(&created).to_owned();
    api.agent_is(&agent, "ready").await;
    let script = "echo ran >> effects; touch began; test -e go || sleep 600; echo whole";
    let old = begun(&world, &mut api, &agent, &format!("{} [[reply:{{{{tool}}}}]]", sh(script))).await;
    api.ok("turn/interrupt", json!({"turn": old})).await;
    std::fs::write(workspace(&world, &agent).join("go"), "").expect("a file");
    let new = api.ok("turn/retry", json!({"turn": old})).await;
    assert_eq!(api.ended(id(&new)).await["text"], "whole\n");
    assert_eq!(effects(&world, &agent), 2);
}

#[tokio::test]
async fn a_turn_before_the_last_one_is_continued_in_a_fork() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "ada").await;
    let old = api.say(&agent, "s", "[[status-once:400]] [[reply:late answer]]").await;
    assert_eq!(old["status"], "failed");
    api.answer(&agent, "s", "[[reply:another]]").await;
    // The hint names what works.
    let hint = "run `lodge session fork s --at 1`, then `lodge turn retry --session NEW`";
    for args in [["turn", "wait", id(&old)], ["turn", "show", id(&old)]] {
        let (_, out, err) = world.cli(&args);
        let words = format!("{out}{err}");
        assert!(words.contains(hint) && !words.contains("`lodge turn retry trn_"), "{args:?}: {words}");
    }
    let (_, shown, _) = world.cli(&["session", "show", "s"]);
    assert!(!shown.contains("turn retry"), "{shown}");
    let (code, _, err) = world.cli(&["turn", "retry", id(&old)]);
    assert_eq!(code, 1);
    assert!(err.contains("is not the last turn") && err.contains("`lodge session fork s --at 1`"), "{err}");
    let copy = world.lodge.cli_ok(["session", "fork", "s", "--at", "1"]);
    let (code, out, err) = world.cli(&["turn", "retry", "--session", copy.trim()]);
    assert_eq!((code, out.as_str()), (0, "late answer\n"), "{err}");
}

#[tokio::test]
async fn a_chat_continues_its_last_turn() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "ada").await;
    let mut chat = TerminalSession::at(world.lodge.cli_command(["chat", "ada", "-s", "s"]));
    chat.see("starts with your first line");
    chat.type_in("[[status-once:400]] [[reply:late answer]]\r");
    chat.see("the turn failed");
    chat.see("lodge turn retry trn_");
    chat.see("› ");
    chat.type_in("/retry\r");
    chat.see("starts again");
    chat.see("late answer\r\n");
    chat.type_in("/retry\r");
    chat.see("there is nothing to continue");
    chat.type_in("\u{4}");
    assert_eq!(chat.end(), 0);
}

#[tokio::test]
async fn a_turn_is_not_sent_again_before_the_user_knows_which_tools_may_run_twice() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "ada").await;
    api.answer(&agent, "calm", "[[reply:no tools]]").await;
    assert_eq!(world.cli(&["session", "regenerate", "calm"]).0, 0);
    api.answer(&agent, "s", &format!("{} [[reply:done]]", sh("echo ran >> effects"))).await;
    let (code, out, err) = world.cli(&["session", "regenerate", "s"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("`sh`") && err.contains("`--yes` allows it"), "{err}");
    let mut asked = TerminalSession::at(world.lodge.cli_command(["session", "regenerate", "s", "1"]));
    asked.see("ran `sh`");
    asked.see("[y/N] ");
    asked.type_in("n\r");
    asked.see("not sent again");
    assert_eq!(asked.end(), 1);
    assert_eq!(effects(&world, &agent), 1);
    let mut asked = TerminalSession::at(world.lodge.cli_command(["session", "regenerate", "s"]));
    asked.see("[y/N] ");
    asked.type_in("y\r");
    asked.see("done\r\n");
    assert_eq!(asked.end(), 0);
    assert_eq!(world.cli(&["session", "regenerate", "s", "--yes"]).0, 0);
    assert_eq!(effects(&world, &agent), 3);
}
