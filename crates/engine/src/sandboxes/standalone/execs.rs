//! Execs in standalone sandboxes: run, cancel, end.

use lodge_core::event::{EventBody, ExecCancelled, ExecFailed, ExecFinished, ExecStarted};
use lodge_core::job_check::{check_args, check_stdin};
use lodge_core::limits::{EXEC_OUTPUT_BYTES_MAX, SANDBOX_EXECS_MAX};
use lodge_core::sandbox::{
    ExecFailReason, SandboxExecEvent, SandboxExecProgress, SandboxExecRequest, SandboxExecRow,
    SandboxExecState, SandboxState, SandboxWrite,
};
use lodge_core::{ExecId, SandboxId, Timestamp};

use super::messages::{ExecOrder, NewExec, SandboxExecEnd, StandaloneEffect};
use super::refusal::ExecRefusal;
use super::wrong_state;
use crate::{Answer, Caller, Engine, ExecOutcome, Refusal};

impl Engine {
    pub(super) fn run_exec(&mut self, caller: Caller, new: NewExec) -> Result<(), Refusal> {
        let NewExec { sandbox, id, command, cwd, env, stdin } = new;
        let known = self.known_sandbox(&sandbox)?;
        if known.row.state != SandboxState::Ready {
            return Err(wrong_state(&known.row).into());
        }
        if let Some(id) = id.as_ref().filter(|id| self.standalones.exec(id).is_some()) {
            return Err(ExecRefusal::IdTaken { id: id.clone() }.into());
        }
        if command.first().is_none_or(String::is_empty) {
            return Err(ExecRefusal::NoCommand.into());
        }
        check_args(&command).map_err(|fault| ExecRefusal::TooLarge { fault })?;
        check_stdin(&stdin).map_err(|fault| ExecRefusal::TooLarge { fault })?;
        if self.standalones.open_execs(&sandbox).len() >= SANDBOX_EXECS_MAX {
            return Err(ExecRefusal::TooMany { sandbox }.into());
        }
        let now = self.step.now;
        let id = id.unwrap_or_else(|| ExecId::new(&mut self.ids, now));
        let request = SandboxExecRequest {
            command,
            cwd,
            env,
            output_bytes: EXEC_OUTPUT_BYTES_MAX,
            boot: self.host.boot.clone(),
        };
        let progress = SandboxExecProgress::running();
        let row =
            SandboxExecRow { id: id.clone(), sandbox: sandbox.clone(), created_at: now, request, progress };
        self.step.write(SandboxWrite::NewExec { row: Box::new(row.clone()), stdin });
        self.standalones.insert_exec(row);
        self.exec_event(&id, |sandbox, exec, name| ExecStarted { sandbox, exec, name });
        let order = ExecOrder::Start { exec: id.clone(), resumed: false };
        self.in_standalone(&sandbox, StandaloneEffect::Exec(order));
        self.reply_exec(caller, &id)
    }

    pub(super) fn cancel_exec_on_request(&mut self, caller: Caller, id: &ExecId) -> Result<(), Refusal> {
        let open = self.standalones.exec(id).filter(|row| row.progress.state.is_open());
        let Some(row) = open else { return Err(ExecRefusal::NotRunning { id: id.clone() }.into()) };
        let sandbox = row.sandbox.clone();
        self.note_cancel(id, "cancelled on request");
        let order = ExecOrder::Kill { exec: id.clone() };
        self.in_standalone(&sandbox, StandaloneEffect::Exec(order));
        self.reply_exec(caller, id)
    }

    /// Records that an exec is being cancelled. The first reason stays.
    fn note_cancel(&mut self, id: &ExecId, why: &str) {
        let Some(row) = self.standalones.exec(id) else { return };
        if row.progress.cancel.is_none() {
            let progress = SandboxExecProgress { cancel: Some(why.to_owned()), ..row.progress.clone() };
            self.set_exec_progress(id, progress);
        }
    }

    /// All execs of a sandbox are about to end with it.
    pub(super) fn note_cancel_of_all(&mut self, sandbox: &SandboxId, why: &str) {
        for exec in self.standalones.open_execs(sandbox) {
            self.note_cancel(&exec, why);
        }
    }

    /// The keeper is connected: requests every exec that is recorded as running. The keeper knows each id, so a repeated
    /// request starts nothing twice.
    pub(super) fn resume_sandbox_execs(&mut self, sandbox: &SandboxId) {
        for exec in self.standalones.open_execs(sandbox) {
            let is_cancelled = self.standalones.exec(&exec).is_some_and(|row| row.progress.cancel.is_some());
            let order = if is_cancelled {
                ExecOrder::Kill { exec }
            } else {
                ExecOrder::Start { exec, resumed: true }
            };
            self.in_standalone(sandbox, StandaloneEffect::Exec(order));
        }
    }

    pub(super) fn sandbox_exec_ended(&mut self, id: &ExecId, end: SandboxExecEnd) {
        // It has ended already, or is no longer in memory.
        let Some(row) = self.standalones.exec(id).filter(|row| row.progress.state.is_open()) else { return };
        let Some(progress) = outcome(row, &end, self.step.now) else { return };
        let sandbox = row.sandbox.clone();
        let ended = EndedExecFields::new(&progress, end.detail);
        let state = progress.state;
        self.set_exec_progress(id, progress);
        self.exec_event(id, |sandbox, exec, name| ended.event(state, [sandbox, exec, name]));
        let order = ExecOrder::Forget { exec: id.clone() };
        self.in_standalone(&sandbox, StandaloneEffect::Exec(order));
        self.settle_sandbox(&sandbox);
    }

    fn set_exec_progress(&mut self, id: &ExecId, progress: SandboxExecProgress) {
        let write = SandboxWrite::ExecProgress { id: id.clone(), progress: Box::new(progress.clone()) };
        self.step.write(write);
        // Its event follows.
        let now = (self.seq + 1, self.asks);
        self.standalones.change_exec(id, now, |row| row.progress = progress);
    }

    /// Appends an event about an exec to the stream of its sandbox.
    fn exec_event<B: Into<EventBody>>(
        &mut self,
        id: &ExecId,
        body: impl FnOnce(String, String, String) -> B,
    ) {
        let Some(row) = self.standalones.exec(id) else { return };
        let name = row.request.command.first().cloned().unwrap_or_default();
        let sandbox = row.sandbox.clone();
        self.event(sandbox.as_str(), body(sandbox.to_string(), id.to_string(), name));
    }

    fn reply_exec(&mut self, caller: Caller, id: &ExecId) -> Result<(), Refusal> {
        let Some(row) = self.standalones.exec(id).cloned() else {
            return Err(ExecRefusal::NotFound { given: id.to_string() }.into());
        };
        self.reply(caller, Answer::SandboxExec(Box::new(row)));
        Ok(())
    }
}

/// The fields of the end event of an exec.
struct EndedExecFields {
    code: Option<ExecFailReason>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    cause: Option<String>,
    detail: Option<String>,
    stdout_bytes: u64,
    stderr_bytes: u64,
}

impl EndedExecFields {
    fn new(progress: &SandboxExecProgress, detail: Option<String>) -> EndedExecFields {
        EndedExecFields {
            code: progress.reason,
            exit_code: progress.exit_code,
            signal: progress.signal,
            cause: progress.cause.map(|cause| cause.word().to_owned()),
            detail: progress.error.clone().or(detail),
            stdout_bytes: progress.stdout.seen,
            stderr_bytes: progress.stderr.seen,
        }
    }

    fn event(self, state: SandboxExecState, [sandbox, exec, name]: [String; 3]) -> EventBody {
        let EndedExecFields { code, exit_code, signal, cause, detail, stdout_bytes, stderr_bytes } = self;
        match state {
            SandboxExecState::Running | SandboxExecState::Finished => ExecFinished {
                sandbox,
                exec,
                name,
                exit_code,
                signal,
                cause,
                detail,
                stdout_bytes,
                stderr_bytes,
            }
            .into(),
            SandboxExecState::Failed => {
                let code = code.unwrap_or(ExecFailReason::Lost).word().to_owned();
                ExecFailed {
                    sandbox,
                    exec,
                    name,
                    code,
                    exit_code,
                    signal,
                    cause,
                    detail,
                    stdout_bytes,
                    stderr_bytes,
                }
                .into()
            }
            SandboxExecState::Cancelled => ExecCancelled {
                sandbox,
                exec,
                name,
                exit_code,
                signal,
                cause,
                detail,
                stdout_bytes,
                stderr_bytes,
            }
            .into(),
        }
    }
}

/// The state of an exec after its end. None: it is over already.
fn outcome(row: &SandboxExecRow, end: &SandboxExecEnd, now: Timestamp) -> Option<SandboxExecProgress> {
    let detail = || end.detail.clone();
    // The one who cancelled it knows that it was killed.
    let (event, reason, error) = match (&row.progress.cancel, end.how) {
        (Some(why), _) => (SandboxExecEvent::Cancelled, None, Some(why.clone())),
        (None, ExecOutcome::Exited { .. } | ExecOutcome::Killed { .. }) => {
            (SandboxExecEvent::Ended, None, None)
        }
        (None, ExecOutcome::NotStarted) => {
            let reason = end.reason.unwrap_or(ExecFailReason::NotStarted);
            let error = detail().unwrap_or_else(|| "it could not be started".to_owned());
            (SandboxExecEvent::Failed, Some(reason), Some(error))
        }
        (None, ExecOutcome::Lost) => {
            let error = detail().unwrap_or_else(|| "its outcome is unknown".to_owned());
            (SandboxExecEvent::Failed, Some(ExecFailReason::Lost), Some(format!("lost: {error}")))
        }
    };
    let state = row.progress.state.next(event).ok()?;
    let (exit_code, signal) = match end.how {
        ExecOutcome::Exited { code } => (Some(code), None),
        ExecOutcome::Killed { signal } => (None, Some(signal)),
        ExecOutcome::NotStarted | ExecOutcome::Lost => (None, None),
    };
    Some(SandboxExecProgress {
        state,
        finished_at: Some(now),
        exit_code,
        signal,
        cause: end.cause,
        reason,
        error,
        stdout: end.stdout,
        stderr: end.stderr,
        ..row.progress.clone()
    })
}
