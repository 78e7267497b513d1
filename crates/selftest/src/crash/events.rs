//! Compares events: a client saw the log, and the log has every turn once.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use lodge_proto::client::{Client, ClientError};
use lodge_proto::{Event, EventBody, EventKind, EventListParams, ListEvents, PAGE_MAX};

use super::job_check::JobViews;
use super::plan::{CrashTool, TurnShape};
use super::report::BrokenPromise;
use super::world::CrashWorld;
use crate::lodge::PATIENCE;
use crate::trouble::{Trouble, refused};

type BrokenPromises = Vec<(BrokenPromise, String)>;

/// The events of a conversation that was compacted before a turn.
const COMPACTION: [&str; 3] = ["model began in step 0", "model ended in step 0", "compacted"];

impl CrashWorld {
    /// What the follower saw is the log, from its first event to its last, and the log is whole.
    pub async fn check_events(&mut self, jobs: &JobViews) -> Result<(), Trouble> {
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        let (known, head) = match all_events(&mut client).await {
            Ok(logged) => (logged.len(), logged.last().map_or(0, |event| event.seq)),
            Err(error) => {
                self.report.add(BrokenPromise::Lost, format!("the log: {error}"));
                return Ok(());
            }
        };
        let came = self.follower.wait_for(0, PATIENCE, |event| event.seq >= head).await;
        if !came {
            let what = format!("the log is at {head} and the client saw {}", self.follower.cursor());
            self.report.add(BrokenPromise::EventMissed, what);
        }
        self.report.broken.extend(self.follower.take_broken());
        let seen = self.follower.with(<[Event]>::to_vec);
        // Events up to now are in the log; later events were not followed.
        let mut logged = match all_events(&mut client).await {
            Ok(logged) => logged,
            Err(error) => {
                self.report.add(BrokenPromise::Lost, format!("the log: {error}"));
                return Ok(());
            }
        };
        logged.truncate(seen.len().max(known));
        self.report.events += seen.len() as u64;
        self.report.restarted_steps +=
            seen.iter().filter(|event| event.is(EventKind::TurnStepRestarted)).count() as u64;
        self.report.broken.extend(differs(&seen, &logged));
        self.report.broken.extend(streams(&logged));
        self.check_facts(&logged);
        self.check_job_events(jobs, &logged);
        Ok(())
    }

    /// The log has every turn that was sent, and no other.
    fn check_facts(&mut self, logged: &[Event]) {
        let mut told: BTreeMap<&str, EventFacts> = BTreeMap::new();
        let of_turn =
            |event: &&Event| event.kind.starts_with("turn.") || event.is(EventKind::SessionCompacted);
        for event in logged.iter().filter(of_turn) {
            if let Some(turn) = event.data.get("turn").and_then(|turn| turn.as_str()) {
                told.entry(turn).or_default().take(event);
            }
        }
        for sent in &self.sent {
            let Some(turn) = &sent.turn else { continue };
            let facts = told.remove(turn.as_str()).unwrap_or_default();
            let planned = EventFacts::planned(sent.plan.shape).with_waits(sent.plan.shape, &facts);
            self.report.broken.extend(facts.check(&sent.plan.token, planned));
        }
        for (turn, text) in &self.edited.turns {
            let facts = told.remove(turn.as_str()).unwrap_or_default();
            self.report.broken.extend(facts.check(text, EventFacts::planned(TurnShape::Plain)));
        }
        for turn in told.into_keys().filter(|turn| !self.settled.contains(*turn)) {
            self.report.add(
                BrokenPromise::Duplicated,
                format!("the log contains the turn {turn}, which was not sent by the test"),
            );
        }
    }
}

/// The first place at which a client saw something else than is logged, or at which one of the two ends.
fn differs(seen: &[Event], logged: &[Event]) -> Option<(BrokenPromise, String)> {
    let place = (0..seen.len().max(logged.len())).find(|at| seen.get(*at) != logged.get(*at))?;
    let (saw, is) = (seen.get(place), logged.get(place));
    let broken = match (saw, is) {
        // What was published was committed, or should have been.
        (Some(_), None) => BrokenPromise::Lost,
        (None | Some(_), Some(_)) | (None, None) => BrokenPromise::EventMissed,
    };
    Some((broken, format!("event {} of the log: the client saw {saw:?}, the log has {is:?}", place + 1)))
}

/// The log and each of its streams count from one, without a gap.
fn streams(logged: &[Event]) -> BrokenPromises {
    let mut found = BrokenPromises::new();
    let mut heads: BTreeMap<&str, u64> = BTreeMap::new();
    for (at, event) in logged.iter().enumerate() {
        let head = heads.entry(&event.stream).or_default();
        *head += 1;
        if event.stream_seq != *head || event.seq != at as u64 + 1 {
            let what =
                format!("event {} of the log, {head} of its stream, says it is another: {event:?}", at + 1);
            found.push((BrokenPromise::EventMissed, what));
            *head = event.stream_seq;
        }
    }
    found
}

/// How often the log has each fact of a turn.
#[derive(Debug, Default, PartialEq, Eq)]
struct EventFacts(BTreeMap<String, u64>);

impl EventFacts {
    /// The events that every ended turn must have.
    fn planned(shape: TurnShape) -> EventFacts {
        let mut facts = EventFacts::default();
        ["accepted", "started", "ended"].into_iter().for_each(|fact| facts.add(fact.to_owned(), 1));
        let steps = shape.steps();
        for (at, calls) in steps.iter().enumerate() {
            let (step, count) = (at + 1, calls.len() as u64);
            for fact in ["tool ended", "call", "result"] {
                facts.add(format!("{fact} in step {step}"), count);
            }
            let programs = calls.iter().filter(|call| call.tool.is_program()).count() as u64;
            if programs > 0 {
                facts.add(format!("tool began in step {step}"), programs);
            }
        }
        for step in 1..=steps.len() + 1 {
            facts.add(format!("model began in step {step}"), 1);
            facts.add(format!("model ended in step {step}"), 1);
        }
        facts
    }

    /// A compaction before the first step: its events are complete and occur once.
    fn with_compaction(mut self) -> EventFacts {
        COMPACTION.into_iter().for_each(|fact| self.add(fact.to_owned(), 1));
        self
    }

    /// A call that waits for a job begins, unless the job is over already: then it is only answered.
    fn with_waits(mut self, shape: TurnShape, told: &EventFacts) -> EventFacts {
        for (at, calls) in shape.steps().iter().enumerate() {
            let fact = format!("tool began in step {}", at + 1);
            let waits = calls.iter().any(|call| matches!(call.tool, CrashTool::Wait | CrashTool::Watch));
            if waits && told.0.contains_key(&fact) {
                self.add(fact, 1);
            }
        }
        self
    }

    fn add(&mut self, fact: String, count: u64) {
        *self.0.entry(fact).or_default() += count;
    }

    fn take(&mut self, event: &Event) {
        match event.body() {
            Some(EventBody::TurnAccepted(_)) => self.add("accepted".to_owned(), 1),
            Some(EventBody::TurnStarted(_)) => self.add("started".to_owned(), 1),
            Some(EventBody::TurnFinished(_) | EventBody::TurnFailed(_) | EventBody::TurnInterrupted(_)) => {
                self.add("ended".to_owned(), 1);
            }
            Some(EventBody::SessionCompacted(_)) => self.add("compacted".to_owned(), 1),
            Some(EventBody::TurnToolCall(call)) => self.add(format!("call in step {}", call.step), 1),
            Some(EventBody::TurnToolResult(result)) => self.add(format!("result in step {}", result.step), 1),
            Some(EventBody::TurnStepStarted(step)) => {
                self.add(format!("{} began in step {}", step.kind, step.step), 1);
            }
            Some(EventBody::TurnStepFinished(step)) => {
                self.add(format!("{} ended in step {}", step.kind, step.step), 1);
            }
            // Text comes in as many pieces as it comes in, and a restart is counted by the model.
            Some(_) | None => {}
        }
    }

    /// Everything that was planned, as often as it was planned, and nothing else.
    fn check(&self, token: &str, planned: EventFacts) -> BrokenPromises {
        let compacts = COMPACTION.iter().any(|fact| self.0.contains_key(*fact));
        let planned = &if compacts { planned.with_compaction() } else { planned };
        if self.0.is_empty() {
            return vec![(BrokenPromise::Lost, format!("of {token} the log tells nothing"))];
        }
        let facts: BTreeSet<&String> = self.0.keys().chain(planned.0.keys()).collect();
        let count = |facts: &EventFacts, fact: &String| facts.0.get(fact).copied().unwrap_or(0);
        let wrong = facts.into_iter().filter_map(|fact| {
            let (told, wanted) = (count(self, fact), count(planned, fact));
            let broken = match told.cmp(&wanted) {
                Ordering::Less => BrokenPromise::EventMissed,
                Ordering::Greater => BrokenPromise::EventDoubled,
                Ordering::Equal => return None,
            };
            Some((broken, format!("of {token} the log tells {told} times, not {wanted}: {fact}")))
        });
        wrong.collect()
    }
}

async fn all_events(client: &mut Client) -> Result<Vec<Event>, ClientError> {
    let mut found: Vec<Event> = Vec::new();
    loop {
        let since = found.last().map_or(0, |event| event.seq);
        let params =
            EventListParams { since: Some(since), limit: Some(PAGE_MAX), ..EventListParams::default() };
        let page = client.call::<ListEvents>(&params).await?;
        let is_last = page.events.is_empty();
        found.extend(page.events);
        if is_last || found.last().map_or(0, |event| event.seq) >= page.head {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A log of one agent, as events of these kinds and data.
    fn log(events: &[(&str, serde_json::Value)]) -> Vec<Event> {
        let numbered = events.iter().zip(1..).map(|((kind, data), seq)| Event {
            seq,
            stream: "agt_1".to_owned(),
            stream_seq: seq,
            at: "2026-01-31T12:00:00.123Z".to_owned(),
            kind: (*kind).to_owned(),
            data: with_all_fields(kind, data),
        });
        numbered.collect()
    }

    fn with_all_fields(kind: &str, data: &serde_json::Value) -> serde_json::Map<String, serde_json::Value> {
        let kind = EventKind::from_word(kind).expect("a kind");
        let mut all = EventBody::decode(kind, &[]).expect("an event without values").data();
        all.extend(data.as_object().cloned().unwrap_or_default());
        all
    }

    fn pair() -> Vec<(&'static str, serde_json::Value)> {
        let tool = json!({"step": 1, "kind": "tool"});
        let mut events = vec![
            ("turn.accepted", json!({})),
            ("turn.started", json!({})),
            ("turn.step_started", json!({"step": 1, "kind": "model", "attempt": 1})),
            ("turn.step_restarted", json!({"step": 1, "attempt": 2})),
            ("turn.step_finished", json!({"step": 1, "kind": "model"})),
        ];
        for kind in ["turn.tool_call", "turn.step_started", "turn.tool_result", "turn.step_finished"] {
            events.extend([(kind, tool.clone()), (kind, tool.clone())]);
        }
        events.extend([
            ("turn.step_started", json!({"step": 2, "kind": "model"})),
            ("turn.text", json!({"step": 2})),
            ("turn.text", json!({"step": 2})),
            ("turn.step_finished", json!({"step": 2, "kind": "model"})),
            ("turn.finished", json!({})),
        ]);
        events
    }

    fn wrong(events: &[(&str, serde_json::Value)]) -> Vec<BrokenPromise> {
        let mut facts = EventFacts::default();
        log(events).iter().for_each(|event| facts.take(event));
        facts
            .check("T1", EventFacts::planned(TurnShape::Pair))
            .into_iter()
            .map(|(broken, _)| broken)
            .collect()
    }

    #[test]
    fn an_event_that_was_never_written_or_was_written_twice_is_noticed_whichever_it_is() {
        assert_eq!(wrong(&pair()), []);
        for at in 0..pair().len() {
            let (mut missing, mut doubled) = (pair(), pair());
            let (kind, data) = missing.remove(at);
            doubled.push((kind, data));
            let counts = kind != "turn.text" && kind != "turn.step_restarted";
            let one = |broken| if counts { vec![broken] } else { Vec::new() };
            assert_eq!(wrong(&missing), one(BrokenPromise::EventMissed), "{kind}");
            assert_eq!(wrong(&doubled), one(BrokenPromise::EventDoubled), "{kind}");
        }
    }

    #[test]
    fn a_compaction_is_reported_whole_and_once_or_not_at_all() {
        let compaction = [
            ("turn.step_started", json!({"step": 0, "kind": "model"})),
            ("turn.step_finished", json!({"step": 0, "kind": "model"})),
            ("session.compacted", json!({})),
        ];
        let with = |events: &[(&'static str, serde_json::Value)]| wrong(&[&pair()[..], events].concat());
        assert_eq!(with(&compaction), []);
        assert_eq!(with(&compaction[..2]), [BrokenPromise::EventMissed]);
        assert_eq!(with(&[&compaction[..], &compaction[2..]].concat()), [BrokenPromise::EventDoubled]);
    }

    #[test]
    fn a_log_that_is_longer_or_shorter_than_what_a_client_saw_is_noticed() {
        let logged = log(&pair());
        let (whole, part) = (&logged[..], &logged[..3]);
        assert_eq!(differs(whole, whole), None);
        assert_eq!(differs(part, whole).map(|(broken, _)| broken), Some(BrokenPromise::EventMissed));
        assert_eq!(differs(whole, part).map(|(broken, _)| broken), Some(BrokenPromise::Lost));
        assert_eq!(differs(&logged[1..], whole).map(|(broken, _)| broken), Some(BrokenPromise::EventMissed));
    }

    #[test]
    fn a_number_that_is_left_out_is_noticed() {
        let mut logged = log(&pair());
        assert_eq!(streams(&logged), []);
        logged.remove(2);
        assert!(!streams(&logged).is_empty());
    }
}
