//! `stop` and `restart` of an agent with jobs: cancels them, waits for them, or refuses.

use lodge_proto::{
    AgentStopParams, AgentView, AttachState, JobListParams, JobView, RestartAgent, StopAgent, error_code,
};

use super::{CommandContext, jobs, request_id};
use crate::args::JobsFate;
use crate::failure::CommandFailure;
use crate::follow::DaemonClient;
use crate::job;
use crate::render::{counted, now_ms};
use crate::words::prompt_for;

/// The most jobs that are listed one by one; for more there is a listing.
const TOLD_MAX: usize = 5;
const WAYS_OUT: &str = "`--jobs cancel` cancels its jobs, `--jobs wait` waits for them";

/// What ends the agent's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AgentStopKind {
    Stop,
    Restart,
}

impl AgentStopKind {
    /// Whether it costs the job: what waits is started after a restart.
    fn touches(self, job: &JobView) -> bool {
        match self {
            AgentStopKind::Stop => job::is_open(job),
            AgentStopKind::Restart => job.status == "running",
        }
    }
}

/// An agent that is about to be stopped, and the jobs that it would lose.
#[derive(Debug)]
pub(super) struct StopWithJobs<'a> {
    context: &'a CommandContext,
    end: AgentStopKind,
    agent: String,
    name: String,
    jobs: Vec<JobView>,
}

impl<'a> StopWithJobs<'a> {
    /// `state` is the state at the time of the attach.
    pub(super) fn new(
        context: &'a CommandContext,
        end: AgentStopKind,
        agent: String,
        state: AttachState,
    ) -> Self {
        let name = state.agents.first().map_or_else(|| agent.clone(), |view| view.name.clone());
        StopWithJobs { context, end, agent, name, jobs: state.jobs }
    }

    pub(super) async fn run(
        mut self,
        daemon: &mut DaemonClient<'_>,
        fate: Option<JobsFate>,
    ) -> Result<AgentView, CommandFailure> {
        // The state of an attach is limited, and the running jobs may be the oldest.
        if !self.jobs.is_empty() {
            self.load_jobs(daemon).await?;
        }
        let fate = match fate {
            Some(fate) => fate,
            None if self.jobs.is_empty() || !super::can_ask(&self.context.words) => JobsFate::Cancel,
            None => self.ask().await?,
        };
        match fate {
            JobsFate::Refuse => self.call(daemon, "refuse").await.map_err(|failure| {
                if failure.is(error_code!("agent.jobs_running")) { failure.hint(WAYS_OUT) } else { failure }
            }),
            JobsFate::Cancel => {
                let view = self.call(daemon, "cancel").await?;
                self.print_cancelled();
                Ok(view)
            }
            JobsFate::Wait => loop {
                self.wait(daemon).await?;
                // Another may have been started meanwhile.
                match self.call(daemon, "refuse").await {
                    Err(failure) if failure.is(error_code!("agent.jobs_running")) => {}
                    ended => return ended,
                }
                self.load_jobs(daemon).await?;
            },
        }
    }

    async fn call(&self, daemon: &mut DaemonClient<'_>, jobs: &str) -> Result<AgentView, CommandFailure> {
        let params = AgentStopParams {
            agent: self.agent.clone(),
            jobs: Some(jobs.to_owned()),
            request_id: Some(request_id()?),
        };
        match self.end {
            AgentStopKind::Stop => daemon.call::<StopAgent>(params).await,
            AgentStopKind::Restart => daemon.call::<RestartAgent>(params).await,
        }
    }

    async fn wait(&self, daemon: &mut DaemonClient<'_>) -> Result<(), CommandFailure> {
        for waited in &self.jobs {
            self.context.words.progress(&format!("{}: waits for {}", self.name, phrase(waited)));
            jobs::end_of(daemon, &waited.id, None).await?;
        }
        Ok(())
    }

    async fn load_jobs(&mut self, daemon: &mut DaemonClient<'_>) -> Result<(), CommandFailure> {
        let mut open = Vec::new();
        for status in ["running", "pending"] {
            let params = JobListParams {
                agent: Some(self.agent.clone()),
                status: Some(status.to_owned()),
                ..JobListParams::default()
            };
            open.extend(jobs::newest(daemon, params, usize::MAX).await?.0);
        }
        self.jobs = open.into_iter().filter(|job| self.end.touches(job)).collect();
        Ok(())
    }

    async fn ask(&self) -> Result<JobsFate, CommandFailure> {
        let words = &self.context.words;
        words.print_message(&format!("{} has {}:", self.name, counted(self.jobs.len(), "job")));
        for job in self.jobs.iter().take(TOLD_MAX) {
            words.print_message(&format!("  {}, {}", phrase(job), job::standing(job, now_ms())));
        }
        if self.jobs.len() > TOLD_MAX {
            words.print_message(&format!("  … `lodge jobs ls --agent {}` lists all", self.name));
        }
        loop {
            prompt_for("[c]ancel them, [w]ait for them, or [n]o, leave the agent alone? ");
            let answer = super::read_line().await?;
            match answer.as_deref().map(str::trim) {
                Some("c" | "C" | "cancel") => return Ok(JobsFate::Cancel),
                Some("w" | "W" | "wait") => return Ok(JobsFate::Wait),
                Some("n" | "N" | "no" | "") => return Err(self.not_stopped()),
                Some(_) => {}
                None => {
                    words.print_message("");
                    return Err(self.not_stopped());
                }
            }
        }
    }

    fn not_stopped(&self) -> CommandFailure {
        let done = match self.end {
            AgentStopKind::Stop => "stopped",
            AgentStopKind::Restart => "restarted",
        };
        CommandFailure::refused(format!("{} was not {done}", self.name)).hint(WAYS_OUT)
    }

    fn print_cancelled(&self) {
        let words = &self.context.words;
        if words.json || self.jobs.is_empty() {
            return;
        }
        let told: Vec<String> = self.jobs.iter().take(TOLD_MAX).map(phrase).collect();
        let more = if self.jobs.len() > TOLD_MAX { ", …" } else { "" };
        words.print_note(&format!(
            "cancelled {}: {}{more}",
            counted(self.jobs.len(), "job"),
            told.join(", ")
        ));
    }
}

fn phrase(job: &JobView) -> String {
    format!("{} ({})", job.id, job::command(job))
}
