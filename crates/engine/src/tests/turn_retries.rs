//! Turns that failed or were interrupted and are continued by another one.

use lodge_core::epoch::{Epoch, EpochRow, Strategy};
use lodge_core::record::{MessageRow, Role, SessionWrite};
use lodge_core::session::PathPlan;

use super::*;
use crate::TurnContinuation;

impl EngineWorld {
    /// The last turn of the session `s`, as a store would return it.
    fn remains(&self, turn: &TurnId) -> TurnContinuation {
        let (mut row, mut steps): (Option<TurnRow>, Vec<StepRow>) = (None, Vec::new());
        let (mut messages, mut epoch): (Vec<MessageRow>, Option<EpochRow>) = (Vec::new(), None);
        for write in &self.written {
            match write {
                Write::Turn(TurnWrite::New(new)) if new.id == *turn => row = Some(new.clone()),
                Write::Turn(TurnWrite::State { id, state, .. }) if id == turn => {
                    row.as_mut().unwrap().state = *state;
                }
                Write::Turn(TurnWrite::Step(step)) if step.turn == *turn => steps.push(step.clone()),
                Write::Turn(TurnWrite::StepState { turn: of, step, ordinal, state, .. }) if of == turn => {
                    let at = steps.iter_mut().find(|row| (row.step, row.ordinal) == (*step, *ordinal));
                    at.unwrap().state = *state;
                }
                Write::Turn(TurnWrite::Message(message)) if message.turn == *turn => {
                    messages.push(message.clone());
                }
                Write::Session(SessionWrite::Epoch(row)) => epoch = Some(row.clone()),
                _ => {}
            }
        }
        let turn = row.unwrap();
        let epoch = epoch.filter(|epoch| epoch.turn == turn.number);
        let before = turn.number - 1;
        let tip = turn.place.parent.clone();
        let mut cut = Epoch::default();
        cut.newest = self.engine.sessions[&turn.session].epoch.newest;
        let plan = PathPlan { from: turn.number, restored: Vec::new(), turns: before, tip, epoch: cut };
        TurnContinuation { turn, steps, messages, epoch, plan }
    }

    fn retry(&mut self, turn: &TurnId) -> Batch {
        let again = self.remains(turn);
        let fact = fact(&self.engine.sessions[&again.turn.session]);
        let what = SessionOperation::Retry(Box::new(again));
        let change = SessionChange { fact, agent_name: "a".into(), agent_removed: false, what };
        self.ask(None, Command::Session(Box::new(change)))
    }

    fn interrupt(&mut self, turn: &TurnId) {
        self.ask(None, Command::Turn(TurnCommand::Interrupt { id: turn.clone() }));
    }

    fn fail(&mut self, agent: &AgentId, turn: &TurnId) {
        let (code, message) = ("turn.stuck".to_owned(), "stuck".to_owned());
        let ask = RuntimeCall::Finish { turn: turn.clone(), code, message };
        let id = RuntimeCallId(json!("f"));
        self.see(Observation::Turn(TurnObservation::Asked { agent: agent.clone(), id, ask }));
    }

    fn exec_ended(&mut self, exec: &ExecId, how: ExecOutcome, text: &str) {
        let end = ExecEnd { how, ..ended(text) };
        self.see(Observation::Turn(TurnObservation::ExecEnded { exec: exec.clone(), end }));
    }
}

/// What the runtime gets: the step, and the open calls.
fn run(batch: &Batch) -> (u32, Vec<String>) {
    let run = acts(batch).into_iter().find_map(|effect| match effect {
        Effect::Sandbox { what: SandboxEffect::RunTurn { step, calls, .. }, .. } => {
            Some((*step, calls.iter().map(|call| call.id.clone()).collect()))
        }
        _ => None,
    });
    run.expect("the turn runs")
}

/// The messages that the new turn takes over: their author, or the call that they answer, and their text.
fn taken(batch: &Batch) -> Vec<(String, String)> {
    let messages = batch.writes.iter().filter_map(|write| match write {
        Write::Turn(TurnWrite::Message(message)) => Some(message),
        _ => None,
    });
    let shown = |message: &MessageRow| {
        let author = message.body.call.clone().unwrap_or_else(|| message.role.word().to_owned());
        (author, message.body.text.clone())
    };
    messages.map(shown).collect()
}

fn authors(batch: &Batch) -> Vec<String> {
    taken(batch).into_iter().map(|(author, _)| author).collect()
}

fn states(batch: &Batch) -> Vec<(u32, StepState)> {
    let steps = batch.writes.iter().filter_map(|write| match write {
        Write::Turn(TurnWrite::Step(step)) => Some((step.ordinal, step.state)),
        _ => None,
    });
    steps.collect()
}

/// A turn whose answer has four calls: one finished, one that runs and is not safe, one that runs and is safe, and one
/// that never started.
fn four_calls() -> (EngineWorld, AgentId, TurnId) {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    world.ask_model(&agent, &turn, 1);
    let calls = [("c1", "sh"), ("c2", "sh"), ("c3", "date"), ("c4", "sh")];
    world.answer(&turn, 1, 1, "I look", &calls);
    let first = started_exec(&world.exec(&agent, &turn, "c1", "sh")).remove(0);
    world.exec(&agent, &turn, "c2", "sh");
    world.exec(&agent, &turn, "c3", "date");
    world.exec_ended(&first, ExecOutcome::Exited { code: 0 }, "one");
    (world, agent, turn)
}

#[test]
fn a_retry_takes_over_what_finished_reports_what_was_cut_and_runs_what_never_started_or_is_safe() {
    for failed in [false, true] {
        let (mut world, agent, turn) = four_calls();
        if failed {
            world.fail(&agent, &turn);
        } else {
            world.interrupt(&turn);
        }
        let batch = world.retry(&turn);
        let new = turn_of(&batch);
        assert_eq!(reply(&batch)["replaces"], turn.as_str());
        assert_eq!(run(&batch), (2, vec!["c3".to_owned(), "c4".to_owned()]), "failed: {failed}");
        assert!(started_exec(&batch).is_empty());
        let taken = taken(&batch);
        assert_eq!(authors(&batch), ["user", "assistant", "c1", "c2"]);
        assert_eq!((taken[2].1.as_str(), taken[3].1.contains("outcome is unknown")), ("one", true));
        let expected = [(0, StepState::Done), (1, StepState::Done), (2, StepState::Interrupted)];
        assert_eq!(states(&batch), expected);
        // The next step waits for the two calls alone, and their results are stored.
        let exec = started_exec(&world.exec(&agent, &new, "c3", "date")).remove(0);
        world.exec_ended(&exec, ExecOutcome::Exited { code: 0 }, "three");
        assert!(started_exec(&world.exec(&agent, &new, "c1", "sh")).is_empty(), "a finished tool runs again");
        let exec = started_exec(&world.exec(&agent, &new, "c4", "sh")).remove(0);
        world.exec_ended(&exec, ExecOutcome::Exited { code: 0 }, "four");
        world.ask_model(&agent, &new, 2);
        world.answer(&new, 2, 1, "done", &[]);
        assert_eq!(
            (world.state(&new), world.state(&turn)),
            (TurnState::Done, world.remains(&turn).turn.state)
        );
    }
}

#[test]
fn a_retry_of_a_retry_keeps_what_both_finished() {
    let (mut world, agent, turn) = four_calls();
    world.interrupt(&turn);
    let second = turn_of(&world.retry(&turn));
    let exec = started_exec(&world.exec(&agent, &second, "c4", "sh")).remove(0);
    world.exec_ended(&exec, ExecOutcome::Exited { code: 0 }, "four");
    world.interrupt(&second);
    let batch = world.retry(&second);
    assert_eq!(authors(&batch), ["user", "assistant", "c1", "c2", "c4"]);
    assert_eq!(run(&batch), (2, vec!["c3".to_owned()]));
}

#[test]
fn an_unknown_outcome_stays_unknown() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    world.ask_model(&agent, &turn, 1);
    world.answer(&turn, 1, 1, "", &[("c1", "date")]);
    let exec = started_exec(&world.exec(&agent, &turn, "c1", "date")).remove(0);
    world.exec_ended(&exec, ExecOutcome::Lost, "nobody knows");
    world.fail(&agent, &turn);
    let batch = world.retry(&turn);
    assert_eq!(taken(&batch)[2], ("c1".to_owned(), "nobody knows".to_owned()));
    assert_eq!(states(&batch), [(0, StepState::Done), (1, StepState::Unknown)]);
    assert_eq!(run(&batch), (2, Vec::new()));
}

#[test]
fn a_partial_answer_is_not_taken_over_and_the_model_is_called_again() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    world.ask_model(&agent, &turn, 1);
    let (step, attempt, offset, text) = (1, 1, 0, "half an ans".to_owned());
    world.see(Observation::Turn(TurnObservation::ModelText {
        turn: turn.clone(),
        step,
        attempt,
        offset,
        text,
    }));
    world.interrupt(&turn);
    assert!(world.remains(&turn).messages.iter().any(|message| message.body.partial));
    let batch = world.retry(&turn);
    assert_eq!((authors(&batch), states(&batch)), (vec!["user".to_owned()], Vec::new()));
    assert_eq!(run(&batch), (1, Vec::new()));
    let new = turn_of(&batch);
    world.ask_model(&agent, &new, 1);
    world.answer(&new, 1, 1, "whole", &[]);
    assert_eq!(world.state(&new), TurnState::Done);
}

#[test]
fn answers_that_did_not_fit_a_schema_are_left_out_when_none_came_after_them() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    world.ask_model(&agent, &turn, 1);
    let misfit = Some(AnswerMismatch { why: "no JSON".into(), again: AutoRetry::Never });
    let (text, usage) = ("nonsense".to_owned(), Usage::default());
    let answer = ModelAnswer { text, calls: Vec::new(), usage, reasoning: None, misfit };
    let (step, attempt) = (1, 1);
    world.see(Observation::Turn(TurnObservation::ModelAnswered {
        turn: turn.clone(),
        step,
        attempt,
        answer,
    }));
    assert_eq!(world.state(&turn), TurnState::Failed);
    let batch = world.retry(&turn);
    assert_eq!((authors(&batch), run(&batch)), (vec!["user".to_owned()], (1, Vec::new())));
}

#[test]
fn a_compaction_that_the_turn_began_with_is_kept() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    for _ in 0..2 {
        let turn = turn_of(&world.send(&agent, "s", "hi"));
        world.ask_model(&agent, &turn, 1);
        world.answer(&turn, 1, 1, "ok", &[]);
    }
    let turn = turn_of(&world.send(&agent, "s", "more"));
    let ask = RuntimeCall::Compact { turn: turn.clone(), from_turn: 3, strategy: Strategy::Sliding };
    let id = RuntimeCallId(json!("e"));
    world.see(Observation::Turn(TurnObservation::Asked { agent: agent.clone(), id, ask }));
    world.interrupt(&turn);
    let first = world.remains(&turn).epoch.expect("an epoch");
    let batch = world.retry(&turn);
    let again = batch.writes.iter().find_map(|write| match write {
        Write::Session(SessionWrite::Epoch(row)) => Some(row.clone()),
        _ => None,
    });
    assert_eq!(again, Some(EpochRow { number: first.number + 1, ..first }));
    let session = world.engine.sessions.values().next().unwrap();
    assert_eq!((session.epoch.from_turn, session.epoch.number, session.turns), (3, 3, 3));
}

#[test]
fn a_retry_is_refused_while_the_agent_takes_no_turns_and_when_the_session_changed() {
    let (mut world, agent, turn) = four_calls();
    world.interrupt(&turn);
    let stale = fact(&world.engine.sessions[&world.remains(&turn).turn.session]);
    let next = turn_of(&world.send(&agent, "s", "next"));
    world.interrupt(&next);
    let what = SessionOperation::Retry(Box::new(world.remains(&turn)));
    let change = SessionChange { fact: stale, agent_name: "a".into(), agent_removed: false, what };
    let refused = world.ask(None, Command::Session(Box::new(change)));
    assert_eq!((refusal(&refused).as_str(), refused.writes.len()), ("session.changed", 0));
    world.ask(None, Command::Agent(AgentCommand::Stop { id: agent, jobs: RunningJobs::Cancel }));
    let refused = world.retry(&next);
    assert_eq!((refusal(&refused).as_str(), refused.writes.len()), ("agent.not_running", 0));
    assert_eq!(world.remains(&next).messages[0].role, Role::User);
}
