//! The simulated world and the order of its events.
//!
//! Owns: time, randomness, and the queue of events. Each event is atomic. Its consequences are later events, at times that the
//! seed chooses.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Weak;

use lodge_core::{SandboxId, Timestamp, TurnId};
use lodge_exec::{ExecName, KeeperCommand, KeeperEvent};

use crate::client::SimClients;
use crate::daemon::SimDaemon;
use crate::disk::SimDisk;
use crate::jobs::{ArchiveStage, SimJobs};
use crate::life::LifeOrder;
use crate::link::LinkQueue;
use crate::machine::SimMachine;
use crate::outages::SimOutages;
use crate::pills::Pills;
use crate::plan::{CommitPoint, SimMutation, SimPlan};
use crate::rng::SimRng;
use crate::store::RemoteStore;
use crate::trace::SimTrace;

/// The wall clock at the start.
const DAWN_MS: i64 = 1_700_000_000_000;

/// An event of the world.
#[derive(Debug)]
pub enum SimEvent {
    /// The engine handles its queued inputs.
    Decide {
        life: u64,
    },
    /// The writer stops waiting for more batches.
    LazyOver {
        life: u64,
        wait: u64,
    },
    /// The writer was idle for a while.
    Rest {
        life: u64,
        wait: u64,
    },
    /// The disk finished the write of a group.
    Written {
        life: u64,
    },
    KeeperWakes {
        sandbox: SandboxId,
        keeper: u64,
    },
    /// The disk has space again.
    Room {
        life: u64,
    },
    /// The outputs of the group are released.
    Release {
        life: u64,
    },
    /// A command reaches a keeper.
    Down {
        sandbox: SandboxId,
        link: u64,
        command: Box<KeeperCommand>,
    },
    /// An event reaches the daemon's end of a link. None: the link is closed.
    Up {
        queue: Weak<LinkQueue>,
        event: Option<Box<KeeperEvent>>,
    },
    ToolActs {
        sandbox: SandboxId,
        keeper: u64,
        exec: ExecName,
        run: u64,
    },
    ToolEnds {
        sandbox: SandboxId,
        keeper: u64,
        exec: ExecName,
        run: u64,
    },
    KeeperEnds {
        sandbox: SandboxId,
        keeper: u64,
    },
    RuntimeWakes {
        sandbox: SandboxId,
        keeper: u64,
    },
    /// The task of the archive continues.
    Archive {
        life: u64,
        stage: ArchiveStage,
    },
    Client {
        caller: usize,
        turn: u64,
    },
    DaemonStarts,
    Fault {
        storm: u64,
    },
}

#[derive(Debug)]
struct ScheduledEvent {
    at: u64,
    serial: u64,
    next: SimEvent,
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &Self) -> bool {
        self.serial == other.serial
    }
}

impl Eq for ScheduledEvent {}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledEvent {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}

/// Counts of what happened in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub steps: u64,
    pub commits: u64,
    pub events: u64,
    pub lives: u64,
    pub turns: u64,
    pub effects: u64,
    pub unknown: u64,
    pub model_requests: u64,
    pub answers: u64,
    pub faults: u64,
    pub rebuilt: u64,
    pub halts: u64,
    /// How often the store could not be reached.
    pub away: u64,
    pub revived: u64,
    pub ended: u64,
    pub retried: u64,
    pub updated: u64,
    /// Turns that had to wait for a slot.
    pub waited: u64,
    /// Changes of sessions, and changes that were refused because the session moved on.
    pub edited: u64,
    pub changed: u64,
    /// Answers that did not match their schema.
    pub misfits: u64,
    /// Jobs, their ends, and those that were archived, reported in a note, or removed by the retention.
    pub jobs: u64,
    pub jobs_done: u64,
    pub jobs_failed: u64,
    pub jobs_cancelled: u64,
    pub archived: u64,
    pub noted: u64,
    pub expired: u64,
    /// Pulls for agents, and contents of images that were collected.
    pub pulls: u64,
    pub collected: u64,
    /// Deaths by pills, and quarantined work.
    pub pills: u64,
    pub quarantined: u64,
    /// Agents at rest that a request named.
    pub looked_up: u64,
    /// Requests to a provider that was down.
    pub refused_calls: u64,
    /// Turns that continue others.
    pub continued: u64,
}

impl Tally {
    #[must_use]
    pub fn plus(self, other: Tally) -> Tally {
        Tally {
            steps: self.steps + other.steps,
            commits: self.commits + other.commits,
            events: self.events + other.events,
            lives: self.lives + other.lives,
            turns: self.turns + other.turns,
            effects: self.effects + other.effects,
            unknown: self.unknown + other.unknown,
            model_requests: self.model_requests + other.model_requests,
            answers: self.answers + other.answers,
            faults: self.faults + other.faults,
            rebuilt: self.rebuilt + other.rebuilt,
            halts: self.halts + other.halts,
            away: self.away + other.away,
            revived: self.revived + other.revived,
            ended: self.ended + other.ended,
            retried: self.retried + other.retried,
            updated: self.updated + other.updated,
            waited: self.waited + other.waited,
            edited: self.edited + other.edited,
            changed: self.changed + other.changed,
            misfits: self.misfits + other.misfits,
            jobs: self.jobs + other.jobs,
            jobs_done: self.jobs_done + other.jobs_done,
            jobs_failed: self.jobs_failed + other.jobs_failed,
            jobs_cancelled: self.jobs_cancelled + other.jobs_cancelled,
            archived: self.archived + other.archived,
            noted: self.noted + other.noted,
            expired: self.expired + other.expired,
            pulls: self.pulls + other.pulls,
            collected: self.collected + other.collected,
            pills: self.pills + other.pills,
            quarantined: self.quarantined + other.quarantined,
            looked_up: self.looked_up + other.looked_up,
            refused_calls: self.refused_calls + other.refused_calls,
            continued: self.continued + other.continued,
        }
    }
}

#[derive(Debug)]
pub struct SimWorld {
    pub plan: SimPlan,
    pub mutation: SimMutation,
    pub rng: SimRng,
    pub now: u64,
    pub skew: i64,
    heap: BinaryHeap<Reverse<ScheduledEvent>>,
    orders: VecDeque<LifeOrder>,
    serial: u64,
    pub disk: SimDisk,
    pub daemon: Option<SimDaemon>,
    /// Raised by every start of a daemon.
    pub life: u64,
    pub machine: SimMachine,
    pub jobs: SimJobs,
    pub pills: Pills,
    /// The images whose contents are on this host.
    pub contents: std::collections::BTreeSet<String>,
    /// How often a start still finds that no provider offers its model.
    pub models_gone: u32,
    /// Until when the daemon can open neither a socket nor a file.
    pub descriptors_gone_until: u64,
    pub clients: SimClients,
    pub tally: Tally,
    pub trace: SimTrace,
    pub broken: Option<String>,
    /// Raised by every storm. Faults of earlier storms are ignored.
    pub storm: u64,
    pub calm: bool,
    pub die_at: Option<CommitPoint>,
    pub disk_fails: bool,
    pub disk_full: bool,
    pub store: RemoteStore,
    /// The newest event that a subscriber has read.
    pub cursor: u64,
    pub prints: Vec<crate::disk::EventPrint>,
    /// Outages of the provider.
    pub outages: SimOutages,
    /// Turns with a pending model call, and the life that made it.
    pub asked: std::collections::BTreeMap<TurnId, u64>,
    /// Every committed group, for comparisons; empty unless enabled.
    pub kept: Option<Vec<DiskGroup>>,
}

/// One transaction, or the opening of the store before a boot.
#[derive(Debug)]
pub enum DiskGroup {
    Opened,
    Writes(Vec<lodge_core::record::Write>),
}

impl SimWorld {
    pub fn new(seed: u64, mutation: SimMutation, trace: SimTrace) -> SimWorld {
        let mut rng = SimRng::new(seed);
        let plan = SimPlan::new(&mut rng).adjusted_for(mutation);
        let clients = SimClients::new(plan.callers);
        let jobs = SimJobs { max_ever: plan.max_jobs, ..SimJobs::default() };
        SimWorld {
            plan,
            mutation,
            rng,
            now: 0,
            skew: 0,
            heap: BinaryHeap::new(),
            orders: VecDeque::new(),
            serial: 0,
            disk: SimDisk::default(),
            daemon: None,
            life: 0,
            machine: SimMachine::default(),
            jobs,
            pills: Pills::default(),
            contents: std::collections::BTreeSet::new(),
            models_gone: 0,
            descriptors_gone_until: 0,
            clients,
            tally: Tally::default(),
            trace,
            broken: None,
            storm: 0,
            calm: true,
            die_at: None,
            disk_fails: false,
            disk_full: false,
            store: RemoteStore::default(),
            cursor: 0,
            prints: Vec::new(),
            outages: SimOutages::default(),
            asked: std::collections::BTreeMap::new(),
            kept: None,
        }
    }

    /// The wall clock, which may jump.
    pub fn wall(&self) -> Timestamp {
        Timestamp::from_ms(DAWN_MS + self.skew + self.now.cast_signed())
    }

    pub fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub fn after(&mut self, delay_ms: u64, next: SimEvent) {
        self.at(self.now + delay_ms, next);
    }

    pub fn at(&mut self, at: u64, next: SimEvent) {
        let serial = self.serial();
        self.heap.push(Reverse(ScheduledEvent { at, serial, next }));
    }

    /// Records the first violation. The run ends there.
    pub fn fail(&mut self, what: impl Into<String>) {
        if self.broken.is_none() {
            self.broken = Some(what.into());
        }
    }

    pub fn trace_line(&mut self, what: impl FnOnce() -> String) {
        self.trace.trace_line(self.now, what);
    }

    /// The time of the next event.
    pub fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(next)| next.at)
    }

    /// Runs the next event.
    pub fn run_next_event(&mut self) {
        if let Some(Reverse(due)) = self.heap.pop() {
            self.now = self.now.max(due.at);
            self.run_event(due.next);
        }
    }

    /// Queues an order for the daemon's process.
    pub fn order(&mut self, order: LifeOrder) {
        self.orders.push_back(order);
    }

    pub fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    pub fn next_order(&mut self) -> Option<LifeOrder> {
        self.orders.pop_front()
    }

    fn run_event(&mut self, next: SimEvent) {
        match next {
            SimEvent::Decide { life } => self.in_life(life, SimWorld::decide),
            SimEvent::LazyOver { life, wait } => self.in_life(life, |world| world.lazy_wait_ends(wait)),
            SimEvent::Rest { life, wait } => self.in_life(life, |world| world.rest(wait)),
            SimEvent::Written { life } => self.in_life(life, SimWorld::finish_write),
            SimEvent::KeeperWakes { sandbox, keeper } => self.keeper_wakes(&sandbox, keeper),
            SimEvent::Room { life } => self.in_life(life, SimWorld::rebuild_after_full_disk),
            SimEvent::Release { life } => self.in_life(life, SimWorld::release),
            SimEvent::Up { queue, event } => {
                let Some(queue) = queue.upgrade() else { return };
                match event {
                    Some(event) => queue.push(*event),
                    None => queue.close(),
                }
            }
            SimEvent::Down { sandbox, link, command } => self.keeper_runs_command(&sandbox, link, *command),
            SimEvent::ToolActs { sandbox, keeper, exec, run } => self.tool_acts(&sandbox, keeper, &exec, run),
            SimEvent::ToolEnds { sandbox, keeper, exec, run } => self.tool_ends(&sandbox, keeper, &exec, run),
            SimEvent::KeeperEnds { sandbox, keeper } => self.keeper_ends(&sandbox, keeper),
            SimEvent::RuntimeWakes { sandbox, keeper } => self.runtime_wakes(&sandbox, keeper),
            SimEvent::Archive { life, stage } => self.in_life(life, |world| world.run_archive(stage)),
            SimEvent::Client { caller, turn } => self.client_acts(caller, turn),
            SimEvent::DaemonStarts => self.daemon_starts(),
            SimEvent::Fault { storm } => self.fault(storm),
        }
    }

    fn in_life(&mut self, life: u64, then: impl FnOnce(&mut SimWorld)) {
        if self.daemon.as_ref().is_some_and(|daemon| daemon.life == life) {
            then(self);
        }
    }
}
