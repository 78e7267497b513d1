//! Streams as servers really send them, and what must come of each.

use super::*;
use crate::dialect::ProviderReport;
use crate::error::AnswerLimit;
use crate::request::CallUsage;

fn read(limits: CallLimits, events: &[&str]) -> Result<FinishedDraft, AnswerFault> {
    let (mut assembly, mut seen) = (OpenaiReader::new(limits, 3), String::new());
    for event in events {
        assembly.event(event, &mut |text| seen.push_str(text))?;
    }
    let answer = Box::new(assembly).finish()?;
    assert_eq!(answer.text, seen, "what was previewed is what was answered");
    Ok(answer)
}

fn calls(events: &[&str]) -> Vec<(String, String, String)> {
    let answer = read(CallLimits::default(), events).expect("an answer");
    answer.calls.into_iter().map(|call| (call.id, call.name, call.arguments)).collect()
}

fn triple(id: &str, name: &str, arguments: &str) -> (String, String, String) {
    (id.to_owned(), name.to_owned(), arguments.to_owned())
}

#[test]
fn interleaved_calls_are_distinguished_by_index() {
    let seen = calls(&[
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"sh","arguments":""}}]}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":1,"id":"b","function":{"name":"cat","arguments":"{\"x\""}}]}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":1,"function":{"arguments":":1}"}}]},"finish_reason":"tool_calls"}]}"#,
        "[DONE]",
    ]);
    assert_eq!(seen, [triple("a", "sh", "{}"), triple("b", "cat", r#"{"x":1}"#)]);
}

#[test]
fn calls_that_share_an_index_are_distinguished_by_id() {
    let seen = calls(&[
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"sh","arguments":"{}"}}]}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"b","function":{"name":"sh","arguments":"[]"}}]}}]}"#,
        "[DONE]",
    ]);
    assert_eq!(seen, [triple("a", "sh", "{}"), triple("b", "sh", "[]")]);
}

#[test]
fn calls_without_index_or_id_still_count_and_get_ids() {
    let seen = calls(&[
        r#"{"choices":[{"delta":{"tool_calls":[{"function":{"name":"sh","arguments":{"a":1}}}, {"function":{"name":"ls"}}]}}]}"#,
        "[DONE]",
    ]);
    assert_eq!(seen, [triple("call_3_0", "sh", r#"{"a":1}"#), triple("call_3_1", "ls", "")]);
}

#[test]
fn ids_that_repeat_within_an_answer_are_distinguished() {
    let call = |index: usize, id: &str| {
        format!(
            r#"{{"choices":[{{"delta":{{"tool_calls":[{{"index":{index},"id":"{id}","function":{{"name":"n{index}","arguments":"{{}}"}}}}]}}}}]}}"#
        )
    };
    let ids = ["a", "a", "a-2", "", "call_3_3", "a"];
    let events: Vec<String> = ids.iter().enumerate().map(|(index, id)| call(index, id)).collect();
    let mut events: Vec<&str> = events.iter().map(String::as_str).collect();
    events.push("[DONE]");
    let seen = calls(&events);
    let seen_ids: Vec<&str> = seen.iter().map(|(id, ..)| id.as_str()).collect();
    assert_eq!(seen_ids, ["a", "a-2", "a-2-2", "call_3_3", "call_3_3-2", "a-3"]);
    assert_eq!(calls(&events), seen, "the same stream makes the same ids");
}

#[test]
fn calls_of_a_whole_answer_are_as_many_as_it_lists() {
    let body = r#"{"choices":[{"message":{"tool_calls":[
        {"id":"x","function":{"name":"sh","arguments":"{}"}},
        {"id":"x","function":{"name":"sh","arguments":"[]"}},
        {"index":0,"id":"","function":{"name":"ls","arguments":""}}]},"finish_reason":"tool_calls"}]}"#;
    let mut assembly = OpenaiReader::new(CallLimits::default(), 3);
    assembly.complete(body, &mut |_| ()).expect("an answer");
    let calls = Box::new(assembly).finish().expect("an answer").calls;
    let seen: Vec<(&str, &str)> =
        calls.iter().map(|call| (call.id.as_str(), call.arguments.as_str())).collect();
    assert_eq!(seen, [("x", "{}"), ("x-2", "[]"), ("call_3_2", "")]);
}

#[test]
fn calls_under_a_plain_stop_are_still_calls() {
    let answer = read(
        CallLimits::default(),
        &[
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"sh"}}]},"finish_reason":"stop"}]}"#,
        ],
    );
    assert_eq!(answer.unwrap().stop, StopReason::ToolCalls);
}

#[test]
fn a_stream_is_complete_with_either_a_reason_or_a_done() {
    let text = r#"{"choices":[{"delta":{"content":"hi"}}]}"#;
    assert_eq!(read(CallLimits::default(), &[text]), Err(AnswerFault::Incomplete));
    assert_eq!(read(CallLimits::default(), &[text, "[DONE]"]).unwrap().stop, StopReason::End);
    let reasons = [
        ("stop", StopReason::End),
        ("length", StopReason::Length),
        ("content_filter", StopReason::Filtered),
        ("moon", StopReason::Unrecognised),
    ];
    for (reason, stop) in reasons {
        let end = format!(r#"{{"choices":[{{"delta":{{}},"finish_reason":"{reason}"}}]}}"#);
        assert_eq!(read(CallLimits::default(), &[text, &end]).unwrap().stop, stop);
    }
}

#[test]
fn usage_parts_and_foreign_fields_are_read() {
    let answer = read(
        CallLimits::default(),
        &[
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":null,"reasoning_content":"hm"},"logprobs":null,"finish_reason":null}],"usage":null}"#,
            r#"{"choices":[{"index":0,"delta":{"content":[{"type":"text","text":"a"},{"type":"image"}]}}, {"index":1,"delta":{"content":"other"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"b"},"message":{"content":"ab"},"finish_reason":"stop"}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":5}}}"#,
            "[DONE]",
        ],
    )
    .unwrap();
    assert_eq!(answer.text, "ab");
    let usage = CallUsage { input_tokens: 7, output_tokens: 2, cached_tokens: 5, cache_write_tokens: 0 };
    assert_eq!(answer.usage, usage);
}

#[test]
fn errors_and_empty_streams_are_not_answers() {
    let reported = |code: Option<&str>, message: &str| {
        let (code, message) = (code.map(str::to_owned), message.to_owned());
        Err(AnswerFault::Reported(ProviderReport { code, message, retry_after: None }))
    };
    let limits = CallLimits::default;
    assert_eq!(read(limits(), &[r#"{"error":{"message":"no","code":503}}"#]), reported(Some("503"), "no"));
    assert_eq!(
        read(limits(), &[r#"{"error":{"message":"no","type":"oops"}}"#]),
        reported(Some("oops"), "no")
    );
    assert_eq!(read(limits(), &[r#"{"error":"no"}"#]), reported(None, "no"));
    let nothing = AnswerFault::Nonsense { what: UnreadableAnswer::NoAnswer, text: String::new() };
    assert_eq!(read(limits(), &["[DONE]"]), Err(nothing));
    assert_eq!(read(limits(), &[]), Err(AnswerFault::Incomplete));
}

#[test]
fn every_bound_on_an_answer_is_a_named_refusal() {
    let small =
        CallLimits { answer_bytes_max: 40, calls_max: 2, call_bytes_max: 10, ..CallLimits::default() };
    let call = |index: usize, arguments: &str| {
        format!(
            r#"{{"choices":[{{"delta":{{"tool_calls":[{{"index":{index},"id":"{index}","function":{{"name":"n","arguments":"{arguments}"}}}}]}}}}]}}"#
        )
    };
    let text = format!(r#"{{"choices":[{{"delta":{{"content":"{}"}}}}]}}"#, "x".repeat(41));
    let over = |what, limit| Err(AnswerFault::Oversize { what, limit });
    assert_eq!(read(small, &[&text]), over(AnswerLimit::Answer, 40));
    assert_eq!(read(small, &[&call(0, "0123456789")]), over(AnswerLimit::Call, 10));
    assert_eq!(read(small, &[&call(0, ""), &call(1, ""), &call(2, "")]), over(AnswerLimit::Calls, 2));
    assert!(read(small, &[&call(0, ""), &call(usize::MAX, ""), "[DONE]"]).is_ok());
}

#[test]
fn thoughts_are_kept_whole_and_in_the_pieces_that_make_them() {
    let answer = read(
        CallLimits::default(),
        &[
            r#"{"choices":[{"delta":{"reasoning":"for people","reasoning_content":"h"}}]}"#,
            r#"{"choices":[{"delta":{"reasoning_content":"m","reasoning_details":[{"type":"reasoning.text","index":0,"text":"a","signature":null}]}}]}"#,
            r#"{"choices":[{"delta":{"reasoning_details":[{"type":"reasoning.text","index":0,"text":"b"},{"type":"reasoning.text","index":0,"text":"","signature":"sig"}]}}]}"#,
            r#"{"choices":[{"delta":{"reasoning_details":[{"type":"reasoning.encrypted","index":1,"data":"xyz","id":"r"}]}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"sh"}},{"index":1,"id":"b","function":{"name":"sh"},"extra_content":{"google":{"thought_signature":"t"}}}]},"finish_reason":"tool_calls"}]}"#,
        ],
    )
    .unwrap();
    let thoughts: Value = serde_json::from_slice(&answer.blocks[0]).unwrap();
    let expected = serde_json::json!({
        "reasoning_content": "hm",
        "reasoning_details": [
            {"type": "reasoning.text", "index": 0, "text": "ab", "signature": "sig"},
            {"type": "reasoning.encrypted", "index": 1, "data": "xyz", "id": "r"}],
        "extra_content": [null, {"google": {"thought_signature": "t"}}],
    });
    assert_eq!((answer.blocks.len(), thoughts), (1, expected));
}

#[test]
fn an_answer_is_not_lost_because_its_tokens_are_counted_wrong() {
    let text = r#"{"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}"#;
    for usage in [
        r#"{"prompt_tokens":-5,"completion_tokens":2}"#,
        r#"{"prompt_tokens":"many","completion_tokens":2.0}"#,
        r#"{"prompt_tokens":1e300,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":-1}}"#,
    ] {
        let told = format!(r#"{{"choices":[],"usage":{usage}}}"#);
        let answer = read(CallLimits::default(), &[text, &told, "[DONE]"]).expect(usage);
        assert_eq!(answer.text, "hi");
        assert_eq!(answer.usage, CallUsage { output_tokens: 2, ..CallUsage::default() }, "{usage}");
    }
}
