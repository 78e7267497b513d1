//! Lines of runtimes, and how the daemon parses them.

use std::collections::BTreeMap;

use serde_json::json;

use super::*;

fn parse_method(method: &str, fields: Value) -> Result<RuntimeCall, String> {
    let mut params = json!({"turn": "trn_1", "step": 2, "call": "c1"});
    let own = params.as_object_mut().unwrap();
    own.extend(fields.as_object().unwrap().clone());
    let line = json!({"jsonrpc": "2.0", "id": "x", "method": method, "params": params});
    match parse_line(line.to_string().as_bytes(), None) {
        RuntimeLine::Request { ask, .. } => Ok(ask),
        RuntimeLine::BadRequest { why, .. } => Err(why),
        other => panic!("{other:?}"),
    }
}

fn job_request(method: &str, fields: Value) -> JobToolRequest {
    match parse_method(method, fields).unwrap() {
        RuntimeCall::Job { turn, step: 2, call, wish } => {
            assert_eq!((turn.as_str(), call.as_str()), ("trn_1", "c1"));
            wish
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_job_method_becomes_a_job_tool_request() {
    let job: JobId = "job_1".parse().unwrap();
    let one = json!({"job": "job_1"});
    assert_eq!(job_request("job/status", one.clone()), JobToolRequest::Status { job: job.clone() });
    assert_eq!(job_request("job/wait", one.clone()), JobToolRequest::Wait { job: job.clone() });
    assert_eq!(job_request("job/watch", one.clone()), JobToolRequest::Watch { job: job.clone() });
    assert_eq!(job_request("job/cancel", one), JobToolRequest::Cancel { job });
    assert_eq!(job_request("job/list", json!({})), JobToolRequest::List { status: None, limit: 20 });
    let running = Some(JobState::Running);
    assert_eq!(
        job_request("job/list", json!({"status": "running", "limit": 5_000})),
        JobToolRequest::List { status: running, limit: 100 }
    );
    let full = json!({"bin": "make", "args": ["all"], "stdin": "x", "timeout_ms": 9, "priority": -1, "labels": {"a": "b"}});
    let mut work = JobSpec {
        bin: "make".into(),
        args: vec!["all".into()],
        stdin: b"x".to_vec(),
        timeout_ms: 9,
        priority: -1,
        output_bytes: 0,
        labels: BTreeMap::from([("a".into(), "b".into())]),
    };
    assert_eq!(job_request("job/submit", full), JobToolRequest::Submit(work.clone()));
    (work.args, work.stdin, work.labels) = Default::default();
    (work.timeout_ms, work.priority) = (0, 0);
    assert_eq!(job_request("job/submit", json!({"bin": "make"})), JobToolRequest::Submit(work.clone()));
    // The parser passes values on unchanged. The engine checks them.
    work.timeout_ms = u64::MAX;
    assert_eq!(
        job_request("job/submit", json!({"bin": "make", "timeout_ms": u64::MAX})),
        JobToolRequest::Submit(work)
    );
}

#[test]
fn invalid_arguments_of_a_model_become_a_tool_result_and_do_not_fail_the_turn() {
    for (method, fields, words) in [
        ("job/wait", json!({"job": "job_does_not_exist"}), "job_list shows them"),
        ("job/status", json!({"job": "trn_1"}), "async job not found: trn_1"),
        ("job/list", json!({"status": "over"}), "pending, running, done, error, cancelled"),
    ] {
        match parse_method(method, fields).unwrap() {
            RuntimeCall::Answer { text, error: true, step: 2, .. } => assert!(text.contains(words), "{text}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_invalid_request_of_a_runtime_is_refused() {
    assert!(parse_method("job/wait", json!({})).unwrap_err().contains("job"));
    assert!(parse_method("job/submit", json!({"args": []})).unwrap_err().contains("bin"));
    assert!(parse_method("job/peek", json!({})).unwrap_err().contains("no method `job/peek`"));
}

#[test]
fn every_answer_has_the_shape_that_the_protocol_promises() {
    let program = CallOutcome {
        state: lodge_core::turn::StepState::Done,
        exit_code: Some(1),
        signal: None,
        cause: None,
        digest: Some([0, 1, 2, 3, 4, 5, 254, 255]),
        output: Some(lodge_engine::OutputBytes { stdout: 7, stderr: 0 }),
    };
    let rewritten = CallOutcome { digest: None, output: None, ..program };
    let call = CallRecord { id: "c1".into(), name: "sh".into(), arguments: "{}".into() };
    for (answer, result) in [
        (RuntimeAnswer::Done, json!({})),
        (
            RuntimeAnswer::Model { finished: false, calls: vec![call] },
            json!({"finished": false, "calls": [{"id": "c1", "name": "sh", "arguments": "{}"}]}),
        ),
        (RuntimeAnswer::Model { finished: true, calls: Vec::new() }, json!({"finished": true, "calls": []})),
        (
            RuntimeAnswer::Call(program),
            json!({"status": "done", "exit_code": 1, "signal": null, "cause": null,
                "digest": "000102030405feff", "stdout_bytes": 7, "stderr_bytes": 0}),
        ),
        (
            RuntimeAnswer::Call(rewritten),
            json!({"status": "done", "exit_code": 1, "signal": null, "cause": null}),
        ),
        (RuntimeAnswer::Compacted { from_turn: 3 }, json!({"from_turn": 3})),
    ] {
        let line = super::answer(&RuntimeCallId(json!("trn_1:m1")), Ok(answer));
        let line: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(line, json!({"jsonrpc": "2.0", "id": "trn_1:m1", "result": result}));
    }
    let line = super::answer(&RuntimeCallId(json!(4)), Err(lodge_engine::RuntimeCallRefusal::TurnGone));
    let line: Value = serde_json::from_slice(&line).unwrap();
    let error = json!({"code": -32000, "message": "that turn is over", "data": {"code": "turn.gone"}});
    assert_eq!(line, json!({"jsonrpc": "2.0", "id": 4, "error": error}));
}
