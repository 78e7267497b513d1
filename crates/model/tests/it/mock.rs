//! The client against the scripted server in a process of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{KEY, limits, provider};
use lodge_model::{
    CallAnswer, CallContext, CallError, CallLimits, ModelMessage, ModelRequest, Provider, StopReason,
    ToolCall,
};
use lodge_testkit::mock::{MockLlm, RequestOutcome, UNKNOWN_MODEL};
use tempfile::TempDir;

struct MockProvider {
    mock: MockLlm,
    provider: Provider,
    context: CallContext,
    _dir: TempDir,
}

fn bench(limits: CallLimits) -> MockProvider {
    let dir = tempfile::tempdir().expect("a directory");
    let mock = MockLlm::spawn_with(dir.path(), &["--key", KEY]).expect("the mock server");
    let provider = provider(&mock.base_url());
    MockProvider { mock, provider, context: CallContext::with_limits(dir.path(), limits), _dir: dir }
}

impl MockProvider {
    async fn ask(&self, messages: Vec<ModelMessage>) -> Result<CallAnswer, CallError> {
        let request = ModelRequest::new("m", messages);
        let answer = lodge_model::call(&self.provider, &request, &self.context, &mut |_| ()).await;
        if let Err(error) = &answer {
            crate::common::assert_no_key(error);
        }
        answer
    }

    async fn say(&self, text: &str) -> Result<CallAnswer, CallError> {
        self.ask(vec![ModelMessage::user(text)]).await
    }

    /// Waits until the log holds a request of which `is` is true.
    async fn logged(&self, is: impl Fn(&lodge_testkit::mock::RequestLine) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.mock.requests().expect("a log").iter().any(&is) {
            assert!(Instant::now() < deadline, "not logged: {:?}", self.mock.requests());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn plain_answers_count_the_users_messages_and_are_logged() {
    let bench = bench(limits());
    assert_eq!(bench.say("hello").await.expect("an answer").text, "ok 1");
    let assistant = ModelMessage::assistant("ok 1", vec![]);
    let messages = vec![ModelMessage::user("hello"), assistant, ModelMessage::user("again [[no-stream]]")];
    assert_eq!(bench.ask(messages).await.expect("an answer").text, "ok 2");
    bench.logged(|line| line.number == 2 && line.outcome == Some(RequestOutcome::Done)).await;
    let log = bench.mock.requests().expect("a log");
    assert_eq!((log[0].user.as_str(), log[0].messages, log[0].key_ok), ("hello", 1, Some(true)));
    assert_eq!(log[1].lengths, [5, 4, 19]);
}

#[tokio::test]
async fn tools_run_in_steps_and_side_by_side() {
    let bench = bench(limits());
    let user = r#"[[tool:sh|["-c","echo é"]]][[and:cat|[]|"in"]] [[tool:ls|["-l"]]]"#;
    let mut messages = vec![ModelMessage::user(user)];
    for (calls, result) in [(2, "first"), (1, "second")] {
        let answer = bench.ask(messages.clone()).await.expect("calls");
        assert_eq!((answer.stop, answer.calls.len()), (StopReason::ToolCalls, calls));
        let ids: Vec<String> = answer.calls.iter().map(|call: &ToolCall| call.id.clone()).collect();
        messages.push(ModelMessage::assistant(answer.text, answer.calls));
        messages.extend(ids.into_iter().map(|call_id| ModelMessage::result(call_id, result)));
    }
    let ModelMessage::Assistant { calls, .. } = &messages[1] else { panic!("{messages:?}") };
    assert_eq!(calls[0].arguments, r#"{"args":["-c","echo é"]}"#);
    assert_eq!(calls[1].arguments, r#"{"args":[],"stdin":"in"}"#);
    assert_eq!(bench.ask(messages).await.expect("an answer").text, "tool said: second");
}

#[tokio::test]
async fn failures_on_purpose_are_what_they_claim_and_once_is_once() {
    let bench = bench(CallLimits {
        first_byte: Duration::from_millis(200),
        idle: Duration::from_millis(200),
        ..limits()
    });
    for (text, code, then) in [
        ("[[cut:3]]", "model.cut", "ok 1"),
        ("[[status-once:500]]", "model.status", "ok 1"),
        ("[[garbage-once]]", "model.garbage", "ok 1"),
        ("[[error-once]]", "model.error_in_stream", "ok 1"),
        ("[[hang-once]]", "model.idle", "ok 1"),
    ] {
        assert_eq!(bench.say(text).await.expect_err(text).code(), code);
        assert_eq!(bench.say(text).await.expect(text).text, then, "{text}");
    }
    for (text, code) in [("[[cut-always:1]]", "model.cut"), ("[[hang-after:2]]", "model.idle")] {
        for _ in 0..2 {
            assert_eq!(bench.say(text).await.expect_err(text).code(), code);
        }
    }
    let limited = bench.say("[[status:429]][[retry-after:3]]").await.expect_err("a refusal");
    assert_eq!(limited.retry_after(), Some(Duration::from_secs(3)));
}

#[tokio::test]
async fn an_unknown_model_and_a_wrong_key_are_distinguished() {
    let mut bench = bench(limits());
    let request = ModelRequest::new(UNKNOWN_MODEL, vec![ModelMessage::user("hi")]);
    let error =
        lodge_model::call(&bench.provider, &request, &bench.context, &mut |_| ()).await.expect_err("unknown");
    assert_eq!(error.code(), "model.unknown");
    let tested = lodge_model::test(&bench.provider, None, &bench.context).await.expect("a list");
    assert_eq!(tested.models, ["mock"]);
    let wrong = Some(lodge_model::Secret::new("sk-very-secret-wrong"));
    bench.provider =
        Provider::new("work", lodge_model::ProviderKind::Openai, Some(&bench.mock.base_url()), wrong)
            .expect("a provider");
    assert_eq!(bench.say("hi").await.expect_err("refused").code(), "model.refused_auth");
    let error = lodge_model::test(&bench.provider, None, &bench.context).await.expect_err("refused");
    assert_eq!(error.code(), "model.refused_auth");
}

#[tokio::test]
async fn a_dropped_call_is_seen_by_the_server_at_once() {
    let bench = Arc::new(bench(limits()));
    let asking = Arc::clone(&bench);
    let call = tokio::spawn(async move { asking.say("[[chunks:1000:20]] drop me").await });
    bench.logged(|line| line.user.contains("drop me")).await;
    call.abort();
    assert!(call.await.expect_err("it was stopped").is_cancelled());
    bench.logged(|line| line.outcome == Some(RequestOutcome::Gone)).await;
}

#[tokio::test]
async fn text_arrives_piece_by_piece() {
    let bench = bench(limits());
    let request = ModelRequest::new("m", vec![ModelMessage::user("[[reply:héllo]][[chunks:5:1]]")]);
    let mut pieces = Vec::new();
    let answer = lodge_model::call(&bench.provider, &request, &bench.context, &mut |text| {
        pieces.push(text.to_owned())
    })
    .await;
    assert_eq!(pieces, ["h", "é", "l", "l", "o"]);
    assert_eq!(answer.expect("an answer").text, "héllo");
}

#[tokio::test]
async fn calls_one_after_the_other_share_a_connection() {
    let bench = bench(limits());
    for _ in 0..20 {
        bench.say("hi").await.expect("an answer");
        bench.say("[[status:500]]").await.expect_err("a refusal");
    }
    let log = bench.mock.requests().expect("a log");
    assert_eq!(log.iter().map(|line| line.connection).max(), Some(1), "{log:?}");
}
