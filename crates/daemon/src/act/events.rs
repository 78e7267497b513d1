//! Events of a keeper, dispatched by the kind of the exec: runtime, tool call or job.

use lodge_core::{ExecId, JobId};
use lodge_exec::{ExecKind, ExecName, ExecState, ExitRecord, KeeperEvent, KnownExec};

use super::actor::Actor;
use crate::crash;
use lodge_engine::AgentComponent;

/// The execs that a keeper knows when the daemon connects to it, by kind.
#[derive(Debug, Default)]
pub(super) struct FoundExecs {
    /// By the number of their run.
    pub(super) runtimes: Vec<(u32, ExecState)>,
    pub(super) tools: Vec<(ExecId, ExecState)>,
    pub(super) jobs: Vec<(JobId, ExecState)>,
}

impl FoundExecs {
    pub(super) fn new(execs: Vec<KnownExec>) -> FoundExecs {
        let mut found = FoundExecs::default();
        for KnownExec { exec, kind, state } in execs {
            match name(kind, &exec) {
                Some(ExecName::Runtime { run }) => found.runtimes.push((run, state)),
                Some(ExecName::Tool(exec)) => found.tools.push((exec, state)),
                Some(ExecName::Job(job)) => found.jobs.push((job, state)),
                // No agent's sandbox has commands of clients.
                Some(ExecName::Command(_)) | None => {}
            }
        }
        found
    }
}

/// Splits execs into running and ended ones.
pub(super) fn split_running<T>(execs: Vec<(T, ExecState)>) -> (Vec<T>, Vec<T>) {
    let (mut running, mut over) = (Vec::new(), Vec::new());
    for (exec, state) in execs {
        match state {
            ExecState::Running { .. } => running.push(exec),
            ExecState::Exited(_) | ExecState::Lost => over.push(exec),
        }
    }
    (running, over)
}

impl Actor {
    pub(super) async fn handle_event(&mut self, event: Option<KeeperEvent>) {
        let Some(event) = event else { return Box::pin(self.link_lost()).await };
        let part = if matches!(event, KeeperEvent::RuntimeLine(_)) {
            AgentComponent::Runtime
        } else {
            AgentComponent::Sandbox
        };
        self.record_sign_of_life(part).await;
        match event {
            KeeperEvent::RuntimeLine(line) => self.handle_runtime_line(&line).await,
            KeeperEvent::Started { exec, kind, pid } => match name(kind, &exec) {
                Some(ExecName::Runtime { run }) => self.runtime_started(run, pid),
                Some(ExecName::Tool(exec)) => {
                    if self.up.as_ref().is_some_and(|up| up.open.contains_key(&exec)) {
                        crash::point("during_effect");
                    }
                }
                // No agent's sandbox has commands of clients.
                Some(ExecName::Job(_) | ExecName::Command(_)) | None => {}
            },
            KeeperEvent::Exited { exec, kind, record } => match name(kind, &exec) {
                Some(ExecName::Runtime { run }) => self.runtime_exited(run, &record).await,
                Some(ExecName::Tool(exec)) => self.tool_exited(&exec, &record).await,
                Some(ExecName::Job(job)) => self.job_exited(job, &record).await,
                Some(ExecName::Command(_)) | None => {}
            },
            KeeperEvent::Refused { exec, kind, why, .. } => match name(kind, &exec) {
                Some(ExecName::Runtime { run }) => self.runtime_refused(run, &why).await,
                Some(ExecName::Tool(exec)) => self.tool_refused(&exec, &why).await,
                Some(ExecName::Job(job)) => self.job_refused(job, why).await,
                Some(ExecName::Command(_)) | None => {}
            },
            KeeperEvent::Lost { exec, kind } => match name(kind, &exec) {
                Some(ExecName::Runtime { run }) => self.runtime_lost(run).await,
                Some(ExecName::Tool(exec)) => self.tool_lost(&exec).await,
                Some(ExecName::Job(job)) => self.job_lost(job).await,
                Some(ExecName::Command(_)) | None => {}
            },
            KeeperEvent::Output { exec, kind, stdout, stderr } => match name(kind, &exec) {
                Some(ExecName::Job(job)) => self.job_wrote(&job, stdout, stderr).await,
                // Only the output of jobs is followed while they run.
                Some(ExecName::Runtime { .. } | ExecName::Tool(_) | ExecName::Command(_)) | None => {}
            },
            KeeperEvent::Pong { .. } => {}
        }
    }

    fn runtime_started(&self, run: u32, pid: u32) {
        if let Some(up) = self.up.as_ref().filter(|up| up.plan.run == run) {
            up.living.set_runtime(pid);
        }
    }

    async fn runtime_exited(&mut self, run: u32, record: &ExitRecord) {
        let Some(up) = &mut self.up else { return };
        if run == up.plan.run {
            self.runtime_ended(record).await;
        } else if let Some((_, start)) = up.follows.take_if(|(earlier, _)| *earlier == run) {
            self.start_runtime(start).await;
        }
    }

    async fn runtime_refused(&mut self, run: u32, why: &str) {
        if self.up.as_ref().is_some_and(|up| up.plan.run == run) {
            self.report_start_failure(run, format!("the runtime could not be started: {why}")).await;
        }
    }

    /// Reports a runtime that a dead keeper claimed and that has no exit record.
    async fn runtime_lost(&mut self, run: u32) {
        if self.up.as_ref().is_some_and(|up| up.plan.run == run) {
            let detail = "the runtime was lost with its sandbox".to_owned();
            self.report_death(run, AgentComponent::Runtime, detail).await;
        }
    }
}

/// The exec that a keeper reports. An id that does not belong to the kind is logged and ignored.
pub(super) fn name(kind: ExecKind, exec: &str) -> Option<ExecName> {
    let name = ExecName::from_link(kind, exec);
    if name.is_none() {
        tracing::warn!(event = "exec.unknown", exec, ?kind);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn execs_are_distinguished_by_kind_and_not_by_id() {
        let known = |exec: &str, kind| KnownExec { exec: exec.to_owned(), kind, state: ExecState::Lost };
        let found = FoundExecs::new(vec![
            known("exe_runtime3", ExecKind::Runtime),
            known("exe_1", ExecKind::Tool),
            known("job_1", ExecKind::Job),
            known("job_2", ExecKind::Tool),
            known("exe_2", ExecKind::Job),
        ]);
        assert_eq!(found.runtimes, [(3, ExecState::Lost)]);
        assert_eq!(found.tools, [("exe_1".parse().unwrap(), ExecState::Lost)]);
        assert_eq!(found.jobs, [("job_1".parse().unwrap(), ExecState::Lost)]);
    }
}
