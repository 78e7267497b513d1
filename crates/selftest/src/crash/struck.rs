//! One death while a tool works: running work continues, a keeper's record counts, and an unknown outcome is reported
//! and not repeated.

use std::time::Instant;

use super::CrashSetup;
use super::plan::{TurnShape, effects_of};
use super::report::{BrokenPromise, CrashReport};
use super::strike::Victim;
use super::world::{CrashWorld, LOOK, through};
use crate::lodge::PATIENCE;
use crate::trouble::Trouble;

/// The tool that is at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunningTool {
    /// It ends soon.
    Short,
    /// It is at work when its keeper dies.
    Long,
    /// As long, and declared safe.
    Safe,
}

/// Kills a process while the tool of an agent runs. The report shows whether the outcome is known, unknown or repeated.
pub async fn struck(setup: &CrashSetup, victim: Victim, tool: RunningTool) -> CrashReport {
    through(setup, 1, async |world| {
        let shape = match tool {
            RunningTool::Short => TurnShape::Slow,
            RunningTool::Long => TurnShape::Long,
            RunningTool::Safe => TurnShape::SafeSlow,
        };
        world.work_on(shape).await;
        world.strike(victim, "with a tool at work").await?;
        world.await_recovery().await
    })
    .await
    .unwrap_or_else(CrashReport::from)
}

/// Kills a keeper whose tool ended while no daemon was connected.
pub async fn struck_after_the_end(setup: &CrashSetup) -> CrashReport {
    through(setup, 1, async |world| {
        world.work_on(TurnShape::Slow).await;
        world.kill("with a tool at work")?;
        world.wait_exit_record().await;
        world.kill_keeper(0).await;
        world.await_recovery().await
    })
    .await
    .unwrap_or_else(CrashReport::from)
}

impl CrashWorld {
    /// Sends a message and waits until its tool is at work.
    async fn work_on(&mut self, shape: TurnShape) {
        self.send_shape(shape);
        self.gather().await;
        let [begin, _] = effects_of(&self.sent[0].plan.token, "a");
        self.wait_effect(&begin).await;
    }

    async fn await_recovery(&mut self) -> Result<(), Trouble> {
        if self.lodge.pid().is_none() { self.start_again().await } else { self.check_adoption().await }
    }

    pub async fn wait_effect(&mut self, effect: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.effects.seen().iter().any(|seen| seen == effect) {
            if Instant::now() >= until {
                return self.report.add(BrokenPromise::Lost, format!("effect {effect} never happened"));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until the keeper wrote down how the only tool ended.
    async fn wait_exit_record(&mut self) {
        let run = self.lodge.home().join("run");
        let is_there = || {
            let boxes = std::fs::read_dir(&run).ok()?.flatten();
            let execs = boxes.filter_map(|entry| std::fs::read_dir(entry.path().join("exec")).ok()).flatten();
            execs.flatten().find(|exec| exec.path().join("exit").exists())
        };
        let until = Instant::now() + PATIENCE;
        while is_there().is_none() {
            if Instant::now() >= until {
                return self
                    .report
                    .add(BrokenPromise::Lost, "the keeper did not write down how the tool ended");
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
