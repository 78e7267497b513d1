//! The sweep over the sandboxes: probes each by its lock, and removes leftovers of dead ones that are not needed.
//!
//! Never signals a process: a live sandbox is counted and left alone in any state of its agent. A dead one of an agent
//! that is recorded as running is reported to the engine like any other observation.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use lodge_core::agent::AgentState;
use lodge_core::record::AgentRow;
use lodge_core::sandbox::SandboxState;
use lodge_core::{AgentId, SandboxId};
use lodge_proto::{NotPrunedView, PrunedView, Reaped};
use lodge_store::ReadError;

use crate::act::{PruneOutcome, prune};
use crate::chain;
use crate::shell::Shell;
use lodge_engine::{AgentComponent, AgentObservation, Effect, Observation, StandaloneEffect};

/// The interval of automatic sweeps.
const SWEEP_EVERY: Duration = Duration::from_secs(10 * 60);
/// How long the rest of a dead sandbox may take to be gone before the next sweep has to look again.
const GONE_WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SandboxLock {
    Held,
    Free,
}

/// Whose sandbox it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SandboxOwner {
    Nobody,
    Agent(AgentState),
    Standalone(SandboxState),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SandboxVerdict {
    Alive,
    /// Its agent should run and does not.
    Died,
    /// About to have a keeper again, or being cleared away.
    Kept,
    /// Its own task removes what is left, unless it was started again.
    Tidy,
    /// It is not needed, unless work of its agent is open.
    Prune(&'static str),
}

fn judge(lock: SandboxLock, owner: SandboxOwner) -> SandboxVerdict {
    use AgentState as S;
    match (lock, owner) {
        (SandboxLock::Held, SandboxOwner::Nobody | SandboxOwner::Agent(_) | SandboxOwner::Standalone(_)) => {
            SandboxVerdict::Alive
        }
        (SandboxLock::Free, SandboxOwner::Standalone(state)) => match state {
            // Its own task knows, or is about to.
            SandboxState::Pending | SandboxState::Ready | SandboxState::Stopping | SandboxState::Deleting => {
                SandboxVerdict::Kept
            }
            SandboxState::Stopped | SandboxState::Failed | SandboxState::Deleted => SandboxVerdict::Tidy,
        },
        (SandboxLock::Free, SandboxOwner::Nobody) => SandboxVerdict::Prune("no agent has it"),
        (SandboxLock::Free, SandboxOwner::Agent(S::Ready)) => SandboxVerdict::Died,
        (SandboxLock::Free, SandboxOwner::Agent(S::Pulling | S::Starting | S::Removing)) => {
            SandboxVerdict::Kept
        }
        (SandboxLock::Free, SandboxOwner::Agent(S::Stopped)) => SandboxVerdict::Prune("its agent is stopped"),
        (SandboxLock::Free, SandboxOwner::Agent(S::Failed(_))) => {
            SandboxVerdict::Prune("its agent has failed")
        }
        (SandboxLock::Free, SandboxOwner::Agent(S::Removed)) => {
            SandboxVerdict::Prune("its agent was removed")
        }
    }
}

/// Sweeps now and then, for as long as the daemon lives.
pub async fn sweep_regularly(shell: Arc<Shell>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        match reap(&shell).await {
            Ok(reaped) if reaped.pruned.is_empty() && reaped.failed.is_empty() && reaped.dead.is_empty() => {}
            Ok(reaped) => {
                let (pruned, failed, dead) = (reaped.pruned.len(), reaped.failed.len(), reaped.dead.len());
                tracing::info!(event = "sandboxes.swept", pruned, failed, dead);
            }
            Err(error) => tracing::warn!(event = "sandboxes.not_swept", error = chain(&error)),
        }
    }
}

/// Sweeps once.
pub async fn reap(shell: &Arc<Shell>) -> Result<Reaped, ReadError> {
    let _alone = shell.sweep.lock().await;
    // In this order: a directory that is listed belongs to an agent that is recorded, and a sandbox of an agent that is
    // recorded as running had a keeper.
    let directories: HashSet<String> = shell.executor.sandboxes().await.into_iter().collect();
    let agents = shell.reader.read(|store| store.agents(None, u32::MAX)).await?;
    let agents: HashMap<String, AgentRow> =
        agents.into_iter().map(|found| (found.row.sandbox.to_string(), found.row)).collect();
    let states = shell.reader.read(|store| store.sandbox_states()).await?;
    let standalones: HashMap<String, (SandboxId, SandboxState)> =
        states.into_iter().map(|(id, state)| (id.to_string(), (id, state))).collect();
    let running = agents.values().filter(|row| row.state == AgentState::Ready);
    let mut sandboxes: Vec<String> =
        directories.iter().cloned().chain(running.map(|row| row.sandbox.to_string())).collect();
    sandboxes.sort();
    sandboxes.dedup();
    let mut reaped = Reaped {
        probed: sandboxes.len() as u64,
        alive: 0,
        kept: 0,
        pruned: Vec::new(),
        dead: Vec::new(),
        forgotten: 0,
        failed: Vec::new(),
    };
    for sandbox in sandboxes {
        let row = agents.get(&sandbox);
        let lock = if shell.executor.is_held(&sandbox) { SandboxLock::Held } else { SandboxLock::Free };
        let standalone = standalones.get(&sandbox);
        let owner = match (row, standalone) {
            (Some(row), _) => SandboxOwner::Agent(row.state),
            (None, Some((_, state))) => SandboxOwner::Standalone(*state),
            (None, None) => SandboxOwner::Nobody,
        };
        if lock == SandboxLock::Free && shell.executor.has_leftovers(&sandbox).await {
            // The start, stop or removal of the agent ends them.
            let detail = "processes of its dead keeper are left".to_owned();
            reaped.failed.push(NotPrunedView { sandbox, detail });
            continue;
        }
        match judge(lock, owner) {
            SandboxVerdict::Alive => reaped.alive += 1,
            SandboxVerdict::Kept => reaped.kept += 1,
            SandboxVerdict::Tidy => {
                reaped.kept += 1;
                if let Some((id, _)) = standalone {
                    tidy(shell, id).await?;
                }
            }
            SandboxVerdict::Died => {
                if let Some(row) = row {
                    died(shell, row, &mut reaped).await;
                }
            }
            SandboxVerdict::Prune(why) => take_away(shell, sandbox, row, why, &mut reaped).await,
        }
    }
    reaped.forgotten = forget_heartbeats(shell, &agents);
    Ok(reaped)
}

/// An exec whose outcome is not recorded yet may have its only record there.
async fn tidy(shell: &Arc<Shell>, sandbox: &SandboxId) -> Result<(), ReadError> {
    let id = sandbox.clone();
    if !shell.reader.read(move |store| store.has_open_exec(&id)).await? {
        let (sandbox, what) = (sandbox.clone(), StandaloneEffect::Tidy);
        let context = Arc::clone(shell);
        // The queue of a task may be full, and then the writer's thread would wait, not an async worker.
        tokio::task::spawn_blocking(move || context.act(Effect::Standalone { sandbox, what }));
    }
    Ok(())
}

/// The engine decides, as about every death. A known death changes nothing.
async fn died(shell: &Arc<Shell>, row: &AgentRow, reaped: &mut Reaped) {
    reaped.kept += 1;
    if !shell.executor.wait_gone(row.sandbox.as_str(), GONE_WITHIN).await {
        return;
    }
    reaped.dead.push(row.id.to_string());
    let (agent, run, detail) = (row.id.clone(), row.runs, "its sandbox was found dead".to_owned());
    shell
        .report(Observation::Agent(AgentObservation::Died {
            agent,
            run,
            part: AgentComponent::Sandbox,
            detail,
        }))
        .await;
}

async fn take_away(
    shell: &Arc<Shell>,
    sandbox: String,
    row: Option<&AgentRow>,
    why: &'static str,
    reaped: &mut Reaped,
) {
    let pruning = match row {
        Some(row) => prune(shell, &row.sandbox, &row.id).await,
        None => match shell.executor.remove(&sandbox).await {
            Ok(()) => PruneOutcome::Pruned,
            Err(error) => PruneOutcome::Failed { detail: chain(&error) },
        },
    };
    match pruning {
        PruneOutcome::Pruned => {
            let agent = row.map(|row| row.id.to_string());
            reaped.pruned.push(PrunedView { sandbox, agent, why: why.to_owned() });
        }
        PruneOutcome::Needed => reaped.kept += 1,
        PruneOutcome::Failed { detail } => reaped.failed.push(NotPrunedView { sandbox, detail }),
    }
}

/// Heartbeats of a dead sandbox say nothing about the next one.
fn forget_heartbeats(shell: &Shell, agents: &HashMap<String, AgentRow>) -> u64 {
    let sandboxes: HashMap<&AgentId, &str> =
        agents.values().map(|row| (&row.id, row.sandbox.as_str())).collect();
    let mut forgotten = 0;
    for (agent, living) in shell.all_living() {
        // One that is not recorded was removed; one that was connected had a keeper.
        let lives = sandboxes.get(&agent).is_some_and(|sandbox| shell.executor.is_held(sandbox));
        if !lives && shell.forget_living(&agent, &living) {
            forgotten += 1;
        }
    }
    forgotten
}

#[cfg(test)]
mod tests {
    use super::*;
    use lodge_core::agent::FailReason;

    #[test]
    fn live_sandboxes_are_left_alone_and_only_unneeded_ones_are_removed() {
        use AgentState as S;
        let states =
            [S::Pulling, S::Starting, S::Ready, S::Stopped, S::Failed(FailReason::Crashed), S::Removing];
        let owners = states
            .map(SandboxOwner::Agent)
            .into_iter()
            .chain([SandboxOwner::Agent(S::Removed), SandboxOwner::Nobody]);
        for owner in owners {
            assert_eq!(judge(SandboxLock::Held, owner), SandboxVerdict::Alive, "{owner:?}");
            let pruned = matches!(judge(SandboxLock::Free, owner), SandboxVerdict::Prune(_));
            let needed = match owner {
                SandboxOwner::Agent(S::Pulling | S::Starting | S::Ready | S::Removing) => true,
                SandboxOwner::Agent(S::Stopped | S::Failed(_) | S::Removed)
                | SandboxOwner::Nobody
                | SandboxOwner::Standalone(_) => false,
            };
            assert_eq!(pruned, !needed, "{owner:?}");
        }
        assert_eq!(judge(SandboxLock::Free, SandboxOwner::Agent(S::Ready)), SandboxVerdict::Died);
    }
}
