//! Jobs on the host: a program that runs once, writes and ends, and the file with its output.

use lodge_core::job::JobState;
use lodge_core::{JobId, SandboxId};
use lodge_exec::{ExecName, KeeperEvent};

use super::checks::most_jobs;
use crate::world::{SimEvent, SimWorld};

/// The output of a job, without the released part that the archive has.
#[derive(Debug, Default, Clone, Copy)]
pub struct JobFile {
    pub released: u64,
    pub wrote: u64,
}

impl SimWorld {
    /// A program starts once, after its start is recorded, and within the limit.
    pub fn check_job_starts(&mut self, id: &SandboxId, job: &JobId) {
        let state = self.disk.job(job).map(|row| row.progress.state);
        if state.is_none() {
            return self.fail(format!("{job} runs, and its intent is not on disk"));
        }
        if state != Some(JobState::Running) {
            return self.fail(format!("{job} runs, and that it starts is not on disk: it is {state:?}"));
        }
        let truth = self.jobs.truths.entry(job.clone()).or_default();
        truth.starts += 1;
        let starts = truth.starts;
        if starts > 1 {
            return self.fail(format!("{job} had its effect twice: it was started {starts} times"));
        }
        let keepers = self.machine.sandboxes.values().filter_map(|sandbox| sandbox.keeper.as_ref());
        let execs = keepers.flat_map(|keeper| keeper.running.keys());
        let running = execs.filter(|exec| matches!(exec, ExecName::Job(_))).count() + 1;
        if running > most_jobs(self.jobs.max_ever) {
            self.fail(format!("{job} starts in {id}, and {running} jobs run"));
        }
    }

    /// The job writes, and may write again.
    pub fn job_writes(&mut self, id: &SandboxId, keeper: u64, job: &JobId, run: u64) {
        let more = self.rng.between(1, 1_000);
        let again = self.rng.chance(600).then(|| self.rng.delay(self.plan.job_ms));
        self.tally.effects += 1;
        let Some(sandbox) = self.machine.sandboxes.get_mut(id) else { return };
        let file = sandbox.files.entry(job.clone()).or_default();
        file.wrote += more;
        let (wrote, exec) = (file.wrote, ExecName::Job(job.clone()));
        self.jobs.truths.entry(job.clone()).or_default().wrote = wrote;
        if let Some(pause) = again {
            self.after(pause, SimEvent::ToolActs { sandbox: id.clone(), keeper, exec: exec.clone(), run });
        }
        if self.machine.keeper(id).is_some_and(|keeper| !keeper.hung) {
            let (exec, kind) = (exec.to_string(), exec.kind());
            self.send_to_daemon(id, KeeperEvent::Output { exec, kind, stdout: wrote, stderr: 0 });
        }
    }

    /// The file of a job is removed. Its contents are in the archive by now.
    pub fn remove_job_file(&mut self, id: &SandboxId, job: &JobId) {
        let Some(sandbox) = self.machine.sandboxes.get_mut(id) else { return };
        sandbox.shelf.remove(&ExecName::Job(job.clone()));
        if sandbox.files.remove(job).is_some() {
            self.check_kept(job);
        }
    }

    /// Removes all job files of a sandbox.
    pub fn remove_sandbox_files(&mut self, id: &SandboxId) {
        let Some(sandbox) = self.machine.sandboxes.get_mut(id) else { return };
        sandbox.shelf.clear();
        let jobs: Vec<JobId> = std::mem::take(&mut sandbox.files).into_keys().collect();
        jobs.iter().for_each(|job| self.check_kept(job));
    }

    /// Unflushed output may be lost. The rest then counts as the output of the job.
    pub fn job_loses_power(&mut self, id: &SandboxId, job: &JobId) {
        let cut = self.rng.below(3);
        let archived = self.jobs.archive.get(job).copied().unwrap_or(0);
        let Some(sandbox) = self.machine.sandboxes.get_mut(id) else { return };
        let is_claimed = sandbox.shelf.contains_key(&ExecName::Job(job.clone()));
        let Some(file) = sandbox.files.get_mut(job) else { return };
        match (is_claimed, cut) {
            (true, 0) => {}
            (true, _) => file.wrote = file.released + (file.wrote - file.released) / (cut + 1),
            (false, _) => drop(sandbox.files.remove(job)),
        }
        let left = sandbox.files.get(job).map_or(0, |file| file.wrote);
        self.jobs.truths.entry(job.clone()).or_default().wrote = left.max(archived);
    }
}
