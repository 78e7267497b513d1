//! The agent loop against models that ask for much, for nonsense, or for the same again and again.

use serde_json::{Value, json};

use crate::world::{ApiWorld, id, sh};

#[tokio::test]
async fn calls_of_one_answer_run_side_by_side() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    // Each of the two waits for what the other does.
    let waits = |mine: &str, other: &str| {
        json!(["-c", format!("touch {mine}; until [ -e {other} ]; do sleep 0.02; done; echo met")])
    };
    let text = format!("[[tool:sh|{}]][[and:sh|{}]]", waits("a", "b"), waits("b", "a"));
    let turn = api.say(&agent, "s", &text).await;
    assert_eq!((&turn["status"], &turn["text"]), (&json!("done"), &json!("tool said: met\n")), "{turn:#}");
}

#[tokio::test]
async fn a_model_that_goes_round_in_circles_is_stopped_and_the_reason_names_the_tool() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let turn = api.say(&agent, "s", &sh("echo same").repeat(6)).await;
    assert_eq!(
        (&turn["status"], &turn["error"]["code"]),
        (&json!("failed"), &json!("turn.stuck")),
        "{turn:#}"
    );
    assert!(turn["error"]["message"].as_str().expect("words").contains("`sh`"), "{turn:#}");
    let tools = turn["steps"].as_array().expect("steps").iter().filter(|step| step["kind"] == "tool").count();
    assert_eq!(tools, 4);
    // Calls that change are not a loop, and the session continues.
    let counts = sh("echo x >> count; cat count").repeat(6);
    let turn = api.say(&agent, "s", &counts).await;
    assert_eq!(turn["status"], "done", "{turn:#}");
}

#[tokio::test]
async fn a_turn_that_needs_too_many_steps_fails_and_says_which_setting_it_met() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let content = format!("{}CONFIG max-iterations=2\n", crate::world::AGENTFILE);
    let created = api.ok("agent/create", json!({"content": content, "name": "short"})).await;
    api.agent_is(id(&created), "ready").await;
    let steps: String = (1..=3).map(|number| sh(&format!("echo {number}"))).collect();
    let turn = api.say(id(&created), "s", &steps).await;
    let error = &turn["error"];
    assert_eq!(
        (&turn["status"], &error["code"]),
        (&json!("failed"), &json!("turn.max_iterations")),
        "{turn:#}"
    );
    assert!(error["message"].as_str().expect("words").contains("max-iterations"), "{error}");
}

#[tokio::test]
async fn of_many_calls_in_one_answer_the_first_are_run_and_the_model_hears_of_the_rest() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let call = |number: u32| {
        format!("[[{}:sh|{}]]", if number == 0 { "tool" } else { "and" }, json!(["-c", "echo x >> ran"]))
    };
    let text: String = (0..70).map(call).collect();
    let turn = api.say(&agent, "s", &text).await;
    assert_eq!(turn["status"], "done", "{turn:#}");
    let statuses: Vec<&Value> = turn["steps"]
        .as_array()
        .expect("steps")
        .iter()
        .filter(|step| step["kind"] == "tool")
        .map(|step| &step["status"])
        .collect();
    let count = |status: &str| statuses.iter().filter(|known| **known == status).count();
    assert_eq!((count("done"), count("failed")), (64, 6));
    let ran = std::fs::read_to_string(world.lodge.home().join("agents").join(&agent).join("workspace/ran"));
    assert_eq!(ran.expect("a file").lines().count(), 64);
}

#[tokio::test]
async fn a_tool_that_is_called_without_arguments_runs() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    for call in
        ["[[tool:id|{}]]", "[[tool:id|{\"args\": []}]]", "[[tool:id|{\"args\": [], \"stdin\": \"\"}]]"]
    {
        let said = api.answer(&agent, "s", &format!("{call} [[reply:{{{{tool}}}}]]")).await;
        assert!(said.contains("uid="), "{call}: {said}");
    }
}

#[tokio::test]
async fn nonsense_is_answered_to_the_model_and_the_turn_goes_on() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    for (call, says) in [
        ("[[tool:rm|[\"-rf\"]]]", "there is no tool `rm`"),
        ("[[tool:sh|{\"args\": \"ls\"}]]", "`args` is not a list"),
        ("[[tool:sh|[\"-c\",\"exit 3\"]]]", "[exit code 3]"),
    ] {
        let turn = api.say(&agent, "s", call).await;
        assert_eq!(turn["status"], "done", "{call}: {turn:#}");
        assert!(turn["text"].as_str().expect("a text").contains(says), "{call}: {turn:#}");
    }
}
