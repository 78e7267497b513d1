//! A process that a tool leaves behind lives as long as its sandbox and no longer, regardless of its attempts to
//! escape.

use std::time::Instant;

use super::CrashSetup;
use super::effects::LEFT;
use super::plan::TurnShape;
use super::report::{BrokenPromise, CrashReport};
use super::world::{CrashWorld, LOOK, through};
use crate::lodge::PATIENCE;
use crate::processes;
use crate::trouble::Trouble;

/// Tools leave daemons that listen to no signal. One outlives the daemon and goes with its killed keeper, another goes
/// with the stop of its agent.
pub async fn left_daemons(setup: &CrashSetup) -> CrashReport {
    through(setup, 1, async |world| {
        world.leave_one().await?;
        world.kill("with a process that a tool left")?;
        world.expect_left(1).await;
        world.kill_keeper(0).await;
        world.expect_left(0).await;
        world.start_again().await?;
        world.leave_one().await
    })
    .await
    .unwrap_or_else(CrashReport::from)
}

impl CrashWorld {
    async fn leave_one(&mut self) -> Result<(), Trouble> {
        self.send_to(0, TurnShape::LeaveDeaf);
        self.settle().await?;
        self.expect_left(1).await;
        Ok(())
    }

    /// Waits until the kernel shows this many leftover processes.
    async fn expect_left(&mut self, wanted: usize) {
        let until = Instant::now() + PATIENCE;
        loop {
            let found = processes::of(&self.lodge.home());
            let left = found.iter().filter(|(_, line)| line.trim() == LEFT).count();
            if left == wanted {
                return;
            }
            if Instant::now() >= until {
                let what = format!("{left} processes instead of {wanted} were left by tools: {found:?}");
                return self.report.add(BrokenPromise::LeftBehind, what);
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
