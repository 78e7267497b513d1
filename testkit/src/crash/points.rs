//! Kills at named points: the daemon ends itself where `LODGED_CRASH_AT` says.

use std::time::{Duration, Instant};

use lodge_proto::AgentRemoveParams;
use lodge_proto::client::{Client, ClientError};
use serde_json::{Value, json};

use super::plan::{Model, Shape};
use super::process;
use super::report::{Broken, Report};
use super::world::World;
use crate::lodge::PATIENCE;

/// Where the daemon names its points.
const SOURCE: &str = include_str!("../../../crates/daemon/src/crash.rs");
const AGENTS: usize = 2;
/// Between two messages to a daemon that should die of them.
const SEND_EVERY: Duration = Duration::from_millis(40);

/// What makes a daemon pass a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// Nothing but its start, with agents alive.
    Boot,
    /// Turns.
    Work,
    /// A new agent.
    Start,
    /// The end of an agent.
    Stop,
}

fn act_of(point: &str) -> Act {
    match point {
        "after_lock" | "after_load" | "during_adoption" | "after_adoption" => Act::Boot,
        "during_start" => Act::Start,
        "during_stop" => Act::Stop,
        // Whatever else there is lies on the path of a turn.
        _ => Act::Work,
    }
}

/// Every point that the daemon knows.
pub fn points() -> Vec<&'static str> {
    let list = SOURCE.split_once("POINTS: &[&str] = &[").and_then(|(_, rest)| rest.split_once("];"));
    let (list, _) = list.expect("the daemon's source has its list of points");
    list.split('"').skip(1).step_by(2).collect()
}

/// Dies at every named point, `hits` times each. A point without a hit is a broken promise.
pub async fn named_points(model: Model, seed: u64, hits: u64) -> Report {
    let mut world = World::start(model, seed, AGENTS, &[]).await;
    for _ in 0..hits {
        for point in points() {
            world.die_at(point).await;
        }
    }
    for point in points() {
        if world.report.points.get(point).copied().unwrap_or(0) < hits {
            world.report.add(Broken::Wrong, format!("the daemon did not die at {point} {hits} times"));
        }
    }
    world.finish().await
}

/// Dies at one point, `times` times, with a deliberate bug put into the daemon.
pub async fn mutated(mutation: &str, point: &str, seed: u64, times: u64) -> Report {
    let mut world = World::start(Model::Script, seed, AGENTS, &[("LODGED_MUTATION", mutation)]).await;
    world.patience = Duration::from_secs(5);
    for _ in 0..times {
        world.die_at(point).await;
    }
    world.finish().await
}

impl World {
    /// Ends the daemon, lets the next one die at a point, and starts one that lives.
    async fn die_at(&mut self, point: &str) {
        let act = act_of(point);
        let extra = match act {
            Act::Stop => Some(self.extra_agent().await),
            Act::Boot | Act::Work | Act::Start => None,
        };
        let nth = match point {
            "during_adoption" | "after_adoption" => 1 + self.rng.below(AGENTS as u64),
            "before_commit" => 2 + self.rng.below(8),
            _ if act == Act::Work => 1 + self.rng.below(3),
            _ => 1,
        };
        self.send_new();
        self.gather().await;
        self.kill("to arm a point");
        self.lodge.set_env("LODGED_CRASH_AT", &format!("{point}:{nth}"));
        self.lodge.spawn();
        let died = match act {
            Act::Boot => self.lodge.wait_killed(PATIENCE),
            Act::Work => self.work_to_death().await,
            Act::Start => self.start_to_death().await,
            Act::Stop => self.stop_to_death(extra.as_deref()).await,
        };
        self.lodge.unset_env("LODGED_CRASH_AT");
        self.gather().await;
        if died == Some(true) {
            self.report.kills += 1;
            *self.report.points.entry(point.to_owned()).or_default() += 1;
        } else {
            self.report.add(Broken::Wrong, format!("the daemon did not die at {point}:{nth}, but: {died:?}"));
            self.lodge.kill9();
        }
        self.lodge.start();
        self.check_adoption().await;
        match act {
            Act::Boot | Act::Work => {}
            Act::Start => self.check_started().await,
            Act::Stop => self.check_stopped(extra.as_deref()).await,
        }
    }

    /// Sends messages of all kinds until the daemon is dead; tells whether SIGKILL did it.
    async fn work_to_death(&mut self) -> Option<bool> {
        let until = Instant::now() + PATIENCE;
        let mut shapes = [Shape::Chain, Shape::Stream, Shape::Pair, Shape::Tool].into_iter().cycle();
        loop {
            // A daemon that dies before it answers has died of work left over from the one before.
            if let Some(died) = self.lodge.wait_killed(SEND_EVERY) {
                return Some(died);
            }
            if Instant::now() >= until {
                return None;
            }
            if let Some(shape) = shapes.next() {
                self.send_shape(shape);
            }
        }
    }

    async fn start_to_death(&mut self) -> Option<bool> {
        if self.lodge.try_wait_ready().is_err() {
            return Some(false);
        }
        let params = self.agent_params();
        let created = self.create_agent(&params).await;
        self.extra = Some(params);
        let died = self.lodge.wait_killed(PATIENCE);
        if let Err(error @ ClientError::Refused(_)) = created {
            self.report.add(Broken::Wrong, format!("an agent was refused: {error}"));
        }
        died
    }

    /// The agent whose start was cut short is one agent with one keeper, however often it is asked for.
    async fn check_started(&mut self) {
        let Some(params) = self.extra.take() else { return };
        match self.create_agent(&params).await {
            Ok(view) => {
                self.wait_ready(&view.id).await;
                self.expect_keepers(AGENTS + 1).await;
                self.remove_agent(&view.id).await;
            }
            Err(error) => {
                self.report.add(Broken::Lost, format!("the agent cannot be created again: {error}"))
            }
        }
        self.expect_keepers(AGENTS).await;
    }

    async fn extra_agent(&mut self) -> String {
        let params = self.agent_params();
        let view = self.create_agent(&params).await.expect("an agent can be created");
        self.wait_ready(&view.id).await;
        view.id
    }

    async fn stop_to_death(&mut self, extra: Option<&str>) -> Option<bool> {
        if self.lodge.try_wait_ready().is_err() {
            return Some(false);
        }
        let extra = extra?;
        self.wait_ready(extra).await;
        let mut client = self.lodge.client().await;
        let stopped: Result<Value, ClientError> = client.call("agent/stop", json!({"agent": extra})).await;
        if let Ok(view) = stopped {
            self.report.add(Broken::Wrong, format!("a stop was answered before it was done: {view}"));
        }
        self.lodge.wait_killed(PATIENCE)
    }

    /// An agent whose stop was cut short is stopped, and its sandbox is gone.
    async fn check_stopped(&mut self, extra: Option<&str>) {
        let Some(extra) = extra else { return };
        self.expect_keepers(AGENTS).await;
        match self.agent(extra).await {
            Ok(detail) if detail.agent.status == "stopped" => {}
            other => self.report.add(Broken::Lost, format!("the stopped agent is {other:?}")),
        }
        self.remove_agent(extra).await;
    }

    pub(super) async fn remove_agent(&mut self, id: &str) {
        let params = AgentRemoveParams { agent: id.to_owned(), force: true, request_id: None };
        let mut client: Client = self.lodge.client().await;
        if let Err(error) = client.call::<_, Value>("agent/remove", params).await {
            self.report.add(Broken::Wrong, format!("{id} was not removed: {error}"));
        }
    }

    /// Waits until there are this many keepers in the state directory.
    pub(super) async fn expect_keepers(&mut self, wanted: usize) {
        let until = Instant::now() + PATIENCE;
        loop {
            let found = process::all_of(&self.lodge.home());
            let keepers = process::keepers_in(&found);
            if keepers == wanted {
                return;
            }
            if Instant::now() >= until {
                let what = format!("{keepers} keepers instead of {wanted}: {found:?}");
                return self.report.add(Broken::Keeper, what);
            }
            tokio::time::sleep(Duration::from_millis(4)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_daemons_points_are_found_in_its_source() {
        let points = super::points();
        assert!(points.contains(&"before_commit") && points.contains(&"during_stop"), "{points:?}");
    }
}
