//! Answers that must fit a JSON schema.

use serde_json::{Value, json};

use crate::world::{ApiWorld, id};

const SCRIPT: &str = "turns:
  - when: does not fit
    steps:
      - text: '{\"n\": 3}'
  - when: stubborn
    steps:
      - text: 'never JSON'
  - when: with a tool
    steps:
      - calls: [{name: echo, args: [\"4\"]}]
      - text: '{\"n\": {{tool}}}'
  - steps:
      - text: 'It is three.'
";
const AGENTFILE: &str = "FROM scratch\nNAME counter\nMODEL script/counter\nADD counter.yaml\n\
    BIN echo host:echo \"says it again\"\n";

fn schema() -> Value {
    json!({
        "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false
    })
}

async fn counter(world: &ApiWorld) -> (crate::checked::CheckedClient, String) {
    let mut api = world.checked().await;
    let dir = world.lodge.agent_dir("counter", AGENTFILE, &[("counter.yaml", SCRIPT)]);
    let created = api.ok("agent/create", json!({"path": dir})).await;
    let agent = id(&created).to_owned();
    api.agent_is(&agent, "ready").await;
    (api, agent)
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_asked_for_again_until_it_does() {
    let world = ApiWorld::new();
    let (mut api, agent) = counter(&world).await;
    let sent = api
        .ok("turn/send", json!({"agent": agent, "session": "s", "text": "how many?", "schema": schema()}))
        .await;
    let turn = api.ended(id(&sent)).await;
    assert_eq!(
        (turn["status"].as_str(), turn["text"].as_str()),
        (Some("done"), Some("{\"n\": 3}")),
        "{turn}"
    );
    let statuses: Vec<&str> =
        turn["steps"].as_array().unwrap().iter().map(|step| step["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["failed", "done"]);
    let messages = api.ok("session/messages", json!({"session": "s"})).await;
    let texts: Vec<&str> = messages["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts[..2], ["how many?", "It is three."]);
    assert!(texts[2].contains("does not fit the JSON schema"), "{}", texts[2]);
    // A call of a tool is no answer yet, and the result of one may be.
    let sent = api.ok("turn/send", json!({"agent": agent, "text": "with a tool", "schema": schema()})).await;
    let turn = api.ended(id(&sent)).await;
    assert_eq!(turn["status"], "done", "{turn}");
    assert_eq!(serde_json::from_str::<Value>(turn["text"].as_str().unwrap()).unwrap(), json!({"n": 4}));
}

#[tokio::test]
async fn a_model_that_never_fits_fails_its_turn_and_says_why() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "stubborn").await;
    let sent = api
        .ok("turn/send", json!({"agent": agent, "text": "[[reply:never JSON]]", "schema": schema()}))
        .await;
    let turn = api.ended(id(&sent)).await;
    assert_eq!(turn["status"], "failed", "{turn}");
    assert_eq!(turn["error"]["code"], "turn.schema_mismatch", "{turn}");
    assert!(turn["error"]["message"].as_str().unwrap().contains("not JSON"), "{turn}");
    assert_eq!(turn["steps"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn schemas_that_cannot_be_checked_are_refused_before_anything_is_sent() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "ada").await;
    for bad in [
        json!("a string"),
        json!(7),
        json!({"type": "thing"}),
        json!({"type": "object", "properties": 3}),
        json!({"type": "string", "pattern": 7}),
        json!({"unevaluatedProperties": false}),
        json!({"$ref": "https://elsewhere.example/schema"}),
        json!({"$ref": "#/$defs/none"}),
    ] {
        api.refused("turn/send", json!({"agent": agent, "text": "hi", "schema": bad}), "turn.bad_schema")
            .await;
    }
    assert_eq!(world.mock.requests().expect("its journal").len(), 0);
}

/// Each definition applies the one before it twice: six kilobytes that ask for billions of checks.
fn multiplying_schema() -> Value {
    let apply = |name: &str| json!({"allOf": [{"$ref": format!("#/$defs/{name}")}, {"$ref": format!("#/$defs/{name}")}]});
    let mut defs = serde_json::Map::new();
    defs.insert("d0".into(), json!({"type": "object"}));
    for at in 1..=40 {
        defs.insert(format!("d{at}"), apply(&format!("d{}", at - 1)));
    }
    json!({"$ref": "#/$defs/d40", "$defs": defs})
}

#[tokio::test]
async fn a_small_schema_that_multiplies_is_refused_while_others_are_served() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let (agent, other) = (world.agent(&mut api, "ada").await, world.agent(&mut api, "bob").await);
    let bad = json!({"agent": agent, "text": "hi", "schema": multiplying_schema()});
    assert!(bad["schema"].to_string().len() < 6 * 1024);
    let mut second = world.checked().await;
    let flood = async {
        for _ in 0..20 {
            second.refused("turn/send", bad.clone(), "turn.bad_schema").await;
        }
    };
    let served = async {
        let sent = api.ok("turn/send", json!({"agent": other, "text": "[[reply:fine]]"})).await;
        let turn = api.ended(id(&sent)).await;
        api.ok("info", json!({})).await;
        turn
    };
    let ((), turn) = tokio::join!(flood, served);
    assert_eq!((turn["status"].as_str(), turn["text"].as_str()), (Some("done"), Some("fine")), "{turn}");
}

#[tokio::test]
async fn a_check_that_takes_too_long_fails_its_turn_at_once_with_its_own_code() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    // Every item is compared with every choice.
    let choices: Vec<Value> = (0..200).map(|at| json!({"only": "x".repeat(100), "at": at})).collect();
    let answer = json!(vec![json!({"only": "x".repeat(100), "at": 199}); 3_000]);
    let script = format!("turns:\n  - steps:\n      - text: '{answer}'\n");
    let dir = world.lodge.agent_dir("counter", AGENTFILE, &[("counter.yaml", &script)]);
    let created = api.ok("agent/create", json!({"path": dir})).await;
    let agent = id(&created).to_owned();
    api.agent_is(&agent, "ready").await;
    let schema = json!({"items": {"allOf": vec![json!({"enum": choices}); 4]}});
    let sent = api.ok("turn/send", json!({"agent": agent, "text": "hi", "schema": schema})).await;
    let turn = api.ended(id(&sent)).await;
    assert_eq!(turn["error"]["code"], "turn.schema_not_checked", "{}", turn["error"]);
    assert_eq!(turn["steps"].as_array().unwrap().len(), 1, "another answer would not help");
}

#[tokio::test]
async fn a_script_that_expands_its_tool_result_without_end_fails_its_turn_and_nothing_else() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let bomb = "{{tool}}".repeat(16_000);
    let script = format!(
        "turns:\n  - when: bomb\n    steps:\n      - calls: [{{name: echo, args: ['{}']}}]\n      - text: '{bomb}'\n  \
         - steps: [{{text: fine}}]\n",
        "x".repeat(60_000)
    );
    let dir = world.lodge.agent_dir("counter", AGENTFILE, &[("counter.yaml", &script)]);
    let created = api.ok("agent/create", json!({"path": dir})).await;
    let agent = id(&created).to_owned();
    api.agent_is(&agent, "ready").await;
    let sent = api.ok("turn/send", json!({"agent": agent, "text": "a bomb"})).await;
    let turn = api.ended(id(&sent)).await;
    assert_eq!(turn["error"]["code"], "model.too_large", "{}", turn["error"]);
    let sent = api.ok("turn/send", json!({"agent": agent, "text": "and now?"})).await;
    assert_eq!(api.ended(id(&sent)).await["text"], "fine");
}

#[tokio::test]
async fn the_command_prints_the_json_that_fits_and_nothing_else() {
    let world = ApiWorld::new();
    let (_, agent) = counter(&world).await;
    let file = world.lodge.dir().join("schema.json");
    std::fs::write(&file, schema().to_string()).expect("a file");
    let file = file.to_str().expect("UTF-8");
    let (code, out, err) = world.cli(&["prompt", &agent, "--schema", file, "how many?"]);
    assert_eq!((code, out.as_str()), (0, "{\"n\": 3}\n"), "{err}");
    let (code, out, err) = world.cli(&["prompt", &agent, "--schema", "/nowhere.json", "how many?"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("could not read the schema"), "{err}");
    std::fs::write(file, "{").expect("a file");
    let (code, _, err) = world.cli(&["prompt", &agent, "--schema", file, "how many?"]);
    assert_eq!(code, 2);
    assert!(err.contains("is not JSON"), "{err}");
}
