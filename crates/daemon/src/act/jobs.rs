//! Jobs of one sandbox: start, kill, forget, and their state when no keeper runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lodge_core::JobId;
use lodge_core::job::{JobRow, JobState, JobStreamBytes};
use lodge_core::limits::JOB_OUTPUT_EVERY_MS;
use lodge_exec::{Evidence, ExecKind, ExecState, ExitOutcome, ExitRecord, KeeperCommand, StartExec};
use tokio::time::Instant;

use super::actor::Actor;
use super::context::ActContext;
use super::events::split_running;
use super::ports::JobOwner;
use super::root;
use crate::chain;
use crate::compute::ComputeError;
use crate::crash;
use crate::jobs::JobFileLayout;
use crate::limits;
use crate::tasks::TaskKind;
use crate::view;
use lodge_engine::jobs::{JobEffect, JobEnd, JobObservation, JobToolRequest};
use lodge_engine::{ExecOutcome, JobOrder, Observation, RuntimeCall};

/// How often output is reported to the engine. A little longer than the engine's own interval, so that it accepts each
/// report.
const REPORT_EVERY: Duration = Duration::from_millis(JOB_OUTPUT_EVERY_MS.cast_unsigned() + 50);
/// The pause before a job is read again.
const UNREAD_PAUSE: Duration = Duration::from_secs(1);
/// For a keeper of a release without jobs.
const OLD_KEEPER: &str =
    "its agent was started by an earlier release, which knew no jobs: restart the agent (`lodge restart`)";

/// Applies an effect on a job outside of its sandbox.
pub(super) fn act(context: &Arc<ActContext>, what: JobEffect) {
    match what {
        JobEffect::Archive { job } => context.outputs.archive(&job),
        JobEffect::RemoveOutput { jobs } => context.outputs.remove(jobs),
        JobEffect::Read { asked, agent, session, wish } => {
            let (reporter, whose) = (context.clone(), JobOwner { agent, session });
            context.spawn(TaskKind::JobRead, async move {
                let answer = reporter.outputs.answer(whose, wish).await;
                reporter.report(Observation::Job(JobObservation::Read { asked, answer })).await;
            });
        }
    }
}

/// Orders to start jobs that could not be read from the store.
#[derive(Debug, Default)]
pub(super) struct UnreadJobs {
    /// Whether the order was a repeated one.
    jobs: BTreeMap<JobId, bool>,
    /// When the orders are repeated.
    pub(super) next: Option<Instant>,
}

/// The output of running jobs, as far as it was reported to the engine.
#[derive(Debug, Default)]
pub(super) struct OutputReports {
    jobs: BTreeMap<JobId, ReportedOutput>,
}

#[derive(Debug)]
struct ReportedOutput {
    /// The earliest next report.
    next: Instant,
    pending: Option<(u64, u64)>,
}

impl OutputReports {
    /// When the first pending report is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.jobs.values().filter(|reported| reported.pending.is_some()).map(|reported| reported.next).min()
    }
}

impl Actor {
    pub(super) async fn apply_job_order(&mut self, order: JobOrder) {
        match order {
            JobOrder::Start { job, resumed } => self.start_job(job, resumed).await,
            JobOrder::Kill { job } => self.kill_job(job).await,
            JobOrder::Forget { job } => self.forget_job(&job).await,
        }
    }

    /// Returns the call, or a refusal for the model if it submits a job and the disk has too little space. The turn goes on. A
    /// call that has a result keeps it.
    pub(super) fn admit_call(&self, ask: RuntimeCall) -> RuntimeCall {
        let RuntimeCall::Job { turn, step, call, wish: wish @ JobToolRequest::Submit(_) } = ask else {
            return ask;
        };
        match self.context.outputs.admit() {
            Ok(()) => RuntimeCall::Job { turn, step, call, wish },
            Err(refused) => {
                RuntimeCall::Answer { turn, step, call, text: view::for_model(refused), error: true }
            }
        }
    }

    /// Asks the keeper to start a job or to report its state. Without a keeper, the engine asks again when there is one.
    async fn start_job(&mut self, job: JobId, resumed: bool) {
        let Some(up) = &self.up else { return };
        if !up.knows_jobs {
            return self.job_refused(job, OLD_KEEPER.to_owned()).await;
        }
        let (row, stdin) = match self.job_to_start(&job).await {
            Ok(Some(found)) if found.0.progress.state == JobState::Running => found,
            // The job ended after this order was made. Its claim may be gone with its files, so the keeper would run it again.
            Ok(Some(_)) => return,
            // The job was removed, and only an ended job can be removed.
            Ok(None) => return,
            // The job may run: an order that could not be read says nothing about it.
            Err(error) => return self.postpone_job(job, resumed, &error),
        };
        let other_boot = row.progress.boot.as_deref() != Some(self.context.executor.boot_id());
        let evidence = || self.context.executor.evidence(self.sandbox.as_str(), job.as_str());
        if resumed && other_boot && matches!(evidence(), Evidence::NoClaim) {
            // The machine was restarted since the intent, so a missing claim does not prove that the job never ran.
            let why = "the machine was restarted while it ran, and nothing of it is left";
            return self.report_job_end(job, lost_job_end(why, [JobStreamBytes::default(); 2])).await;
        }
        let layout = JobFileLayout::of(&row);
        let start = StartExec {
            exec: job.as_str().to_owned(),
            kind: ExecKind::Job,
            argv: up.layout.tool_argv(&row.request.bin, &row.request.args),
            env: root::environment(&up.layout, &up.plan, &up.image),
            cwd: up.layout.workspace(),
            stdin,
            output_cap: row.request.output_bytes,
            timeout_ms: row.request.timeout_ms,
            output_max: limits::job_output_max(up.plan.settings.limits),
            job_head: layout.head,
            job_segment: layout.segment,
            keep_free: self.context.config.settings().job_keep_free,
        };
        crash::point("before_job_start");
        self.send(KeeperCommand::Start(start)).await;
        crash::point("after_job_start");
    }

    fn postpone_job(&mut self, job: JobId, resumed: bool, error: &ComputeError) {
        let Some(up) = &mut self.up else { return };
        tracing::warn!(event = "job.start_postponed", agent = %self.agent, %job, error = chain(error));
        up.unread_jobs.jobs.insert(job, resumed);
        up.unread_jobs.next.get_or_insert_with(|| Instant::now() + UNREAD_PAUSE);
    }

    /// Repeats the orders whose jobs could not be read.
    pub(super) async fn start_unread_jobs(&mut self) {
        let Some(up) = &mut self.up else { return };
        if up.unread_jobs.next.is_none_or(|next| Instant::now() < next) {
            return;
        }
        for (job, resumed) in std::mem::take(&mut up.unread_jobs).jobs {
            self.start_job(job, resumed).await;
        }
    }

    /// Asks the keeper to kill a job or to report its end. Without a keeper, the files of the job show how it ended.
    async fn kill_job(&mut self, job: JobId) {
        if self.up.is_some() {
            return self.send(KeeperCommand::Kill { exec: job.as_str().to_owned(), grace_ms: 0 }).await;
        }
        // A live keeper reports the job when the daemon connects to it.
        if self.dialing.is_some() || self.is_held() {
            return;
        }
        match self.context.executor.evidence(self.sandbox.as_str(), job.as_str()) {
            Evidence::Exited(record) => self.job_exited(job, &record).await,
            Evidence::NoClaim => self.job_refused(job, "it was never started".to_owned()).await,
            Evidence::Claimed => self.job_lost(job).await,
            Evidence::Unreadable(error) => {
                let why = format!("what it left could not be read: {}", chain(&error));
                self.report_job_end(job, lost_job_end(&why, [JobStreamBytes::default(); 2])).await;
            }
        }
    }

    /// Removes the files of a job. All of its output is in the archive.
    async fn forget_job(&mut self, job: &JobId) {
        crash::point("before_job_forget");
        if self.up.is_some() {
            return self.send(KeeperCommand::Forget { exec: job.as_str().to_owned() }).await;
        }
        // A keeper that connects later reports the job, and is then asked to forget it.
        let forgotten = self.context.executor.forget(self.sandbox.as_str(), job.as_str()).await;
        if let Err(error) = forgotten {
            tracing::debug!(event = "job.not_forgotten", agent = %self.agent, error = chain(&error));
        }
    }

    pub(super) async fn job_exited(&mut self, job: JobId, record: &ExitRecord) {
        crash::point("before_job_end");
        let how = match &record.ended {
            ExitOutcome::Code(code) => ExecOutcome::Exited { code: *code },
            ExitOutcome::Signal(signal) => ExecOutcome::Killed { signal: *signal },
            ExitOutcome::NotStarted { .. } => ExecOutcome::NotStarted,
        };
        let why = match &record.ended {
            ExitOutcome::NotStarted { why, .. } => Some(why.clone()),
            ExitOutcome::Code(_) | ExitOutcome::Signal(_) => None,
        };
        let cause = record.cause.as_ref().map(limits::words);
        let note = Some(record.note.clone()).filter(|note| !note.is_empty());
        let detail: Vec<String> = [why, cause, note].into_iter().flatten().collect();
        let stream =
            |counted: lodge_exec::StreamCount| JobStreamBytes { seen: counted.seen, kept: counted.kept };
        let end = JobEnd {
            how,
            cause: record.cause.as_ref().map(limits::recorded),
            detail: Some(detail.join("; ")).filter(|detail| !detail.is_empty()),
            stdout: stream(record.stdout),
            stderr: stream(record.stderr),
        };
        self.report_job_end(job, end).await;
    }

    /// Reports a job that never ran.
    pub(super) async fn job_refused(&mut self, job: JobId, why: String) {
        let nothing = JobStreamBytes::default();
        let end = JobEnd {
            how: ExecOutcome::NotStarted,
            cause: None,
            detail: Some(why),
            stdout: nothing,
            stderr: nothing,
        };
        self.report_job_end(job, end).await;
    }

    /// Reports a job that a dead keeper claimed and that has no exit record. Its captured output is all that is known.
    pub(super) async fn job_lost(&mut self, job: JobId) {
        let streams = match self.context.executor.job_totals(self.sandbox.as_str(), job.as_str()) {
            Ok(totals) => [totals.stdout, totals.stderr].map(|stream| JobStreamBytes {
                seen: stream.end,
                kept: stream.end.saturating_sub(stream.dropped()),
            }),
            Err(error) => {
                tracing::warn!(event = "job.output_unread", %job, error = chain(&error));
                [JobStreamBytes::default(); 2]
            }
        };
        let why = "its sandbox died while it ran; what it wrote before that is kept";
        self.report_job_end(job, lost_job_end(why, streams)).await;
    }

    async fn report_job_end(&mut self, job: JobId, end: JobEnd) {
        if let Some(up) = &mut self.up {
            up.outputs.jobs.remove(&job);
        }
        self.context.report(Observation::Job(JobObservation::Ended { job, end })).await;
    }

    /// Records the bytes that a job has written. Clients are notified at once, the engine every [`REPORT_EVERY`].
    pub(super) async fn job_wrote(&mut self, job: &JobId, stdout: u64, stderr: u64) {
        self.context.outputs.wrote(&self.agent, job, stdout, stderr).await;
        let Some(up) = &mut self.up else { return };
        let now = Instant::now();
        let reported =
            up.outputs.jobs.entry(job.clone()).or_insert_with(|| ReportedOutput { next: now, pending: None });
        reported.pending = Some((stdout, stderr));
        if reported.next <= now {
            self.report_outputs().await;
        }
    }

    /// Reports output that is due to the engine.
    pub(super) async fn report_outputs(&mut self) {
        let Some(up) = &mut self.up else { return };
        let now = Instant::now();
        let mut due = Vec::new();
        for (job, reported) in up.outputs.jobs.iter_mut().filter(|(_, reported)| reported.next <= now) {
            if let Some((stdout, stderr)) = reported.pending.take() {
                reported.next = now + REPORT_EVERY;
                due.push(JobObservation::Output { job: job.clone(), stdout, stderr });
            }
        }
        for seen in due {
            self.context.report(Observation::Job(seen)).await;
        }
    }

    /// Reports the jobs that a newly connected keeper knows. Output that they wrote meanwhile is in their files.
    pub(super) async fn report_found_jobs(&mut self, jobs: Vec<(JobId, ExecState)>) {
        let (running, ended) = split_running(jobs);
        if running.is_empty() && ended.is_empty() {
            return;
        }
        for job in &running {
            if let Ok(totals) = self.context.executor.job_totals(self.sandbox.as_str(), job.as_str()) {
                self.job_wrote(job, totals.stdout.end, totals.stderr.end).await;
            }
        }
        let agent = self.agent.clone();
        self.context.report(Observation::Job(JobObservation::Found { agent, running, ended })).await;
    }

    async fn job_to_start(&self, job: &JobId) -> Result<Option<(JobRow, Vec<u8>)>, ComputeError> {
        let job = job.clone();
        self.context.read_few(move |store| store.job_to_start(&job)).await
    }
}

fn lost_job_end(why: &str, [stdout, stderr]: [JobStreamBytes; 2]) -> JobEnd {
    JobEnd { how: ExecOutcome::Lost, cause: None, detail: Some(why.to_owned()), stdout, stderr }
}
