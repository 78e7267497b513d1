//! Reports to sessions about ended jobs.

use lodge_core::limits::{JOBS_UNTOLD_MAX, NOTE_JOBS_MAX};
use lodge_core::record::{MessageBody, TurnWrite};
use lodge_core::session::PathPlan;

use super::*;
use crate::{JobCommand, TurnCommand};

/// The note of the turn that starts with this batch.
fn note(batch: &Batch) -> Option<String> {
    let mut notes = batch.writes.iter().filter_map(|write| match write {
        Write::Turn(TurnWrite::Note { note, .. }) => Some(note.clone()),
        _ => None,
    });
    let begins = batch.events().any(|event| event.body.kind() == EventKind::TurnStarted);
    assert!(begins, "no turn begins");
    notes.next()
}

impl EngineWorld {
    /// The note of a turn in a session at rest. The session is at rest again afterwards.
    fn note_of_next(&mut self, agent: &AgentId, session: &str) -> Option<String> {
        let batch = self.send(agent, session, "hi");
        self.ask(None, Command::Turn(TurnCommand::Interrupt { id: turn_of(&batch) }));
        note(&batch)
    }
}

#[test]
fn a_session_is_informed_once_of_each_of_its_jobs_that_ended_by_itself() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let (ended, failed, runs) =
        (world.job_in(&agent, "s"), world.job_in(&agent, "s"), world.job_in(&agent, "s"));
    let (foreign, nobodys) = (world.job_in(&agent, "t"), world.job(&agent));
    for job in [&ended, &foreign, &nobodys] {
        world.job_done(job);
    }
    world.job_ends(&failed, silent(ExecOutcome::NotStarted));
    let told = world.note_of_next(&agent, "s").expect("there is something to tell");
    assert!(
        told.contains(&format!("{ended} (sh): done, exit code 0, 5 bytes of stdout, 0 of stderr")),
        "{told}"
    );
    assert!(told.contains(&format!("{failed} (sh): error: it could not be started")), "{told}");
    for job in [&runs, &foreign, &nobodys] {
        assert!(!told.contains(job.as_str()), "{told}");
    }
    assert_eq!(world.note_of_next(&agent, "s"), None);
    world.cancel_job(&runs);
    world.job_ends(&runs, exited(0));
    let told = world.note_of_next(&agent, "s").unwrap();
    assert!(told.contains("cancelled: cancelled on request") && !told.contains(ended.as_str()), "{told}");
}

#[test]
fn what_was_to_be_reported_is_reported_by_the_next_daemon_and_not_by_the_one_after() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let job = world.job_in(&agent, "s");
    world.job_done(&job);
    let (mut world, _) = world.reboot();
    world.ready(&agent);
    assert!(world.note_of_next(&agent, "s").unwrap().contains(job.as_str()));
    let (mut world, _) = world.reboot();
    world.ready(&agent);
    assert_eq!(world.note_of_next(&agent, "s"), None);
}

#[test]
fn what_a_tool_reported_is_not_reported_again() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let job = world.job_in(&agent, "s");
    let turn = world.calling(&agent, "s", "job_wait");
    world.wish(&agent, &turn, JobToolRequest::Wait { job: job.clone() });
    world.job_done(&job);
    let asked = ToolCallRef { turn: turn.clone(), step: 1, call: "c1".into() };
    world.read_answers(asked, "it is done", &[&job]);
    world.ask(None, Command::Turn(TurnCommand::Interrupt { id: turn }));
    assert_eq!(world.note_of_next(&agent, "s"), None);
}

#[test]
fn what_a_turn_may_still_ask_for_is_reported_to_the_next_one_only_if_nobody_did_by_its_begin() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let (told, cut) = (world.job_in(&agent, "s"), world.job_in(&agent, "s"));
    let turn = world.calling(&agent, "s", "job_watch");
    // Both are over before the runtime comes with its call; the other message is there before the answer.
    world.job_done(&told);
    world.job_done(&cut);
    let behind = turn_of(&world.send(&agent, "s", "behind it"));
    world.wish(&agent, &turn, JobToolRequest::Watch { job: told.clone() });
    let asked = ToolCallRef { turn: turn.clone(), step: 1, call: "c1".into() };
    world.read_answers(asked, "it is done", &[&told]);
    let (mut world, _) = world.reboot();
    let begins = world.ask(None, Command::Turn(TurnCommand::Interrupt { id: turn }));
    let next = note(&begins).expect("nobody told of one of them");
    assert!(next.contains(cut.as_str()) && !next.contains(told.as_str()), "{next}");
    world.ask(None, Command::Turn(TurnCommand::Interrupt { id: behind }));
    assert_eq!(world.note_of_next(&agent, "s"), None);
}

#[test]
fn a_turn_that_never_started_got_no_note() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let job = world.job_in(&agent, "s");
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    world.job_done(&job);
    let behind = turn_of(&world.send(&agent, "s", "behind it"));
    world.ask(None, Command::Turn(TurnCommand::Interrupt { id: behind }));
    world.ask(None, Command::Turn(TurnCommand::Interrupt { id: turn }));
    assert!(world.note_of_next(&agent, "s").unwrap().contains(job.as_str()));
}

#[test]
fn a_note_is_part_of_what_the_conversation_weighs() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let job = world.job_in(&agent, "s");
    world.job_done(&job);
    let told = note(&world.send(&agent, "s", "hi"));
    world.send(&agent, "t", "hi");
    let weight = |name: &str| world.engine.sessions[&session(name)].epoch.weight(1).bytes;
    let body = |note| MessageBody { text: "hi".into(), note, ..MessageBody::default() };
    assert_eq!((weight("s"), weight("t")), (body(told).weight(), body(None).weight()));
}

#[test]
fn many_jobs_are_counted_and_all_of_them_are_reported() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    for _ in 0..NOTE_JOBS_MAX + 3 {
        let job = world.job_in(&agent, "s");
        world.job_done(&job);
    }
    let told = world.note_of_next(&agent, "s").unwrap();
    assert_eq!(told.matches("(sh): done").count(), NOTE_JOBS_MAX);
    assert!(told.contains("and 3 more"), "{told}");
    assert_eq!(world.engine.sizes().jobs.held, 0);
    assert_eq!(world.note_of_next(&agent, "s"), None);
}

#[test]
fn a_regenerated_turn_gets_the_note_of_the_original() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let job = world.job_in(&agent, "s");
    world.job_done(&job);
    let batch = world.send(&agent, "s", "hi");
    let (turn, told) = (turn_of(&batch), note(&batch));
    world.ask(None, Command::Turn(TurnCommand::Interrupt { id: turn.clone() }));
    let late = world.job_in(&agent, "s");
    world.job_done(&late);
    let fact = fact(&world.engine.sessions[&session("s")]);
    let plan = PathPlan { from: 1, turns: 0, tip: None, epoch: Default::default(), restored: Vec::new() };
    let again = TurnRegeneration { turn, text: "hi".into(), schema: None, note: told, plan };
    let change = SessionChange {
        fact,
        agent_name: "a".into(),
        agent_removed: false,
        what: SessionOperation::Regenerate(Box::new(again)),
    };
    let told = note(&world.ask(None, Command::Session(Box::new(change)))).unwrap();
    assert!(told.contains(job.as_str()) && told.contains(late.as_str()), "{told}");
    let weighs = world.engine.sessions[&session("s")].epoch.weight(1).bytes;
    let body = MessageBody { text: "hi".into(), note: Some(told), ..MessageBody::default() };
    assert_eq!(weighs, body.weight());
}

#[test]
fn a_deleted_session_hears_of_nothing_and_one_that_begins_again_neither() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    world.ask(None, Command::Turn(TurnCommand::Interrupt { id: turn }));
    let (ended, runs) = (world.job_in(&agent, "s"), world.job_in(&agent, "s"));
    world.job_done(&ended);
    let fact = fact(&world.engine.sessions[&session("s")]);
    let (agent_name, what) = ("a".to_owned(), SessionOperation::Delete);
    let change = SessionChange { fact, agent_name, agent_removed: false, what };
    world.ask(None, Command::Session(Box::new(change)));
    assert_eq!(world.job_state(&runs), JobState::Running, "jobs stay");
    world.job_done(&runs);
    assert_eq!(world.engine.sizes().jobs.held, 0);
    assert_eq!(world.note_of_next(&agent, "s"), None);
}

#[test]
fn jobs_that_nobody_asks_about_cost_bounded_memory() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let mut first = None;
    for number in 0..JOBS_UNTOLD_MAX + 2 {
        // Each is older than the next.
        let at = Timestamp::from_ms(1_000 + i64::try_from(number).unwrap());
        let new = NewJob { agent: agent.clone(), session: Some(session("s")), work: work("sh") };
        let command = Command::Job(JobCommand::Submit(Box::new(new)));
        let batch = world.engine.step([Input::Api { ticket: 1, request: None, command }], at);
        world.keep(&batch);
        let job = job_of(&batch);
        world.job_done(&job);
        first.get_or_insert(job);
    }
    assert_eq!(world.engine.sizes().jobs.untold, JOBS_UNTOLD_MAX);
    assert!(world.job_row(&first.unwrap()).told, "the oldest is let go");
    let (world, _) = world.reboot();
    assert_eq!(world.engine.sizes().jobs.held, JOBS_UNTOLD_MAX);
}
