//! A run: storms and calms until enough steps were made or a law was violated.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use lodge_core::agent::AgentState;
use lodge_core::lineage::{LineageState, Policy};
use lodge_core::{AgentId, TurnId};
use lodge_daemon::config::Config;

use crate::client::SimRequest;
use crate::life::{LifeOrder, Pause, SimLife};
use crate::plan::SimMutation;
use crate::trace::SimTrace;
use crate::world::{SimWorld, Tally};

/// Engine steps between two calms.
const STORM_STEPS: u64 = 1_500;
/// The most events in a storm without a step of the engine.
const IDLE_MOMENTS_MAX: u64 = 200_000;
/// Without faults, some open work has to end within this time. Longer than every wait.
const CALM_MS_MAX: u64 = 3_600_000;
/// The most events within which some work has to end.
const CALM_MOMENTS_MAX: u64 = 400_000;
/// A daemon without activity for this long is idle. Longer than every pause before a retry.
const IDLE_MS: u64 = 600_000;

/// A violated law, and how to reproduce it.
#[derive(Debug, Clone)]
pub struct SimFailure {
    pub seed: u64,
    pub step: u64,
    pub what: String,
    /// The last lines of the trace.
    pub trace: Vec<String>,
}

impl std::fmt::Display for SimFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        write!(f, "seed {} step {}: {}", self.seed, self.step, self.what)
    }
}

/// Runs one seed for about this many steps of the engine. A failed run is repeated with a trace.
pub fn run(seed: u64, steps: u64, mutation: SimMutation, trace: usize) -> Result<Tally, Box<SimFailure>> {
    let mut first = Simulation::new(seed, mutation, SimTrace::new(0));
    let Err(found) = first.storms(steps) else { return Ok(first.world().tally) };
    let mut again = Simulation::new(seed, mutation, SimTrace::new(trace));
    let what = again.storms(steps).err();
    let world = again.world();
    Err(Box::new(SimFailure {
        seed,
        step: world.tally.steps,
        what: what.unwrap_or_else(|| format!("it does not fail when run again: {found}")),
        trace: world.trace.lines().map(str::to_owned).collect(),
    }))
}

/// A world, and the daemon that lives in it.
#[derive(Debug)]
pub struct Simulation {
    // Dropped first: its drop changes the world.
    life: Option<SimLife>,
    world: Arc<Mutex<SimWorld>>,
    config: Arc<Config>,
}

impl Simulation {
    pub fn new(seed: u64, mutation: SimMutation, trace: SimTrace) -> Simulation {
        catch_task_panics();
        TASK_PANIC.take();
        let arguments = lodge_daemon::config::command().get_matches_from(["lodged", "--data-dir", "/sim"]);
        let config = Config::resolve(&arguments, &|_| None)
            .unwrap_or_else(|error| panic!("the settings have defaults: {error}"));
        let world = Arc::new(Mutex::new(SimWorld::new(seed, mutation, trace)));
        Simulation { life: None, world, config: Arc::new(config) }
    }

    pub fn world(&self) -> MutexGuard<'_, SimWorld> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs storms and calms. Returns the first violation. A panic is a violation.
    pub fn storms(&mut self, steps: u64) -> Result<(), String> {
        while self.world().tally.steps < steps && self.world().broken.is_none() {
            let until = (self.world().tally.steps + STORM_STEPS).min(steps);
            let round = catch_unwind(AssertUnwindSafe(|| self.round(until)));
            if let Err(panic) = round {
                TASK_PANIC.take();
                let words = panic.downcast_ref::<String>().cloned();
                let words = words.or_else(|| panic.downcast_ref::<&str>().map(|words| (*words).to_owned()));
                self.world().fail(format!("panic: {}", words.unwrap_or_default()));
            }
        }
        match self.world().broken.take() {
            None => Ok(()),
            Some(what) => Err(what),
        }
    }

    /// Runs one event. False: there is none.
    pub fn tick(&mut self) -> bool {
        self.apply_orders();
        let (next, now) = {
            let world = self.world();
            (world.next_at(), world.now)
        };
        let Some(life) = &mut self.life else {
            self.world().run_next_event();
            return next.is_some();
        };
        let pause = life.run_until(next.unwrap_or(now + IDLE_MS));
        let now = life.now();
        let mut world = self.world();
        world.now = world.now.max(now);
        if let Some(panic) = TASK_PANIC.take() {
            world.fail(format!("a task panicked: {panic}"));
        }
        match pause {
            Pause::Inputs(inputs) => inputs.into_iter().for_each(|input| world.observe(input)),
            Pause::Attention => {}
            Pause::Time if next.is_none() => return false,
            Pause::Time => world.run_next_event(),
        }
        true
    }

    /// Applies the world's orders to the daemon's process.
    fn apply_orders(&mut self) {
        loop {
            let Some(order) = self.world().next_order() else { return };
            match order {
                LifeOrder::Start => self.life = Some(SimLife::new(&self.world, &self.config)),
                LifeOrder::Kill => self.life = None,
                LifeOrder::Reply { ticket, reply } => self.world().answer(ticket, reply),
                LifeOrder::Die(why) => self.world().daemon_dies(why),
                order => {
                    if let Some(life) = &mut self.life {
                        life.apply_order(order);
                    }
                }
            }
        }
    }

    fn round(&mut self, until: u64) {
        self.world().storm_begins();
        let mut idle = (self.world().tally.steps, 0);
        loop {
            let (steps, is_broken) = {
                let world = self.world();
                (world.tally.steps, world.broken.is_some())
            };
            if steps >= until || is_broken || !self.tick() {
                break;
            }
            idle = if idle.0 == steps { (idle.0, idle.1 + 1) } else { (steps, 0) };
            if idle.1 > IDLE_MOMENTS_MAX {
                self.world().fail("a storm goes on, and nothing reaches the engine");
            }
        }
        self.world().stop_faults();
        let harmed = self.world().harmed_turns();
        self.send(harmed.into_iter().map(SimRequest::Interrupt).collect());
        self.run_until_idle();
        let errands = self.world().last_errands();
        if self.world().broken.is_some() || errands.is_empty() {
            return;
        }
        self.send(errands);
        self.run_until_idle();
        self.world().check_all_ended();
    }

    /// Sends these requests before the callers rest.
    fn send(&mut self, errands: Vec<SimRequest>) {
        let mut world = self.world();
        world.clients.errands = errands;
        let idle = (0..world.clients.callers.len()).filter(|at| world.clients.callers[*at].asks.is_none());
        for caller in idle.collect::<Vec<_>>() {
            world.caller_later(caller, 0);
        }
    }

    /// Runs until all work ended. Work that is open after a long time without progress is stuck.
    fn run_until_idle(&mut self) {
        let mut moments;
        loop {
            let (open, until) = {
                let world = self.world();
                (open_work(&world), world.now + CALM_MS_MAX)
            };
            moments = 0;
            loop {
                let is_over = {
                    let world = self.world();
                    world.broken.is_some() || world.now >= until
                };
                if is_over || moments >= CALM_MOMENTS_MAX || !self.tick() {
                    break;
                }
                moments += 1;
            }
            let world = self.world();
            let is_timed_out = moments == CALM_MOMENTS_MAX || world.now >= until;
            // With one slot, hundreds of turns run in sequence and take longer.
            if world.broken.is_some() || !is_timed_out || open_work(&world) >= open {
                break;
            }
        }
        let is_idle = self.life.as_ref().is_none_or(SimLife::is_idle);
        let mut world = self.world();
        if world.broken.is_none() {
            world.check_rest();
        }
        if !is_idle {
            world.fail("at rest, and the daemon calls a model or pulls an image");
        }
        if moments == CALM_MOMENTS_MAX {
            world.fail("it does not come to rest");
        }
    }
}

impl SimWorld {
    /// Live turns that a runtime lied about: they need not end by themselves.
    fn harmed_turns(&self) -> Vec<TurnId> {
        let live = self.disk.live_turns().map(|turn| turn.row.id.clone());
        live.filter(|turn| self.clients.harmed.contains(turn)).collect()
    }

    /// Starts agents that failed or stopped, so that every turn and every job that waits for one can end.
    fn last_errands(&mut self) -> Vec<SimRequest> {
        let turns = self.disk.live_turns().map(|turn| turn.row.agent.clone());
        let jobs = self.disk.open_jobs().map(|row| row.agent.clone());
        let waiting: std::collections::BTreeSet<_> = turns.chain(jobs).collect();
        let releases = self.releases();
        let errands = waiting.into_iter().map(|agent| match self.disk.lineage(&agent) {
            Some(row) if row.state == LineageState::AskPending => {
                let (lineage, policy) = (row.id.clone(), Policy::Revive);
                SimRequest::Settle { agent, lineage, policy }
            }
            Some(_) | None if is_going(self, &agent) => SimRequest::Remove(agent),
            Some(_) | None => SimRequest::Start(agent),
        });
        errands.chain(releases).collect()
    }

    /// Checks that all work ended, with all agents running and all quarantined work decided.
    fn check_all_ended(&mut self) {
        let aside = self.disk.quarantine().next().cloned();
        if let Some(row) = aside {
            self.fail(format!("an operator decided on everything, and {row:?} is set aside"));
        }
        let open = self.disk.live_turns().next().map(|turn| turn.row.id.clone());
        if let Some(turn) = open {
            self.fail(format!("every agent runs, and {turn} does not end"));
        }
        let open = self.disk.open_jobs().next().map(|row| row.id.clone());
        if let Some(job) = open {
            self.fail(format!("every agent runs, and {job} does not end"));
        }
    }
}

fn is_going(world: &SimWorld, agent: &AgentId) -> bool {
    world.disk.agent(agent).is_some_and(|row| row.state == AgentState::Removing)
}

/// Turns and jobs that have not ended.
fn open_work(world: &SimWorld) -> usize {
    world.disk.live_turns().count() + world.disk.open_jobs().count()
}

thread_local! {
    /// The panic of a task on this thread. Its runtime would continue without the task.
    static TASK_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Records all panics, including those that a runtime catches.
fn catch_task_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            TASK_PANIC.set(Some(info.to_string()));
            before(info);
        }));
    });
}
