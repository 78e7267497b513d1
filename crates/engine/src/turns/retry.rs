//! Continues a turn that failed or was interrupted: a new turn replaces it and takes over its finished work.
//!
//! Owns: what is taken over. Never: how the new turn runs: it continues from its ledger, like a turn of an earlier daemon.

use lodge_core::epoch::EpochRow;
use lodge_core::event::TurnAccepted;
use lodge_core::record::{
    LiveTurn, MessageBody, MessageRow, Role, SessionWrite, StepRow, StepTarget, TurnRow, TurnWrite,
};
use lodge_core::session::TurnLinks;
use lodge_core::summary::{TurnDetail, TurnExtras};
use lodge_core::turn::StepState;
use lodge_core::{SessionId, StepId, TurnId};

use super::Turn;
use super::compact::SUMMARY_STEP;
use crate::{Answer, Caller, Engine, NewTurn, Refusal, SessionChoice, TurnContinuation};

/// The result of a call that ran when its turn ended, for the model that continues.
const CUT_RESULT: &str = "[this call had started when the turn was interrupted. Its outcome is unknown: it may have \
                          done all, a part or nothing of its work. It was not repeated.]";

/// What a turn takes over from the one that it replaces.
#[derive(Debug, Default)]
struct FinishedWork {
    messages: Vec<MessageRow>,
    steps: Vec<StepRow>,
}

impl Engine {
    /// Takes a turn off the path, and continues it in a new one from its last finished step.
    pub(crate) fn retry_turn(
        &mut self,
        caller: Caller,
        id: &SessionId,
        again: TurnContinuation,
    ) -> Result<(), Refusal> {
        let Some(row) = self.sessions.get(id).map(|session| session.row.clone()) else { return Ok(()) };
        let first = again.messages.first().map(|first| first.body.clone()).unwrap_or_default();
        let new = NewTurn {
            agent: row.agent,
            session: SessionChoice::Named { id: id.clone(), fact: None },
            sender: row.sender,
            text: first.text,
            schema: first.schema,
        };
        if let Err(refused) = self.admit(&new) {
            self.rest_session(id);
            return Err(refused);
        }
        let safe = |bin: &str| {
            let agent = self.agents.get(&new.agent);
            agent.is_some_and(|agent| agent.row.spec.tools.iter().any(|tool| tool.name == bin && tool.safe))
        };
        let work = FinishedWork::of(&again, safe);
        let (old, epoch) = (again.turn, again.epoch);
        self.cut_path(id, again.plan);
        let epoch = self.begin_kept_epoch(id, epoch);
        let (turn, steps) = self.take_over_work(id, &old, work);
        // After the turn that it begins with.
        epoch.into_iter().for_each(|epoch| self.step.write(SessionWrite::Epoch(epoch)));
        let sender = new.sender;
        let replaces = Some(old.id.to_string());
        self.turn_event(&turn, |session, turn| TurnAccepted { session, turn, sender, replaces });
        self.start_next(id);
        if let Some(turn) = self.turns.get(&turn) {
            let (row, wait_reasons) = (turn.row.clone(), self.wait_reasons(turn));
            let (text, extras) = (String::new(), TurnExtras::default());
            let detail = TurnDetail { row, steps, text, partial: true, wait_reasons, extras };
            self.reply(caller, Answer::Turn(Box::new(detail)));
        }
        Ok(())
    }

    /// Begins the epoch of the replaced turn again: its summary was paid for.
    fn begin_kept_epoch(&mut self, id: &SessionId, epoch: Option<EpochRow>) -> Option<EpochRow> {
        let session = self.sessions.get_mut(id)?;
        let epoch = EpochRow { number: session.epoch.newest + 1, ..epoch? };
        session.epoch.begin(&epoch);
        Some(epoch)
    }

    /// Records a turn with the work that it takes over, at the end of the path.
    fn take_over_work(
        &mut self,
        id: &SessionId,
        old: &TurnRow,
        work: FinishedWork,
    ) -> (TurnId, Vec<StepRow>) {
        let (now, turn) = (self.step.now, TurnId::new(&mut self.ids, self.step.now));
        let FinishedWork { mut messages, mut steps } = work;
        for step in &mut steps {
            (step.id, step.turn) = (StepId::new(&mut self.ids, now), turn.clone());
        }
        // Its usage begins at zero: the replaced turn has that of the steps.
        let place = TurnLinks { replaces: Some(old.id.clone()), ..TurnLinks::default() };
        let row = self.append_turn(&turn, id, &old.agent, place, &mut messages);
        steps.iter().for_each(|step| self.step.write(TurnWrite::Step(step.clone())));
        let live = live_turn(row, steps.clone(), &messages);
        self.turns.insert(turn.clone(), Turn { came: self.seq, ..Turn::from_live(live) });
        (turn, steps)
    }
}

/// The turn as an engine finds it after a restart.
fn live_turn(row: TurnRow, steps: Vec<StepRow>, messages: &[MessageRow]) -> LiveTurn {
    let newest = messages.iter().rposition(|message| message.role == Role::Assistant);
    let calls = newest.map(|at| messages[at].body.calls.clone()).unwrap_or_default();
    let answered =
        messages[newest.unwrap_or(0)..].iter().filter_map(|message| message.body.call.clone()).collect();
    let note = messages.first().and_then(|first| first.body.note.clone());
    LiveTurn { row, steps, calls, answered, note }
}

/// The outcome of a call of the last answer.
enum CallState {
    /// It has a result.
    Finished,
    /// It had started when the turn ended, and may have had an effect.
    Cut,
    /// It can run now: it never started, or repeating it is harmless.
    Open,
}

impl FinishedWork {
    /// Everything up to the last answer of the model that counts, and the results of its calls. A partial answer, and
    /// answers that did not match a schema and were followed by no other, are left out.
    fn of(old: &TurnContinuation, safe: impl Fn(&str) -> bool) -> FinishedWork {
        let counts = |message: &&MessageRow| {
            message.role == Role::Assistant
                && !message.body.partial
                && old.model_step(message.step).is_none_or(|step| step.state == StepState::Done)
        };
        let last = old.messages.iter().filter(counts).map(|message| message.step).max().unwrap_or(0);
        let mut work = FinishedWork::default();
        for message in old.messages.iter().filter(|message| message.step <= last) {
            match message.role {
                Role::User => work.messages.push(message.clone()),
                Role::Assistant if message.body.partial => {}
                Role::Assistant => {
                    work.steps.push(old.answered_step(message));
                    work.messages.push(message.clone());
                }
                Role::Tool => work.take_result(old, message, last, &safe),
            }
        }
        work.steps.sort_by_key(|step| (step.step, step.ordinal));
        work
    }

    fn take_result(
        &mut self,
        old: &TurnContinuation,
        message: &MessageRow,
        last: u32,
        safe: impl Fn(&str) -> bool,
    ) {
        let step = old.call_step(message);
        let state = if message.step == last {
            old.call_state(step, &message.body, safe)
        } else {
            CallState::Finished
        };
        match state {
            CallState::Open => {}
            CallState::Finished => {
                // The kept result is all there is to it: nothing waits for its program any more.
                self.steps.extend(step.map(|step| StepRow { target: StepTarget::Answered, ..step.clone() }));
                self.messages.push(message.clone());
            }
            CallState::Cut => {
                let interrupted = |step: &StepRow| StepRow {
                    target: StepTarget::Answered,
                    state: StepState::Interrupted,
                    ..step.clone()
                };
                self.steps.extend(step.map(interrupted));
                let body = MessageBody { text: CUT_RESULT.to_owned(), ..message.body.clone() };
                self.messages.push(MessageRow { body, ..message.clone() });
            }
        }
    }
}

impl TurnContinuation {
    /// A model call for the user, not for a summary.
    fn model_step(&self, number: u32) -> Option<&StepRow> {
        let is_it = |step: &&StepRow| step.step == number && step.ordinal == 0 && number != SUMMARY_STEP;
        self.steps.iter().find(is_it)
    }

    /// The step of a stored answer. A copy whose original was deleted has none.
    fn answered_step(&self, message: &MessageRow) -> StepRow {
        self.model_step(message.step).cloned().unwrap_or_else(|| StepRow {
            // Replaced when the step is recorded.
            id: StepId::earliest_at(message.at),
            turn: message.turn.clone(),
            step: message.step,
            ordinal: 0,
            target: StepTarget::ModelCall,
            name: String::new(),
            state: StepState::Done,
            attempt: 1,
            call: None,
            exit_code: None,
            signal: None,
            cause: None,
            started_at: message.at,
            ended_at: Some(message.at),
        })
    }

    fn call_step(&self, message: &MessageRow) -> Option<&StepRow> {
        let is_it = |step: &&StepRow| step.step == message.step && step.ordinal > 0;
        self.steps.iter().filter(is_it).find(|step| step.call == message.body.call)
    }

    fn call_state(
        &self,
        step: Option<&StepRow>,
        result: &MessageBody,
        safe: impl Fn(&str) -> bool,
    ) -> CallState {
        let Some(step) = step else {
            return match (self.steps.is_empty(), result.cut) {
                // Every call that was requested has a step.
                (false, _) => CallState::Open,
                (true, true) => CallState::Cut,
                (true, false) => CallState::Finished,
            };
        };
        let is_cut = match step.state {
            StepState::Interrupted => true,
            StepState::Failed => result.cut,
            StepState::Intent | StepState::Done | StepState::Unknown | StepState::Fenced => false,
        };
        match &step.target {
            _ if !is_cut => CallState::Finished,
            StepTarget::Program { request, .. } if safe(&request.bin) => CallState::Open,
            // Waiting for a job changes nothing.
            StepTarget::Job(_) => CallState::Open,
            StepTarget::Program { .. } | StepTarget::ModelCall | StepTarget::Answered => CallState::Cut,
        }
    }
}
