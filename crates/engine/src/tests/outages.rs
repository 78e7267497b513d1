//! Outages of providers: who waits, who tries, and for how long.

use lodge_core::epoch::Strategy;
use lodge_core::lineage::LineageState;
use lodge_core::park::{ParkReason, ProviderWait};

use super::*;
use crate::CallRetry;

const RETRY_FOR_MS: u64 = 600_000;
/// How long turns whose time is over wait for the attempt of another.
const OVERDUE_MS: u64 = 60_000;

/// The model call that a batch orders.
fn call(batch: &Batch) -> Option<&ModelOrder> {
    batch.early.iter().chain(acts(batch)).find_map(|effect| match effect {
        Effect::Model(ModelEffect::Call(order)) => Some(&**order),
        _ => None,
    })
}

fn timer(batch: &Batch) -> Option<(u64, u64)> {
    acts(batch).into_iter().find_map(|effect| match effect {
        Effect::Model(ModelEffect::ProviderTimer { wake, delay_ms, .. }) => Some((*wake, *delay_ms)),
        _ => None,
    })
}

/// The failure that a batch ends a turn with.
fn failure_in(batch: &Batch) -> Option<FailureRecord> {
    batch.writes.iter().find_map(|write| match write {
        Write::Turn(TurnWrite::State { failure: Some(failure), .. }) => Some(failure.clone()),
        _ => None,
    })
}

/// The turns that a batch hands to runtimes.
fn handed(batch: &Batch) -> Vec<TurnId> {
    let runs = acts(batch).into_iter().filter_map(|effect| match effect {
        Effect::Sandbox { what: SandboxEffect::RunTurn { turn, .. }, .. } => Some(turn.clone()),
        _ => None,
    });
    runs.collect()
}

impl EngineWorld {
    fn at(&mut self, ms: i64, seen: Observation) -> Batch {
        let batch = self.engine.step([Input::Seen(seen)], NOW.plus_ms(ms));
        self.keep(&batch);
        batch
    }

    fn fails(&mut self, ms: i64, turn: &TurnId, attempt: u32, retry: CallRetry) -> Batch {
        let record = FailureRecord { code: "model.status".into(), message: "503".into(), hint: None };
        let failure = ModelFailure { record, retry };
        let (turn, step) = (turn.clone(), 1);
        self.at(ms, Observation::Turn(TurnObservation::ModelFailed { turn, step, attempt, failure }))
    }

    /// The provider does not answer and asks for a pause, so that its turn is parked at once.
    fn is_down(&mut self, ms: i64, turn: &TurnId, attempt: u32) -> Batch {
        let retry = CallRetry::Provider { after_ms: Some(5_000), retry_for_ms: RETRY_FOR_MS };
        self.fails(ms, turn, attempt, retry)
    }

    fn provider_is_due(&mut self, ms: i64, wake: u64) -> Batch {
        let provider = "p".to_owned();
        self.at(ms, Observation::Turn(TurnObservation::ProviderDue { provider, wake }))
    }

    fn wait(&self, turn: &TurnId) -> Option<ProviderWait> {
        match self.engine.turns.get(turn)?.row.park.clone()? {
            ParkReason::Provider(wait) => Some(wait),
        }
    }

    /// A turn that runs and has called its model.
    fn turn_with_call(&mut self, agent: &AgentId, session: &str) -> TurnId {
        let turn = turn_of(&self.send(agent, session, "hi"));
        self.ask_model(agent, &turn, 1);
        turn
    }

    /// Another engine, from what was recorded.
    fn restarted(mut self, ms: i64) -> (EngineWorld, Batch) {
        let engine = &self.engine;
        let live = engine.turns.values().map(|turn| {
            let mut steps: Vec<StepRow> = Vec::new();
            for write in &self.written {
                match write {
                    Write::Turn(TurnWrite::Step(row)) if row.turn == turn.row.id => steps.push(row.clone()),
                    Write::Turn(TurnWrite::StepState { turn: of, attempt, .. }) if *of == turn.row.id => {
                        steps.iter_mut().for_each(|row| row.attempt = *attempt);
                    }
                    _ => {}
                }
            }
            LiveTurn { row: turn.row.clone(), steps, calls: Vec::new(), answered: Vec::new(), note: None }
        });
        let loaded = StoredState {
            epoch: 2,
            seq: engine.seq,
            streams: heads(engine),
            agents: engine.agents.values().map(|agent| agent.row.clone()).collect(),
            lineages: engine.agents.values().map(|agent| agent.lineage.clone()).collect(),
            sessions: engine.sessions.values().map(fact).collect(),
            turns: live.collect(),
            ..StoredState::default()
        };
        let host = Host { settings: engine.host.settings, ..host() };
        let (engine, batch) = Engine::boot(loaded, host, IdSource::new(2), "0", NOW.plus_ms(ms));
        self.engine = engine;
        self.keep(&batch);
        (self, batch)
    }
}

#[test]
fn a_short_failure_is_waited_out_with_the_slot_and_a_longer_one_parks_the_turn() {
    let mut world = EngineWorld::with_slots(1);
    let agent = world.agent();
    let turn = world.turn_with_call(&agent, "s");
    let retry = CallRetry::Provider { after_ms: None, retry_for_ms: RETRY_FOR_MS };
    for attempt in [1, 2] {
        let batch = world.fails(0, &turn, attempt, retry);
        let order = call(&batch).expect("it is called again");
        assert_eq!(order.attempt, attempt + 1);
        assert!((1..=1_000).contains(&order.delay_ms), "{}", order.delay_ms);
        assert!(!kinds(&batch).contains(&EventKind::TurnWaiting));
        assert_eq!(world.wait(&turn).map(|wait| (wait.first_ms, wait.failures)), Some((NOW.ms(), attempt)));
    }
    let batch = world.fails(700, &turn, 3, retry);
    assert_eq!(call(&batch), None);
    assert!(kinds(&batch).contains(&EventKind::TurnWaiting));
    assert_eq!(world.state(&turn), TurnState::Waiting);
    assert_eq!(world.engine.sizes().working, 0, "it has no slot");
    let wait = world.wait(&turn).unwrap();
    let (_, delay_ms) = timer(&batch).expect("it is tried again");
    assert_eq!(wait.next_ms, Some(NOW.ms() + 700 + i64::try_from(delay_ms).unwrap()));
    assert_eq!(wait.until(), NOW.plus_ms(RETRY_FOR_MS as i64), "counted from the first failure");
}

#[test]
fn a_parked_turn_gives_its_slot_to_another_agent_and_is_tried_again_when_its_pause_is_over() {
    let mut world = EngineWorld::with_slots(1);
    let (one, two) = (world.agent(), world.agent());
    let turn = world.turn_with_call(&one, "s");
    let other = turn_of(&world.send(&two, "t", "hi"));
    assert_eq!(world.state(&other), TurnState::Queued);
    let batch = world.is_down(0, &turn, 1);
    assert_eq!([&turn, &other].map(|turn| world.state(turn)), [TurnState::Waiting, TurnState::Running]);
    let (wake, delay_ms) = timer(&batch).unwrap();
    assert_eq!(delay_ms, 5_000, "as the provider asked");
    world.at(0, Observation::Turn(TurnObservation::Refused { agent: two, turn: other, why: "x".into() }));
    assert_eq!(world.state(&turn), TurnState::Waiting, "there is a slot, and the pause is not over");
    assert!(handed(&world.provider_is_due(5_000, wake + 7)).is_empty(), "an old timer");
    assert_eq!(handed(&world.provider_is_due(5_000, wake)), std::slice::from_ref(&turn));
    let again = world.ask_model(&one, &turn, 1);
    assert_eq!(call(&again).map(|order| order.attempt), Some(2));
    assert!(kinds(&again).contains(&EventKind::TurnStepRestarted));
    world.answer(&turn, 1, 2, "good", &[]);
    assert_eq!(world.state(&turn), TurnState::Done);
}

#[test]
fn one_turn_tries_for_all_and_all_continue_when_it_is_answered() {
    let mut world = EngineWorld::new();
    let (one, two) = (world.agent(), world.agent());
    let turns =
        [world.turn_with_call(&one, "s"), world.turn_with_call(&two, "t"), world.turn_with_call(&two, "u")];
    let first = world.is_down(0, &turns[0], 1);
    for turn in &turns[1..] {
        let batch = world.is_down(10, turn, 1);
        assert_eq!(timer(&batch), None, "the time of the next attempt is known");
        assert!(kinds(&batch).contains(&EventKind::TurnWaiting));
    }
    // A turn that begins now does not call.
    let late = turn_of(&world.send(&one, "v", "hi"));
    let asked = world.ask_model(&one, &late, 1);
    assert_eq!((call(&asked), world.state(&late)), (None, TurnState::Waiting));
    assert_eq!(world.wait(&late).map(|wait| wait.failed_ms), Some(None));
    let due = world.provider_is_due(5_000, timer(&first).unwrap().0);
    assert_eq!(handed(&due), std::slice::from_ref(&late), "the one that did not fail");
    world.ask_model(&one, &late, 1);
    let failed = world.is_down(5_100, &late, 1);
    let next = timer(&failed).unwrap();
    for turn in turns.iter().chain([&late]) {
        assert_eq!(world.wait(turn).unwrap().next_ms, Some(NOW.ms() + 10_100), "all wait for the same time");
    }
    let due = world.provider_is_due(10_100, next.0);
    assert_eq!(handed(&due), std::slice::from_ref(&turns[0]), "the one that failed longest ago");
    world.ask_model(&one, &turns[0], 1);
    let text = TurnObservation::ModelText {
        turn: turns[0].clone(),
        step: 1,
        attempt: 2,
        offset: 0,
        text: "a".into(),
    };
    let batch = world.at(10_200, Observation::Turn(text));
    assert_eq!(handed(&batch).len(), 3, "its answer has begun");
    assert!(turns.iter().chain([&late]).all(|turn| world.state(turn) == TurnState::Running));
}

#[test]
fn a_failure_of_one_turn_alone_does_not_hold_up_another() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let bad = world.turn_with_call(&agent, "s");
    world.is_down(0, &bad, 1);
    let good = turn_of(&world.send(&agent, "t", "hi"));
    assert!(call(&world.ask_model(&agent, &good, 1)).is_some(), "it finds out at once");
    let third = turn_of(&world.send(&agent, "u", "hi"));
    assert_eq!(call(&world.ask_model(&agent, &third, 1)), None, "and one is enough");
    world.answer(&good, 1, 1, "fine", &[]);
    assert_eq!([&bad, &third].map(|turn| world.state(turn)), [TurnState::Running; 2]);
    assert_eq!(world.wait(&bad).map(|wait| wait.first_ms), Some(NOW.ms()), "its own time goes on");
}

#[test]
fn the_first_failure_after_the_time_for_retries_ends_the_turn_and_says_how_long_was_tried() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = world.turn_with_call(&agent, "s");
    let until = RETRY_FOR_MS as i64;
    let retry = CallRetry::Provider { after_ms: Some(RETRY_FOR_MS), retry_for_ms: RETRY_FOR_MS };
    let (wake, delay_ms) = timer(&world.fails(0, &turn, 1, retry)).unwrap();
    assert_eq!(delay_ms, RETRY_FOR_MS);
    assert_eq!(handed(&world.provider_is_due(until, wake)), std::slice::from_ref(&turn), "one more attempt");
    world.ask_model(&agent, &turn, 1);
    let batch = world.fails(until, &turn, 2, retry);
    let failure = failure_in(&batch).expect("the turn failed");
    assert_eq!((failure.code.as_str(), failure.message.as_str()), ("model.status", "503 (tried for 10 min)"));
    // How it can be continued depends on its place in the session when a person reads this.
    assert_eq!(failure.hint, None);
    assert_eq!(timer(&batch), None);
    assert!(world.engine.outages.is_empty());
}

#[test]
fn a_turn_ends_at_its_time_if_the_provider_asks_for_a_longer_pause_and_the_pause_stays() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = world.turn_with_call(&agent, "s");
    let until = RETRY_FOR_MS as i64;
    let retry = CallRetry::Provider { after_ms: Some(3_600_000), retry_for_ms: RETRY_FOR_MS };
    let (wake, delay_ms) = timer(&world.fails(0, &turn, 1, retry)).unwrap();
    assert_eq!(delay_ms, RETRY_FOR_MS, "the turn's time is over first");
    assert_eq!(world.wait(&turn).unwrap().next_ms, Some(NOW.ms() + 3_600_000), "as the provider asked");
    let other = world.turn_with_call(&agent, "t");
    assert!(timer(&world.fails(until - 1_000, &other, 1, retry)).is_some());

    let batch = world.provider_is_due(until, wake);
    assert_eq!(failure_in(&batch), None, "an old timer: the second failure set a later one");
    let batch = world.provider_is_due(until, world.engine.asks);
    let failure = failure_in(&batch).expect("the turn failed");
    assert_eq!(failure.message, "503 (tried for 10 min)");
    assert_eq!((handed(&batch), call(&batch)), (Vec::new(), None), "without a call");
    let next_ms = Some(NOW.ms() + until - 1_000 + 3_600_000);
    assert_eq!(world.wait(&other).unwrap().next_ms, next_ms, "the other one waits as long as before");
    assert_eq!(timer(&batch).map(|(_, delay_ms)| delay_ms), Some(RETRY_FOR_MS - 1_000));
}

#[test]
fn turns_whose_time_ends_do_not_shorten_the_pauses_of_a_provider() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let until = RETRY_FOR_MS as i64;
    let early = world.turn_with_call(&agent, "s");
    world.is_down(0, &early, 1);
    let late = world.turn_with_call(&agent, "t");
    let batch = world.is_down(until - 2_000, &late, 1);
    let (wake, delay_ms) = timer(&batch).unwrap();
    assert_eq!(delay_ms, 2_000, "one turn's time ends");
    let batch = world.provider_is_due(until, wake);
    assert!(failure_in(&batch).is_some() && !world.engine.turns.contains_key(&early));
    assert!(handed(&batch).is_empty(), "and no attempt is made before its time");
    let (wake, delay_ms) = timer(&batch).unwrap();
    assert_eq!(delay_ms, 3_000);
    assert_eq!(handed(&world.provider_is_due(until + 3_000, wake)), [late]);
}

#[test]
fn a_call_that_always_fails_after_its_first_text_is_repeated_with_growing_pauses() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = world.turn_with_call(&agent, "s");
    let retry = CallRetry::Provider { after_ms: None, retry_for_ms: RETRY_FOR_MS };
    let (mut ms, mut attempt) = (0, 1);
    for failures in 1..=6 {
        let text =
            TurnObservation::ModelText { turn: turn.clone(), step: 1, attempt, offset: 0, text: "a".into() };
        world.at(ms, Observation::Turn(text));
        assert!(world.engine.outages.is_empty(), "its answer has begun");
        let batch = world.fails(ms, &turn, attempt, retry);
        assert_eq!(world.wait(&turn).map(|wait| wait.failures), Some(failures));
        if let Some(order) = call(&batch) {
            (attempt, ms) = (order.attempt, ms + i64::try_from(order.delay_ms).unwrap());
            continue;
        }
        let (wake, delay_ms) = timer(&batch).expect("it is tried again");
        assert!(delay_ms >= 250 << (failures - 1), "{failures}: {delay_ms}");
        ms += i64::try_from(delay_ms).unwrap();
        world.provider_is_due(ms, wake);
        let again = world.ask_model(&agent, &turn, 1);
        attempt = call(&again).expect("it is called again").attempt;
    }
}

#[test]
fn a_turn_whose_summary_used_up_the_time_goes_on_without_it_and_its_own_call_is_the_last() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let first = world.turn_with_call(&agent, "s");
    world.answer(&first, 1, 1, "yes", &[]);
    let turn = world.turn_with_call(&agent, "s");
    let (wake, _) = timer(&world.is_down(0, &turn, 1)).unwrap();
    let until = RETRY_FOR_MS as i64;
    world.provider_is_due(until, wake);
    let ask = RuntimeCall::Compact { turn: turn.clone(), from_turn: 2, strategy: Strategy::Summarize };
    let id = RuntimeCallId(json!("e"));
    let batch = world.at(until, Observation::Turn(TurnObservation::Asked { agent: agent.clone(), id, ask }));
    assert_eq!(call(&batch).map(|order| order.step), Some(0));
    let record = FailureRecord { code: "model.status".into(), message: "503".into(), hint: None };
    let retry = CallRetry::Provider { after_ms: None, retry_for_ms: RETRY_FOR_MS };
    let failure = ModelFailure { record, retry };
    let failed = TurnObservation::ModelFailed { turn: turn.clone(), step: 0, attempt: 1, failure };
    world.at(until, Observation::Turn(failed));
    let wait = world.wait(&turn).expect("the first failure is still known");
    assert_eq!((wait.first_ms, wait.is_held()), (NOW.ms(), false), "the turn runs, so it does not wait");
    assert!(world.engine.outages.is_empty());

    assert!(call(&world.ask_model(&agent, &turn, 1)).is_some(), "its own call is made");
    world.fails(until, &turn, 2, retry);
    assert!(!world.engine.turns.contains_key(&turn), "the turn failed");
}

#[test]
fn without_time_for_retries_and_for_a_final_failure_the_turn_fails_at_once() {
    for retry in [CallRetry::Provider { after_ms: None, retry_for_ms: 0 }, CallRetry::Never] {
        let mut world = EngineWorld::new();
        let agent = world.agent();
        let turn = world.turn_with_call(&agent, "s");
        let batch = world.fails(0, &turn, 1, retry);
        assert_eq!((world.state(&turn), call(&batch)), (TurnState::Failed, None));
        assert!(!kinds(&batch).contains(&EventKind::TurnWaiting));
        assert!(world.engine.outages.is_empty());
    }
}

#[test]
fn the_time_of_each_turn_is_its_own_and_ends_with_an_attempt_of_another() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let (first, second) = (world.turn_with_call(&agent, "s"), world.turn_with_call(&agent, "t"));
    let until = RETRY_FOR_MS as i64;
    world.is_down(0, &first, 1);
    world.is_down(until - 2_000, &second, 1);
    let wake = world.engine.asks;
    let batch = world.provider_is_due(until - 1_500, wake);
    assert_eq!(handed(&batch), std::slice::from_ref(&first));
    world.at(
        until - 1_400,
        Observation::Turn(TurnObservation::Refused { agent: agent.clone(), turn: first, why: "x".into() }),
    );
    assert_eq!(world.state(&second), TurnState::Running, "the next one tries at once");
}

#[test]
fn a_parked_turn_can_be_interrupted_and_ends_with_its_agent() {
    for how in ["interrupt", "stop", "probe"] {
        let mut world = EngineWorld::new();
        let agent = world.agent();
        let turn = world.turn_with_call(&agent, "s");
        world.is_down(0, &turn, 1);
        let behind = world.turn_with_call(&agent, "t");
        let parked = world.is_down(0, &behind, 1);
        match how {
            "interrupt" => drop(world.ask(None, Command::Turn(TurnCommand::Interrupt { id: turn.clone() }))),
            "stop" => {
                let stop = AgentCommand::Stop { id: agent.clone(), jobs: RunningJobs::Cancel };
                drop(world.ask(None, Command::Agent(stop)));
                assert_eq!(world.state(&behind), TurnState::Interrupted);
                assert!(world.engine.outages.is_empty(), "nobody waits");
            }
            "probe" => {
                let due = world.provider_is_due(5_000, timer(&parked).unwrap().0);
                assert_eq!(handed(&due), std::slice::from_ref(&turn));
                let batch = world.ask(None, Command::Turn(TurnCommand::Interrupt { id: turn.clone() }));
                assert_eq!(handed(&batch), std::slice::from_ref(&behind), "another one tries");
            }
            other => panic!("nothing is {other}"),
        }
        assert_eq!(world.state(&turn), TurnState::Interrupted, "{how}");
    }
}

#[test]
fn the_next_daemon_waits_for_the_same_time_and_ends_the_turn_at_the_same_time() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = world.turn_with_call(&agent, "s");
    world.is_down(0, &turn, 1);
    let before = world.wait(&turn);
    // One second later; and a day earlier, by a clock that was set back.
    for (ms, expected) in [(1_000, 4_000), (60_000, 0), (-86_400_000, RETRY_FOR_MS)] {
        let (next, batch) = world.restarted(ms);
        world = next;
        assert_eq!((world.state(&turn), world.wait(&turn)), (TurnState::Waiting, before.clone()));
        assert_eq!(timer(&batch).map(|(_, delay_ms)| delay_ms), Some(expected), "{ms}");
    }
    world.ready(&agent);
    assert_eq!(world.state(&turn), TurnState::Waiting, "its agent is ready, its provider is not");
    let wake = world.engine.asks;
    assert_eq!(handed(&world.provider_is_due(6_000, wake)), std::slice::from_ref(&turn));
    assert_eq!(call(&world.ask_model(&agent, &turn, 1)).map(|order| order.attempt), Some(2));
    let (mut world, batch) = world.restarted(7_000);
    assert_eq!(timer(&batch), None, "it was trying");
    world.ready(&agent);
    assert!(call(&world.ask_model(&agent, &turn, 1)).is_some(), "and tries again");
    world.fails(
        RETRY_FOR_MS as i64,
        &turn,
        world.engine.turns[&turn].newest_call().unwrap().1,
        CallRetry::Provider { after_ms: None, retry_for_ms: RETRY_FOR_MS },
    );
    assert_eq!(world.state(&turn), TurnState::Failed);
}

#[test]
fn changed_providers_are_tried_at_once() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = world.turn_with_call(&agent, "s");
    world.is_down(0, &turn, 1);
    let batch = world.at(10, Observation::ProvidersChanged);
    assert_eq!(handed(&batch), std::slice::from_ref(&turn));
}

#[test]
fn a_turn_ends_at_its_time_also_while_the_attempt_of_another_hangs() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let (first, second) = (world.turn_with_call(&agent, "s"), world.turn_with_call(&agent, "t"));
    world.is_down(0, &first, 1);
    let batch = world.is_down(10, &second, 1);
    assert_eq!(timer(&batch), None);
    let due = world.provider_is_due(5_000, world.engine.asks);
    assert_eq!(handed(&due), std::slice::from_ref(&first));
    let (wake, delay_ms) = timer(&due).expect("the second turn ends at its own time");
    assert_eq!(delay_ms, RETRY_FOR_MS + 10 - 5_000);
    world.ask_model(&agent, &first, 1);
    let batch = world.provider_is_due(RETRY_FOR_MS as i64 + 10, wake);
    assert!(failure_in(&batch).is_some() && !world.engine.turns.contains_key(&second));
    assert_eq!(world.state(&first), TurnState::Running, "its call is in flight");
}

#[test]
fn a_turn_that_has_a_slot_tries_before_one_that_waits_for_a_slot() {
    let mut world = EngineWorld::with_slots(2);
    let (one, two, busy) = (world.agent(), world.agent(), world.agent());
    // Both fail and are parked; then the slots of the first go to an agent that does not call.
    let waiting = world.turn_with_call(&one, "s");
    let trying = world.turn_with_call(&two, "t");
    world.is_down(0, &waiting, 1);
    turn_of(&world.send(&busy, "u", "hi"));
    world.is_down(10, &trying, 1);
    turn_of(&world.send(&two, "v", "hi"));
    assert_eq!(world.engine.sizes().working, 2);
    let due = world.provider_is_due(5_000, world.engine.asks);
    assert_eq!(handed(&due), [trying], "although the other one failed earlier");
}

#[test]
fn a_turn_that_runs_tries_in_place_of_one_that_waits_for_a_slot() {
    let mut world = EngineWorld::with_slots(1);
    let (one, two) = (world.agent(), world.agent());
    let parked = world.turn_with_call(&one, "s");
    let busy = turn_of(&world.send(&two, "t", "hi"));
    world.is_down(0, &parked, 1);
    assert_eq!(world.state(&busy), TurnState::Running);
    assert!(handed(&world.provider_is_due(5_000, world.engine.asks)).is_empty(), "no slot is free");
    assert!(call(&world.ask_model(&two, &busy, 1)).is_some(), "it has the slot");
}

#[test]
fn the_time_that_was_waited_for_one_provider_does_not_count_for_another() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = world.turn_with_call(&agent, "s");
    world.is_down(0, &turn, 1);
    if let Some(agent) = world.engine.agents.get_mut(&agent) {
        agent.row.spec.model = "other/m".to_owned();
    }
    world.engine.outages.model_changed();
    let late = RETRY_FOR_MS as i64 - 1_000;
    assert_eq!(handed(&world.at(late, Observation::ProvidersChanged)), std::slice::from_ref(&turn));
    world.ask_model(&agent, &turn, 1);
    world.is_down(late, &turn, 2);
    let wait = world.wait(&turn).expect("it waits for the other provider");
    assert_eq!((wait.provider.as_str(), wait.first_ms, wait.failures), ("other", NOW.ms() + late, 1));
}

#[test]
fn a_turn_whose_agent_has_another_provider_since_does_not_try_for_the_others() {
    let mut world = EngineWorld::with_slots(1);
    let (one, two, busy) = (world.agent(), world.agent(), world.agent());
    let changed = world.turn_with_call(&one, "s");
    world.is_down(0, &changed, 1);
    let waiting = world.turn_with_call(&two, "t");
    world.is_down(10, &waiting, 1);
    turn_of(&world.send(&busy, "u", "hi"));
    // Both wait for the slot, the first one to try for both.
    assert!(handed(&world.provider_is_due(5_000, world.engine.asks)).is_empty(), "no slot is free");
    if let Some(agent) = world.engine.agents.get_mut(&one) {
        agent.row.spec.model = "other/m".to_owned();
    }
    world.engine.outages.model_changed();
    let batch = world.at(5_010, Observation::Configured(settings(3)));
    let running = handed(&batch);
    assert!(running.contains(&changed) && running.contains(&waiting), "{running:?}");
}

#[test]
fn a_turn_that_never_called_has_all_of_its_time_after_an_outage() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    for session in ["s", "t"] {
        let failed = world.turn_with_call(&agent, session);
        world.is_down(0, &failed, 1);
    }
    let [trying, waiting] = ["u", "v"].map(|session| turn_of(&world.send(&agent, session, "hi")));
    for turn in [&trying, &waiting] {
        assert_eq!(call(&world.ask_model(&agent, turn, 1)), None);
    }
    let due = world.provider_is_due(5_000, world.engine.asks);
    assert_eq!(handed(&due), std::slice::from_ref(&trying));
    world.ask_model(&agent, &trying, 1);
    world.answer(&trying, 1, 1, "fine", &[]);
    // It calls for the first time after its wait for a slot, and meets another outage.
    assert!(call(&world.ask_model(&agent, &waiting, 1)).is_some());
    world.is_down(RETRY_FOR_MS as i64 + 1, &waiting, 1);
    assert_eq!(world.state(&waiting), TurnState::Waiting);
}

#[test]
fn turns_whose_time_ended_while_the_daemon_was_away_wait_for_the_attempt_of_one() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turns = ["s", "t", "u"].map(|session| world.turn_with_call(&agent, session));
    for turn in &turns {
        world.is_down(0, turn, 1);
    }
    let night = 8 * 3_600_000;
    let (mut world, batch) = world.restarted(night);
    let due = world.provider_is_due(night, timer(&batch).expect("it is tried at once").0);
    assert_eq!(failure_in(&due), None);
    let (wake, delay_ms) = timer(&due).expect("the attempt may take long");
    assert_eq!(delay_ms, OVERDUE_MS);
    let [tries] = &handed(&due)[..] else { panic!("one tries for all") };
    // Whatever happens meanwhile does not extend it.
    assert_eq!(timer(&world.at(night + 20, Observation::Configured(settings(9)))), None);
    world.provider_is_due(night + OVERDUE_MS as i64, wake);
    assert_eq!(
        world.engine.turns.keys().collect::<Vec<_>>(),
        [tries],
        "they wait for one attempt, and no longer"
    );
}

#[test]
fn a_turn_that_an_operator_has_to_decide_about_does_not_end_meanwhile() {
    let mut world = EngineWorld::new();
    let (asked, other) = (world.agent_with(Policy::Ask), world.agent());
    let (undecided, trying) = (world.turn_with_call(&asked, "s"), world.turn_with_call(&other, "t"));
    let (wake, _) = timer(&world.is_down(0, &undecided, 1)).expect("it is tried again");
    world.is_down(10, &trying, 1);
    world.die(&asked, AgentComponent::Sandbox);
    assert_eq!(world.engine.agents[&asked].lineage.state, LineageState::AskPending);
    assert_eq!(handed(&world.provider_is_due(5_000, wake)), std::slice::from_ref(&trying));
    world.ask_model(&other, &trying, 1);
    world.is_down(RETRY_FOR_MS as i64 + 10, &trying, 2);
    assert!(!world.engine.turns.contains_key(&trying), "its time is over");
    assert_eq!(world.state(&undecided), TurnState::Waiting);
}

#[test]
fn text_that_people_saw_before_an_outage_stays_when_the_turn_is_interrupted() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = world.turn_with_call(&agent, "s");
    let text = TurnObservation::ModelText {
        turn: turn.clone(),
        step: 1,
        attempt: 1,
        offset: 0,
        text: "half an ans".into(),
    };
    world.at(0, Observation::Turn(text));
    world.is_down(10, &turn, 1);
    assert_eq!(world.state(&turn), TurnState::Waiting);
    let batch = world.ask(None, Command::Turn(TurnCommand::Interrupt { id: turn }));
    let kept = batch.writes.iter().find_map(|write| match write {
        Write::Turn(TurnWrite::Message(row)) => Some((row.body.text.as_str(), row.body.partial, row.step)),
        _ => None,
    });
    assert_eq!(kept, Some(("half an ans", true, 1)));
}
