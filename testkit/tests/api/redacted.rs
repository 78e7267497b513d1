//! Keys of providers in what tools and models say: they are taken out before anybody reads them.

use serde_json::json;

use crate::world::{KEY, World, sh};

/// As a shell writes it, without the key standing in the command.
fn in_shell(format: &str) -> String {
    let (first, second) = KEY.split_at(12);
    sh(&format!("a={first}; rest_of_it={second}; {format}"))
}

fn base64(text: &str) -> String {
    lodge_proto::base64::encode(text.as_bytes())
}

#[tokio::test]
async fn a_key_that_a_tool_or_a_model_says_is_read_by_nobody_in_any_form() {
    let world = World::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let hex: String = KEY.bytes().map(|byte| format!("{byte:02x}")).collect();
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
