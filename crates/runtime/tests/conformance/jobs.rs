//! The six tools for jobs: asked of the daemon, which has the jobs.

use serde_json::{Value, json};

use crate::support::{CommandLine, FakeDaemon};

const TOOLS: [&str; 6] = ["job_submit", "job_list", "job_status", "job_wait", "job_watch", "job_cancel"];

pub(crate) fn every_agent_is_offered_the_tools_for_jobs(command: &CommandLine) {
    let mut daemon = FakeDaemon::start(command);
    let mut params = daemon.params(1, json!({}));
    let names = |reply: &Value| -> Vec<String> {
        let tools = reply["tools"].as_array().unwrap();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    let reply = daemon.request("initialize", params.clone());
    assert_eq!(names(&reply)[..2], ["cat", "grep"]);
    assert_eq!(names(&reply)[2..], TOOLS);
    assert_eq!(reply["tools"][2]["parameters"]["properties"]["bin"]["enum"], json!(["cat", "grep"]));
    for tool in reply["tools"].as_array().unwrap() {
        assert!(!tool["description"].as_str().unwrap().is_empty(), "{tool}");
        assert_eq!(tool["parameters"]["type"], "object");
    }
    params["tools"] = json!([]);
    let reply = daemon.request("initialize", params);
    assert_eq!(names(&reply), TOOLS);
    let bin = &reply["tools"][0]["parameters"]["properties"]["bin"];
    assert_eq!(bin.get("enum"), None, "providers refuse a choice of nothing");
}

pub(crate) fn what_is_wanted_of_jobs_is_asked_of_the_daemon(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({}));
    let ask = daemon.run("trn_1", 1);
    let one = json!({"job_id": "job_7"});
    let submit = json!({"bin": "cat", "args": ["a"], "stdin": "x", "timeout_s": 90, "priority": 2, "labels": {"k": "v"}});
    daemon.call(
        &ask,
        json!([
            {"id": "c1", "name": "job_submit", "arguments": submit},
            {"id": "c2", "name": "job_submit", "arguments": "{\"bin\": \"grep\"}"},
            {"id": "c3", "name": "job_list", "arguments": {}},
            {"id": "c4", "name": "job_list", "arguments": {"status": "running", "limit": 3}},
            {"id": "c5", "name": "job_status", "arguments": one},
            {"id": "c6", "name": "job_wait", "arguments": one},
            {"id": "c7", "name": "job_watch", "arguments": one},
            {"id": "c8", "name": "job_cancel", "arguments": one},
        ]),
    );
    let expected = [
        (
            "job/submit",
            json!({"bin": "cat", "args": ["a"], "stdin": "x", "timeout_ms": 90_000, "priority": 2, "labels": {"k": "v"}}),
        ),
        (
            "job/submit",
            json!({"bin": "grep", "args": [], "stdin": "", "timeout_ms": 0, "priority": 0, "labels": {}}),
        ),
        ("job/list", json!({"limit": 20})),
        ("job/list", json!({"limit": 3, "status": "running"})),
        ("job/status", json!({"job": "job_7"})),
        ("job/wait", json!({"job": "job_7"})),
        ("job/watch", json!({"job": "job_7"})),
        ("job/cancel", json!({"job": "job_7"})),
    ];
    let mut asked = Vec::new();
    for (place, (method, mut params)) in expected.into_iter().enumerate() {
        let request = daemon.asked(method);
        let own = json!({"turn": "trn_1", "step": 1, "call": format!("c{}", place + 1)});
        params.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        assert_eq!(request["params"], params);
        asked.push(request);
    }
    // A wait is answered when the job is over, which may be long after everything else.
    let wait = asked.remove(5);
    for request in &asked {
        daemon.answer(request, json!({"status": "done", "digest": "0"}));
    }
    daemon.quiet();
    daemon.answer(&wait, json!({"status": "done", "digest": "1"}));
    assert_eq!(daemon.asked("model/stream")["params"]["step"], 2);
}

pub(crate) fn bad_arguments_for_a_job_are_answered_without_asking_for_it(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({"max-iterations": "100"}));
    let mut ask = daemon.run("trn_1", 1);
    for (name, arguments, words) in [
        ("job_submit", json!({}), "bin"),
        ("job_submit", json!({"bin": "rm"}), "cat, grep"),
        ("job_submit", json!({"bin": "cat", "args": "a"}), "args"),
        ("job_submit", json!({"bin": "cat", "args": ["a\u{0}"]}), "NUL"),
        ("job_submit", json!({"bin": "cat", "shell": true}), "labels"),
        ("job_submit", json!("cat a"), "JSON"),
        ("job_list", json!({"status": "over"}), "cancelled"),
        ("job_list", json!({"limit": "all"}), "limit"),
        ("job_status", json!({}), "job_id"),
        ("job_wait", json!({"job_id": 7}), "job_submit"),
        ("job_watch", json!({"id": "job_7"}), "job_id"),
        ("job_cancel", json!([]), "object"),
    ] {
        daemon.call(&ask, json!([{"id": "c1", "name": name, "arguments": arguments}]));
        let answer = daemon.asked("tool/answer");
        let (text, error) = (answer["params"]["text"].as_str().unwrap(), &answer["params"]["error"]);
        assert!(text.contains(words) && *error == json!(true), "{name} {arguments}: {text}");
        daemon.quiet();
        daemon.answer(&answer, json!({}));
        ask = daemon.asked("model/stream");
    }
}

pub(crate) fn a_wait_goes_on_under_the_next_daemon_until_it_is_answered(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({"tool-timeout": "1s"}));
    let ask = daemon.run("trn_1", 1);
    daemon.call(&ask, json!([{"id": "c1", "name": "job_wait", "arguments": {"job_id": "job_7"}}]));
    let wait = daemon.asked("job/wait");
    for epoch in 2..4 {
        let params = daemon.params(epoch, json!({}));
        daemon.request("initialize", params);
        assert_eq!(daemon.next(), wait);
        daemon.quiet();
    }
    // Another process gets the call, and requests the same.
    let mut other = FakeDaemon::ready(command, json!({}));
    let calls = json!([{"id": "c1", "name": "job_wait", "arguments": {"job_id": "job_7"}}]);
    let params = json!({"turn": "trn_1", "session": "ses_1", "number": 1, "step": 2, "calls": calls});
    other.request("turn/run", params);
    assert_eq!(other.next(), wait);
    daemon.answer(&wait, json!({"status": "done"}));
    assert_eq!(daemon.asked("model/stream")["params"]["step"], 2);
}

pub(crate) fn an_interrupted_wait_is_forgotten(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({}));
    let ask = daemon.run("trn_1", 1);
    daemon.call(&ask, json!([{"id": "c1", "name": "job_wait", "arguments": {"job_id": "job_7"}}]));
    let wait = daemon.asked("job/wait");
    daemon.request("turn/interrupt", json!({"turn": "trn_1"}));
    // The daemon decides about the job.
    daemon.quiet();
    daemon.answer(&wait, json!({"status": "done"}));
    daemon.quiet();
    let params = daemon.params(2, json!({}));
    assert_eq!(daemon.request("initialize", params)["turns"], json!([]));
    daemon.quiet();
}

/// Calls the same tool with the same result, until the runtime requests something else.
fn again_and_again(command: &CommandLine, name: &str, method: &str) -> (u32, Value) {
    let mut daemon = FakeDaemon::ready(command, json!({}));
    let mut ask = daemon.run("trn_1", 1);
    for round in 1..=8 {
        daemon
            .call(&ask, json!([{"id": format!("c{round}"), "name": name, "arguments": {"job_id": "job_7"}}]));
        let asked = daemon.asked(method);
        daemon.answer(&asked, json!({"status": "done", "digest": "0123456789abcdef"}));
        ask = daemon.next();
        if ask["method"] != "model/stream" {
            return (round, ask);
        }
    }
    (8, ask)
}

pub(crate) fn looking_at_a_job_again_and_again_ends_the_turn_and_waiting_does_not(command: &CommandLine) {
    let (round, finish) = again_and_again(command, "job_status", "job/status");
    assert_eq!((round, &finish["params"]["code"]), (4, &json!("turn.stuck")));
    for (name, method) in [("job_wait", "job/wait"), ("job_watch", "job/watch")] {
        let (round, ask) = again_and_again(command, name, method);
        assert_eq!((round, &ask["method"]), (8, &json!("model/stream")), "{name}");
    }
}

pub(crate) fn a_program_with_the_name_of_a_tool_for_jobs_is_run(command: &CommandLine) {
    let mut daemon = FakeDaemon::start(command);
    let mut params = daemon.params(1, json!({}));
    params["tools"] = json!([{"name": "job_list", "description": "Lists something else."}]);
    let reply = daemon.request("initialize", params);
    assert_eq!(reply["tools"].as_array().unwrap().len(), 6, "no name is offered twice");
    let ask = daemon.run("trn_1", 1);
    daemon.call(&ask, json!([{"id": "c1", "name": "job_list", "arguments": {"args": ["-l"]}}]));
    assert_eq!(daemon.asked("exec/run")["params"]["bin"], "job_list");
}
