//! The scripted model: the same request, the same reply, and mistakes with a place.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use lodge_model::{
    CallAnswer, CallContext, CallError, CallLimits, CallUsage, ModelMessage, ModelRequest, Provider,
    ProviderKind, ScriptError, StopReason, ToolCall,
};
use tempfile::TempDir;

const SCRIPT: &str = r#"
turns:
  - when: build
    steps:
      - text: "looking at {{input}}"
        calls:
          - {name: sh, args: [-c, "echo {{turn}}", 5]}
          - {name: cat, stdin: "{{input}}"}
      - calls: [{name: ask, arguments: {question: "is {{tool.1}} ok?", n: 2}}]
      - text: "{{tool.1}} then {{tool}}"
        usage: {input: 11, output: 22, cached: 5}
  - when: slow
    steps: [{text: "one two three", chunk-delay: 10ms, delay: 20ms}]
  - when: pieces
    steps: [{text: "héllo", chunks: 3}]
  - when: status
    steps: [{fail: {status: 429, retry-after: 2s}}]
  - when: cut
    steps: [{text: "one two three", fail: {cut-after: 2}}]
  - when: unreachable
    steps: [{fail: {kind: unreachable}}]
  - when: hang
    steps: [{fail: {kind: hang}}]
  - when: flood
    steps: [{text: "{{input}}{{input}}"}]
  - steps: [{text: "turn {{turn}}"}]
"#;

fn dir_with(name: &str, text: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join(name), text).expect("a script");
    dir
}

fn provider(base_url: Option<&str>) -> Provider {
    Provider::new("script", ProviderKind::Script, base_url, None).expect("a provider")
}

async fn ask(dir: &Path, messages: &[ModelMessage]) -> (Result<CallAnswer, CallError>, Vec<String>) {
    let limits =
        CallLimits { idle: Duration::from_millis(30), answer_bytes_max: 1000, ..CallLimits::default() };
    let context = CallContext::with_limits(dir, limits);
    let (request, mut pieces) = (ModelRequest::new("demo", messages.to_vec()), Vec::new());
    let answer =
        lodge_model::call(&provider(None), &request, &context, &mut |text| pieces.push(text.to_owned()))
            .await;
    (answer, pieces)
}

async fn say(dir: &Path, text: &str) -> (Result<CallAnswer, CallError>, Vec<String>) {
    ask(dir, &[ModelMessage::user(text)]).await
}

#[tokio::test]
async fn a_turn_with_tools_plays_step_by_step_and_every_step_can_be_repeated() {
    let dir = dir_with("demo.yaml", SCRIPT);
    let mut messages = vec![
        ModelMessage::user("before"),
        ModelMessage::assistant("turn 1", vec![]),
        ModelMessage::user("build it"),
    ];
    let mut answers = Vec::new();
    for results in [&["1", "it"][..], &["yes"], &[]] {
        let answer = ask(dir.path(), &messages).await.0.expect("an answer");
        assert_eq!(ask(dir.path(), &messages).await.0.expect("the same"), answer);
        messages.push(ModelMessage::assistant(answer.text.clone(), answer.calls.clone()));
        for (call, text) in answer.calls.iter().zip(results) {
            messages.push(ModelMessage::result(call.id.clone(), *text));
        }
        answers.push(answer);
    }
    let call = |id: &str, name: &str, arguments: &str| ToolCall {
        id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    assert_eq!(answers[0].text, "looking at build it");
    assert_eq!(
        answers[0].calls,
        [
            call("call_2_0_0", "sh", r#"{"args":["-c","echo 2","5"]}"#),
            call("call_2_0_1", "cat", r#"{"args":[],"stdin":"build it"}"#),
        ]
    );
    assert_eq!(answers[1].calls, [call("call_2_1_0", "ask", r#"{"n":2,"question":"is 1 ok?"}"#)]);
    assert_eq!((answers[2].text.as_str(), answers[2].stop), ("1 then yes", StopReason::End));
    assert_eq!(
        answers[2].usage,
        CallUsage { input_tokens: 11, output_tokens: 22, cached_tokens: 5, cache_write_tokens: 0 }
    );
    let past = ask(dir.path(), &messages).await.0.expect_err("no fourth step");
    assert!(
        matches!(past, CallError::Script(ScriptError::PastEnd { line: 3, steps: 3, asked: 4, .. })),
        "{past:?}"
    );
}

#[tokio::test]
async fn text_comes_in_the_pieces_and_at_the_pace_asked_for() {
    let dir = dir_with("demo.yaml", SCRIPT);
    let started = Instant::now();
    let (answer, pieces) = say(dir.path(), "slow").await;
    assert!(started.elapsed() >= Duration::from_millis(40));
    assert_eq!(
        (answer.expect("an answer").text.as_str(), pieces.concat().as_str()),
        ("one two three", "one two three")
    );
    assert_eq!(pieces, ["one ", "two ", "three"]);
    assert_eq!(say(dir.path(), "pieces").await.1, ["hé", "ll", "o"]);
    let (answer, pieces) = say(dir.path(), "anything else").await;
    assert_eq!((answer.expect("an answer").text.as_str(), pieces.len()), ("turn 1", 1));
}

#[tokio::test]
async fn failures_are_those_of_a_real_provider() {
    let dir = dir_with("demo.yaml", SCRIPT);
    let (limited, _) = say(dir.path(), "status").await;
    let limited = limited.expect_err("a refusal");
    assert_eq!((limited.code(), limited.retry_after()), ("model.rate_limited", Some(Duration::from_secs(2))));
    let (cut, pieces) = say(dir.path(), "cut").await;
    assert_eq!((cut.expect_err("a cut").code(), pieces.len()), ("model.cut", 2));
    for (text, code) in [("unreachable", "model.unreachable"), ("hang", "model.idle")] {
        assert_eq!(say(dir.path(), text).await.0.expect_err(text).code(), code);
    }
    let flood = format!("flood{}", "x".repeat(600));
    assert_eq!(say(dir.path(), &flood).await.0.expect_err("too much").code(), "model.too_large");
}

#[tokio::test]
async fn mistakes_name_the_file_and_the_line() {
    for (text, line, part) in [
        ("turns:\n- steps:\n  - txt: a\n", 3, "unknown key `txt`"),
        ("turns:\n- steps:\n  - text: a\n    delay: 50\n", 4, "50ms"),
        ("turns:\n- steps:\n  - text: a\n    fail: {status: 500, cut-after: 1}\n", 4, "one of `status`"),
        ("turns:\n- steps:\n  - fail: {status: 200}\n", 3, "between 400 and 599"),
        (
            "turns:\n- steps:\n  - calls:\n    - {name: a, args: [b], arguments: {}}\n",
            4,
            "cannot be combined",
        ),
        ("turns:\n- steps:\n  - calls:\n    - {args: [b]}\n", 4, "`name` is missing"),
        ("turns:\n- steps:\n  - chunks: 0\n", 3, "expected"),
        ("turns:\n- steps:\n  - fail: {kind: flood}\n", 3, "unreachable"),
        ("turns:\n- steps: [\n", 0, "not valid YAML"),
        ("", 0, ""),
    ] {
        let dir = dir_with("demo.yaml", text);
        let error = say(dir.path(), "x").await.0.expect_err(text);
        let told = error.to_string();
        let CallError::Script(ScriptError::Invalid { path, line: seen, .. }) = error else {
            panic!("{error:?}")
        };
        assert_eq!(path, dir.path().join("demo.yaml"));
        assert!(seen == line || line == 0, "{told} for {text}");
        assert!(told.contains(part), "{told} for {text}");
    }
}

#[tokio::test]
async fn what_the_script_does_not_foresee_is_an_error_that_says_so() {
    let dir = dir_with("demo.yaml", "turns: [{when: a, steps: []}]");
    assert_eq!(say(dir.path(), "b").await.0.expect_err("no turn").code(), "script.no_turn");
    assert_eq!(say(dir.path(), "a").await.0.expect_err("no step").code(), "script.past_end");
    assert_eq!(ask(dir.path(), &[]).await.0.expect_err("no user").code(), "script.no_user_message");
}

#[tokio::test]
async fn an_agents_directory_cannot_lead_elsewhere() {
    let dir = dir_with("real.yaml", SCRIPT);
    let demo = dir.path().join("demo.yaml");
    let code = async || {
        say(dir.path(), "x").await.0.map(|_| "").map_err(|error| error.code()).unwrap_or_else(|code| code)
    };
    assert_eq!(code().await, "script.unreadable");
    symlink("real.yaml", &demo).expect("a link");
    assert_eq!(code().await, "script.not_regular");
    fs::remove_file(&demo).expect("removed");
    fs::hard_link(dir.path().join("real.yaml"), &demo).expect("a second name");
    assert_eq!(code().await, "script.not_regular");
    fs::remove_file(&demo).expect("removed");
    fs::create_dir(&demo).expect("a directory");
    assert_eq!(code().await, "script.not_regular");
    fs::remove_dir(&demo).expect("removed");
    fs::write(&demo, format!("# {}\n", "x".repeat(1 << 20))).expect("a script");
    assert_eq!(code().await, "script.too_large");
}

#[tokio::test]
async fn a_configured_place_is_a_file_or_a_directory_of_scripts() {
    let dir = dir_with("demo.yaml", SCRIPT);
    let context = CallContext::new("/nonexistent");
    let request = ModelRequest::new("demo", vec![ModelMessage::user("hi")]);
    let path = dir.path().to_str().expect("a name");
    for url in [path.to_owned(), format!("file://{path}"), format!("file://{path}/demo.yaml")] {
        let provider = provider(Some(&url));
        let answer = lodge_model::call(&provider, &request, &context, &mut |_| ()).await.expect("an answer");
        assert_eq!(answer.text, "turn 1");
        assert_eq!(lodge_model::test(&provider, None, &context).await.expect("scripts").models, ["demo"]);
    }
}
