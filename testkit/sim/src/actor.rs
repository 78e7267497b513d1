//! The task of an agent's sandbox, simulated: effects in order, one thing at a time, observations out.
//!
//! Owns: the mirror of the daemon's own task for a sandbox. What it may do to a sandbox is in `keeper.rs`.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lodge_core::ledger::Repeat;
use lodge_core::liveness::{Liveness, Silence};
use lodge_core::record::ExecRequest;
use lodge_core::{AgentId, ExecId, SandboxId};
use lodge_engine::{
    AgentSeen, Effect, ExecHow, Lack, Part, SandboxEffect, SandboxPlan, SandboxSeen, Seen, TurnSeen, Up,
};
use lodge_exec::ExecName;

use crate::keeper::{KeeperMessage, SimCommand, SimExecState, SimExit};
use crate::plan::{CommitPoint, Mutation};
use crate::pulse::{SimPulse, THRESHOLDS};
use crate::runtime::{LineFromRuntime, LineToRuntime};
use crate::world::{SimEvent, SimWorld};

const LOST_MS: u64 = 200;
/// How often a keeper that holds its lock and does not answer is called.
const CALL_MS: u64 = 5_000;

#[derive(Debug, Default)]
pub struct SimActor {
    pub effects: VecDeque<Effect>,
    heard: VecDeque<(u64, KeeperMessage)>,
    pub up: Option<LinkedSandbox>,
    busy: Option<(u64, ActorWork)>,
    pub pulse: Option<SimPulse>,
}

/// A sandbox whose keeper is connected.
#[derive(Debug)]
pub struct LinkedSandbox {
    pub plan: SandboxPlan,
    pub link: u64,
    pub probe: Option<u32>,
    pub probes: u32,
    adopted: bool,
    pub open: BTreeMap<ExecId, (ExecRequest, Repeat)>,
    /// The run of an earlier runtime, which has to end before this one is started.
    pub follows: Option<u32>,
}

/// What takes a while, and keeps the task from everything else.
#[derive(Debug)]
pub enum ActorWork {
    /// A keeper holds its lock, and is called until it answers.
    Calling {
        plan: Box<SandboxPlan>,
        how: Up,
        silence: Silence,
        level: Liveness,
    },
    Starting {
        plan: Box<SandboxPlan>,
        how: Up,
    },
    /// An earlier incarnation has to end before there is another.
    Replacing {
        plan: Box<SandboxPlan>,
        how: Up,
    },
    Ending {
        sandbox: SandboxId,
        run: u32,
    },
    Killing {
        sandbox: SandboxId,
        run: u32,
    },
    /// The link broke: is the keeper gone?
    Losing {
        plan: Box<SandboxPlan>,
    },
    Clearing {
        sandbox: SandboxId,
    },
}

impl SimWorld {
    pub fn actor(&mut self, agent: &AgentId) -> Option<&mut SimActor> {
        self.daemon.as_mut()?.actors.get_mut(agent)
    }

    pub fn linked(&mut self, agent: &AgentId) -> Option<&mut LinkedSandbox> {
        self.actor(agent)?.up.as_mut()
    }

    /// Takes effects and words of the keeper, in any order between the two, until it is busy or there are none.
    pub fn actor_runs(&mut self, agent: &AgentId) {
        loop {
            let coin = self.rng.chance(500);
            let Some(actor) = self.actor(agent) else { return };
            if actor.busy.is_some() {
                return;
            }
            let hears = actor.effects.is_empty() || (coin && !actor.heard.is_empty());
            match (hears, actor.heard.pop_front_if(|_| hears)) {
                (_, Some((link, told))) => {
                    if actor.up.as_ref().is_some_and(|up| up.link == link) {
                        self.handle_keeper_message(agent, told);
                    }
                }
                (true, None) => return,
                (false, None) => {
                    let Some(effect) = actor.effects.pop_front() else { return };
                    self.effect(agent, effect);
                }
            }
        }
    }

    pub fn busy(&mut self, agent: &AgentId, typical_ms: u64, what: ActorWork) {
        let pause = self.rng.delay(typical_ms);
        self.busy_for(agent, pause, what);
    }

    fn busy_for(&mut self, agent: &AgentId, pause: u64, what: ActorWork) {
        let serial = self.serial();
        let Some(actor) = self.actor(agent) else { return };
        actor.busy = Some((serial, what));
        let life = self.life;
        self.after(pause, SimEvent::Go { life, agent: agent.clone(), busy: serial });
    }

    pub fn run_actor(&mut self, agent: &AgentId, serial: u64) {
        let Some(actor) = self.actor(agent) else { return };
        let Some((_, busy)) = actor.busy.take_if(|(known, _)| *known == serial) else { return };
        match busy {
            ActorWork::Calling { plan, how, silence, level } => {
                self.call(agent, *plan, how, (silence, level))
            }
            ActorWork::Starting { plan, how } => self.spawn(agent, *plan, how),
            ActorWork::Killing { sandbox, run } => self.killed(agent, &sandbox, run),
            ActorWork::Replacing { plan, how } => {
                if self.machine.is_held(&plan.sandbox) {
                    self.keeper_dies(&plan.sandbox.clone(), "another incarnation is to come");
                }
                self.spawn(agent, *plan, how);
            }
            ActorWork::Ending { sandbox, run } => self.ended(agent, &sandbox, run),
            ActorWork::Losing { plan } => {
                if self.machine.is_held(&plan.sandbox) {
                    self.start_sandbox(agent, *plan, Up::Adopt);
                } else {
                    self.report_death(agent, plan.run, Part::Sandbox);
                }
            }
            ActorWork::Clearing { sandbox } => self.clear(agent, &sandbox),
        }
        self.actor_runs(agent);
    }

    fn effect(&mut self, agent: &AgentId, effect: Effect) {
        match effect {
            Effect::Sandbox { sandbox, what, .. } => self.in_sandbox(agent, sandbox, what),
            // These have tasks of their own.
            Effect::Model(_)
            | Effect::Job(_)
            | Effect::Timer(_)
            | Effect::Pull(_)
            | Effect::Token(_)
            | Effect::Quarantine { .. }
            | Effect::RemoveOutput { .. } => {}
        }
    }

    fn in_sandbox(&mut self, agent: &AgentId, sandbox: SandboxId, what: SandboxEffect) {
        match what {
            SandboxEffect::Up { plan, how } => self.start_sandbox(agent, *plan, how),
            SandboxEffect::Down { run, .. } => self.end_sandbox(agent, sandbox, run),
            SandboxEffect::Clear => self.busy(agent, 5, ActorWork::Clearing { sandbox }),
            SandboxEffect::KillRuntime { run } => self.kill_runtime(agent, run),
            SandboxEffect::Kill { run } => self.kill_sandbox(agent, sandbox, run),
            SandboxEffect::RunTurn { turn, number, step, calls, epoch, .. } => {
                self.watch(agent);
                let from_turn = epoch.from_turn;
                self.line(agent, LineToRuntime::Run { turn, number, from_turn, step, calls });
            }
            SandboxEffect::DropTurn { turn } => self.line(agent, LineToRuntime::Interrupt { turn }),
            SandboxEffect::Answer { id, answer } => self.line(agent, LineToRuntime::Answer { id, answer }),
            SandboxEffect::StartExec { exec, request, safe, resumed } => {
                let repeat = if safe { Repeat::Safe } else { Repeat::Unsafe };
                self.start_exec(agent, &exec, request, repeat, resumed);
            }
            SandboxEffect::KillExec { exec } => {
                self.send(agent, SimCommand::Kill { exec: ExecName::Tool(exec) });
            }
            SandboxEffect::ForgetExec { exec } => {
                self.send(agent, SimCommand::Forget { exec: ExecName::Tool(exec) });
            }
            SandboxEffect::Job(order) => self.job_order(agent, order),
            // Nobody reads a log here.
            SandboxEffect::NoteFailure { .. } => {}
        }
    }

    fn start_sandbox(&mut self, agent: &AgentId, plan: SandboxPlan, how: Up) {
        let Some(actor) = self.actor(agent) else { return };
        (actor.up, actor.pulse) = (None, None);
        let plan = Box::new(plan);
        if self.machine.is_held(&plan.sandbox) {
            let (silence, level) = (Silence::default(), Liveness::Active);
            self.busy(agent, 5, ActorWork::Calling { plan, how, silence, level });
        } else if how == Up::Adopt && plan.was_ready {
            self.report_death(agent, plan.run, Part::Sandbox);
        } else {
            self.busy(agent, 10, ActorWork::Starting { plan, how });
        }
    }

    fn call(&mut self, agent: &AgentId, plan: SandboxPlan, how: Up, (mut silence, was): (Silence, Liveness)) {
        match self.machine.keeper(&plan.sandbox).map(|keeper| (keeper.incarnation, keeper.hung)) {
            None => self.start_sandbox(agent, plan, how),
            Some((_, true)) => {
                let level = silence.look(Duration::from_millis(CALL_MS), THRESHOLDS);
                if level != was {
                    let (agent, run) = (agent.clone(), plan.run);
                    self.tell(Seen::Agent(AgentSeen::Silent { agent, run, level, part: Part::Sandbox }));
                }
                if level != Liveness::Crashed {
                    let plan = Box::new(plan);
                    self.busy_for(agent, CALL_MS, ActorWork::Calling { plan, how, silence, level });
                }
            }
            Some((found, false)) if found == plan.incarnation => self.connected(agent, plan, how),
            Some((_, false)) => {
                self.keeper_asked_to_end(&plan.sandbox.clone());
                self.busy(agent, 50, ActorWork::Replacing { plan: Box::new(plan), how });
            }
        }
    }

    fn spawn(&mut self, agent: &AgentId, plan: SandboxPlan, how: Up) {
        if !self.has_what_it_needs(&plan) {
            let (agent, run, detail) = (agent.clone(), plan.run, "its image is gone".to_owned());
            return self.tell(Seen::Agent(AgentSeen::Lacks { agent, run, lack: Lack::Image, detail }));
        }
        let sandbox = self.machine.sandbox(&plan.sandbox, agent);
        if sandbox.lacks_model > 0 {
            sandbox.lacks_model -= 1;
            let (agent, run, detail) = (agent.clone(), plan.run, "nobody offers the model".to_owned());
            return self.tell(Seen::Agent(AgentSeen::Lacks { agent, run, lack: Lack::Model, detail }));
        }
        if sandbox.spawn_fails > 0 {
            sandbox.spawn_fails -= 1;
            return self.spawn_failed(agent, &plan, "it cannot be spawned");
        }
        self.keeper_starts(&plan.sandbox, agent, plan.incarnation);
        self.connected(agent, plan, how);
    }

    fn spawn_failed(&mut self, agent: &AgentId, plan: &SandboxPlan, why: &str) {
        let (agent, run, detail) = (agent.clone(), plan.run, why.to_owned());
        self.tell(Seen::Agent(AgentSeen::SpawnFailed { agent, run, detail }));
    }

    fn connected(&mut self, agent: &AgentId, plan: SandboxPlan, how: Up) {
        let life = self.life;
        self.machine.links += 1;
        let link = self.machine.links;
        let run = plan.run;
        let Some(sandbox) = self.machine.sandboxes.get_mut(&plan.sandbox) else { return };
        let known: Vec<(ExecName, SimExecState)> =
            sandbox.shelf.keys().map(|exec| (exec.clone(), sandbox.known(exec))).collect();
        let Some(keeper) = &mut sandbox.keeper else { return };
        (keeper.link, keeper.life) = (Some(link), life);
        let runtime = ExecName::Runtime { run };
        let state = known.iter().find(|(exec, _)| *exec == runtime).map(|(_, state)| *state);
        let runs = state == Some(SimExecState::Running);
        let up = LinkedSandbox {
            plan,
            link,
            probe: None,
            probes: 0,
            adopted: runs && how == Up::Adopt,
            open: BTreeMap::new(),
            follows: None,
        };
        if let Some(actor) = self.actor(agent) {
            actor.up = Some(up);
        }
        if runs && self.die_at == Some(CommitPoint::Adopted) {
            return self.daemon_dies("in the middle of an adoption");
        }
        self.jobs_found(agent, &known);
        let execs = |wanted: fn(&SimExecState) -> bool| -> Vec<ExecId> {
            let tools = known.iter().filter_map(|(exec, state)| match exec {
                ExecName::Tool(exec) if wanted(state) => Some(exec.clone()),
                ExecName::Tool(_) | ExecName::Runtime { .. } | ExecName::Job(_) => None,
            });
            tools.collect()
        };
        let (running, ended) =
            (execs(|state| *state == SimExecState::Running), execs(|state| *state != SimExecState::Running));
        if !running.is_empty() || !ended.is_empty() {
            self.tell(Seen::Turn(TurnSeen::ExecsFound { agent: agent.clone(), running, ended }));
        }
        let earlier: Vec<(u32, SimExecState)> = known
            .iter()
            .filter_map(|(exec, state)| match exec {
                ExecName::Runtime { run: earlier } if *earlier != run => Some((*earlier, *state)),
                ExecName::Runtime { .. } | ExecName::Tool(_) | ExecName::Job(_) => None,
            })
            .collect();
        for (run, _) in earlier.iter().filter(|(_, state)| *state != SimExecState::Running) {
            self.send(agent, SimCommand::Forget { exec: ExecName::Runtime { run: *run } });
        }
        if let Some(SimExecState::Exited(ended)) = state {
            return self.runtime_ended(agent, ended);
        }
        let alive = earlier.iter().find(|(_, state)| *state == SimExecState::Running);
        // A mutation that reports deaths before they happened does not check either.
        match alive.filter(|_| self.mutation != Mutation::HastyDeath) {
            None => self.start_runtime(agent, run),
            Some((alive, _)) => self.start_after(agent, *alive),
        }
    }

    fn end_sandbox(&mut self, agent: &AgentId, sandbox: SandboxId, run: u32) {
        let Some(actor) = self.actor(agent) else { return };
        (actor.up, actor.pulse) = (None, None);
        if self.machine.is_held(&sandbox) {
            self.keeper_asked_to_end(&sandbox);
            self.busy(agent, 50, ActorWork::Ending { sandbox, run });
        } else {
            self.gone(agent, &sandbox, run);
        }
    }

    /// The patience with a sandbox that was asked to end is over.
    fn ended(&mut self, agent: &AgentId, sandbox: &SandboxId, run: u32) {
        let found = self.machine.sandbox(sandbox, agent);
        if found.keeper.is_some() && found.sticks > 0 {
            found.sticks -= 1;
            found.given_up = true;
            let detail = "it could not be killed".to_owned();
            return self.tell(Seen::Sandbox(SandboxSeen::NotDown { agent: agent.clone(), run, detail }));
        }
        if found.keeper.is_some() {
            self.keeper_dies(sandbox, "its grace is over");
        }
        self.gone(agent, sandbox, run);
    }

    fn gone(&mut self, agent: &AgentId, sandbox: &SandboxId, run: u32) {
        // The directory goes, unless a turn is open that may ask what is in it, or output of a job is.
        let turns = self.disk.live_turns().any(|turn| turn.row.agent == *agent);
        if !turns && !self.disk.has_unarchived_job(agent) {
            self.remove_sandbox_files(sandbox);
        }
        self.tell(Seen::Sandbox(SandboxSeen::Down { agent: agent.clone(), run }));
    }

    fn clear(&mut self, agent: &AgentId, id: &SandboxId) {
        let sandbox = self.machine.sandbox(id, agent);
        if sandbox.keeper.is_some() || sandbox.files_stick > 0 {
            sandbox.files_stick = sandbox.files_stick.saturating_sub(1);
            let detail = "something is still there".to_owned();
            return self.tell(Seen::Sandbox(SandboxSeen::NotCleared { agent: agent.clone(), detail }));
        }
        self.remove_sandbox_files(id);
        self.machine.sandboxes.remove(id);
        self.tell(Seen::Sandbox(SandboxSeen::Cleared { agent: agent.clone() }));
    }

    pub fn actor_hears(&mut self, agent: &AgentId, link: u64, told: KeeperMessage) {
        let Some(actor) = self.actor(agent) else { return };
        actor.heard.push_back((link, told));
        self.actor_runs(agent);
    }

    fn handle_keeper_message(&mut self, agent: &AgentId, told: KeeperMessage) {
        match told {
            KeeperMessage::Said(said) => self.handle_runtime_line(agent, said),
            KeeperMessage::Wrote { job, bytes } => self.job_wrote(&job, bytes),
            KeeperMessage::Exited { exec, ended } => match exec {
                ExecName::Runtime { run } => self.runtime_exited(agent, run, ended),
                ExecName::Tool(exec) => {
                    let Some(up) = self.linked(agent) else { return };
                    if up.open.remove(&exec).is_some() && self.mutation != Mutation::DeafActor {
                        self.report_end(&exec, how(ended));
                    }
                }
                ExecName::Job(job) => self.job_exited(agent, &job, ended),
            },
            KeeperMessage::Refused { exec } => match exec {
                ExecName::Runtime { run } => {
                    let Some(up) = self.linked(agent).filter(|up| up.plan.run == run) else { return };
                    let plan = up.plan.clone();
                    self.spawn_failed(agent, &plan, "its runtime cannot be started");
                }
                ExecName::Tool(exec) => {
                    let Some(up) = self.linked(agent) else { return };
                    if up.open.remove(&exec).is_some() {
                        self.report_end(&exec, ExecHow::NotStarted);
                    }
                }
                ExecName::Job(job) => self.report_job_end(&job, ExecHow::NotStarted, 0),
            },
            KeeperMessage::Lost { exec } => match exec {
                ExecName::Runtime { run } => {
                    if self.linked(agent).is_some_and(|up| up.plan.run == run) {
                        self.report_death(agent, run, Part::Runtime);
                    }
                }
                ExecName::Tool(exec) => self.tool_lost(agent, &exec),
                ExecName::Job(job) => self.job_lost(agent, &job),
            },
            KeeperMessage::Closed => {
                let Some(actor) = self.actor(agent) else { return };
                actor.pulse = None;
                let Some(up) = actor.up.take() else { return };
                self.busy(agent, LOST_MS / 20, ActorWork::Losing { plan: Box::new(up.plan) });
            }
        }
    }

    fn handle_runtime_line(&mut self, agent: &AgentId, said: LineFromRuntime) {
        let Some(up) = self.linked(agent) else { return };
        let waited = up.probe.map(|probe| (up.link, probe));
        let run = up.plan.run;
        match said {
            LineFromRuntime::Ready { probe, running } if waited == Some(probe) => {
                up.probe = None;
                up.plan.was_ready = true;
                let (agent, adopted) = (agent.clone(), std::mem::take(&mut up.adopted));
                self.tell(Seen::Agent(AgentSeen::RuntimeReady { agent, run, adopted, running }));
            }
            LineFromRuntime::Stale { probe } if waited == Some(probe) => {
                up.probe = None;
                let plan = up.plan.clone();
                self.spawn_failed(agent, &plan, "epoch.stale");
            }
            LineFromRuntime::Ready { .. } | LineFromRuntime::Stale { .. } => {}
            LineFromRuntime::Refused { turn } => self.tell(Seen::Turn(TurnSeen::Refused {
                agent: agent.clone(),
                turn,
                why: "it does not want to".into(),
            })),
            // Until it has answered the probe, what it says is for a daemon that is gone.
            LineFromRuntime::Asked { .. } if waited.is_some() => {}
            LineFromRuntime::Asked { id, ask } => {
                self.tell(Seen::Turn(TurnSeen::Asked { agent: agent.clone(), id, ask }))
            }
        }
    }

    pub fn runtime_ended(&mut self, agent: &AgentId, ended: SimExit) {
        let Some(actor) = self.actor(agent) else { return };
        actor.pulse = None;
        let Some(up) = &mut actor.up else { return };
        up.probe = None;
        let (run, plan) = (up.plan.run, up.plan.clone());
        self.send(agent, SimCommand::Kill { exec: ExecName::Runtime { run } });
        match ended {
            SimExit::Code(code) => {
                let (agent, detail) = (agent.clone(), "it left".to_owned());
                self.tell(Seen::Agent(AgentSeen::Exited { agent, run, code, detail }));
            }
            SimExit::Signal(_) => self.report_death(agent, run, Part::Runtime),
            SimExit::NotStarted => self.spawn_failed(agent, &plan, "its runtime cannot be started"),
        }
    }

    pub fn report_death(&mut self, agent: &AgentId, run: u32, part: Part) {
        let (agent, detail) = (agent.clone(), "it ended".to_owned());
        self.tell(Seen::Agent(AgentSeen::Died { agent, run, part, detail }));
    }

    pub fn line(&mut self, agent: &AgentId, line: LineToRuntime) {
        self.send(agent, SimCommand::Line(line));
    }

    /// Without a link what is sent is lost on purpose: everything open is handed out again.
    pub fn send(&mut self, agent: &AgentId, command: SimCommand) {
        let pause = self.rng.delay(self.plan.link_ms);
        let Some(up) = self.linked(agent) else { return };
        let (link, sandbox) = (up.link, up.plan.sandbox.clone());
        let now = self.now;
        let Some(keeper) = self.machine.keeper(&sandbox).filter(|keeper| keeper.link == Some(link)) else {
            return;
        };
        keeper.down_at = keeper.down_at.max(now + pause);
        let at = keeper.down_at;
        self.at(at, SimEvent::Down { sandbox, link, command: Box::new(command) });
    }
}

pub fn how(ended: SimExit) -> ExecHow {
    match ended {
        SimExit::Code(code) => ExecHow::Exited { code },
        SimExit::Signal(signal) => ExecHow::Killed { signal },
        SimExit::NotStarted => ExecHow::NotStarted,
    }
}
