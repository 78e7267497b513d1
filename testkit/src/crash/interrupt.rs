//! A turn that was broken off stays so: its tool does not go on because the daemon died before it could end it.

use std::time::{Duration, Instant};

use lodge_proto::TurnView;
use lodge_proto::client::ClientError;
use serde_json::{Value, json};

use super::plan::{Model, Shape};
use super::process;
use super::report::{Broken, Report};
use super::world::World;
use crate::lodge::PATIENCE;

/// Dies `times` times right after an interrupt was recorded and before anything was done about it.
pub async fn interrupted_tools(model: Model, seed: u64, times: u64) -> Report {
    let mut world = World::start(model, seed, 1, &[]).await;
    for _ in 0..times {
        world.interrupt_and_die().await;
    }
    world.stop_agents().await;
    world.check_events().await;
    world.take_down().await;
    world.report
}

impl World {
    async fn interrupt_and_die(&mut self) {
        self.kill("to arm a point");
        // An interrupt writes an outcome for the call that it cuts.
        self.lodge.set_env("LODGED_CRASH_AT", "after_outcome:1");
        self.lodge.start();
        self.lodge.unset_env("LODGED_CRASH_AT");
        self.send_shape(Shape::Long);
        self.gather().await;
        let Some(sent) = self.sent.pop() else { return };
        let token = sent.plan.token;
        let Some(turn) = sent.turn else {
            return self.report.add(Broken::Lost, format!("message {token} was not answered"));
        };
        let (begin, end) = (format!("{token}.a.begin"), format!("{token}.a.end"));
        let until = Instant::now() + PATIENCE;
        while !self.effects.seen().contains(&begin) && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let asked = json!({"turn": turn, "request_id": format!("interrupt-{token}")});
        let mut client = self.lodge.client().await;
        let answer: Result<Value, ClientError> = client.call("turn/interrupt", asked.clone()).await;
        match (answer, self.lodge.wait_killed(PATIENCE)) {
            (Err(ClientError::Lost), Some(true)) => {
                self.report.kills += 1;
                *self.report.points.entry("after_outcome".to_owned()).or_default() += 1;
            }
            other => {
                self.report.add(Broken::Wrong, format!("the daemon did not die of an interrupt: {other:?}"));
                self.lodge.kill9();
            }
        }
        self.lodge.start();
        self.check_adoption().await;
        let mut client = self.lodge.client().await;
        match client.call::<_, TurnView>("turn/interrupt", asked).await {
            Ok(view) if view.id == turn && view.status == "interrupted" => {}
            other => self.report.add(Broken::Lost, format!("the interrupt, asked again: {other:?}")),
        }
        self.wait_no_tool().await;
        if self.effects.seen().contains(&end) {
            self.report
                .add(Broken::Wrong, format!("{token} was interrupted, and its tool went on to its end"));
        }
    }

    async fn wait_no_tool(&mut self) {
        let until = Instant::now() + PATIENCE;
        loop {
            let found = process::all_of(&self.lodge.home());
            let tools: Vec<_> = found.iter().filter(|(_, line)| line.contains("/usr/bin/bash")).collect();
            if tools.is_empty() {
                return;
            }
            if Instant::now() >= until {
                return self.report.add(Broken::LeftBehind, format!("tools of nobody: {tools:?}"));
            }
            tokio::time::sleep(Duration::from_millis(4)).await;
        }
    }
}
