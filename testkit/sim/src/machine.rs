//! The machine: sandboxes, keepers, their claims and records.
//!
//! Owns: the state that outlives a daemon. The behaviour of keepers is in `keeper.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use lodge_core::{AgentId, JobId, SandboxId};
use lodge_exec::{
    ExecKind, ExecName, ExitOutcome, ExitRecord, KeeperCommand, KeeperSecret, LimitHit, Resource,
    ResourceUsage, StreamCount,
};

use crate::jobs::JobFile;
use crate::link::LinkQueue;
use crate::runtime::SimRuntime;

#[derive(Debug, Default)]
pub struct SimMachine {
    /// Changes with every start of the machine.
    pub boot: u64,
    pub sandboxes: BTreeMap<SandboxId, SimSandbox>,
}

#[derive(Debug)]
pub struct SimSandbox {
    pub agent: AgentId,
    /// Claimed execs, with their record once they ended. Outlives its keepers.
    pub shelf: BTreeMap<ExecName, Option<SimExit>>,
    /// The output of jobs.
    pub files: BTreeMap<JobId, JobFile>,
    pub keeper: Option<SimKeeper>,
    /// How often the next attempts to end it, to clear it and to start in it fail.
    pub sticks: u32,
    pub files_stick: u32,
    pub spawn_fails: u32,
    /// An attempt to end it failed, and the caller got that error.
    pub given_up: bool,
}

#[derive(Debug)]
pub struct SimKeeper {
    pub serial: u64,
    pub incarnation: u32,
    /// The version of the link that it speaks, and whether the host let it build a root.
    pub version: u32,
    pub has_root: bool,
    pub secret: KeeperSecret,
    /// The newest daemon that connected.
    pub epoch: u64,
    /// The connection that it reads from and writes to.
    pub link: Option<KeeperLink>,
    /// The earliest arrival of the next event at the daemon, because a link keeps its order. The same for commands.
    pub up_at: u64,
    pub down_at: u64,
    pub running: BTreeMap<ExecName, SimExec>,
    /// Execs that ended under this keeper. Their remaining processes can still be killed.
    pub ended: BTreeSet<ExecName>,
    pub runtime: Option<SimRuntime>,
    pub ending: bool,
    /// Stopped: it reads and records nothing until it wakes.
    pub hung: bool,
    pub unread: Vec<(u64, KeeperCommand)>,
}

/// The keeper's end of a link.
#[derive(Debug, Clone)]
pub struct KeeperLink {
    pub serial: u64,
    pub queue: Weak<LinkQueue>,
}

#[derive(Debug, Clone, Copy)]
pub struct SimExec {
    pub run: u64,
    pub doomed: bool,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimExit {
    Code(i32),
    Signal(i32),
    NotStarted,
}

/// A claimed exec, as its keeper knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimExecState {
    Running(u64),
    Exited(SimExit),
    Lost,
}

impl SimMachine {
    pub fn is_held(&self, sandbox: &SandboxId) -> bool {
        self.sandboxes.get(sandbox).is_some_and(|sandbox| sandbox.keeper.is_some())
    }

    pub fn keeper(&mut self, sandbox: &SandboxId) -> Option<&mut SimKeeper> {
        self.sandboxes.get_mut(sandbox)?.keeper.as_mut()
    }

    pub fn sandbox(&mut self, id: &SandboxId, agent: &AgentId) -> &mut SimSandbox {
        self.sandboxes.entry(id.clone()).or_insert_with(|| SimSandbox {
            agent: agent.clone(),
            shelf: BTreeMap::new(),
            files: BTreeMap::new(),
            keeper: None,
            sticks: 0,
            files_stick: 0,
            spawn_fails: 0,
            given_up: false,
        })
    }
}

impl SimSandbox {
    pub fn known(&self, exec: &ExecName) -> SimExecState {
        let running = self.keeper.as_ref().and_then(|keeper| keeper.running.get(exec));
        match (running, self.shelf.get(exec)) {
            (Some(running), _) => SimExecState::Running(running.run),
            (None, Some(Some(ended))) => SimExecState::Exited(*ended),
            (None, Some(None) | None) => SimExecState::Lost,
        }
    }

    /// The exit record of an ended exec.
    pub fn record(&self, exec: &ExecName, ended: SimExit, is_limited: bool) -> ExitRecord {
        let wrote = match exec {
            ExecName::Job(job) => self.files.get(job).map_or(0, |file| file.wrote),
            ExecName::Tool(_) | ExecName::Command(_) => 3,
            ExecName::Runtime { .. } => 0,
        };
        let by_limit = is_limited && ended == SimExit::Signal(9);
        ExitRecord {
            ended: match ended {
                SimExit::Code(code) => ExitOutcome::Code(code),
                SimExit::Signal(signal) => ExitOutcome::Signal(signal),
                SimExit::NotStarted => {
                    ExitOutcome::NotStarted { errno: 2, why: "no such program".to_owned() }
                }
            },
            started_ms: 0,
            finished_ms: 0,
            stdout: StreamCount { seen: wrote, kept: wrote },
            stderr: StreamCount::default(),
            usage: ResourceUsage::default(),
            note: String::new(),
            cause: by_limit.then_some(LimitHit { resource: Resource::Time, limit: 60_000, used: 60_000 }),
        }
    }
}

impl SimKeeper {
    pub fn knows(&self, secret: &KeeperSecret) -> bool {
        self.secret.expose() == secret.expose()
    }

    /// Whether a daemon of this epoch may connect. Older daemons may not connect after it.
    pub fn accepts(&mut self, epoch: u64) -> bool {
        let newer = epoch >= self.epoch;
        self.epoch = self.epoch.max(epoch);
        newer
    }

    pub fn newest_epoch(&self) -> u64 {
        self.epoch
    }

    pub fn is_clogged(&self, link: u64, unread_max: usize) -> bool {
        let is_current = self.link.as_ref().is_some_and(|known| known.serial == link);
        self.hung && is_current && self.unread.len() > unread_max
    }
}

impl KeeperLink {
    pub fn new(serial: u64, queue: &Arc<LinkQueue>) -> KeeperLink {
        KeeperLink { serial, queue: Arc::downgrade(queue) }
    }

    pub fn close(&self) {
        if let Some(queue) = self.queue.upgrade() {
            queue.close();
        }
    }
}

/// The exec with this id. Its kind shows in the id.
pub fn known_name(exec: &str) -> Option<ExecName> {
    ExecName::from_link(ExecKind::of_id(exec), exec)
}
