//! CONFIG: what the runtime does with keys and values.

use lodge_runtime_messages::CONFIG_UNUSABLE;
use serde_json::json;

use crate::support::{CommandLine, FakeDaemon};

pub(crate) fn unknown_configs_do_not_stop_it(command: &CommandLine) {
    let mut daemon = FakeDaemon::start(command);
    let params = daemon.params(1, json!({"colour": "green", "memory-max-messages": "6"}));
    let reply = daemon.request("initialize", params);
    assert_eq!(reply["params"]["max_tokens"], 4096);
    assert_eq!(reply["window"]["max_messages"], 6);
    let (_, log) = daemon.close();
    assert!(!log.contains("green"), "values do not belong in the log: {log}");
}

/// The daemon ends the agent with the reason `config` and shows the message, so it has no value: one may be a secret.
pub(crate) fn a_config_that_cannot_be_used_is_refused_by_its_key(command: &CommandLine) {
    for key in ["max-tokens", "memory-max-messages", "memory-strategy", "tool-timeout", "temperature"] {
        let mut daemon = FakeDaemon::start(command);
        let params = daemon.params(1, json!({key: "many", "colour": "green"}));
        let reply = daemon.reply("initialize", params);
        assert_eq!(reply["error"]["data"]["code"], CONFIG_UNUSABLE, "{key}: {reply}");
        let message = reply["error"]["message"].as_str().unwrap();
        assert!(message.contains(key) && !message.contains("many"), "{message}");
        let params = daemon.params(1, json!({"memory-strategy": "sliding"}));
        daemon.request("initialize", params);
        let (_, log) = daemon.close();
        assert!(!log.contains("many") && !log.contains("green"), "values do not belong in the log: {log}");
    }
}

pub(crate) fn tunables_reach_the_model_when_they_are_set_and_not_otherwise(command: &CommandLine) {
    let mut daemon = FakeDaemon::start(command);
    let params = daemon.params(1, json!({}));
    assert_eq!(daemon.request("initialize", params)["params"], json!({"max_tokens": 4096}));
    let configs = json!({
        "max-tokens": "512", "temperature": "0.5", "top-p": "0.25", "top-k": "40", "presence-penalty": "-1.5",
        "frequency-penalty": "0.75", "memory-strategy": "sliding", "tool-timeout": "90s", "colour": "green",
    });
    let params = daemon.params(1, configs);
    let expected = json!({
        "max_tokens": 512, "temperature": 0.5, "top_p": 0.25, "top_k": 40, "presence_penalty": -1.5,
        "frequency_penalty": 0.75,
    });
    assert_eq!(daemon.request("initialize", params)["params"], expected);
    let ask = daemon.run("trn_1", 1);
    daemon.call(&ask, json!([{"id": "c1", "name": "cat", "arguments": {"args": ["a"]}}]));
    assert_eq!(daemon.asked("exec/run")["params"]["timeout_ms"], 90_000);
}
