//! A full disk: what was decided and not recorded is refused, and the engine goes on from what is, once there is room.

use std::collections::HashSet;

use lodge_core::record::{TurnWrite, Write};
use lodge_engine::{Batch, Input, Out, RequestName, Ticket};
use lodge_proto::ErrorBody;

use crate::daemon::WriterState;
use crate::world::{SimEvent, SimWorld};

/// What was decided and is not recorded.
#[derive(Debug, Default)]
pub struct LostDecisions {
    tickets: Vec<Ticket>,
    requests: HashSet<RequestName>,
    count: u64,
}

impl LostDecisions {
    fn take(&mut self, batch: Batch) {
        self.requests.extend(batch.writes.iter().filter_map(|write| match write {
            Write::Request(row) => Some((row.caller.clone(), row.request_id.clone())),
            _ => None,
        }));
        self.tickets.extend(batch.after.into_iter().filter_map(|out| match out {
            Out::Reply { ticket, .. } => Some(ticket),
            Out::Act(_) => None,
        }));
    }
}

impl SimWorld {
    /// The group does not fit: it is rolled back, and with it goes everything that was decided after it.
    pub fn no_room(&mut self) {
        self.disk_full = false;
        let Some(daemon) = &mut self.daemon else { return };
        let life = daemon.life;
        let mut lost = LostDecisions::default();
        for batch in std::mem::take(&mut daemon.writer.waiting) {
            lost.take(batch);
        }
        // These were not counted yet, and are as settled as those on disk: nobody remembers them.
        for batch in std::mem::take(&mut daemon.channel) {
            lost.count += batch.requests() as u64;
            lost.take(batch);
        }
        let refused = std::mem::take(&mut lost.tickets);
        daemon.writer.doing = WriterState::Waiting;
        let (waiting, seen): (Vec<Input>, Vec<Input>) = std::mem::take(&mut daemon.inputs)
            .into_iter()
            .partition(|input| matches!(input, Input::Api { .. }));
        daemon.inputs = seen.into();
        daemon.halted = Some(lost);
        self.tally.halts += 1;
        self.say(|| "no room: the engine halts".to_owned());
        refused.into_iter().for_each(|ticket| self.answer(ticket, Err(not_recorded())));
        waiting.into_iter().for_each(|input| self.refuse_input(&input));
        let pause = self.rng.delay(100);
        self.after(pause, SimEvent::Room { life });
    }

    /// A request that arrives while nothing can be recorded.
    pub fn refuse_input(&mut self, input: &Input) {
        if let Input::Api { ticket, .. } = input {
            self.answer(*ticket, Err(not_recorded()));
        }
    }

    /// There is room again: memory becomes what is recorded, by the path of a start.
    pub fn room(&mut self) {
        let now = self.wall();
        let Some(mut daemon) = self.daemon.take() else { return };
        let Some(lost) = daemon.halted.take() else {
            self.daemon = Some(daemon);
            return;
        };
        let loaded = self.disk.reload(&daemon.engine.remembered());
        daemon.models.clear();
        daemon.calls.clear();
        self.asked.clear();
        let (engine, batch) = daemon.engine.rebuild(loaded, &lost.requests, now);
        daemon.engine = engine;
        daemon.writer.requests += lost.count;
        self.daemon = Some(daemon);
        self.say(|| "room again: the engine goes on from what is recorded".to_owned());
        // A turn that starts with it may get a note, which the store has when it is recorded.
        if !batch.writes.iter().any(|write| matches!(write, Write::Turn(TurnWrite::Note { .. }))) {
            self.check_memory();
        }
        self.pass_on(batch);
    }
}

fn not_recorded() -> ErrorBody {
    ErrorBody::new("daemon.disk_full", "the disk is full")
}
