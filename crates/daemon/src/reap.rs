//! The sweep over the sandboxes: probes each by its lock, and takes away what the dead left and nobody needs.
//!
//! Never signals anything: a sandbox that lives is counted and left alone, whatever its agent's state
//! is. A dead one of an agent that is recorded as running is told to the engine like any other observation.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use lodge_core::AgentId;
use lodge_core::agent::AgentState;
use lodge_core::record::AgentRow;
use lodge_proto::{NotPrunedView, PrunedView, Reaped};
use lodge_store::ReadError;

use crate::act::{Pruning, prune};
use crate::chain;
use crate::shell::Shell;
use lodge_engine::{AgentSeen, Part, Seen};

/// Between two sweeps that nobody asked for.
const SWEEP_EVERY: Duration = Duration::from_secs(10 * 60);
/// How long the rest of a dead sandbox may take to be gone before the next sweep has to look again.
const GONE_WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lock {
    Held,
    Free,
}

/// Whose sandbox it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Nobody,
    Agent(AgentState),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Alive,
    /// Its agent should run and does not.
    Died,
    /// About to have a keeper again, or being cleared away.
    Kept,
    /// Nobody needs it, unless work of its agent is open.
    Prune(&'static str),
}

fn judge(lock: Lock, owner: Owner) -> Verdict {
    use AgentState as S;
    match (lock, owner) {
        (Lock::Held, Owner::Nobody | Owner::Agent(_)) => Verdict::Alive,
        (Lock::Free, Owner::Nobody) => Verdict::Prune("no agent has it"),
        (Lock::Free, Owner::Agent(S::Ready)) => Verdict::Died,
        (Lock::Free, Owner::Agent(S::Pulling | S::Starting | S::Removing)) => Verdict::Kept,
        (Lock::Free, Owner::Agent(S::Stopped)) => Verdict::Prune("its agent is stopped"),
        (Lock::Free, Owner::Agent(S::Failed(_))) => Verdict::Prune("its agent has failed"),
        (Lock::Free, Owner::Agent(S::Removed)) => Verdict::Prune("its agent was removed"),
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
        let lock = if shell.executor.is_held(&sandbox) { Lock::Held } else { Lock::Free };
        let owner = row.map_or(Owner::Nobody, |row| Owner::Agent(row.state));
        if lock == Lock::Free && shell.executor.has_leftovers(&sandbox).await {
            // Ending them is for whoever starts, stops or removes the agent.
            let detail = "processes of its dead keeper are left".to_owned();
            reaped.failed.push(NotPrunedView { sandbox, detail });
            continue;
        }
        match judge(lock, owner) {
            Verdict::Alive => reaped.alive += 1,
            Verdict::Kept => reaped.kept += 1,
            Verdict::Died => {
                if let Some(row) = row {
                    died(shell, row, &mut reaped).await;
                }
            }
            Verdict::Prune(why) => take_away(shell, sandbox, row, why, &mut reaped).await,
        }
    }
    reaped.forgotten = forget_heartbeats(shell, &agents);
    Ok(reaped)
}

/// The engine decides, as about every death; one that it knows of already changes nothing.
async fn died(shell: &Arc<Shell>, row: &AgentRow, reaped: &mut Reaped) {
    reaped.kept += 1;
    if !shell.executor.wait_gone(row.sandbox.as_str(), GONE_WITHIN).await {
        return;
    }
    reaped.dead.push(row.id.to_string());
    let (agent, run, detail) = (row.id.clone(), row.runs, "its sandbox was found dead".to_owned());
    shell.tell(Seen::Agent(AgentSeen::Died { agent, run, part: Part::Sandbox, detail })).await;
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
            Ok(()) => Pruning::Pruned,
            Err(error) => Pruning::Failed { detail: chain(&error) },
        },
    };
    match pruning {
        Pruning::Pruned => {
            let agent = row.map(|row| row.id.to_string());
            reaped.pruned.push(PrunedView { sandbox, agent, why: why.to_owned() });
        }
        Pruning::Needed => reaped.kept += 1,
        Pruning::Failed { detail } => reaped.failed.push(NotPrunedView { sandbox, detail }),
    }
}

/// What was asked from a sandbox that is dead says nothing about the next one.
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
    fn whatever_lives_is_left_alone_and_only_what_nobody_needs_is_taken_away() {
        use AgentState as S;
        let states =
            [S::Pulling, S::Starting, S::Ready, S::Stopped, S::Failed(FailReason::Crashed), S::Removing];
        let owners = states.map(Owner::Agent).into_iter().chain([Owner::Agent(S::Removed), Owner::Nobody]);
        for owner in owners {
            assert_eq!(judge(Lock::Held, owner), Verdict::Alive, "{owner:?}");
            let pruned = matches!(judge(Lock::Free, owner), Verdict::Prune(_));
            let needed = match owner {
                Owner::Agent(S::Pulling | S::Starting | S::Ready | S::Removing) => true,
                Owner::Agent(S::Stopped | S::Failed(_) | S::Removed) | Owner::Nobody => false,
            };
            assert_eq!(pruned, !needed, "{owner:?}");
        }
        assert_eq!(judge(Lock::Free, Owner::Agent(S::Ready)), Verdict::Died);
    }
}
