//! Dials the keeper of a standalone sandbox that holds its lock, until it answers or was silent for too long.

use std::time::Duration;

use lodge_core::liveness::{Liveness, Silence};
use lodge_engine::{StandalonePlan, StartMode};
use lodge_exec::DialError;
use tokio::time::Instant;

use super::StandaloneTask;
use crate::chain;

/// The pause between two dials.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause while the daemon itself cannot dial.
const SHORTAGE_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct StandaloneDial {
    plan: StandalonePlan,
    how: StartMode,
    pub next: Instant,
    last: Instant,
    silence: Silence,
}

impl StandaloneDial {
    pub(super) fn new(plan: StandalonePlan, how: StartMode) -> StandaloneDial {
        let now = Instant::now();
        StandaloneDial { plan, how, next: now, last: now, silence: Silence::default() }
    }
}

impl StandaloneTask {
    /// Dials once. The task handles its orders between two dials.
    pub(super) async fn dial(&mut self) {
        let Some(mut dialing) = self.dialing.take() else { return };
        let StandaloneDial { plan, how, .. } = &*dialing;
        let secret = self.keeper().secret(plan.incarnation);
        let dial = self.context.executor.dial(self.sandbox.as_str(), &secret, self.context.epoch);
        match tokio::time::timeout(self.context.config.thresholds().pause() * 2, dial).await {
            Ok(Ok(link)) => self.attach_link(link, plan.clone()).await,
            Ok(Err(DialError::WrongSecret { .. })) if plan.incarnation > 1 => {
                // An earlier incarnation still runs. It has to end before the next one starts.
                let ended = match self.keeper().dial_any(plan.incarnation).await {
                    Some(old) => self.keeper().end(&*old).await,
                    None => self.keeper().kill().await,
                };
                match ended {
                    Ok(()) => self.start(plan.clone()).await,
                    Err(detail) => self.report_start_failure(plan.incarnation, detail).await,
                }
            }
            Ok(Err(error @ (DialError::WrongSecret { .. } | DialError::OldEpoch { .. }))) => {
                self.report_start_failure(plan.incarnation, chain(&error)).await;
            }
            // The daemon is short of descriptors or memory, which says nothing about the keeper.
            Ok(Err(error)) if error.is_shortage() => {
                let now = Instant::now();
                (dialing.last, dialing.next) = (now, now + SHORTAGE_PAUSE);
                self.dialing = Some(dialing);
            }
            // The keeper ended. Otherwise it is about to answer, or it hangs.
            Ok(Err(_)) | Err(_) if !self.keeper().is_held() => {
                Box::pin(self.open(plan.clone(), *how)).await;
            }
            Ok(Err(_)) | Err(_) => self.redial(dialing).await,
        }
    }

    async fn redial(&mut self, mut dialing: Box<StandaloneDial>) {
        let now = Instant::now();
        let since = now - dialing.last;
        (dialing.last, dialing.next) = (now, now + PAUSE);
        match dialing.silence.look(since, self.context.config.thresholds()) {
            Liveness::Active | Liveness::Stale => self.dialing = Some(dialing),
            Liveness::Crashed => {
                let incarnation = dialing.plan.incarnation;
                match self.keeper().kill().await {
                    Ok(()) => {
                        let detail = "its keeper did not answer, and was killed";
                        self.report_death(incarnation, detail).await;
                    }
                    Err(detail) => self.report_start_failure(incarnation, detail).await,
                }
            }
        }
    }
}
