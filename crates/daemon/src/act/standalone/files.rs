//! The directories of standalone sandboxes on this host: `sandboxes/<id>/root` and `sandboxes/<id>/logs`.

use std::path::{Path, PathBuf};

use lodge_core::{ExecId, SandboxId};
use lodge_engine::StandalonePlan;
use lodge_exec::{Bind, ExecStream, KeeperSecret, PrivateRoot, SandboxSpec};

use super::super::host::{HostFiles, blocking, network_of};
use super::super::ports::{PortFuture, StandaloneFiles};
use super::super::root::{self, RootPlan};
use crate::chain;
use crate::crash;
use crate::exec_logs;
use crate::host_trees::HostTrees;

/// Where programs of a sandbox see the output of its execs, relative to its root.
const LOGS_INSIDE: &str = "var/log/lodge";

impl StandaloneFiles for HostFiles {
    fn prepare<'a>(
        &'a self,
        plan: &'a StandalonePlan,
        secret: KeeperSecret,
    ) -> PortFuture<'a, Result<SandboxSpec, String>> {
        Box::pin(self.prepare_standalone(plan, secret))
    }

    fn root(&self, sandbox: &SandboxId) -> PathBuf {
        dir_of(&self.data_dir, sandbox).join("root")
    }

    fn remove<'a>(&'a self, sandbox: &'a SandboxId) -> PortFuture<'a, Result<(), String>> {
        let (dir, log) = (dir_of(&self.data_dir, sandbox), log_of(&self.data_dir, sandbox));
        Box::pin(blocking(move || root::remove_all(&[&dir, &log]).map_err(|error| chain(&error))))
    }

    fn written(&self, sandbox: &SandboxId, exec: &ExecId) -> (u64, u64) {
        let length = |stream| exec_logs::length(&self.data_dir, sandbox, exec, stream).unwrap_or(0);
        (length(ExecStream::Stdout), length(ExecStream::Stderr))
    }
}

impl HostFiles {
    async fn prepare_standalone(
        &self,
        plan: &StandalonePlan,
        secret: KeeperSecret,
    ) -> Result<SandboxSpec, String> {
        if let Some(program) = HostTrees::lost_program(&plan.settings) {
            return Err(format!(
                "the program {} is not there any more, or cannot be executed; install it and run `lodge sandbox resume {}`",
                program.display(),
                plan.sandbox
            ));
        }
        let host = HostTrees::of(&plan.settings, &self.data_dir);
        host.check(&plan.settings, &self.data_dir).map_err(|error| error.to_string())?;
        let root = self.root(&plan.sandbox);
        let logs = exec_logs::dir_of(&self.data_dir, &plan.sandbox);
        let (made, made_logs, owned, trees) = (root.clone(), logs.clone(), plan.clone(), host.clone());
        let host_etc = self.host_etc.clone();
        let make = move || {
            host_etc.refresh().map_err(|error| chain(&error))?;
            let named = RootPlan { name: owned.sandbox.as_str(), uid: owned.uid, settings: &owned.settings };
            root::make_standalone(&made, &made_logs, LOGS_INSIDE, &named, &trees)
                .map_err(|error| chain(&error))
        };
        // Bounded, because each creation occupies a thread. The semaphore is never closed.
        let slot = self.starting.acquire().await.ok();
        blocking(make).await?;
        drop(slot);
        let stock = self.runtime.path().map_err(|error| chain(&error))?;
        let named = RootPlan { name: plan.sandbox.as_str(), uid: plan.uid, settings: &plan.settings };
        let mut binds = vec![Bind::read_only(root.join("opt"), root.join("opt"))];
        binds.push(Bind::read_only(logs.clone(), root.join(LOGS_INSIDE)));
        binds.extend(root::spec_binds(&root, &named, stock, &Default::default()));
        Ok(SandboxSpec {
            id: plan.sandbox.to_string(),
            incarnation: plan.incarnation,
            secret,
            private_root: Some(PrivateRoot {
                hostname: root::hostname(plan.sandbox.as_str()),
                host_trees: host.trees.clone(),
                writable: root::THEIRS.map(PathBuf::from).into(),
                host_etc: Some(self.host_etc.dir().to_owned()),
            }),
            root,
            uid: plan.uid,
            binds,
            network: network_of(plan.settings.network.as_ref()),
            limits: crate::limits::of_sandbox(plan.settings.limits, &self.data_dir),
            log: log_of(&self.data_dir, &plan.sandbox),
            logs: Some(logs),
            failpoint: crash::keeper_point(),
        })
    }
}

fn dir_of(data_dir: &Path, sandbox: &SandboxId) -> PathBuf {
    data_dir.join("sandboxes").join(sandbox.as_str())
}

fn log_of(data_dir: &Path, sandbox: &SandboxId) -> PathBuf {
    data_dir.join("logs").join(format!("{sandbox}.log"))
}
