//! Whole conversations against strict servers: what goes back, in which place, and to whom.

use lodge_model::{
    CallAnswer, CallContext, CallError, CallParams, ModelMessage, ModelRequest, Provider, ProviderKind,
    Providers, ToolCall, ToolOutcome, ToolSpec,
};
use serde_json::{Value, json};

use crate::common::limits;
use crate::recorded::{KINDS, RecordedEnding, plain, rich};
use crate::strict::{StrictReply, StrictServer};

async fn call(provider: &Provider, request: &ModelRequest) -> Result<CallAnswer, CallError> {
    let context = CallContext::with_limits("/nonexistent", limits());
    lodge_model::call(provider, request, &context, &mut |_| ()).await
}

fn tools() -> Vec<ToolSpec> {
    let parameters = json!({"type": "object", "properties": {"args": {"type": "array"}}});
    ["sh", "cat"]
        .map(|name| ToolSpec {
            name: name.into(),
            description: "Runs.".into(),
            parameters: parameters.clone(),
        })
        .to_vec()
}

fn done(kind: ProviderKind) -> StrictReply {
    StrictReply::saying(plain(kind, &["done"], RecordedEnding::Plain).concat())
}

/// A question, the rich answer to it, and the results of its calls: one good, one bad.
fn messages(answer: CallAnswer) -> Vec<ModelMessage> {
    let CallAnswer { text, calls, reasoning, .. } = answer;
    let mut messages = vec![ModelMessage::user("hi")];
    let ids: Vec<String> = calls.iter().map(|call| call.id.clone()).collect();
    messages.push(ModelMessage::Assistant { text, calls, reasoning });
    let outcomes = [ToolOutcome::Succeeded, ToolOutcome::Failed];
    messages.extend(ids.into_iter().zip(outcomes).map(|(call_id, outcome)| ModelMessage::ToolResult {
        call_id,
        text: format!("{outcome:?}"),
        outcome,
    }));
    messages
}

fn request(messages: Vec<ModelMessage>) -> ModelRequest {
    ModelRequest { system: "be brief".into(), tools: tools(), ..ModelRequest::new("m", messages) }
}

/// What a server of the kind gave, as it must come back.
fn thoughts(kind: ProviderKind) -> Vec<&'static str> {
    match kind {
        ProviderKind::Openai => vec!["\"reasoning_content\":\"hm \""],
        ProviderKind::Anthropic => vec!["\"thinking\":\"hm\"", "\"signature\":\"c2ln\"", "\"data\":\"cmVk\""],
        ProviderKind::Gemini => vec!["\"thoughtSignature\":\"c2ln\"", "\"thoughtSignature\":\"ZW5k\""],
        ProviderKind::Ollama => vec!["\"thinking\":\"hm\""],
        ProviderKind::Script => vec![],
    }
}

async fn rich_answer(kind: ProviderKind) -> CallAnswer {
    let server = StrictServer::start(kind, vec![StrictReply::saying(rich(kind))]).await;
    call(&server.provider(), &request(vec![ModelMessage::user("hi")])).await.expect("an answer")
}

#[tokio::test]
async fn thoughts_go_back_while_tools_run_and_no_longer() {
    for kind in KINDS {
        let server = StrictServer::start(kind, vec![done(kind)]).await;
        let mut said = messages(rich_answer(kind).await);
        call(&server.provider(), &request(said.clone())).await.expect("an answer");
        said.push(ModelMessage::assistant("done", vec![]));
        said.push(ModelMessage::user("and now?"));
        call(&server.provider(), &request(said)).await.expect("an answer");
        let [within, after] = &server.bodies()[..] else { panic!("two requests") };
        for thought in thoughts(kind) {
            assert!(within.to_string().contains(thought), "{kind}: {thought} in {within}");
            assert!(!after.to_string().contains(thought), "{kind}: {thought} in {after}");
        }
    }
}

#[tokio::test]
async fn thoughts_go_to_nobody_but_the_model_that_thought_them() {
    for from in KINDS {
        let said = messages(rich_answer(from).await);
        for kind in KINDS {
            let server = StrictServer::start(kind, vec![done(kind)]).await;
            let mut provider = server.provider();
            if kind == from {
                provider.name = "another account".into();
            }
            call(&provider, &request(said.clone())).await.expect("an answer");
            let body = server.bodies()[0].to_string();
            for thought in thoughts(from) {
                assert!(!body.contains(thought), "{from} to {kind}: {thought} in {body}");
            }
        }
        let server = StrictServer::start(from, vec![done(from)]).await;
        let mut other = said.clone();
        if let ModelMessage::Assistant { reasoning: Some(reasoning), .. } = &mut other[1] {
            reasoning.model = "another".into();
        }
        call(&server.provider(), &request(other)).await.expect("an answer");
        assert!(!server.bodies()[0].to_string().contains("hm"), "{from}");
    }
}

#[tokio::test]
async fn thinking_stands_where_it_stood() {
    let said = messages(rich_answer(ProviderKind::Anthropic).await);
    let server = StrictServer::start(ProviderKind::Anthropic, vec![done(ProviderKind::Anthropic)]).await;
    call(&server.provider(), &request(said)).await.expect("an answer");
    let body = server.bodies().remove(0);
    let types = |at: usize| -> Vec<String> {
        let blocks = body["messages"][at]["content"].as_array().expect("blocks");
        blocks.iter().map(|block| block["type"].as_str().expect("a type").to_owned()).collect()
    };
    assert_eq!(types(1), ["thinking", "text", "redacted_thinking", "tool_use", "tool_use"]);
    assert_eq!(types(2), ["tool_result", "tool_result"]);
    let results = &body["messages"][2]["content"];
    assert_eq!((&results[0]["is_error"], &results[1]["is_error"]), (&Value::Null, &json!(true)));
    // The beginning that stays, and everything up to here.
    let mark = json!({"type": "ephemeral"});
    assert_eq!((&body["system"][0]["cache_control"], &results[1]["cache_control"]), (&mark, &mark));
    assert_eq!(body.to_string().matches("cache_control").count(), 2);
}

#[tokio::test]
async fn failed_calls_are_marked_where_the_protocol_can() {
    let said = messages(rich_answer(ProviderKind::Gemini).await);
    let server = StrictServer::start(ProviderKind::Gemini, vec![done(ProviderKind::Gemini)]).await;
    call(&server.provider(), &request(said)).await.expect("an answer");
    let parts = &server.bodies()[0]["contents"][2]["parts"];
    assert_eq!(parts[0]["functionResponse"]["response"], json!({"output": "Succeeded"}));
    assert_eq!(
        parts[1]["functionResponse"],
        json!({"id": "c2", "name": "cat", "response": {"error": "Failed"}})
    );
}

#[tokio::test]
async fn odd_histories_are_sent_in_a_shape_that_is_allowed() {
    let call_of = |id: &str, name: &str, arguments: &str| ToolCall {
        id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    let odd = vec![
        ModelMessage::user("first"),
        ModelMessage::user("a second one, because the turn was broken off"),
        ModelMessage::assistant(
            "",
            vec![call_of("a.2", "sh", "{not json"), call_of("a:2", "no such tool!", "")],
        ),
        ModelMessage::result("a.2", ""),
        ModelMessage::result("a:2", "there is no such tool"),
        ModelMessage::assistant("  ", vec![]),
        ModelMessage::user(" \n"),
        ModelMessage::assistant("", vec![call_of("a_2", "cat", "[1, 2]")]),
        ModelMessage::result("a_2", "expected an object"),
        ModelMessage::user("third"),
    ];
    for kind in KINDS {
        let server = StrictServer::start(kind, vec![done(kind)]).await;
        let answer = call(&server.provider(), &request(odd.clone())).await;
        assert_eq!(
            answer.map(|answer| answer.text).map_err(|error| error.to_string()),
            Ok("done".into()),
            "{kind}"
        );
        let body = server.bodies()[0].to_string();
        assert!(body.contains("{not json"), "{kind}: what the model wrote is passed on: {body}");
    }
}

#[tokio::test]
async fn a_tool_whose_name_no_protocol_takes_can_still_be_called() {
    for kind in KINDS {
        let server = StrictServer::start(kind, vec![StrictReply::saying(rich(kind)), done(kind)]).await;
        let parameters = json!({"type": "object"});
        // Sent as `sh`, `cat` and, since that name is taken, another one.
        let tools = ["sh", "c.t", "cat"].map(|name| ToolSpec {
            name: name.into(),
            description: String::new(),
            parameters: parameters.clone(),
        });
        let asked =
            ModelRequest { tools: tools.to_vec(), ..ModelRequest::new("m", vec![ModelMessage::user("hi")]) };
        let answer = call(&server.provider(), &asked).await.expect("an answer");
        assert_eq!(answer.calls[1].name, "cat", "{kind}");
        let messages = vec![
            ModelMessage::user("hi"),
            ModelMessage::assistant("", vec![ToolCall { name: "c.t".into(), ..answer.calls[1].clone() }]),
            ModelMessage::result("c2", "meow"),
        ];
        call(&server.provider(), &ModelRequest { messages, ..asked }).await.expect("an answer");
        let sent = server.bodies()[1].to_string();
        assert!(sent.matches("\"c_t\"").count() >= 2 && !sent.contains("c.t"), "{kind}: {sent}");
    }
}

#[tokio::test]
async fn knobs_are_sent_when_they_are_set_and_otherwise_not() {
    let all = CallParams {
        max_tokens: Some(7),
        temperature: Some(0.5),
        top_p: Some(0.9),
        top_k: Some(40),
        presence_penalty: Some(0.1),
        frequency_penalty: Some(0.2),
        seed: Some(42),
        stop: vec!["END".into()],
    };
    for kind in KINDS {
        let server = StrictServer::start(kind, vec![done(kind)]).await;
        let bare = ModelRequest::new("m", vec![ModelMessage::user("hi")]);
        let set = ModelRequest { params: all.clone(), ..bare.clone() };
        for request in [&bare, &set] {
            call(&server.provider(), request).await.expect("an answer");
        }
        let bodies = server.bodies();
        let (bare, knobs): (Value, Value) = match kind {
            ProviderKind::Openai | ProviderKind::Script => (
                json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": true,
                    "stream_options": {"include_usage": true}}),
                json!({"max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "presence_penalty": 0.1,
                    "frequency_penalty": 0.2, "seed": 42, "stop": ["END"]}),
            ),
            // It has no penalties and no seed, and wants a limit.
            ProviderKind::Anthropic => (
                json!({"model": "m", "max_tokens": 32000, "stream": true, "messages": [{"role": "user",
                    "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}]}),
                json!({"max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "stop_sequences": ["END"]}),
            ),
            ProviderKind::Gemini => (
                json!({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}),
                json!({"generationConfig": {"maxOutputTokens": 7, "temperature": 0.5, "topP": 0.9, "topK": 40,
                    "presencePenalty": 0.1, "frequencyPenalty": 0.2, "seed": 42, "stopSequences": ["END"]}}),
            ),
            ProviderKind::Ollama => (
                json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": true}),
                json!({"options": {"num_predict": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 40,
                    "presence_penalty": 0.1, "frequency_penalty": 0.2, "seed": 42, "stop": ["END"]}}),
            ),
        };
        assert_eq!(bodies[0], bare, "{kind}");
        let mut whole = bare;
        for (key, value) in knobs.as_object().expect("knobs") {
            whole[key] = value.clone();
        }
        assert_eq!(bodies[1], whole, "{kind}");
    }
}

#[tokio::test]
async fn a_schema_goes_where_the_protocol_has_a_place_for_it() {
    let schema =
        json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "minimum": 1}}});
    let closed = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}},
        "additionalProperties": false});
    for kind in KINDS {
        let server = StrictServer::start(kind, vec![done(kind)]).await;
        let plain = ModelRequest {
            schema: Some(schema.clone()),
            ..ModelRequest::new("m", vec![ModelMessage::user("hi")])
        };
        let with_tools = ModelRequest { tools: tools(), ..plain.clone() };
        for request in [&plain, &with_tools] {
            call(&server.provider(), request).await.expect("an answer");
        }
        let (pointer, told, also_with_tools) = match kind {
            ProviderKind::Openai | ProviderKind::Script => {
                ("/response_format/json_schema/schema", &schema, true)
            }
            ProviderKind::Anthropic => ("/output_config/format/schema", &closed, true),
            ProviderKind::Gemini => ("/generationConfig/responseJsonSchema", &schema, false),
            ProviderKind::Ollama => ("/format", &schema, false),
        };
        let bodies = server.bodies();
        assert_eq!(bodies[0].pointer(pointer), Some(told), "{kind}");
        assert_eq!(bodies[1].pointer(pointer), Some(told).filter(|_| also_with_tools), "{kind}");
    }
}

#[tokio::test]
async fn a_written_context_window_is_asked_for_where_it_must_be() {
    let server = StrictServer::start(ProviderKind::Ollama, vec![done(ProviderKind::Ollama)]).await;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("providers.yaml");
    let url = "${URL}";
    let text = format!(
        "providers:\n- {{name: work, kind: ollama, base-url: '{url}', api-key: '${{KEY}}', context-windows: {{m: 32768}}}}\n"
    );
    std::fs::write(&path, text).expect("a file");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
    let (address, key) = (server.url.clone(), crate::common::KEY.to_owned());
    let providers = Providers::with_variables(path, move |name| match name {
        "URL" => Some(address.clone()),
        "KEY" => Some(key.clone()),
        _ => None,
    });
    let found = providers.resolve("work/m").expect("a model");
    assert_eq!(found.provider.context_window("m"), Some(32_768));
    call(&found.provider, &ModelRequest::new("m", vec![ModelMessage::user("hi")])).await.expect("an answer");
    assert_eq!(server.bodies()[0]["options"], json!({"num_ctx": 32_768}));
}
