//! Compares the model's own log with the stored answers and the counted deaths: a stored answer is never requested
//! again, and no answer is requested twice without a reason.

use std::collections::BTreeMap;

use lodge_proto::{Event, EventBody};

use super::plan::{SUMMARY_ASKED, said};
use super::report::BrokenPromise;
use super::talk::SentMessage;
use super::time::ms_since_1970;
use super::world::CrashWorld;
use crate::lodge::DaemonEnd;
use crate::mock::{RequestLine, RequestOutcome};

/// How much later than its sender's death a request may be read: it lay in a socket, and the model has other callers.
const READ_LATE_US: u64 = 250_000;

/// Under which a turn writes the summary of those before it.
const SUMMARY_STEP: u64 = 0;

impl CrashWorld {
    /// No request without a reason, by the log of the model's own process.
    pub fn check_requests(&mut self) {
        let Some(mock) = &self.mock else { return };
        let requests = match mock.requests() {
            Ok(requests) => requests,
            Err(error) => return self.report.add(BrokenPromise::Wrong, format!("the model's log: {error}")),
        };
        self.report.requests += requests.len() as u64;
        let stored = self.follower.with(stored_answers);
        let mut unasked = stored.clone();
        // A regenerated turn has the same message.
        let mut edited = self.edited.texts();
        unasked.retain(|(turn, _), _| !self.edited.turns.contains_key(turn));
        let texts: BTreeMap<&str, &SentMessage> =
            self.sent.iter().map(|sent| (sent.plan.text.as_str(), sent)).collect();
        let mut asked: BTreeMap<(&str, u64), Vec<&RequestLine>> = BTreeMap::new();
        for request in &requests {
            if request.user.starts_with(SUMMARY_ASKED) {
                // Every conversation has words of its own, so the same words are the same summary.
                asked.entry((&request.digest, SUMMARY_STEP)).or_default().push(request);
                continue;
            }
            let user = said(&request.user);
            if let Some(turns) = edited.get_mut(user) {
                *turns = turns.saturating_sub(1);
                continue;
            }
            let Some(sent) = texts.get(user) else {
                let what = format!("a model request for a message that nobody sent: {}", request.user);
                self.report.add(BrokenPromise::Wrong, what);
                continue;
            };
            let step = request.step as u64 + 1;
            asked.entry((&sent.plan.token, step)).or_default().push(request);
            let place = (sent.turn.clone().unwrap_or_default(), step);
            unasked.remove(&place);
            let answered = stored.get(&place);
            if answered.is_some_and(|at_ms| request.at_us / 1_000 > *at_ms) {
                let what = format!("step {step} of {} was asked for after it was answered", sent.plan.token);
                self.report.add(BrokenPromise::Duplicated, what);
            }
        }
        let written = asked.keys().filter(|(_, step)| *step == SUMMARY_STEP).count();
        for ((token, step), requests) in asked {
            for (first, again) in asked_again(&requests, self.lodge.ends()) {
                let what = format!(
                    "step {step} of {token} was asked for at {} ({:?}) and again at {}, and nobody died between",
                    first.at_us, first.outcome, again.at_us
                );
                self.report.add(BrokenPromise::Duplicated, what);
            }
        }
        let summaries = unasked.extract_if(.., |(_, step), _| *step == SUMMARY_STEP).count();
        if summaries > written {
            let what = format!("{summaries} summaries are stored, and the model wrote {written}");
            self.report.add(BrokenPromise::Wrong, what);
        }
        for (text, turns) in edited.into_iter().filter(|(_, turns)| *turns > 0) {
            let what = format!("{turns} turns have an answer to {text} that the model never gave");
            self.report.add(BrokenPromise::Wrong, what);
        }
        for (turn, step) in unasked.into_keys() {
            let what = format!("step {step} of {turn} has an answer that the model never gave");
            self.report.add(BrokenPromise::Wrong, what);
        }
    }
}

/// Requests for one step that were made again although the first was not refused and its daemon lived. The end of a
/// daemon is the reason for one request.
fn asked_again<'a>(
    requests: &[&'a RequestLine],
    ends: &[DaemonEnd],
) -> Vec<(&'a RequestLine, &'a RequestLine)> {
    let mut ends = ends.iter().peekable();
    let mut again = Vec::new();
    for pair in requests.windows(2) {
        let &[first, second] = pair else { continue };
        if first.outcome == Some(RequestOutcome::Failed) {
            continue;
        }
        while ends.next_if(|end| end.to_us + READ_LATE_US < first.at_us).is_some() {}
        if ends.next_if(|end| end.from_us <= second.at_us).is_none() {
            again.push((first, second));
        }
    }
    again
}

/// When each model step's answer was stored, by turn and step.
fn stored_answers(events: &[Event]) -> BTreeMap<(String, u64), u64> {
    let stored = events.iter().filter_map(|event| match event.body()? {
        EventBody::TurnStepFinished(step) if step.kind == "model" && step.status == "done" => {
            Some(((step.turn, u64::from(step.step)), ms_since_1970(&event.at)?))
        }
        _ => None,
    });
    stored.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn request(at_us: u64, outcome: RequestOutcome) -> RequestLine {
        RequestLine {
            number: at_us,
            connection: 1,
            at_us,
            model: String::new(),
            user: String::new(),
            step: 0,
            messages: 1,
            lengths: Vec::new(),
            digest: String::new(),
            key_ok: None,
            outcome: Some(outcome),
            done_at_us: None,
        }
    }

    #[track_caller]
    fn check(requests: &[(u64, RequestOutcome)], ends: &[(u64, u64)], unexplained: usize) {
        let requests: Vec<RequestLine> =
            requests.iter().map(|(at_s, outcome)| request(at_s * SECOND, *outcome)).collect();
        let ends: Vec<DaemonEnd> = ends
            .iter()
            .map(|(from_s, to_s)| DaemonEnd { from_us: from_s * SECOND, to_us: to_s * SECOND })
            .collect();
        assert_eq!(asked_again(&requests.iter().collect::<Vec<_>>(), &ends).len(), unexplained);
    }

    #[test]
    fn a_daemon_that_asks_twice_is_noticed_although_daemons_died_before_and_after() {
        check(&[(5, RequestOutcome::Done), (6, RequestOutcome::Done)], &[(3, 4), (7, 8)], 1);
        check(&[(5, RequestOutcome::Gone), (5, RequestOutcome::Done)], &[], 1);
    }

    #[test]
    fn a_refusal_explains_one_request_more_and_a_death_one_more() {
        check(&[(5, RequestOutcome::Failed), (6, RequestOutcome::Done)], &[], 0);
        check(&[(5, RequestOutcome::Gone), (7, RequestOutcome::Done)], &[(6, 6)], 0);
        check(
            &[(5, RequestOutcome::Gone), (7, RequestOutcome::Done), (8, RequestOutcome::Done)],
            &[(6, 6)],
            1,
        );
        check(
            &[(5, RequestOutcome::Failed), (7, RequestOutcome::Gone), (9, RequestOutcome::Done)],
            &[(8, 8)],
            0,
        );
        check(
            &[(5, RequestOutcome::Gone), (9, RequestOutcome::Gone), (12, RequestOutcome::Done)],
            &[(6, 7), (10, 11)],
            0,
        );
    }
}
