//! Requests of models about jobs. A model can only see the jobs of its own session.
//!
//! A call that waits for a job has an intent (`StepTarget::Job`): the daemon that sees the end of the job answers it.

use lodge_core::job::{JobRow, SESSION_LABEL};
use lodge_core::record::{JobWait, JobWaitTool, StepRow, StepTarget, TurnWrite};
use lodge_core::turn::StepState;
use lodge_core::{AgentId, JobId, SessionId, TurnId};
use serde_json::json;

use super::submit::JobOrigin;
use super::{JobEffect, JobReport, JobSpec, JobToolRequest, ToolCallRef};
use crate::batch::Step;
use crate::turns::execs::{ToolStart, call_step, digest, open_call};
use crate::turns::{Phase, ToolCallState, Turn};
use crate::{CallOutcome, Effect, Engine, RuntimeAnswer, RuntimeCallId, RuntimeCallRefusal, SandboxEffect};

/// A call that waits.
#[derive(Debug)]
struct WaitingCall {
    asked: ToolCallRef,
    wait: JobWait,
}

/// The tool call that a job request belongs to.
#[derive(Debug)]
struct JobToolCaller<'a> {
    asked: &'a ToolCallRef,
    agent: AgentId,
    session: SessionId,
}

impl Engine {
    pub(crate) fn request_job_tool(&mut self, id: RuntimeCallId, asked: &ToolCallRef, wish: JobToolRequest) {
        self.step.mark_urgent();
        let Some(turn) = self.turns.get(&asked.turn) else { return };
        let (agent, session) = (turn.row.agent.clone(), turn.row.session.clone());
        let Some((_, call)) = open_call(self.turns.get_mut(&asked.turn), asked.step, &asked.call) else {
            let refusal = RuntimeCallRefusal::NoSuchCall { call: asked.call.clone() };
            return self.refuse_runtime_call(&agent, id, refusal);
        };
        if let Some(result) = call.result.clone() {
            self.in_sandbox(&agent, SandboxEffect::Answer { id, answer: Ok(result) });
            return;
        }
        call.waiter = Some(id);
        if call.step.as_ref().is_some_and(|step| step.target.exec().is_some()) {
            // The runtime requested this call as a program before, and it runs.
            return;
        }
        // A call keeps the request that is recorded for it, also if the runtime repeats it with another one.
        let recorded = call.step.as_ref().and_then(|step| step.target.job_wait()).cloned();
        let wish = recorded.map_or(wish, request_of);
        let asking = JobToolCaller { asked, agent, session };
        match wish {
            JobToolRequest::Submit(work) => self.submit_for_model(&asking, work),
            JobToolRequest::List { .. } | JobToolRequest::Status { .. } => {
                read(&mut self.step, &asking, wish)
            }
            JobToolRequest::Wait { ref job } if self.is_open(&asking, job) => {
                self.wait_for(asked, JobWaitTool::Wait, job);
            }
            JobToolRequest::Watch { ref job } if self.is_open(&asking, job) => {
                self.wait_for(asked, JobWaitTool::Watch, job);
            }
            JobToolRequest::Cancel { ref job } if self.is_open(&asking, job) => {
                self.cancel_for_model(asked, job);
            }
            // It has ended or does not exist: the store knows.
            JobToolRequest::Wait { .. } | JobToolRequest::Watch { .. } | JobToolRequest::Cancel { .. } => {
                read(&mut self.step, &asking, wish);
            }
        }
    }

    /// Whether a job is pending or running, and belongs to the requesting session.
    fn is_open(&self, asking: &JobToolCaller<'_>, job: &JobId) -> bool {
        let theirs =
            |row: &JobRow| row.agent == asking.agent && row.session.as_ref() == Some(&asking.session);
        self.jobs.open(job).is_some_and(theirs)
    }

    /// The job and the result of its call are one commit: a repeated request gets the same answer.
    fn submit_for_model(&mut self, asking: &JobToolCaller<'_>, mut work: JobSpec) {
        let JobToolCaller { asked, agent, session } = asking;
        // The operator decides how much output is kept; the daemon sets the session's label.
        work.output_bytes = work.output_bytes.min(self.host.settings.job_output);
        work.labels.remove(SESSION_LABEL);
        if let Err(refused) = self.admit_job(agent, &work) {
            return self.finish_call(asked, StepState::Failed, refused.for_model());
        }
        let origin = JobOrigin {
            agent: agent.clone(),
            session: Some(session.clone()),
            turn: Some(asked.turn.clone()),
        };
        let job = self.take_job(origin, work);
        self.finish_call(asked, StepState::Done, json!({"job_id": job.as_str()}).to_string());
    }

    /// A pending job ends at once; the end of a running job is awaited.
    fn cancel_for_model(&mut self, asked: &ToolCallRef, job: &JobId) {
        self.wait_for(asked, JobWaitTool::Cancel, job);
        self.cancel(job, "cancelled by its session");
    }

    /// Records that a call waits for the end of a job, unless it does already.
    fn wait_for(&mut self, asked: &ToolCallRef, tool: JobWaitTool, job: &JobId) {
        let ids = &mut self.ids;
        let Some((ordinal, call)) = open_call(self.turns.get_mut(&asked.turn), asked.step, &asked.call)
        else {
            return;
        };
        if call.step.is_some() {
            return;
        }
        let target = StepTarget::Job(JobWait { tool, job: job.clone() });
        let intent =
            call_step(ids, (&asked.turn, asked.step, ordinal), call, StepState::Intent, self.step.now);
        let row = StepRow { target, ended_at: None, ..intent };
        call.step = Some(row.clone());
        self.step.write(TurnWrite::Step(row));
        let ToolCallRef { turn, step, call } = asked;
        self.tool_started(&ToolStart { turn, step: *step, call, name: tool.word() });
    }

    /// The job has ended: calls that wait for it get their results.
    pub(crate) fn answer_waits(&mut self, job: &JobId) {
        let Some(row) = self.jobs.get(job) else { return };
        let (Some(session), status) = (row.session.clone(), row.progress.state.word()) else { return };
        let Some(turn) = self.sessions.get(&session).and_then(|session| session.live.front()).cloned() else {
            return;
        };
        for waits in self.waits(&turn).into_iter().filter(|waits| waits.wait.job == *job) {
            match waits.wait.tool {
                JobWaitTool::Cancel => {
                    let text = json!({"job_id": job.as_str(), "status": status}).to_string();
                    self.finish_call(&waits.asked, StepState::Done, text);
                    self.mark_job_reported(job);
                }
                JobWaitTool::Wait | JobWaitTool::Watch => self.read_end(waits),
            }
        }
    }

    /// After a reconnect: the awaited job may have ended, and the earlier daemon may have died before its report.
    pub(crate) fn resume_waits(&mut self, turn: &TurnId) {
        for waits in self.waits(turn) {
            if self.jobs.open(&waits.wait.job).is_none() {
                self.read_end(waits);
            }
        }
    }

    fn read_end(&mut self, waits: WaitingCall) {
        let WaitingCall { asked, wait } = waits;
        let Some(turn) = self.turns.get(&asked.turn) else { return };
        let (agent, session) = (turn.row.agent.clone(), turn.row.session.clone());
        read(&mut self.step, &JobToolCaller { asked: &asked, agent, session }, request_of(wait));
    }

    /// Whether a turn waits only for jobs: all its open calls wait for one.
    pub(crate) fn waits_only_for_jobs(&self, turn: &Turn) -> bool {
        let Phase::Tools { calls } = &turn.phase else { return false };
        let mut open = calls.iter().filter(|call| call.result.is_none()).peekable();
        let waits = |call: &ToolCallState| {
            let wait = call.step.as_ref().and_then(|step| step.target.job_wait());
            wait.is_some_and(|wait| self.jobs.open(&wait.job).is_some())
        };
        open.peek().is_some() && open.all(waits)
    }

    /// The runtime drops the turn and its requests.
    pub(crate) fn forget_waiters(&mut self, id: &TurnId) {
        if let Some(Turn { phase: Phase::Tools { calls }, .. }) = self.turns.get_mut(id) {
            calls.iter_mut().for_each(|call| call.waiter = None);
        }
    }

    /// The calls of a turn that wait for jobs.
    fn waits(&self, id: &TurnId) -> Vec<WaitingCall> {
        let Some(turn) = self.turns.get(id) else { return Vec::new() };
        let Phase::Tools { calls } = &turn.phase else { return Vec::new() };
        let open = calls.iter().filter(|call| call.result.is_none());
        let waits = open.filter_map(|call| {
            let step = call.step.as_ref()?;
            let wait = step.target.job_wait()?.clone();
            let asked = ToolCallRef { turn: id.clone(), step: step.step, call: call.record.id.clone() };
            Some(WaitingCall { asked, wait })
        });
        waits.collect()
    }

    /// A waiting call is cut. An interrupt of a turn that waits for a job ends both.
    pub(crate) fn wait_cut(&mut self, wait: &JobWait) {
        match wait.tool {
            JobWaitTool::Wait => {
                self.cancel(&wait.job, "the turn that waited for it was interrupted");
            }
            JobWaitTool::Watch | JobWaitTool::Cancel => {}
        }
    }

    pub(crate) fn job_read(&mut self, asked: &ToolCallRef, answer: JobReport) {
        let runs = self.turns.get(&asked.turn).is_some_and(|turn| turn.is_running());
        let open = open_call(self.turns.get_mut(&asked.turn), asked.step, &asked.call);
        // The call was interrupted meanwhile, or read twice. Or its turn is parked: it starts nothing, and repeats the
        // request when it continues.
        if open.is_none_or(|(_, call)| call.result.is_some() || (!runs && call.step.is_none())) {
            return;
        }
        let state = if answer.error { StepState::Failed } else { StepState::Done };
        self.finish_call(asked, state, answer.text);
        for job in &answer.told {
            self.mark_job_reported(job);
        }
    }

    /// Stores the result of a call about jobs, and reports it.
    fn finish_call(&mut self, asked: &ToolCallRef, state: StepState, text: String) {
        let ids = &mut self.ids;
        let Some(agent) = self.turns.get(&asked.turn).map(|turn| turn.row.agent.clone()) else { return };
        let Some((ordinal, call)) = open_call(self.turns.get_mut(&asked.turn), asked.step, &asked.call)
        else {
            return;
        };
        if call.result.is_some() {
            return;
        }
        let row = match call.step.take() {
            Some(intent) => {
                let row = StepRow { state, ended_at: Some(self.step.now), ..intent };
                self.step.write(TurnWrite::StepState {
                    turn: row.turn.clone(),
                    step: row.step,
                    ordinal: row.ordinal,
                    state,
                    attempt: row.attempt,
                    exit_code: None,
                    signal: None,
                    cause: None,
                    ended_at: Some(self.step.now),
                });
                row
            }
            None => {
                let row = call_step(ids, (&asked.turn, asked.step, ordinal), call, state, self.step.now);
                self.step.write(TurnWrite::Step(row.clone()));
                row
            }
        };
        let outcome = CallOutcome { digest: Some(digest(&text)), ..CallOutcome::of_step(&row) };
        let result = RuntimeAnswer::Call(outcome);
        (call.step, call.result) = (Some(row.clone()), Some(result.clone()));
        let waiter = call.waiter.take();
        let bytes = text.len() as u64;
        self.tool_result(&asked.turn, &row, &asked.call, bytes, text);
        match waiter {
            Some(id) => self.in_sandbox(&agent, SandboxEffect::Answer { id, answer: Ok(result) }),
            // A turn that released its slot may get one again.
            None => self.assign_slots(),
        }
    }
}

fn read(step: &mut Step, asking: &JobToolCaller<'_>, wish: JobToolRequest) {
    let JobToolCaller { asked, agent, session } = asking;
    let (asked, agent, session) = ((*asked).clone(), agent.clone(), session.clone());
    step.act(Effect::Job(JobEffect::Read { asked, agent, session, wish }));
    step.mark_urgent();
}

/// The request of a call that waits for a job.
fn request_of(JobWait { tool, job }: JobWait) -> JobToolRequest {
    match tool {
        JobWaitTool::Wait => JobToolRequest::Wait { job },
        JobWaitTool::Watch => JobToolRequest::Watch { job },
        JobWaitTool::Cancel => JobToolRequest::Cancel { job },
    }
}
