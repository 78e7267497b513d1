//! A new link to a keeper: the state of its execs is reported, then its runtime is started and probed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;

use lodge_core::record::ImageRecord;
use lodge_engine::{SandboxPlan, StartMode};
use lodge_exec::{ExecKind, ExecName, ExecState, KeeperCommand, Link, StartExec};
use tokio::time::Instant;

use super::actor::{Actor, Sandbox};
use super::events::{FoundExecs, split_running};
use super::jobs::{OutputReports, UnreadJobs};
use super::layout::Layout;
use super::{root, runtime};
use crate::crash;
use crate::view::LiveSandbox;

impl Actor {
    /// Uses a new link: starts the runtime unless it runs, and probes it.
    pub(super) async fn attach_link(
        &mut self,
        link: Link,
        plan: SandboxPlan,
        image: ImageRecord,
        how: StartMode,
    ) {
        let Link { welcome, sender, receiver } = link;
        let knows_jobs = welcome.supports_jobs();
        let root = root::root_of(&self.context.config.data_dir, &plan.agent);
        let layout = Layout::of(&welcome.layers, &root);
        let layers = welcome.layers.iter().cloned().map(crate::view::layer);
        let living = Arc::new(LiveSandbox::new(welcome.host_pid, layers.collect(), welcome.limits));
        self.context.set_living(&self.agent, living.clone());
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
            // Nothing ran in the sandbox yet, so no program can have replaced these files with links.
            && is_empty
            && let Err(detail) = self.context.files.describe(&layout, &plan, &image).await
        {
            return self.report_start_failure(plan.run, detail).await;
        }
        let ended = match known {
            Some(ExecState::Exited(record)) => Some(record),
            Some(ExecState::Running { .. } | ExecState::Lost) | None => None,
        };
        let (alive, over) = split_running(earlier);
        let start = runtime_exec(&plan, &layout, &image);
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
            adopted: running && how == StartMode::Adopt,
            probes: 0,
            open: BTreeMap::new(),
            follows: None,
            knows_jobs,
            outputs: OutputReports::default(),
            unread_jobs: UnreadJobs::default(),
        });
        self.report_found_jobs(jobs).await;
        self.report_found_tools(tools).await;
        for run in over {
            self.send(KeeperCommand::Forget { exec: ExecName::Runtime { run }.to_string() }).await;
        }
        if let Some(record) = ended {
            self.runtime_ended(&record).await;
            return;
        }
        match alive.last() {
            None => self.start_runtime(start).await,
            Some(earlier) => self.start_runtime_after(*earlier, start).await,
        }
    }

    pub(super) async fn start_runtime(&mut self, start: StartExec) {
        self.send(KeeperCommand::Start(start)).await;
        self.send_probe().await;
    }

    /// Kills an earlier runtime that still runs, and starts this one after its end: a sandbox never has two runtimes.
    async fn start_runtime_after(&mut self, earlier: u32, start: StartExec) {
        let patience = self.context.config.settings().readiness_timeout;
        let Some(up) = &mut self.up else { return };
        up.probe = Some((String::new(), Some(Instant::now() + patience)));
        up.follows = Some((earlier, start));
        let exec = ExecName::Runtime { run: earlier }.to_string();
        self.send(KeeperCommand::Kill { exec, grace_ms: 0 }).await;
    }

    /// Asks the runtime whether it is ready. The empty line ends a partial line of an earlier daemon.
    async fn send_probe(&mut self) {
        let (epoch, patience) = (self.context.epoch, self.context.config.settings().readiness_timeout);
        let Some(up) = &mut self.up else { return };
        up.probes += 1;
        let id = format!("initialize:{epoch}:{}", up.probes);
        let line = runtime::initialize(&id, epoch, &up.layout, &up.plan, &up.image);
        let was_ready = up.plan.was_ready;
        up.probe = Some((id, (!was_ready).then(|| Instant::now() + patience)));
        if was_ready {
            self.watch();
        }
        self.send_line(Vec::new()).await;
        self.send_line(line).await;
    }
}

/// The exec of a runtime. Its output is relayed and not captured, so it has no limits.
fn runtime_exec(plan: &SandboxPlan, layout: &Layout, image: &ImageRecord) -> StartExec {
    StartExec {
        exec: ExecName::Runtime { run: plan.run }.to_string(),
        kind: ExecKind::Runtime,
        argv: runtime_argv(layout, image),
        env: root::environment(layout, plan, image),
        cwd: layout.workspace(),
        stdin: Vec::new(),
        output_cap: 0,
        timeout_ms: 0,
        output_max: 0,
        job_head: 0,
        job_segment: 0,
        keep_free: 0,
    }
}

fn runtime_argv(layout: &Layout, image: &ImageRecord) -> Vec<OsString> {
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
