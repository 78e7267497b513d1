//! A full disk: unrecorded decisions are refused, and the engine is rebuilt from the store when there is space.

use std::collections::HashSet;

use lodge_core::record::{TurnWrite, Write};
use lodge_engine::{Batch, BatchOutput, Input, RequestName, Ticket};
use lodge_proto::ErrorBody;

use crate::daemon::WriterState;
use crate::life::LifeOrder;
use crate::world::{SimEvent, SimWorld};

/// Decisions that are not recorded.
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
            BatchOutput::Reply { ticket, .. } => Some(ticket),
            BatchOutput::Act(_) => None,
        }));
    }
}

impl SimWorld {
    /// The group does not fit: it is rolled back with all later decisions.
    pub fn roll_back_group(&mut self) {
        self.disk_full = false;
        // A store that says so was reached.
        self.store.forget_writer();
        let Some(daemon) = &mut self.daemon else { return };
        let life = daemon.life;
        let mut lost = LostDecisions::default();
        for batch in std::mem::take(&mut daemon.writer.waiting) {
            lost.take(batch);
        }
        // These requests were not counted yet. They are lost, so they count as settled, like those on disk.
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
        self.trace_line(|| "no room: the engine halts".to_owned());
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

    /// There is space again: memory is rebuilt from the store, as at startup.
    pub fn rebuild_after_full_disk(&mut self) {
        let now = self.wall();
        let Some(mut daemon) = self.daemon.take() else { return };
        let Some(lost) = daemon.halted.take() else {
            self.daemon = Some(daemon);
            return;
        };
        let loaded = self.disk.reload(&daemon.engine.resident_ids());
        let (engine, batch) = daemon.engine.rebuild(loaded, &lost.requests, now);
        daemon.engine = engine;
        daemon.writer.requests += lost.count;
        self.daemon = Some(daemon);
        self.order(LifeOrder::CancelCalls);
        self.waits_are_read_again();
        self.trace_line(|| "room again: the engine goes on from what is recorded".to_owned());
        // A turn that starts now may get a note, which is recorded with it.
        if !batch.writes.iter().any(|write| matches!(write, Write::Turn(TurnWrite::Note { .. }))) {
            self.check_memory();
        }
        self.dispatch_batch(batch);
    }
}

fn not_recorded() -> ErrorBody {
    ErrorBody::new("daemon.disk_full", "the disk is full")
}
