//! What models ask of jobs.

use super::*;
use crate::{AgentCommand, AgentObservation, SandboxEffect, TurnCommand, TurnObservation};

fn wait(job: &JobId) -> JobToolRequest {
    JobToolRequest::Wait { job: job.clone() }
}

fn watch(job: &JobId) -> JobToolRequest {
    JobToolRequest::Watch { job: job.clone() }
}

fn cancel(job: &JobId) -> JobToolRequest {
    JobToolRequest::Cancel { job: job.clone() }
}

fn asked(turn: &TurnId) -> ToolCallRef {
    ToolCallRef { turn: turn.clone(), step: 1, call: "c1".into() }
}

fn reads(batch: &Batch) -> Vec<JobToolRequest> {
    let wishes = job_acts(batch).into_iter().filter_map(|what| match what {
        JobAct::Elsewhere(JobEffect::Read { wish, .. }) => Some(wish),
        _ => None,
    });
    wishes.collect()
}

fn answers(batch: &Batch) -> Vec<CallOutcome> {
    let answers = acts(batch).into_iter().filter_map(|effect| match effect {
        Effect::Sandbox { what: SandboxEffect::Answer { answer, .. }, .. } => {
            let Ok(RuntimeAnswer::Call(outcome)) = answer else { panic!("not a result: {answer:?}") };
            Some(*outcome)
        }
        _ => None,
    });
    answers.collect()
}

fn job_in_result(batch: &Batch) -> JobId {
    let [(text, false)] = &results(batch)[..] else { panic!("one good result") };
    let told: Value = serde_json::from_str(text).unwrap();
    told["job_id"].as_str().unwrap().parse().unwrap()
}

#[test]
fn a_submitted_job_and_the_result_that_names_it_are_one_commit_and_asked_again_it_is_the_same_job() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = world.calling(&agent, "s", "job_submit");
    let batch = world.wish(&agent, &turn, JobToolRequest::Submit(work("sh")));
    let job = job_in_result(&batch);
    assert_eq!(started(&batch), std::slice::from_ref(&job));
    assert_eq!(answers(&batch)[0].state, StepState::Done);
    let row = world.job_row(&job);
    assert_eq!((row.session, row.request.turn), (Some(session("s")), Some(turn.to_string())));
    let again = world.wish(&agent, &turn, JobToolRequest::Submit(work("sh")));
    assert!(again.writes.is_empty() && answers(&again).len() == 1);
    let (mut world, _) = world.reboot();
    world.ready(&agent);
    let again = world.wish(&agent, &turn, JobToolRequest::Submit(work("sh")));
    assert!(again.writes.is_empty(), "also by another daemon");
    assert_eq!((answers(&again).len(), world.stored().len()), (1, 1));
}

#[test]
fn what_a_model_may_not_submit_is_a_result_that_says_why() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = world.calling(&agent, "s", "job_submit");
    let batch = world.wish(&agent, &turn, JobToolRequest::Submit(work("rm")));
    let [(text, true)] = &results(&batch)[..] else { panic!("one bad result") };
    assert!(text.contains("no bin `rm`") && text.contains("date, sh"), "{text}");
    assert!(world.stored().is_empty());
    assert_eq!(answers(&batch)[0].state, StepState::Failed);
    let turn = world.calling(&agent, "other", "job_submit");
    let endless = JobSpec { timeout_ms: u64::MAX, ..work("sh") };
    let batch = world.wish(&agent, &turn, JobToolRequest::Submit(endless));
    let [(text, true)] = &results(&batch)[..] else { panic!("one bad result") };
    assert!(text.contains("is too long") && text.contains("365d"), "{text}");
    assert!(world.stored().is_empty());
}

#[test]
fn a_model_can_neither_forge_the_session_of_a_job_nor_raise_what_is_kept_of_it() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = world.calling(&agent, "s", "job_submit");
    let labels = ["io.lodge.session-id", "mine"].map(|key| (key.to_owned(), "x".to_owned()));
    let forged = JobSpec { labels: BTreeMap::from(labels), output_bytes: 1 << 30, ..work("sh") };
    let job = job_in_result(&world.wish(&agent, &turn, JobToolRequest::Submit(forged)));
    let row = world.job_row(&job);
    assert_eq!(row.labels()["io.lodge.session-id"], "s");
    assert_eq!((row.labels()["mine"].as_str(), row.request.output_bytes), ("x", 1 << 20));
    let other = world.calling(&agent, "t", "job_submit");
    let reserved = BTreeMap::from([("io.lodge.other".to_owned(), String::new())]);
    let batch =
        world.wish(&agent, &other, JobToolRequest::Submit(JobSpec { labels: reserved, ..work("sh") }));
    assert!(results(&batch)[0].1, "others of that kind are refused");
}

#[test]
fn a_wait_is_an_intent_that_is_answered_when_the_job_is_over() {
    for wish in [wait as fn(&JobId) -> JobToolRequest, watch] {
        let mut world = EngineWorld::new();
        let agent = world.agent();
        let job = world.job_in(&agent, "s");
        let turn = world.calling(&agent, "s", "job_wait");
        let batch = world.wish(&agent, &turn, wish(&job));
        assert_eq!(kinds(&batch), [EventKind::TurnStepStarted]);
        assert!(reads(&batch).is_empty() && answers(&batch).is_empty());
        assert!(world.wish(&agent, &turn, wish(&job)).writes.is_empty(), "asked again it waits on");
        let ended = world.job_ends(&job, exited(0));
        assert_eq!(reads(&ended), [wish(&job)]);
        let told = world.read_answers(asked(&turn), "it wrote x", &[&job]);
        assert_eq!(results(&told), [("it wrote x".to_owned(), false)]);
        assert_eq!(answers(&told).len(), 1);
        assert!(world.job_row(&job).told);
        assert!(world.read_answers(asked(&turn), "twice", &[&job]).writes.is_empty());
    }
}

#[test]
fn a_wait_survives_the_daemon_wherever_that_dies() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let job = world.job_in(&agent, "s");
    let turn = world.calling(&agent, "s", "job_wait");
    world.wish(&agent, &turn, wait(&job));
    // Before the end of the job.
    let (mut world, _) = world.reboot();
    let batch = world.ready(&agent);
    assert!(reads(&batch).is_empty());
    assert!(
        world.wish(&agent, &turn, wait(&job)).writes.is_empty(),
        "the runtime asks again, and it waits on"
    );
    assert_eq!(reads(&world.job_ends(&job, exited(0))), [wait(&job)]);
    // Between the end and its report.
    let (mut world, _) = world.reboot();
    assert_eq!(reads(&world.ready(&agent)), [wait(&job)]);
    assert_eq!(reads(&world.wish(&agent, &turn, wait(&job))), [wait(&job)]);
    world.job_archived(&job);
    let (mut world, _) = world.reboot();
    assert_eq!(reads(&world.ready(&agent)), [wait(&job)]);
    world.read_answers(asked(&turn), "done", &[&job]);
    let (mut world, _) = world.reboot();
    assert!(reads(&world.ready(&agent)).is_empty());
    assert_eq!(world.engine.sizes().jobs.held, 0);
}

#[test]
fn a_wait_survives_the_runtime() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let job = world.job_in(&agent, "s");
    let turn = world.calling(&agent, "s", "job_wait");
    world.wish(&agent, &turn, wait(&job));
    let run = world.engine.agents[&agent].row.runs;
    world.see(Observation::Agent(AgentObservation::Died {
        agent: agent.clone(),
        run,
        part: AgentComponent::Runtime,
        detail: "x".into(),
    }));
    world.job_ends(&job, exited(0));
    world.read_answers(asked(&turn), "done", &[&job]);
    world.ready(&agent);
    let batch = world.wish(&agent, &turn, wait(&job));
    assert_eq!(answers(&batch).len(), 1, "what it missed is told");
}

#[test]
fn interrupting_a_turn_cancels_the_job_that_it_waits_for_and_leaves_one_that_it_watches() {
    for (wish, expected) in [(wait as fn(&JobId) -> JobToolRequest, true), (watch, false)] {
        for crashed in [false, true] {
            let mut world = EngineWorld::new();
            let agent = world.agent();
            let (job, other) = (world.job_in(&agent, "s"), world.job_in(&agent, "s"));
            let turn = world.calling(&agent, "s", "job_wait");
            world.wish(&agent, &turn, wish(&job));
            if crashed {
                // A crash is no interruption.
                let batch;
                (world, batch) = world.reboot();
                assert!(!job_acts(&batch).contains(&kill(&job)));
                world.ready(&agent);
            }
            let batch = world.ask(None, Command::Turn(TurnCommand::Interrupt { id: turn.clone() }));
            assert_eq!(job_acts(&batch).contains(&kill(&job)), expected);
            assert_eq!(world.job_row(&job).progress.cancel.is_some(), expected);
            assert!(world.job_row(&other).progress.cancel.is_none());
            assert!(reads(&world.job_ends(&job, exited(0))).is_empty(), "nobody waits any more");
        }
    }
}

#[test]
fn a_turn_that_fails_leaves_the_job_that_it_waited_for() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let job = world.job_in(&agent, "s");
    let turn = world.calling(&agent, "s", "job_wait");
    world.wish(&agent, &turn, wait(&job));
    let ask = RuntimeCall::Finish { turn, code: "x".into(), message: "x".into() };
    let batch = world.see(Observation::Turn(TurnObservation::Asked {
        agent: agent.clone(),
        id: RuntimeCallId(json!(1)),
        ask,
    }));
    assert!(job_acts(&batch).is_empty() && world.job_row(&job).progress.cancel.is_none());
}

#[test]
fn a_model_that_cancels_a_job_hears_of_its_end() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.see(Observation::Configured(Settings { max_jobs: 1, ..settings(10) }));
    let (runs, waits) = (world.job_in(&agent, "s"), world.job_in(&agent, "s"));
    let turn = world.calling(&agent, "s", "job_cancel");
    let batch = world.wish(&agent, &turn, cancel(&runs));
    assert_eq!(job_acts(&batch), [kill(&runs)]);
    assert!(answers(&batch).is_empty());
    let (mut world, _) = world.reboot();
    assert_eq!(job_acts(&world.ready(&agent))[0], kill(&runs));
    let ended = world.job_ends(&runs, exited(0));
    let text = json!({"job_id": runs.as_str(), "status": "cancelled"}).to_string();
    assert_eq!(results(&ended), [(text, false)]);
    assert!(world.job_row(&runs).told && !world.job_row(&waits).told);
    let other = world.calling(&agent, "t", "job_cancel");
    let foreign = world.job_in(&agent, "s");
    assert_eq!(reads(&world.wish(&agent, &other, cancel(&foreign))), [cancel(&foreign)], "not there for it");
    assert!(world.job_row(&foreign).progress.cancel.is_none());
}

#[test]
fn a_call_that_watches_a_job_is_not_turned_into_one_that_cancels_it() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let job = world.job_in(&agent, "s");
    let turn = world.calling(&agent, "s", "job_watch");
    world.wish(&agent, &turn, watch(&job));
    let batch = world.wish(&agent, &turn, cancel(&job));
    assert!(batch.writes.is_empty() && job_acts(&batch).is_empty());
    assert_eq!(world.job_row(&job).progress.cancel, None);
    assert_eq!(reads(&world.job_ends(&job, exited(0))), [watch(&job)]);
}

#[test]
fn one_that_waits_is_cancelled_by_a_model_at_once() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.see(Observation::Configured(Settings { max_jobs: 1, ..settings(10) }));
    let (_runs, waits) = (world.job_in(&agent, "s"), world.job_in(&agent, "s"));
    let turn = world.calling(&agent, "s", "job_cancel");
    let batch = world.wish(&agent, &turn, cancel(&waits));
    assert_eq!((results(&batch).len(), answers(&batch).len()), (1, 1));
    assert_eq!(world.job_state(&waits), JobState::Cancelled);
    assert_eq!(world.engine.sizes().jobs.held, 1, "it is settled");
}

#[test]
fn jobs_of_another_session_or_agent_are_not_there() {
    let mut world = EngineWorld::new();
    let (agent, stranger) = (world.agent(), world.agent());
    let (own, foreign, none) = (world.job_in(&agent, "s"), world.job_in(&agent, "t"), world.job(&agent));
    let strange = world.job_in(&stranger, "u");
    let turn = world.calling(&agent, "s", "job_wait");
    for job in [&foreign, &none, &strange] {
        for wish in [wait(job), watch(job), cancel(job)] {
            let batch = world.wish(&agent, &turn, wish.clone());
            assert_eq!(reads(&batch), [wish], "whoever reads says that it is not there");
            assert!(batch.writes.is_empty());
        }
    }
    assert!(reads(&world.wish(&agent, &turn, wait(&own))).is_empty());
}

#[test]
fn lists_and_states_are_read_and_never_wait() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let job = world.job_in(&agent, "s");
    let turn = world.calling(&agent, "s", "job_status");
    let status = JobToolRequest::Status { job: job.clone() };
    let batch = world.wish(&agent, &turn, status.clone());
    assert_eq!(reads(&batch), [status]);
    assert!(batch.writes.is_empty() && batch.urgent);
    let told = world.read_answers(asked(&turn), "running", &[]);
    assert_eq!((results(&told).len(), answers(&told).len()), (1, 1));
    assert!(!world.job_row(&job).told);
}

#[test]
fn what_was_read_for_a_turn_that_is_over_tells_nobody() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let job = world.job_in(&agent, "s");
    world.job_done(&job);
    let turn = world.calling(&agent, "s", "job_status");
    world.wish(&agent, &turn, JobToolRequest::Status { job: job.clone() });
    world.ask(None, Command::Turn(TurnCommand::Interrupt { id: turn.clone() }));
    let batch = world.read_answers(asked(&turn), "done", &[&job]);
    assert!(batch.writes.is_empty());
}

#[test]
fn what_was_read_for_a_turn_that_is_parked_begins_nothing_and_is_asked_for_again() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let job = world.job_in(&agent, "s");
    world.job_done(&job);
    let turn = world.calling(&agent, "s", "job_status");
    let status = JobToolRequest::Status { job: job.clone() };
    world.wish(&agent, &turn, status.clone());
    let run = world.engine.agents[&agent].row.runs;
    world.see(Observation::Agent(AgentObservation::Exited {
        agent: agent.clone(),
        run,
        code: 0,
        detail: "it left".into(),
    }));
    let batch = world.read_answers(asked(&turn), "done", &[&job]);
    assert!(batch.writes.is_empty(), "{:?}", batch.writes);
    world.ask(None, Command::Agent(AgentCommand::Start { id: agent.clone() }));
    world.ready(&agent);
    assert_eq!(reads(&world.wish(&agent, &turn, status)).len(), 1);
    assert_eq!(results(&world.read_answers(asked(&turn), "done", &[&job])).len(), 1);
}

#[test]
fn a_call_that_the_answer_does_not_have_is_refused() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = world.calling(&agent, "s", "job_submit");
    let wish = JobToolRequest::Submit(work("sh"));
    let ask = RuntimeCall::Job { turn, step: 1, call: "c9".into(), wish };
    let batch =
        world.see(Observation::Turn(TurnObservation::Asked { agent, id: RuntimeCallId(json!("j1")), ask }));
    let refused = acts(&batch).into_iter().any(|effect| {
        matches!(
            effect,
            Effect::Sandbox {
                what: SandboxEffect::Answer { answer: Err(RuntimeCallRefusal::NoSuchCall { .. }), .. },
                ..
            }
        )
    });
    assert!(refused && world.stored().is_empty());
}

#[test]
fn a_program_that_is_called_like_a_tool_for_jobs_is_a_program() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let tool = ToolRecord { name: "job_wait".into(), path: "/x".into(), ..ToolRecord::default() };
    world.engine.agents.get_mut(&agent).unwrap().row.spec.tools.push(tool);
    let job = world.job_in(&agent, "s");
    let turn = world.calling(&agent, "s", "job_wait");
    let ask = RuntimeCall::Exec {
        turn: turn.clone(),
        step: 1,
        call: "c1".into(),
        bin: "job_wait".into(),
        args: vec![job.to_string()],
        stdin: Vec::new(),
        timeout_ms: 0,
    };
    world.see(Observation::Turn(TurnObservation::Asked {
        agent: agent.clone(),
        id: RuntimeCallId(json!(1)),
        ask,
    }));
    for wish in [
        JobToolRequest::Status { job: job.clone() },
        wait(&job),
        cancel(&job),
        JobToolRequest::Submit(work("sh")),
    ] {
        let batch = world.wish(&agent, &turn, wish);
        assert!(batch.writes.is_empty() && job_acts(&batch).is_empty(), "the program is under way");
    }
    assert!(reads(&world.job_ends(&job, exited(0))).is_empty());
    let (mut world, _) = world.reboot();
    let batch = world.ready(&agent);
    assert!(reads(&batch).is_empty() && started_exec(&batch).len() == 1);
}
