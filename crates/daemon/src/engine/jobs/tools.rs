//! What models ask of jobs. A model has those of its own session, and no others are there for it.
//!
//! A call that waits has an intent like that of any tool, and no program: whichever daemon sees the end answers it.

use lodge_core::job::{JobRow, SESSION_LABEL};
use lodge_core::record::{ExecRequest, StepRow, Write};
use lodge_core::turn::StepState;
use lodge_core::{AgentId, JobId, SessionId, Timestamp, TurnId};
use lodge_proto::ErrorBody;
use serde_json::{Value, json};

use super::submit::Origin;
use super::{Asked, JobEffect, JobWish, JobWork, Read};
use crate::engine::execs::{Started, call_step, digest, open_call, result_of};
use crate::engine::state::{Call, Phase, Turn};
use crate::engine::{Batch, Effect, Engine, failure};

/// Which tool waits for the end of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiter {
    Wait,
    Watch,
    Cancel,
}

impl Waiter {
    const ALL: [Waiter; 3] = [Waiter::Wait, Waiter::Watch, Waiter::Cancel];

    /// As it stands in the intent of a call: never another word.
    fn word(self) -> &'static str {
        match self {
            Waiter::Wait => "job_wait",
            Waiter::Watch => "job_watch",
            Waiter::Cancel => "job_cancel",
        }
    }

    fn from_word(word: &str) -> Option<Waiter> {
        Waiter::ALL.into_iter().find(|waiter| waiter.word() == word)
    }

    fn wish(self, job: JobId) -> JobWish {
        match self {
            Waiter::Wait => JobWish::Wait { job },
            Waiter::Watch => JobWish::Watch { job },
            Waiter::Cancel => JobWish::Cancel { job },
        }
    }
}

/// A call that waits.
#[derive(Debug)]
struct Waits {
    asked: Asked,
    waiter: Waiter,
    job: JobId,
}

/// Who asks, and on whose behalf.
#[derive(Debug)]
struct Asking<'a> {
    asked: &'a Asked,
    agent: AgentId,
    session: SessionId,
}

impl Engine {
    pub(in crate::engine) fn ask_job(
        &mut self,
        batch: &mut Batch,
        id: Value,
        asked: &Asked,
        wish: JobWish,
        now: Timestamp,
    ) {
        batch.urgent = true;
        let Some(turn) = self.turns.get(&asked.turn) else { return };
        let (agent, session) = (turn.row.agent.clone(), turn.row.session.clone());
        let Some((_, call)) = open_call(self.turns.get_mut(&asked.turn), asked.step, &asked.call) else {
            let unknown =
                failure("turn.no_such_call", &format!("the last answer has no call `{}`", asked.call));
            batch.act(Effect::Answer { agent, id, answer: Err(unknown) });
            return;
        };
        if let Some(result) = &call.result {
            batch.act(Effect::Answer { agent, id, answer: Ok(result.clone()) });
            return;
        }
        call.waiter = Some(id);
        if call.step.as_ref().is_some_and(|step| step.exec.is_some()) {
            // It was asked for as a program before, and that is under way.
            return;
        }
        let asking = Asking { asked, agent, session };
        match wish {
            JobWish::Submit(work) => self.submit_for_model(batch, &asking, work, now),
            JobWish::List { .. } | JobWish::Status { .. } => read(batch, &asking, wish),
            JobWish::Wait { ref job } if self.is_open(&asking, job) => {
                self.wait_for(batch, asked, Waiter::Wait, job, now);
            }
            JobWish::Watch { ref job } if self.is_open(&asking, job) => {
                self.wait_for(batch, asked, Waiter::Watch, job, now);
            }
            JobWish::Cancel { ref job } if self.is_open(&asking, job) => {
                self.cancel_for_model(batch, asked, job, now);
            }
            // Over, or not there: the store knows.
            JobWish::Wait { .. } | JobWish::Watch { .. } | JobWish::Cancel { .. } => {
                read(batch, &asking, wish);
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
    fn submit_for_model(
        &mut self,
        batch: &mut Batch,
        asking: &Asking<'_>,
        mut work: JobWork,
        now: Timestamp,
    ) {
        let Asking { asked, agent, session } = asking;
        // What is kept of its output is the operator's business; the session's label is the daemon's.
        work.output_bytes = work.output_bytes.min(self.host.settings.job_output);
        work.labels.remove(SESSION_LABEL);
        if let Err(refused) = self.admit_job(agent, &work) {
            return self.finish_call(batch, asked, StepState::Failed, words_of(&refused), now);
        }
        let origin =
            Origin { agent: agent.clone(), session: Some(session.clone()), turn: Some(asked.turn.clone()) };
        let job = self.take_job(batch, origin, work, now);
        self.finish_call(batch, asked, StepState::Done, json!({"job_id": job.as_str()}).to_string(), now);
    }

    /// One that waited is over at once; of one that runs the end is awaited.
    fn cancel_for_model(&mut self, batch: &mut Batch, asked: &Asked, job: &JobId, now: Timestamp) {
        self.wait_for(batch, asked, Waiter::Cancel, job, now);
        self.cancel(batch, job, "cancelled by its session", now);
    }

    /// Records that a call waits for the end of a job, unless it does already.
    fn wait_for(&mut self, batch: &mut Batch, asked: &Asked, waiter: Waiter, job: &JobId, now: Timestamp) {
        let (ids, boot, name) = (&mut self.ids, self.host.boot.clone(), waiter.word());
        let Some((ordinal, call)) = open_call(self.turns.get_mut(&asked.turn), asked.step, &asked.call)
        else {
            return;
        };
        if call.step.is_some() {
            return;
        }
        let request =
            ExecRequest { bin: name.to_owned(), args: vec![job.to_string()], boot, ..ExecRequest::default() };
        let intent = call_step(ids, (&asked.turn, asked.step, ordinal), call, StepState::Intent, now);
        let row = StepRow { request: Some(request), ended_at: None, ..intent };
        call.step = Some(row.clone());
        batch.write(Write::Step(row));
        let Asked { turn, step, call } = asked;
        self.tool_started(batch, &Started { turn, step: *step, call, name }, now);
    }

    /// The job is over: calls that wait for it get their results.
    pub(super) fn answer_waits(&mut self, batch: &mut Batch, job: &JobId, now: Timestamp) {
        let Some(row) = self.jobs.get(job) else { return };
        let (Some(session), status) = (row.session.clone(), row.progress.state.word()) else { return };
        let Some(turn) = self.sessions.get(&session).and_then(|session| session.live.front()).cloned() else {
            return;
        };
        for waits in self.waits(&turn).into_iter().filter(|waits| waits.job == *job) {
            match waits.waiter {
                Waiter::Cancel => {
                    let text = json!({"job_id": job.as_str(), "status": status}).to_string();
                    self.finish_call(batch, &waits.asked, StepState::Done, text, now);
                    self.tell_job(batch, job);
                }
                Waiter::Wait | Waiter::Watch => self.read_end(batch, waits),
            }
        }
    }

    /// After a reconnect: whatever a call waited for may have ended, and the daemon of that time died before it said so.
    pub(in crate::engine) fn resume_waits(&mut self, batch: &mut Batch, turn: &TurnId) {
        for waits in self.waits(turn) {
            if self.jobs.open(&waits.job).is_none() {
                self.read_end(batch, waits);
            }
        }
    }

    fn read_end(&self, batch: &mut Batch, waits: Waits) {
        let Waits { asked, waiter, job } = waits;
        let Some(turn) = self.turns.get(&asked.turn) else { return };
        let (agent, session) = (turn.row.agent.clone(), turn.row.session.clone());
        read(batch, &Asking { asked: &asked, agent, session }, waiter.wish(job));
    }

    /// Whether a turn has nothing to do until a job ends: all its open calls wait for jobs.
    pub(in crate::engine) fn is_asleep(&self, turn: &Turn) -> bool {
        let Phase::Tools { calls } = &turn.phase else { return false };
        let mut open = calls.iter().filter(|call| call.result.is_none()).peekable();
        let waits = |call: &Call| {
            let waited = call.step.as_ref().and_then(waited_for);
            waited.is_some_and(|(_, job)| self.jobs.open(&job).is_some())
        };
        open.peek().is_some() && open.all(waits)
    }

    /// The runtime forgets the turn, and with it what it asked for.
    pub(in crate::engine) fn forget_waiters(&mut self, id: &TurnId) {
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
            let (waiter, job) = waited_for(step)?;
            let asked = Asked { turn: id.clone(), step: step.step, call: call.record.id.clone() };
            Some(Waits { asked, waiter, job })
        });
        waits.collect()
    }

    /// A call that waited is cut: whoever breaks off a turn that waits for a job wants neither.
    pub(in crate::engine) fn wait_cut(&mut self, batch: &mut Batch, step: &StepRow, now: Timestamp) {
        if let Some((Waiter::Wait, job)) = waited_for(step) {
            self.cancel(batch, &job, "the turn that waited for it was interrupted", now);
        }
    }

    pub(super) fn job_read(&mut self, batch: &mut Batch, asked: &Asked, answer: Read, now: Timestamp) {
        let runs = self.turns.get(&asked.turn).is_some_and(|turn| turn.is_running());
        let open = open_call(self.turns.get_mut(&asked.turn), asked.step, &asked.call);
        // It was broken off meanwhile, or was read twice; or it is parked, begins nothing, and asks again when it goes on.
        if open.is_none_or(|(_, call)| call.result.is_some() || (!runs && call.step.is_none())) {
            return;
        }
        let state = if answer.error { StepState::Failed } else { StepState::Done };
        self.finish_call(batch, asked, state, answer.text, now);
        for job in &answer.told {
            self.tell_job(batch, job);
        }
    }

    /// Stores what a model is told of a call about jobs, and says so.
    fn finish_call(
        &mut self,
        batch: &mut Batch,
        asked: &Asked,
        state: StepState,
        text: String,
        now: Timestamp,
    ) {
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
                let row = StepRow { state, ended_at: Some(now), ..intent };
                batch.write(Write::StepState {
                    turn: row.turn.clone(),
                    step: row.step,
                    ordinal: row.ordinal,
                    state,
                    attempt: row.attempt,
                    exit_code: None,
                    signal: None,
                    cause: None,
                    ended_at: Some(now),
                });
                row
            }
            None => {
                let row = call_step(ids, (&asked.turn, asked.step, ordinal), call, state, now);
                batch.write(Write::Step(row.clone()));
                row
            }
        };
        let mut result = result_of(Some(&row));
        result["digest"] = json!(digest(&text));
        (call.step, call.result) = (Some(row.clone()), Some(result.clone()));
        let waiter = call.waiter.take();
        let bytes = text.len() as u64;
        self.tool_result(batch, &asked.turn, &row, &asked.call, bytes, text, now);
        match waiter {
            Some(id) => batch.act(Effect::Answer { agent, id, answer: Ok(result) }),
            // One that gave its slot away may have one again.
            None => self.hand_out_slots(batch, now),
        }
    }
}

fn read(batch: &mut Batch, asking: &Asking<'_>, wish: JobWish) {
    let Asking { asked, agent, session } = asking;
    let what = JobEffect::Read { asked: (*asked).clone(), session: session.clone(), wish };
    batch.act(Effect::Job { agent: agent.clone(), what });
    batch.urgent = true;
}

/// The job that a step waits for, and by which tool. A program of the same name has an exec.
fn waited_for(step: &StepRow) -> Option<(Waiter, JobId)> {
    let request = step.request.as_ref().filter(|_| step.exec.is_none())?;
    let job = request.args.first()?.parse().ok()?;
    Some((Waiter::from_word(&request.bin)?, job))
}

/// A refusal as a model reads it.
pub(crate) fn words_of(refused: &ErrorBody) -> String {
    match &refused.data.hint {
        Some(hint) => format!("{}\n{hint}", refused.message),
        None => refused.message.clone(),
    }
}
