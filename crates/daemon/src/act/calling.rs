//! A keeper that holds its lock is called until it answers, or was silent for too long.

use std::sync::Arc;
use std::time::Duration;

use lodge_core::liveness::{Liveness, Silence};
use lodge_exec::DialError;
use tokio::time::Instant;

use super::actor::Actor;
use crate::chain;
use crate::view::Living;
use lodge_engine::{AgentSeen, Part, SandboxPlan, Seen, Up};

/// Between two calls.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Calling {
    plan: SandboxPlan,
    how: Up,
    pub next: Instant,
    last: Instant,
    silence: Silence,
    level: Liveness,
}

impl Calling {
    pub(super) fn new(plan: SandboxPlan, how: Up) -> Self {
        let now = Instant::now();
        Calling { plan, how, next: now, last: now, silence: Silence::default(), level: Liveness::Active }
    }
}

impl Actor {
    /// One call. Whatever else has to be done can be done between two of them.
    pub(super) async fn call(&mut self) {
        let Some(calling) = self.calling.take() else { return };
        let Calling { plan, how, .. } = &*calling;
        let image = match self.image_of(plan).await {
            Ok(image) => image,
            Err(detail) => return self.not_started(plan.run, detail).await,
        };
        let secret = self.secret(plan.incarnation);
        let sandbox = self.sandbox.as_str();
        let dial = self.shell.executor.dial(sandbox, &secret, self.shell.epoch);
        match tokio::time::timeout(self.thresholds().pause() * 2, dial).await {
            Ok(Ok(link)) => self.connected(link, plan.clone(), image, *how).await,
            Ok(Err(DialError::WrongSecret { .. })) if plan.incarnation > 1 => {
                // An earlier incarnation has not ended yet. It must, before there is another.
                let ended = match self.dial_any(plan.incarnation).await {
                    Some(old) => self.end(&*old).await,
                    None => self.kill().await,
                };
                match ended {
                    Ok(()) => self.start(plan.clone(), *how).await,
                    Err(detail) => self.not_started(plan.run, detail).await,
                }
            }
            Ok(Err(error @ (DialError::WrongSecret { .. } | DialError::OldEpoch { .. }))) => {
                self.not_started(plan.run, chain(&error)).await;
            }
            // It ends, it is about to answer, or it hangs.
            Ok(Err(_)) | Err(_) if !self.is_held() => {
                Box::pin(self.bring_up(plan.clone(), *how)).await;
            }
            Ok(Err(_)) | Err(_) => self.call_again(calling).await,
        }
    }

    async fn call_again(&mut self, mut calling: Box<Calling>) {
        let now = Instant::now();
        let since = now - calling.last;
        (calling.last, calling.next) = (now, now + PAUSE);
        let level = calling.silence.look(since, self.thresholds());
        let (agent, run) = (self.agent.clone(), calling.plan.run);
        let was = std::mem::replace(&mut calling.level, level);
        if level != Liveness::Crashed {
            self.calling = Some(calling);
        }
        if level != was {
            let living = Living::new(None, Vec::new(), Vec::new());
            living.set_liveness(level);
            self.shell.set_living(&agent, Some(Arc::new(living)));
            tracing::warn!(event = "agent.liveness", %agent, level = level.word(), part = ?Part::Sandbox);
            self.shell.tell(Seen::Agent(AgentSeen::Silent { agent, run, level, part: Part::Sandbox })).await;
        }
    }
}
