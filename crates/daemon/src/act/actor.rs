//! One sandbox's task: its keeper's link, and the lines of the runtime in it.
//!
//! While the link is down effects are dropped on purpose: when the runtime answers its probe again the engine
//! hands out everything that is open once more.

use std::collections::HashMap;
use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lodge_core::ledger::Repeat;
use lodge_core::liveness::Liveness;
use lodge_core::record::{ExecRequest, ImageRecord};
use lodge_core::{AgentId, ExecId, SandboxId};
use lodge_exec::{
    ExecKind, ExecName, ExecState, ExitOutcome, ExitRecord, KeeperCommand, KeeperEvent, Link, LinkReceiver,
    LinkSender, Resource, Secret, StartExec,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::calling::Calling;
use super::events::{FoundExecs, split_running};
use super::jobs::Outputs;
use super::layout::Layout;
use super::pulse::Pulse;
use super::{Order, root, runtime};
use crate::auth::derive;
use crate::chain;
use crate::crash;
use crate::shell::{Shell, now};
use crate::view::Living;
use lodge_engine::{AgentSeen, Part, SandboxEffect, SandboxPlan, SandboxSeen, Seen, TurnSeen, Up};

/// Between asking everything in a sandbox to end and killing it.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// How much longer a keeper may take to be gone.
pub(super) const GONE_WITHIN: Duration = Duration::from_secs(10);
/// How long a keeper whose link was lost may take to be gone.
const LOST_WITHIN: Duration = Duration::from_millis(200);

pub(super) struct Actor {
    pub(super) shell: Arc<Shell>,
    pub(super) sandbox: SandboxId,
    /// Whose sandbox it is.
    pub(super) agent: AgentId,
    pub(super) up: Option<Sandbox>,
    /// A keeper that holds its lock and has not answered yet.
    pub(super) calling: Option<Box<Calling>>,
    /// While it has something to do.
    pub(super) pulse: Option<Box<Pulse>>,
}

/// A sandbox whose keeper is connected.
pub(super) struct Sandbox {
    pub(super) plan: SandboxPlan,
    pub(super) image: ImageRecord,
    /// The agent's directory on the host.
    pub(super) root: PathBuf,
    /// Where things are for its programs.
    pub(super) layout: Layout,
    pub(super) sender: Arc<dyn LinkSender>,
    pub(super) receiver: Box<dyn LinkReceiver>,
    pub(super) living: Arc<Living>,
    /// That the runtime ended was told.
    pub(super) runtime_over: bool,
    /// The `initialize` that is waited for. A runtime that was ready before has no deadline: its silence is counted.
    pub(super) probe: Option<(String, Option<Instant>)>,
    /// Whether the runtime was there before us.
    pub(super) adopted: bool,
    pub(super) probes: u32,
    /// Tool calls that were asked for and have not ended.
    pub(super) open: HashMap<ExecId, (ExecRequest, Repeat)>,
    /// The run of an earlier runtime, which has to end before this one is started.
    pub(super) follows: Option<(u32, StartExec)>,
    /// Whether its keeper can be asked to start jobs.
    pub(super) knows_jobs: bool,
    pub(super) outputs: Outputs,
}

/// Runs until the daemon ends or the agent is removed.
pub(super) async fn run(
    shell: Arc<Shell>,
    (sandbox, agent): (SandboxId, AgentId),
    mut orders: mpsc::Receiver<Box<Order>>,
) {
    let mut actor = Actor { shell, sandbox, agent, up: None, calling: None, pulse: None };
    loop {
        let due = actor.next_due();
        tokio::select! {
            order = orders.recv() => match order.map(|order| *order) {
                Some(Order::Do(effect)) => actor.effect(effect).await,
                // Who asked may not wait any more.
                Some(Order::Prune(answer)) => drop(answer.send(actor.prune().await)),
                None => return,
            },
            event = next_event(actor.up.as_mut()) => actor.event(event).await,
            () = at(due) => Box::pin(actor.due()).await,
        }
    }
}

async fn next_event(up: Option<&mut Sandbox>) -> Option<KeeperEvent> {
    match up {
        Some(up) => poll_fn(|context| up.receiver.poll_event(context)).await,
        None => std::future::pending().await,
    }
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

impl Actor {
    /// When something has to be done although nothing happens.
    fn next_due(&self) -> Option<Instant> {
        let probe = self.up.as_ref().and_then(|up| up.probe.as_ref()).and_then(|(_, until)| *until);
        let calling = self.calling.as_ref().map(|calling| calling.next);
        let pulse = self.pulse.as_ref().map(|pulse| pulse.next);
        let outputs = self.up.as_ref().and_then(|up| up.outputs.next_due());
        [probe, calling, pulse, outputs].into_iter().flatten().min()
    }

    async fn due(&mut self) {
        let now = Instant::now();
        let probe = self.up.as_ref().and_then(|up| up.probe.as_ref()).and_then(|(_, until)| *until);
        if probe.is_some_and(|until| until <= now) {
            self.probe_timed_out().await;
        }
        if self.pulse.as_ref().is_some_and(|pulse| pulse.next <= now) {
            self.look().await;
        }
        if self.calling.as_ref().is_some_and(|calling| calling.next <= now) {
            self.call().await;
        }
        self.tell_outputs().await;
    }

    async fn effect(&mut self, effect: SandboxEffect) {
        match effect {
            // Boxed, as every agent's task is kept and this happens seldom.
            SandboxEffect::Up { plan, how } => Box::pin(self.bring_up(*plan, how)).await,
            SandboxEffect::Down { run, incarnation } => {
                let agent = self.agent.clone();
                let seen = match Box::pin(self.bring_down(incarnation)).await {
                    Ok(()) => Seen::Sandbox(SandboxSeen::Down { agent, run }),
                    Err(detail) => {
                        tracing::error!(event = "sandbox.not_ended", %agent, detail);
                        Seen::Sandbox(SandboxSeen::NotDown { agent, run, detail })
                    }
                };
                self.shell.tell(seen).await;
            }
            SandboxEffect::KillRuntime { run } => self.kill_runtime(run).await,
            SandboxEffect::Kill { run } => Box::pin(self.kill_sandbox(run)).await,
            SandboxEffect::Clear => Box::pin(self.clear()).await,
            SandboxEffect::NoteFailure { line } => self.note_failure(line).await,
            SandboxEffect::RunTurn { turn, session, number, step, calls, epoch } => {
                self.watch();
                self.line(runtime::run_turn(&turn, session.as_str(), number, step, calls, epoch)).await;
            }
            SandboxEffect::DropTurn { turn } => self.line(runtime::drop_turn(&turn)).await,
            SandboxEffect::Answer { id, answer } => {
                let mut line = runtime::answer(&id, answer);
                if line.len() > lodge_exec::limits::RUNTIME_LINE_MAX {
                    let large =
                        lodge_engine::failure("turn.answer_too_large", "the answer does not fit into a line");
                    line = runtime::answer(&id, Err(large));
                }
                self.line(line).await;
            }
            SandboxEffect::StartExec { exec, request, safe, resumed } => {
                let safe = safe || crash::mutation() == crash::Mutation::RepeatUnsafe;
                let repeat = if safe { Repeat::Safe } else { Repeat::Unsafe };
                self.start_exec(exec, request, repeat, resumed).await;
            }
            SandboxEffect::KillExec { exec } => {
                let grace_ms = u32::try_from(GRACE.as_millis()).unwrap_or(u32::MAX);
                self.send(KeeperCommand::Kill { exec: exec.as_str().to_owned(), grace_ms }).await;
            }
            SandboxEffect::ForgetExec { exec } => self.forget_exec(&exec).await,
            SandboxEffect::Job(order) => self.job(order).await,
        }
    }

    pub(super) async fn bring_up(&mut self, plan: SandboxPlan, how: Up) {
        (self.up, self.calling, self.pulse) = (None, None, None);
        if self.is_held() {
            self.calling = Some(Box::new(Calling::new(plan, how)));
            return self.call().await;
        }
        if how == Up::Adopt && plan.was_ready {
            let detail = "its sandbox was gone when the daemon came back".to_owned();
            let (agent, run) = (self.agent.clone(), plan.run);
            return self
                .shell
                .tell(Seen::Agent(AgentSeen::Died { agent, run, part: Part::Sandbox, detail }))
                .await;
        }
        self.start(plan, how).await;
    }

    /// Whether the sandbox has a keeper.
    pub(super) fn is_held(&self) -> bool {
        self.shell.executor.is_held(self.sandbox.as_str())
    }

    pub(super) fn secret(&self, incarnation: u32) -> Secret {
        let incarnation = incarnation.to_string();
        Secret::new(derive(&self.shell.state_key.0, &["keeper", self.sandbox.as_str(), &incarnation]))
    }

    /// Goes on with a fresh link: the runtime is started unless it runs, and asked whether it is ready.
    pub(super) async fn connected(&mut self, link: Link, plan: SandboxPlan, image: ImageRecord, how: Up) {
        let Link { welcome, sender, receiver } = link;
        let knows_jobs = welcome.knows_jobs();
        let root = root::root_of(&self.shell.config.data_dir, &plan.agent);
        let layout = Layout::of(&welcome.layers, &root);
        let layers = welcome.layers.iter().cloned().map(crate::view::layer);
        let living = Arc::new(Living::new(welcome.host_pid, layers.collect(), welcome.limits));
        self.shell.set_living(&self.agent, Some(living.clone()));
        let is_empty = welcome.execs.is_empty();
        let FoundExecs { runtimes, tools, jobs } = FoundExecs::new(welcome.execs);
        let (current, earlier): (Vec<_>, Vec<_>) =
            runtimes.into_iter().partition(|(run, _)| *run == plan.run);
        let known = current.into_iter().next().map(|(_, state)| state);
        let running = matches!(known, Some(ExecState::Running { .. }));
        if let Some(ExecState::Running { pid }) = known {
            living.set_runtime(pid);
        }
        if running {
            crash::point("during_adoption");
        } else if layout.is_fallback()
            // While nothing ran in it yet, nobody can have put a link in the place of these files.
            && is_empty
            && let Err(detail) = self.describe_root(&layout, &plan, &image).await
        {
            return self.not_started(plan.run, detail).await;
        }
        let ended = match known {
            Some(ExecState::Exited(record)) => Some(record),
            Some(ExecState::Running { .. } | ExecState::Lost) | None => None,
        };
        let (alive, over) = split_running(earlier);
        let runtime = ExecName::Runtime { run: plan.run }.to_string();
        let env = root::environment(&layout, &plan, &image);
        let cwd = layout.workspace();
        let argv = runtime_argv(&layout, &image);
        self.up = Some(Sandbox {
            plan,
            image: root::without_contents(image),
            root,
            layout,
            sender,
            receiver,
            living,
            runtime_over: false,
            probe: None,
            adopted: running && how == Up::Adopt,
            probes: 0,
            open: HashMap::new(),
            follows: None,
            knows_jobs,
            outputs: Outputs::default(),
        });
        self.jobs_found(jobs).await;
        self.tools_found(tools).await;
        for run in over {
            self.send(KeeperCommand::Forget { exec: ExecName::Runtime { run }.to_string() }).await;
        }
        if let Some(record) = ended {
            self.runtime_ended(&record).await;
            return;
        }
        let start = StartExec {
            exec: runtime,
            kind: ExecKind::Runtime,
            argv,
            env,
            cwd,
            stdin: Vec::new(),
            output_cap: 0,
            timeout_ms: 0,
            output_max: 0,
            job_head: 0,
            job_segment: 0,
            keep_free: 0,
        };
        match alive.last() {
            None => self.start_runtime(start).await,
            Some(earlier) => self.start_after(*earlier, start).await,
        }
    }

    pub(super) async fn start_runtime(&mut self, start: StartExec) {
        self.send(KeeperCommand::Start(start)).await;
        self.probe().await;
    }

    /// A runtime that was given up lives, and there are never two: this one is started when that one has ended.
    async fn start_after(&mut self, earlier: u32, start: StartExec) {
        let patience = self.shell.config.settings().readiness_timeout;
        let Some(up) = &mut self.up else { return };
        up.probe = Some((String::new(), Some(Instant::now() + patience)));
        up.follows = Some((earlier, start));
        let exec = ExecName::Runtime { run: earlier }.to_string();
        self.send(KeeperCommand::Kill { exec, grace_ms: 0 }).await;
    }

    /// Asks the runtime whether it is ready. The empty line ends whatever an earlier daemon left unfinished.
    async fn probe(&mut self) {
        let (epoch, patience) = (self.shell.epoch, self.shell.config.settings().readiness_timeout);
        let Some(up) = &mut self.up else { return };
        up.probes += 1;
        let id = format!("initialize:{epoch}:{}", up.probes);
        let line = runtime::initialize(&id, epoch, &up.layout, &up.plan, &up.image);
        let was_ready = up.plan.was_ready;
        up.probe = Some((id, (!was_ready).then(|| Instant::now() + patience)));
        if was_ready {
            self.watch();
        }
        self.line(Vec::new()).await;
        self.line(line).await;
    }

    async fn probe_timed_out(&mut self) {
        let Some(up) = &mut self.up else { return };
        up.probe = None;
        let seen = Seen::Agent(AgentSeen::ProbeTimedOut { agent: self.agent.clone(), run: up.plan.run });
        self.shell.tell(seen).await;
    }

    /// The keeper went away, or another daemon took over. The lock tells which.
    pub(super) async fn link_lost(&mut self) {
        let Some(up) = self.up.take() else { return };
        self.shell.set_living(&self.agent, None);
        self.pulse = None;
        if self.shell.executor.wait_gone(self.sandbox.as_str(), LOST_WITHIN).await {
            let (agent, run, detail) = (self.agent.clone(), up.plan.run, "its sandbox died".to_owned());
            self.shell.tell(Seen::Agent(AgentSeen::Died { agent, run, part: Part::Sandbox, detail })).await;
        } else {
            self.bring_up(up.plan, Up::Adopt).await;
        }
    }

    pub(super) async fn heard(&mut self, line: &[u8]) {
        let Some(up) = &mut self.up else { return };
        let probe = up.probe.as_ref().map(|(id, _)| id.as_str());
        let run = up.plan.run;
        up.living.heard(now());
        match runtime::read(line, probe) {
            runtime::Said::Ready(profile, running) => {
                up.probe = None;
                up.plan.was_ready = true;
                let adopted = std::mem::take(&mut up.adopted);
                self.shell.actors.set_profile(&self.agent, *profile);
                if adopted {
                    crash::point("after_adoption");
                }
                let agent = self.agent.clone();
                self.shell.tell(Seen::Agent(AgentSeen::RuntimeReady { agent, run, adopted, running })).await;
            }
            // One that was ready and is not any more is replaced, and its tools go on.
            runtime::Said::NotReady(detail) if up.plan.was_ready => {
                up.probe = None;
                let agent = self.agent.clone();
                tracing::warn!(event = "runtime.not_ready", %agent, detail);
                let (level, part) = (Liveness::Crashed, Part::Runtime);
                self.shell.tell(Seen::Agent(AgentSeen::Silent { agent, run, level, part })).await;
            }
            runtime::Said::NotReady(detail) => {
                up.probe = None;
                self.not_started(run, detail).await;
            }
            runtime::Said::Asked { id, ask } => {
                let ask = self.admitted(ask);
                self.shell.tell(Seen::Turn(TurnSeen::Asked { agent: self.agent.clone(), id, ask })).await;
            }
            runtime::Said::Refused { turn, why } => {
                self.shell.tell(Seen::Turn(TurnSeen::Refused { agent: self.agent.clone(), turn, why })).await;
            }
            runtime::Said::Nonsense { id, why } => {
                let wrong = lodge_engine::failure("runtime.bad_request", &why);
                self.line(runtime::answer(&id, Err(wrong))).await;
            }
            runtime::Said::Nothing => {}
        }
    }

    /// What the runtime itself had started goes with it.
    pub(super) async fn runtime_ended(&mut self, record: &ExitRecord) {
        let Some(up) = &mut self.up else { return };
        if std::mem::replace(&mut up.runtime_over, true) {
            return;
        }
        up.probe = None;
        self.pulse = None;
        let (agent, run) = (self.agent.clone(), up.plan.run);
        let seen = match &record.ended {
            ExitOutcome::Code(_) | ExitOutcome::Signal(_) if is_out_of_memory(record) => {
                let detail = record.cause.as_ref().map(crate::limits::words).unwrap_or_default();
                Seen::Agent(AgentSeen::OutOfMemory {
                    agent,
                    run,
                    detail: format!("the runtime was killed: {detail}"),
                })
            }
            ExitOutcome::Code(code) => {
                let detail = format!("the runtime exited with code {code}");
                Seen::Agent(AgentSeen::Exited { agent, run, code: *code, detail })
            }
            ExitOutcome::Signal(signal) => {
                let detail = format!("the runtime was ended by signal {signal}");
                Seen::Agent(AgentSeen::Died { agent, run, part: Part::Runtime, detail })
            }
            ExitOutcome::NotStarted { why, .. } => {
                let detail = format!("the runtime could not be started: {why}");
                Seen::Agent(AgentSeen::SpawnFailed { agent, run, detail })
            }
        };
        self.send(KeeperCommand::Kill { exec: ExecName::Runtime { run }.to_string(), grace_ms: 0 }).await;
        self.shell.tell(seen).await;
    }

    pub(super) async fn line(&self, line: Vec<u8>) {
        self.send(KeeperCommand::RuntimeLine(line)).await;
    }

    /// Sends to the keeper. A lost link is noticed by its reader.
    pub(super) async fn send(&self, command: KeeperCommand) {
        let Some(up) = &self.up else { return };
        // A keeper that takes nothing for so long has its link closed: the frame may be half there.
        match tokio::time::timeout(self.thresholds().stale, up.sender.send(&command)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(event = "keeper.unreachable", agent = %self.agent, error = chain(&error));
            }
            Err(_) => {
                tracing::warn!(event = "keeper.unreachable", agent = %self.agent, error = "it takes nothing")
            }
        }
    }
}

fn is_out_of_memory(record: &ExitRecord) -> bool {
    record.cause.is_some_and(|cause| cause.resource == Resource::Memory)
}

fn runtime_argv(layout: &Layout, image: &ImageRecord) -> Vec<std::ffi::OsString> {
    let mut argv = vec![layout.runtime().into_os_string()];
    if image.exec.is_empty() {
        argv.push("serve".into());
    } else {
        argv.extend(image.exec.iter().map(Into::into));
    }
    argv.push("--root".into());
    argv.push(layout.root().into());
    argv
}
