//! Answers that do not fit their schema.

use lodge_core::limits::MISFITS_MAX;
use lodge_core::record::{Role, TurnWrite};

use super::*;
use crate::{SandboxEffect, TurnObservation};

impl EngineWorld {
    fn misfit(&mut self, turn: &TurnId, step: u32) -> Batch {
        self.misfit_that(turn, step, AutoRetry::Later)
    }

    fn misfit_that(&mut self, turn: &TurnId, step: u32, again: AutoRetry) -> Batch {
        let answer = ModelAnswer {
            text: "no json".into(),
            calls: Vec::new(),
            usage: Usage { input_tokens: 3, output_tokens: 2, ..Usage::default() },
            reasoning: None,
            misfit: Some(AnswerMismatch { why: "it is not JSON".into(), again }),
        };
        self.see(Observation::Turn(TurnObservation::ModelAnswered {
            turn: turn.clone(),
            step,
            attempt: 1,
            answer,
        }))
    }

    fn told(&self, turn: &TurnId) -> Vec<(Role, String)> {
        let messages = self.written.iter().filter_map(|write| match write {
            Write::Turn(TurnWrite::Message(row)) if row.turn == *turn => {
                Some((row.role, row.body.text.clone()))
            }
            _ => None,
        });
        messages.collect()
    }
}

fn runtime_hears(batch: &Batch) -> Result<RuntimeAnswer, String> {
    let mut answers = acts(batch).into_iter().filter_map(|effect| match effect {
        Effect::Sandbox { what: SandboxEffect::Answer { answer, .. }, .. } => {
            Some(answer.clone().map_err(|refusal| refusal.code().to_owned()))
        }
        _ => None,
    });
    answers.next_back().expect("the runtime is answered")
}

#[test]
fn an_answer_that_does_not_fit_is_kept_and_the_model_is_asked_again_as_the_next_step() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    world.ask_model(&agent, &turn, 1);
    let misfit = world.misfit(&turn, 1);
    assert!(misfit.urgent);
    let more = Ok(RuntimeAnswer::Model { finished: false, calls: Vec::new() });
    assert_eq!(runtime_hears(&misfit), more);
    // The same question again, after a reconnect, has the same answer.
    assert_eq!(runtime_hears(&world.ask_model(&agent, &turn, 1)), more);
    world.ask_model(&agent, &turn, 2);
    world.answer(&turn, 2, 1, "{}", &[]);
    assert_eq!(world.state(&turn), TurnState::Done);
    let told = world.told(&turn);
    let roles: Vec<Role> = told.iter().map(|(role, _)| *role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant, Role::User, Role::Assistant]);
    assert!(told[2].1.contains("does not fit the JSON schema: it is not JSON"), "{}", told[2].1);
}

#[test]
fn a_model_that_never_fits_fails_the_turn_with_the_reason() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    for step in 1..=MISFITS_MAX {
        let step = u32::try_from(step).unwrap();
        world.ask_model(&agent, &turn, step);
        let misfit = world.misfit(&turn, step);
        assert_eq!(runtime_hears(&misfit).is_err(), step as usize == MISFITS_MAX, "step {step}");
    }
    assert_eq!(world.state(&turn), TurnState::Failed);
    let failure = world.written.iter().rev().find_map(|write| match write {
        Write::Turn(TurnWrite::State { failure, .. }) => failure.clone(),
        _ => None,
    });
    let failure = failure.expect("a failure is recorded");
    assert_eq!(failure.code, "turn.schema_mismatch");
    assert!(failure.message.contains("it is not JSON"), "{}", failure.message);
}

#[test]
fn a_new_daemon_goes_on_after_the_misfits_that_were_recorded() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    world.ask_model(&agent, &turn, 1);
    world.misfit(&turn, 1);
    let row = world.engine.turns[&turn].row.clone();
    let step = world.written.iter().find_map(|write| match write {
        Write::Turn(TurnWrite::Step(row)) => Some(StepRow { state: StepState::Failed, ..row.clone() }),
        _ => None,
    });
    let live =
        LiveTurn { row, steps: vec![step.unwrap()], calls: Vec::new(), answered: Vec::new(), note: None };
    let taken = Turn::from_live(live);
    assert_eq!((taken.misfits, taken.resume_point()), (1, (2, Vec::new())));
}

#[test]
fn a_check_that_was_given_up_fails_the_turn_at_once() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    world.ask_model(&agent, &turn, 1);
    let batch = world.misfit_that(&turn, 1, AutoRetry::Never);
    assert_eq!(runtime_hears(&batch), Err("turn.failed".to_owned()));
    assert_eq!(world.state(&turn), TurnState::Failed);
    let failed = batch.events().find(|row| row.body.kind() == EventKind::TurnFailed).unwrap();
    assert_eq!(failed.body.data()["code"], "turn.schema_not_checked");
}
