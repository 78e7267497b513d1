//! A run: storms and calms until enough steps were made, or a law did not hold.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lodge_core::AgentId;
use lodge_core::agent::AgentState;
use lodge_core::lineage::{LineageState, Policy};

use crate::client::SimRequest;
use crate::plan::Mutation;
use crate::trace::SimTrace;
use crate::world::{SimWorld, Tally};

/// Engine steps between two calms.
const STORM_STEPS: u64 = 1_500;
/// Moments in a storm without a step of the engine.
const IDLE_MOMENTS_MAX: u64 = 200_000;
/// How long no work may end while some is open, once no fault is injected any more: longer than any wait there is.
const CALM_MS_MAX: u64 = 3_600_000;
/// Moments within which some work has to end.
const CALM_MOMENTS_MAX: u64 = 400_000;

/// A law that did not hold, and how to see it again.
#[derive(Debug, Clone)]
pub struct SimFailure {
    pub seed: u64,
    pub step: u64,
    pub what: String,
    /// The last things that happened.
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

/// Runs one seed for about so many steps of the engine. A failure is run again to tell how it came about.
pub fn run(seed: u64, steps: u64, mutation: Mutation, trace: usize) -> Result<Tally, Box<SimFailure>> {
    let mut world = SimWorld::new(seed, mutation, SimTrace::new(0));
    if storms(&mut world, steps).is_ok() {
        return Ok(world.tally);
    }
    let mut again = SimWorld::new(seed, mutation, SimTrace::new(trace));
    let what = storms(&mut again, steps).err();
    Err(Box::new(SimFailure {
        seed,
        step: again.tally.steps,
        what: what.unwrap_or_else(|| format!("it does not fail when run again: {:?}", world.broken)),
        trace: again.trace.lines().map(str::to_owned).collect(),
    }))
}

/// Storms and calms, and what went wrong first. A panic of the engine is a law that did not hold.
pub fn storms(world: &mut SimWorld, steps: u64) -> Result<(), String> {
    while world.tally.steps < steps && world.broken.is_none() {
        let until = (world.tally.steps + STORM_STEPS).min(steps);
        let round = catch_unwind(AssertUnwindSafe(|| round(world, until)));
        if let Err(panic) = round {
            let words = panic.downcast_ref::<String>().cloned();
            let words = words.or_else(|| panic.downcast_ref::<&str>().map(|words| (*words).to_owned()));
            world.fail(format!("panic: {}", words.unwrap_or_default()));
        }
    }
    match world.broken.take() {
        None => Ok(()),
        Some(what) => Err(what),
    }
}

fn round(world: &mut SimWorld, until: u64) {
    world.storm_begins();
    let mut idle = (world.tally.steps, 0);
    while world.tally.steps < until && world.broken.is_none() && world.tick() {
        idle = if idle.0 == world.tally.steps { (idle.0, idle.1 + 1) } else { (world.tally.steps, 0) };
        if idle.1 > IDLE_MOMENTS_MAX {
            world.fail("a storm goes on, and nothing reaches the engine");
        }
    }
    world.calm_down();
    let harmed = world.disk.live_turns().map(|turn| turn.row.id.clone());
    let harmed = harmed.filter(|turn| world.clients.harmed.contains(turn));
    let errands = harmed.map(SimRequest::Interrupt).collect();
    send(world, errands);
    come_to_rest(world);
    // Agents that failed or stopped are started, so that every turn and every job that waits for one can end.
    let turns = world.disk.live_turns().map(|turn| turn.row.agent.clone());
    let jobs = world.disk.open_jobs().map(|row| row.agent.clone());
    let waiting: std::collections::BTreeSet<_> = turns.chain(jobs).collect();
    let releases = world.releases();
    if world.broken.is_some() || waiting.is_empty() && releases.is_empty() {
        return;
    }
    let errands = waiting.into_iter().map(|agent| match world.disk.lineage(&agent) {
        Some(row) if row.state == LineageState::AskPending => {
            let (lineage, policy) = (row.id.clone(), Policy::Revive);
            SimRequest::Settle { agent, lineage, policy }
        }
        Some(_) | None if is_going(world, &agent) => SimRequest::Remove(agent),
        Some(_) | None => SimRequest::Start(agent),
    });
    let errands = errands.chain(releases).collect();
    send(world, errands);
    come_to_rest(world);
    let aside = world.disk.quarantine().next().cloned();
    if let Some(row) = aside {
        world.fail(format!("an operator decided on everything, and {row:?} is set aside"));
    }
    let open = world.disk.live_turns().next().map(|turn| turn.row.id.clone());
    if let Some(turn) = open {
        world.fail(format!("every agent runs, and {turn} does not end"));
    }
    let open = world.disk.open_jobs().next().map(|row| row.id.clone());
    if let Some(job) = open {
        world.fail(format!("every agent runs, and {job} does not end"));
    }
}

fn is_going(world: &SimWorld, agent: &AgentId) -> bool {
    world.disk.agent(agent).is_some_and(|row| row.state == AgentState::Removing)
}

/// Lets callers do something certain before they rest.
fn send(world: &mut SimWorld, errands: Vec<SimRequest>) {
    world.clients.errands = errands;
    let idle = (0..world.clients.callers.len()).filter(|at| world.clients.callers[*at].asks.is_none());
    for caller in idle.collect::<Vec<_>>() {
        world.caller_later(caller, 0);
    }
}

/// Lets all pending work happen. Work that waits for a long time in which no other work ended will never continue.
fn come_to_rest(world: &mut SimWorld) {
    let mut moments;
    loop {
        let (open, until) = (open_work(world), world.now + CALM_MS_MAX);
        moments = 0;
        while world.broken.is_none() && moments < CALM_MOMENTS_MAX && world.now < until && world.tick() {
            moments += 1;
        }
        let is_timed_out = moments == CALM_MOMENTS_MAX || world.now >= until;
        // With one slot, hundreds of turns take longer than that, one after the other.
        if world.broken.is_some() || !is_timed_out || open_work(world) >= open {
            break;
        }
    }
    if world.broken.is_none() {
        world.check_rest();
    }
    if moments == CALM_MOMENTS_MAX {
        world.fail("it does not come to rest");
    }
}

/// Turns and jobs that have not ended.
fn open_work(world: &SimWorld) -> usize {
    world.disk.live_turns().count() + world.disk.open_jobs().count()
}
