//! Provider keys in the output of tools and models: they are removed before any reader gets them.

use serde_json::{Value, json};

use crate::jobs_tools::call;
use crate::world::{ApiWorld, KEY, sh};

/// As a shell writes it, without the key standing in the command.
fn in_shell(format: &str) -> String {
    let (first, second) = KEY.split_at(12);
    sh(&format!("a={first}; rest_of_it={second}; {format}"))
}

fn base64(text: &str) -> String {
    lodge_proto::base64::encode(text.as_bytes())
}

#[tokio::test]
async fn a_key_in_the_arguments_of_a_tool_call_reaches_neither_the_tool_nor_a_reader() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    // How many bytes the tool was given, and not what they are.
    let count = sh(&format!("given='{KEY}'; echo ${{#given}}"));
    let said = api.answer("one", "s", &format!("{count} [[reply:{{{{tool}}}}]]")).await;
    assert!(said.contains(&"[secret]".len().to_string()) && !said.contains(&KEY.len().to_string()), "{said}");
    for (method, params) in [
        ("turn/list", json!({"session": "s"})),
        ("session/messages", json!({"session": "s"})),
        ("event/list", json!({"agent": "one", "limit": 500})),
    ] {
        let mut told = api.ok(method, params).await;
        // People may say what they like.
        forget_users(&mut told);
        let told = told.to_string();
        assert!(!told.contains(KEY), "{method}: {told}");
        assert!(method != "session/messages" || told.contains("given='[secret]'"), "{told}");
    }
}

#[tokio::test]
async fn a_key_in_the_output_of_a_job_is_not_reported_to_a_model() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let (first, second) = KEY.split_at(12);
    let script = format!(
        "a={first}; rest_of_it={second}; printf 'out %s%s' $a $rest_of_it; printf 'err %s\\n%s' $a $rest_of_it >&2"
    );
    let asked = json!({"bin": "sh", "args": ["-c", script]});
    let submitted = call(&mut api, &agent, "s", "job_submit", asked).await;
    let submitted: Value = serde_json::from_str(&submitted).expect("JSON");
    let of_job = json!({"job_id": submitted["job_id"]});
    for tool in ["job_wait", "job_status"] {
        let told = call(&mut api, &agent, "s", tool, of_job.clone()).await;
        assert!(told.contains("out [secret]") && told.contains("err [secret]"), "{tool}: {told}");
        assert!(!told.contains(second), "{tool}: {told}");
    }
}

fn forget_users(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.get("role") == Some(&json!("user")) {
                fields.remove("text");
            }
            fields.remove("prompt");
            fields.values_mut().for_each(forget_users);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_users),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[tokio::test]
async fn a_key_that_a_tool_or_a_model_says_is_read_by_nobody_in_any_form() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let hex = lodge_proto::hex::encode(KEY.as_bytes());
    let percent: String = KEY.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let split = KEY.chars().map(String::from).collect::<Vec<_>>().join(" ");
    let encoded = base64(&format!("Authorization: Bearer {KEY}"));
    for (number, form) in [KEY, &hex, &percent, &split, &encoded].into_iter().enumerate() {
        let session = format!("model-{number}");
        let said = api.answer("one", &session, &format!("[[reply:it is {form}, really]]")).await;
        assert!(said.starts_with("it is "), "{said}");
        assert!(said.contains("[secret]") && said.ends_with(", really"), "{said}");
        let turns = api.ok("turn/list", json!({"session": session})).await.to_string();
        assert!(turns.contains("[secret]"), "{turns}");
    }
    let tools = [
        ("plain", "printf '%s%s' $a $rest_of_it"),
        ("split", "printf '%s\\n%s' $a $rest_of_it"),
        ("stderr", "printf '%s%s' $a $rest_of_it >&2"),
    ];
    for (session, script) in tools {
        let text = format!("{} [[reply:{{{{tool}}}}]]", in_shell(script));
        let said = api.answer("one", session, &text).await;
        assert!(said.contains("[secret]") && !said.contains("456789abcdef"), "{session}: {said}");
        let messages = api.ok("session/messages", json!({"session": session})).await;
        for message in messages["messages"].as_array().expect("messages") {
            let text = message["text"].as_str().unwrap_or_default();
            assert!(message["role"] == "user" || !text.contains(KEY), "{message}");
        }
    }
}
