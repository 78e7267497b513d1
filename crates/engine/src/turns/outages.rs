//! Outages of providers: a turn whose model call failed is parked, and one of the parked turns tries again for all of them.
//!
//! What is stored is stored with the turns (`ParkReason::Provider`): the first failure of each, and the next attempt. The
//! outage itself is derived from them, so a restart finds the same one. Its probe is the only turn that calls the provider.

use std::collections::{BTreeMap, BTreeSet};

use lodge_core::event::TurnWaiting;
use lodge_core::lineage::LineageState;
use lodge_core::park::{ParkReason, ProviderWait};
use lodge_core::record::{FailureRecord, TurnWrite};
use lodge_core::retry;
use lodge_core::{SessionId, Timestamp, TurnId};

use super::state::CutCall;
use super::{Phase, Turn};
use crate::{CallRetry, Effect, Engine, ModelEffect, ModelFailure, SandboxEffect};

/// Failures in a row after which a turn may wait for the next attempt with its slot, if the pause is short: most failures
/// are over by then.
const KEEPS_SLOT_FAILURES: u32 = 2;
const KEEPS_SLOT_MS: u64 = 1_000;
/// A turn whose time ended while nobody could try waits this long for the attempt of another.
const OVERDUE_MS: u64 = 60_000;

/// The providers that do not answer, and who waits for them.
#[derive(Debug, Default)]
pub(crate) struct Outages {
    by_provider: BTreeMap<String, Outage>,
    /// The turns whose [`ProviderWait::is_held`].
    held: BTreeSet<TurnId>,
    /// A wait or the model of an agent changed since the last look at all outages.
    is_changed: bool,
}

impl Outages {
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_provider.is_empty()
    }

    /// The model of an agent may have changed to one of another provider.
    pub(crate) fn model_changed(&mut self) {
        self.is_changed = true;
    }
}

/// A provider that does not answer.
#[derive(Debug)]
struct Outage {
    /// Failed attempts in a row.
    failures: u32,
    failure: FailureRecord,
    retry_for_ms: u64,
    next_at: Timestamp,
    /// The pause before the next attempt is over.
    is_due: bool,
    timer: Option<OutageTimer>,
    /// The turn that makes the next attempt, or is making it.
    probe: Option<TurnId>,
    /// Nothing can be done before a timer runs out, a wait changes, or the probe is lost.
    rests: bool,
}

impl Outage {
    /// Whether the end of turns whose time is over is set already.
    fn waits_overdue(&self, now: Timestamp) -> bool {
        self.timer.is_some_and(|timer| timer.purpose == TimerPurpose::EndOfTurn && timer.at > now)
    }
}

/// The newest timer of an outage. Earlier ones are ignored.
#[derive(Debug, Clone, Copy)]
struct OutageTimer {
    wake: u64,
    at: Timestamp,
    purpose: TimerPurpose,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TimerPurpose {
    Attempt,
    /// A turn's time ends before the next attempt.
    EndOfTurn,
}

/// What a failed call does to its turn.
#[derive(Debug)]
pub(crate) enum AfterFailure {
    /// The call is repeated.
    Repeat { delay_ms: u64 },
    /// The turn waits without a call in flight.
    Wait,
    /// The turn has no attempt left.
    GiveUp(FailureRecord),
}

/// The provider of a model.
fn provider_in(model: &str) -> &str {
    model.split_once('/').map_or(model, |(provider, _)| provider)
}

fn wait_of(turn: &Turn) -> Option<&ProviderWait> {
    match turn.row.park.as_ref()? {
        ParkReason::Provider(wait) => Some(wait),
    }
}

fn is_waiting(turn: &Turn) -> bool {
    wait_of(turn).is_some_and(ProviderWait::is_held)
}

/// Whether a call is in flight, or ordered.
fn is_calling(turn: &Turn) -> bool {
    match turn.phase {
        Phase::Model { .. } | Phase::Summary(_) => true,
        Phase::Thinking | Phase::Tools { .. } => false,
    }
}

impl Engine {
    /// Whether a turn waits until its provider answers.
    pub(crate) fn is_held(&self, turn: &Turn) -> bool {
        let Some(outage) = self.outages.by_provider.get(self.provider_of(turn)) else { return false };
        is_waiting(turn) && outage.probe.as_ref() != Some(&turn.row.id)
    }

    fn provider_of(&self, turn: &Turn) -> &str {
        self.agents.get(&turn.row.agent).map_or("", |agent| provider_in(&agent.row.spec.model))
    }

    /// Decides after a failed call of a turn.
    pub(crate) fn call_failed(&mut self, id: &TurnId, failures: u32, failed: ModelFailure) -> AfterFailure {
        match failed.retry {
            CallRetry::Never => {
                self.provider_answers(id);
                AfterFailure::GiveUp(failed.record)
            }
            CallRetry::Own => match retry::own_call(failures, spread(id, failures)) {
                retry::RetryDecision::After { delay_ms } => AfterFailure::Repeat { delay_ms },
                retry::RetryDecision::GiveUp => AfterFailure::GiveUp(failed.record),
            },
            CallRetry::Provider { after_ms, retry_for_ms } => {
                self.provider_failed(id, failed.record, after_ms, retry_for_ms)
            }
        }
    }

    fn provider_failed(
        &mut self,
        id: &TurnId,
        failure: FailureRecord,
        after_ms: Option<u64>,
        retry_for_ms: u64,
    ) -> AfterFailure {
        let now = self.step.now.ms();
        let Some(turn) = self.turns.get(id) else { return AfterFailure::Wait };
        let provider = self.provider_of(turn).to_owned();
        let before = wait_of(turn).filter(|wait| wait.provider == provider);
        // The clock may have been set back since.
        let first_ms = before.map_or(now, |wait| wait.first_ms.min(now));
        let known = self.outages.by_provider.get(&provider);
        let counts = known.is_none_or(|outage| outage.probe.as_ref() == Some(id));
        let failures = match known {
            Some(outage) => outage.failures + u32::from(counts),
            // A call that fails after its first text ended the outage, and is not the first that fails.
            None => before.filter(|wait| wait.failed_ms.is_some()).map_or(1, |wait| wait.failures + 1),
        };
        let runs = turn.is_running();
        let mut wait = ProviderWait {
            provider,
            first_ms,
            failed_ms: Some(now),
            next_ms: None,
            retry_for_ms,
            failures,
            failure,
        };
        let is_over = wait.until().ms() <= now;
        if counts {
            let pause_ms = retry::call_pause(failures, after_ms, spread(id, failures));
            let next_at = self.step.now.plus_ms(i64::try_from(pause_ms).unwrap_or(i64::MAX));
            self.update_waits(id, &wait, next_at);
            let is_short = failures <= KEEPS_SLOT_FAILURES && pause_ms < KEEPS_SLOT_MS;
            if runs && is_short && next_at <= wait.until() {
                if let Some(outage) = self.outages.by_provider.get_mut(&wait.provider) {
                    (outage.probe, outage.is_due) = (Some(id.clone()), true);
                }
                wait.next_ms = Some(next_at.ms());
                self.set_wait(id, Some(wait));
                return AfterFailure::Repeat { delay_ms: pause_ms };
            }
        }
        // If it does not count, another turn tries for all of them.
        if is_over {
            return AfterFailure::GiveUp(given_up(&wait, now));
        }
        self.wait_with(id, wait);
        AfterFailure::Wait
    }

    /// After an attempt for all turns of a provider failed: sets the time of the next one, and ends the turns whose time is
    /// over.
    fn update_waits(&mut self, probe: &TurnId, newest: &ProviderWait, next_at: Timestamp) {
        let outage = Outage {
            failures: newest.failures,
            failure: newest.failure.clone(),
            retry_for_ms: newest.retry_for_ms,
            next_at,
            is_due: false,
            timer: None,
            probe: None,
            rests: false,
        };
        self.outages.by_provider.insert(newest.provider.clone(), outage);
        for id in self.waiting_for(&newest.provider).into_iter().filter(|id| id != probe) {
            let Some(wait) = self.turns.get(&id).and_then(wait_of) else { continue };
            let first_ms = wait.first_ms.min(self.step.now.ms());
            let next_ms = Some(next_at.ms());
            let wait = ProviderWait { first_ms, failed_ms: wait.failed_ms, next_ms, ..newest.clone() };
            self.set_wait(&id, Some(wait));
        }
        self.end_late_turns(&newest.provider, Some(probe), self.step.now);
    }

    /// Ends the turns whose time for retries is over, except the one that is trying: its call decides.
    fn end_late_turns(&mut self, provider: &str, probe: Option<&TurnId>, now: Timestamp) {
        for id in self.waiting_for(provider).into_iter().filter(|id| Some(id) != probe) {
            let Some(turn) = self.turns.get(&id).filter(|turn| self.ends_in_time(turn)) else { continue };
            let Some(wait) = wait_of(turn).filter(|wait| wait.until() <= now) else { continue };
            let failure = given_up(wait, now.ms());
            self.fail_turn(&id, failure);
        }
    }

    /// A turn that an operator has to decide about does not end meanwhile.
    fn ends_in_time(&self, turn: &Turn) -> bool {
        let agent = self.agents.get(&turn.row.agent);
        let is_asked = agent.is_some_and(|agent| agent.lineage.state == LineageState::AskPending);
        !is_asked && !self.is_quarantined(&turn.row.id)
    }

    /// Waits for the next attempt, or for the end of a turn whose time is over before it. While a turn tries, only for the
    /// end of another.
    fn start_outage_timer(&mut self, provider: &str, waiting: &[TurnId]) {
        let now = self.step.now;
        let Some(outage) = self.outages.by_provider.get(provider) else { return };
        let others = waiting.iter().filter(|id| outage.probe.as_ref() != Some(*id));
        let others = others.filter_map(|id| self.turns.get(id)).filter(|turn| self.ends_in_time(turn));
        let end = others.filter_map(wait_of).map(ProviderWait::until).min();
        let (at, purpose) = match (end, &outage.probe) {
            (Some(end), Some(_)) if end > now => (end, TimerPurpose::EndOfTurn),
            // The daemon was away, or the machine asleep: this attempt may end the outage. A turn waits for one only.
            (Some(_), Some(_)) if outage.waits_overdue(now) => return,
            (Some(_), Some(_)) => {
                let wait_ms = OVERDUE_MS.min(outage.retry_for_ms);
                (now.plus_ms(wait_ms.cast_signed()), TimerPurpose::EndOfTurn)
            }
            (None, Some(_)) => return,
            (Some(end), None) if end < outage.next_at && outage.next_at > now => {
                (end, TimerPurpose::EndOfTurn)
            }
            (Some(_) | None, None) => (outage.next_at, TimerPurpose::Attempt),
        };
        if outage.timer.is_some_and(|timer| (timer.at, timer.purpose) == (at, purpose)) {
            return;
        }
        let Some(outage) = self.outages.by_provider.get_mut(provider) else { return };
        self.asks += 1;
        let wake = self.asks;
        outage.timer = Some(OutageTimer { wake, at, purpose });
        // The clock may have been set meanwhile: no pause is longer than the time for retries.
        let delay_ms = u64::try_from(at.ms() - now.ms()).unwrap_or(0).min(outage.retry_for_ms);
        self.step.act(Effect::Model(ModelEffect::ProviderTimer {
            provider: provider.to_owned(),
            wake,
            delay_ms,
        }));
    }

    /// Parks a turn until its provider answers, and tells clients why.
    fn wait_with(&mut self, id: &TurnId, mut wait: ProviderWait) {
        wait.next_ms = self.outages.by_provider.get(&wait.provider).map(|outage| outage.next_at.ms());
        self.drop_call(id);
        self.set_wait(id, Some(wait.clone()));
        let (until_ms, reason) = (wait.until().ms(), ParkReason::Provider(wait.clone()).word().to_owned());
        let ProviderWait { provider, next_ms, failures, failure, .. } = wait;
        let FailureRecord { code, message, hint } = failure;
        self.turn_event(id, |session, turn| TurnWaiting {
            session,
            turn,
            reason,
            provider: Some(provider),
            code,
            message,
            hint,
            attempt: failures,
            next_at_ms: next_ms,
            until_ms: Some(until_ms),
        });
        if let Some(turn) = self.turns.get(id)
            && turn.is_running()
        {
            let agent = turn.row.agent.clone();
            self.in_sandbox(&agent, SandboxEffect::DropTurn { turn: id.clone() });
            self.park(id);
        }
    }

    /// The call is over, and its step is open: the runtime asks for it again.
    fn drop_call(&mut self, id: &TurnId) {
        let Some(turn) = self.turns.get_mut(id) else { return };
        match &mut turn.phase {
            Phase::Model { attempt, shown, .. } => {
                turn.cut = Some(CutCall { at: (turn.step, *attempt), shown: std::mem::take(shown) });
                turn.step -= 1;
                turn.phase = Phase::Thinking;
            }
            Phase::Summary(_) => turn.phase = Phase::Thinking,
            Phase::Thinking | Phase::Tools { .. } => {}
        }
    }

    fn set_wait(&mut self, id: &TurnId, wait: Option<ProviderWait>) {
        let park = wait.map(ParkReason::Provider);
        let Some(turn) = self.turns.get_mut(id).filter(|turn| turn.row.park != park) else { return };
        turn.row.park.clone_from(&park);
        match is_waiting(turn) {
            true => drop(self.outages.held.insert(id.clone())),
            false => drop(self.outages.held.remove(id)),
        }
        self.outages.is_changed = true;
        self.step.write_with_next_commit(TurnWrite::Park { turn: id.clone(), park });
    }

    /// Which turns may make the next attempt now: all when the pause is over. Before, one that has not failed, if only one
    /// turn has: the failure may be that turn's own, and another turn finds out at once.
    fn may_try_now(&self, outage: &Outage, waiting: &[TurnId]) -> impl Fn(&Turn) -> bool + use<> {
        let has_failed = |turn: &Turn| wait_of(turn).is_some_and(|wait| wait.failed_ms.is_some());
        let failed = waiting.iter().filter(|id| self.turns.get(*id).is_some_and(has_failed)).count();
        let is_due = outage.is_due;
        move |turn| is_due || failed <= 1 && !has_failed(turn)
    }

    /// Whether a turn may call its model now. If another turn tries for it, this one is parked.
    pub(crate) fn may_call(&mut self, id: &TurnId) -> bool {
        let Some(turn) = self.turns.get(id) else { return false };
        let provider = self.provider_of(turn).to_owned();
        let Some(outage) = self.outages.by_provider.get(&provider) else { return true };
        // A probe that still waits for a slot leaves the attempt to a turn that has one. The call of a turn goes on while its
        // runtime is replaced.
        let tries =
            |probe: &TurnId| self.turns.get(probe).is_some_and(|turn| turn.is_running() || is_calling(turn));
        let may_try = !outage.probe.as_ref().is_some_and(tries)
            && self.may_try_now(outage, &self.waiting_for(&provider))(turn);
        let known = wait_of(turn).filter(|wait| wait.provider == provider).cloned();
        let Some(outage) = self.outages.by_provider.get_mut(&provider) else { return true };
        if may_try {
            outage.probe = Some(id.clone());
            self.outages.is_changed = true;
            return true;
        }
        if outage.probe.as_ref() == Some(id) {
            return true;
        }
        let now = self.step.now.ms();
        let wait = ProviderWait {
            first_ms: known.as_ref().map_or(now, |wait| wait.first_ms.min(now)),
            failed_ms: known.and_then(|wait| wait.failed_ms),
            next_ms: None,
            retry_for_ms: outage.retry_for_ms,
            failures: outage.failures,
            failure: outage.failure.clone(),
            provider,
        };
        if wait.until().ms() <= now {
            let agent = self.turns.get(id).map(|turn| turn.row.agent.clone());
            self.fail_turn(id, given_up(&wait, now));
            if let Some(agent) = agent {
                self.in_sandbox(&agent, SandboxEffect::DropTurn { turn: id.clone() });
            }
            return false;
        }
        self.wait_with(id, wait);
        false
    }

    /// The provider answered this turn, with an answer or a refusal. If the turn tried for others, they continue.
    pub(crate) fn provider_answers(&mut self, id: &TurnId) {
        let Some(turn) = self.turns.get(id) else { return };
        let provider = self.provider_of(turn).to_owned();
        let outage = self.outages.by_provider.get(&provider);
        if outage.is_none_or(|outage| outage.probe.as_ref() != Some(id)) {
            return;
        }
        self.outages.by_provider.remove(&provider);
        self.release_waits(self.waiting_for(&provider));
    }

    /// The step of a turn is answered. Its next failure is a first one.
    pub(crate) fn forget_wait(&mut self, id: &TurnId) {
        self.set_wait(id, None);
    }

    /// The turn goes on without the answer it waited for. Its next call is not the first that fails.
    pub(crate) fn stop_waiting(&mut self, id: &TurnId) {
        let wait = self.turns.get(id).and_then(wait_of).cloned();
        self.set_wait(id, wait.map(|wait| ProviderWait { next_ms: None, ..wait }));
    }

    /// These turns no longer wait for a provider, but for a slot.
    fn release_waits(&mut self, turns: Vec<TurnId>) {
        let mut sessions: Vec<SessionId> = Vec::new();
        for id in turns {
            let Some(turn) = self.turns.get(&id) else { continue };
            let Some(wait) = wait_of(turn).cloned() else { continue };
            sessions.push(turn.row.session.clone());
            // A turn that never called has its whole time for retries: it may wait long for a slot.
            let wait = wait.failed_ms.is_some().then_some(ProviderWait { next_ms: None, ..wait });
            self.set_wait(&id, wait);
        }
        self.step.mark_urgent();
        for session in sessions {
            self.start_next(&session);
        }
    }

    /// The turns that wait for a provider, in the order of starts.
    fn waiting_for(&self, provider: &str) -> Vec<TurnId> {
        let held = self.outages.held.iter().filter_map(|id| self.turns.get(id));
        let mut waiting: Vec<&Turn> = held.filter(|turn| self.provider_of(turn) == provider).collect();
        waiting.sort_by_key(|turn| turn.place());
        waiting.into_iter().map(|turn| turn.row.id.clone()).collect()
    }

    /// A timer of an outage has run out. It has no effect if another one replaced it.
    pub(crate) fn provider_due(&mut self, provider: &str, wake: u64) {
        let Some(outage) = self.outages.by_provider.get_mut(provider) else { return };
        let Some(timer) = outage.timer.take_if(|timer| timer.wake == wake) else { return };
        outage.rests = false;
        match timer.purpose {
            TimerPurpose::Attempt => outage.is_due = true,
            TimerPurpose::EndOfTurn => {
                let probe = outage.probe.clone();
                // The clock may have been set back since: the time that was waited for is over.
                self.end_late_turns(provider, probe.as_ref(), self.step.now.max(timer.at));
            }
        }
    }

    /// The providers changed: all of them are tried now.
    pub(crate) fn providers_due(&mut self) {
        for outage in self.outages.by_provider.values_mut() {
            (outage.is_due, outage.timer, outage.rests) = (true, None, false);
        }
    }

    /// Chooses who tries for the others, and ends outages that no turn waits for. Called after every input.
    pub(crate) fn tend_outages(&mut self) {
        if std::mem::take(&mut self.outages.is_changed) {
            self.release_strays();
            self.outages.by_provider.values_mut().for_each(|outage| outage.rests = false);
        }
        if self.outages.by_provider.is_empty() {
            return;
        }
        let providers: Vec<String> = self.outages.by_provider.keys().cloned().collect();
        for provider in providers {
            self.tend_outage(&provider);
        }
    }

    /// Turns whose agent has a model of another provider since.
    fn release_strays(&mut self) {
        let held = self.outages.held.iter().filter_map(|id| self.turns.get(id));
        let strays = held.filter(|turn| !self.outages.by_provider.contains_key(self.provider_of(turn)));
        let strays: Vec<TurnId> = strays.map(|turn| turn.row.id.clone()).collect();
        if !strays.is_empty() {
            self.release_waits(strays);
        }
    }

    fn tend_outage(&mut self, provider: &str) {
        // The agent of the turn may have a model of another provider since.
        let calls_it = |turn: &&Turn| self.provider_of(turn) == provider;
        let may_probe = |id: &TurnId| {
            let turn = self.turns.get(id).filter(calls_it);
            turn.is_some_and(|turn| is_calling(turn) || turn.is_running() || self.could_resume(turn))
        };
        let Some(outage) = self.outages.by_provider.get(provider) else { return };
        let has_probe = outage.probe.as_ref().is_some_and(may_probe);
        if outage.rests && (has_probe || outage.probe.is_none()) {
            return;
        }
        let waiting = self.waiting_for(provider);
        if has_probe {
            self.start_outage_timer(provider, &waiting);
            return self.rest_outage(provider);
        }
        if waiting.is_empty() {
            self.outages.by_provider.remove(provider);
            return;
        }
        let may_try_now = self.may_try_now(outage, &waiting);
        let candidates =
            waiting.iter().filter(|id| may_probe(id) && self.turns.get(*id).is_some_and(&may_try_now));
        // A turn that would wait for a slot comes after those that have one. The turn that failed last comes last: a request
        // that always fails must not keep others from theirs.
        let order = |id: &&TurnId| {
            let turn = self.turns.get(*id)?;
            let agent = self.agents.get(&turn.row.agent)?;
            let has_slot = turn.is_running() || self.may_work(agent);
            Some((!has_slot, wait_of(turn).and_then(|wait| wait.failed_ms)))
        };
        let chosen = candidates.min_by_key(order).cloned();
        let is_due = outage.is_due;
        let has_failed = |id: &&TurnId| self.turns.get(*id).and_then(wait_of)?.failed_ms;
        let failed = waiting.iter().filter_map(|id| has_failed(&id)).count();
        let session = chosen.as_ref().and_then(|id| self.turns.get(id)).map(|turn| turn.row.session.clone());
        if let Some(outage) = self.outages.by_provider.get_mut(provider) {
            outage.probe = chosen;
        }
        match session {
            Some(session) => {
                self.start_next(&session);
                // The others wait for this attempt, and end at their own times.
                self.start_outage_timer(provider, &waiting);
            }
            None if !is_due => {
                self.start_outage_timer(provider, &waiting);
                if failed > 1 {
                    self.rest_outage(provider);
                }
            }
            None => {}
        }
    }

    fn rest_outage(&mut self, provider: &str) {
        if let Some(outage) = self.outages.by_provider.get_mut(provider) {
            outage.rests = true;
        }
    }

    /// The outages that the stored turns wait for.
    pub(crate) fn restore_outages(&mut self) {
        let mut ids: Vec<&TurnId> = self.turns.keys().collect();
        ids.sort();
        let mut outages = BTreeMap::new();
        for turn in ids.into_iter().filter_map(|id| self.turns.get(id)) {
            let Some(wait) = wait_of(turn).filter(|wait| wait.provider == self.provider_of(turn)) else {
                continue;
            };
            let Some(next_at) = wait.next_at() else { continue };
            let outage = outages.entry(wait.provider.clone()).or_insert_with(|| Outage {
                failures: 0,
                failure: wait.failure.clone(),
                retry_for_ms: wait.retry_for_ms,
                next_at,
                is_due: false,
                timer: None,
                probe: None,
                rests: false,
            });
            if wait.failures > outage.failures {
                (outage.failures, outage.failure) = (wait.failures, wait.failure.clone());
            }
            outage.next_at = outage.next_at.max(next_at);
            if turn.is_running() && outage.probe.is_none() {
                // It was trying when the daemon ended.
                (outage.probe, outage.is_due) = (Some(turn.row.id.clone()), true);
            }
        }
        let held =
            self.turns.values().filter(|turn| is_waiting(turn)).map(|turn| turn.row.id.clone()).collect();
        self.outages = Outages { by_provider: outages, held, is_changed: true };
    }

    /// After memory was rebuilt: waits for the rest of each pause.
    pub(crate) fn resume_outages(&mut self) {
        let pausing = self.outages.by_provider.iter().filter(|(_, outage)| !outage.is_due);
        let pausing: Vec<String> = pausing.map(|(provider, _)| provider.clone()).collect();
        for provider in pausing {
            self.start_outage_timer(&provider, &self.waiting_for(&provider));
        }
    }
}

/// What spreads the attempts of different turns: no two have the same id.
fn spread(id: &TurnId, failures: u32) -> u64 {
    let digits = id.as_str().bytes().chain(failures.to_le_bytes());
    digits.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The failure of a turn whose provider did not recover in time.
fn given_up(wait: &ProviderWait, now_ms: i64) -> FailureRecord {
    let FailureRecord { code, message, hint } = wait.failure.clone();
    let tried_s = u64::try_from(now_ms - wait.first_ms).unwrap_or(0) / 1_000;
    let tried = match tried_s {
        0 => return FailureRecord { code, message, hint },
        1..120 => format!("{tried_s} s"),
        120..7_200 => format!("{} min", tried_s / 60),
        7_200.. => format!("{} h", tried_s / 3_600),
    };
    FailureRecord { code, message: format!("{message} (tried for {tried})"), hint }
}
