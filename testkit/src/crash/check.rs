//! After the last kill: is everything there, once, and as it should be?

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use lodge_proto::client::{Client, ClientError};
use lodge_proto::{
    AgentRef, AgentView, Done, Event, EventList, EventListParams, MessageList, MessageView, PAGE_MAX,
    SessionMessagesParams, ShutdownParams, TurnList, TurnView,
};
use serde_json::json;

use super::plan::{TurnPlan, did};
use super::process;
use super::report::{Broken, Report};
use super::world::{Sent, World};
use crate::lodge::PATIENCE;

const LOOK: Duration = Duration::from_millis(4);

impl World {
    /// Lets everything come to its end, checks it against what was planned, and takes it down.
    pub async fn finish(mut self) -> Report {
        self.settle().await;
        self.check_adoption().await;
        // One keeper for each agent, and no other.
        self.expect_keepers(self.agents.len()).await;
        self.check_conversations().await;
        self.check_effects();
        self.stop_agents().await;
        self.check_events().await;
        self.check_requests();
        self.take_down().await;
        if !self.report.is_clean() {
            let log = self.lodge.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("the daemons' last words:\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
        }
        self.report
    }

    async fn check_conversations(&mut self) {
        let mut client = self.lodge.client().await;
        let sessions: BTreeSet<String> = self.sent.iter().filter_map(|sent| sent.session.clone()).collect();
        let mut messages: BTreeMap<String, Vec<MessageView>> = BTreeMap::new();
        for session in sessions {
            let found = match all_messages(&mut client, &session).await {
                Ok(found) => found,
                Err(error) => {
                    self.report.add(Broken::Lost, format!("session {session}: {error}"));
                    continue;
                }
            };
            self.check_turns_of(&mut client, &session).await;
            messages.insert(session, found);
        }
        let report = &mut self.report;
        for sent in &self.sent {
            let Some(turn) = &sent.turn else {
                report.add(Broken::Wrong, format!("message {} was never answered", sent.plan.token));
                continue;
            };
            match client.call("turn/get", json!({"turn": turn})).await {
                Ok(view) => {
                    let all = sent.session.as_ref().and_then(|session| messages.get(session));
                    let all = all.map_or(&[][..], Vec::as_slice);
                    check_turn(report, sent, &view, all);
                }
                Err(error) => {
                    report.add(Broken::Lost, format!("turn {turn} ({}): {error}", sent.plan.token));
                }
            }
        }
    }

    /// A session has the turns that were sent to it, and no others.
    async fn check_turns_of(&mut self, client: &mut Client, session: &str) {
        let params = json!({"session": session, "limit": PAGE_MAX});
        let list: TurnList = match client.call("turn/list", params).await {
            Ok(list) => list,
            Err(error) => return self.report.add(Broken::Lost, format!("turns of {session}: {error}")),
        };
        for view in list.turns {
            if !self.sent.iter().any(|sent| sent.turn.as_ref() == Some(&view.id)) {
                let what = format!("turn {} of {session} is nobody's", view.id);
                self.report.add(Broken::Duplicated, what);
            }
        }
    }

    /// Each effect once, and none that nobody asked for.
    fn check_effects(&mut self) {
        let mut seen: BTreeMap<String, u64> = BTreeMap::new();
        for effect in self.effects.seen() {
            *seen.entry(effect).or_default() += 1;
            self.report.effects += 1;
        }
        for effect in self.sent.iter().flat_map(|sent| sent.plan.effects()) {
            match seen.remove(&effect).unwrap_or(0) {
                0 => self.report.add(Broken::Lost, format!("effect {effect} never happened")),
                1 => {}
                count => {
                    self.report.add(Broken::Duplicated, format!("effect {effect} happened {count} times"))
                }
            }
        }
        for effect in seen.into_keys().filter(|effect| !self.unasked.contains(effect)) {
            self.report.add(Broken::Wrong, format!("effect {effect} was never asked for"));
        }
    }

    /// No request for an answer that was stored already, by the log of the model's own process.
    fn check_requests(&mut self) {
        let Some(mock) = &self.mock else { return };
        let requests = match mock.requests() {
            Ok(requests) => requests,
            Err(error) => return self.report.add(Broken::Wrong, format!("the model's log: {error}")),
        };
        self.report.requests += requests.len() as u64;
        let stored = stored_answers(&self.follower.events());
        let mut unasked = stored.clone();
        let texts: BTreeMap<&str, &Sent> =
            self.sent.iter().map(|sent| (sent.plan.text.as_str(), sent)).collect();
        for request in requests {
            let Some(sent) = texts.get(request.user.as_str()) else {
                let what = format!("a model request for a message that nobody sent: {}", request.user);
                self.report.add(Broken::Wrong, what);
                continue;
            };
            let step = request.step as u64 + 1;
            let place = (sent.turn.clone().unwrap_or_default(), step);
            unasked.remove(&place);
            let answered = stored.get(&place);
            if answered.is_some_and(|at_ms| request.at_us / 1_000 > *at_ms) {
                let what = format!("step {step} of {} was asked for after it was answered", sent.plan.token);
                self.report.add(Broken::Duplicated, what);
            }
        }
        for (turn, step) in unasked.into_keys() {
            let what = format!("step {step} of {turn} has an answer that the model never gave");
            self.report.add(Broken::Wrong, what);
        }
    }

    pub(super) async fn stop_agents(&mut self) {
        let mut client = self.lodge.client().await;
        for agent in &self.agents {
            let params = AgentRef { agent: agent.id.clone(), request_id: None };
            match client.call::<_, AgentView>("agent/stop", params).await {
                Ok(view) if view.status == "stopped" => {}
                Ok(view) => {
                    self.report.add(Broken::Wrong, format!("{} was stopped and is {}", agent.id, view.status))
                }
                Err(error) => {
                    self.report.add(Broken::Wrong, format!("{} was not stopped: {error}", agent.id))
                }
            }
        }
    }

    /// What the follower saw is the log, from its first event to its last.
    pub(super) async fn check_events(&mut self) {
        let mut client = self.lodge.client().await;
        let logged = match all_events(&mut client).await {
            Ok(logged) => logged,
            Err(error) => return self.report.add(Broken::Lost, format!("the log: {error}")),
        };
        let head = logged.last().map_or(0, |event| event.seq);
        let came = self.follower.wait_for(0, PATIENCE, |event| event.seq >= head).await;
        if !came {
            let what = format!("the log is at {head} and the client saw {}", self.follower.cursor());
            self.report.add(Broken::EventMissed, what);
        }
        self.report.broken.extend(self.follower.take_broken());
        let seen = self.follower.events();
        self.report.events += seen.len() as u64;
        self.report.restarted_steps +=
            seen.iter().filter(|event| event.kind == "turn.step_restarted").count() as u64;
        if let Some((saw, is)) = seen.iter().zip(&logged).find(|(saw, is)| saw != is) {
            self.report.add(Broken::EventMissed, format!("the client saw {saw:?}, the log has {is:?}"));
        }
        let mut heads: BTreeMap<&str, u64> = BTreeMap::new();
        for event in &logged {
            let head = heads.entry(&event.stream).or_default();
            *head += 1;
            if event.stream_seq != *head {
                let what = format!("event {head} of its stream says it is another: {event:?}");
                self.report.add(Broken::EventMissed, what);
                *head = event.stream_seq;
            }
        }
    }

    /// Ends the daemon in the ordinary way. Nothing of this state directory lives on.
    pub(super) async fn take_down(&mut self) {
        let mut client = self.lodge.client().await;
        let ended: Result<Done, ClientError> = client
            .call("daemon/shutdown", ShutdownParams { agents: true, ..ShutdownParams::default() })
            .await;
        if let Err(error) = ended {
            self.report.add(Broken::Wrong, format!("the daemon did not take its leave: {error}"));
        }
        drop(client);
        if self.lodge.wait_killed(PATIENCE) != Some(false) {
            self.report.add(Broken::Wrong, "the daemon did not end by itself");
        }
        let until = Instant::now() + PATIENCE;
        let mut left = process::all_of(&self.lodge.home());
        while !left.is_empty() && Instant::now() < until {
            tokio::time::sleep(LOOK).await;
            left = process::all_of(&self.lodge.home());
        }
        for (pid, line) in left {
            self.report.add(Broken::LeftBehind, format!("process {pid}: {line}"));
        }
    }
}

fn check_turn(report: &mut Report, sent: &Sent, view: &TurnView, session: &[MessageView]) {
    let TurnPlan { token, text, answer, .. } = &sent.plan;
    if view.status != "done" || view.text != *answer || view.partial {
        report.add(Broken::Wrong, format!("turn of {token} should say {answer:?} and is {view:?}"));
    }
    for step in &view.steps {
        match step.status.as_str() {
            "done" => {}
            "unknown" => report.add(Broken::Unknown, format!("a step of {token}: {step:?}")),
            _ => report.add(Broken::Wrong, format!("a step of {token}: {step:?}")),
        }
    }
    let told = session.iter().filter(|message| message.role == "user" && message.text == *text).count();
    match told {
        0 => report.add(Broken::Lost, format!("the message {token} is not in its session")),
        1 => {}
        _ => report.add(Broken::Duplicated, format!("the message {token} is in its session {told} times")),
    }
    let mine: Vec<&MessageView> = session.iter().filter(|message| message.turn == view.id).collect();
    check_messages(report, &sent.plan, &mine);
}

/// The course of a turn: the message, then for each step the calls and their results, then the answer.
fn check_messages(report: &mut Report, plan: &TurnPlan, mine: &[&MessageView]) {
    let token = &plan.token;
    let mut rest = mine.iter();
    if rest.next().is_none_or(|message| message.role != "user" || message.text != plan.text) {
        return report.add(Broken::Lost, format!("the turn of {token} does not begin with its message"));
    }
    for calls in plan.shape.steps() {
        let asked =
            rest.next().filter(|message| message.role == "assistant" && message.calls.len() == calls.len());
        let Some(asked) = asked else {
            return report.add(Broken::Wrong, format!("the turn of {token} lacks its calls: {mine:?}"));
        };
        let results: Vec<&&MessageView> = rest.by_ref().take(calls.len()).collect();
        for (call, (key, _)) in asked.calls.iter().zip(*calls) {
            let answers = results.iter().filter(|result| result.call.as_ref() == Some(&call.id));
            let texts: Vec<&str> = answers.map(|result| result.text.as_str()).collect();
            if texts != [did(token, key)] {
                report.add(Broken::Wrong, format!("call {key} of {token} has the results {texts:?}"));
            }
        }
    }
    let last: Vec<&&MessageView> = rest.collect();
    match last.as_slice() {
        [said] if said.role == "assistant" && said.text == plan.answer && said.calls.is_empty() => {}
        [] => report.add(Broken::Lost, format!("the turn of {token} has no answer")),
        more => report.add(Broken::Duplicated, format!("the turn of {token} ends with {more:?}")),
    }
}

/// When each model step's answer was stored, by turn and step.
fn stored_answers(events: &[Event]) -> BTreeMap<(String, u64), u64> {
    let stored = events.iter().filter(|event| event.kind == "turn.step_finished").filter_map(|event| {
        let word = |key: &str| event.data.get(key)?.as_str();
        let done = word("kind") == Some("model") && word("status") == Some("done");
        let step = event.data.get("step")?.as_u64()?;
        done.then_some(((word("turn")?.to_owned(), step), ms_since_1970(&event.at)?))
    });
    stored.collect()
}

/// Of a time such as `2026-01-31T12:00:00.123Z`.
fn ms_since_1970(at: &str) -> Option<u64> {
    let numbers: Vec<u64> =
        at.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect();
    let [year, month, day, hour, minute, second, ms] = numbers.try_into().ok()?;
    // Years that begin in March, so that the leap day is the last one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1;
    Some((((days.checked_sub(719_468)? * 24 + hour) * 60 + minute) * 60 + second) * 1_000 + ms)
}

async fn all_messages(client: &mut Client, session: &str) -> Result<Vec<MessageView>, ClientError> {
    let mut found: Vec<MessageView> = Vec::new();
    let mut before = None;
    loop {
        let params = SessionMessagesParams { session: session.to_owned(), before, limit: Some(PAGE_MAX) };
        let page: MessageList = client.call("session/messages", params).await?;
        found.splice(0..0, page.messages);
        before = page.next;
        if before.is_none() {
            return Ok(found);
        }
    }
}

async fn all_events(client: &mut Client) -> Result<Vec<Event>, ClientError> {
    let mut found: Vec<Event> = Vec::new();
    loop {
        let since = found.last().map_or(0, |event| event.seq);
        let params =
            EventListParams { since: Some(since), limit: Some(PAGE_MAX), ..EventListParams::default() };
        let page: EventList = client.call("event/list", params).await?;
        found.extend(page.events);
        if found.last().map_or(0, |event| event.seq) >= page.head {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_to_the_millisecond() {
        assert_eq!(ms_since_1970("1970-01-01T00:00:00.001Z"), Some(1));
        assert_eq!(ms_since_1970("2000-02-29T12:30:01.000Z"), Some(951_827_401_000));
        assert_eq!(ms_since_1970("2026-08-04T00:00:00.500Z"), Some(1_785_801_600_500));
    }
}
