//! One standalone sandbox's task: its keeper's link, and the execs of clients in it.
//!
//! While the link is down, orders about execs are dropped on purpose: when the keeper is connected again, the engine
//! requests all open execs.

mod dialing;
mod execs;
mod files;

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use lodge_core::sandbox::SandboxExecState;
use lodge_core::{ExecId, SandboxId};
use lodge_engine::{
    Observation, SandboxLookup, StandaloneEffect, StandaloneObservation, StandalonePlan, StartMode,
};
use lodge_exec::{
    ExecName, ExecState, KeeperCommand, KeeperEvent, KnownExec, Link, LinkReceiver, LinkSender,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

use self::dialing::StandaloneDial;
use self::execs::UnreadExecs;
use super::context::ActContext;
use super::events;
use super::keeper::SandboxKeeper;
use super::layout::Layout;
use crate::chain;
use crate::crash;
use crate::tasks::TaskKind;
use crate::view::LiveSandbox;

/// How long a keeper may take to exit after its link was lost.
const LOST_WITHIN: Duration = Duration::from_millis(200);

struct StandaloneTask {
    context: Arc<ActContext>,
    sandbox: SandboxId,
    up: Option<ConnectedSandbox>,
    /// A keeper that holds its lock and has not answered yet.
    dialing: Option<Box<StandaloneDial>>,
    unread: UnreadExecs,
}

/// A sandbox whose keeper is connected.
struct ConnectedSandbox {
    plan: StandalonePlan,
    /// The paths that its programs see.
    layout: Layout,
    sender: Arc<dyn LinkSender>,
    receiver: Box<dyn LinkReceiver>,
}

/// Runs until the daemon ends, or until its sandbox is down and no order waits.
pub(super) async fn run(
    context: Arc<ActContext>,
    sandbox: SandboxId,
    mut orders: mpsc::Receiver<Box<StandaloneEffect>>,
) {
    let unread = UnreadExecs::default();
    let mut task = StandaloneTask { context, sandbox, up: None, dialing: None, unread };
    loop {
        if task.is_at_rest() && task.context.actors.standalones.release(&task.sandbox, &orders) {
            return;
        }
        let due = task.next_due();
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(effect) => Box::pin(task.apply_effect(*effect)).await,
                None => return,
            },
            () = at(due) => Box::pin(task.run_due()).await,
            event = next_event(task.up.as_mut()) => Box::pin(task.handle_event(event)).await,
        }
    }
}

async fn next_event(up: Option<&mut ConnectedSandbox>) -> Option<KeeperEvent> {
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

/// Reads the ids of a command from the store, and reports what they are.
pub(super) fn look_up(context: &Arc<ActContext>, ask: u64, sandbox: SandboxId, exec: Option<ExecId>) {
    let reporter = context.clone();
    context.spawn(TaskKind::SandboxLookup, async move {
        let id = sandbox.clone();
        let read = reporter.read_few(move |store| {
            let exec_is_taken = match &exec {
                Some(exec) => store.exec(exec)?.is_some(),
                None => false,
            };
            Ok((store.sandbox_fact(&id)?, exec_is_taken))
        });
        let found = match read.await {
            Ok((found, exec_is_taken)) => SandboxLookup::Read { sandbox: found.map(Box::new), exec_is_taken },
            Err(error) => {
                tracing::warn!(event = "sandbox.not_read", %sandbox, error = chain(&error));
                SandboxLookup::Unreadable
            }
        };
        reporter.report(Observation::Standalone(StandaloneObservation::LookedUp { ask, found })).await;
    });
}

impl StandaloneTask {
    fn keeper(&self) -> SandboxKeeper<'_> {
        SandboxKeeper { context: &self.context, sandbox: &self.sandbox }
    }

    /// Whether it holds nothing: a task that is started for the next order is the same.
    fn is_at_rest(&self) -> bool {
        self.up.is_none() && self.dialing.is_none() && self.unread.is_empty()
    }

    /// The next deadline.
    fn next_due(&self) -> Option<Instant> {
        let dialing = self.dialing.as_ref().map(|dialing| dialing.next);
        [dialing, self.unread.next].into_iter().flatten().min()
    }

    async fn run_due(&mut self) {
        let now = Instant::now();
        if self.dialing.as_ref().is_some_and(|dialing| dialing.next <= now) {
            self.dial().await;
        }
        self.start_unread_execs().await;
    }

    async fn apply_effect(&mut self, effect: StandaloneEffect) {
        match effect {
            StandaloneEffect::Up { plan, how } => self.open(*plan, how).await,
            StandaloneEffect::Down { incarnation } => self.end(incarnation).await,
            StandaloneEffect::Tidy => self.tidy().await,
            StandaloneEffect::Remove => self.remove().await,
            StandaloneEffect::Exec(order) => self.apply_exec_order(order).await,
        }
    }

    async fn report(&self, seen: StandaloneObservation) {
        self.context.report(Observation::Standalone(seen)).await;
    }

    async fn report_start_failure(&self, incarnation: u32, detail: String) {
        let sandbox = self.sandbox.clone();
        tracing::warn!(event = "sandbox.not_started", %sandbox, detail);
        self.report(StandaloneObservation::StartFailed { sandbox, incarnation, detail }).await;
    }

    async fn report_death(&self, incarnation: u32, detail: &str) {
        let (sandbox, detail) = (self.sandbox.clone(), detail.to_owned());
        self.report(StandaloneObservation::Died { sandbox, incarnation, detail }).await;
    }

    /// Connects to the sandbox if it has a keeper, and starts it otherwise.
    async fn open(&mut self, plan: StandalonePlan, how: StartMode) {
        self.disconnect();
        if self.keeper().is_held() {
            self.dialing = Some(Box::new(StandaloneDial::new(plan, how)));
            return self.dial().await;
        }
        match how {
            StartMode::Start => self.start(plan).await,
            StartMode::Adopt => {
                self.report_death(plan.incarnation, "its processes were gone when the daemon came back")
                    .await;
            }
        }
    }

    fn disconnect(&mut self) -> Option<ConnectedSandbox> {
        self.dialing = None;
        self.context.set_living_standalone(&self.sandbox, None);
        self.up.take()
    }

    async fn start(&mut self, plan: StandalonePlan) {
        let incarnation = plan.incarnation;
        match self.start_keeper(&plan).await {
            Ok(link) => self.attach_link(link, plan).await,
            Err(detail) => self.report_start_failure(incarnation, detail).await,
        }
    }

    async fn start_keeper(&self, plan: &StandalonePlan) -> Result<Link, String> {
        let secret = self.keeper().secret(plan.incarnation);
        let spec = self.context.sandbox_files.prepare(plan, secret.clone()).await?;
        // The semaphore is never closed.
        let _slot = self.context.starting.acquire().await.ok();
        let executor = &self.context.executor;
        executor.start(&spec).await.map_err(|error| chain(&error))?;
        crash::point("during_start");
        let dialled = executor.dial(self.sandbox.as_str(), &secret, self.context.epoch).await;
        dialled.map_err(|error| chain(&error))
    }

    /// The keeper is connected: the engine requests all open execs.
    async fn attach_link(&mut self, link: Link, plan: StandalonePlan) {
        let Link { welcome, sender, receiver } = link;
        let layout = Layout::of(&welcome.layers, &self.context.sandbox_files.root(&self.sandbox));
        let layers = welcome.layers.iter().cloned().map(crate::view::layer);
        let living = LiveSandbox::new(welcome.host_pid, layers.collect(), welcome.limits);
        self.context.set_living_standalone(&self.sandbox, Some(Arc::new(living)));
        let incarnation = plan.incarnation;
        self.up = Some(ConnectedSandbox { plan, layout, sender, receiver });
        self.forget_settled(welcome.execs).await;
        let sandbox = self.sandbox.clone();
        self.report(StandaloneObservation::Started { sandbox, incarnation }).await;
    }

    /// Removes what is left of execs whose outcomes are recorded: an earlier daemon died before it could.
    async fn forget_settled(&mut self, execs: Vec<KnownExec>) {
        let ended = execs.into_iter().filter_map(|known| match known.state {
            ExecState::Exited(_) | ExecState::Lost => known.exec.parse::<ExecId>().ok(),
            ExecState::Running { .. } => None,
        });
        for exec in ended {
            let id = exec.clone();
            let recorded = self.context.read_few(move |store| store.exec(&id)).await;
            let is_open =
                |row: lodge_core::sandbox::SandboxExecRow| row.progress.state == SandboxExecState::Running;
            if recorded.is_ok_and(|row| row.is_some_and(|row| !is_open(row))) {
                self.send(KeeperCommand::Forget { exec: exec.to_string() }).await;
            }
        }
    }

    async fn send(&mut self, command: KeeperCommand) {
        let Some(up) = &self.up else { return };
        // The lost link is noticed by its other half, and what was sent is requested again.
        if let Err(error) = up.sender.send(&command).await {
            tracing::debug!(event = "keeper.unreachable", sandbox = %self.sandbox, error = chain(&error));
        }
    }

    async fn handle_event(&mut self, event: Option<KeeperEvent>) {
        let Some(event) = event else { return self.link_lost().await };
        match event {
            KeeperEvent::Started { .. } => crash::point("during_exec"),
            KeeperEvent::Exited { exec, kind, record } => {
                if let Some(exec) = command_of(events::name(kind, &exec)) {
                    self.exec_exited(exec, &record).await;
                }
            }
            KeeperEvent::Refused { exec, kind, why, recorded } => {
                if let Some(exec) = command_of(events::name(kind, &exec)) {
                    self.exec_refused(exec, why, recorded).await;
                }
            }
            KeeperEvent::Lost { exec, kind } => {
                if let Some(exec) = command_of(events::name(kind, &exec)) {
                    self.exec_lost(exec, "its sandbox died while it ran").await;
                }
            }
            KeeperEvent::Output { exec, kind, stdout, stderr } => {
                if let Some(exec) = command_of(events::name(kind, &exec)) {
                    self.context.outputs.exec_wrote(&exec, stdout, stderr);
                }
            }
            KeeperEvent::RuntimeLine(_) | KeeperEvent::Pong { .. } => {}
        }
    }

    /// Handles a lost link. The lock shows whether the keeper died or another daemon took over.
    async fn link_lost(&mut self) {
        let Some(up) = self.disconnect() else { return };
        if self.context.executor.wait_gone(self.sandbox.as_str(), LOST_WITHIN).await {
            self.report_death(up.plan.incarnation, "its processes ended, or were killed").await;
        } else {
            self.open(up.plan, StartMode::Adopt).await;
        }
    }

    async fn end(&mut self, incarnation: u32) {
        let sender = self.disconnect().map(|up| up.sender);
        let sandbox = self.sandbox.clone();
        let seen = match self.keeper().end_any(sender, incarnation).await {
            Ok(()) => StandaloneObservation::Down { sandbox, incarnation },
            Err(detail) => {
                tracing::error!(event = "sandbox.not_ended", %sandbox, detail);
                StandaloneObservation::NotDown { sandbox, incarnation, detail }
            }
        };
        self.report(seen).await;
    }

    /// Removes what the processes of an ended sandbox left. A sandbox that was started again keeps it.
    async fn tidy(&mut self) {
        if self.up.is_some() || self.dialing.is_some() || self.keeper().is_held() {
            return;
        }
        if let Err(error) = self.context.executor.remove(self.sandbox.as_str()).await {
            tracing::warn!(event = "sandbox.not_removed", sandbox = %self.sandbox, error = chain(&error));
        }
    }

    async fn remove(&mut self) {
        let sandbox = self.sandbox.clone();
        let seen = match self.remove_all().await {
            Ok(()) => StandaloneObservation::Removed { sandbox },
            Err(detail) => {
                tracing::error!(event = "sandbox.not_removed", %sandbox, detail);
                StandaloneObservation::NotRemoved { sandbox, detail }
            }
        };
        self.report(seen).await;
    }

    async fn remove_all(&self) -> Result<(), String> {
        if self.keeper().is_held() {
            return Err("its processes still live".to_owned());
        }
        let removed = self.context.executor.remove(self.sandbox.as_str()).await;
        removed.map_err(|error| chain(&error))?;
        self.context.sandbox_files.remove(&self.sandbox).await
    }
}

/// The exec of a client. A keeper that knows only the id of an exec takes it for a tool call, and a standalone sandbox has
/// none.
fn command_of(name: Option<ExecName>) -> Option<ExecId> {
    match name? {
        ExecName::Command(exec) | ExecName::Tool(exec) => Some(exec),
        ExecName::Runtime { .. } | ExecName::Job(_) => None,
    }
}
