//! The effects of a daemon's executor on the machine: starts, dials and kills keepers, and reads the files of dead ones.

use std::sync::Arc;

use lodge_core::{AgentId, SandboxId};
use lodge_exec::{
    DialError, Evidence, ExecName, ExecState, KeeperSecret, KnownExec, Layer, Link, SandboxSpec, Welcome,
};

use crate::link::{LinkQueue, SimReceiver, SimSender};
use crate::machine::{KeeperLink, SimExecState, known_name};
use crate::plan::{CommitPoint, SimMutation};
use crate::port::SimPort;
use crate::world::SimWorld;

/// Commands that a stopped keeper's socket holds.
const UNREAD_MAX: usize = 32;

impl SimWorld {
    /// Starts a keeper unless there is one. False: it died while it started.
    pub fn start_keeper(&mut self, id: &SandboxId, spec: &SandboxSpec) -> bool {
        if self.machine.is_held(id) {
            return true;
        }
        let Some(agent) = self.disk.agent_of_sandbox(id) else {
            self.fail(format!("{id} starts, and no agent has it"));
            return false;
        };
        let sandbox = self.machine.sandbox(id, &agent);
        if sandbox.spawn_fails > 0 {
            sandbox.spawn_fails -= 1;
            return false;
        }
        self.keeper_starts(id, &agent, (spec.incarnation, spec.secret.clone()));
        true
    }

    pub fn is_hung(&self, id: &SandboxId) -> bool {
        let keeper = self.machine.sandboxes.get(id).and_then(|sandbox| sandbox.keeper.as_ref());
        keeper.is_some_and(|keeper| keeper.hung)
    }

    /// Whether the socket of a stopped keeper is full.
    pub fn is_clogged(&self, id: &SandboxId, link: u64) -> bool {
        let keeper = self.machine.sandboxes.get(id).and_then(|sandbox| sandbox.keeper.as_ref());
        keeper.is_some_and(|keeper| keeper.is_clogged(link, UNREAD_MAX))
    }

    pub fn keeper_serial(&self, id: &SandboxId) -> Option<u64> {
        Some(self.machine.sandboxes.get(id)?.keeper.as_ref()?.serial)
    }

    /// A daemon authenticates to a keeper, and gets its welcome.
    pub fn connect(
        &mut self,
        port: &SimPort,
        id: &SandboxId,
        secret: &KeeperSecret,
        epoch: u64,
    ) -> Result<Link, DialError> {
        let (sandbox_name, serial) = (id.to_string(), self.serial());
        let hides = self.mutation == SimMutation::HastyDeath;
        let no_keeper = || DialError::NoKeeper {
            sandbox: id.to_string(),
            cause: std::io::ErrorKind::ConnectionRefused.into(),
        };
        let Some(sandbox) = self.machine.sandboxes.get_mut(id) else { return Err(no_keeper()) };
        let Some(keeper) = &mut sandbox.keeper else { return Err(no_keeper()) };
        if !keeper.knows(secret) {
            return Err(DialError::WrongSecret { sandbox: sandbox_name });
        }
        if !keeper.accepts(epoch) {
            return Err(DialError::OldEpoch { sandbox: sandbox_name, current: keeper.newest_epoch() });
        }
        let queue = Arc::new(LinkQueue::default());
        let earlier = keeper.link.replace(KeeperLink::new(serial, &queue));
        let (keeper_serial, incarnation) = (keeper.serial, keeper.incarnation);
        let (version, has_root) = (keeper.version, keeper.has_root);
        if let Some(earlier) = earlier {
            earlier.close();
        }
        let sandbox = &self.machine.sandboxes[id];
        // The bug that reports deaths too early must not see what still runs.
        let seen = |exec: &&ExecName| !hides || !matches!(exec, ExecName::Runtime { .. });
        let execs = sandbox.shelf.keys().filter(seen).map(|exec| KnownExec {
            exec: exec.to_string(),
            kind: exec.kind(),
            state: match sandbox.known(exec) {
                SimExecState::Running(run) => {
                    ExecState::Running { pid: u32::try_from(run).unwrap_or(u32::MAX) }
                }
                SimExecState::Exited(ended) => {
                    ExecState::Exited(sandbox.record(exec, ended, self.is_limited(exec)))
                }
                SimExecState::Lost => ExecState::Lost,
            },
        });
        let welcome = Welcome {
            proof: [0; 32],
            version,
            incarnation,
            host_pid: None,
            layers: vec![Layer {
                name: "private_root".to_owned(),
                missing: (!has_root).then(|| "the host forbids mounts".to_owned()),
            }],
            execs: execs.collect(),
            limits: Vec::new(),
        };
        self.trace_line(|| format!("link {serial} to keeper {keeper_serial} of {id}"));
        let sender =
            SimSender { port: port.clone(), sandbox: id.clone(), link: serial, keeper: keeper_serial };
        Ok(Link { welcome, sender: Arc::new(sender), receiver: Box::new(SimReceiver(queue)) })
    }

    /// Whether the daemon dies now: it has just found a running runtime.
    pub fn dies_adopting(&mut self, id: &SandboxId) -> bool {
        let keeper = self.machine.sandboxes.get(id).and_then(|sandbox| sandbox.keeper.as_ref());
        let runs = keeper.is_some_and(|keeper| keeper.runtime.is_some());
        runs && self.die_at.take_if(|point| *point == CommitPoint::Adopted).is_some()
    }

    /// The daemon closes its end.
    pub fn close_link(&mut self, id: &SandboxId, link: u64) {
        if let Some(keeper) = self.machine.keeper(id) {
            keeper.link.take_if(|known| known.serial == link).into_iter().for_each(|link| link.close());
        }
    }

    /// Kills a keeper, unless it cannot be killed this time. True: it is gone.
    pub fn try_kill_keeper(&mut self, id: &SandboxId) -> bool {
        let Some(sandbox) = self.machine.sandboxes.get_mut(id) else { return true };
        if sandbox.keeper.is_some() && sandbox.sticks > 0 {
            sandbox.sticks -= 1;
            sandbox.given_up = true;
            return false;
        }
        self.keeper_dies(id, "it was killed by the daemon");
        true
    }

    /// The evidence in the directory of an exec.
    pub fn evidence(&self, id: &SandboxId, exec: &str) -> Evidence {
        let Some(exec) = known_name(exec) else { return Evidence::NoClaim };
        let Some(sandbox) = self.machine.sandboxes.get(id) else { return Evidence::NoClaim };
        match sandbox.shelf.get(&exec) {
            None => Evidence::NoClaim,
            Some(None) => Evidence::Claimed,
            Some(Some(ended)) => Evidence::Exited(sandbox.record(&exec, *ended, self.is_limited(&exec))),
        }
    }

    /// Removes all files of a removed agent.
    pub fn remove_agent_files(&mut self, agent: &AgentId) -> Result<(), String> {
        let Some(id) = self.disk.agent(agent).map(|row| row.sandbox.clone()) else { return Ok(()) };
        let sandbox = self.machine.sandbox(&id, agent);
        if sandbox.keeper.is_some() || sandbox.files_stick > 0 {
            sandbox.files_stick = sandbox.files_stick.saturating_sub(1);
            return Err("something is still there".to_owned());
        }
        self.remove_sandbox_files(&id);
        self.machine.sandboxes.remove(&id);
        Ok(())
    }
}
