//! Dials a keeper that holds its lock, until it answers or was silent for too long.

use std::sync::Arc;
use std::time::Duration;

use lodge_core::liveness::{Liveness, Silence};
use lodge_exec::DialError;
use tokio::time::Instant;

use super::actor::Actor;
use super::starting::ImageUnavailable;
use crate::chain;
use crate::view::LiveSandbox;
use lodge_engine::{AgentComponent, AgentObservation, Observation, SandboxPlan, StartMode};

/// The pause between two dials.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause while the daemon itself cannot dial, and how long that may last.
const POSTPONED_PAUSE: Duration = Duration::from_secs(1);
const POSTPONED_MAX: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct KeeperDial {
    plan: SandboxPlan,
    how: StartMode,
    pub next: Instant,
    last: Instant,
    silence: Silence,
    level: Liveness,
    /// Since when the daemon itself cannot dial.
    postponed_since: Option<Instant>,
}

impl KeeperDial {
    pub(super) fn new(plan: SandboxPlan, how: StartMode) -> Self {
        let now = Instant::now();
        let (silence, level) = (Silence::default(), Liveness::Active);
        KeeperDial { plan, how, next: now, last: now, silence, level, postponed_since: None }
    }
}

impl Actor {
    /// Dials once. The task handles its orders between two dials.
    pub(super) async fn dial(&mut self) {
        let Some(dialing) = self.dialing.take() else { return };
        let KeeperDial { plan, how, .. } = &*dialing;
        let image = match self.load_image(plan).await {
            Ok(image) => image,
            Err(ImageUnavailable::Missing(detail)) => {
                return self.report_start_failure(plan.run, detail).await;
            }
            // The sandbox lives, and nothing is wrong with it: its silence does not grow.
            Err(ImageUnavailable::Unread(detail)) => {
                return self.postpone_dial(dialing, detail).await;
            }
        };
        let secret = self.secret(plan.incarnation);
        let sandbox = self.sandbox.as_str();
        let dial = self.context.executor.dial(sandbox, &secret, self.context.epoch);
        match tokio::time::timeout(self.thresholds().pause() * 2, dial).await {
            Ok(Ok(link)) => self.attach_link(link, plan.clone(), image, *how).await,
            Ok(Err(DialError::WrongSecret { .. })) if plan.incarnation > 1 => {
                // An earlier incarnation still runs. It has to end before the next one starts.
                let ended = match self.keeper().dial_any(plan.incarnation).await {
                    Some(old) => self.keeper().end(&*old).await,
                    None => self.keeper().kill().await,
                };
                match ended {
                    Ok(()) => self.start(plan.clone(), *how).await,
                    Err(detail) => self.report_start_failure(plan.run, detail).await,
                }
            }
            Ok(Err(error @ (DialError::WrongSecret { .. } | DialError::OldEpoch { .. }))) => {
                self.report_start_failure(plan.run, chain(&error)).await;
            }
            // The daemon is short of descriptors or memory, which says nothing about the keeper.
            Ok(Err(error)) if error.is_shortage() => self.postpone_dial(dialing, chain(&error)).await,
            // The keeper ended. Otherwise it is about to answer, or it hangs.
            Ok(Err(_)) | Err(_) if !self.is_held() => {
                Box::pin(self.open_sandbox(plan.clone(), *how)).await;
            }
            Ok(Err(_)) | Err(_) => self.redial(dialing).await,
        }
    }

    /// Dials or starts later, because the daemon can do neither now. It gives up after a long time: a row that cannot be read may never be.
    pub(super) async fn postpone_dial(&mut self, mut dialing: Box<KeeperDial>, detail: String) {
        let now = Instant::now();
        let since = *dialing.postponed_since.get_or_insert_with(|| {
            tracing::warn!(event = "keeper.dial_postponed", agent = %self.agent, detail);
            now
        });
        if now - since >= POSTPONED_MAX {
            return self.report_start_failure(dialing.plan.run, detail).await;
        }
        (dialing.last, dialing.next) = (now, now + POSTPONED_PAUSE);
        self.dialing = Some(dialing);
    }

    async fn redial(&mut self, mut dialing: Box<KeeperDial>) {
        let now = Instant::now();
        let since = now - dialing.last;
        (dialing.last, dialing.next, dialing.postponed_since) = (now, now + PAUSE, None);
        let level = dialing.silence.look(since, self.thresholds());
        let (agent, run) = (self.agent.clone(), dialing.plan.run);
        let was = std::mem::replace(&mut dialing.level, level);
        if level != Liveness::Crashed {
            self.dialing = Some(dialing);
        }
        if level != was {
            let living = LiveSandbox::new(None, Vec::new(), Vec::new());
            living.set_liveness(level);
            self.context.set_living(&agent, Arc::new(living));
            tracing::warn!(event = "agent.liveness", %agent, level = level.word(), part = ?AgentComponent::Sandbox);
            self.context
                .report(Observation::Agent(AgentObservation::Silent {
                    agent,
                    run,
                    level,
                    part: AgentComponent::Sandbox,
                }))
                .await;
        }
    }
}
