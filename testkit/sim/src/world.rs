//! Everything that is, and the order in which it happens.
//!
//! Owns: time, chance, and the queue of what is to come. Each happening is one atomic moment; what it leads to comes
//! later, at a moment that the seed chooses.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use lodge_core::{AgentId, SandboxId, Timestamp, TurnId};
use lodge_engine::{AgentSeen, Seen};
use lodge_exec::ExecName;

use crate::client::SimClients;
use crate::daemon::SimDaemon;
use crate::disk::SimDisk;
use crate::jobs::{ArchiveStage, SimJobs, SimRead};
use crate::keeper::{KeeperMessage, SimCommand, SimMachine};
use crate::pills::Pills;
use crate::plan::{CommitPoint, Mutation, SimPlan};
use crate::rng::SimRng;
use crate::store::RemoteStore;
use crate::trace::SimTrace;

/// The wall clock at the beginning.
const DAWN_MS: i64 = 1_700_000_000_000;

/// One thing that is to happen.
#[derive(Debug)]
pub enum SimEvent {
    /// The engine takes what waits.
    Decide {
        life: u64,
    },
    /// The writer has waited long enough for company.
    LazyOver {
        life: u64,
        wait: u64,
    },
    /// The writer has had nothing to do for a while.
    Rest {
        life: u64,
        wait: u64,
    },
    /// The disk is done with a group.
    Written {
        life: u64,
    },
    /// The pause before a revival is over.
    Revival {
        life: u64,
        agent: AgentId,
        run: u32,
    },
    /// The pause after a failure is over.
    Retry {
        life: u64,
        agent: AgentId,
        run: u32,
    },
    /// An agent that the engine does not hold is read, and what was read arrives.
    LookUp {
        life: u64,
        agent: AgentId,
        ask: u64,
    },
    LookedUp {
        life: u64,
        seen: Box<AgentSeen>,
    },
    /// A look at whether an agent gives signs of life.
    Look {
        life: u64,
        agent: AgentId,
        pulse: u64,
    },
    KeeperWakes {
        sandbox: SandboxId,
        keeper: u64,
    },
    /// There is room on the disk again.
    Room {
        life: u64,
    },
    /// What waited for the group goes out.
    Release {
        life: u64,
    },
    /// An agent's task goes on with what it was busy with.
    Go {
        life: u64,
        agent: AgentId,
        busy: u64,
    },
    ProbeOver {
        life: u64,
        agent: AgentId,
        link: u64,
        probe: u32,
    },
    /// A command reaches a keeper.
    Down {
        sandbox: SandboxId,
        link: u64,
        command: Box<SimCommand>,
    },
    /// Something that a keeper said reaches the agent's task.
    Up {
        life: u64,
        agent: AgentId,
        link: u64,
        told: Box<KeeperMessage>,
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
    ModelGoes {
        life: u64,
        call: u64,
    },
    /// A pull for an agent ends.
    Pull {
        life: u64,
        agent: AgentId,
        ask: u64,
    },
    /// The archive's task goes on.
    Archive {
        life: u64,
        stage: ArchiveStage,
    },
    /// Something is read for a model.
    JobReads {
        life: u64,
        reading: Box<SimRead>,
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

/// What a run amounted to.
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
    pub told: u64,
    pub faults: u64,
    pub rebuilt: u64,
    pub halts: u64,
    /// How often the store could not be reached.
    pub away: u64,
    pub revived: u64,
    pub ended: u64,
    pub retried: u64,
    pub updated: u64,
    /// Turns that found no slot.
    pub waited: u64,
    /// Whole sessions that were changed, and changes that came too late.
    pub edited: u64,
    pub changed: u64,
    /// Answers that did not fit.
    pub misfits: u64,
    /// Jobs, how they ended, and those that were archived, told of in a note, or went as the retention says.
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
    /// Deaths by pills, and work that was set aside.
    pub pills: u64,
    pub quarantined: u64,
    /// Agents at rest that somebody named.
    pub looked_up: u64,
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
            told: self.told + other.told,
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
        }
    }
}

#[derive(Debug)]
pub struct SimWorld {
    pub plan: SimPlan,
    pub mutation: Mutation,
    pub rng: SimRng,
    pub now: u64,
    pub skew: i64,
    heap: BinaryHeap<Reverse<ScheduledEvent>>,
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
    pub clients: SimClients,
    pub tally: Tally,
    pub trace: SimTrace,
    pub broken: Option<String>,
    /// Raised by every storm; faults of an earlier one do not come any more.
    pub storm: u64,
    pub calm: bool,
    pub die_at: Option<CommitPoint>,
    pub disk_fails: bool,
    pub disk_full: bool,
    pub store: RemoteStore,
    /// The newest event that a subscriber has read.
    pub cursor: u64,
    pub prints: Vec<crate::disk::EventPrint>,
    /// Turns whose model call is with the provider, in which life.
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
    pub fn new(seed: u64, mutation: Mutation, trace: SimTrace) -> SimWorld {
        let mut rng = SimRng::new(seed);
        let plan = SimPlan::new(&mut rng).where_it_shows(mutation);
        let clients = SimClients::new(plan.callers);
        let jobs = SimJobs { max_ever: plan.max_jobs, ..SimJobs::default() };
        SimWorld {
            plan,
            mutation,
            rng,
            now: 0,
            skew: 0,
            heap: BinaryHeap::new(),
            serial: 0,
            disk: SimDisk::default(),
            daemon: None,
            life: 0,
            machine: SimMachine::default(),
            jobs,
            pills: Pills::default(),
            contents: std::collections::BTreeSet::new(),
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

    /// Remembers the first law that did not hold. The run ends there.
    pub fn fail(&mut self, what: impl Into<String>) {
        if self.broken.is_none() {
            self.broken = Some(what.into());
        }
    }

    pub fn say(&mut self, what: impl FnOnce() -> String) {
        self.trace.say(self.now, what);
    }

    /// One moment. False: nothing is to come.
    pub fn tick(&mut self) -> bool {
        let Some(Reverse(due)) = self.heap.pop() else { return false };
        self.now = due.at;
        self.happen(due.next);
        true
    }

    fn happen(&mut self, next: SimEvent) {
        match next {
            SimEvent::Decide { life } => self.in_life(life, SimWorld::decide),
            SimEvent::LazyOver { life, wait } => self.in_life(life, |world| world.lazy_over(wait)),
            SimEvent::Rest { life, wait } => self.in_life(life, |world| world.rest(wait)),
            SimEvent::Written { life } => self.in_life(life, SimWorld::written),
            SimEvent::Revival { life, agent, run } => {
                self.in_life(life, |world| world.tell(Seen::Agent(AgentSeen::RevivalDue { agent, run })));
            }
            SimEvent::Retry { life, agent, run } => {
                self.in_life(life, |world| world.tell(Seen::Agent(AgentSeen::RetryDue { agent, run })));
            }
            SimEvent::LookUp { life, agent, ask } => self.in_life(life, |world| world.look_up(agent, ask)),
            SimEvent::LookedUp { life, seen } => self.in_life(life, |world| world.tell(Seen::Agent(*seen))),
            SimEvent::Look { life, agent, pulse } => self.in_life(life, |world| world.look(&agent, pulse)),
            SimEvent::KeeperWakes { sandbox, keeper } => self.keeper_wakes(&sandbox, keeper),
            SimEvent::Room { life } => self.in_life(life, SimWorld::room),
            SimEvent::Release { life } => self.in_life(life, SimWorld::release),
            SimEvent::Go { life, agent, busy } => self.in_life(life, |world| world.run_actor(&agent, busy)),
            SimEvent::ProbeOver { life, agent, link, probe } => {
                self.in_life(life, |world| world.probe_over(&agent, link, probe));
            }
            SimEvent::Up { life, agent, link, told } => {
                self.in_life(life, |world| world.actor_hears(&agent, link, *told));
            }
            SimEvent::Down { sandbox, link, command } => self.keeper_obeys(&sandbox, link, *command),
            SimEvent::ToolActs { sandbox, keeper, exec, run } => self.tool_acts(&sandbox, keeper, &exec, run),
            SimEvent::ToolEnds { sandbox, keeper, exec, run } => self.tool_ends(&sandbox, keeper, &exec, run),
            SimEvent::KeeperEnds { sandbox, keeper } => self.keeper_ends(&sandbox, keeper),
            SimEvent::RuntimeWakes { sandbox, keeper } => self.runtime_wakes(&sandbox, keeper),
            SimEvent::ModelGoes { life, call } => self.in_life(life, |world| world.run_model_call(call)),
            SimEvent::Pull { life, agent, ask } => self.in_life(life, |world| world.finish_pull(&agent, ask)),
            SimEvent::Archive { life, stage } => self.in_life(life, |world| world.run_archive(stage)),
            SimEvent::JobReads { life, reading } => self.in_life(life, |world| world.job_reads(*reading)),
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
