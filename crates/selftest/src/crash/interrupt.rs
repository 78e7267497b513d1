//! An interrupted turn stays interrupted: its tool does not continue although the daemon died before it could end it.

use std::time::Instant;

use lodge_proto::client::ClientError;
use lodge_proto::{InterruptTurn, TurnInterruptParams};

use super::CrashSetup;
use super::plan::{TurnShape, effects_of};
use super::points::was_killed;
use super::report::{BrokenPromise, CrashReport};
use super::world::{CrashWorld, LOOK, through};
use crate::lodge::PATIENCE;
use crate::processes;
use crate::trouble::{Trouble, refused};

/// Dies `times` times right after an interrupt was recorded and before anything was done about it.
pub async fn interrupted_tools(setup: &CrashSetup, times: u64) -> CrashReport {
    through(setup, 1, async |world| {
        for _ in 0..times {
            world.interrupt_and_die().await?;
        }
        Ok(())
    })
    .await
    .unwrap_or_else(CrashReport::from)
}

impl CrashWorld {
    async fn interrupt_and_die(&mut self) -> Result<(), Trouble> {
        self.kill("to arm a point")?;
        // An interrupt writes an outcome for the call that it cuts.
        self.lodge.set_env("LODGED_CRASH_AT", "after_outcome:1");
        self.lodge.start().await?;
        self.lodge.unset_env("LODGED_CRASH_AT");
        self.send_shape(TurnShape::Long);
        self.gather().await;
        let Some(sent) = self.sent.pop() else { return Ok(()) };
        let token = sent.plan.token;
        let Some(turn) = sent.turn else {
            self.report.add(BrokenPromise::Lost, format!("message {token} was not answered"));
            return Ok(());
        };
        let [begin, end] = effects_of(&token, "a");
        self.wait_effect(&begin).await;
        let asked =
            TurnInterruptParams { turn: turn.clone(), request_id: Some(format!("interrupt-{token}")) };
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        let answer = client.call::<InterruptTurn>(&asked).await;
        match (answer, self.lodge.wait_ended(PATIENCE).await?) {
            (Err(ClientError::Lost), Some(status)) if was_killed(status) => {
                self.note_kill("daemon");
                *self.report.points.entry("after_outcome".to_owned()).or_default() += 1;
            }
            other => {
                self.report
                    .add(BrokenPromise::Wrong, format!("the daemon did not die of an interrupt: {other:?}"));
                self.lodge.kill9()?;
            }
        }
        self.start_again().await?;
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        match client.call::<InterruptTurn>(&asked).await {
            Ok(view) if view.id == turn && view.status == "interrupted" => {}
            other => self.report.add(BrokenPromise::Lost, format!("the interrupt, asked again: {other:?}")),
        }
        self.wait_no_tool().await;
        if self.effects.seen().contains(&end) {
            self.report.add(
                BrokenPromise::Wrong,
                format!("{token} was interrupted, and its tool went on to its end"),
            );
        }
        self.unasked.push(begin);
        self.settled.insert(turn);
        Ok(())
    }

    async fn wait_no_tool(&mut self) {
        let until = Instant::now() + PATIENCE;
        loop {
            let found = processes::of(&self.lodge.home());
            let tools: Vec<_> = found.iter().filter(|(_, line)| line.contains("/opt/bins/bash")).collect();
            if tools.is_empty() {
                return;
            }
            if Instant::now() >= until {
                return self.report.add(BrokenPromise::LeftBehind, format!("tools of nobody: {tools:?}"));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
