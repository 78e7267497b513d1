//! Errors of providers, and how they are reported to people.

use std::time::Duration;

use lodge_model::{
    CallAnswer, CallContext, CallError, ModelMessage, ModelRequest, Provider, ProviderKind, Repetition,
    UnreachableWhy,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::{KEY, assert_no_key, is_repeated, limits};
use crate::recorded::KINDS;
use crate::strict::{StrictReply, StrictServer};

async fn call(provider: &Provider) -> Result<CallAnswer, CallError> {
    let context = CallContext::with_limits("/nonexistent", limits());
    let request = ModelRequest::new("m", vec![ModelMessage::user("hi")]);
    let answer = lodge_model::call(provider, &request, &context, &mut |_| ()).await;
    if let Err(error) = &answer {
        assert_no_key(error);
    }
    answer
}

async fn refused(kind: ProviderKind, reply: StrictReply) -> CallError {
    let server = StrictServer::start(kind, vec![reply]).await;
    call(&server.provider()).await.expect_err("a refusal")
}

/// An error in the protocol's own shape; the code is its name for the failure.
fn error(kind: ProviderKind, status: u16, code: &str, message: &str) -> Value {
    match kind {
        ProviderKind::Openai | ProviderKind::Script => {
            json!({"error": {"message": message, "type": "x", "code": code}})
        }
        ProviderKind::Anthropic => {
            json!({"type": "error", "error": {"type": code, "message": message}, "request_id": "r"})
        }
        ProviderKind::Gemini => json!({"error": {"code": status, "message": message, "status": code}}),
        ProviderKind::Ollama => json!({"error": message}),
    }
}

#[tokio::test]
async fn refusals_are_distinguished_by_what_a_person_can_do_about_them() {
    use ProviderKind::{Anthropic, Gemini, Ollama, Openai};
    let too_long = "prompt is too long: 210000 tokens > 200000 maximum";
    let too_many = "The input token count (1100000) exceeds the maximum number of tokens allowed (1048576).";
    let cases: &[(ProviderKind, u16, &str, &str, &str, bool)] = &[
        (Openai, 401, "invalid_api_key", "", "model.refused_auth", false),
        (Openai, 404, "model_not_found", "", "model.unknown", false),
        (Openai, 400, "context_length_exceeded", "", "model.context_too_long", false),
        (Openai, 429, "insufficient_quota", "", "model.quota", false),
        (Openai, 429, "rate_limit_exceeded", "", "model.rate_limited", true),
        (Openai, 400, "invalid_value", "", "model.status", false),
        (Openai, 503, "server_error", "", "model.status", true),
        (Anthropic, 401, "authentication_error", "", "model.refused_auth", false),
        (Anthropic, 403, "permission_error", "", "model.refused_auth", false),
        (Anthropic, 402, "billing_error", "", "model.quota", false),
        (Anthropic, 404, "not_found_error", "model: m", "model.unknown", false),
        (Anthropic, 413, "request_too_large", "", "model.context_too_long", false),
        (Anthropic, 400, "invalid_request_error", too_long, "model.context_too_long", false),
        (Anthropic, 400, "invalid_request_error", "Your credit balance is too low to", "model.quota", false),
        (Anthropic, 400, "invalid_request_error", "max_tokens: too large", "model.status", false),
        (Anthropic, 429, "rate_limit_error", "", "model.rate_limited", true),
        (Anthropic, 529, "overloaded_error", "", "model.status", true),
        (Gemini, 400, "INVALID_ARGUMENT", too_many, "model.context_too_long", false),
        (Gemini, 400, "INVALID_ARGUMENT", "Request contains an invalid argument.", "model.status", false),
        (Gemini, 403, "PERMISSION_DENIED", "", "model.refused_auth", false),
        (Gemini, 404, "NOT_FOUND", "models/m is not found", "model.unknown", false),
        (Gemini, 429, "RESOURCE_EXHAUSTED", "", "model.rate_limited", true),
        (Gemini, 503, "UNAVAILABLE", "", "model.status", true),
        (Ollama, 404, "", "model \"m\" not found, try pulling it first", "model.unknown", false),
        (Ollama, 400, "", "\"m\" does not support tools", "model.status", false),
        (Ollama, 401, "", "unauthorized", "model.refused_auth", false),
        (Ollama, 500, "", "llama runner process has terminated", "model.status", true),
    ];
    for (kind, status, code, message, expected, retryable) in cases {
        let body = error(*kind, *status, code, &format!("{message} {KEY}")).to_string();
        let error = refused(*kind, StrictReply::refusal(*status, "", body)).await;
        assert_eq!(
            (error.code(), is_repeated(&error)),
            (*expected, *retryable),
            "{kind} {status} {code}: {error}"
        );
    }
    let key = json!({"error": {"code": 400, "message": "API key not valid.", "status": "INVALID_ARGUMENT",
        "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]}});
    assert_eq!(
        refused(Gemini, StrictReply::refusal(400, "", key.to_string())).await.code(),
        "model.refused_auth"
    );
}

#[tokio::test]
async fn pages_redirects_and_wrong_addresses_are_about_the_address() {
    for kind in KINDS {
        let page = "<html><title>404</title></html>";
        for (status, headers) in [(404, ""), (405, ""), (302, "location: http://127.0.0.1:1/\r\n")] {
            let error = refused(kind, StrictReply::refusal(status, headers, page)).await;
            assert_eq!((error.code(), is_repeated(&error)), ("model.status", false), "{kind} {status}");
            assert!(error.hint().expect("a hint").contains("base-url"), "{kind} {status}");
        }
        let error = refused(kind, StrictReply::refusal(502, "", page)).await;
        assert_eq!((error.code(), error.repetition()), ("model.status", Repetition::Patient), "{kind}");
    }
}

#[tokio::test]
async fn how_long_to_stay_away_is_heard_in_every_way_it_is_said() {
    for kind in KINDS {
        let body = error(kind, 429, "x", "slow down").to_string();
        let by_header = refused(kind, StrictReply::refusal(429, "retry-after: 7\r\n", &body)).await;
        assert_eq!(by_header.retry_after(), Some(Duration::from_secs(7)), "{kind}");
        let unsaid = refused(kind, StrictReply::refusal(429, "", &body)).await;
        assert_eq!((unsaid.retry_after(), is_repeated(&unsaid)), (None, true), "{kind}");
    }
    let body = json!({"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED", "details": [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": []},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37.5s"}]}});
    let error = refused(ProviderKind::Gemini, StrictReply::refusal(429, "", body.to_string())).await;
    assert_eq!(error.retry_after(), Some(Duration::from_millis(37_500)));
}

#[tokio::test]
async fn what_stands_between_us_and_a_provider_is_named() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let https = format!("https://{}", listener.local_addr().expect("an address"));
    let plain = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let free = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address").port()
    };
    for kind in KINDS {
        for (url, expected, words) in [
            (format!("http://127.0.0.1:{free}"), UnreachableWhy::Refused, "nothing listens there"),
            ("http://no-such-host.invalid".to_owned(), UnreachableWhy::NoSuchHost, "has no address"),
            (https.clone(), UnreachableWhy::Tls, "TLS"),
        ] {
            let provider = Provider::new("work", kind, Some(&url), None).expect("a provider");
            let error = call(&provider).await.expect_err("nobody");
            let CallError::Unreachable { why, .. } = &error else { panic!("{url}: {error:?}") };
            assert_eq!(*why, expected, "{url}");
            assert!(error.to_string().contains(words) && error.hint().is_some(), "{error}");
            assert_eq!((error.code(), error.repetition()), ("model.unreachable", Repetition::Patient));
        }
    }
    plain.abort();
}

#[tokio::test]
async fn the_strict_servers_are_strict() {
    for kind in KINDS {
        for other in KINDS.into_iter().filter(|other| *other != kind) {
            let server = StrictServer::start(other, vec![StrictReply::saying("")]).await;
            let mut provider = server.provider();
            provider.kind = kind;
            let error = call(&provider).await.expect_err("the wrong protocol");
            assert!(matches!(error, CallError::Status { status: 400, .. }), "{kind} at {other}: {error:?}");
        }
        let server = StrictServer::start(kind, vec![StrictReply::saying("")]).await;
        let context = CallContext::with_limits("/nonexistent", limits());
        let unpaired = vec![ModelMessage::user("hi"), ModelMessage::result("c9", "of no call")];
        let request = ModelRequest::new("m", unpaired);
        let error = lodge_model::call(&server.provider(), &request, &context, &mut |_| ()).await;
        assert!(matches!(error, Err(CallError::Status { status: 400, .. })), "{kind}: {error:?}");
    }
}
