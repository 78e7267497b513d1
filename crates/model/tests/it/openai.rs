//! The OpenAI dialect over real sockets: every way a stream can arrive, and every way it can fail.

use std::time::{Duration, Instant};

use crate::common::{AfterLastByte, KEY, RawServer, ask, is_repeated, limits, provider, stream_head};
use lodge_model::{
    AnswerLimit, CallContext, CallError, CallLimits, CallUsage, ModelMessage, ModelRequest, StopReason,
    ToolCall, UnreadableAnswer,
};

const STREAM: &str = concat!(
    ": welcome\r\n\r\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\"h\u{e9}\"}}]}\r\n\r\n",
    "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"function\":{\"name\":\"sh\",\"arguments\":\"{\"}}]}}]}\n\n",
    "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\n",
    "data: \"function\":{\"arguments\":\"}\"}}]},\"finish_reason\":\"tool_calls\"}]}\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\n",
    "data: [DONE]\n\n",
);

#[tokio::test]
async fn a_stream_cut_into_packets_anywhere_gives_the_same_answer() {
    let reply = format!("{}{STREAM}", stream_head()).into_bytes();
    let (whole, _) = {
        let server = RawServer::saying(&reply, AfterLastByte::Close).await;
        ask(&server.url, limits(), "m", "hi").await
    };
    let whole = whole.expect("an answer");
    assert_eq!(whole.text, "hé");
    assert_eq!(whole.calls, [ToolCall { id: "c".into(), name: "sh".into(), arguments: "{}".into() }]);
    assert_eq!(
        (whole.stop, whole.usage),
        (StopReason::ToolCalls, CallUsage { input_tokens: 3, output_tokens: 4, ..CallUsage::default() })
    );
    for cut in 1..reply.len() {
        let server =
            RawServer::start(vec![reply[..cut].to_vec(), reply[cut..].to_vec()], AfterLastByte::Close).await;
        let (answer, seen) = ask(&server.url, limits(), "m", "hi").await;
        assert_eq!(answer.expect("an answer"), whole, "cut at {cut}");
        assert_eq!(seen, "hé");
    }
    let bytes = reply.iter().map(|byte| vec![*byte]).collect();
    let server = RawServer::start(bytes, AfterLastByte::Close).await;
    assert_eq!(ask(&server.url, limits(), "m", "hi").await.0.expect("an answer"), whole);
}

#[tokio::test]
async fn a_stream_that_ends_at_any_byte_is_cut_or_complete_and_never_wrong() {
    let mut complete = 0;
    for end in 1..STREAM.len() {
        let reply = [stream_head().as_bytes(), &STREAM.as_bytes()[..end]].concat();
        let server = RawServer::saying(reply, AfterLastByte::Close).await;
        match ask(&server.url, limits(), "m", "hi").await.0 {
            Ok(answer) => {
                assert_eq!((answer.text.as_str(), answer.calls.len()), ("hé", 1), "ended at {end}");
                complete += 1;
            }
            Err(error) => {
                assert_eq!((error.code(), is_repeated(&error)), ("model.cut", true), "ended at {end}")
            }
        }
    }
    assert!(complete > 0);
}

#[tokio::test]
async fn an_answer_is_returned_at_done_although_the_server_keeps_the_line_open() {
    let server = RawServer::saying(format!("{}{STREAM}", stream_head()), AfterLastByte::StayOpen).await;
    let started = Instant::now();
    assert!(ask(&server.url, limits(), "m", "hi").await.0.is_ok());
    assert!(started.elapsed() < Duration::from_secs(5), "it waited for the connection to end");
}

#[tokio::test]
async fn a_json_reply_to_a_request_for_a_stream_is_an_answer() {
    let body = r#" {"choices":[{"message":{"content":"hi","tool_calls":[{"id":"a","function":{"name":"x","arguments":"{}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
    let reply = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let server = RawServer::saying(reply, AfterLastByte::Close).await;
    let (answer, seen) = ask(&server.url, limits(), "m", "hi").await;
    let answer = answer.expect("an answer");
    assert_eq!((answer.text.as_str(), seen.as_str(), answer.calls[0].name.as_str()), ("hi", "hi", "x"));
}

#[tokio::test]
async fn refusals_are_distinguished_and_never_repeat_the_key() {
    let error = |code: &str| format!(r#"{{"error":{{"message":"you sent {KEY}","code":"{code}"}}}}"#);
    let cases: [(&str, &str, String, &str, bool); 9] = [
        ("401", "", error("x"), "model.refused_auth", false),
        ("403", "", format!("key {KEY}"), "model.refused_auth", false),
        ("404", "", error("x"), "model.unknown", false),
        ("404", "", "<html>".into(), "model.status", false),
        ("400", "", error("context_length_exceeded"), "model.context_too_long", false),
        ("429", "retry-after: 7\r\n", error("slow"), "model.rate_limited", true),
        ("429", "", error("insufficient_quota"), "model.quota", false),
        ("500", "", format!("{{\"k\":\"{KEY}\"}}"), "model.status", true),
        ("302", "location: http://127.0.0.1:1/\r\n", String::new(), "model.status", false),
    ];
    for (status, headers, body, code, retryable) in cases {
        let length = body.len();
        let reply = format!("HTTP/1.1 {status} X\r\n{headers}content-length: {length}\r\n\r\n{body}");
        let server = RawServer::saying(reply, AfterLastByte::Close).await;
        let error = ask(&server.url, limits(), "m", "hi").await.0.expect_err("a refusal");
        assert_eq!((error.code(), is_repeated(&error)), (code, retryable), "{status} {body}");
        let wait = (headers.starts_with("retry")).then_some(Duration::from_secs(7));
        assert_eq!(error.retry_after(), wait);
    }
}

#[tokio::test]
async fn nonsense_is_distinguished_from_a_cut_and_never_repeats_the_key() {
    let head = stream_head();
    for (body, what) in [
        (format!("data: {{{KEY}\n\n"), Some(UnreadableAnswer::NotJson)),
        ("\n<html>hello</html>".to_owned(), Some(UnreadableAnswer::WebPage)),
        ("{\"choices\": oops".to_owned(), Some(UnreadableAnswer::NotJson)),
        ("{\"choices\": []}".to_owned(), Some(UnreadableAnswer::NoAnswer)),
        ("data: [DONE]\n\n".to_owned(), Some(UnreadableAnswer::NoAnswer)),
        (String::new(), None),
        ("  \n".to_owned(), None),
        ("{\"choices\": [".to_owned(), None),
    ] {
        let server = RawServer::saying(format!("{head}{body}"), AfterLastByte::Close).await;
        let error = ask(&server.url, limits(), "m", "hi").await.0.expect_err("no answer");
        match (&error, what) {
            (CallError::Garbage { what, .. }, Some(expected)) => assert_eq!(*what, expected, "{body}"),
            (CallError::Cut { .. }, None) => {}
            (other, _) => panic!("{body}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn an_error_inside_the_stream_ends_it_without_the_key() {
    let body = format!("data: {{\"error\":{{\"message\":\"no {KEY}\",\"code\":503}}}}\n\n");
    let server = RawServer::saying(format!("{}{body}", stream_head()), AfterLastByte::StayOpen).await;
    let error = ask(&server.url, limits(), "m", "hi").await.0.expect_err("an error");
    assert!(
        matches!(&error, CallError::InStream { error_code: Some(code), .. } if code == "503"),
        "{error:?}"
    );
}

#[tokio::test]
async fn floods_of_every_sort_are_refused_by_name() {
    let small =
        CallLimits { line_bytes_max: 1000, received_bytes_max: 3000, answer_bytes_max: 500, ..limits() };
    let delta = |text: &str| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
    for (body, what) in [
        (format!("data: {}", "x".repeat(2000)), AnswerLimit::Line),
        (": ping\n\n".repeat(1000), AnswerLimit::Received),
        (delta(&"x".repeat(400)).repeat(2), AnswerLimit::Answer),
    ] {
        let server = RawServer::saying(format!("{}{body}", stream_head()), AfterLastByte::StayOpen).await;
        let error = ask(&server.url, small, "m", "hi").await.0.expect_err("a refusal");
        assert!(matches!(&error, CallError::TooLarge { what: seen, .. } if *seen == what), "{error:?}");
    }
}

#[tokio::test]
async fn silence_ends_a_call_before_the_head_and_within_the_stream() {
    let quick =
        CallLimits { first_byte: Duration::from_millis(60), idle: Duration::from_millis(60), ..limits() };
    let half = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    for reply in [String::new(), format!("{}{half}", stream_head())] {
        let server = RawServer::saying(reply, AfterLastByte::StayOpen).await;
        let error = ask(&server.url, quick, "m", "hi").await.0.expect_err("silence");
        assert_eq!((error.code(), is_repeated(&error)), ("model.idle", true));
    }
}

#[tokio::test]
async fn a_server_that_never_ends_its_answer_is_stopped_too() {
    let brief = CallLimits { total: Duration::from_millis(80), ..limits() };
    let server = RawServer::saying(stream_head(), AfterLastByte::StayOpen).await;
    assert_eq!(ask(&server.url, brief, "m", "hi").await.0.expect_err("too long").code(), "model.too_long");
}

#[tokio::test]
async fn nobody_there_is_unreachable() {
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address").port()
    };
    let error = ask(&format!("http://127.0.0.1:{port}/v1"), limits(), "m", "hi").await.0.expect_err("nobody");
    assert_eq!((error.code(), is_repeated(&error)), ("model.unreachable", true));
}

#[tokio::test]
async fn a_call_can_be_sent_to_another_task() {
    let server = RawServer::saying(format!("{}{STREAM}", stream_head()), AfterLastByte::Close).await;
    let provider = provider(&server.url);
    let task = tokio::spawn(async move {
        let context = CallContext::new("/nonexistent");
        let request = ModelRequest::new("m", vec![ModelMessage::user("hi")]);
        lodge_model::call(&provider, &request, &context, &mut |_| ()).await.map(|answer| answer.text)
    });
    assert_eq!(task.await.expect("no panic").expect("an answer"), "hé");
}

#[tokio::test]
async fn a_provider_that_lists_no_models_is_tested_with_one_token() {
    let server = RawServer::answering(
        |request| {
            let not_found = "HTTP/1.1 404 X\r\ncontent-length: 22\r\n\r\n{\"error\":\"not offered\"}";
            let reply = match request.starts_with("GET /v1/models ") {
                true => not_found.to_owned(),
                false if request.contains("\"max_tokens\":16") => format!("{}{STREAM}", stream_head()),
                false => panic!("{request}"),
            };
            vec![reply.into_bytes()]
        },
        AfterLastByte::Close,
    )
    .await;
    let context = CallContext::new("/nonexistent");
    let mut provider = provider(&server.url);
    let error = lodge_model::test(&provider, None, &context).await.expect_err("no model to try");
    assert_eq!(error.code(), "model.status");
    provider.models = vec!["small".to_owned()];
    assert_eq!(lodge_model::test(&provider, None, &context).await.expect("an answer").models, ["small"]);
}
