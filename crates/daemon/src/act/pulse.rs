//! Signs of life: a working agent is probed at intervals, an idle agent is not.
//!
//! Silence is reported to the engine, which decides whether to kill.

use std::time::Duration;

use lodge_core::Timestamp;
use lodge_core::liveness::{Liveness, Silence, Thresholds};
use lodge_exec::{ExecName, KeeperCommand};
use tokio::time::Instant;

use super::actor::{Actor, GONE_WITHIN, GRACE};
use super::runtime;
use lodge_engine::{AgentComponent, AgentObservation, Observation, SandboxObservation};

/// Checks of all agents are aligned to this many instants per pause.
const CHECK_SLOTS: u32 = 10;

/// The silence of a runtime and of its keeper while they have work.
#[derive(Debug)]
pub(super) struct Pulse {
    pub next: Instant,
    last: Instant,
    runtime: Silence,
    keeper: Silence,
    level: Liveness,
    /// The runtime is being killed. If it lives past this instant, the keeper counts as crashed.
    dying_until: Option<Instant>,
}

impl Pulse {
    fn new(wall: Timestamp, thresholds: Thresholds) -> Self {
        let now = Instant::now();
        Pulse {
            next: first_check(now, wall, thresholds.pause()),
            last: now,
            runtime: Silence::default(),
            keeper: Silence::default(),
            level: Liveness::Active,
            dying_until: None,
        }
    }
}

/// A pause from now, rounded up to the next aligned instant: the checks of all agents share one wakeup of an idle machine.
fn first_check(now: Instant, wall: Timestamp, pause: Duration) -> Instant {
    let moment = (pause / CHECK_SLOTS).max(Duration::from_millis(1));
    let wall = Duration::from_millis(wall.ms().unsigned_abs());
    let past = Duration::from_nanos_u128(wall.as_nanos() % moment.as_nanos());
    now + pause + moment - past
}

impl Actor {
    pub(super) fn thresholds(&self) -> Thresholds {
        self.context.config.thresholds()
    }

    /// Starts to expect signs of life.
    pub(super) fn watch(&mut self) {
        if self.pulse.is_none() {
            self.pulse = Some(Box::new(Pulse::new(self.context.clock.now(), self.thresholds())));
        }
    }

    /// Records a sign of life. A line of the runtime is one of the keeper, too.
    pub(super) async fn record_sign_of_life(&mut self, part: AgentComponent) {
        let Some(pulse) = &mut self.pulse else { return };
        pulse.keeper.broken();
        match part {
            AgentComponent::Sandbox => {}
            AgentComponent::Runtime => {
                pulse.runtime.broken();
                // A runtime that counts as crashed is being killed and stays crashed.
                if pulse.level == Liveness::Stale {
                    self.report_liveness(Liveness::Active, AgentComponent::Runtime).await;
                }
            }
        }
    }

    /// Checks once whether there is work, counts the silence, and sends the next probes.
    pub(super) async fn check_pulse(&mut self) {
        let thresholds = self.thresholds();
        let waits = self.up.as_ref().is_some_and(|up| up.probe.is_some()) || self.has_turns().await;
        let Some(pulse) = &mut self.pulse else { return };
        let now = Instant::now();
        let since = now - pulse.last;
        (pulse.last, pulse.next) = (now, pulse.next + thresholds.pause());
        if pulse.next <= now {
            pulse.next = first_check(now, self.context.clock.now(), thresholds.pause());
        }
        let level = pulse.runtime.look(since, thresholds);
        let keeper = pulse.keeper.look(since, thresholds);
        let (was, dying_until) = (pulse.level, pulse.dying_until);
        // A silent agent is watched until it answers or dies, even if its work ended.
        if !waits && was == Liveness::Active && dying_until.is_none() {
            self.pulse = None;
            return;
        }
        if let Some(until) = dying_until {
            if now >= until {
                self.report_liveness(Liveness::Crashed, AgentComponent::Sandbox).await;
            }
            return;
        }
        if level != was {
            let part =
                if keeper == Liveness::Active { AgentComponent::Runtime } else { AgentComponent::Sandbox };
            self.report_liveness(level, part).await;
        }
        if level != Liveness::Crashed {
            self.send(KeeperCommand::Ping { token: 0 }).await;
            self.send_line(runtime::ping()).await;
        }
    }

    async fn report_liveness(&mut self, level: Liveness, part: AgentComponent) {
        let (Some(pulse), Some(up)) = (&mut self.pulse, &self.up) else { return };
        pulse.level = level;
        up.living.set_liveness(level);
        let (agent, run) = (self.agent.clone(), up.plan.run);
        tracing::warn!(event = "agent.liveness", %agent, level = level.word(), ?part);
        self.context.report(Observation::Agent(AgentObservation::Silent { agent, run, level, part })).await;
    }

    async fn has_turns(&self) -> bool {
        // After a failed read, assume work: the next check reads again.
        let agent = self.agent.clone();
        self.context.read_few(move |store| store.has_live_turn(&agent)).await.unwrap_or(true)
    }

    /// Kills a silent runtime. Its keeper reports the death.
    pub(super) async fn kill_runtime(&mut self, run: u32) {
        if self.up.as_ref().is_none_or(|up| up.plan.run != run) {
            return;
        }
        self.watch();
        if let Some(pulse) = &mut self.pulse {
            pulse.dying_until = Some(Instant::now() + GRACE + GONE_WITHIN);
        }
        let grace_ms = u32::try_from(GRACE.as_millis()).unwrap_or(u32::MAX);
        self.send(KeeperCommand::Kill { exec: ExecName::Runtime { run }.to_string(), grace_ms }).await;
    }

    /// Kills a silent keeper and everything in its sandbox. Reports the death only when it is proven.
    pub(super) async fn kill_sandbox(&mut self, run: u32) {
        let up = self.up.take();
        (self.dialing, self.pulse) = (None, None);
        self.context.drop_living(&self.agent);
        let agent = self.agent.clone();
        let killed = match up {
            Some(up) => self.keeper().kill_connected(&*up.sender).await,
            None if self.is_held() => self.keeper().kill().await,
            None => Ok(()),
        };
        let seen = match killed {
            Ok(()) => {
                let detail = "its sandbox did not answer and was ended".to_owned();
                Observation::Agent(AgentObservation::Died {
                    agent,
                    run,
                    part: AgentComponent::Sandbox,
                    detail,
                })
            }
            Err(detail) => {
                tracing::error!(event = "sandbox.not_ended", %agent, detail);
                Observation::Sandbox(SandboxObservation::NotDown { agent, run, detail })
            }
        };
        self.context.report(seen).await;
    }
}
