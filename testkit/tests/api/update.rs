//! Agents that are restarted or updated, and keep their id, their sessions and their files.

use std::fs;

use lodge_testkit::lodge::until;
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{AGENTFILE, ApiWorld, id, sh};

/// A second model, offered by the same provider.
const OTHER: &str = "mock/other";

async fn model_asked(api: &mut CheckedClient, turn: &Value) -> String {
    let turn = api.ok("turn/get", json!({"turn": turn["id"]})).await;
    turn["steps"][0]["name"].as_str().expect("a model").to_owned()
}

fn keepers(world: &ApiWorld, count: usize) {
    until("the right number of keepers", || (world.lodge.keepers().len() == count).then_some(()));
}

#[tokio::test]
async fn a_restart_keeps_everything_but_the_process() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    api.answer(&agent, "s", &format!("{} [[reply:x]]", sh("echo kept > kept"))).await;
    let before = api.ok("agent/get", json!({"agent": "one"})).await;
    let hangs = api.ok("turn/send", json!({"agent": agent, "session": "t", "text": "[[hang]]"})).await;
    let restarted = api.ok("agent/restart", json!({"agent": "one", "request_id": "r"})).await;
    assert_eq!(restarted["id"], before["id"]);
    assert_eq!(api.ended(id(&hangs)).await["status"], "interrupted");
    let after = api.agent_is("one", "ready").await;
    assert_eq!(after["incarnation"].as_u64(), before["incarnation"].as_u64().map(|count| count + 1));
    assert_eq!(after["lineage"], before["lineage"]);
    assert_ne!(after["pid"], before["pid"]);
    let text = api.say(&agent, "s", &format!("{} [[reply:{{{{tool}}}} {{{{turn}}}}]]", sh("cat kept"))).await;
    let text = text["text"].as_str().expect("a text").to_owned();
    assert!(text.contains("kept") && text.ends_with('2'), "the same files and the same conversation: {text}");
    keepers(&world, 1);
    let again = api.ok("agent/restart", json!({"agent": "one", "request_id": "r"})).await;
    assert_eq!(again, restarted, "a resend is one restart");
    assert_eq!(api.agent_is("one", "ready").await["incarnation"], after["incarnation"]);
    let (code, out, err) = world.cli(&["restart", "one"]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "one\n", ""));
    assert_eq!(world.cli(&["agent", "restart", "nobody"]).0, 1);
}

#[tokio::test]
async fn a_daemon_that_dies_anywhere_in_a_restart_leaves_the_next_one_a_running_agent() {
    for point in ["before_commit:2", "before_commit:3", "during_stop:1", "during_start:1", "after_adoption:1"]
    {
        let mut world = ApiWorld::new();
        let mut api = world.checked().await;
        let agent = world.agent(&mut api, "one").await;
        world.lodge.kill9();
        world.lodge.set_env("LODGED_CRASH_AT", point);
        // It may die while it starts, too.
        world.lodge.spawn();
        if world.lodge.try_wait_ready().is_ok()
            && let Ok(mut client) = world.lodge.try_client().await
        {
            drop(client.call_value("agent/restart", json!({"agent": agent, "request_id": "r"})).await);
        }
        let died = world.lodge.wait_killed(lodge_testkit::lodge::PATIENCE);
        world.lodge.unset_env("LODGED_CRASH_AT");
        if died.is_none() {
            world.lodge.kill9();
        }
        world.lodge.start();
        let mut api = api.again(&world.lodge).await;
        api.ok("agent/restart", json!({"agent": agent, "request_id": "r"})).await;
        let ready = api.agent_is("one", "ready").await;
        assert_eq!(ready["incarnation"], 2, "{point}: restarted once");
        assert_eq!(api.answer(&agent, "s", "[[reply:here]]").await, "here", "{point}");
        keepers(&world, 1);
    }
}

#[tokio::test]
async fn running_turns_finish_on_the_old_settings_and_the_next_has_the_new_ones() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let go = world.lodge.dir().join("go");
    let text = format!("{} [[hold:{}]][[reply:old]]", sh("echo $COLOUR"), go.display());
    let running = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": text})).await;
    api.until("turn/get", json!({"turn": running["id"]}), |turn| turn["status"] == "running").await;
    let given = json!({"agent": "one", "model": OTHER, "env": {"COLOUR": "red"}, "configs": {"max-steps": "7"},
        "labels": {"team": "a"}});
    let updated = api.ok("agent/update", given).await;
    assert_eq!(updated["in_force"], "after_turns");
    assert_eq!(updated["after_turns"], json!([running["id"]]));
    let text = format!("{} [[reply:{{{{tool}}}}]]", sh("echo colour $COLOUR"));
    let next = api.ok("turn/send", json!({"agent": agent, "session": "t", "text": text})).await;
    assert_eq!((&next["status"], &next["waits_for"]), (&json!("queued"), &json!("update")));
    let shown = api.ok("turn/get", json!({"turn": next["id"]})).await;
    assert_eq!(shown["waits_for"], "update");
    fs::write(&go, "").expect("a file");
    assert_eq!(api.ended(id(&running)).await["text"], "old");
    assert_eq!(model_asked(&mut api, &running).await, "mock/m");
    let ended = api.ended(id(&next)).await;
    assert!(ended["text"].as_str().expect("a text").contains("colour red"), "{ended}");
    assert_eq!(model_asked(&mut api, &next).await, OTHER);
    let detail = api.ok("agent/get", json!({"agent": "one"})).await;
    assert_eq!((&detail["id"], &detail["configs"]["max-steps"]), (&json!(agent), &json!("7")));
    assert_eq!((&detail["labels"]["team"], &detail["env_keys"]), (&json!("a"), &json!(["COLOUR"])));
    let yaml = fs::read_to_string(world.lodge.home().join("agents").join(&agent).join("etc/agent.yaml"));
    let yaml = yaml.expect("agent.yaml");
    assert!(yaml.contains("max-steps") && yaml.contains(OTHER), "{yaml}");
    keepers(&world, 1);
}

#[tokio::test]
async fn a_stopped_agent_gets_it_at_its_next_start_and_what_is_taken_away_is_gone() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let given =
        json!({"content": AGENTFILE, "name": "one", "env": {"A": "1", "B": "2"}, "labels": {"x": "y"}});
    api.ok("agent/create", given).await;
    api.agent_is("one", "ready").await;
    api.ok("agent/stop", json!({"agent": "one"})).await;
    let given = json!({"agent": "one", "env": {"A": null, "C": "3"}, "labels": {"x": null}, "model": OTHER});
    let updated = api.ok("agent/update", given).await;
    assert_eq!((&updated["in_force"], &updated["status"]), (&json!("next_start"), &json!("stopped")));
    api.ok("agent/start", json!({"agent": "one"})).await;
    let detail = api.agent_is("one", "ready").await;
    assert_eq!((&detail["env_keys"], &detail["labels"]), (&json!(["B", "C"]), &json!({})));
    let turn = api.say("one", "s", "[[reply:x]]").await;
    assert_eq!(model_asked(&mut api, &turn).await, OTHER);
}

#[tokio::test]
async fn another_image_brings_its_tools_and_keeps_what_was_chosen_for_the_agent() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let given = json!({"content": "FROM scratch\nNAME old\nMODEL mock/m\nLABEL from=old\nBIN cat host:cat \"files\"\n",
        "name": "one", "env": {"MINE": "1"}, "labels": {"mine": "1"}});
    let agent = id(&api.ok("agent/create", given).await).to_owned();
    api.agent_is("one", "ready").await;
    api.answer(&agent, "s", "[[reply:first]]").await;
    let new = "FROM scratch\nNAME new\nMODEL mock/other\nLABEL from=new\nBIN sh host:sh \"a shell\"\n";
    let dir = world.lodge.agent_dir("new", new, &[]);
    let (code, out, err) = world.cli(&["agent", "update", "one", "--image", dir.to_str().expect("a path")]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "one\n", "one is updated\n"));
    let detail = api.agent_is("one", "ready").await;
    assert_eq!(
        (&detail["id"], &detail["image"], &detail["model"]),
        (&json!(agent), &json!("new:latest"), &json!(OTHER))
    );
    assert_eq!(detail["labels"], json!({"from": "new", "mine": "1"}));
    assert_eq!(detail["env_keys"], json!(["MINE"]));
    let tools: Vec<&Value> =
        detail["tools"].as_array().expect("tools").iter().map(|tool| &tool["name"]).collect();
    assert_eq!(tools, ["sh"]);
    let text = format!("{} [[reply:{{{{turn}}}} {{{{tool}}}}]]", sh("echo $MINE"));
    assert!(api.answer(&agent, "s", &text).await.starts_with('2'), "the conversation goes on");
}

#[tokio::test]
async fn bad_input_is_refused_whole_and_changes_nothing() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let before = api.ok("agent/get", json!({"agent": "one"})).await;
    for (bad, code) in [
        (json!({}), "params.invalid"),
        (json!({"model": "nonsense"}), "model.bad_name"),
        (json!({"env": {"PATH": "/"}}), "agent.bad_env"),
        (json!({"env": {"lower case": "x"}}), "agent.bad_env"),
        (json!({"mounts": [{"host": "/no/such/place", "target": "/x"}]}), "agent.bad_mount"),
        (json!({"mounts": [{"host": "/usr", "target": "/etc/x"}]}), "agent.bad_mount"),
        (json!({"limits": {"memory": "much"}}), "params.invalid"),
        (json!({"limits": {"patience": "1"}}), "params.invalid"),
        (json!({"revival_policy": "hope"}), "params.invalid"),
        (json!({"content": "NONSENSE\n"}), "agentfile.invalid"),
        (json!({"content": AGENTFILE, "path": "/tmp"}), "params.invalid"),
        (json!({"image": "no-such-image"}), "image.not_found"),
        (json!({"build_args": {"A": "1"}}), "params.invalid"),
        (json!({"content": format!("{AGENTFILE}CONFIG key!\n")}), "params.invalid"),
    ] {
        let mut given = json!({"agent": "one", "labels": {"changed": "yes"}});
        if bad == json!({}) {
            given = json!({"agent": "one"});
        }
        for (key, value) in bad.as_object().expect("an object") {
            given[key] = value.clone();
        }
        api.refused("agent/update", given, code).await;
    }
    api.refused("agent/update", json!({"agent": "nobody", "model": OTHER}), "agent.not_found").await;
    let mut after = api.ok("agent/get", json!({"agent": "one"})).await;
    after["last_heartbeat_at"] = before["last_heartbeat_at"].clone();
    assert_eq!(after, before);
    assert_eq!(world.cli(&["agent", "update", "one"]).0, 2, "there is nothing to change");
}

#[tokio::test]
async fn limits_mounts_and_the_policy_are_changed_one_by_one() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let shared = world.lodge.dir().join("shared");
    fs::create_dir(&shared).expect("a directory");
    fs::write(shared.join("note"), "seen").expect("a file");
    let mount = json!({"host": shared, "target": "/shared", "read_only": true});
    let given = json!({"agent": "one", "mounts": [mount], "limits": {"pids": "99", "revival-policy": "ask"}});
    api.ok("agent/update", given).await;
    let detail = api.agent_is("one", "ready").await;
    assert_eq!(
        (&detail["revival_policy"], &detail["mounts"][0]["target"]),
        (&json!("ask"), &json!("/shared"))
    );
    let root = detail["root"].as_str().expect("a root");
    let text = format!("{} [[reply:{{{{tool}}}}]]", sh(&format!("cat {root}/shared/note")));
    assert!(api.answer("one", "s", &text).await.contains("seen"));
    let detail = api.ok("agent/update", json!({"agent": "one", "unmounts": ["/shared"]})).await;
    assert_eq!(detail["mounts"], json!([]));
    api.agent_is("one", "ready").await;
}

#[tokio::test]
async fn an_update_of_an_agent_that_lacks_its_provider_brings_it_up() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    api.ok("agent/create", json!({"content": "FROM scratch\nNAME one\nMODEL later/m\n"})).await;
    api.until("agent/get", json!({"agent": "one"}), |view| view["retry_at"].is_string()).await;
    let (code, _, err) = world.cli(&["update", "one", "--model", "mock/m"]);
    assert_eq!((code, err.as_str()), (0, "one is updated\n"));
    assert_eq!(api.answer("one", "s", "[[reply:here]]").await, "here");
}

#[tokio::test]
async fn a_daemon_that_dies_while_an_update_waits_for_its_turn_still_makes_it() {
    for at in
        ["before it is recorded", "while the turn runs", "after_outcome:1", "during_stop:1", "during_start:1"]
    {
        let mut world = ApiWorld::new();
        let mut api = world.checked().await;
        let agent = world.agent(&mut api, "one").await;
        let go = world.lodge.dir().join("go");
        let text = format!("[[hold:{}]] {} [[reply:old]]", go.display(), sh("true"));
        world.lodge.kill9();
        match at {
            "before it is recorded" | "while the turn runs" => {}
            point => world.lodge.set_env("LODGED_CRASH_AT", point),
        }
        world.lodge.start();
        let mut api = api.again(&world.lodge).await;
        api.agent_is("one", "ready").await;
        let turn = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": text})).await;
        let update = json!({"agent": agent, "env": {"COLOUR": "red"}, "request_id": "u"});
        if at != "before it is recorded" {
            assert_eq!(api.ok("agent/update", update.clone()).await["in_force"], "after_turns");
        }
        if at.contains(':') {
            fs::write(&go, "").expect("a file");
            assert!(world.lodge.wait_killed(lodge_testkit::lodge::PATIENCE).is_some(), "{at}");
        } else {
            world.lodge.kill9();
        }
        world.lodge.unset_env("LODGED_CRASH_AT");
        world.lodge.start();
        let mut api = api.again(&world.lodge).await;
        api.ok("agent/update", update).await;
        fs::write(&go, "").expect("a file");
        assert_eq!(api.ended(id(&turn)).await["text"], "old", "{at}");
        let text = format!("{} [[reply:{{{{tool}}}}]]", sh("echo colour $COLOUR"));
        assert!(api.answer(&agent, "t", &text).await.contains("colour red"), "{at}");
        let updates = api.log().await.iter().filter(|event| event["kind"] == "agent.updated").count();
        assert_eq!(updates, 1, "{at}");
        keepers(&world, 1);
    }
}
