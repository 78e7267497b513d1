//! One turn against its plan: every call, its result, its effects, the answer.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use lodge_proto::{MessageView, StepView, TurnView};

use super::job_check::JobViews;
use super::plan::{CrashTool, PlannedCall, did, effects_of};
use super::report::{BrokenPromise, CrashReport};
use super::strike::KeeperDeath;
use super::talk::SentMessage;
use super::time::ms_since_1970;

/// The text that a model gets for a call with an unknown outcome.
const UNKNOWN_SAYS: &str = "outcome unknown";

/// How often each effect may have happened.
#[derive(Debug, Default)]
pub struct ExpectedEffects {
    pub effects: BTreeMap<String, RangeInclusive<u64>>,
}

impl ExpectedEffects {
    fn call(&mut self, token: &str, call: PlannedCall, range: &RangeInclusive<u64>) {
        for effect in effects_of(token, call.key) {
            self.effects.insert(effect, range.clone());
        }
    }

    /// Every call of a message exactly once.
    pub fn once(&mut self, sent: &SentMessage) {
        for call in sent.plan.shape.calls().filter(|call| call.tool.is_program()) {
            self.call(&sent.plan.token, call, &(1..=1));
        }
    }
}

/// A turn that has ended, and all there is to judge it by.
pub struct JudgedTurn<'a> {
    pub sent: &'a SentMessage,
    pub view: &'a TurnView,
    /// All messages of its session.
    pub session: &'a [MessageView],
    pub falls: &'a [KeeperDeath],
    /// Those that were looked at.
    pub jobs: &'a JobViews,
}

impl JudgedTurn<'_> {
    pub fn check(&self, report: &mut CrashReport, expected: &mut ExpectedEffects) {
        let (token, text) = (&self.sent.plan.token, &self.sent.plan.text);
        if self.view.status != "done" || self.view.partial {
            report.add(BrokenPromise::Wrong, format!("the turn of {token} is {:?}", self.view));
        }
        let told =
            self.session.iter().filter(|message| message.role == "user" && message.text == *text).count();
        match told {
            0 => report.add(BrokenPromise::Lost, format!("the message {token} is not in its session")),
            1 => {}
            _ => report.add(
                BrokenPromise::Duplicated,
                format!("the message {token} is in its session {told} times"),
            ),
        }
        let outcomes = self.check_steps(report, expected);
        self.check_messages(report, &outcomes);
    }

    /// Every step ended as allowed; the outcome of each call, in order.
    fn check_steps(&self, report: &mut CrashReport, expected: &mut ExpectedEffects) -> Vec<CallReport> {
        let token = &self.sent.plan.token;
        for step in self.view.steps.iter().filter(|step| step.kind != "tool" && step.status != "done") {
            report.add(BrokenPromise::Wrong, format!("a step of {token}: {step:?}"));
        }
        let tools: Vec<&StepView> = self.view.steps.iter().filter(|step| step.kind == "tool").collect();
        let calls: Vec<PlannedCall> = self.sent.plan.shape.calls().collect();
        if tools.len() != calls.len() {
            let what = format!("{token} has {} calls and the steps {tools:?}", calls.len());
            report.add(BrokenPromise::Wrong, what);
        }
        let mut outcomes = Vec::new();
        for (at, call) in calls.into_iter().enumerate() {
            let falls = tools.get(at).map_or(0, |step| self.falls_during(step));
            let status = tools.get(at).map_or("missing", |step| step.status.as_str());
            if !call.tool.is_program() {
                // Questions about the job are answered in any case.
                if status != "done" {
                    report.add(
                        BrokenPromise::Wrong,
                        format!("call {} of {token}: {:?}", call.key, tools.get(at)),
                    );
                }
                outcomes.push(CallReport::Told(call.tool));
                continue;
            }
            let (outcome, range) = match (status, call.tool) {
                ("done", CrashTool::Once) => (CallReport::Done, 1..=1),
                // Declared safe: it may have been made again as often as its keeper was killed.
                ("done", CrashTool::Safe) => (CallReport::Done, 1..=1 + falls),
                ("unknown", CrashTool::Once) if falls > 0 => {
                    report.unknown += 1;
                    (CallReport::Unknown, 0..=1)
                }
                ("unknown", _) => {
                    report.add(
                        BrokenPromise::Unknown,
                        format!("call {} of {token}: {:?}", call.key, tools.get(at)),
                    );
                    (CallReport::Unknown, 0..=1)
                }
                (_, _) => {
                    report.add(
                        BrokenPromise::Wrong,
                        format!("call {} of {token}: {:?}", call.key, tools.get(at)),
                    );
                    (CallReport::Done, 1..=1)
                }
            };
            expected.call(token, call, &range);
            outcomes.push(outcome);
        }
        outcomes
    }

    /// How often this turn's keeper was killed between the intent and the outcome of a step.
    fn falls_during(&self, step: &StepView) -> u64 {
        let (Some(from), Some(to)) =
            (ms_since_1970(&step.started_at), step.ended_at.as_deref().and_then(ms_since_1970))
        else {
            return 0;
        };
        let hit =
            |fall: &&KeeperDeath| fall.agent == self.sent.agent && from <= fall.to_ms && fall.from_ms <= to;
        self.falls.iter().filter(hit).count() as u64
    }

    /// The course of a turn: the message, then for each step the calls and their results, then the answer.
    fn check_messages(&self, report: &mut CrashReport, outcomes: &[CallReport]) {
        let plan = &self.sent.plan;
        let token = &plan.token;
        let mine: Vec<&MessageView> =
            self.session.iter().filter(|message| message.turn == self.view.id).collect();
        let note = mine.first().and_then(|message| message.note.as_deref());
        let mut rest = mine.iter();
        if rest.next().is_none_or(|message| message.role != "user" || message.text != plan.text) {
            return report
                .add(BrokenPromise::Lost, format!("the turn of {token} does not begin with its message"));
        }
        let mut outcomes = outcomes.iter();
        let mut last_result = String::new();
        for calls in plan.shape.steps() {
            let asked = rest
                .next()
                .filter(|message| message.role == "assistant" && message.calls.len() == calls.len());
            let Some(asked) = asked else {
                return report
                    .add(BrokenPromise::Wrong, format!("the turn of {token} lacks its calls: {mine:?}"));
            };
            let results: Vec<&&MessageView> = rest.by_ref().take(calls.len()).collect();
            for (called, call) in asked.calls.iter().zip(*calls) {
                let answers = results.iter().filter(|result| result.call.as_ref() == Some(&called.id));
                let texts: Vec<&str> = answers.map(|result| result.text.as_str()).collect();
                let outcome = outcomes.next().copied().unwrap_or(CallReport::Done);
                match texts.as_slice() {
                    [text] if outcome.may_say(text, token, call.key, self.jobs) => {
                        (*text).clone_into(&mut last_result)
                    }
                    _ => report.add(
                        BrokenPromise::Wrong,
                        format!("call {} of {token} has the results {texts:?}", call.key),
                    ),
                }
            }
        }
        let answer = plan.answer(&last_result, note);
        let last: Vec<&&MessageView> = rest.collect();
        match last.as_slice() {
            [said] if said.role == "assistant" && said.text == answer && said.calls.is_empty() => {}
            [] => report.add(BrokenPromise::Lost, format!("the turn of {token} has no answer")),
            more => report.add(BrokenPromise::Duplicated, format!("the turn of {token} ends with {more:?}")),
        }
        if self.view.text != answer {
            report.add(
                BrokenPromise::Wrong,
                format!("{token} should say {answer:?} and says {:?}", self.view.text),
            );
        }
    }
}

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallReport {
    Done,
    Unknown,
    /// A report about a job.
    Told(CrashTool),
}

impl CallReport {
    /// Whether this is a valid report to a model about it.
    fn may_say(self, text: &str, token: &str, key: &str, jobs: &JobViews) -> bool {
        match self {
            CallReport::Done => text == did(token, key),
            CallReport::Unknown => text.contains(UNKNOWN_SAYS),
            CallReport::Told(tool) => jobs.may_say(tool, token, text),
        }
    }
}
