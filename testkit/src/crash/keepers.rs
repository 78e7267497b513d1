//! The keeper dies too: what it wrote down counts, and what nobody knows is said and not done again.

use std::time::{Duration, Instant};

use lodge_proto::TurnView;
use lodge_proto::client::ClientError;
use serde_json::json;

use super::plan::{Model, Shape};
use super::process;
use super::report::{Broken, Report};
use super::world::World;
use crate::lodge::PATIENCE;

const LOOK: Duration = Duration::from_millis(4);

/// How far a tool had come when its keeper died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// Ended, and its end is on disk.
    Ended,
    /// At work.
    Running,
}

/// Ends the daemon and then the keeper of an agent whose tool is at work, or has just ended.
pub async fn dead_keeper(model: Model, seed: u64, tool: Tool) -> Report {
    let mut world = World::start(model, seed, 1, &[]).await;
    let shape = match tool {
        Tool::Ended => Shape::Slow,
        Tool::Running => Shape::Long,
    };
    world.send_shape(shape);
    world.gather().await;
    let token = world.sent[0].plan.token.clone();
    world.wait_effect(&format!("{token}.a.begin")).await;
    world.kill("with a tool at work");
    if tool == Tool::Ended {
        world.wait_exit_record().await;
    }
    world.kill_keeper().await;
    world.lodge.start();
    world.start_again().await;
    if tool == Tool::Running {
        world.check_unknown().await;
    }
    world.finish().await
}

impl World {
    async fn wait_effect(&mut self, effect: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.effects.seen().iter().any(|seen| seen == effect) {
            if Instant::now() >= until {
                return self.report.add(Broken::Lost, format!("effect {effect} never happened"));
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
                return self.report.add(Broken::Lost, "the keeper did not write down how the tool ended");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn kill_keeper(&mut self) {
        let keeper = self.agents[0].keeper;
        // SAFETY: sending a signal touches no memory of ours; the pid and its start were compared with the kernel's
        // word when the agent became ready, and nobody else ends it.
        unsafe {
            libc::kill(keeper.pid, libc::SIGKILL);
        }
        let until = Instant::now() + PATIENCE;
        while !process::all_of(&self.lodge.home()).is_empty() {
            if Instant::now() >= until {
                return self.report.add(Broken::LeftBehind, "a keeper was killed, and its tree lives");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The daemon finds nothing of the agent and brings it up anew, with its open turn.
    async fn start_again(&mut self) {
        let id = self.agents[0].id.clone();
        self.agents[0] = self.wait_ready(&id).await;
    }

    /// The model was told that nobody knows, the turn went on, and the tool did not run again.
    async fn check_unknown(&mut self) {
        self.settle().await;
        let Some(sent) = self.sent.pop() else { return };
        let (token, turn) = (sent.plan.token, sent.turn.unwrap_or_default());
        let mut client = self.lodge.client().await;
        let view: Result<TurnView, ClientError> = client.call("turn/get", json!({"turn": turn})).await;
        let told = view.as_ref().is_ok_and(|view| {
            let unknown = view.steps.iter().filter(|step| step.status == "unknown").count();
            view.status == "done" && unknown == 1 && view.text.contains("outcome unknown")
        });
        if !told {
            self.report
                .add(Broken::Wrong, format!("the turn of {token} should tell what is unknown: {view:?}"));
        }
        let effects = self.effects.seen();
        if effects != [format!("{token}.a.begin")] {
            self.report.add(Broken::Duplicated, format!("the effects of {token}: {effects:?}"));
        }
        self.unasked.extend(effects);
    }
}
