//! Pills: model calls that kill the daemon whenever it computes them, and the counts that the next daemon reads.
//!
//! Mirrors the daemon's mapped file: work that was computed at a death counts, if the daemon was young. A death
//! without marked work, and a daemon that lived longer, reset the count.

use std::collections::{BTreeMap, BTreeSet};

use lodge_core::quarantine::{DEATHS_MAX, Suspect, Work, WorkKind, YOUNG_MS};
use lodge_core::{TurnId, WorkId};
use lodge_engine::Release;

use crate::client::SimRequest;
use crate::world::SimWorld;

#[derive(Debug, Default)]
pub struct Pills {
    /// Turns whose model call kills.
    deadly: BTreeSet<TurnId>,
    /// Turns that were checked and are harmless.
    harmless: BTreeSet<TurnId>,
    /// Deaths in a row with this work.
    deaths: BTreeMap<Work, u32>,
    /// The start of the current daemon.
    born: u64,
}

fn call_of(turn: &TurnId) -> Work {
    Work { kind: WorkKind::ModelCall, subject: turn.to_string() }
}

impl SimWorld {
    /// The work that a starting daemon has to quarantine.
    pub fn convicted(&mut self) -> Vec<Suspect> {
        self.pills.born = self.now;
        let convicted = self.pills.deaths.iter().filter(|(_, deaths)| **deaths >= DEATHS_MAX);
        let suspect = |(work, deaths): (&Work, &u32)| Suspect {
            work: work.clone(),
            detail: String::new(),
            deaths: *deaths,
        };
        convicted.map(suspect).collect()
    }

    /// A death without marked work resets the counts.
    pub fn unexplained_death(&mut self) {
        self.pills.deaths.clear();
    }

    /// Computes the model call of a turn. True: it killed the daemon.
    pub fn compute_call(&mut self, turn: &TurnId) -> bool {
        if self.disk.quarantined(turn) && self.engine_sets_aside(turn) {
            self.fail(format!("the model call of {turn} is set aside, and is computed"));
        }
        if self.plan.pills > 0 && !self.pills.harmless.contains(turn) && !self.pills.deadly.contains(turn) {
            let deadly = !self.calm && self.rng.chance(self.plan.pills);
            let pills = &mut self.pills;
            let known = if deadly { &mut pills.deadly } else { &mut pills.harmless };
            known.insert(turn.clone());
        }
        if !self.pills.deadly.contains(turn) {
            return false;
        }
        let young = self.now - self.pills.born < YOUNG_MS;
        let before = std::mem::take(&mut self.pills.deaths);
        self.tally.pills += 1;
        self.daemon_dies("a pill");
        if young {
            self.pills.deaths = before;
            let deaths = self.pills.deaths.entry(call_of(turn)).or_insert(0);
            *deaths += 1;
            if *deaths > DEATHS_MAX {
                let deaths = *deaths;
                self.fail(format!("{turn} killed {deaths} young daemons in a row"));
            }
        }
        true
    }

    /// An engine that was asked to compute it again need not wait for the disk: a model call is safe to repeat, and a
    /// daemon that starts after a death before that commit finds it in quarantine.
    fn engine_sets_aside(&self, turn: &TurnId) -> bool {
        let facts = self.daemon.as_ref().map(|daemon| daemon.engine.facts());
        facts.is_some_and(|facts| facts.quarantine.values().any(|row| row.work == call_of(turn)))
    }

    /// The quarantine or release of work is on disk.
    pub fn work_decided(&mut self, work: &Work) {
        self.pills.deaths.remove(work);
    }

    /// Removes all pills. All quarantined work is decided.
    pub fn remove_all_pills(&mut self) {
        let deadly = std::mem::take(&mut self.pills.deadly);
        self.pills.harmless.extend(deadly);
    }

    /// An operator decides on all quarantined work.
    pub fn releases(&mut self) -> Vec<SimRequest> {
        let ids: Vec<WorkId> = self.disk.quarantine().map(|row| row.id.clone()).collect();
        ids.into_iter().map(|id| SimRequest::Release { id, how: self.some_release() }).collect()
    }

    pub fn some_release(&mut self) -> Release {
        if self.rng.chance(500) { Release::Retry } else { Release::Drop }
    }
}
