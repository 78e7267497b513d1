//! Invariants of jobs after every step, after every commit, and at rest.

use std::collections::BTreeMap;

use lodge_core::agent::AgentState;
use lodge_core::job::{JobProgress, JobRow, JobState, JobWrite};
use lodge_core::limits::{JOB_EXTRA_SLOTS, JOBS_UNARCHIVED_MAX};
use lodge_core::record::{JobWaitTool, MessageRow, Role, StepRow};
use lodge_core::turn::StepState;
use lodge_core::{AgentId, JobId, TurnId};
use lodge_engine::{Facts, Sizes};
use lodge_exec::ExecName;

use crate::disk::{SimDisk, jobs_in};
use crate::world::SimWorld;

impl SimWorld {
    /// A job's output is in the archive or in its file until the retention removes it.
    pub fn check_kept(&mut self, job: &JobId) {
        let wrote = self.jobs.truths.get(job).map_or(0, |truth| truth.wrote);
        let archived = self.jobs.archive.get(job).copied().unwrap_or(0);
        if archived >= wrote {
            return;
        }
        let may_go = match self.disk.job(job) {
            Some(row) => row.output_removed,
            None => self.disk.job_went(job),
        };
        let row = self.disk.job(job).and_then(|row| self.disk.agent(&row.agent));
        let file = row.and_then(|row| self.machine.sandboxes.get(&row.sandbox)?.files.get(job));
        let kept = file.is_some_and(|file| file.released <= archived && file.wrote >= wrote);
        if !kept && !may_go {
            self.fail(format!(
                "{job} wrote {wrote} bytes, {archived} are archived, and its file is {file:?}"
            ));
        }
    }

    /// Output leaves the archive only after its removal is recorded.
    pub fn check_removal(&mut self, job: &JobId) {
        if self.disk.job(job).is_some_and(|row| !row.output_removed) {
            self.fail(format!("the output of {job} is removed, and nothing says so"));
        }
    }

    pub fn check_job_write(&mut self, write: &JobWrite) {
        match write {
            JobWrite::New { row, .. } => {
                self.tally.jobs += 1;
                let text = row.request.args.first().cloned().unwrap_or_default();
                if text.starts_with("once-") && self.disk.jobs_accepted(&text) > 1 {
                    self.fail(format!("`{text}` was submitted once, and is there twice"));
                }
            }
            JobWrite::Progress { id, progress } => {
                self.count_end(progress);
                if let Err(broken) = cancelled_for_a_reason(&self.disk, id, progress) {
                    self.fail(broken);
                }
            }
            JobWrite::Archived { id } => self.check_kept(id),
            JobWrite::Told { .. } | JobWrite::OutputRemoved { .. } | JobWrite::Gone { .. } => {}
        }
    }

    fn count_end(&mut self, progress: &JobProgress) {
        match progress.state {
            JobState::Done => self.tally.jobs_done += 1,
            JobState::Error => self.tally.jobs_failed += 1,
            JobState::Cancelled => self.tally.jobs_cancelled += 1,
            JobState::Pending | JobState::Running => {}
        }
    }

    /// Interrupting a turn that waits for a job cancels both.
    pub fn check_cut(&mut self, turn: &TurnId, step: u32, ordinal: u32) {
        let Some(kept) = self.disk.turn(turn) else { return };
        let row = kept.steps.iter().find(|row| (row.step, row.ordinal) == (step, ordinal));
        let Some(job) = row.and_then(|row| waited_for(row, JobWaitTool::Wait)).cloned() else { return };
        let goes_on = |id: &JobId| {
            let row = self.disk.job(id).filter(|row| row.progress.state.is_open());
            row.is_some_and(|row| row.progress.cancel.is_none())
        };
        if goes_on(&job) {
            self.fail(format!("{turn} was interrupted, and {job}, which it waited for, goes on"));
        }
    }

    /// A tool result that reports the end of a job replaces the note.
    pub fn check_read(&mut self, row: &MessageRow) {
        let over = [r#""status":"cancelled""#, r#""status":"done""#, r#""status":"error""#, "ended: "];
        let is_told = !row.body.failed && over.iter().any(|word| row.body.text.contains(word));
        if row.role == Role::Tool && is_told {
            self.jobs.read.extend(jobs_in(&row.body.text));
        }
    }

    /// The end of a job is reported once, in a note or in a tool result. No note follows a tool result.
    pub fn check_note(&mut self, turn: &TurnId, note: &str) {
        let Some(kept) = self.disk.turn(turn) else { return };
        let (agent, session) = (kept.row.agent.clone(), kept.row.session.clone());
        // A turn that is repeated gets the same text.
        let replaced = kept.row.place.replaces.as_ref().and_then(|id| self.disk.turn(id));
        let before = replaced.and_then(|kept| kept.messages.first()?.body.note.as_ref());
        let before: Vec<JobId> = before.map(|note| jobs_in(note)).unwrap_or_default();
        for job in jobs_in(note).into_iter().filter(|job| !before.contains(job)) {
            self.tally.noted += 1;
            let is_foreign = |job: &JobRow| job.session.as_ref() != Some(&session) || job.agent != agent;
            if self.disk.job(&job).is_some_and(is_foreign) {
                self.fail(format!("{job} is told to {session}, and is not its"));
            }
            let read = self.jobs.read.contains(&job);
            if !self.jobs.noted.insert(job.clone()) || read {
                self.fail(format!("{job} is told twice, as a tool had read it: {read}"));
            }
        }
    }
}

impl SimWorld {
    /// At rest all jobs that could end have ended, all output is archived, and no request waits for it.
    pub fn jobs_are_settled(&self) -> Result<(), String> {
        if !self.daemon.as_ref().is_some_and(|daemon| daemon.archiver.is_idle()) {
            return Err("at rest, and the archive has something to do".to_owned());
        }
        let engine = self.daemon.as_ref().map(|daemon| &daemon.engine);
        let facts = engine.filter(|_| self.places_are_taken()).map(|engine| (engine.facts(), engine.sizes()));
        for row in self.disk.jobs() {
            let (id, state) = (&row.id, row.progress.state);
            let agent = self.disk.agent(&row.agent);
            let sandbox = agent.and_then(|agent| self.machine.sandboxes.get(&agent.sandbox));
            let given_up = sandbox.is_some_and(|sandbox| sandbox.given_up);
            let rests =
                matches!(agent.map(|agent| agent.state), Some(AgentState::Stopped | AgentState::Failed(_)));
            let may_wait = match state {
                // Its agent failed or was removed, so it continues after a start. Or it has no slot.
                JobState::Pending => {
                    let has_none =
                        |(facts, sizes): &(Facts, Sizes)| !has_slot(facts, sizes.jobs.max, &row.agent);
                    rests || facts.as_ref().is_some_and(has_none)
                }
                // Its sandbox could not be ended, and the caller got that error.
                JobState::Running => given_up,
                JobState::Done | JobState::Error | JobState::Cancelled => true,
            };
            if !may_wait {
                return Err(format!("at rest, and {id} is {} while its agent is {agent:?}", state.word()));
            }
            if !state.is_open() && !row.archived {
                return Err(format!("at rest, and {id} ended and is not archived"));
            }
            let wrote = self.jobs.truths.get(id).map_or(0, |truth| truth.wrote);
            let archived = self.jobs.archive.get(id).copied().unwrap_or(0);
            if row.archived && !row.output_removed && archived < wrote {
                return Err(format!("at rest, and of {wrote} bytes of {id} {archived} are archived"));
            }
            // Files of a sandbox without a connection are removed at its next start, or with its directory.
            let ready = agent.is_some_and(|agent| agent.state == AgentState::Ready);
            if row.archived && ready && sandbox.is_some_and(|sandbox| sandbox.files.contains_key(id)) {
                return Err(format!("at rest, and the output of {id} is in the archive and in its file"));
            }
        }
        self.no_output_is_left()
    }

    /// Jobs that run at rest are in sandboxes that could not be ended. They occupy their slots.
    pub fn places_are_taken(&self) -> bool {
        let jobs = self.daemon.as_ref().map(|daemon| daemon.engine.sizes().jobs);
        jobs.is_some_and(|jobs| jobs.running >= jobs.max)
    }

    /// A removed job has no output in the archive, and every file belongs to a known job.
    fn no_output_is_left(&self) -> Result<(), String> {
        let stray = |job: &&JobId| self.disk.job(job).is_none_or(|row| row.output_removed);
        if let Some(job) = self.jobs.archive.keys().find(stray) {
            return Err(format!("at rest, and the archive has the output of {job}, which was removed"));
        }
        for (id, sandbox) in &self.machine.sandboxes {
            let Some(keeper) = &sandbox.keeper else { continue };
            for exec in keeper.running.keys() {
                let ExecName::Job(job) = exec else { continue };
                let runs = self.disk.job(job).is_some_and(|row| row.progress.state == JobState::Running);
                if !runs {
                    return Err(format!("at rest, and {job} runs in {id} for nobody"));
                }
            }
        }
        Ok(())
    }
}

/// Only its own session cancels a job. The end of a turn cancels it only if the turn waited for it.
fn cancelled_for_a_reason(disk: &SimDisk, id: &JobId, progress: &JobProgress) -> Result<(), String> {
    let (tool, state) = match progress.cancel.as_deref().or(progress.error.as_deref()) {
        Some("cancelled by its session") => (JobWaitTool::Cancel, None),
        Some("the turn that waited for it was interrupted") => {
            (JobWaitTool::Wait, Some(StepState::Interrupted))
        }
        Some(_) | None => return Ok(()),
    };
    let session = disk.job(id).and_then(|row| row.session.clone());
    let Some(session) = session.filter(|session| disk.session(session).is_some()) else { return Ok(()) };
    let asked =
        |step: &StepRow| waited_for(step, tool) == Some(id) && state.is_none_or(|state| step.state == state);
    match disk.all_turns(&session).any(|turn| turn.steps.iter().any(asked)) {
        true => Ok(()),
        false => Err(format!("{id} is cancelled by {}, and nobody of {session} called that", tool.word())),
    }
}

/// The job that a call of this tool waits for.
fn waited_for(step: &StepRow, tool: JobWaitTool) -> Option<&JobId> {
    step.target.job_wait().filter(|wait| wait.tool == tool).map(|wait| &wait.job)
}

/// The engine's counts of jobs are correct, no slot is free while a job could start, and no slot is occupied without
/// a job.
pub fn jobs_agree(facts: &Facts, sizes: &Sizes) -> Result<(), String> {
    let mut states = BTreeMap::new();
    let (mut unarchived, mut untold) = (0, 0);
    for row in facts.jobs.values() {
        let state = row.progress.state;
        *states.entry(state.word()).or_insert(0) += 1;
        let ended = !state.is_open();
        let (no_archive, no_word) = (ended && !row.archived, ended && !row.told && row.session.is_some());
        unarchived += usize::from(no_archive);
        untold += usize::from(no_word);
        if ended && !no_archive && !no_word {
            return Err(format!("{} is settled, and the engine holds it", row.id));
        }
    }
    let count = |state: JobState| states.get(state.word()).copied().unwrap_or(0);
    let (pending, working) = (count(JobState::Pending), count(JobState::Running));
    let counted = (sizes.jobs.pending, sizes.jobs.running, sizes.jobs.unarchived, sizes.jobs.untold);
    if counted != (pending, working, unarchived, untold) || sizes.jobs.held != facts.jobs.len() {
        return Err(format!("jobs are counted as {:?}, and are {states:?}", sizes.jobs));
    }
    let startable = facts.jobs.values().find(|row| {
        let agent = facts.agents.get(&row.agent);
        let ready =
            agent.is_some_and(|agent| agent.row.state == AgentState::Ready && agent.row.next.is_none());
        row.progress.state == JobState::Pending && ready && has_slot(facts, sizes.jobs.max, &row.agent)
    });
    match startable {
        Some(row) if unarchived < JOBS_UNARCHIVED_MAX => {
            Err(format!("{} waits, and {working} of {} jobs run", row.id, sizes.jobs.max))
        }
        Some(_) | None => Ok(()),
    }
}

/// The most jobs that may run with this many slots.
pub fn most_jobs(max: usize) -> usize {
    max + max * JOB_EXTRA_SLOTS
}

/// Whether a job of this agent could start, if its agent were ready: there is a slot for all, or an extra one for an
/// agent that has no running job.
fn has_slot(facts: &Facts, max: usize, agent: &AgentId) -> bool {
    let runs = |row: &&JobRow| row.progress.state == JobState::Running;
    let running = facts.jobs.values().filter(runs).count();
    let has_none = || !facts.jobs.values().filter(runs).any(|row| row.agent == *agent);
    running < max || running < most_jobs(max) && has_none()
}
