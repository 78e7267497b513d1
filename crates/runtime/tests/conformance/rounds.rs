//! Answers that ask for the same again and again, or for far too much at once.

use serde_json::{Value, json};

use crate::support::{CommandLine, FakeDaemon};

/// Runs rounds of two calls, with the digest from `digest` for each, until the runtime requests something else.
fn rounds(daemon: &mut FakeDaemon, digest: impl Fn(u32) -> Value) -> (u32, Value) {
    let mut ask = daemon.run("trn_1", 1);
    for round in 1..=12 {
        let id = |place: u32| format!("c{round}.{place}");
        daemon.call(
            &ask,
            json!([
                {"id": id(1), "name": "cat", "arguments": {"args": ["a"]}},
                {"id": id(2), "name": "rm", "arguments": {"args": ["b"]}},
            ]),
        );
        let (exec, refused) = (daemon.asked("exec/run"), daemon.asked("tool/answer"));
        daemon.answer(&refused, json!({}));
        let mut result = json!({"status": "done", "exit_code": 0});
        if !digest(round).is_null() {
            result["digest"] = digest(round);
        }
        daemon.answer(&exec, result);
        ask = daemon.next();
        if ask["method"] != "model/stream" {
            return (round, ask);
        }
    }
    (12, ask)
}

pub(crate) fn the_same_calls_with_the_same_results_end_the_turn(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({}));
    let (round, finish) = rounds(&mut daemon, |_| json!("0123456789abcdef"));
    assert_eq!((round, &finish["method"]), (4, &json!("turn/finish")), "{finish}");
    let params = &finish["params"];
    assert_eq!((&params["code"], &params["step"]), (&json!("turn.stuck"), &json!(4)));
    assert!(params["message"].as_str().unwrap().contains("`cat`"), "the reason names the tool: {params}");
    daemon.answer(&finish, json!({}));
    daemon.quiet();
    let ask = daemon.run("trn_2", 2);
    assert_eq!(ask["params"]["step"], 1);
}

pub(crate) fn calls_whose_results_differ_or_are_not_reported_do_not_end_the_turn(command: &CommandLine) {
    for digest in [
        &(|round: u32| json!(round.to_string())) as &dyn Fn(u32) -> Value,
        &|_| Value::Null,
        // Three of the same, then another.
        &|round| json!((round / 3).to_string()),
    ] {
        let mut daemon = FakeDaemon::ready(command, json!({}));
        let (round, ask) = rounds(&mut daemon, digest);
        assert_eq!((round, &ask["method"]), (12, &json!("model/stream")), "{ask}");
    }
}

pub(crate) fn of_ten_thousand_calls_the_first_are_run_and_each_is_answered(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({}));
    let ask = daemon.run("trn_1", 1);
    let call = |place: u32| json!({"id": format!("c{place}"), "name": "cat", "arguments": {"args": ["a"]}});
    daemon.call(&ask, (0..10_000).map(call).collect());
    let asked: Vec<Value> = (0..10_000).map(|_| daemon.next()).collect();
    let run = asked.iter().take_while(|ask| ask["method"] == "exec/run").count();
    assert_eq!(run, 64);
    for (place, refused) in asked.iter().enumerate().skip(run) {
        assert_eq!(refused["method"], "tool/answer", "call {place}");
        assert!(refused["params"]["text"].as_str().unwrap().contains("64"), "{refused}");
    }
    for ask in &asked[1..] {
        daemon.answer(ask, json!({}));
    }
    daemon.quiet();
    daemon.answer(&asked[0], json!({}));
    assert_eq!(daemon.asked("model/stream")["params"]["step"], 2);
}
