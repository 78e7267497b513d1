//! Compaction: when the runtime requests it, and what the model reads after it.

use lodge_runtime_messages::ConversationEpoch;
use serde_json::json;

use crate::support::{CommandLine, FakeDaemon};

/// A daemon's description of an epoch whose turns weigh this much; the last one is turn `number`.
fn epoch(from_turn: u32, number: u32, turns: &[u64]) -> ConversationEpoch {
    let messages = u64::from(number - from_turn) * 2 + 1;
    ConversationEpoch { number: 1, from_turn, messages, bytes: turns.iter().sum(), turns: turns.to_vec() }
}

pub(crate) fn a_conversation_is_compacted_rarely_and_stays_within_its_size(command: &CommandLine) {
    for (configs, strategy) in [
        (json!({"memory-max-messages": "8"}), "summarize"),
        (json!({"memory-max-messages": "8", "memory-strategy": "sliding"}), "sliding"),
        (json!({"memory-max-messages": "8", "memory-strategy": "handoff"}), "handoff"),
    ] {
        let mut daemon = FakeDaemon::ready(command, configs);
        let (mut from_turn, mut compactions) = (1, 0);
        for number in 1..=40 {
            let turns = vec![10; usize::try_from(number + 1 - from_turn).unwrap()];
            let mut ask = daemon.run_in("trn_1", number, epoch(from_turn, number, &turns));
            if ask["method"] == "context/compact" {
                assert_eq!(ask["params"]["strategy"], strategy);
                let asked = u32::try_from(ask["params"]["from_turn"].as_u64().unwrap()).unwrap();
                assert!(from_turn < asked && asked <= number, "{asked} after {from_turn} at {number}");
                // The daemon has the last word.
                from_turn = if strategy == "handoff" { number } else { asked };
                daemon.answer(&ask, json!({"from_turn": from_turn}));
                compactions += 1;
                ask = daemon.next();
            }
            assert_eq!((&ask["method"], &ask["params"]["step"]), (&json!("model/stream"), &json!(1)));
            assert_eq!(ask["params"]["from_turn"], from_turn, "the model reads from where the epoch begins");
            assert!((number + 1 - from_turn) * 2 <= 8, "{number} from {from_turn}");
            daemon.finish(&ask);
        }
        assert!(
            (1..=20).contains(&compactions),
            "a prefix should live for two turns at least: {compactions}"
        );
    }
}

pub(crate) fn a_conversation_is_compacted_by_what_its_turns_weigh(command: &CommandLine) {
    let configs = json!({"memory-max-messages": "0", "memory-max-tokens": "100"});
    let mut daemon = FakeDaemon::ready(command, configs);
    let fits = daemon.run_in("trn_1", 3, epoch(1, 3, &[200, 100, 100]));
    assert_eq!((&fits["method"], &fits["params"]["from_turn"]), (&json!("model/stream"), &json!(1)));
    daemon.finish(&fits);
    let full = daemon.run_in("trn_2", 4, epoch(1, 4, &[200, 100, 100, 50]));
    assert_eq!((&full["method"], &full["params"]["from_turn"]), (&json!("context/compact"), &json!(3)));
    daemon.answer(&full, json!({"from_turn": 3}));
    let ask = daemon.asked("model/stream");
    daemon.finish(&ask);
    // A turn that is too large by itself cannot be made smaller.
    let large = daemon.run_in("trn_3", 5, epoch(5, 5, &[5_000]));
    assert_eq!((&large["method"], &large["params"]["from_turn"]), (&json!("model/stream"), &json!(5)));
}

pub(crate) fn a_conversation_is_never_compacted_in_the_middle_of_a_turn(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({"memory-max-messages": "2"}));
    let weight = epoch(1, 9, &[10; 9]);
    let params =
        json!({"turn": "trn_1", "session": "ses_1", "number": 9, "step": 2, "calls": [], "epoch": weight});
    assert_eq!(daemon.request("turn/run", params), json!({}));
    let ask = daemon.asked("model/stream");
    assert_eq!((&ask["params"]["step"], &ask["params"]["from_turn"]), (&json!(2), &json!(1)));
    daemon.call(&ask, json!([{"id": "c1", "name": "cat", "arguments": {"args": ["a"]}}]));
    let exec = daemon.asked("exec/run");
    daemon.ran(&exec);
    assert_eq!(daemon.asked("model/stream")["params"]["from_turn"], 1, "one turn reads from one place");
}

pub(crate) fn a_compaction_that_was_not_answered_is_asked_for_again(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({"memory-max-messages": "4"}));
    let ask = daemon.run_in("trn_1", 3, epoch(1, 3, &[10, 10, 10]));
    assert_eq!(ask["method"], "context/compact");
    let params = daemon.params(2, json!({"memory-max-messages": "4"}));
    assert_eq!(daemon.request("initialize", params)["turns"], json!([{"turn": "trn_1"}]));
    assert_eq!(daemon.next(), ask, "the same request under the same id");
    daemon.quiet();
    daemon.answer(&ask, json!({"from_turn": 3}));
    assert_eq!(daemon.asked("model/stream")["params"]["from_turn"], 3);
    // Interrupted while it waits, a turn is gone like any other.
    let other = daemon.run_in("trn_2", 3, epoch(1, 3, &[10, 10, 10]));
    assert_eq!(daemon.request("turn/interrupt", json!({"turn": "trn_2"})), json!({}));
    daemon.answer(&other, json!({"from_turn": 3}));
    daemon.quiet();
}

pub(crate) fn a_compaction_that_is_refused_fails_the_turn(command: &CommandLine) {
    let mut daemon = FakeDaemon::ready(command, json!({"memory-max-messages": "4"}));
    let ask = daemon.run_in("trn_1", 3, epoch(1, 3, &[10, 10, 10]));
    daemon.answer_error(&ask, "turn.bad_window");
    let finish = daemon.asked("turn/finish");
    assert_eq!(finish["params"]["code"], "turn.bad_window");
    daemon.answer(&finish, json!({}));
    let ask = daemon.run_in("trn_2", 3, epoch(1, 3, &[10, 10, 10]));
    daemon.answer_error(&ask, "turn.gone");
    daemon.quiet();
}
