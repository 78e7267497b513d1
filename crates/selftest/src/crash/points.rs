//! Kills at named points: the daemon ends itself where `LODGED_CRASH_AT` says, a keeper where `LODGED_KEEPER_CRASH_AT`
//! does.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use lodge_proto::client::ClientError;
use lodge_proto::{AgentStopParams, StopAgent};

use super::CrashSetup;
use super::job_plan::JobKind;
use super::plan::TurnShape;
use super::report::{BrokenPromise, CrashReport};
use super::strike::KeeperDeath;
use super::world::{CrashWorld, LOOK, through};
use crate::clock::now_ms;
use crate::lodge::PATIENCE;
use crate::processes;
use crate::trouble::{Trouble, refused};

const AGENTS: usize = 3;
/// Between two messages to a daemon that should die of them.
const SEND_EVERY: Duration = Duration::from_millis(40);
/// The same of jobs, which end later.
const SUBMIT_EVERY: Duration = Duration::from_millis(120);
/// Messages to a keeper that should die of their tools.
const TOOLS_MAX: u32 = 8;
/// Where a keeper dies of one tool, whose end it has written down.
const RECORDED: &str = "keeper.after_exit_record";

/// A named point, and what makes a process pass it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrashPoint {
    pub name: &'static str,
    act: PointTrigger,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PointTrigger {
    /// Nothing but the daemon's start, with agents alive.
    Boot,
    /// Turns.
    Work,
    /// A new agent.
    Start,
    /// A new agent that comes from a registry.
    Pull,
    /// The end of an agent.
    Stop,
    /// A change of a session or a token.
    Change,
    /// Jobs.
    Job,
    /// A tool, under a keeper that was started for it.
    Tool,
}

const fn point(name: &'static str, act: PointTrigger) -> CrashPoint {
    CrashPoint { name, act }
}

/// Every point that the daemon knows, and every one that a keeper knows, in their order.
pub const POINTS: [CrashPoint; 37] = [
    point("after_lock", PointTrigger::Boot),
    point("after_load", PointTrigger::Boot),
    point("during_adoption", PointTrigger::Boot),
    point("after_adoption", PointTrigger::Boot),
    point("before_commit", PointTrigger::Work),
    point("after_accept", PointTrigger::Work),
    point("after_intent", PointTrigger::Work),
    point("during_effect", PointTrigger::Work),
    point("before_outcome", PointTrigger::Work),
    point("after_outcome", PointTrigger::Work),
    point("before_keeping", PointTrigger::Work),
    point("after_keeping", PointTrigger::Work),
    point("during_model", PointTrigger::Work),
    point("before_answer", PointTrigger::Work),
    point("after_answer", PointTrigger::Work),
    point("during_summary", PointTrigger::Work),
    point("before_summary", PointTrigger::Work),
    point("after_compaction", PointTrigger::Work),
    point("after_change", PointTrigger::Change),
    point("after_job_submit", PointTrigger::Job),
    point("before_job_start", PointTrigger::Job),
    point("after_job_start", PointTrigger::Job),
    point("before_job_end", PointTrigger::Job),
    point("after_job_end", PointTrigger::Job),
    point("before_archive", PointTrigger::Job),
    point("after_archive", PointTrigger::Job),
    point("after_release", PointTrigger::Job),
    point("before_job_forget", PointTrigger::Job),
    point("after_image_kept", PointTrigger::Start),
    point("during_pull", PointTrigger::Pull),
    point("after_pulled", PointTrigger::Pull),
    point("during_start", PointTrigger::Start),
    point("during_stop", PointTrigger::Stop),
    point("keeper.after_claim", PointTrigger::Tool),
    point("keeper.after_spawn", PointTrigger::Tool),
    point("keeper.before_exit_record", PointTrigger::Tool),
    point("keeper.after_exit_record", PointTrigger::Tool),
];

/// Dies at every named point, `hits` times each. A point without a hit is a broken promise.
pub async fn named_points(setup: &CrashSetup, hits: u64) -> CrashReport {
    through(setup, AGENTS, async |world| {
        for _ in 0..hits {
            for point in POINTS {
                world.die_at(point).await?;
            }
        }
        for CrashPoint { name, .. } in POINTS {
            if world.report.points.get(name).copied().unwrap_or(0) < hits {
                world.report.add(BrokenPromise::Wrong, format!("no process died at {name} {hits} times"));
            }
        }
        Ok(())
    })
    .await
    .unwrap_or_else(CrashReport::from)
}

/// Dies at one point, `times` times.
pub async fn die_at(setup: &CrashSetup, name: &str, times: u64) -> CrashReport {
    through(setup, AGENTS, async |world| {
        for point in POINTS.iter().filter(|point| point.name == name) {
            for _ in 0..times {
                world.die_at(*point).await?;
            }
        }
        Ok(())
    })
    .await
    .unwrap_or_else(CrashReport::from)
}

/// The same, with jobs as all there is to die of.
pub async fn jobs_die_at(setup: &CrashSetup, name: &'static str, times: u64) -> CrashReport {
    through(setup, AGENTS, async |world| {
        for _ in 0..times {
            world.die_at(point(name, PointTrigger::Job)).await?;
        }
        Ok(())
    })
    .await
    .unwrap_or_else(CrashReport::from)
}

impl CrashWorld {
    /// Ends what passes a point, lets the next one die there, and sees to it that one lives.
    pub async fn die_at(&mut self, CrashPoint { name, act }: CrashPoint) -> Result<(), Trouble> {
        // Every agent has its keeper, so that no start of another one passes the point first.
        self.check_adoption().await?;
        let extra = match act {
            PointTrigger::Tool => return self.keeper_dies_at(name).await,
            PointTrigger::Stop => Some(self.extra_agent().await?),
            PointTrigger::Change => {
                self.begin_conversation().await?;
                None
            }
            PointTrigger::Pull => {
                self.extra = Some(self.pulled_params().await?);
                None
            }
            PointTrigger::Boot | PointTrigger::Work | PointTrigger::Start | PointTrigger::Job => None,
        };
        let nth = match (name, act) {
            ("during_adoption" | "after_adoption", _) => {
                let sure = self.rested_agents().await?;
                1 + self.rng.below(sure)
            }
            ("before_commit", _) => 2 + self.rng.below(8),
            (_, PointTrigger::Work | PointTrigger::Job) => 1 + self.rng.below(3),
            (
                _,
                PointTrigger::Boot
                | PointTrigger::Start
                | PointTrigger::Pull
                | PointTrigger::Stop
                | PointTrigger::Change
                | PointTrigger::Tool,
            ) => 1,
        };
        self.send_new();
        self.gather().await;
        self.kill("to arm a point")?;
        self.lodge.set_env("LODGED_CRASH_AT", &format!("{name}:{nth}"));
        self.lodge.spawn()?;
        let died = match act {
            PointTrigger::Boot => self.lodge.wait_ended(PATIENCE).await?,
            PointTrigger::Work => self.work_to_death().await?,
            PointTrigger::Start => {
                self.extra = Some(self.agent_params()?);
                self.start_to_death().await?
            }
            PointTrigger::Pull => self.start_to_death().await?,
            PointTrigger::Stop => self.stop_to_death(extra.as_deref()).await?,
            PointTrigger::Change => self.change_to_death().await?,
            PointTrigger::Job => self.jobs_to_death().await?,
            PointTrigger::Tool => None,
        };
        self.lodge.unset_env("LODGED_CRASH_AT");
        self.gather().await;
        if died.is_some_and(was_killed) {
            self.note_kill("daemon");
            *self.report.points.entry(name.to_owned()).or_default() += 1;
        } else {
            self.report
                .add(BrokenPromise::Wrong, format!("the daemon did not die at {name}:{nth}, but: {died:?}"));
            self.lodge.kill9()?;
        }
        self.start_again().await?;
        match act {
            PointTrigger::Boot | PointTrigger::Work | PointTrigger::Job | PointTrigger::Tool => Ok(()),
            PointTrigger::Start | PointTrigger::Pull => self.check_started().await,
            PointTrigger::Stop => self.check_stopped(extra.as_deref()).await,
            PointTrigger::Change => self.check_changed().await,
        }
    }

    /// Ends a daemon and a keeper, lets the next keeper die of a tool, and waits for the one after it.
    async fn keeper_dies_at(&mut self, name: &str) -> Result<(), Trouble> {
        let at = self.rested_agent().await?;
        // With nothing left to do, the keeper lives until it is seen and sent its death.
        self.settle().await?;
        self.kill("to arm a point")?;
        self.kill_keeper(at).await;
        self.lodge.set_env("LODGED_KEEPER_CRASH_AT", name);
        self.start_again().await?;
        self.lodge.unset_env("LODGED_KEEPER_CRASH_AT");
        // With a single tool at work, it is the one whose end is known.
        let tools = if name == RECORDED { 1 } else { TOOLS_MAX };
        let fall = self.send_to_death(at, tools).await;
        self.gather().await;
        match fall {
            Some(_) if name == RECORDED => self.note_keeper(at),
            Some(fall) => self.note_fall(fall),
            None => self.report.add(BrokenPromise::Wrong, format!("no keeper died at {name}")),
        }
        *self.report.points.entry(name.to_owned()).or_default() += u64::from(fall.is_some());
        self.check_adoption().await
    }

    /// Sends tools to an agent until its keeper is dead; returns the time of death.
    async fn send_to_death(&mut self, at: usize, tools: u32) -> Option<KeeperDeath> {
        let (mut from_ms, until) = (now_ms(), Instant::now() + PATIENCE);
        let mut next = Instant::now();
        let mut left = tools;
        while Instant::now() < until {
            let looked_ms = now_ms();
            let agent = &self.agents[at];
            if processes::keeper(&self.lodge.home(), &agent.sandbox) != Some(agent.keeper) {
                return Some(KeeperDeath { agent: at, from_ms, to_ms: now_ms() });
            }
            from_ms = looked_ms;
            if left > 0 && Instant::now() >= next {
                if self.rng.percent(50) {
                    self.send_to(at, TurnShape::Tool);
                } else {
                    self.submit_to(at, JobKind::Brief);
                }
                (left, next) = (left - 1, Instant::now() + SEND_EVERY);
            }
            tokio::time::sleep(LOOK).await;
        }
        None
    }

    /// An agent that has finished a turn since anything of it died.
    async fn rested_agent(&mut self) -> Result<usize, Trouble> {
        let at = usize::try_from(self.rng.below(self.agents.len() as u64)).unwrap_or(0);
        if self.deaths(at) > 0 {
            self.send_to(at, TurnShape::Plain);
            self.settle().await?;
            self.follower.wait_for(0, PATIENCE, self.agents[at].has_finished()).await;
        }
        Ok(at)
    }

    /// How many agents a daemon that starts now finds as they were.
    async fn rested_agents(&mut self) -> Result<u64, Trouble> {
        self.rested_agent().await?;
        Ok((0..self.agents.len()).filter(|at| self.deaths(*at) == 0).count() as u64)
    }

    /// Sends messages of all kinds until the daemon is dead; returns its exit status.
    async fn work_to_death(&mut self) -> Result<Option<ExitStatus>, Trouble> {
        let until = Instant::now() + PATIENCE;
        let mut shapes =
            [TurnShape::Chain, TurnShape::Stream, TurnShape::Pair, TurnShape::Tool].into_iter().cycle();
        loop {
            // A daemon that dies before it answers has died of work left over from the one before.
            let died = self.lodge.wait_ended(SEND_EVERY).await?;
            if died.is_some() || Instant::now() >= until {
                return Ok(died);
            }
            if let Some(shape) = shapes.next() {
                self.send_shape(shape);
            }
        }
    }

    /// Submits jobs of all kinds until the daemon is dead; returns its exit status.
    async fn jobs_to_death(&mut self) -> Result<Option<ExitStatus>, Trouble> {
        let until = Instant::now() + PATIENCE;
        loop {
            let died = self.lodge.wait_ended(SUBMIT_EVERY).await?;
            if died.is_some() || Instant::now() >= until {
                return Ok(died);
            }
            self.submit_new();
        }
    }

    async fn start_to_death(&mut self) -> Result<Option<ExitStatus>, Trouble> {
        self.lodge.wait_ready().await?;
        let Some(params) = &self.extra else { return Ok(None) };
        let created = self.create_agent(params).await;
        let died = self.lodge.wait_ended(PATIENCE).await?;
        if let Err(error @ ClientError::Refused(_)) = created {
            self.report.add(BrokenPromise::Wrong, format!("an agent was refused: {error}"));
        }
        Ok(died)
    }

    /// The agent whose start was interrupted is one agent with one keeper, at any number of requests.
    async fn check_started(&mut self) -> Result<(), Trouble> {
        let Some(params) = self.extra.take() else { return Ok(()) };
        match self.create_agent(&params).await {
            Ok(view) => {
                self.wait_ready(&view.id).await?;
                self.expect_keepers(self.agents.len() + 1).await;
                self.remove_agent(&view.id).await?;
            }
            Err(error) => {
                self.report.add(BrokenPromise::Lost, format!("the agent cannot be created again: {error}"))
            }
        }
        self.expect_keepers(self.agents.len()).await;
        Ok(())
    }

    async fn stop_to_death(&mut self, extra: Option<&str>) -> Result<Option<ExitStatus>, Trouble> {
        self.lodge.wait_ready().await?;
        let Some(extra) = extra else { return Ok(None) };
        self.wait_ready(extra).await?;
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        let named = AgentStopParams { agent: extra.to_owned(), ..AgentStopParams::default() };
        if let Ok(view) = client.call::<StopAgent>(&named).await {
            self.report
                .add(BrokenPromise::Wrong, format!("a stop was answered before it was done: {view:?}"));
        }
        self.lodge.wait_ended(PATIENCE).await
    }

    /// An agent whose stop was cut short is stopped, and its sandbox is gone.
    async fn check_stopped(&mut self, extra: Option<&str>) -> Result<(), Trouble> {
        let Some(extra) = extra else { return Ok(()) };
        self.expect_keepers(self.agents.len()).await;
        match self.agent(extra).await {
            Ok(detail) if detail.agent.status == "stopped" => {}
            other => self.report.add(BrokenPromise::Lost, format!("the stopped agent is {other:?}")),
        }
        self.remove_agent(extra).await
    }
}

pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGKILL)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the points are named.
    const DAEMON: &str = include_str!("../../../daemon/src/crash.rs");
    const KEEPER: [&str; 2] =
        [include_str!("../../../keeper/src/commands.rs"), include_str!("../../../keeper/src/ends.rs")];

    #[test]
    fn the_points_are_those_of_the_daemon_and_of_the_keeper() {
        let list = DAEMON.split_once("POINTS: &[&str] = &[").and_then(|(_, rest)| rest.split_once("];"));
        let mut named: Vec<&str> = list.unwrap().0.split('"').skip(1).step_by(2).collect();
        for source in KEEPER {
            let calls = source.split("self.fail_at(\"").skip(1);
            named.extend(calls.filter_map(|rest| rest.split('"').next()));
        }
        assert_eq!(POINTS.map(|point| point.name).to_vec(), named);
    }
}
