//! Noticing a turn that goes round in circles.
//!
//! Owns: what the calls of an answer and their results looked like, as short prints. Never: the results themselves.

use lodge_runtime_messages::AnswerCall;
use serde_json::Value;

use crate::prompt::fnv1a;

/// The same calls with the same results, so often in a row, will not become others.
pub(crate) const ROUNDS_ALIKE_MAX: u32 = 4;

/// The calls of answers, one round after the other.
#[derive(Debug, Default)]
pub(crate) struct CallRounds {
    now: Vec<CallPrint>,
    /// How the round before looked, and how many in a row looked so.
    before: Option<(u64, u32)>,
}

#[derive(Debug)]
struct CallPrint {
    call: String,
    name: String,
    asked: u64,
    /// `None` until it is known, and permanently if the daemon does not send it.
    result: Option<u64>,
}

impl CallRounds {
    pub(crate) fn called(&mut self, call: &AnswerCall) {
        let arguments = match &call.arguments {
            // The same arguments, however they are spaced.
            Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| call.arguments.clone()),
            other => other.clone(),
        };
        let asked = fnv1a(format!("{}\0{arguments}", call.name).as_bytes());
        self.now.push(CallPrint { call: call.id.clone(), name: call.name.clone(), asked, result: None });
    }

    pub(crate) fn answered(&mut self, call: &str, result: Option<&str>) {
        if let Some(print) = self.now.iter_mut().find(|print| print.call == call) {
            print.result = result.map(|result| fnv1a(result.as_bytes()));
        }
    }

    /// Ends the round. Returns the names of its tools when it was one too many of the same.
    pub(crate) fn ended(&mut self) -> Option<Vec<String>> {
        let round = std::mem::take(&mut self.now);
        if round.is_empty() {
            return None;
        }
        let mut bytes = Vec::new();
        for print in &round {
            // A round of which not all is known is like no other.
            let Some(result) = print.result else {
                self.before = None;
                return None;
            };
            bytes.extend(print.asked.to_le_bytes());
            bytes.extend(result.to_le_bytes());
        }
        let look = fnv1a(&bytes);
        let alike = match self.before {
            Some((before, alike)) if before == look => alike + 1,
            Some(_) | None => 1,
        };
        self.before = Some((look, alike));
        (alike >= ROUNDS_ALIKE_MAX).then(|| {
            let mut names: Vec<String> = round.into_iter().map(|print| print.name).collect();
            names.dedup();
            names
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn round(rounds: &mut CallRounds, calls: &[(&str, Value, Option<&str>)]) -> Option<Vec<String>> {
        for (place, (name, arguments, _)) in calls.iter().enumerate() {
            let id = format!("c{place}");
            rounds.called(&AnswerCall { id, name: (*name).to_owned(), arguments: arguments.clone() });
        }
        for (place, (_, _, result)) in calls.iter().enumerate() {
            rounds.answered(&format!("c{place}"), *result);
        }
        rounds.ended()
    }

    #[test]
    fn the_fourth_round_of_the_same_calls_with_the_same_results_is_one_too_many() {
        let mut rounds = CallRounds::default();
        let same = [("cat", json!({"args": ["a"]}), Some("1")), ("ls", json!({"args": ["b"]}), Some("2"))];
        for _ in 0..3 {
            assert_eq!(round(&mut rounds, &same), None);
        }
        assert_eq!(round(&mut rounds, &same), Some(vec!["cat".to_owned(), "ls".to_owned()]));
    }

    #[test]
    fn arguments_that_differ_in_spaces_alone_are_the_same() {
        let mut rounds = CallRounds::default();
        for text in [r#"{"args":["a"]}"#, r#"{"args": ["a"]}"#, r#" {"args":["a"] }"#] {
            assert_eq!(round(&mut rounds, &[("cat", json!(text), Some("1"))]), None);
        }
        assert!(round(&mut rounds, &[("cat", json!({"args": ["a"]}), Some("1"))]).is_some());
    }

    #[test]
    fn another_result_another_call_or_one_that_is_not_known_begins_again() {
        let call = |result| [("cat", json!({"args": ["a"]}), result)];
        let others =
            [call(Some("2")), call(None), [("cat", json!({"args": ["b"]}), Some("1"))], call(Some("3"))];
        let mut rounds = CallRounds::default();
        for other in others {
            for _ in 0..3 {
                assert_eq!(round(&mut rounds, &call(Some("1"))), None);
            }
            assert_eq!(round(&mut rounds, &other), None);
        }
        assert_eq!(rounds.ended(), None, "a round without calls is none");
    }
}
