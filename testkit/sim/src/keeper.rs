//! The behaviour of keepers: claims, records, running programs, and their effects on the world.
//!
//! Effects are counted here, outside of the engine.

use std::collections::{BTreeMap, BTreeSet};

use lodge_core::record::StepKind;
use lodge_core::{AgentId, ExecId, JobId, SandboxId};
use lodge_exec::{ExecKind, ExecName, KeeperCommand, KeeperEvent, KeeperSecret};

use crate::machine::{SimExec, SimExecState, SimExit, SimKeeper, known_name};
use crate::plan::SimMutation;
use crate::world::{SimEvent, SimWorld};

/// The time between SIGTERM and SIGKILL of a program.
pub const GRACE_MS: u64 = 5_000;
/// How often a stopped keeper is checked for ended programs.
const HUNG_MS: u64 = 1_000;

impl SimWorld {
    /// Starts a keeper in a sandbox that has none.
    pub fn keeper_starts(
        &mut self,
        id: &SandboxId,
        agent: &AgentId,
        (incarnation, secret): (u32, KeeperSecret),
    ) {
        let serial = self.serial();
        // Some are of a release that knew no jobs, or on a host that forbids mounts.
        let (is_old, has_root) = (self.rng.chance(20), !self.rng.chance(50));
        let forgets = self.mutation == SimMutation::LostClaims;
        let sandbox = self.machine.sandbox(id, agent);
        let has_jobs = sandbox.shelf.keys().any(|exec| matches!(exec, ExecName::Job(_)));
        let version = if is_old && !has_jobs { 1 } else { u32::MAX };
        if forgets {
            sandbox.shelf.clear();
        }
        let double = sandbox.keeper.is_some();
        sandbox.given_up = false;
        sandbox.keeper = Some(SimKeeper {
            serial,
            incarnation,
            version,
            has_root,
            secret,
            epoch: 0,
            link: None,
            up_at: 0,
            down_at: 0,
            running: BTreeMap::new(),
            ended: BTreeSet::new(),
            runtime: None,
            ending: false,
            hung: false,
            unread: Vec::new(),
        });
        self.trace_line(|| format!("keeper {serial} of {id} starts, incarnation {incarnation}"));
        if double {
            self.fail(format!("{id} got a second keeper"));
        }
    }

    /// A keeper sends an event to the connected daemon. Without a daemon it is lost, as are lines of a runtime.
    pub fn send_to_daemon(&mut self, id: &SandboxId, event: KeeperEvent) {
        let pause = self.rng.delay(self.plan.link_ms);
        let Some(keeper) = self.machine.keeper(id) else { return };
        let Some(link) = &keeper.link else { return };
        let queue = link.queue.clone();
        keeper.up_at = keeper.up_at.max(self.now + pause);
        let at = keeper.up_at;
        self.at(at, SimEvent::Up { queue, event: Some(Box::new(event)) });
    }

    /// Closes a link: the daemon reads the events that were sent, then the end.
    fn send_close(&mut self, id: &SandboxId) {
        let pause = self.rng.delay(self.plan.link_ms);
        let Some(keeper) = self.machine.keeper(id) else { return };
        let Some(link) = keeper.link.take() else { return };
        let at = keeper.up_at.max(self.now + pause);
        self.at(at, SimEvent::Up { queue: link.queue, event: None });
    }

    pub fn report_started(&mut self, id: &SandboxId, exec: &ExecName, run: u64) {
        let pid = u32::try_from(run).unwrap_or(u32::MAX);
        self.send_to_daemon(id, KeeperEvent::Started { exec: exec.to_string(), kind: exec.kind(), pid });
    }

    pub fn report_exit(&mut self, id: &SandboxId, exec: &ExecName, ended: SimExit) {
        let is_limited = self.is_limited(exec);
        let Some(sandbox) = self.machine.sandboxes.get(id) else { return };
        let record = sandbox.record(exec, ended, is_limited);
        self.send_to_daemon(id, KeeperEvent::Exited { exec: exec.to_string(), kind: exec.kind(), record });
    }

    /// Whether the exec is a job with a time limit.
    pub fn is_limited(&self, exec: &ExecName) -> bool {
        let ExecName::Job(job) = exec else { return false };
        self.disk.job(job).is_some_and(|row| row.request.timeout_ms > 0)
    }

    /// A daemon hands a command to its end of a link.
    /// False: the link is lost.
    pub fn send_to_keeper(&mut self, id: &SandboxId, link: u64, command: KeeperCommand) -> bool {
        let pause = self.rng.delay(self.plan.link_ms);
        let now = self.now;
        let Some(keeper) = self.linked_keeper(id, link) else { return false };
        keeper.down_at = keeper.down_at.max(now + pause);
        let at = keeper.down_at;
        self.at(at, SimEvent::Down { sandbox: id.clone(), link, command: Box::new(command) });
        true
    }

    /// The keeper, if it reads from this link.
    fn linked_keeper(&mut self, id: &SandboxId, link: u64) -> Option<&mut SimKeeper> {
        let keeper = self.machine.keeper(id)?;
        keeper.link.as_ref().is_some_and(|known| known.serial == link).then_some(keeper)
    }

    pub fn keeper_runs_command(&mut self, id: &SandboxId, link: u64, command: KeeperCommand) {
        // A newer connection drops the unread commands of an older one.
        let Some(keeper) = self.linked_keeper(id, link) else { return };
        let (ending, serial) = (keeper.ending, keeper.serial);
        if keeper.hung {
            return keeper.unread.push((link, command));
        }
        self.trace.trace_line(self.now, || {
            format!("keeper {serial} reads {}", crate::words::command_line(&command))
        });
        match command {
            KeeperCommand::RuntimeLine(line) => self.runtime_reads_line(id, line),
            KeeperCommand::Start(start) => self.start_exec(id, &start.exec, start.kind, ending),
            KeeperCommand::Kill { exec, .. } => self.kill(id, &exec),
            KeeperCommand::Forget { exec } => self.forget(id, &exec),
            KeeperCommand::End { .. } => self.keeper_asked_to_end(id),
            KeeperCommand::Ping { token } => self.send_to_daemon(id, KeeperEvent::Pong { token }),
        }
    }

    fn start_exec(&mut self, id: &SandboxId, exec: &str, kind: ExecKind, ending: bool) {
        let Some(name) = ExecName::from_link(kind, exec) else {
            return self.fail(format!("{exec} was to be started as {kind:?}"));
        };
        if ending {
            return self.refuse(id, &name);
        }
        if !self.claim(id, &name) {
            return;
        }
        match name {
            ExecName::Runtime { run } => self.runtime_starts(id, run),
            ExecName::Tool(tool) => {
                self.check_intent(&tool);
                self.program_starts(id, ExecName::Tool(tool), self.plan.tool_ms);
            }
            ExecName::Job(job) => {
                self.check_job_starts(id, &job);
                self.program_starts(id, ExecName::Job(job), self.plan.job_ms);
            }
            ExecName::Command(exec) => {
                self.program_starts(id, ExecName::Command(exec), self.plan.tool_ms);
            }
        }
    }

    /// The outcome of an exec is recorded elsewhere.
    fn forget(&mut self, id: &SandboxId, exec: &str) {
        let Some(name) = known_name(exec) else { return };
        let Some(sandbox) = self.machine.sandboxes.get_mut(id) else { return };
        if matches!(sandbox.known(&name), SimExecState::Running(_)) {
            return;
        }
        match &name {
            ExecName::Job(job) => self.remove_job_file(id, job),
            ExecName::Runtime { .. } | ExecName::Tool(_) | ExecName::Command(_) => {
                sandbox.shelf.remove(&name);
            }
        }
    }

    /// The same in a sandbox without a keeper. A keeper that started meanwhile reports the exec to the next daemon.
    pub fn forget_in_dead_sandbox(&mut self, id: &SandboxId, exec: &str) {
        if !self.machine.is_held(id) {
            self.forget(id, exec);
        }
    }

    fn refuse(&mut self, id: &SandboxId, exec: &ExecName) {
        let (why, recorded) = ("it cannot be started".to_owned(), false);
        let (exec, kind) = (exec.to_string(), exec.kind());
        self.send_to_daemon(id, KeeperEvent::Refused { exec, kind, why, recorded });
    }

    /// True if this call must start the exec. Otherwise its state was reported.
    fn claim(&mut self, id: &SandboxId, exec: &ExecName) -> bool {
        let Some(sandbox) = self.machine.sandboxes.get_mut(id) else { return false };
        if !sandbox.shelf.contains_key(exec) {
            sandbox.shelf.insert(exec.clone(), None);
            return true;
        }
        self.report_state(id, exec);
        false
    }

    fn report_state(&mut self, id: &SandboxId, exec: &ExecName) {
        let Some(sandbox) = self.machine.sandboxes.get(id) else { return };
        match sandbox.known(exec) {
            SimExecState::Running(run) => self.report_started(id, exec, run),
            SimExecState::Exited(ended) => self.report_exit(id, exec, ended),
            SimExecState::Lost if sandbox.shelf.contains_key(exec) => {
                self.send_to_daemon(id, KeeperEvent::Lost { exec: exec.to_string(), kind: exec.kind() });
            }
            SimExecState::Lost => self.refuse(id, exec),
        }
    }

    fn program_starts(&mut self, id: &SandboxId, exec: ExecName, typical: u64) {
        if self.rng.chance(20) {
            let Some(sandbox) = self.machine.sandboxes.get_mut(id) else { return };
            sandbox.shelf.insert(exec.clone(), Some(SimExit::NotStarted));
            return self.refuse(id, &exec);
        }
        let run = self.serial();
        let acts = self.rng.delay(typical);
        let ends = acts + self.rng.delay(typical);
        let Some(keeper) = self.machine.keeper(id) else { return };
        keeper.running.insert(exec.clone(), SimExec { run, doomed: false });
        let (keeper, sandbox) = (keeper.serial, id.clone());
        self.report_started(id, &exec, run);
        self.after(acts, SimEvent::ToolActs { sandbox: sandbox.clone(), keeper, exec: exec.clone(), run });
        self.after(ends, SimEvent::ToolEnds { sandbox, keeper, exec, run });
    }

    fn running(&mut self, id: &SandboxId, keeper: u64, exec: &ExecName, run: u64) -> Option<&mut SimExec> {
        let keeper = self.machine.keeper(id).filter(|found| found.serial == keeper)?;
        keeper.running.get_mut(exec).filter(|running| running.run == run)
    }

    /// The effect of a tool on the world. It cannot be undone and must not happen twice.
    pub fn tool_acts(&mut self, id: &SandboxId, keeper: u64, exec: &ExecName, run: u64) {
        if self.running(id, keeper, exec, run).is_none() {
            return;
        }
        if let ExecName::Job(job) = exec {
            return self.job_writes(id, keeper, job, run);
        }
        self.trace.trace_line(self.now, || format!("{exec} has its effect"));
        self.tally.effects += 1;
        self.check_effect(exec);
    }

    pub fn tool_ends(&mut self, id: &SandboxId, keeper: u64, exec: &ExecName, run: u64) {
        if self.machine.keeper(id).is_some_and(|found| found.serial == keeper && found.hung) {
            let (sandbox, exec) = (id.clone(), exec.clone());
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
        if runtime.is_some_and(|runtime| ExecName::Runtime { run: runtime.run } == *exec) {
            return self.runtime_ends(id, ended);
        }
        sandbox.shelf.insert(exec.clone(), Some(ended));
        if let Some(keeper) = &mut sandbox.keeper {
            keeper.running.remove(exec);
            keeper.ended.insert(exec.clone());
        }
        self.report_exit(id, exec, ended);
    }

    fn kill(&mut self, id: &SandboxId, exec: &str) {
        if let Some(exec) = known_name(exec) {
            self.kill_exec(id, exec);
        }
    }

    fn kill_exec(&mut self, id: &SandboxId, exec: ExecName) {
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
            self.kill_exec(id, exec);
        }
        self.after(pause, SimEvent::KeeperEnds { sandbox: id.clone(), keeper: serial });
    }

    pub fn keeper_ends(&mut self, id: &SandboxId, serial: u64) {
        let sticks = self.machine.sandboxes.get(id).is_some_and(|sandbox| sandbox.sticks > 0);
        if !sticks && self.machine.keeper(id).is_some_and(|keeper| keeper.serial == serial && !keeper.hung) {
            self.keeper_dies(id, "it was asked to end");
        }
    }

    /// The keeper dies, and the kernel kills everything in its sandbox.
    pub fn keeper_dies(&mut self, id: &SandboxId, why: &str) {
        self.send_close(id);
        let Some(sandbox) = self.machine.sandboxes.get_mut(id) else { return };
        let Some(keeper) = sandbox.keeper.take() else { return };
        let serial = keeper.serial;
        self.trace_line(|| format!("keeper {serial} of {id} dies: {why}"));
    }

    /// Stops a keeper for a while. Programs in its sandbox keep running.
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
            self.keeper_runs_command(id, link, command);
        }
    }

    /// The link breaks; both ends live.
    pub fn link_breaks(&mut self, id: &SandboxId) {
        self.send_close(id);
        self.trace_line(|| format!("the link of {id} breaks"));
    }

    /// All processes die at once, and unsynced files may be lost.
    pub fn power_loss(&mut self) {
        self.daemon_dies("the power went");
        self.machine.boot += 1;
        let ids: Vec<SandboxId> = self.machine.sandboxes.keys().cloned().collect();
        for id in ids {
            let Some(sandbox) = self.machine.sandboxes.get_mut(&id) else { continue };
            sandbox.keeper = None;
            let execs: Vec<ExecName> = sandbox.shelf.keys().cloned().collect();
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
    fn check_intent(&mut self, exec: &ExecId) {
        if self.disk.intent(exec).is_none() {
            self.fail(format!("{exec} runs, and its intent is not on disk"));
        }
    }

    /// No unsafe effect happens twice.
    fn check_effect(&mut self, exec: &ExecName) {
        let ExecName::Tool(exec) = exec else { return };
        let Some((turn, step, ordinal)) = self.disk.intent(exec) else { return };
        let (turn, step, ordinal) = (turn.clone(), *step, *ordinal);
        let Some(kept) = self.disk.turn(&turn) else { return };
        let row = kept.steps.iter().find(|row| (row.step, row.ordinal) == (step, ordinal));
        let Some(row) = row.filter(|row| row.kind() == StepKind::Tool) else { return };
        let tools = self.disk.agent(&kept.row.agent).map(|row| row.spec.tools.as_slice()).unwrap_or_default();
        let is_safe = tools.iter().any(|tool| tool.name == row.name && tool.safe);
        let (name, call) = (row.name.clone(), row.call.clone());
        if !is_safe && let Some(earlier) = self.ran_before(&turn, step, call.as_deref()) {
            self.fail(format!(
                "`{name}` had its effect in {earlier}, and again in {turn}, which continues it"
            ));
        }
        let count = self.clients.effects.entry((turn.clone(), step, ordinal)).or_insert(0);
        *count += 1;
        if *count > 1 && !is_safe {
            self.fail(format!("`{name}` had its effect twice, in {turn} step {step}.{ordinal}"));
        }
    }
}
