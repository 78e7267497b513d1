//! Sandboxes: keepers, their claims and records, the programs that run, and what those do to the world.
//!
//! Owns: everything that outlives a daemon. Effects are counted here, outside of everything that the engine knows.

use std::collections::{BTreeMap, BTreeSet};

use lodge_core::record::StepKind;
use lodge_core::{AgentId, ExecId, JobId, SandboxId};

use crate::jobs::JobFile;
use crate::plan::Mutation;
use crate::runtime::{LineFromRuntime, LineToRuntime, SimRuntime};
use crate::world::{SimEvent, SimWorld};

/// Between asking a program to end and killing it.
pub const GRACE_MS: u64 = 5_000;
/// How often the end of a program under a stopped keeper is looked at.
const HUNG_MS: u64 = 1_000;

#[derive(Debug, Default)]
pub struct SimMachine {
    /// Another number after every start of the machine.
    pub boot: u64,
    pub sandboxes: BTreeMap<SandboxId, SimSandbox>,
    pub links: u64,
}

#[derive(Debug)]
pub struct SimSandbox {
    pub agent: AgentId,
    /// Claimed execs, with their record once they ended. Outlives its keepers.
    pub shelf: BTreeMap<String, Option<SimExit>>,
    /// What jobs wrote.
    pub files: BTreeMap<JobId, JobFile>,
    pub keeper: Option<SimKeeper>,
    /// How often the next attempts to end it, to clear it and to start in it fail.
    pub sticks: u32,
    pub files_stick: u32,
    pub spawn_fails: u32,
    /// How often a start finds that nobody offers the model.
    pub lacks_model: u32,
    /// An attempt to end it failed, and the caller got that error.
    pub given_up: bool,
}

#[derive(Debug)]
pub struct SimKeeper {
    pub serial: u64,
    pub incarnation: u32,
    /// The connection that it listens to.
    pub link: Option<u64>,
    /// To which daemon, and not before when its next word arrives there: a link keeps its order.
    pub life: u64,
    pub up_at: u64,
    pub down_at: u64,
    pub running: BTreeMap<String, SimExec>,
    /// Execs that ended under this keeper: processes that they left can still be killed.
    pub ended: BTreeSet<String>,
    pub runtime: Option<SimRuntime>,
    pub ending: bool,
    /// Stopped: it reads nothing and records nothing until it wakes.
    pub hung: bool,
    unread: Vec<(u64, SimCommand)>,
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

/// What a daemon tells a keeper.
#[derive(Debug)]
pub enum SimCommand {
    StartRuntime { exec: String },
    Start { exec: String },
    Kill { exec: String },
    Forget { exec: String },
    Line(LineToRuntime),
}

/// What a keeper tells a daemon.
#[derive(Debug)]
pub enum KeeperMessage {
    Said(LineFromRuntime),
    Exited {
        exec: String,
        ended: SimExit,
    },
    Refused {
        exec: String,
    },
    Lost {
        exec: String,
    },
    /// How much a job wrote by now.
    Wrote {
        exec: String,
        bytes: u64,
    },
    /// Nothing more comes on this link.
    Closed,
}

/// A claimed exec as a keeper that is met tells of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimExecState {
    Running,
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
            lacks_model: 0,
            given_up: false,
        })
    }
}

impl SimSandbox {
    pub fn known(&self, exec: &str) -> SimExecState {
        let runs = self.keeper.as_ref().is_some_and(|keeper| keeper.running.contains_key(exec));
        match self.shelf.get(exec) {
            _ if runs => SimExecState::Running,
            Some(Some(ended)) => SimExecState::Exited(*ended),
            Some(None) | None => SimExecState::Lost,
        }
    }
}

impl SimWorld {
    /// Starts a keeper in a sandbox that has none.
    pub fn keeper_starts(&mut self, id: &SandboxId, agent: &AgentId, incarnation: u32) {
        let serial = self.serial();
        let forgets = self.mutation == Mutation::LostClaims;
        let sandbox = self.machine.sandbox(id, agent);
        if forgets {
            sandbox.shelf.clear();
        }
        let double = sandbox.keeper.is_some();
        sandbox.given_up = false;
        sandbox.keeper = Some(SimKeeper {
            serial,
            incarnation,
            link: None,
            life: 0,
            up_at: 0,
            down_at: 0,
            running: BTreeMap::new(),
            ended: BTreeSet::new(),
            runtime: None,
            ending: false,
            hung: false,
            unread: Vec::new(),
        });
        self.say(|| format!("keeper {serial} of {id} starts, incarnation {incarnation}"));
        if double {
            self.fail(format!("{id} got a second keeper"));
        }
    }

    /// A keeper sends a message to the connected daemon. Without a daemon it is lost, as are lines of a runtime.
    pub fn send_to_daemon(&mut self, id: &SandboxId, told: KeeperMessage) {
        let pause = self.rng.delay(self.plan.link_ms);
        let Some(sandbox) = self.machine.sandboxes.get_mut(id) else { return };
        let agent = sandbox.agent.clone();
        let Some(keeper) = &mut sandbox.keeper else { return };
        let Some(link) = keeper.link else { return };
        keeper.up_at = keeper.up_at.max(self.now + pause);
        let (life, at) = (keeper.life, keeper.up_at);
        self.at(at, SimEvent::Up { life, agent, link, told: Box::new(told) });
    }

    pub fn keeper_obeys(&mut self, id: &SandboxId, link: u64, command: SimCommand) {
        // A newer connection drops what an older one still had to say.
        let Some(keeper) = self.machine.keeper(id).filter(|keeper| keeper.link == Some(link)) else { return };
        let (ending, serial) = (keeper.ending, keeper.serial);
        if keeper.hung {
            return keeper.unread.push((link, command));
        }
        self.trace.say(self.now, || format!("keeper {serial} hears {}", crate::words::heard(&command)));
        match command {
            SimCommand::Line(line) => self.runtime_hears(id, line),
            SimCommand::StartRuntime { exec } | SimCommand::Start { exec } if ending => {
                self.send_to_daemon(id, KeeperMessage::Refused { exec });
            }
            SimCommand::StartRuntime { exec } => {
                if self.claim(id, &exec) {
                    self.runtime_starts(id, exec);
                }
            }
            SimCommand::Start { exec } => {
                if self.claim(id, &exec) {
                    self.tool_starts(id, exec);
                }
            }
            SimCommand::Kill { exec } => self.kill(id, exec),
            SimCommand::Forget { exec } => {
                let Some(sandbox) = self.machine.sandboxes.get_mut(id) else { return };
                if sandbox.known(&exec) == SimExecState::Running {
                    return;
                }
                match exec.parse() {
                    Ok(job) => self.remove_job_file(id, &job),
                    Err(_) => drop(sandbox.shelf.remove(&exec)),
                }
            }
        }
    }

    /// True if this call must start the exec. Otherwise its state was reported.
    fn claim(&mut self, id: &SandboxId, exec: &str) -> bool {
        let Some(sandbox) = self.machine.sandboxes.get_mut(id) else { return false };
        if !sandbox.shelf.contains_key(exec) {
            sandbox.shelf.insert(exec.to_owned(), None);
            return true;
        }
        self.report_state(id, exec);
        false
    }

    fn report_state(&mut self, id: &SandboxId, exec: &str) {
        let Some(sandbox) = self.machine.sandboxes.get(id) else { return };
        let exec = exec.to_owned();
        let told = match sandbox.known(&exec) {
            SimExecState::Running => return,
            SimExecState::Exited(ended) => KeeperMessage::Exited { exec, ended },
            SimExecState::Lost if sandbox.shelf.contains_key(&exec) => KeeperMessage::Lost { exec },
            SimExecState::Lost => KeeperMessage::Refused { exec },
        };
        self.send_to_daemon(id, told);
    }

    fn tool_starts(&mut self, id: &SandboxId, exec: String) {
        let job = exec.parse::<JobId>();
        match &job {
            Ok(job) => self.check_job_starts(id, job),
            Err(_) => self.check_intent(&exec),
        }
        if self.rng.chance(20) {
            let Some(sandbox) = self.machine.sandboxes.get_mut(id) else { return };
            sandbox.shelf.insert(exec.clone(), Some(SimExit::NotStarted));
            return self.send_to_daemon(id, KeeperMessage::Refused { exec });
        }
        let run = self.serial();
        let typical = if job.is_ok() { self.plan.job_ms } else { self.plan.tool_ms };
        let acts = self.rng.delay(typical);
        let ends = acts + self.rng.delay(typical);
        let Some(keeper) = self.machine.keeper(id) else { return };
        keeper.running.insert(exec.clone(), SimExec { run, doomed: false });
        let (keeper, sandbox) = (keeper.serial, id.clone());
        self.after(acts, SimEvent::ToolActs { sandbox: sandbox.clone(), keeper, exec: exec.clone(), run });
        self.after(ends, SimEvent::ToolEnds { sandbox, keeper, exec, run });
    }

    fn running(&mut self, id: &SandboxId, keeper: u64, exec: &str, run: u64) -> Option<&mut SimExec> {
        let keeper = self.machine.keeper(id).filter(|found| found.serial == keeper)?;
        keeper.running.get_mut(exec).filter(|running| running.run == run)
    }

    /// The effect on the world: it cannot be taken back, and may not happen twice.
    pub fn tool_acts(&mut self, id: &SandboxId, keeper: u64, exec: &str, run: u64) {
        if self.running(id, keeper, exec, run).is_none() {
            return;
        }
        if let Ok(job) = exec.parse() {
            return self.job_writes(id, keeper, &job, run);
        }
        self.trace.say(self.now, || format!("{exec} has its effect"));
        self.tally.effects += 1;
        self.check_effect(exec);
    }

    pub fn tool_ends(&mut self, id: &SandboxId, keeper: u64, exec: &str, run: u64) {
        if self.machine.keeper(id).is_some_and(|found| found.serial == keeper && found.hung) {
            let (sandbox, exec) = (id.clone(), exec.to_owned());
            return self.after(HUNG_MS, SimEvent::ToolEnds { sandbox, keeper, exec, run });
        }
        let Some(running) = self.running(id, keeper, exec, run).copied() else { return };
        let ended = match (running.doomed, self.rng.below(10)) {
            (true, _) => SimExit::Signal(15),
            (false, 0) => SimExit::Code(1),
            (false, 1) => SimExit::Signal(9),
            (false, _) => SimExit::Code(0),
        };
        let Some(sandbox) = self.machine.sandboxes.get_mut(id) else { return };
        let runtime = sandbox.keeper.as_ref().and_then(|keeper| keeper.runtime.as_ref());
        if runtime.is_some_and(|runtime| runtime.exec == exec) {
            return self.runtime_ends(id, ended);
        }
        sandbox.shelf.insert(exec.to_owned(), Some(ended));
        if let Some(keeper) = &mut sandbox.keeper {
            keeper.running.remove(exec);
            keeper.ended.insert(exec.to_owned());
        }
        self.send_to_daemon(id, KeeperMessage::Exited { exec: exec.to_owned(), ended });
    }

    fn kill(&mut self, id: &SandboxId, exec: String) {
        let pause = self.rng.delay(GRACE_MS / 100);
        let Some(keeper) = self.machine.keeper(id) else { return };
        match keeper.running.get_mut(&exec) {
            Some(running) => {
                running.doomed = true;
                let (keeper, run, sandbox) = (keeper.serial, running.run, id.clone());
                self.after(pause, SimEvent::ToolEnds { sandbox, keeper, exec, run });
            }
            None if keeper.ended.contains(&exec) => {}
            None => self.report_state(id, &exec),
        }
    }

    /// Begins the end of a sandbox.
    pub fn keeper_asked_to_end(&mut self, id: &SandboxId) {
        let pause = self.rng.delay(GRACE_MS / 100).min(2 * GRACE_MS);
        let Some(keeper) = self.machine.keeper(id) else { return };
        keeper.ending = true;
        let (serial, execs) = (keeper.serial, keeper.running.keys().cloned().collect::<Vec<_>>());
        for exec in execs {
            self.kill(id, exec);
        }
        self.after(pause, SimEvent::KeeperEnds { sandbox: id.clone(), keeper: serial });
    }

    pub fn keeper_ends(&mut self, id: &SandboxId, serial: u64) {
        if self.machine.keeper(id).is_some_and(|keeper| keeper.serial == serial) {
            self.keeper_dies(id, "it was asked to end");
        }
    }

    /// The keeper is gone, and the kernel ends everything that it kept.
    pub fn keeper_dies(&mut self, id: &SandboxId, why: &str) {
        self.send_to_daemon(id, KeeperMessage::Closed);
        let Some(sandbox) = self.machine.sandboxes.get_mut(id) else { return };
        let Some(keeper) = sandbox.keeper.take() else { return };
        let serial = keeper.serial;
        self.say(|| format!("keeper {serial} of {id} dies: {why}"));
    }

    /// Stops a keeper for a while. What runs in its sandbox goes on.
    pub fn keeper_hangs(&mut self, id: &SandboxId) {
        let pause = self.rng.between(1_000, 200_000);
        let Some(keeper) = self.machine.keeper(id) else { return };
        keeper.hung = true;
        let keeper = keeper.serial;
        self.after(pause, SimEvent::KeeperWakes { sandbox: id.clone(), keeper });
    }

    pub fn keeper_wakes(&mut self, id: &SandboxId, serial: u64) {
        let Some(keeper) = self.machine.keeper(id).filter(|keeper| keeper.serial == serial) else { return };
        keeper.hung = false;
        for (link, command) in std::mem::take(&mut keeper.unread) {
            self.keeper_obeys(id, link, command);
        }
    }

    /// The link breaks; both ends live.
    pub fn link_breaks(&mut self, id: &SandboxId) {
        self.send_to_daemon(id, KeeperMessage::Closed);
        if let Some(keeper) = self.machine.keeper(id) {
            keeper.link = None;
        }
        self.say(|| format!("the link of {id} breaks"));
    }

    /// Everything dies at once, and files that nobody synced may be gone.
    pub fn power_loss(&mut self) {
        self.daemon_dies("the power went");
        self.machine.boot += 1;
        let ids: Vec<SandboxId> = self.machine.sandboxes.keys().cloned().collect();
        for id in ids {
            let Some(sandbox) = self.machine.sandboxes.get_mut(&id) else { continue };
            sandbox.keeper = None;
            let execs: Vec<String> = sandbox.shelf.keys().cloned().collect();
            for exec in execs {
                match self.rng.below(3) {
                    0 => drop(sandbox.shelf.remove(&exec)),
                    1 => drop(sandbox.shelf.insert(exec, None)),
                    _ => {}
                }
            }
            let jobs: Vec<JobId> = sandbox.files.keys().cloned().collect();
            jobs.iter().for_each(|job| self.job_loses_power(&id, job));
        }
    }

    /// A tool runs only when its intent was committed before.
    fn check_intent(&mut self, exec: &str) {
        let known = exec.parse::<ExecId>().is_ok_and(|exec| self.disk.intent(&exec).is_some());
        if !known {
            self.fail(format!("{exec} runs, and its intent is not on disk"));
        }
    }

    /// No unsafe effect happens twice.
    fn check_effect(&mut self, exec: &str) {
        let Some((turn, step, ordinal)) = exec.parse().ok().and_then(|exec: ExecId| self.disk.intent(&exec))
        else {
            return;
        };
        let (turn, step, ordinal) = (turn.clone(), *step, *ordinal);
        let Some(kept) = self.disk.turn(&turn) else { return };
        let row = kept.steps.iter().find(|row| (row.step, row.ordinal) == (step, ordinal));
        let Some(row) = row.filter(|row| row.kind == StepKind::Tool) else { return };
        let tools = self.disk.agent(&kept.row.agent).map(|row| row.spec.tools.as_slice()).unwrap_or_default();
        let is_safe = tools.iter().any(|tool| tool.name == row.name && tool.safe);
        let name = row.name.clone();
        let count = self.clients.effects.entry((turn.clone(), step, ordinal)).or_insert(0);
        *count += 1;
        if *count > 1 && !is_safe {
            self.fail(format!("`{name}` had its effect twice, in {turn} step {step}.{ordinal}"));
        }
    }
}
