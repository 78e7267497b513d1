//! One sandbox's task: its keeper's link, and the lines of the runtime in it.
//!
//! While the link is down, effects are dropped on purpose: when the runtime answers its next probe, the engine hands out
//! all open work again.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lodge_core::ledger::RepeatSafety;
use lodge_core::liveness::Liveness;
use lodge_core::record::{ExecRequest, ImageRecord};
use lodge_core::{AgentId, ExecId, SandboxId};
use lodge_exec::{
    ExecName, ExitOutcome, ExitRecord, KeeperCommand, KeeperEvent, KeeperSecret, LinkReceiver, LinkSender,
    Resource, StartExec,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::context::ActContext;
use super::dialing::KeeperDial;
use super::jobs::{OutputReports, UnreadJobs};
use super::keeper::SandboxKeeper;
use super::layout::Layout;
use super::pulse::Pulse;
use super::{SandboxOrder, runtime};
use crate::chain;
use crate::crash;
use crate::view::LiveSandbox;
use lodge_engine::{
    AgentComponent, AgentObservation, Observation, RuntimeCallRefusal, SandboxEffect, SandboxObservation,
    SandboxPlan, StartMode, StartRequirement, TurnObservation,
};

/// Time between SIGTERM and SIGKILL for the processes of a sandbox.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// How long a keeper may take to exit after that.
pub(super) const GONE_WITHIN: Duration = Duration::from_secs(10);
/// How long a keeper may take to exit after its link was lost.
const LOST_WITHIN: Duration = Duration::from_millis(200);

pub(super) struct Actor {
    pub(super) context: Arc<ActContext>,
    pub(super) sandbox: SandboxId,
    /// The owner of the sandbox.
    pub(super) agent: AgentId,
    pub(super) up: Option<Sandbox>,
    /// A keeper that holds its lock and has not answered yet.
    pub(super) dialing: Option<Box<KeeperDial>>,
    /// Present while the sandbox has work.
    pub(super) pulse: Option<Box<Pulse>>,
}

/// A sandbox whose keeper is connected.
pub(super) struct Sandbox {
    pub(super) plan: SandboxPlan,
    pub(super) image: ImageRecord,
    /// The agent's directory on the host.
    pub(super) root: PathBuf,
    /// The paths that its programs see.
    pub(super) layout: Layout,
    pub(super) sender: Arc<dyn LinkSender>,
    pub(super) receiver: Box<dyn LinkReceiver>,
    pub(super) living: Arc<LiveSandbox>,
    /// The end of the runtime was reported.
    pub(super) runtime_over: bool,
    /// The id and the deadline of the pending `initialize`. A runtime that was ready before has no deadline: its silence is
    /// counted instead.
    pub(super) probe: Option<(String, Option<Instant>)>,
    /// Whether an earlier daemon started the runtime.
    pub(super) adopted: bool,
    pub(super) probes: u32,
    /// Tool calls that were requested and have not ended.
    pub(super) open: BTreeMap<ExecId, (ExecRequest, RepeatSafety)>,
    /// The run of an earlier runtime that has to end first, and the exec to start then.
    pub(super) follows: Option<(u32, StartExec)>,
    /// Whether its keeper supports jobs.
    pub(super) knows_jobs: bool,
    pub(super) outputs: OutputReports,
    pub(super) unread_jobs: UnreadJobs,
}

/// Runs until the daemon ends, or until its sandbox is down and no order waits.
pub(super) async fn run(
    context: Arc<ActContext>,
    (sandbox, agent): (SandboxId, AgentId),
    mut orders: mpsc::Receiver<Box<SandboxOrder>>,
) {
    let mut actor = Actor { context, sandbox, agent, up: None, dialing: None, pulse: None };
    loop {
        if actor.is_at_rest() && actor.context.actors.sandboxes.release(&actor.sandbox, &orders) {
            return;
        }
        let due = actor.next_due();
        tokio::select! {
            biased;
            order = orders.recv() => match order.map(|order| *order) {
                Some(SandboxOrder::Do(effect)) => actor.apply_effect(effect).await,
                // The caller may have given up.
                Some(SandboxOrder::Prune(answer)) => drop(answer.send(actor.prune().await)),
                None => return,
            },
            // Before events: a runtime that never stops talking delays no deadline.
            () = at(due) => Box::pin(actor.run_due()).await,
            event = next_event(actor.up.as_mut()) => actor.handle_event(event).await,
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
    /// The next deadline.
    fn next_due(&self) -> Option<Instant> {
        let probe = self.up.as_ref().and_then(|up| up.probe.as_ref()).and_then(|(_, until)| *until);
        let dialing = self.dialing.as_ref().map(|dialing| dialing.next);
        let pulse = self.pulse.as_ref().map(|pulse| pulse.next);
        let outputs = self.up.as_ref().and_then(|up| up.outputs.next_due());
        let unread = self.up.as_ref().and_then(|up| up.unread_jobs.next);
        [probe, dialing, pulse, outputs, unread].into_iter().flatten().min()
    }

    async fn run_due(&mut self) {
        let now = Instant::now();
        let probe = self.up.as_ref().and_then(|up| up.probe.as_ref()).and_then(|(_, until)| *until);
        if probe.is_some_and(|until| until <= now) {
            self.probe_timed_out().await;
        }
        if self.pulse.as_ref().is_some_and(|pulse| pulse.next <= now) {
            self.check_pulse().await;
        }
        if self.dialing.as_ref().is_some_and(|dialing| dialing.next <= now) {
            self.dial().await;
        }
        self.report_outputs().await;
        self.start_unread_jobs().await;
    }

    /// Whether it holds nothing: a task that is started for the next order is the same.
    fn is_at_rest(&self) -> bool {
        self.up.is_none() && self.dialing.is_none() && self.pulse.is_none()
    }

    async fn apply_effect(&mut self, effect: SandboxEffect) {
        match effect {
            // Boxed to keep the task of every agent small; a start is rare.
            SandboxEffect::Up { plan, how } => Box::pin(self.open_sandbox(*plan, how)).await,
            SandboxEffect::Down { run, incarnation } => {
                let agent = self.agent.clone();
                let seen = match Box::pin(self.end_sandbox(incarnation)).await {
                    Ok(()) => Observation::Sandbox(SandboxObservation::Down { agent, run }),
                    Err(detail) => {
                        tracing::error!(event = "sandbox.not_ended", %agent, detail);
                        Observation::Sandbox(SandboxObservation::NotDown { agent, run, detail })
                    }
                };
                self.context.report(seen).await;
            }
            SandboxEffect::KillRuntime { run } => self.kill_runtime(run).await,
            SandboxEffect::Kill { run } => Box::pin(self.kill_sandbox(run)).await,
            SandboxEffect::Clear => Box::pin(self.remove_agent_files()).await,
            SandboxEffect::NoteFailure { line } => self.note_failure(line).await,
            SandboxEffect::RunTurn { turn, session, number, step, calls, epoch } => {
                self.watch();
                self.send_line(runtime::run_turn(&turn, session.as_str(), number, step, calls, epoch)).await;
            }
            SandboxEffect::DropTurn { turn } => self.send_line(runtime::drop_turn(&turn)).await,
            SandboxEffect::Answer { id, answer } => {
                let mut line = runtime::answer(&id, answer);
                if line.len() > lodge_exec::limits::RUNTIME_LINE_MAX {
                    line = runtime::answer(&id, Err(RuntimeCallRefusal::AnswerTooLarge));
                }
                self.send_line(line).await;
            }
            SandboxEffect::StartExec { exec, request, safe, resumed } => {
                let safe = safe || crash::mutation() == crash::Mutation::RepeatUnsafe;
                let repeat = if safe { RepeatSafety::Safe } else { RepeatSafety::Unsafe };
                self.start_exec(exec, request, repeat, resumed).await;
            }
            SandboxEffect::KillExec { exec } => {
                let grace_ms = u32::try_from(GRACE.as_millis()).unwrap_or(u32::MAX);
                self.send(KeeperCommand::Kill { exec: exec.as_str().to_owned(), grace_ms }).await;
            }
            SandboxEffect::ForgetExec { exec } => self.forget_exec(&exec).await,
            SandboxEffect::Job(order) => self.apply_job_order(order).await,
        }
    }

    pub(super) async fn open_sandbox(&mut self, plan: SandboxPlan, how: StartMode) {
        (self.up, self.dialing, self.pulse) = (None, None, None);
        if self.is_held() {
            self.dialing = Some(Box::new(KeeperDial::new(plan, how)));
            return self.dial().await;
        }
        if how == StartMode::Adopt && plan.was_ready {
            let detail = "its sandbox was gone when the daemon came back".to_owned();
            return self.report_death(plan.run, AgentComponent::Sandbox, detail).await;
        }
        self.start(plan, how).await;
    }

    pub(super) async fn report_death(&self, run: u32, part: AgentComponent, detail: String) {
        let agent = self.agent.clone();
        self.context.report(Observation::Agent(AgentObservation::Died { agent, run, part, detail })).await;
    }

    pub(super) fn keeper(&self) -> SandboxKeeper<'_> {
        SandboxKeeper { context: &self.context, sandbox: &self.sandbox }
    }

    /// Whether the sandbox has a keeper.
    pub(super) fn is_held(&self) -> bool {
        self.keeper().is_held()
    }

    pub(super) fn secret(&self, incarnation: u32) -> KeeperSecret {
        self.keeper().secret(incarnation)
    }

    async fn probe_timed_out(&mut self) {
        let Some(up) = &mut self.up else { return };
        up.probe = None;
        let seen = Observation::Agent(AgentObservation::ProbeTimedOut {
            agent: self.agent.clone(),
            run: up.plan.run,
        });
        self.context.report(seen).await;
    }

    /// Handles a lost link. The lock shows whether the keeper died or another daemon took over.
    pub(super) async fn link_lost(&mut self) {
        let Some(up) = self.up.take() else { return };
        self.context.drop_living(&self.agent);
        self.pulse = None;
        if self.context.executor.wait_gone(self.sandbox.as_str(), LOST_WITHIN).await {
            self.report_death(up.plan.run, AgentComponent::Sandbox, "its sandbox died".to_owned()).await;
        } else {
            self.open_sandbox(up.plan, StartMode::Adopt).await;
        }
    }

    pub(super) async fn handle_runtime_line(&mut self, line: &[u8]) {
        let Some(up) = &mut self.up else { return };
        let probe = up.probe.as_ref().map(|(id, _)| id.as_str());
        let run = up.plan.run;
        up.living.record_line(self.context.clock.now());
        match runtime::parse_line(line, probe) {
            runtime::RuntimeLine::Ready(profile, running) => {
                up.probe = None;
                up.plan.was_ready = true;
                let adopted = std::mem::take(&mut up.adopted);
                self.context.actors.set_profile(&self.agent, *profile);
                if adopted {
                    crash::point("after_adoption");
                }
                let agent = self.agent.clone();
                self.context
                    .report(Observation::Agent(AgentObservation::RuntimeReady {
                        agent,
                        run,
                        adopted,
                        running,
                    }))
                    .await;
            }
            // The runtime was ready before: the engine replaces it, and its tools keep running.
            runtime::RuntimeLine::NotReady(detail) | runtime::RuntimeLine::Unconfigured(detail)
                if up.plan.was_ready =>
            {
                up.probe = None;
                let agent = self.agent.clone();
                tracing::warn!(event = "runtime.not_ready", %agent, detail);
                let (level, part) = (Liveness::Crashed, AgentComponent::Runtime);
                self.context
                    .report(Observation::Agent(AgentObservation::Silent { agent, run, level, part }))
                    .await;
            }
            runtime::RuntimeLine::NotReady(detail) => {
                up.probe = None;
                self.report_start_failure(run, detail).await;
            }
            runtime::RuntimeLine::Unconfigured(detail) => {
                up.probe = None;
                let detail = format!(
                    "{detail} (`lodge agent update {} --config KEY=VALUE` changes one)",
                    up.plan.name
                );
                self.report_lack(run, StartRequirement::Config, detail).await;
            }
            runtime::RuntimeLine::Request { id, ask } => {
                let ask = self.admit_call(ask);
                self.context
                    .report(Observation::Turn(TurnObservation::Asked { agent: self.agent.clone(), id, ask }))
                    .await;
            }
            runtime::RuntimeLine::TurnRefused { turn, why } => {
                self.context
                    .report(Observation::Turn(TurnObservation::Refused {
                        agent: self.agent.clone(),
                        turn,
                        why,
                    }))
                    .await;
            }
            runtime::RuntimeLine::BadRequest { id, why } => {
                let refused = Err(RuntimeCallRefusal::BadRequest { why });
                self.send_line(runtime::answer(&id, refused)).await;
            }
            runtime::RuntimeLine::Nothing => {}
        }
    }

    /// Reports the end of the runtime, and kills the processes that the runtime started.
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
                Observation::Agent(AgentObservation::OutOfMemory {
                    agent,
                    run,
                    detail: format!("the runtime was killed: {detail}"),
                })
            }
            ExitOutcome::Code(code) => {
                let detail = format!("the runtime exited with code {code}");
                Observation::Agent(AgentObservation::Exited { agent, run, code: *code, detail })
            }
            ExitOutcome::Signal(signal) => {
                let detail = format!("the runtime was ended by signal {signal}");
                Observation::Agent(AgentObservation::Died {
                    agent,
                    run,
                    part: AgentComponent::Runtime,
                    detail,
                })
            }
            ExitOutcome::NotStarted { why, .. } => {
                let detail = format!("the runtime could not be started: {why}");
                Observation::Agent(AgentObservation::SpawnFailed { agent, run, detail })
            }
        };
        self.send(KeeperCommand::Kill { exec: ExecName::Runtime { run }.to_string(), grace_ms: 0 }).await;
        self.context.report(seen).await;
    }

    pub(super) async fn send_line(&self, line: Vec<u8>) {
        self.send(KeeperCommand::RuntimeLine(line)).await;
    }

    /// Sends a command to the keeper. An error is only logged: the receiver detects a lost link.
    pub(super) async fn send(&self, command: KeeperCommand) {
        let Some(up) = &self.up else { return };
        // A timeout drops the send and closes the link, because a part of the frame may be sent.
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
