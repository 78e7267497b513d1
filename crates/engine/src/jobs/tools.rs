//! What models ask of jobs. A model has those of its own session, and no others are there for it.
//!
//! A call that waits for a job has an intent (`StepTarget::Job`): the daemon that sees the end of the job answers it.

use lodge_core::job::{JobRow, SESSION_LABEL};
use lodge_core::record::{JobWait, JobWaitTool, StepRow, StepTarget, TurnWrite};
use lodge_core::turn::StepState;
use lodge_core::{AgentId, JobId, SessionId, TurnId};
use serde_json::json;

use super::submit::Origin;
use super::{JobEffect, JobWish, JobWork, Read, ToolCallRef};
use crate::batch::Step;
use crate::turns::execs::{ToolStart, call_step, digest, open_call};
use crate::turns::{Call, Phase, Turn};
use crate::{AskId, CallOutcome, Effect, Engine, RuntimeAnswer, SandboxEffect, failure};

/// A call that waits.
#[derive(Debug)]
struct Waits {
    asked: ToolCallRef,
    wait: JobWait,
}

/// Who asks, and on whose behalf.
#[derive(Debug)]
struct Asking<'a> {
    asked: &'a ToolCallRef,
    agent: AgentId,
    session: SessionId,
}

impl Engine {
    pub(crate) fn ask_job(&mut self, id: AskId, asked: &ToolCallRef, wish: JobWish) {
        self.step.hurry();
        let Some(turn) = self.turns.get(&asked.turn) else { return };
        let (agent, session) = (turn.row.agent.clone(), turn.row.session.clone());
        let Some((_, call)) = open_call(self.turns.get_mut(&asked.turn), asked.step, &asked.call) else {
            let unknown =
                failure("turn.no_such_call", &format!("the last answer has no call `{}`", asked.call));
            self.in_sandbox(&agent, SandboxEffect::Answer { id, answer: Err(unknown) });
            return;
        };
        if let Some(result) = call.result.clone() {
            self.in_sandbox(&agent, SandboxEffect::Answer { id, answer: Ok(result) });
            return;
        }
        call.waiter = Some(id);
        if call.step.as_ref().is_some_and(|step| step.target.exec().is_some()) {
            // It was asked for as a program before, and that is under way.
            return;
        }
        let asking = Asking { asked, agent, session };
        match wish {
            JobWish::Submit(work) => self.submit_for_model(&asking, work),
            JobWish::List { .. } | JobWish::Status { .. } => read(&mut self.step, &asking, wish),
            JobWish::Wait { ref job } if self.is_open(&asking, job) => {
                self.wait_for(asked, JobWaitTool::Wait, job);
            }
            JobWish::Watch { ref job } if self.is_open(&asking, job) => {
                self.wait_for(asked, JobWaitTool::Watch, job);
            }
            JobWish::Cancel { ref job } if self.is_open(&asking, job) => {
                self.cancel_for_model(asked, job);
            }
            // Over, or not there: the store knows.
            JobWish::Wait { .. } | JobWish::Watch { .. } | JobWish::Cancel { .. } => {
                read(&mut self.step, &asking, wish);
            }
        }
    }

    /// Whether a job waits or runs, and is one of the session that asks.
    fn is_open(&self, asking: &Asking<'_>, job: &JobId) -> bool {
        let theirs =
            |row: &JobRow| row.agent == asking.agent && row.session.as_ref() == Some(&asking.session);
        self.jobs.open(job).is_some_and(theirs)
    }

    /// The job and the result of the call that wanted it are one commit: asked again it is answered again.
    fn submit_for_model(&mut self, asking: &Asking<'_>, mut work: JobWork) {
        let Asking { asked, agent, session } = asking;
        // What is kept of its output is the operator's business; the session's label is the daemon's.
        work.output_bytes = work.output_bytes.min(self.host.settings.job_output);
        work.labels.remove(SESSION_LABEL);
        if let Err(refused) = self.admit_job(agent, &work) {
            return self.finish_call(asked, StepState::Failed, refused.for_model());
        }
        let origin =
            Origin { agent: agent.clone(), session: Some(session.clone()), turn: Some(asked.turn.clone()) };
        let job = self.take_job(origin, work);
        self.finish_call(asked, StepState::Done, json!({"job_id": job.as_str()}).to_string());
    }

    /// One that waited is over at once; of one that runs the end is awaited.
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

    /// The job is over: calls that wait for it get their results.
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
                    self.tell_job(job);
                }
                JobWaitTool::Wait | JobWaitTool::Watch => self.read_end(waits),
            }
        }
    }

    /// After a reconnect: whatever a call waited for may have ended, and the daemon of that time died before it said so.
    pub(crate) fn resume_waits(&mut self, turn: &TurnId) {
        for waits in self.waits(turn) {
            if self.jobs.open(&waits.wait.job).is_none() {
                self.read_end(waits);
            }
        }
    }

    fn read_end(&mut self, waits: Waits) {
        let Waits { asked, wait } = waits;
        let Some(turn) = self.turns.get(&asked.turn) else { return };
        let (agent, session) = (turn.row.agent.clone(), turn.row.session.clone());
        read(&mut self.step, &Asking { asked: &asked, agent, session }, wish(wait));
    }

    /// Whether a turn has nothing to do until a job ends: all its open calls wait for jobs.
    pub(crate) fn is_asleep(&self, turn: &Turn) -> bool {
        let Phase::Tools { calls } = &turn.phase else { return false };
        let mut open = calls.iter().filter(|call| call.result.is_none()).peekable();
        let waits = |call: &Call| {
            let wait = call.step.as_ref().and_then(|step| step.target.job_wait());
            wait.is_some_and(|wait| self.jobs.open(&wait.job).is_some())
        };
        open.peek().is_some() && open.all(waits)
    }

    /// The runtime forgets the turn, and with it what it asked for.
    pub(crate) fn forget_waiters(&mut self, id: &TurnId) {
        if let Some(Turn { phase: Phase::Tools { calls }, .. }) = self.turns.get_mut(id) {
            calls.iter_mut().for_each(|call| call.waiter = None);
        }
    }

    /// The calls of a turn that wait for jobs.
    fn waits(&self, id: &TurnId) -> Vec<Waits> {
        let Some(turn) = self.turns.get(id) else { return Vec::new() };
        let Phase::Tools { calls } = &turn.phase else { return Vec::new() };
        let open = calls.iter().filter(|call| call.result.is_none());
        let waits = open.filter_map(|call| {
            let step = call.step.as_ref()?;
            let wait = step.target.job_wait()?.clone();
            let asked = ToolCallRef { turn: id.clone(), step: step.step, call: call.record.id.clone() };
            Some(Waits { asked, wait })
        });
        waits.collect()
    }

    /// A call that waited is cut: whoever breaks off a turn that waits for a job wants neither.
    pub(crate) fn wait_cut(&mut self, wait: &JobWait) {
        match wait.tool {
            JobWaitTool::Wait => {
                self.cancel(&wait.job, "the turn that waited for it was interrupted");
            }
            JobWaitTool::Watch | JobWaitTool::Cancel => {}
        }
    }

    pub(crate) fn job_read(&mut self, asked: &ToolCallRef, answer: Read) {
        let runs = self.turns.get(&asked.turn).is_some_and(|turn| turn.is_running());
        let open = open_call(self.turns.get_mut(&asked.turn), asked.step, &asked.call);
        // It was broken off meanwhile, or was read twice; or it is parked, begins nothing, and asks again when it goes on.
        if open.is_none_or(|(_, call)| call.result.is_some() || (!runs && call.step.is_none())) {
            return;
        }
        let state = if answer.error { StepState::Failed } else { StepState::Done };
        self.finish_call(asked, state, answer.text);
        for job in &answer.told {
            self.tell_job(job);
        }
    }

    /// Stores what a model is told of a call about jobs, and says so.
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
            // One that gave its slot away may have one again.
            None => self.hand_out_slots(),
        }
    }
}

fn read(step: &mut Step, asking: &Asking<'_>, wish: JobWish) {
    let Asking { asked, agent, session } = asking;
    let (asked, agent, session) = ((*asked).clone(), agent.clone(), session.clone());
    step.act(Effect::Job(JobEffect::Read { asked, agent, session, wish }));
    step.hurry();
}

/// What is read of a job that ended while a call waited for it.
fn wish(JobWait { tool, job }: JobWait) -> JobWish {
    match tool {
        JobWaitTool::Wait => JobWish::Wait { job },
        JobWaitTool::Watch => JobWish::Watch { job },
        JobWaitTool::Cancel => JobWish::Cancel { job },
    }
}
