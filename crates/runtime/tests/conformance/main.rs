//! What every runtime must do, in any language: the same list for the stock runtime and the example.
//!
//! Another runtime is checked with `LODGE_RUNTIME_COMMAND="python3 mine.py" cargo test -p lodge-runtime --test
//! conformance stock_or_given`.

mod configs;
mod jobs;
mod memory;
mod rounds;
mod support;

use std::os::unix::process::ExitStatusExt;

use configs::*;
use jobs::*;
use memory::*;
use rounds::*;
use serde_json::{Value, json};
use support::{CommandLine, FakeDaemon};

macro_rules! conformance {
    ($($name:ident)*) => {
        mod stock_or_given {
            $(#[test] fn $name() { super::$name(&super::support::stock_or_given()) })*
        }
        mod tiny {
            $(#[test] fn $name() { super::$name(&super::support::tiny()) })*
        }
    };
}

conformance! {
    initialize_answers_with_prompt_tools_and_params
    missing_and_blank_context_files_are_skipped_and_an_unreadable_one_is_named
    unknown_configs_do_not_stop_it
    a_config_that_cannot_be_used_is_refused_by_its_key
    a_turn_before_initialize_is_refused
    a_fresh_turn_without_tools_is_one_model_call
    tools_of_one_answer_are_asked_at_once_and_in_order
    bad_arguments_are_answered_without_running_anything
    a_call_without_arguments_runs_however_it_is_written
    an_unknown_tool_is_answered_without_running_anything
    a_turn_that_never_ends_fails_at_max_iterations
    initialize_again_resends_what_was_unanswered_and_nothing_else
    an_older_epoch_is_refused
    pending_calls_of_another_process_are_resumed
    running_a_turn_twice_is_one_run
    an_interrupted_turn_is_forgotten
    a_turn_that_the_daemon_ended_is_dropped_silently
    any_other_error_of_a_request_fails_the_turn
    garbage_is_refused_and_survived
    tunables_reach_the_model_when_they_are_set_and_not_otherwise
    a_conversation_is_compacted_rarely_and_stays_within_its_size
    a_conversation_is_compacted_by_what_its_turns_weigh
    a_conversation_is_never_compacted_in_the_middle_of_a_turn
    a_compaction_that_was_not_answered_is_asked_for_again
    a_compaction_that_is_refused_fails_the_turn
    the_same_calls_with_the_same_results_end_the_turn
    calls_whose_results_differ_or_are_not_reported_do_not_end_the_turn
    of_ten_thousand_calls_the_first_are_run_and_each_is_answered
    every_agent_is_offered_the_tools_for_jobs
    what_is_wanted_of_jobs_is_asked_of_the_daemon
    bad_arguments_for_a_job_are_answered_without_asking_for_it
    a_wait_goes_on_under_the_next_daemon_until_it_is_answered
    an_interrupted_wait_is_forgotten
    looking_at_a_job_again_and_again_ends_the_turn_and_waiting_does_not
    a_program_with_the_name_of_a_tool_for_jobs_is_run
    two_sessions_run_interleaved
    end_of_input_ends_it
    sigterm_ends_it
}

fn initialize_answers_with_prompt_tools_and_params(command: &CommandLine) {
    let mut daemon = FakeDaemon::start(command);
    daemon.write_context("AGENT.md", "\nYou are a tester.\n\n");
    daemon.write_context("STYLE.md", "Be brief.");
    let mut params = daemon.params(1, json!({"max-tokens": "100", "memory-max-messages": "8"}));
    params["context"] = json!([
        {"name": "AGENT", "file": "AGENT.md"},
        {"name": "STYLE", "file": "STYLE.md", "description": "How to write."},
    ]);
    params["tools"] = json!([{"name": "cat", "description": "Shows files.", "usage": "cat FILE"}]);
    let reply = daemon.request("initialize", params);
    assert_eq!(reply["protocol"], 1);
    assert!(reply["runtime"]["name"].is_string() && reply["runtime"]["version"].is_string(), "{reply}");
    let system = "# AGENT\n\nYou are a tester.\n\n---\n\n# STYLE\n\n> How to write.\n\nBe brief.";
    assert_eq!(reply["context"]["system"], system);
    assert!(!reply["context"]["id"].as_str().unwrap().is_empty());
    assert_eq!(reply["tools"][0]["name"], "cat");
    assert_eq!(reply["tools"][0]["description"], "Shows files.\n\n## Usage\n\ncat FILE");
    assert_eq!(reply["tools"][0]["parameters"]["properties"]["args"]["items"]["type"], "string");
    assert_eq!(reply["params"]["max_tokens"], 100);
    assert_eq!(reply["window"]["max_messages"], 8);
    assert_eq!(reply["turns"], json!([]));
}

fn missing_and_blank_context_files_are_skipped_and_an_unreadable_one_is_named(command: &CommandLine) {
    let mut daemon = FakeDaemon::start(command);
    daemon.write_context("BLANK.md", " \n\n");
    daemon.write_context("LAST.md", "text");
    let mut params = daemon.params(1, json!({}));
    params["context"] = json!([
        {"name": "MISSING", "file": "MISSING.md"},
        {"name": "BLANK", "file": "BLANK.md"},
        {"name": "LAST", "file": "LAST.md"},
    ]);
    assert_eq!(daemon.request("initialize", params.clone())["context"]["system"], "# LAST\n\ntext");
    // A directory cannot be read as a file by any user; a mode would not stop root.
    std::fs::create_dir(daemon.root.join("etc/context/DIR.md")).unwrap();
    params["context"] = json!([{"name": "DIR", "file": "DIR.md"}]);
    let reply = daemon.reply("initialize", params);
    assert_eq!(reply["error"]["data"]["code"], "context.unreadable");
    assert!(reply["error"]["message"].as_str().unwrap().contains("DIR.md"), "{reply}");
}

fn a_turn_before_initialize_is_refused(command: &CommandLine) {
    let mut daemon = FakeDaemon::start(command);
    let params = json!({"turn": "trn_1", "session": "ses_1", "number": 1, "step": 1, "calls": []});
    assert_eq!(daemon.refused("turn/run", params), "runtime.not_initialized");
    daemon.quiet();
}

fn a_fresh_turn_without_tools_is_one_model_call(command: &CommandLine) {
    let mut daemon = FakeDaemon::start(command);
    let params = daemon.params(1, json!({}));
    let context = daemon.request("initialize", params)["context"]["id"].take();
    let ask = daemon.run("trn_1", 3);
    let expected =
        json!({"turn": "trn_1", "step": 1, "context": context, "from_turn": 1, "finish_if_no_tools": true});
    assert_eq!(ask["params"], expected);
    daemon.finish(&ask);
    daemon.quiet();
    let params = daemon.params(2, json!({}));
    assert_eq!(daemon.request("initialize", params)["turns"], json!([]));
}

fn tools_of_one_answer_are_asked_at_once_and_in_order(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({}));
    let ask = daemon.run("trn_1", 1);
    daemon.call(
        &ask,
        json!([
            {"id": "c1", "name": "cat", "arguments": {"args": ["a", ""], "stdin": ""}},
            {"id": "c2", "name": "grep", "arguments": "{\"args\": [\"é\"], \"stdin\": \"one\\ntwo\"}"},
            {"id": "c3", "name": "cat", "arguments": {"stdin": "x"}},
        ]),
    );
    let execs: Vec<Value> = (0..3).map(|_| daemon.asked("exec/run")).collect();
    daemon.quiet();
    let params: Vec<&Value> = execs.iter().map(|exec| &exec["params"]).collect();
    let exec = |call: &str, bin: &str, args: Value, stdin: &str| json!({"turn": "trn_1", "step": 1, "call": call, "bin": bin, "args": args, "stdin": stdin, "timeout_ms": 600_000});
    assert_eq!(params[0], &exec("c1", "cat", json!(["a", ""]), ""));
    assert_eq!(params[1], &exec("c2", "grep", json!(["é"]), "one\ntwo"));
    assert_eq!(params[2], &exec("c3", "cat", json!([]), "x"));
    // Answers may come in any order; only the last one lets the turn go on.
    daemon.ran(&execs[2]);
    daemon
        .answer(&execs[0], json!({"status": "failed", "exit_code": 1, "stdout_bytes": 0, "stderr_bytes": 9}));
    daemon.quiet();
    daemon.answer(&execs[1], json!({"status": "unknown", "stdout_bytes": 0, "stderr_bytes": 0}));
    let ask = daemon.asked("model/stream");
    assert_eq!(ask["params"]["step"], 2);
    daemon.finish(&ask);
    daemon.quiet();
}

fn bad_arguments_are_answered_without_running_anything(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({}));
    let mut ask = daemon.run("trn_1", 1);
    let large = "x".repeat(4 * 1024 * 1024);
    let cases = [
        json!("cat file"),
        json!([]),
        json!({"args": "file"}),
        json!({"args": [1]}),
        json!({"args": ["a"], "stdin": 5}),
        json!({"args": ["a\u{0}b"]}),
        json!({"args": [large]}),
        json!({"stdin": large}),
    ];
    for (place, arguments) in cases.iter().enumerate() {
        daemon.call(&ask, json!([{"id": "c1", "name": "cat", "arguments": arguments}]));
        let answer = daemon.asked("tool/answer");
        let params = &answer["params"];
        assert_eq!((&params["step"], &params["call"]), (&json!(place + 1), &json!("c1")), "case {place}");
        assert_eq!(params["error"], true);
        assert!(!params["text"].as_str().unwrap().is_empty());
        if place < 3 {
            assert!(params["text"].as_str().unwrap().contains("\"args\""), "shows the right form: {params}");
        }
        daemon.quiet();
        daemon.answer(&answer, json!({}));
        ask = daemon.asked("model/stream");
    }
}

fn a_call_without_arguments_runs_however_it_is_written(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({}));
    let mut ask = daemon.run("trn_1", 1);
    for arguments in [
        json!({}),
        json!(null),
        json!(""),
        json!("{}"),
        json!("null"),
        json!({"args": []}),
        json!({"args": [], "stdin": ""}),
        json!({"args": null, "stdin": null}),
    ] {
        daemon.call(&ask, json!([{"id": "c1", "name": "cat", "arguments": arguments}]));
        let exec = daemon.asked("exec/run");
        assert_eq!(
            (&exec["params"]["args"], &exec["params"]["stdin"]),
            (&json!([]), &json!("")),
            "{arguments}"
        );
        daemon.quiet();
        daemon.answer(&exec, json!({"status": "done", "stdout_bytes": 0, "stderr_bytes": 0, "exit_code": 0}));
        ask = daemon.asked("model/stream");
    }
}

fn an_unknown_tool_is_answered_without_running_anything(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({}));
    let ask = daemon.run("trn_1", 1);
    daemon.call(
        &ask,
        json!([
            {"id": "c1", "name": "rm", "arguments": {"args": ["-rf", "/"]}},
            {"id": "c2", "name": "cat", "arguments": {"args": ["a"]}},
        ]),
    );
    let answer = daemon.asked("tool/answer");
    let text = answer["params"]["text"].as_str().unwrap();
    assert!(text.contains("rm") && text.contains("cat") && text.contains("grep"), "{text}");
    let exec = daemon.asked("exec/run");
    assert_eq!(exec["params"]["call"], "c2");
    daemon.answer(&answer, json!({}));
    daemon.quiet();
    daemon.ran(&exec);
    assert_eq!(daemon.asked("model/stream")["params"]["step"], 2);
}

fn a_turn_that_never_ends_fails_at_max_iterations(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({"max-iterations": "3"}));
    let mut ask = daemon.run("trn_1", 1);
    for step in 1..=3 {
        assert_eq!(ask["params"]["step"], step);
        daemon.call(&ask, json!([{"id": format!("c{step}"), "name": "cat", "arguments": {"args": ["a"]}}]));
        let exec = daemon.asked("exec/run");
        assert_eq!(exec["params"]["step"], step);
        daemon.ran(&exec);
        ask = daemon.next();
    }
    assert_eq!(ask["method"], "turn/finish");
    let params = &ask["params"];
    assert_eq!((&params["status"], &params["step"]), (&json!("failed"), &json!(3)));
    assert_eq!(params["code"], "turn.max_iterations");
    assert!(!params["message"].as_str().unwrap().is_empty());
    daemon.answer(&ask, json!({}));
    daemon.quiet();
    let ask = daemon.run("trn_2", 2);
    assert_eq!(ask["params"]["step"], 1);
}

fn initialize_again_resends_what_was_unanswered_and_nothing_else(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({}));
    let first = daemon.run("trn_1", 1);
    daemon.call(
        &first,
        json!([
            {"id": "c1", "name": "cat", "arguments": {"args": ["a"]}},
            {"id": "c2", "name": "cat", "arguments": {"args": ["b"]}},
            {"id": "c3", "name": "rm", "arguments": {"args": ["c"]}},
        ]),
    );
    let answered = daemon.asked("exec/run");
    let unanswered = [daemon.asked("exec/run"), daemon.asked("tool/answer")];
    daemon.ran(&answered);
    let model = daemon.run("trn_2", 2);
    let done = daemon.run("trn_3", 1);
    daemon.finish(&done);
    // A daemon that takes over ends a line that its predecessor may have left unfinished.
    daemon.write_raw(b"{\"jsonrpc\": \"2.0\", \"id\": 7, \"meth\n");
    assert_eq!(daemon.next()["error"]["code"], -32700);
    daemon.write_raw(b"\n");
    daemon.write_context("NEW.md", "changed");
    let mut params = daemon.params(2, json!({}));
    params["context"] = json!([{"name": "NEW", "file": "NEW.md"}]);
    let reply = daemon.request("initialize", params);
    assert_eq!(reply["turns"], json!([{"turn": "trn_1"}, {"turn": "trn_2"}]));
    for old in &unanswered {
        assert_eq!(&daemon.next(), old);
    }
    let resent = daemon.asked("model/stream");
    assert_eq!(resent["id"], model["id"]);
    assert_eq!(resent["params"]["context"], reply["context"]["id"], "a resent call names the new context");
    daemon.quiet();
    daemon.finish(&resent);
    daemon.ran(&unanswered[0]);
    daemon.answer(&unanswered[1], json!({}));
    let next = daemon.asked("model/stream");
    assert_eq!((&next["params"]["turn"], &next["params"]["step"]), (&json!("trn_1"), &json!(2)));
    daemon.finish(&next);
    daemon.quiet();
}

fn an_older_epoch_is_refused(command: &CommandLine) {
    let mut daemon = FakeDaemon::start(command);
    let params = daemon.params(5, json!({}));
    daemon.request("initialize", params);
    let model = daemon.run("trn_1", 1);
    let params = daemon.params(4, json!({}));
    assert_eq!(daemon.refused("initialize", params), "epoch.stale");
    daemon.quiet();
    daemon.finish(&model);
    daemon.quiet();
}

fn pending_calls_of_another_process_are_resumed(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({}));
    let calls = json!([
        {"id": "c2", "name": "cat", "arguments": {"args": ["b"]}},
        {"id": "c3", "name": "grep", "arguments": {"args": ["c"]}},
    ]);
    let params = json!({"turn": "trn_1", "session": "ses_1", "number": 2, "step": 4, "calls": calls});
    assert_eq!(daemon.request("turn/run", params), json!({}));
    let execs = [daemon.asked("exec/run"), daemon.asked("exec/run")];
    daemon.quiet();
    for (exec, call) in execs.iter().zip(["c2", "c3"]) {
        assert_eq!((&exec["params"]["step"], &exec["params"]["call"]), (&json!(3), &json!(call)));
        daemon.ran(exec);
    }
    let ask = daemon.asked("model/stream");
    assert_eq!(ask["params"]["step"], 4);
    // Without pending calls the runtime requests the model at once, with the next step.
    let params = json!({"turn": "trn_2", "session": "ses_2", "number": 1, "step": 3, "calls": []});
    assert_eq!(daemon.request("turn/run", params), json!({}));
    assert_eq!(daemon.asked("model/stream")["params"]["step"], 3);
}

fn running_a_turn_twice_is_one_run(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({}));
    let ask = daemon.run("trn_1", 1);
    let params = json!({"turn": "trn_1", "session": "ses_1", "number": 1, "step": 1, "calls": []});
    assert_eq!(daemon.request("turn/run", params), json!({}));
    daemon.quiet();
    daemon.finish(&ask);
    daemon.quiet();
}

fn an_interrupted_turn_is_forgotten(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({}));
    let ask = daemon.run("trn_1", 1);
    let other = daemon.run("trn_2", 1);
    assert_eq!(daemon.request("turn/interrupt", json!({"turn": "trn_1"})), json!({}));
    assert_eq!(daemon.request("turn/interrupt", json!({"turn": "trn_9"})), json!({}));
    daemon.call(&ask, json!([{"id": "c1", "name": "cat", "arguments": {"args": ["a"]}}]));
    daemon.quiet();
    let params = daemon.params(2, json!({}));
    assert_eq!(daemon.request("initialize", params)["turns"], json!([{"turn": "trn_2"}]));
    assert_eq!(daemon.asked("model/stream")["id"], other["id"]);
    daemon.quiet();
}

fn a_turn_that_the_daemon_ended_is_dropped_silently(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({}));
    for code in ["turn.gone", "turn.interrupted", "turn.failed"] {
        let ask = daemon.run("trn_1", 1);
        daemon.answer_error(&ask, code);
        daemon.quiet();
    }
    let ask = daemon.run("trn_2", 1);
    daemon.call(
        &ask,
        json!([
            {"id": "c1", "name": "cat", "arguments": {"args": ["a"]}},
            {"id": "c2", "name": "cat", "arguments": {"args": ["b"]}},
        ]),
    );
    let execs = [daemon.asked("exec/run"), daemon.asked("exec/run")];
    daemon.answer_error(&execs[0], "turn.interrupted");
    daemon.ran(&execs[1]);
    daemon.quiet();
    let params = daemon.params(2, json!({}));
    assert_eq!(daemon.request("initialize", params)["turns"], json!([]));
}

fn any_other_error_of_a_request_fails_the_turn(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({}));
    let ask = daemon.run("trn_1", 1);
    daemon.answer_error(&ask, "model.refused");
    let finish = daemon.asked("turn/finish");
    let params =
        json!({"turn": "trn_1", "step": 1, "status": "failed", "code": "model.refused", "message": "no"});
    assert_eq!(finish["params"], params);
    // Until that is answered it is a request like any other.
    let params = daemon.params(2, json!({}));
    daemon.request("initialize", params);
    assert_eq!(daemon.next(), finish);
    daemon.answer(&finish, json!({}));
    daemon.quiet();
}

fn garbage_is_refused_and_survived(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({}));
    let ask = daemon.run("trn_1", 1);
    for garbage in [&b"not json\n"[..], b"{\"id\": 1,\n", b"[1, 2]\n", b"\xff\xfe\n"] {
        daemon.write_raw(garbage);
        let reply = daemon.next();
        assert_eq!((&reply["id"], &reply["error"]["code"]), (&Value::Null, &json!(-32700)), "{reply}");
    }
    let mut long = vec![b'x'; 17 * 1024 * 1024];
    long.push(b'\n');
    daemon.write_raw(&long);
    assert_eq!(daemon.next()["error"]["code"], -32700);
    daemon.write_raw(b"\n  \n");
    assert_eq!(daemon.refused("turn/explode", json!({})), "rpc.unknown_method");
    // Answers are never answered, or two confused programs would exchange messages endlessly.
    daemon.write_raw(
        b"{\"jsonrpc\": \"2.0\", \"id\": null, \"error\": {\"code\": -32700, \"message\": \"?\"}}\n",
    );
    daemon.write_raw(b"{\"jsonrpc\": \"2.0\", \"id\": \"nobody\", \"result\": {}}\n");
    daemon.quiet();
    daemon.finish(&ask);
    daemon.quiet();
}

fn two_sessions_run_interleaved(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({}));
    let (one, two) = (daemon.run("trn_1", 1), daemon.run("trn_2", 7));
    daemon.call(&two, json!([{"id": "c1", "name": "cat", "arguments": {"args": ["two"]}}]));
    let exec_two = daemon.asked("exec/run");
    daemon.call(&one, json!([{"id": "c1", "name": "cat", "arguments": {"args": ["one"]}}]));
    let exec_one = daemon.asked("exec/run");
    assert_ne!(exec_one["id"], exec_two["id"]);
    daemon.ran(&exec_one);
    let one = daemon.asked("model/stream");
    assert_eq!((&one["params"]["turn"], &one["params"]["step"]), (&json!("trn_1"), &json!(2)));
    daemon.ran(&exec_two);
    let two = daemon.asked("model/stream");
    assert_eq!((&two["params"]["turn"], &two["params"]["step"]), (&json!("trn_2"), &json!(2)));
    daemon.finish(&one);
    daemon.finish(&two);
    daemon.quiet();
}

fn end_of_input_ends_it(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({}));
    daemon.run("trn_1", 1);
    let (status, _) = daemon.close();
    assert_eq!(status.code(), Some(0));
}

fn sigterm_ends_it(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({}));
    daemon.run("trn_1", 1);
    daemon.terminate();
    let status = daemon.wait();
    assert!(status.signal() == Some(libc::SIGTERM) || status.code() == Some(0), "{status}");
}

#[test]
fn the_stock_runtime_is_ended_by_sigterm_and_does_not_exit_by_itself() {
    let mut daemon = FakeDaemon::ready(&support::stock(), json!({}));
    daemon.run("trn_1", 1);
    daemon.terminate();
    assert_eq!(daemon.wait().signal(), Some(libc::SIGTERM));
}
