//! What sessions are told of jobs that ended.

use lodge_core::limits::{JOBS_UNTOLD_MAX, NOTE_JOBS_MAX};
use lodge_core::session::PathPlan;

use super::*;

fn note(batch: &Batch) -> Option<String> {
    let mut notes = batch.writes.iter().filter_map(|write| match write {
        Write::Message(message) if message.role == Role::User => Some(message.body.note.clone()),
        _ => None,
    });
    notes.next().expect("there is a user's message")
}

#[test]
fn a_session_is_told_once_of_each_of_its_jobs_that_ended_by_itself() {
    let mut world = World::new();
    let agent = world.agent();
    let (ended, failed, runs) =
        (world.job_in(&agent, "s"), world.job_in(&agent, "s"), world.job_in(&agent, "s"));
    let (foreign, nobodys) = (world.job_in(&agent, "t"), world.job(&agent));
    for job in [&ended, &foreign, &nobodys] {
        world.job_done(job);
    }
    world.job_ends(&failed, silent(ExecHow::NotStarted));
    let told = note(&world.send(&agent, "s", "hi")).expect("there is something to tell");
    assert!(
        told.contains(&format!("{ended} (sh): done, exit code 0, 5 bytes of stdout, 0 of stderr")),
        "{told}"
    );
    assert!(told.contains(&format!("{failed} (sh): error: it could not be started")), "{told}");
    for job in [&runs, &foreign, &nobodys] {
        assert!(!told.contains(job.as_str()), "{told}");
    }
    assert_eq!(note(&world.send(&agent, "s", "and?")), None);
    world.cancel_job(&runs);
    world.job_ends(&runs, exited(0));
    let told = note(&world.send(&agent, "s", "now?")).unwrap();
    assert!(told.contains("cancelled: cancelled on request") && !told.contains(ended.as_str()), "{told}");
}

#[test]
fn what_was_to_be_told_is_told_by_the_next_daemon_and_not_by_the_one_after() {
    let mut world = World::new();
    let agent = world.agent();
    let job = world.job_in(&agent, "s");
    world.job_done(&job);
    let (mut world, _) = world.reboot();
    assert!(note(&world.send(&agent, "s", "hi")).unwrap().contains(job.as_str()));
    let (mut world, _) = world.reboot();
    assert_eq!(note(&world.send(&agent, "s", "hi")), None);
}

#[test]
fn what_a_tool_told_is_not_told_again() {
    let mut world = World::new();
    let agent = world.agent();
    let job = world.job_in(&agent, "s");
    let turn = world.calling(&agent, "s", "job_wait");
    world.wish(&agent, &turn, JobWish::Wait { job: job.clone() });
    world.job_done(&job);
    let asked = Asked { turn: turn.clone(), step: 1, call: "c1".into() };
    world.read_answers(asked, "it is done", &[&job]);
    assert_eq!(note(&world.send(&agent, "s", "next")), None);
}

#[test]
fn what_a_call_that_waits_will_tell_is_in_no_note_and_is_if_that_call_is_broken_off() {
    let mut world = World::new();
    let agent = world.agent();
    let (told, cut) = (world.job_in(&agent, "s"), world.job_in(&agent, "s"));
    let turn = world.calling(&agent, "s", "job_watch");
    world.wish(&agent, &turn, JobWish::Watch { job: told.clone() });
    world.job_done(&told);
    assert_eq!(note(&world.send(&agent, "s", "behind it")), None, "its end is being read");
    let asked = Asked { turn: turn.clone(), step: 1, call: "c1".into() };
    world.read_answers(asked, "it is done", &[&told]);
    world.ask(None, Command::InterruptTurn { id: turn });
    let other = world.engine.sessions[&session("s")].live[0].clone();
    world.ask(None, Command::InterruptTurn { id: other });
    let turn = world.calling(&agent, "s", "job_watch");
    world.wish(&agent, &turn, JobWish::Watch { job: cut.clone() });
    world.job_done(&cut);
    world.ask(None, Command::InterruptTurn { id: turn });
    let next = note(&world.send(&agent, "s", "next")).expect("nobody told of it");
    assert!(next.contains(cut.as_str()) && !next.contains(told.as_str()), "{next}");
}

#[test]
fn a_note_is_part_of_what_the_conversation_weighs() {
    let mut world = World::new();
    let agent = world.agent();
    let job = world.job_in(&agent, "s");
    world.job_done(&job);
    world.send(&agent, "s", "hi");
    let weighs = world.engine.sessions[&session("s")].epoch.weight(1);
    world.send(&agent, "t", "hi");
    assert_ne!(weighs, world.engine.sessions[&session("t")].epoch.weight(1));
}

#[test]
fn many_jobs_are_counted_and_all_of_them_are_told() {
    let mut world = World::new();
    let agent = world.agent();
    for _ in 0..NOTE_JOBS_MAX + 3 {
        let job = world.job_in(&agent, "s");
        world.job_done(&job);
    }
    let told = note(&world.send(&agent, "s", "hi")).unwrap();
    assert_eq!(told.matches("(sh): done").count(), NOTE_JOBS_MAX);
    assert!(told.contains("and 3 more"), "{told}");
    assert_eq!(world.engine.sizes().jobs.held, 0);
    assert_eq!(note(&world.send(&agent, "s", "hi")), None);
}

#[test]
fn a_turn_that_is_done_again_is_told_what_it_was_told() {
    let mut world = World::new();
    let agent = world.agent();
    let job = world.job_in(&agent, "s");
    world.job_done(&job);
    let batch = world.send(&agent, "s", "hi");
    let (turn, told) = (turn_of(&batch), note(&batch));
    world.ask(None, Command::InterruptTurn { id: turn.clone() });
    let late = world.job_in(&agent, "s");
    world.job_done(&late);
    let fact = fact(&world.engine.sessions[&session("s")]);
    let plan = PathPlan { from: 1, turns: 0, tip: None, epoch: Default::default(), restored: Vec::new() };
    let again = TurnAgain { turn, text: "hi".into(), schema: None, note: told, plan };
    let change = SessionChange {
        fact,
        agent_name: "a".into(),
        agent_removed: false,
        what: SessionWhat::Regenerate(Box::new(again)),
    };
    let told = note(&world.ask(None, Command::ChangeSession(Box::new(change)))).unwrap();
    assert!(told.contains(job.as_str()) && told.contains(late.as_str()), "{told}");
}

#[test]
fn a_deleted_session_hears_of_nothing_and_one_that_begins_anew_neither() {
    let mut world = World::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    world.ask(None, Command::InterruptTurn { id: turn });
    let (ended, runs) = (world.job_in(&agent, "s"), world.job_in(&agent, "s"));
    world.job_done(&ended);
    let fact = fact(&world.engine.sessions[&session("s")]);
    let (agent_name, what) = ("a".to_owned(), SessionWhat::Delete);
    let change = SessionChange { fact, agent_name, agent_removed: false, what };
    world.ask(None, Command::ChangeSession(Box::new(change)));
    assert_eq!(world.job_state(&runs), JobState::Running, "jobs stay");
    world.job_done(&runs);
    assert_eq!(world.engine.sizes().jobs.held, 0);
    assert_eq!(note(&world.send(&agent, "s", "hi")), None);
}

#[test]
fn jobs_that_nobody_asks_about_cost_bounded_memory() {
    let mut world = World::new();
    let agent = world.agent();
    let mut first = None;
    for number in 0..JOBS_UNTOLD_MAX + 2 {
        // Each is older than the next.
        let at = Timestamp::from_ms(1_000 + i64::try_from(number).unwrap());
        let new = NewJob { agent: agent.clone(), session: Some(session("s")), work: work("sh") };
        let command = Command::SubmitJob(Box::new(new));
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
