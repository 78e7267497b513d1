//! One agent's task: its sandbox, its keeper's link, its runtime's lines.
//!
//! While the link is down effects are dropped on purpose: when the runtime answers its probe again the engine
//! hands out everything that is open once more.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lodge_core::AgentId;
use lodge_core::agent::AgentState;
use lodge_core::ledger::Repeat;
use lodge_core::record::{AgentRow, ExecRequest, ImageRecord};
use lodge_exec::{
    Command, DialError, Ended, ExecKind, ExecState, ExitRecord, KeeperEvent as Event, Link, Receiver,
    SandboxSpec, Secret, Sender, Start,
};
use lodge_proto::LayerView;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{root, runtime, tools};
use crate::auth::derive;
use crate::chain;
use crate::crash;
use crate::engine::{Effect, Seen, Up};
use crate::shell::Shell;
use crate::view::Living;

/// Between asking everything in a sandbox to end and killing it.
const GRACE: Duration = Duration::from_secs(5);
/// How much longer a keeper may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// A keeper that lives but does not answer is dialled this often.
const DIALS_MAX: u32 = 5;
/// Earlier incarnations whose secret is tried on a sandbox that should be gone.
const INCARNATIONS_TRIED: usize = 16;
const DIAL_PAUSE: Duration = Duration::from_millis(200);

pub(super) struct Actor {
    pub(super) shell: Arc<Shell>,
    pub(super) agent: AgentId,
    pub(super) up: Option<Sandbox>,
}

/// A sandbox whose keeper is connected.
pub(super) struct Sandbox {
    pub(super) row: AgentRow,
    pub(super) image: ImageRecord,
    pub(super) root: PathBuf,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// The `initialize` that is waited for, until when, and whether the runtime was there before us.
    pub(super) probe: Option<(String, Instant)>,
    pub(super) adopted: bool,
    pub(super) probes: u32,
    /// Execs that were asked for and have not ended.
    pub(super) open: HashMap<String, (ExecRequest, Repeat)>,
}

/// Runs until the daemon ends or the agent is removed.
pub(super) async fn run(shell: Arc<Shell>, agent: AgentId, mut effects: mpsc::Receiver<Box<Effect>>) {
    let mut actor = Actor { shell, agent, up: None };
    loop {
        let probe_until = actor.up.as_ref().and_then(|up| up.probe.as_ref()).map(|(_, until)| *until);
        tokio::select! {
            effect = effects.recv() => match effect {
                Some(effect) => actor.effect(*effect).await,
                None => return,
            },
            event = next_event(actor.up.as_mut()) => actor.event(event).await,
            () = probe_over(probe_until) => actor.probe_timed_out().await,
        }
    }
}

async fn next_event(up: Option<&mut Sandbox>) -> Option<Event> {
    match up {
        Some(up) => up.receiver.next().await,
        None => std::future::pending().await,
    }
}

async fn probe_over(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

impl Actor {
    async fn effect(&mut self, effect: Effect) {
        match effect {
            // Boxed, as every agent's task is kept and this happens seldom.
            Effect::Up { row, how } => Box::pin(self.bring_up(*row, how)).await,
            Effect::Down { sandbox, .. } => {
                let agent = self.agent.clone();
                let seen = match Box::pin(self.bring_down(sandbox.as_str())).await {
                    Ok(()) => Seen::Down { agent },
                    Err(detail) => {
                        tracing::error!(event = "sandbox.not_ended", %agent, detail);
                        Seen::NotDown { agent, detail }
                    }
                };
                self.shell.tell(seen).await;
            }
            Effect::Clear { .. } => Box::pin(self.clear()).await,
            Effect::RunTurn { turn, session, number, step, calls, .. } => {
                self.line(runtime::run_turn(&turn, session.as_str(), number, step, &calls)).await;
            }
            Effect::DropTurn { turn, .. } => self.line(runtime::drop_turn(&turn)).await,
            Effect::Answer { id, answer, .. } => {
                let mut line = runtime::answer(&id, &answer);
                if line.len() > lodge_exec::limits::RUNTIME_LINE_MAX {
                    let large = crate::engine::failure(
                        "turn.answer_too_large",
                        "the answer does not fit into a line",
                    );
                    line = runtime::answer(&id, &Err(large));
                }
                self.line(line).await;
            }
            Effect::StartExec { exec, request, safe, resumed, .. } => {
                let repeat = if safe { Repeat::Safe } else { Repeat::Unsafe };
                self.start_exec(exec.as_str(), request, repeat, resumed).await;
            }
            Effect::KillExec { exec, .. } => {
                let grace_ms = u32::try_from(GRACE.as_millis()).unwrap_or(u32::MAX);
                self.send(Command::Kill { exec: exec.as_str().to_owned(), grace_ms }).await;
            }
            Effect::ForgetExec { exec, .. } => {
                self.send(Command::Forget { exec: exec.as_str().to_owned() }).await
            }
            // Model calls have tasks of their own.
            Effect::CallModel(_) | Effect::CancelModel { .. } => {}
        }
    }

    async fn bring_up(&mut self, row: AgentRow, how: Up) {
        self.up = None;
        let incarnation = row.incarnation;
        let held = self.shell.host.is_held(row.sandbox.as_str());
        if how == Up::Adopt && !held && row.state == AgentState::Ready {
            let seen = Seen::FoundGone { agent: self.agent.clone(), incarnation };
            return self.shell.tell(seen).await;
        }
        match self.connect(&row, held).await {
            Ok((link, image)) => self.connected(link, row, image, how).await,
            Err(detail) => {
                let agent = self.agent.clone();
                self.shell.tell(Seen::SpawnFailed { agent, incarnation, detail }).await;
            }
        }
    }

    /// A link to the agent's keeper, which is started when there is none.
    async fn connect(&self, row: &AgentRow, held: bool) -> Result<(Link, ImageRecord), String> {
        let (host, data_dir) = (&self.shell.host, &self.shell.config.data_dir);
        let image = self.shell.reader.image(&row.image_digest).map_err(|error| chain(&error))?;
        let image = image.ok_or_else(|| "its image is not in the store".to_owned())?;
        let secret = self.secret(row, row.incarnation);
        if held {
            match self.dial(row.sandbox.as_str(), &secret).await {
                Ok(link) => return Ok((link, image)),
                Err(DialError::WrongSecret { .. }) if row.incarnation > 1 => {
                    // An earlier incarnation has not ended yet. It must, before there is another.
                    match self.dial_any(row).await {
                        Some(old) => self.end(row.sandbox.as_str(), &old).await?,
                        None => self.kill(row.sandbox.as_str()).await?,
                    }
                }
                Err(error) => return Err(chain(&error)),
            }
        }
        let root = root::root_of(data_dir, row);
        let spec = SandboxSpec {
            id: row.sandbox.as_str().to_owned(),
            incarnation: row.incarnation,
            secret: secret.clone(),
            root: root.clone(),
            uid: row.uid,
            binds: root::binds(&root, row, self.shell.runtime.path().map_err(|error| chain(&error))?),
            log: root::log_of(data_dir, row),
            failpoint: None,
        };
        let made = {
            let (root, row, image) = (root, row.clone(), image.clone());
            tokio::task::spawn_blocking(move || root::make(&root, &row, &image)).await
        };
        match made {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(chain(&error)),
            Err(error) => return Err(error.to_string()),
        }
        host.start(&spec).await.map_err(|error| chain(&error))?;
        crash::point("during_start");
        let link = self.dial(row.sandbox.as_str(), &secret).await.map_err(|error| chain(&error))?;
        Ok((link, image))
    }

    async fn dial(&self, sandbox: &str, secret: &Secret) -> Result<Link, DialError> {
        let mut tries = 1;
        loop {
            match self.shell.host.dial(sandbox, secret, self.shell.epoch).await {
                Err(error @ (DialError::WrongSecret { .. } | DialError::OldEpoch { .. })) => {
                    return Err(error);
                }
                Err(error) if tries == DIALS_MAX => return Err(error),
                Err(_) => {
                    tries += 1;
                    tokio::time::sleep(DIAL_PAUSE).await;
                }
                Ok(link) => return Ok(link),
            }
        }
    }

    fn secret(&self, row: &AgentRow, incarnation: u32) -> Secret {
        let incarnation = incarnation.to_string();
        Secret::new(derive(&self.shell.state_key.0, &["keeper", row.sandbox.as_str(), &incarnation]))
    }

    /// Goes on with a fresh link: the runtime is started unless it runs, and asked whether it is ready.
    async fn connected(&mut self, link: Link, row: AgentRow, image: ImageRecord, how: Up) {
        let (welcome, sender, receiver) = link.split();
        let layers = welcome.layers.iter().map(|layer| LayerView {
            name: layer.name.clone(),
            in_force: layer.missing.is_none(),
            why: layer.missing.clone(),
        });
        self.shell.set_living(&self.agent, Some(Living { pid: welcome.host_pid, layers: layers.collect() }));
        let root = root::root_of(&self.shell.config.data_dir, &row);
        let runtime = runtime_exec(row.incarnation);
        let known = welcome.execs.iter().find(|known| known.exec == runtime).map(|known| &known.state);
        let running = matches!(known, Some(ExecState::Running { .. }));
        if running {
            crash::point("during_adoption");
        }
        let ended = match known {
            Some(ExecState::Exited(record)) => Some(record.clone()),
            Some(ExecState::Running { .. } | ExecState::Lost) | None => None,
        };
        let (running_tools, ended_tools) = tools::known(&welcome.execs);
        let env = root::environment(&root, &row, &image);
        let cwd = root.join("workspace");
        let argv = runtime_argv(&root, &image);
        self.up = Some(Sandbox {
            row,
            image: root::without_contents(image),
            root,
            sender,
            receiver,
            probe: None,
            adopted: running && how == Up::Adopt,
            probes: 0,
            open: HashMap::new(),
        });
        if !running_tools.is_empty() || !ended_tools.is_empty() {
            let (agent, running, ended) = (self.agent.clone(), running_tools, ended_tools);
            self.shell.tell(Seen::ExecsFound { agent, running, ended }).await;
        }
        if let Some(record) = ended {
            self.runtime_ended(&record).await;
            return;
        }
        let start = Start {
            exec: runtime,
            kind: ExecKind::Runtime,
            argv,
            env,
            cwd,
            stdin: Vec::new(),
            output_cap: 0,
        };
        self.send(Command::Start(start)).await;
        self.probe().await;
    }

    /// Asks the runtime whether it is ready. The empty line ends whatever an earlier daemon left unfinished.
    async fn probe(&mut self) {
        let (epoch, patience) = (self.shell.epoch, self.shell.config.span("readiness-timeout"));
        let Some(up) = &mut self.up else { return };
        up.probes += 1;
        let id = format!("initialize:{epoch}:{}", up.probes);
        let line = runtime::initialize(&id, epoch, &up.root, &up.row, &up.image);
        up.probe = Some((id, Instant::now() + patience));
        self.line(Vec::new()).await;
        self.line(line).await;
    }

    async fn probe_timed_out(&mut self) {
        let Some(up) = &mut self.up else { return };
        up.probe = None;
        let seen = Seen::ProbeTimedOut { agent: self.agent.clone(), incarnation: up.row.incarnation };
        self.shell.tell(seen).await;
    }

    async fn event(&mut self, event: Option<Event>) {
        let Some(event) = event else { return Box::pin(self.link_lost()).await };
        match event {
            Event::RuntimeLine(line) => self.heard(&line).await,
            Event::Started { exec, .. } => {
                if self.up.as_ref().is_some_and(|up| up.open.contains_key(&exec)) {
                    crash::point("during_effect");
                }
            }
            Event::Exited { exec, record } => self.exited(&exec, &record).await,
            Event::Refused { exec, why, .. } => self.refused(&exec, &why).await,
            Event::Lost { exec } => self.lost(&exec).await,
            Event::Pong { .. } => {}
        }
    }

    /// The keeper went away, or another daemon took over. The lock tells which.
    async fn link_lost(&mut self) {
        let Some(up) = self.up.take() else { return };
        self.shell.set_living(&self.agent, None);
        let sandbox = up.row.sandbox.as_str();
        if self.shell.host.wait_gone(sandbox, DIAL_PAUSE).await {
            let detail = "its sandbox died".to_owned();
            let seen = Seen::Exited {
                agent: self.agent.clone(),
                incarnation: up.row.incarnation,
                clean: false,
                detail,
            };
            self.shell.tell(seen).await;
        } else {
            self.bring_up(up.row, Up::Adopt).await;
        }
    }

    async fn heard(&mut self, line: &[u8]) {
        let Some(up) = &mut self.up else { return };
        let probe = up.probe.as_ref().map(|(id, _)| id.as_str());
        let incarnation = up.row.incarnation;
        match runtime::read(line, probe) {
            runtime::Said::Ready(profile, running) => {
                up.probe = None;
                let adopted = std::mem::take(&mut up.adopted);
                self.shell.actors.set_profile(&self.agent, *profile);
                if adopted {
                    crash::point("after_adoption");
                }
                let agent = self.agent.clone();
                self.shell.tell(Seen::RuntimeReady { agent, incarnation, adopted, running }).await;
            }
            runtime::Said::NotReady(detail) => {
                up.probe = None;
                let agent = self.agent.clone();
                self.shell.tell(Seen::SpawnFailed { agent, incarnation, detail }).await;
            }
            runtime::Said::Asked { id, ask } => {
                self.shell.tell(Seen::Asked { agent: self.agent.clone(), id, ask }).await;
            }
            runtime::Said::Refused { turn, why } => self.shell.tell(Seen::TurnRefused { turn, why }).await,
            runtime::Said::Nonsense { id, why } => {
                let wrong = crate::engine::failure("runtime.bad_request", &why);
                self.line(runtime::answer(&id, &Err(wrong))).await;
            }
            runtime::Said::Nothing => {}
        }
    }

    pub(super) async fn runtime_ended(&mut self, record: &ExitRecord) {
        let Some(up) = &mut self.up else { return };
        up.probe = None;
        let (clean, detail) = match &record.ended {
            Ended::Code(0) => (true, "the runtime exited".to_owned()),
            Ended::Code(code) => (false, format!("the runtime exited with code {code}")),
            Ended::Signal(signal) => (false, format!("the runtime was ended by signal {signal}")),
            Ended::NotStarted { why, .. } => (false, format!("the runtime could not be started: {why}")),
        };
        let seen = Seen::Exited { agent: self.agent.clone(), incarnation: up.row.incarnation, clean, detail };
        self.shell.tell(seen).await;
    }

    async fn line(&self, line: Vec<u8>) {
        self.send(Command::RuntimeLine(line)).await;
    }

    /// Sends to the keeper. A lost link is noticed by its reader.
    pub(super) async fn send(&self, command: Command) {
        let Some(up) = &self.up else { return };
        if let Err(error) = up.sender.send(&command).await {
            tracing::warn!(event = "keeper.unreachable", agent = %self.agent, error = chain(&error));
        }
    }

    async fn bring_down(&mut self, sandbox: &str) -> Result<(), String> {
        let up = self.up.take();
        self.shell.set_living(&self.agent, None);
        if self.shell.host.is_held(sandbox) {
            let row = self.shell.reader.agent(&self.agent).map_err(|error| chain(&error))?;
            let sender = match (up, row) {
                (Some(up), _) => Some(up.sender),
                (None, Some(found)) => self.dial_any(&found.row).await,
                (None, None) => None,
            };
            match sender {
                Some(sender) => self.end(sandbox, &sender).await?,
                None => self.kill(sandbox).await?,
            }
        }
        self.remove_run(sandbox);
        Ok(())
    }

    /// A link for ending a sandbox of which only the newest possible incarnation is known.
    async fn dial_any(&self, row: &AgentRow) -> Option<Sender> {
        let sandbox = row.sandbox.as_str();
        for incarnation in (1..=row.incarnation).rev().take(INCARNATIONS_TRIED) {
            match self.shell.host.dial(sandbox, &self.secret(row, incarnation), self.shell.epoch).await {
                Ok(link) => return Some(link.sender()),
                Err(DialError::WrongSecret { .. }) => {}
                // It does not answer at all: another secret changes nothing.
                Err(_) => return None,
            }
        }
        None
    }

    /// Ends a sandbox whose keeper answers nobody.
    async fn kill(&self, sandbox: &str) -> Result<(), String> {
        let killed = self.shell.host.kill_keeper(sandbox).map_err(|error| error.to_string())?;
        if killed && self.shell.host.wait_gone(sandbox, GONE_WITHIN).await {
            return Ok(());
        }
        Err("it holds its lock, does not answer, and could not be killed".to_owned())
    }

    /// Ends everything in a sandbox, and does not return before it is gone or beyond our power.
    async fn end(&self, sandbox: &str, sender: &Sender) -> Result<(), String> {
        let grace_ms = u32::try_from(GRACE.as_millis()).unwrap_or(u32::MAX);
        if let Err(error) = sender.send(&Command::End { grace_ms }).await {
            tracing::warn!(event = "keeper.unreachable", sandbox, error = chain(&error));
        }
        crash::point("during_stop");
        if self.shell.host.wait_gone(sandbox, GRACE + GONE_WITHIN).await {
            return Ok(());
        }
        sender.kill_keeper().map_err(|error| format!("its keeper could not be killed: {error}"))?;
        if self.shell.host.wait_gone(sandbox, GONE_WITHIN).await {
            return Ok(());
        }
        Err("its processes are still there after being killed".to_owned())
    }

    /// A sandbox that ended as asked leaves nothing open: its directory can go.
    fn remove_run(&self, sandbox: &str) {
        let open = self.shell.reader.live_turns(Some(&self.agent), None, 1);
        if !matches!(open, Ok(turns) if turns.is_empty()) {
            return;
        }
        if let Err(error) = self.shell.host.remove(sandbox) {
            tracing::warn!(event = "sandbox.not_removed", sandbox, error = chain(&error));
        }
    }

    async fn clear(&mut self) {
        let found = match self.shell.reader.agent(&self.agent) {
            Ok(Some(found)) if !self.shell.host.is_held(found.row.sandbox.as_str()) => found,
            Ok(Some(_)) => return self.not_cleared("its sandbox still lives".to_owned()).await,
            // Removed already, by an earlier order of the same kind.
            Ok(None) => return,
            Err(error) => return self.not_cleared(chain(&error)).await,
        };
        let data_dir = self.shell.config.data_dir.clone();
        let removed = tokio::task::spawn_blocking(move || root::remove(&data_dir, &found.row)).await;
        let detail = match removed {
            Ok(Ok(())) => {
                self.shell.tell(Seen::Cleared { agent: self.agent.clone() }).await;
                return super::forget_agent(&self.shell, &self.agent);
            }
            Ok(Err(error)) => chain(&error),
            Err(error) => error.to_string(),
        };
        self.not_cleared(detail).await;
    }

    async fn not_cleared(&self, detail: String) {
        tracing::error!(event = "agent.not_cleared", agent = %self.agent, detail);
        self.shell.tell(Seen::NotCleared { agent: self.agent.clone(), detail }).await;
    }
}

/// The exec that is the runtime: one per incarnation, so that asking for it twice starts it once.
pub(super) fn runtime_exec(incarnation: u32) -> String {
    format!("exe_runtime{incarnation}")
}

fn runtime_argv(root: &std::path::Path, image: &ImageRecord) -> Vec<std::ffi::OsString> {
    let mut argv = vec![root.join(root::RUNTIME).into_os_string()];
    if image.exec.is_empty() {
        argv.push("serve".into());
    } else {
        argv.extend(image.exec.iter().map(Into::into));
    }
    argv.push("--root".into());
    argv.push(root.into());
    argv
}
