//! Kills processes and records each kill.

use std::time::{Duration, Instant};

use super::agents::ExpectedKeeper;
use super::report::BrokenPromise;
use super::world::{CrashWorld, LOOK};
use crate::clock::now_ms;
use crate::lodge::PATIENCE;
use crate::processes;
use crate::trouble::Trouble;

/// Deaths of an agent's processes without a finished turn between them; more could end its lineage by right.
const DEATHS_IN_A_ROW_MAX: u32 = 3;

/// What is killed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    Daemon,
    Runtime,
    Keeper,
    DaemonAndRuntime,
    DaemonAndKeeper,
}

impl Victim {
    /// Mostly the daemon: it alone decides.
    pub const USUAL: [Victim; 10] = [
        Victim::Daemon,
        Victim::Daemon,
        Victim::Daemon,
        Victim::Daemon,
        Victim::Runtime,
        Victim::Runtime,
        Victim::Keeper,
        Victim::Keeper,
        Victim::DaemonAndRuntime,
        Victim::DaemonAndKeeper,
    ];
}

/// A part of an agent that can be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AgentProcess {
    Runtime,
    Keeper,
}

/// A keeper that was killed, with everything in its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeeperDeath {
    pub agent: usize,
    /// Milliseconds since 1970: the last look that saw it alive, and the first that did not.
    pub from_ms: u64,
    pub to_ms: u64,
}

impl CrashWorld {
    /// Ends the daemon as `kill -9` does.
    pub fn kill(&mut self, aim: &str) -> Result<(), Trouble> {
        self.note_busy();
        self.lodge.kill9()?;
        self.note_kill("daemon");
        *self.report.aims.entry(aim.to_owned()).or_default() += 1;
        Ok(())
    }

    /// Ends what is named, at once. An agent that has died too often in a row is spared, and the daemon dies instead.
    pub async fn strike(&mut self, victim: Victim, aim: &str) -> Result<(), Trouble> {
        let (daemon, part) = match victim {
            Victim::Daemon => (true, None),
            Victim::Runtime => (false, Some(AgentProcess::Runtime)),
            Victim::Keeper => (false, Some(AgentProcess::Keeper)),
            Victim::DaemonAndRuntime => (true, Some(AgentProcess::Runtime)),
            Victim::DaemonAndKeeper => (true, Some(AgentProcess::Keeper)),
        };
        let at = usize::try_from(self.rng.below(self.agents.len() as u64)).unwrap_or(0);
        let target = part.and_then(|part| self.target(at, part).map(|pid| (part, pid)));
        if daemon || target.is_none() {
            self.kill(aim)?;
        } else {
            self.note_busy();
            *self.report.aims.entry(aim.to_owned()).or_default() += 1;
        }
        if let Some((part, pid)) = target {
            self.kill_part(at, part, pid).await;
        }
        Ok(())
    }

    /// The process to kill, when it is there and may die.
    fn target(&mut self, at: usize, part: AgentProcess) -> Option<i32> {
        if self.deaths(at) >= DEATHS_IN_A_ROW_MAX {
            return None;
        }
        let home = self.lodge.home();
        let keeper = processes::keeper(&home, &self.agents[at].sandbox)?;
        match part {
            AgentProcess::Runtime => processes::runtime(keeper),
            AgentProcess::Keeper => Some(keeper.pid),
        }
    }

    /// Deaths of an agent's processes since it last finished a turn. Without any, it is surely there.
    pub fn deaths(&mut self, at: usize) -> u32 {
        if self.follower.any(0, self.agents[at].has_finished()) {
            self.agents[at].deaths = 0;
        }
        self.agents[at].deaths
    }

    async fn kill_part(&mut self, at: usize, part: AgentProcess, pid: i32) {
        let from_ms = now_ms();
        processes::kill9(pid);
        let until = Instant::now() + PATIENCE;
        while processes::is_alive(pid) {
            if Instant::now() >= until {
                return self
                    .report
                    .add(BrokenPromise::LeftBehind, format!("process {pid} was killed and lives"));
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        match part {
            AgentProcess::Runtime => {
                self.note_death(at);
                self.note_kill("runtime");
            }
            AgentProcess::Keeper => self.note_fall(KeeperDeath { agent: at, from_ms, to_ms: now_ms() }),
        }
    }

    fn note_death(&mut self, at: usize) {
        let agent = &mut self.agents[at];
        (agent.deaths, agent.killed, agent.died_ms) = (agent.deaths + 1, agent.killed + 1, now_ms());
    }

    /// A keeper died, and what ran in its sandbox then may be unknown.
    pub fn note_fall(&mut self, fall: KeeperDeath) {
        self.falls.push(fall);
        self.note_keeper(fall.agent);
    }

    /// A keeper died, and everything that ran in its sandbox is known.
    pub fn note_keeper(&mut self, at: usize) {
        self.note_death(at);
        self.agents[at].expect = ExpectedKeeper::Another;
        self.note_kill("keeper");
    }

    /// Ends the keeper of an agent, and waits until nothing of its sandbox is left.
    pub async fn kill_keeper(&mut self, at: usize) {
        let Some(pid) = self.target(at, AgentProcess::Keeper) else {
            return self.report.add(BrokenPromise::Keeper, format!("{} has no keeper", self.agents[at].id));
        };
        self.kill_part(at, AgentProcess::Keeper, pid).await;
        let until = Instant::now() + PATIENCE;
        let tree = self.lodge.home().join("agents").join(&self.agents[at].id);
        let mut left = processes::of(&tree);
        while !left.is_empty() {
            if Instant::now() >= until {
                let what = format!("a keeper was killed, and its tree lives: {left:?}");
                return self.report.add(BrokenPromise::LeftBehind, what);
            }
            tokio::time::sleep(LOOK).await;
            left = processes::of(&tree);
        }
    }

    pub fn note_kill(&mut self, victim: &'static str) {
        self.report.kills += 1;
        *self.report.victims.entry(victim).or_default() += 1;
        self.setup.progress.add_kills(1);
    }

    fn note_busy(&mut self) {
        let open = self.open_turns() as u64;
        self.report.cut_turns += open;
        self.report.busy_kills += u64::from(open > 0);
    }
}
