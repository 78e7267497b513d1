//! Signs of life: a working agent is asked for one now and then, an idle one costs nothing.
//!
//! Silence is told to the engine, which decides; nobody is killed here.

use std::time::Duration;

use lodge_core::liveness::{Liveness, Silence, Thresholds};
use lodge_exec::{ExecName, KeeperCommand};
use tokio::time::Instant;

use super::actor::{Actor, GONE_WITHIN, GRACE};
use super::runtime;
use crate::shell;
use lodge_engine::{AgentSeen, Part, SandboxSeen, Seen};

/// So many moments of a pause are those at which looks are made.
const MOMENTS: u32 = 10;

/// The silence of a runtime and of its keeper, while they have something to do.
#[derive(Debug)]
pub(super) struct Pulse {
    pub next: Instant,
    last: Instant,
    runtime: Silence,
    keeper: Silence,
    level: Liveness,
    /// The runtime is being killed; past this the keeper is to blame.
    dying_until: Option<Instant>,
}

impl Pulse {
    fn new(thresholds: Thresholds) -> Self {
        let now = Instant::now();
        Pulse {
            next: first_look(now, thresholds.pause()),
            last: now,
            runtime: Silence::default(),
            keeper: Silence::default(),
            level: Liveness::Active,
            dying_until: None,
        }
    }
}

/// A pause from now, or a little later: the looks at all agents come together, so that a machine that does nothing else is
/// woken for them once.
fn first_look(now: Instant, pause: Duration) -> Instant {
    let moment = (pause / MOMENTS).max(Duration::from_millis(1));
    let wall = Duration::from_millis(shell::now().ms().unsigned_abs());
    let past = Duration::from_nanos_u128(wall.as_nanos() % moment.as_nanos());
    now + pause + moment - past
}

impl Actor {
    pub(super) fn thresholds(&self) -> Thresholds {
        self.shell.config.thresholds()
    }

    /// From now on signs of life are expected.
    pub(super) fn watch(&mut self) {
        if self.pulse.is_none() {
            self.pulse = Some(Box::new(Pulse::new(self.thresholds())));
        }
    }

    /// The keeper said something; so did the runtime, if it was a line of its.
    pub(super) async fn sign_of_life(&mut self, part: Part) {
        let Some(pulse) = &mut self.pulse else { return };
        pulse.keeper.broken();
        match part {
            Part::Sandbox => {}
            Part::Runtime => {
                pulse.runtime.broken();
                // One that is being killed is past saving.
                if pulse.level == Liveness::Stale {
                    self.looks(Liveness::Active, Part::Runtime).await;
                }
            }
        }
    }

    /// One look: is there still something to do, how long was it silent, and are you there?
    pub(super) async fn look(&mut self) {
        let thresholds = self.thresholds();
        let waits = self.up.as_ref().is_some_and(|up| up.probe.is_some()) || self.has_turns().await;
        let Some(pulse) = &mut self.pulse else { return };
        let now = Instant::now();
        let since = now - pulse.last;
        (pulse.last, pulse.next) = (now, pulse.next + thresholds.pause());
        if pulse.next <= now {
            pulse.next = first_look(now, thresholds.pause());
        }
        let level = pulse.runtime.look(since, thresholds);
        let keeper = pulse.keeper.look(since, thresholds);
        let (was, dying_until) = (pulse.level, pulse.dying_until);
        // One that is silent is watched until it answers or is dead, whatever became of its work.
        if !waits && was == Liveness::Active && dying_until.is_none() {
            self.pulse = None;
            return;
        }
        if let Some(until) = dying_until {
            if now >= until {
                self.looks(Liveness::Crashed, Part::Sandbox).await;
            }
            return;
        }
        if level != was {
            let part = if keeper == Liveness::Active { Part::Runtime } else { Part::Sandbox };
            self.looks(level, part).await;
        }
        if level != Liveness::Crashed {
            self.send(KeeperCommand::Ping { token: 0 }).await;
            self.line(runtime::ping()).await;
        }
    }

    async fn looks(&mut self, level: Liveness, part: Part) {
        let (Some(pulse), Some(up)) = (&mut self.pulse, &self.up) else { return };
        pulse.level = level;
        up.living.set_liveness(level);
        let (agent, run) = (self.agent.clone(), up.plan.run);
        tracing::warn!(event = "agent.liveness", %agent, level = level.word(), ?part);
        self.shell.tell(Seen::Agent(AgentSeen::Silent { agent, run, level, part })).await;
    }

    async fn has_turns(&self) -> bool {
        // What cannot be read is looked at again.
        let agent = self.agent.clone();
        self.shell.reader.read_few(move |store| store.has_live_turn(&agent)).await.unwrap_or(true)
    }

    /// Ends a runtime that gives no sign of life. Its keeper tells of its death.
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

    /// Ends a keeper that gives no sign of life, and everything with it. Not before that is proven is it dead.
    pub(super) async fn kill_sandbox(&mut self, run: u32) {
        (self.up, self.calling, self.pulse) = (None, None, None);
        self.shell.set_living(&self.agent, None);
        let agent = self.agent.clone();
        let killed = if self.is_held() { self.kill().await } else { Ok(()) };
        let seen = match killed {
            Ok(()) => {
                let detail = "its sandbox did not answer and was ended".to_owned();
                Seen::Agent(AgentSeen::Died { agent, run, part: Part::Sandbox, detail })
            }
            Err(detail) => {
                tracing::error!(event = "sandbox.not_ended", %agent, detail);
                Seen::Sandbox(SandboxSeen::NotDown { agent, run, detail })
            }
        };
        self.shell.tell(seen).await;
    }
}
