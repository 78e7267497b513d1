//! A remote store: it can be unreachable for a while, or another daemon takes it.

use crate::daemon::WriterState;
use crate::plan::SimMutation;
use crate::world::{SimEvent, SimWorld};

/// As in the daemon: how often a batch is retried.
const AWAY_MS: u64 = 250;

/// The state of the connection to the store.
#[derive(Debug, Default)]
pub struct RemoteStore {
    /// The number of attempts that will fail.
    away: u64,
    /// The daemon has noticed that the store is away.
    missed: bool,
    /// The batch that is retried is on disk already.
    unsure: bool,
    pub is_fenced: bool,
}

impl RemoteStore {
    pub fn goes_away(&mut self, attempts: u64) {
        self.away = attempts;
    }

    pub fn comes_back(&mut self) {
        (self.away, self.is_fenced) = (0, false);
    }

    pub fn is_away(&self) -> bool {
        self.away > 0
    }

    pub fn is_missed(&self) -> bool {
        self.missed
    }

    pub fn is_unsure(&self) -> bool {
        self.unsure
    }

    /// Records a successful attempt. True: the batch was on disk already.
    pub fn is_back(&mut self) -> bool {
        self.missed = false;
        std::mem::take(&mut self.unsure)
    }

    /// Forgets the batch of a dead daemon.
    pub fn forget_writer(&mut self) {
        (self.missed, self.unsure) = (false, false);
    }
}

impl SimWorld {
    /// Retries later. The group may be on disk or not, so nothing is released.
    pub fn try_again_later(&mut self) {
        self.store.away -= 1;
        let first = !std::mem::replace(&mut self.store.missed, true);
        if first {
            self.tally.away += 1;
            self.trace_line(|| "the store cannot be reached".to_owned());
        }
        if self.mutation == SimMutation::AwayIsWritten {
            self.store.forget_writer();
        } else if first && self.rng.chance(500) {
            self.record_group();
            self.store.unsure = true;
        }
        let lies = self.mutation == SimMutation::AwayIsWritten;
        let Some(daemon) = &mut self.daemon else { return };
        let life = daemon.life;
        if lies {
            daemon.writer.doing = WriterState::Releasing;
            return self.after(0, SimEvent::Release { life });
        }
        self.after(AWAY_MS, SimEvent::Written { life });
    }
}
