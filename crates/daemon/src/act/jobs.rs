//! Jobs of one sandbox: started, ended, forgotten; how they stand when nobody is there to ask.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lodge_core::JobId;
use lodge_core::job::{JobRow, JobStream};
use lodge_core::limits::JOB_OUTPUT_EVERY_MS;
use lodge_exec::{Evidence, ExecKind, ExecState, ExitOutcome, ExitRecord, KeeperCommand, StartExec};
use lodge_store::ReadError;
use tokio::time::Instant;

use super::actor::Actor;
use super::events::split_running;
use super::root;
use crate::chain;
use crate::crash;
use crate::jobs::{self, Layout, Whose};
use crate::limits;
use crate::shell::Shell;
use crate::tasks::TaskKind;
use crate::view;
use lodge_engine::jobs::{JobEffect, JobEnd, JobSeen, JobWish};
use lodge_engine::{Ask, ExecHow, JobOrder, Seen};

/// How often the engine hears of a job's output. A little longer than what it takes, so that it takes each.
const TELL_EVERY: Duration = Duration::from_millis(JOB_OUTPUT_EVERY_MS.cast_unsigned() + 50);
/// The keeper was started by a release that knew no jobs.
const OLD_KEEPER: &str =
    "its agent was started by an earlier release, which knew no jobs: restart the agent (`lodge restart`)";

/// Does what is to be done about a job outside of its sandbox.
pub(super) fn act(shell: &Arc<Shell>, what: JobEffect) {
    match what {
        JobEffect::Archive { job } => shell.jobs.archive(&job),
        JobEffect::Read { asked, agent, session, wish } => {
            let (teller, whose) = (shell.clone(), Whose { agent, session });
            shell.spawn(TaskKind::JobRead, async move {
                let answer = jobs::answer(teller.clone(), whose, wish).await;
                teller.tell(Seen::Job(JobSeen::Read { asked, answer })).await;
            });
        }
    }
}

/// What the engine was told of the output of the jobs that run.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    jobs: HashMap<JobId, Told>,
}

#[derive(Debug)]
struct Told {
    /// When it may be told next.
    next: Instant,
    untold: Option<(u64, u64)>,
}

impl Outputs {
    /// When something that was held back has to be told.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.jobs.values().filter(|told| told.untold.is_some()).map(|told| told.next).min()
    }
}

impl Actor {
    pub(super) async fn job(&mut self, order: JobOrder) {
        match order {
            JobOrder::Start { job, resumed } => self.start_job(job, resumed).await,
            JobOrder::Kill { job } => self.kill_job(job).await,
            JobOrder::Forget { job } => self.forget_job(&job).await,
        }
    }

    /// What is asked, unless it is a job and the disk has too little room for one: then the model is told so, and its turn
    /// goes on. A call that has its result keeps that.
    pub(super) fn admitted(&self, ask: Ask) -> Ask {
        let Ask::Job { turn, step, call, wish: wish @ JobWish::Submit(_) } = ask else { return ask };
        match self.shell.admit_job() {
            Ok(()) => Ask::Job { turn, step, call, wish },
            Err(refused) => Ask::Answer { turn, step, call, text: view::for_model(refused), error: true },
        }
    }

    /// Has the keeper start a job, or say how it stands. Without a keeper it is asked for again when there is one.
    async fn start_job(&mut self, job: JobId, resumed: bool) {
        let Some(up) = &self.up else { return };
        if !up.knows_jobs {
            return self.job_refused(job, OLD_KEEPER.to_owned()).await;
        }
        let (row, stdin) = match self.job_to_start(&job).await {
            Ok(Some(found)) => found,
            // Removed meanwhile, which needs its end.
            Ok(None) => return,
            Err(error) => {
                let why = format!("what it is to run could not be read: {}", chain(&error));
                return self.job_refused(job, why).await;
            }
        };
        let other_boot = row.progress.boot.as_deref() != Some(self.shell.executor.boot_id());
        let evidence = || self.shell.executor.evidence(self.sandbox.as_str(), job.as_str());
        if resumed && other_boot && matches!(evidence(), Evidence::NoClaim) {
            // The machine was restarted since: that nothing is there proves nothing.
            let why = "the machine was restarted while it ran, and nothing of it is left";
            return self.tell_job_end(job, lost(why, [JobStream::default(); 2])).await;
        }
        let layout = Layout::of(&row);
        let start = StartExec {
            exec: job.as_str().to_owned(),
            kind: ExecKind::Job,
            argv: up.layout.tool_argv(&row.request.bin, &row.request.args),
            env: root::environment(&up.layout, &up.plan, &up.image),
            cwd: up.layout.workspace(),
            stdin,
            output_cap: row.request.output_bytes,
            timeout_ms: row.request.timeout_ms,
            output_max: limits::job_output_max(&up.plan.spec),
            job_head: layout.head,
            job_segment: layout.segment,
            keep_free: self.shell.config.settings().job_keep_free,
        };
        crash::point("before_job_start");
        self.send(KeeperCommand::Start(start)).await;
        crash::point("after_job_start");
    }

    /// The keeper kills it, or says how it ended. Without one, what is left of it tells that.
    async fn kill_job(&mut self, job: JobId) {
        if self.up.is_some() {
            return self.send(KeeperCommand::Kill { exec: job.as_str().to_owned(), grace_ms: 0 }).await;
        }
        // Whoever connects to a keeper that lives is told of it again.
        if self.calling.is_some() || self.is_held() {
            return;
        }
        match self.shell.executor.evidence(self.sandbox.as_str(), job.as_str()) {
            Evidence::Exited(record) => self.job_exited(job, &record).await,
            Evidence::NoClaim => self.job_refused(job, "it was never started".to_owned()).await,
            Evidence::Claimed => self.job_lost(job).await,
            Evidence::Unreadable(error) => {
                let why = format!("what it left could not be read: {}", chain(&error));
                self.tell_job_end(job, lost(&why, [JobStream::default(); 2])).await;
            }
        }
    }

    /// Its files go: everything of it is recorded elsewhere.
    async fn forget_job(&mut self, job: &JobId) {
        crash::point("before_job_forget");
        if self.up.is_some() {
            return self.send(KeeperCommand::Forget { exec: job.as_str().to_owned() }).await;
        }
        // A keeper that is connected later tells of it, and is asked to forget it then.
        let forgotten = self.shell.executor.forget(self.sandbox.as_str(), job.as_str()).await;
        if let Err(error) = forgotten {
            tracing::debug!(event = "job.not_forgotten", agent = %self.agent, error = chain(&error));
        }
    }

    pub(super) async fn job_exited(&mut self, job: JobId, record: &ExitRecord) {
        crash::point("before_job_end");
        let how = match &record.ended {
            ExitOutcome::Code(code) => ExecHow::Exited { code: *code },
            ExitOutcome::Signal(signal) => ExecHow::Killed { signal: *signal },
            ExitOutcome::NotStarted { .. } => ExecHow::NotStarted,
        };
        let why = match &record.ended {
            ExitOutcome::NotStarted { why, .. } => Some(why.clone()),
            ExitOutcome::Code(_) | ExitOutcome::Signal(_) => None,
        };
        let cause = record.cause.as_ref().map(limits::words);
        let note = Some(record.note.clone()).filter(|note| !note.is_empty());
        let detail: Vec<String> = [why, cause, note].into_iter().flatten().collect();
        let stream = |counted: lodge_exec::StreamCount| JobStream { seen: counted.seen, kept: counted.kept };
        let end = JobEnd {
            how,
            cause: record.cause.as_ref().map(limits::recorded),
            detail: Some(detail.join("; ")).filter(|detail| !detail.is_empty()),
            stdout: stream(record.stdout),
            stderr: stream(record.stderr),
        };
        self.tell_job_end(job, end).await;
    }

    /// Nothing of it ran.
    pub(super) async fn job_refused(&mut self, job: JobId, why: String) {
        let nothing = JobStream::default();
        let end = JobEnd {
            how: ExecHow::NotStarted,
            cause: None,
            detail: Some(why),
            stdout: nothing,
            stderr: nothing,
        };
        self.tell_job_end(job, end).await;
    }

    /// Claimed by a keeper that died, without an outcome: what was captured is all that is known.
    pub(super) async fn job_lost(&mut self, job: JobId) {
        let streams = match self.shell.executor.job_totals(self.sandbox.as_str(), job.as_str()) {
            Ok(totals) => [totals.stdout, totals.stderr].map(|stream| JobStream {
                seen: stream.end,
                kept: stream.end.saturating_sub(stream.dropped()),
            }),
            Err(error) => {
                tracing::warn!(event = "job.output_unread", %job, error = chain(&error));
                [JobStream::default(); 2]
            }
        };
        let why = "its sandbox died while it ran; what it wrote before that is kept";
        self.tell_job_end(job, lost(why, streams)).await;
    }

    async fn tell_job_end(&mut self, job: JobId, end: JobEnd) {
        if let Some(up) = &mut self.up {
            up.outputs.jobs.remove(&job);
        }
        self.shell.tell(Seen::Job(JobSeen::Ended { job, end })).await;
    }

    /// A job wrote so much by now: whoever waits for it hears so at once, the engine now and then.
    pub(super) async fn job_wrote(&mut self, job: &JobId, stdout: u64, stderr: u64) {
        self.shell.job_wrote(&self.agent, job, stdout, stderr).await;
        let Some(up) = &mut self.up else { return };
        let now = Instant::now();
        let told = up.outputs.jobs.entry(job.clone()).or_insert_with(|| Told { next: now, untold: None });
        told.untold = Some((stdout, stderr));
        if told.next <= now {
            self.tell_outputs().await;
        }
    }

    /// Tells the engine of output whose time is.
    pub(super) async fn tell_outputs(&mut self) {
        let Some(up) = &mut self.up else { return };
        let now = Instant::now();
        let mut due = Vec::new();
        for (job, told) in up.outputs.jobs.iter_mut().filter(|(_, told)| told.next <= now) {
            if let Some((stdout, stderr)) = told.untold.take() {
                told.next = now + TELL_EVERY;
                due.push(JobSeen::Output { job: job.clone(), stdout, stderr });
            }
        }
        for seen in due {
            self.shell.tell(Seen::Job(seen)).await;
        }
    }

    /// What a keeper that was just connected knows of jobs. What they wrote meanwhile is in their files.
    pub(super) async fn jobs_found(&mut self, jobs: Vec<(JobId, ExecState)>) {
        let (running, ended) = split_running(jobs);
        if running.is_empty() && ended.is_empty() {
            return;
        }
        for job in &running {
            if let Ok(totals) = self.shell.executor.job_totals(self.sandbox.as_str(), job.as_str()) {
                self.job_wrote(job, totals.stdout.end, totals.stderr.end).await;
            }
        }
        let agent = self.agent.clone();
        self.shell.tell(Seen::Job(JobSeen::Found { agent, running, ended })).await;
    }

    async fn job_to_start(&self, job: &JobId) -> Result<Option<(JobRow, Vec<u8>)>, ReadError> {
        let job = job.clone();
        self.shell.reader.read_few(move |store| store.job_to_start(&job)).await
    }
}

fn lost(why: &str, [stdout, stderr]: [JobStream; 2]) -> JobEnd {
    JobEnd { how: ExecHow::Lost, cause: None, detail: Some(why.to_owned()), stdout, stderr }
}
