use lodge_proto::QuarantineView;
use serde_json::json;

use super::broken_turn::{AbandonedTurn, AgentEnd};
use super::*;

fn turn() -> TurnView {
    let turn = json!({"id": "trn_1", "session": "ses_1", "agent": "agt_1", "status": "running", "text": "",
        "partial": true, "steps": [], "usage": {"input_tokens": 0, "output_tokens": 0}, "created_at": ""});
    serde_json::from_value(turn).unwrap()
}

fn ada(stays: bool) -> PromptedAgent {
    PromptedAgent { id: "agt_1".to_owned(), name: "ada".to_owned(), stays }
}

fn end(kind: &str, data: &Value) -> Option<AgentEnd> {
    let mut data = data.clone();
    data["name"] = json!("coder");
    let event = json!({"seq": 9, "stream": "agt_1", "stream_seq": 3, "at": "", "kind": kind, "data": data});
    agent_end(&serde_json::from_value(event).unwrap())
}

fn parts(failure: CommandFailure) -> (String, Vec<String>, Option<String>) {
    let CommandFailure::Told(report) = failure else { panic!("not told") };
    assert_eq!(report.exit, CommandExit::Refused);
    (report.what, report.because, report.hint)
}

#[test]
fn a_job_that_was_submitted_is_reported_by_its_id_and_a_refusal_as_it_is() {
    let told = r#"{"job_id":"job_1"}"#;
    assert_eq!(submitted("job_submit", Some(told)).as_deref(), Some("job_1"));
    assert_eq!(submitted("job_status", Some(told)), None);
    assert_eq!(submitted("job_submit", Some("`make` is not one of your tools")), None);
    assert_eq!(submitted("job_submit", None), None);
}

#[test]
fn a_turn_that_its_agent_left_is_reported_with_what_it_waits_for() {
    let crash = json!({"reason": "crashed", "detail": "ended by signal 9"});
    let told =
        |kind: &str, left, stays| parts(abandoned(&end(kind, &crash).unwrap(), left, &ada(stays), &turn()));
    let (what, because, hint) = told("agent.failed", AbandonedTurn::Stopped, true);
    assert_eq!(what, "ada failed before the turn was over");
    assert_eq!(because, ["it crashed: ended by signal 9"]);
    assert!(hint.unwrap().starts_with("the turn waits: run `lodge start ada` and it continues"));
    let hint = told("agent.failed", AbandonedTurn::Asked("lin_1".to_owned()), true).2.unwrap();
    assert!(hint.contains("`lodge lineage resolve lin_1 --revive`") && !hint.contains("start"), "{hint}");
    assert_eq!(
        told("agent.stopped", AbandonedTurn::Stopped, true).0,
        "ada was stopped before the turn was over"
    );
    // An agent that is removed or about to be cannot be started.
    assert_eq!(told("agent.removed", AbandonedTurn::Gone, true).2, None);
    assert_eq!(told("agent.failed", AbandonedTurn::Stopped, false).2, None);
}

#[test]
fn a_turn_in_quarantine_names_the_decisions_unless_its_agent_goes() {
    let work = |turn: &str| -> QuarantineView {
        let work = json!({"id": "wrk_1", "kind": "schema_check", "status": "quarantined", "turn": turn,
            "deaths": 3, "since": ""});
        serde_json::from_value(work).unwrap()
    };
    let (what, because, hint) = parts(quarantined(&work("trn_1"), &ada(true), &turn()));
    assert_eq!(what, "the turn is in quarantine");
    assert_eq!(because, ["its schema check killed the daemon 3 times in a row"]);
    let hint = hint.unwrap();
    assert!(hint.contains("`lodge quarantine retry wrk_1`"), "{hint}");
    assert!(hint.contains("`lodge quarantine drop wrk_1`"), "{hint}");
    let (what, _, hint) = parts(quarantined(&work("trn_0"), &ada(false), &turn()));
    assert_eq!((what.as_str(), hint), ("the turn waits behind trn_0, which is in quarantine", None));
}

#[test]
fn an_interrupted_turn_does_not_claim_to_wait() {
    let befell = end("agent.failed", &json!({"reason": "crashed"}));
    let (what, because, hint) = parts(interrupted(befell, &ada(true), &turn(), WayToContinue::Retry));
    assert_eq!(
        (what.as_str(), because),
        ("the turn was interrupted", vec!["ada failed".to_owned(), "it crashed".to_owned()])
    );
    assert_eq!(
        hint.as_deref(),
        Some(
            "run `lodge start ada`, then `lodge turn retry trn_1` to continue it; `lodge session show ses_1` shows its progress"
        )
    );
    assert_eq!(parts(interrupted(None, &ada(true), &turn(), WayToContinue::Retry)).1.len(), 1);
    // A failure without a next step gets one, unless its agent is removed.
    let (code, message) = ("model.status".to_owned(), "the provider answered with status 500".to_owned());
    let turn_failed = TurnFailed { code, message, ..TurnFailed::default() };
    let told = |stays| {
        parts(with_next_step(failed(turn_failed.clone()), &ada(stays), &turn(), WayToContinue::Retry)).2
    };
    assert!(told(true).unwrap().starts_with("run `lodge turn retry trn_1` to continue it"));
    assert_eq!(told(false), None);
    // The first step is the failure's own.
    let hinted = TurnFailed { hint: Some("check the key".to_owned()), ..turn_failed.clone() };
    let hint = parts(with_next_step(failed(hinted), &ada(true), &turn(), WayToContinue::Retry)).2.unwrap();
    assert_eq!(hint, "check the key; then run `lodge turn retry trn_1` to continue it");
    // A removed agent takes no more turns.
    assert_eq!(
        parts(interrupted(end("agent.removed", &json!({})), &ada(true), &turn(), WayToContinue::Retry)).2,
        None
    );
}

#[test]
fn a_turn_that_others_follow_is_continued_in_a_copy_and_one_off_the_path_is_activated_first() {
    let place = |active, number, turns| {
        let session = json!({"id": "ses_1", "agent": "agt_1", "agent_name": "ada", "agent_removed": false,
            "turns": turns, "queued": [], "last_active": "", "created_at": "", "generation": 1, "epoch": 1});
        let turn = TurnView { active, number, ..turn() };
        WayToContinue::of(&turn, &serde_json::from_value(session).unwrap())
    };
    assert_eq!(place(true, 3, 3), WayToContinue::Retry);
    assert_eq!(place(true, 2, 3), WayToContinue::ForkFirst);
    assert_eq!(place(false, 3, 3), WayToContinue::ActivateFirst);
    let second = TurnView { number: 2, ..turn() };
    let hint = parts(interrupted(None, &ada(true), &second, WayToContinue::ForkFirst)).2.unwrap();
    assert!(
        hint.starts_with("run `lodge session fork ses_1 --at 2`, then `lodge turn retry --session NEW`"),
        "{hint}"
    );
    let turn_failed = TurnFailed { hint: Some("check the key".to_owned()), ..TurnFailed::default() };
    let hint = parts(with_next_step(failed(turn_failed), &ada(true), &second, WayToContinue::ActivateFirst));
    let hint = hint.2.unwrap();
    let expected =
        "check the key; then run `lodge session activate ses_1 trn_1`, then `lodge turn retry trn_1`";
    assert!(hint.starts_with(expected), "{hint}");
}

#[test]
fn other_events_of_an_agent_do_not_end_the_wait() {
    for kind in
        ["agent.pulling", "agent.starting", "agent.ready", "agent.working", "agent.removing", "agent.new"]
    {
        assert_eq!(end(kind, &json!({})), None, "{kind}");
    }
}
