//! A keeper that holds its lock is called until it answers, or was silent for too long.

use std::sync::Arc;
use std::time::Duration;

use lodge_core::liveness::{Liveness, Silence};
use lodge_core::record::AgentRow;
use lodge_exec::DialError;
use tokio::time::Instant;

use super::actor::Actor;
use crate::chain;
use crate::view::Living;
use lodge_engine::{AgentSeen, Part, Seen, Up};

/// Between two calls.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Calling {
    row: AgentRow,
    how: Up,
    pub next: Instant,
    last: Instant,
    silence: Silence,
    level: Liveness,
}

impl Calling {
    pub(super) fn new(row: AgentRow, how: Up) -> Self {
        let now = Instant::now();
        Calling { row, how, next: now, last: now, silence: Silence::default(), level: Liveness::Active }
    }
}

impl Actor {
    /// One call. Whatever else has to be done can be done between two of them.
    pub(super) async fn call(&mut self) {
        let Some(calling) = self.calling.take() else { return };
        let Calling { row, how, .. } = &*calling;
        let image = match self.image_of(row).await {
            Ok(image) => image,
            Err(detail) => return self.not_started(row.runs, detail).await,
        };
        let secret = self.secret(row, row.incarnation);
        let sandbox = row.sandbox.as_str();
        let dial = self.shell.executor.dial(sandbox, &secret, self.shell.epoch);
        match tokio::time::timeout(self.thresholds().pause() * 2, dial).await {
            Ok(Ok(link)) => self.connected(link, row.clone(), image, *how).await,
            Ok(Err(DialError::WrongSecret { .. })) if row.incarnation > 1 => {
                // An earlier incarnation has not ended yet. It must, before there is another.
                let ended = match self.dial_any(row).await {
                    Some(old) => self.end(sandbox, &*old).await,
                    None => self.kill(sandbox).await,
                };
                match ended {
                    Ok(()) => self.start(row.clone(), *how).await,
                    Err(detail) => self.not_started(row.runs, detail).await,
                }
            }
            Ok(Err(error @ (DialError::WrongSecret { .. } | DialError::OldEpoch { .. }))) => {
                self.not_started(row.runs, chain(&error)).await;
            }
            // It ends, it is about to answer, or it hangs.
            Ok(Err(_)) | Err(_) if !self.shell.executor.is_held(sandbox) => {
                Box::pin(self.bring_up(row.clone(), *how)).await;
            }
            Ok(Err(_)) | Err(_) => self.call_again(calling).await,
        }
    }

    async fn call_again(&mut self, mut calling: Box<Calling>) {
        let now = Instant::now();
        let since = now - calling.last;
        (calling.last, calling.next) = (now, now + PAUSE);
        let level = calling.silence.look(since, self.thresholds());
        let (agent, run) = (self.agent.clone(), calling.row.runs);
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
