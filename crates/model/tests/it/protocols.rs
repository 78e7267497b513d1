//! Every protocol over real sockets: every way an answer can arrive, and every way it can fail.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lodge_model::{
    AnswerLimit, CallAnswer, CallContext, CallError, CallLimits, ModelMessage, ModelRequest, ProviderKind,
    Repetition, SilentPhase, StopReason, ToolCall, UnreadableAnswer,
};

use crate::common::{KEY, assert_no_key, is_repeated, limits};
use crate::recorded::{
    KINDS, RecordedEnding, TEXT, breaking, calls, events, listing, plain, rich, rich_usage,
};
use crate::strict::{StrictReply, StrictReplyEnd, StrictServer};

async fn ask_with(server: &StrictServer, limits: CallLimits) -> (Result<CallAnswer, CallError>, String) {
    ask_in(server, &CallContext::with_limits("/nonexistent", limits)).await
}

async fn ask_in(server: &StrictServer, context: &CallContext) -> (Result<CallAnswer, CallError>, String) {
    let (mut seen, request) = (String::new(), ModelRequest::new("m", vec![ModelMessage::user("hi")]));
    let answer =
        lodge_model::call(&server.provider(), &request, context, &mut |text| seen.push_str(text)).await;
    match &answer {
        Ok(answer) => assert_eq!(answer.text, seen, "what was previewed is what was answered"),
        Err(error) => assert_no_key(error),
    }
    (answer, seen)
}

async fn ask(kind: ProviderKind, reply: StrictReply) -> Result<CallAnswer, CallError> {
    let server = StrictServer::start(kind, vec![reply]).await;
    ask_with(&server, limits()).await.0
}

fn bytes(pieces: &[String]) -> Vec<Vec<u8>> {
    pieces.iter().map(|piece| piece.as_bytes().to_vec()).collect()
}

fn check_rich(kind: ProviderKind, answer: &CallAnswer) {
    let call = |id: &str, name: &str, arguments: &str| ToolCall {
        id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    assert_eq!(answer.text, TEXT, "{kind}");
    assert_eq!(
        answer.calls,
        [call("c1", "sh", "{\"args\":[\"\u{e9}\"]}"), call("c2", "cat", "{}")],
        "{kind}"
    );
    assert_eq!((answer.stop, answer.usage), (StopReason::ToolCalls, rich_usage(kind)), "{kind}");
    let reasoning = answer.reasoning.as_ref().expect("thoughts");
    assert_eq!((reasoning.kind, reasoning.provider.as_str(), reasoning.model.as_str()), (kind, "work", "m"));
}

#[tokio::test]
async fn an_answer_is_the_same_however_its_bytes_are_cut_into_packets() {
    let context = CallContext::with_limits("/nonexistent", limits());
    for kind in KINDS {
        let stream = rich(kind).into_bytes();
        let whole = ask(kind, StrictReply::saying(&stream)).await.expect("an answer");
        check_rich(kind, &whole);
        let replies: Vec<StrictReply> = (1..stream.len())
            .map(|cut| StrictReply::stream(vec![stream[..cut].to_vec(), stream[cut..].to_vec()]))
            .chain([StrictReply::stream(stream.iter().map(|byte| vec![*byte]).collect())])
            .collect();
        let count = replies.len();
        let server = StrictServer::start(kind, replies).await;
        for cut in 0..count {
            let (answer, _) = ask_in(&server, &context).await;
            assert_eq!(answer.expect("an answer"), whole, "{kind} cut at {cut}");
        }
    }
}

#[tokio::test]
async fn an_answer_whose_connection_ends_at_any_byte_is_complete_or_cut_and_never_wrong() {
    let context = CallContext::with_limits("/nonexistent", limits());
    for kind in KINDS {
        for end in [StrictReplyEnd::Broken, StrictReplyEnd::Closed] {
            let stream = rich(kind).into_bytes();
            let replies = (0..=stream.len())
                .map(|cut| StrictReply { end, ..StrictReply::saying(&stream[..cut]) })
                .collect();
            let server = StrictServer::start(kind, replies).await;
            let mut complete = 0;
            for cut in 0..=stream.len() {
                match ask_in(&server, &context).await.0 {
                    Ok(answer) => {
                        assert_eq!((answer.text.as_str(), answer.calls.len()), (TEXT, 2), "{kind} at {cut}");
                        complete += 1;
                    }
                    Err(error) => {
                        assert_eq!(
                            (error.code(), is_repeated(&error)),
                            ("model.cut", true),
                            "{kind} at {cut}: {error}"
                        );
                    }
                }
            }
            assert!((1..200).contains(&complete), "{kind}: {complete} of them were complete");
        }
    }
}

#[tokio::test]
async fn a_slow_answer_is_waited_for_and_a_silent_one_is_not() {
    let mut each = tokio::task::JoinSet::new();
    for kind in KINDS {
        each.spawn(async move {
            slow(kind).await;
            silent(kind).await;
        });
    }
    while let Some(done) = each.join_next().await {
        done.expect("no panic");
    }
}

/// Longer in all than the provider may be silent.
async fn slow(kind: ProviderKind) {
    let patience = Duration::from_secs(2);
    let limits = CallLimits { first_byte: patience, idle: patience, ..limits() };
    let pieces = bytes(&plain(kind, &["a", "b", "c", "d", "e", "f", "g", "h"], RecordedEnding::Plain));
    let slow = StrictReply { pause: Duration::from_millis(300), ..StrictReply::stream(pieces) };
    let server = StrictServer::start(kind, vec![slow]).await;
    assert_eq!(ask_with(&server, limits).await.0.expect("an answer").text, "abcdefgh", "{kind}");
}

async fn silent(kind: ProviderKind) {
    let pieces = bytes(&plain(kind, &["a", "b", "c"], RecordedEnding::Plain));
    let brief =
        CallLimits { first_byte: Duration::from_millis(60), idle: Duration::from_millis(40), ..limits() };
    for (said, expected) in [(0, SilentPhase::BeforeTheFirstByte), (3, SilentPhase::WithinTheAnswer)] {
        let patient = CallLimits { first_byte: limits().first_byte, ..brief };
        let limits = if said == 0 { brief } else { patient };
        let silent =
            StrictReply { end: StrictReplyEnd::Silence, ..StrictReply::stream(pieces[..said].to_vec()) };
        let server = StrictServer::start(kind, vec![silent]).await;
        let error = ask_with(&server, limits).await.0.expect_err("silence");
        assert!(matches!(error, CallError::Idle { when, .. } if when == expected), "{kind}: {error:?}");
        assert!(is_repeated(&error) && error.hint().is_some());
    }
}

#[tokio::test]
async fn a_list_of_models_is_not_waited_for_as_long_as_an_answer() {
    for kind in KINDS {
        let silent = StrictReply { end: StrictReplyEnd::Silence, ..StrictReply::stream(Vec::new()) };
        let server = StrictServer::start(kind, vec![silent]).await;
        let listing = Duration::from_millis(60);
        let context = CallContext::with_limits("/nonexistent", CallLimits { listing, ..limits() });
        let error = lodge_model::test(&server.provider(), None, &context).await.expect_err("silence");
        assert!(matches!(error, CallError::TooLong { limit, .. } if limit == listing), "{kind}: {error:?}");
    }
}

#[tokio::test]
async fn a_providers_own_time_limits_take_the_place_of_the_general_ones() {
    let silent = StrictReply { end: StrictReplyEnd::Silence, ..StrictReply::stream(vec![]) };
    let server = StrictServer::start(ProviderKind::Ollama, vec![silent]).await;
    let context = CallContext::with_limits("/nonexistent", limits());
    let mut provider = server.provider();
    provider.timeouts.first_byte = Some(Duration::from_millis(30));
    let request = ModelRequest::new("m", vec![ModelMessage::user("hi")]);
    let error = lodge_model::call(&provider, &request, &context, &mut |_| ()).await.expect_err("silence");
    let CallError::Idle { waited, .. } = error else { panic!("{error:?}") };
    assert_eq!(waited, Duration::from_millis(30));
}

#[tokio::test]
async fn an_error_in_the_middle_ends_the_answer_with_what_was_said_of_it() {
    for kind in KINDS {
        let stream = breaking(kind, &format!("it broke, {KEY}"));
        let reply = StrictReply { end: StrictReplyEnd::Silence, ..StrictReply::saying(stream) };
        let server = StrictServer::start(kind, vec![reply]).await;
        let (answer, seen) = ask_with(&server, limits()).await;
        let error = answer.expect_err("a failure");
        assert_eq!(
            (error.code(), is_repeated(&error), seen.as_str()),
            ("model.error_in_stream", true, "begun"),
            "{kind}"
        );
        assert!(error.to_string().contains("it broke, [secret]"), "{kind}: {error}");
    }
}

#[tokio::test]
async fn ends_that_are_none_are_reported_in_words() {
    for kind in KINDS {
        let cut =
            ask(kind, StrictReply::stream(bytes(&plain(kind, &["half a"], RecordedEnding::Length)))).await;
        let text = cut.expect("what there is").text;
        assert_eq!(text, "half a\n\n[the answer ends here: it reached its limit of tokens]", "{kind}");
        let before = ask(kind, StrictReply::stream(bytes(&plain(kind, &[], RecordedEnding::Length)))).await;
        let within = ask(kind, StrictReply::stream(bytes(&calls(kind, 2, RecordedEnding::Length)))).await;
        for (answer, words) in
            [(before, "before it said anything"), (within, "within a tool call, which was not run")]
        {
            let error = answer.expect_err("no answer");
            assert_eq!((error.code(), is_repeated(&error)), ("model.length", false), "{kind}");
            assert!(error.to_string().contains(words), "{kind}: {error}");
        }
        // This one has no such end.
        if kind != ProviderKind::Ollama {
            let refused =
                ask(kind, StrictReply::stream(bytes(&plain(kind, &["well"], RecordedEnding::Refusal)))).await;
            let error = refused.expect_err("a refusal");
            assert_eq!((error.code(), is_repeated(&error)), ("model.refused", false), "{kind}");
        }
        let empty = ask(kind, StrictReply::stream(bytes(&plain(kind, &[], RecordedEnding::Plain)))).await;
        let error = empty.expect_err("nothing");
        assert_eq!((error.code(), error.repetition()), ("model.empty", Repetition::Brief), "{kind}");
    }
    let blocked =
        events(ProviderKind::Gemini, &[serde_json::json!({"promptFeedback": {"blockReason": "SAFETY"}})]);
    let error = ask(ProviderKind::Gemini, StrictReply::saying(blocked)).await.expect_err("a refusal");
    assert!(error.to_string().ends_with("the prompt was blocked (SAFETY)"), "{error}");
    let broken = serde_json::json!({"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "index": 0}]});
    let error = ask(ProviderKind::Gemini, StrictReply::saying(events(ProviderKind::Gemini, &[broken])))
        .await
        .expect_err("no call");
    assert!(
        matches!(error, CallError::Garbage { what: UnreadableAnswer::BrokenCall, .. }) && is_repeated(&error)
    );
}

#[tokio::test]
async fn fifty_megabytes_and_ten_thousand_calls_are_refused_long_before_their_end() {
    const WHOLE: usize = 50 << 20;
    for kind in KINDS {
        let piece = "x".repeat(64 << 10);
        let pieces = bytes(&plain(kind, &vec![piece.as_str(); WHOLE >> 16], RecordedEnding::Plain));
        let server = StrictServer::start(kind, vec![StrictReply::stream(pieces)]).await;
        let error = ask_with(&server, limits()).await.0.expect_err("too much");
        assert!(matches!(error, CallError::TooLarge { what: AnswerLimit::Answer, .. }), "{kind}: {error:?}");
        assert!(!is_repeated(&error));
        // What is in flight between the two is not in the client's memory.
        assert!(server.sent.load(Ordering::Relaxed) < WHOLE / 2, "{kind}: it read on");
        let error = ask(kind, StrictReply::stream(bytes(&calls(kind, 10_000, RecordedEnding::Plain))))
            .await
            .expect_err("too many");
        assert!(
            matches!(error, CallError::TooLarge { what: AnswerLimit::Calls, limit: 128, .. }),
            "{kind}: {error:?}"
        );
        let fine = ask(kind, StrictReply::stream(bytes(&calls(kind, 128, RecordedEnding::Plain)))).await;
        assert_eq!(fine.expect("an answer").calls.len(), 128, "{kind}");
    }
}

#[tokio::test]
async fn nonsense_is_distinguished_from_a_cut() {
    for kind in KINDS {
        let page = "<!DOCTYPE html><html><body>Sign in to the hotel's network</body></html>";
        for (body, what) in [
            (page.to_owned(), UnreadableAnswer::WebPage),
            (events(kind, &[]) + &broken(kind, &format!("{{\"x\": {KEY}}}")), UnreadableAnswer::NotJson),
            (broken(kind, "[1,"), UnreadableAnswer::NotJson),
        ] {
            let error = ask(kind, StrictReply::saying(&body)).await.expect_err("no answer");
            let CallError::Garbage { what: seen, .. } = &error else { panic!("{kind} {body}: {error:?}") };
            assert_eq!((*seen, error.repetition()), (what, Repetition::Brief), "{kind} {body}");
        }
        for body in ["", "\n \n"] {
            let error = ask(kind, StrictReply::saying(body)).await.expect_err("no answer");
            assert_eq!(error.code(), "model.cut", "{kind} {body:?}");
        }
    }
}

fn broken(kind: ProviderKind, json: &str) -> String {
    if kind == ProviderKind::Ollama { format!("{json}\n") } else { format!("data: {json}\n\n") }
}

#[tokio::test]
async fn a_provider_is_tried_with_its_list_and_one_small_answer() {
    for kind in KINDS {
        let replies = vec![
            StrictReply::saying(listing(kind)),
            StrictReply::saying(plain(kind, &["hi"], RecordedEnding::Length).concat()),
        ];
        let server = StrictServer::start(kind, replies).await;
        let context = CallContext::with_limits("/nonexistent", limits());
        let tested = lodge_model::test(&server.provider(), Some("m"), &context).await.expect("it works");
        assert_eq!(
            (tested.models, tested.answered.as_deref()),
            (vec!["m".into(), "n".into()], Some("m")),
            "{kind}"
        );
        let bodies = server.bodies();
        assert_eq!(bodies.len(), 2, "{kind}");
        assert!(bodies[1].to_string().contains(":16"), "{kind}: few tokens {}", bodies[1]);
        let server = StrictServer::start(kind, vec![StrictReply::saying(listing(kind))]).await;
        let tested = lodge_model::test(&server.provider(), None, &context).await.expect("it works");
        assert_eq!((tested.models.len(), tested.answered), (2, None), "{kind}");
    }
}
