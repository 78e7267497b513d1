//! Agents that leave the engine's memory, and are loaded when a request names them.

use lodge_engine::Observation;

use crate::plan::SimMutation;
use crate::world::SimWorld;

impl SimWorld {
    /// Reports to the engine what is on disk.
    pub fn settled(&mut self, requests: u64, rest: bool) {
        let early = self.mutation == SimMutation::EarlyRest;
        let seq = if early { u64::MAX } else { self.cursor };
        self.report(Observation::Settled { requests, seq, rest });
    }

    /// Reports what is on disk although the daemon is not idle.
    pub fn agents_rest(&mut self) {
        if let Some(reported) = self.daemon.as_ref().map(|daemon| daemon.writer.reported) {
            self.settled(reported, false);
        }
    }
}
