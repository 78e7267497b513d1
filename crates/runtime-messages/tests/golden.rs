//! Lines as released daemons and runtimes write and read them.

use lodge_runtime_messages::{
    AgentIdentity, AnswerBody, AnswerCall, ContextFile, ConversationEpoch, ErrorReply, ExecReply,
    InitializeReply, InitializeRequest, ModelStreamReply, REFUSED, RuntimeRequest, ToolAnswerRequest,
    ToolDeclaration, TurnRunRequest, write_daemon_request, write_error, write_result, write_runtime_request,
};
use serde_json::{Value, json};

fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut line = Vec::new();
    write(&mut line);
    String::from_utf8(line).unwrap()
}

#[test]
fn a_request_is_one_line_with_its_method_beside_its_params() {
    let request = RuntimeRequest::ToolAnswer(ToolAnswerRequest {
        turn: "trn_1".into(),
        step: 2,
        call: "c9".into(),
        text: "two\nlines".into(),
        error: true,
    });
    let expected = r#"{"jsonrpc":"2.0","id":"trn_1:t2.c9","method":"tool/answer","params":{"turn":"trn_1","step":2,"call":"c9","text":"two\nlines","error":true}}"#;
    assert_eq!(written(|out| write_runtime_request(out, &request.id(), &request)), expected);
}

#[test]
fn each_request_of_the_stock_runtime_is_written_as_it_was_read() {
    for (method, id, params) in [
        (
            "model/stream",
            "trn_1:m3",
            json!({"turn": "trn_1", "step": 3, "context": "x", "from_turn": 1, "finish_if_no_tools": true}),
        ),
        ("context/compact", "trn_1:e7", json!({"turn": "trn_1", "from_turn": 7, "strategy": "handoff"})),
        (
            "exec/run",
            "trn_1:t3.c1",
            json!({"turn": "trn_1", "step": 3, "call": "c1", "bin": "cat", "args": ["a"], "stdin": "", "timeout_ms": 0}),
        ),
        (
            "job/submit",
            "trn_1:t3.c1",
            json!({
                "turn": "trn_1", "step": 3, "call": "c1", "bin": "cat", "args": [], "stdin": "x", "timeout_ms": 9,
                "priority": -1, "labels": {"a": "b"},
            }),
        ),
        ("job/list", "trn_1:t3.c1", json!({"turn": "trn_1", "step": 3, "call": "c1", "limit": 20})),
        ("job/wait", "trn_1:t3.c1", json!({"turn": "trn_1", "step": 3, "call": "c1", "job": "job_1"})),
        (
            "turn/finish",
            "trn_1:f3",
            json!({"turn": "trn_1", "step": 3, "status": "failed", "code": "turn.stuck", "message": "x"}),
        ),
    ] {
        let request = RuntimeRequest::parse(method, params.clone()).unwrap();
        let line: Value =
            serde_json::from_str(&written(|out| write_runtime_request(out, &request.id(), &request)))
                .unwrap();
        assert_eq!(line, json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }
}

#[test]
fn what_a_small_runtime_leaves_out_has_a_default() {
    let exec = RuntimeRequest::parse(
        "exec/run",
        json!({"turn": "trn_1", "step": 1, "call": "c", "bin": "cat", "stdin": null, "colour": 1}),
    );
    let RuntimeRequest::ExecRun(exec) = exec.unwrap() else { panic!() };
    assert_eq!((exec.args.len(), exec.stdin.as_str(), exec.timeout_ms), (0, "", 0));
    for (method, params) in [
        ("model/stream", json!({"turn": "t", "step": 1, "context": "x", "from_turn": 1})),
        ("job/submit", json!({"turn": "t", "step": 1, "call": "c", "bin": "cat"})),
        ("job/list", json!({"turn": "t", "step": 1, "call": "c"})),
        ("tool/answer", json!({"turn": "t", "step": 1, "call": "c", "text": "x"})),
        ("turn/finish", json!({"turn": "t", "code": "x", "message": "x"})),
        ("turn/finish", json!({"turn": "t", "status": "given up", "code": "x", "message": "x"})),
    ] {
        RuntimeRequest::parse(method, params).unwrap();
    }
    let ready: InitializeReply =
        serde_json::from_value(json!({"context": {"id": "x", "system": "y"}, "params": {"max_tokens": 9}}))
            .unwrap();
    assert_eq!((ready.tools.len(), ready.turns.len(), ready.params.max_tokens), (0, 0, Some(9)));
}

#[test]
fn what_an_older_daemon_leaves_out_has_a_default() {
    let run: TurnRunRequest =
        serde_json::from_value(json!({"turn": "trn_1", "session": "ses_1", "number": 4, "step": 1})).unwrap();
    assert_eq!((run.epoch, run.calls.len()), (ConversationEpoch::default(), 0));
    let params = json!({"protocol": 2, "epoch": 1, "agent": {"id": "agt_1"}, "new": true});
    let params: InitializeRequest = serde_json::from_value(params).unwrap();
    assert_eq!((params.root, params.tools.len()), (None, 0));
    let answer: AnswerBody<ExecReply> =
        serde_json::from_value(json!({"result": {"status": "done"}})).unwrap();
    assert_eq!(answer.result.unwrap().digest, None);
    let answer: AnswerBody<ModelStreamReply> =
        serde_json::from_value(json!({"result": {"finished": true}})).unwrap();
    assert!(answer.result.unwrap().calls.is_empty());
    let answer: AnswerBody<ExecReply> = serde_json::from_value(json!({"error": {"data": 5}})).unwrap();
    assert_eq!(answer.error.unwrap().dotted_code(), None);
}

#[test]
fn the_daemons_lines_are_as_they_were() {
    let initialize = InitializeRequest {
        protocol: 1,
        epoch: 4,
        agent: AgentIdentity { id: "agt_7".into(), name: "reader".into(), model: "work/large".into() },
        root: Some("/agents/reader".into()),
        configs: [("max-tokens".to_owned(), "1000".to_owned())].into(),
        context: vec![ContextFile { name: "AGENT".into(), file: "AGENT.md".into(), description: None }],
        tools: vec![ToolDeclaration {
            name: "cat".into(),
            description: "Shows files.".into(),
            usage: Some("cat FILE".into()),
        }],
    };
    let line: Value =
        serde_json::from_str(&written(|out| write_daemon_request(out, "init:1", &initialize))).unwrap();
    assert_eq!(
        line,
        json!({"jsonrpc": "2.0", "id": "init:1", "method": "initialize", "params": {
            "protocol": 1, "epoch": 4, "agent": {"id": "agt_7", "name": "reader", "model": "work/large"},
            "root": "/agents/reader", "configs": {"max-tokens": "1000"},
            "context": [{"name": "AGENT", "file": "AGENT.md"}],
            "tools": [{"name": "cat", "description": "Shows files.", "usage": "cat FILE"}],
        }})
    );
    let call = AnswerCall { id: "c1".into(), name: "cat".into(), arguments: json!("{\"args\":[]}") };
    let run = TurnRunRequest {
        turn: "trn_5".into(),
        session: "ses_2".into(),
        number: 1,
        step: 2,
        calls: vec![call],
        epoch: ConversationEpoch { number: 1, from_turn: 1, messages: 1, bytes: 34, turns: vec![34] },
    };
    let line: Value =
        serde_json::from_str(&written(|out| write_daemon_request(out, "run:trn_5:2", &run))).unwrap();
    assert_eq!(
        line,
        json!({"jsonrpc": "2.0", "id": "run:trn_5:2", "method": "turn/run", "params": {
            "turn": "trn_5", "session": "ses_2", "number": 1, "step": 2,
            "calls": [{"id": "c1", "name": "cat", "arguments": "{\"args\":[]}"}],
            "epoch": {"number": 1, "from_turn": 1, "messages": 1, "bytes": 34, "turns": [34]},
        }})
    );
    let error = ErrorReply::new(REFUSED, "no".to_owned(), "turn.gone");
    let expected =
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no","data":{"code":"turn.gone"}}}"#;
    assert_eq!(written(|out| write_error(out, &Value::Null, &error)), expected);
    let done = ModelStreamReply { finished: true, calls: Vec::new() };
    let expected = r#"{"jsonrpc":"2.0","id":"trn_5:m1","result":{"finished":true,"calls":[]}}"#;
    assert_eq!(written(|out| write_result(out, &json!("trn_5:m1"), &done)), expected);
}
