//! Outages of the provider, and the law that one turn at a time tries a provider that turns wait for.
//!
//! The law uses what clients were told (`turn.waiting`) and the requests that the provider sees, not the engine's own
//! account of an outage.

use std::collections::BTreeMap;

use lodge_core::record::Write;
use lodge_core::{EventBody, TurnId};
use lodge_engine::{
    Batch, CallRetry, Effect, Input, ModelEffect, ModelFailure, ModelOrder, Observation, TurnObservation,
};

use crate::world::SimWorld;

/// The longest outage: longer than most times for retries.
const OUTAGE_MS_MAX: u64 = 20 * 60 * 1_000;

#[derive(Debug, Default)]
pub struct SimOutages {
    /// Until when every request fails.
    down_until: u64,
    /// The turns that clients were told to wait, and their providers. Cleared when the provider answers one of them.
    announced: BTreeMap<TurnId, AnnouncedWait>,
    /// The newest call of each turn.
    calls: BTreeMap<TurnId, ProviderCall>,
    /// A provider answered in the current step.
    answered_in_step: bool,
}

#[derive(Debug)]
struct AnnouncedWait {
    provider: String,
    is_on_disk: bool,
}

#[derive(Debug)]
struct ProviderCall {
    provider: String,
    /// It was ordered while turns waited for the provider.
    is_probe: bool,
    /// The provider has the request.
    has_arrived: bool,
}

fn provider_in(model: &str) -> &str {
    model.split_once('/').map_or(model, |(provider, _)| provider)
}

/// Whether a call failed although the provider answered, or was never asked.
fn ends_outage(failure: &ModelFailure) -> bool {
    match failure.retry {
        CallRetry::Provider { .. } => false,
        CallRetry::Never | CallRetry::Own => true,
    }
}

impl SimWorld {
    pub fn provider_goes_down(&mut self) {
        let end = self.now + self.rng.between(1_000, OUTAGE_MS_MAX);
        self.outages.down_until = self.outages.down_until.max(end);
    }

    pub fn provider_comes_back(&mut self) {
        self.outages.down_until = 0;
    }

    pub fn is_provider_down(&mut self) -> bool {
        let is_down = self.now < self.outages.down_until;
        self.tally.refused_calls += u64::from(is_down);
        is_down
    }

    /// Before a step: what the engine is about to learn of calls.
    pub fn watch_call_ends(&mut self, inputs: &[Input]) {
        self.outages.answered_in_step = false;
        for input in inputs {
            let Input::Seen(Observation::Turn(seen)) = input else { continue };
            match seen {
                TurnObservation::ModelText { turn, .. } | TurnObservation::ModelAnswered { turn, .. } => {
                    self.outages.provider_answered(turn);
                }
                TurnObservation::ModelFailed { turn, failure, .. } => {
                    if ends_outage(failure) {
                        self.outages.provider_answered(turn);
                    }
                    self.outages.announced.remove(turn);
                    self.outages.calls.remove(turn);
                }
                TurnObservation::Refused { .. }
                | TurnObservation::Asked { .. }
                | TurnObservation::ExecsFound { .. }
                | TurnObservation::ExecEnded { .. }
                | TurnObservation::ProviderDue { .. } => {}
            }
        }
    }

    /// After a step: which turns wait, and which calls are ordered meanwhile.
    pub fn watch_waits(&mut self, batch: &Batch) {
        // First: a call may have been ordered before a wait that began in the same step.
        for effect in &batch.early {
            if let Effect::Model(ModelEffect::Call(order)) = effect {
                self.outages.order_call(order);
            }
        }
        for event in batch.events() {
            if let EventBody::TurnWaiting(wait) = &event.body
                && let (Ok(turn), Some(provider)) = (wait.turn.parse(), &wait.provider)
                // A wait that began before the answer in the same step is over.
                && !self.outages.answered_in_step
            {
                let wait = AnnouncedWait { provider: provider.clone(), is_on_disk: false };
                self.outages.announced.insert(turn, wait);
            }
        }
        self.forget_ended_waits();
    }

    /// Turns that ended, and those whose agent has a model of another provider, wait no longer.
    fn forget_ended_waits(&mut self) {
        let Some(daemon) = &self.daemon else { return };
        let model = |turn: &TurnId| daemon.engine.model_of_live_turn(turn);
        let outages = &mut self.outages;
        outages
            .announced
            .retain(|turn, wait| model(turn).is_some_and(|model| provider_in(model) == wait.provider));
        outages.calls.retain(|turn, _| model(turn).is_some());
        for call in outages.calls.values_mut().filter(|call| call.is_probe) {
            call.is_probe = outages.announced.values().any(|wait| wait.provider == call.provider);
        }
    }

    pub fn waits_are_recorded(&mut self, writes: &[Write]) {
        for write in writes {
            if let Write::Event(row) = write
                && let EventBody::TurnWaiting(wait) = &row.body
                && let Ok(turn) = wait.turn.parse::<TurnId>()
                && let Some(known) = self.outages.announced.get_mut(&turn)
            {
                known.is_on_disk = true;
            }
        }
    }

    /// The engine's memory is gone: waits that are not on disk never were, and no call is in flight.
    pub fn waits_are_read_again(&mut self) {
        self.outages.announced.retain(|_, wait| wait.is_on_disk);
        self.outages.calls.clear();
    }

    /// The provider gets a request.
    pub fn check_probe(&mut self, turn: &TurnId) {
        let Some(call) = self.outages.calls.get_mut(turn) else { return };
        call.has_arrived = true;
        if !call.is_probe {
            return;
        }
        let provider = call.provider.clone();
        let is_other = |(other, call): &(&TurnId, &ProviderCall)| {
            *other != turn && call.is_probe && call.has_arrived && call.provider == provider
        };
        if let Some((other, _)) = self.outages.calls.iter().find(is_other) {
            let what = format!("{turn} tries provider {provider}, and {other} does already");
            self.fail(what);
        }
    }

    /// The provider has no request of this turn any more.
    pub fn call_is_over(&mut self, turn: &TurnId) {
        self.asked.remove(turn);
        if self.outages.calls.get(turn).is_some_and(|call| call.has_arrived) {
            self.outages.calls.remove(turn);
        }
    }
}

impl SimOutages {
    fn order_call(&mut self, order: &ModelOrder) {
        let provider = provider_in(&order.model).to_owned();
        let is_probe = self.announced.values().any(|wait| wait.provider == provider);
        self.calls.insert(order.turn.clone(), ProviderCall { provider, is_probe, has_arrived: false });
    }

    /// The provider of a turn answers: nobody has to wait for it.
    fn provider_answered(&mut self, turn: &TurnId) {
        self.answered_in_step = true;
        let Some(provider) = self.calls.get(turn).map(|call| call.provider.clone()) else {
            // A call that the engine dropped. It is unknown here whose it was.
            self.announced.clear();
            return self.calls.values_mut().for_each(|call| call.is_probe = false);
        };
        self.announced.retain(|_, wait| wait.provider != provider);
        let same = self.calls.values_mut().filter(|call| call.provider == provider);
        same.for_each(|call| call.is_probe = false);
    }
}
