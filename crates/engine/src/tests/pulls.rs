//! Agents that need something from images before they can be started.

mod updates;

use std::collections::HashSet;

use lodge_core::agent::FailReason;
use lodge_core::record::{
    AgentWrite, BinImageRecord, BinRecord, ImageContents, ImageState, ImageWrite, RuntimeRecord,
};

use super::*;
use crate::{AgentCommand, AgentObservation, ImageCommand, PullEffect, PullObservation, SandboxEffect};

const RG: &str = "rg:latest@sha256:rg";

/// A tool, as an image is of it.
pub(super) fn bin(digest: &str) -> ImageRow {
    let contents = ImageContents::Bin(BinImageRecord { name: "rg".into(), ..BinImageRecord::default() });
    let (digest, name) = (digest.to_owned(), "rg:latest".to_owned());
    ImageRow { digest, name, bytes: 3, state: ImageState::Complete, contents }
}

/// An image of an agent that needs a tool.
pub(super) fn with_rg(digest: &str) -> ImageRow {
    let rg = BinRecord { name: "rg".into(), image: Some(RG.into()), ..BinRecord::default() };
    let record = ImageRecord { bins: vec![rg], ..ImageRecord::default() };
    ImageRow::agent(digest.into(), "a:latest".into(), 7, record)
}

fn announced(row: ImageRow) -> NewImage {
    let row = ImageRow { state: ImageState::Announced, ..row };
    NewImage { row, with: Vec::new(), tags: Vec::new() }
}

pub(super) fn rg() -> ToolRecord {
    ToolRecord { name: "rg".into(), source: RG.into(), image: Some(RG.into()), ..ToolRecord::default() }
}

fn found_rg() -> ToolRecord {
    ToolRecord {
        path: "programs/rg".into(),
        digest: "sha256:p".into(),
        usage: Some("rg WORD".into()),
        ..rg()
    }
}

fn spec(tools: Vec<ToolRecord>) -> AgentSpec {
    AgentSpec { model: "p/m".into(), tools, ..AgentSpec::default() }
}

fn new_agent(image: NewImage, tools: Vec<ToolRecord>) -> Command {
    let (name, called) = (NameChoice::Like("a".into()), "a:latest".to_owned());
    Command::Agent(AgentCommand::Create(Box::new(NewAgent { name, called, image, spec: spec(tools) })))
}

/// The pulls that were ordered, and the number of those that were dropped.
fn pulls(batch: &Batch) -> (Vec<u64>, usize) {
    let asks = acts(batch).into_iter().filter_map(|effect| match effect {
        Effect::Pull(PullEffect::Begin { ask, .. }) => Some(*ask),
        _ => None,
    });
    let dropped =
        acts(batch).iter().filter(|effect| matches!(effect, Effect::Pull(PullEffect::Drop { .. }))).count();
    (asks.collect(), dropped)
}

fn ups(batch: &Batch) -> Vec<&SandboxPlan> {
    let ups = acts(batch).into_iter().filter_map(|effect| match effect {
        Effect::Sandbox { what: SandboxEffect::Up { plan, how: StartMode::Start }, .. } => {
            Some(plan.as_ref())
        }
        _ => None,
    });
    ups.collect()
}

impl EngineWorld {
    /// An agent with a tool from an image, and the number of its pull order.
    fn pulling(&mut self) -> (AgentId, u64) {
        let image = NewImage { row: with_rg("sha256:1"), with: Vec::new(), tags: Vec::new() };
        let batch = self.ask(None, new_agent(image, vec![rg()]));
        let (asks, dropped) = pulls(&batch);
        assert_eq!((asks.len(), dropped, ups(&batch).len()), (1, 0, 0));
        assert_eq!(reply(&batch)["status"], "pulling");
        (reply(&batch)["id"].as_str().unwrap().parse().unwrap(), asks[0])
    }

    /// One that was pulled and got ready.
    fn pulled_agent(&mut self) -> AgentId {
        let (agent, ask) = self.pulling();
        self.pulled(&agent, ask);
        self.ready(&agent);
        agent
    }

    fn pulled(&mut self, agent: &AgentId, ask: u64) -> Batch {
        self.pull_ended(agent, ask, vec![bin("sha256:rg")], vec![found_rg()])
    }

    fn pull_ended(
        &mut self,
        agent: &AgentId,
        ask: u64,
        rows: Vec<ImageRow>,
        tools: Vec<ToolRecord>,
    ) -> Batch {
        self.see(Observation::Pull(PullObservation::Pulled {
            agent: agent.clone(),
            ask,
            rows,
            tools,
            runtime: None,
        }))
    }

    fn pull_fails(&mut self, agent: &AgentId, ask: u64) -> Batch {
        let (agent, detail, again) = (agent.clone(), "no such host".into(), AutoRetry::Later);
        self.see(Observation::Pull(PullObservation::Failed { agent, ask, detail, again }))
    }

    fn pull_state(&self, agent: &AgentId) -> AgentState {
        self.engine.agents[agent].row.state
    }

    fn stop(&mut self, agent: &AgentId) -> Batch {
        self.ask(None, Command::Agent(AgentCommand::Stop { id: agent.clone(), jobs: RunningJobs::Cancel }))
    }

    fn as_stored(&self) -> StoredState {
        let engine = &self.engine;
        StoredState {
            epoch: 2,
            seq: engine.seq,
            streams: heads(engine),
            agents: engine.agents.values().map(|agent| agent.row.clone()).collect(),
            lineages: engine.agents.values().map(|agent| agent.lineage.clone()).collect(),
            images: engine.images.values().cloned().collect(),
            ..StoredState::default()
        }
    }
}

#[test]
fn an_agent_whose_image_is_here_and_whose_tools_are_the_hosts_starts_with_its_creation() {
    let mut world = EngineWorld::new();
    let host = ToolRecord { name: "sh".into(), path: "/bin/sh".into(), ..ToolRecord::default() };
    let batch = world.ask(None, new_agent(new_image("sha256:0", Vec::new()), vec![host]));
    assert_eq!((pulls(&batch), ups(&batch).len()), ((vec![], 0), 1));
    assert_eq!(reply(&batch)["status"], "starting");
}

#[test]
fn an_agent_of_an_announced_image_starts_when_all_of_it_is_here_and_recorded() {
    let mut world = EngineWorld::new();
    let row = || ImageRow::agent("sha256:1".into(), "a:latest".into(), 7, ImageRecord::default());
    let batch = world.ask(None, new_agent(announced(row()), Vec::new()));
    let agent: AgentId = reply(&batch)["id"].as_str().unwrap().parse().unwrap();
    assert_eq!((pulls(&batch), reply(&batch)["status"].as_str()), ((vec![1], 0), Some("pulling")));
    let batch = world.pull_ended(&agent, 1, vec![row()], Vec::new());
    let images: Vec<ImageState> = batch.writes.iter().filter_map(state_of).collect();
    assert_eq!((images, ups(&batch).len()), (vec![ImageState::Complete], 1));
    assert!(
        !batch.writes.iter().any(|write| matches!(write, Write::Agent(AgentWrite::Spec { .. }))),
        "it is what it was"
    );
    let again = world.ask(None, new_agent(announced(row()), Vec::new()));
    assert_eq!((pulls(&again), ups(&again).len()), ((vec![], 0), 1), "what is whole is not announced again");
    assert!(again.writes.iter().all(|write| state_of(write).is_none()));
}

fn state_of(write: &Write) -> Option<ImageState> {
    match write {
        Write::Image(ImageWrite::Here(row)) => Some(row.state),
        _ => None,
    }
}

#[test]
fn what_was_pulled_is_recorded_let_go_and_started_in_this_order() {
    let mut world = EngineWorld::new();
    let (agent, ask) = world.pulling();
    let batch = world.pulled(&agent, ask);
    let place = |wanted: fn(&Write) -> bool| batch.writes.iter().position(wanted).expect("it is written");
    let image = place(|write| matches!(write, Write::Image(ImageWrite::Here(_))));
    let spec = place(|write| matches!(write, Write::Agent(AgentWrite::Spec { .. })));
    assert!(image < spec && spec < place(|write| matches!(write, Write::Agent(AgentWrite::State { .. }))));
    assert!(matches!(
        acts(&batch)[..],
        [
            Effect::Pull(PullEffect::Drop { .. }),
            Effect::Sandbox { what: SandboxEffect::Up { how: StartMode::Start, .. }, .. }
        ]
    ));
    assert_eq!(ups(&batch)[0].settings.tools, [found_rg()], "it starts with what was found");
    world.ready(&agent);
    assert_eq!(world.pull_state(&agent), AgentState::Ready);
}

#[test]
fn an_agent_that_is_started_again_is_asked_for_again_and_what_is_the_same_is_not_written() {
    let mut world = EngineWorld::new();
    let agent = world.pulled_agent();
    let restart = Command::Agent(AgentCommand::Restart { id: agent.clone(), jobs: RunningJobs::Cancel });
    let batch = world.ask(None, restart);
    assert_eq!((pulls(&batch), ups(&batch).len()), ((vec![2], 0), 0));
    let batch = world.pull_ended(&agent, 2, Vec::new(), vec![found_rg()]);
    let changed = |write: &Write| {
        matches!(write, Write::Agent(AgentWrite::Spec { .. }) | Write::Image(ImageWrite::Here(_)))
    };
    assert!(!batch.writes.iter().any(changed));
    assert_eq!(ups(&batch).len(), 1);
    world.stop(&agent);
    assert_eq!(pulls(&world.ask(None, Command::Agent(AgentCommand::Start { id: agent.clone() }))).0, [3]);
}

#[test]
fn a_runtime_from_an_image_is_pulled_too() {
    let mut world = EngineWorld::new();
    let image = "loop:1@sha256:loop".to_owned();
    let loops = RuntimeRecord { source: image.clone(), image: Some(image), ..RuntimeRecord::default() };
    let new = NewAgent {
        name: NameChoice::Like("a".into()),
        called: "a:latest".into(),
        image: new_image("sha256:0", Vec::new()),
        spec: AgentSpec { runtime: Some(loops.clone()), ..spec(Vec::new()) },
    };
    let batch = world.ask(None, Command::Agent(AgentCommand::Create(Box::new(new))));
    assert_eq!(pulls(&batch).0, [1]);
    let agent: AgentId = reply(&batch)["id"].as_str().unwrap().parse().unwrap();
    let runtime = Some(RuntimeRecord { path: "programs/loop".into(), ..loops });
    let rows = vec![bin("sha256:loop")];
    world.see(Observation::Pull(PullObservation::Pulled {
        agent: agent.clone(),
        ask: 1,
        rows,
        tools: Vec::new(),
        runtime: runtime.clone(),
    }));
    assert_eq!(world.engine.agents[&agent].row.spec.runtime, runtime);
    assert!(world.engine.images.contains_key("sha256:loop"));
}

#[test]
fn an_agent_that_is_ended_while_it_is_pulled_ends_at_once_and_nothing_late_starts_it() {
    type End = fn(&mut EngineWorld, &AgentId) -> Batch;
    let ends: [(End, AgentState); 3] = [
        (EngineWorld::stop, AgentState::Stopped),
        (
            |world, id| world.ask(None, Command::Agent(AgentCommand::Kill { id: id.clone() })),
            AgentState::Stopped,
        ),
        (
            |world, id| world.ask(None, Command::Agent(AgentCommand::Remove { id: id.clone(), force: true })),
            AgentState::Removing,
        ),
    ];
    for (end, state) in ends {
        let mut world = EngineWorld::new();
        let (agent, ask) = world.pulling();
        let batch = end(&mut world, &agent);
        assert_eq!((pulls(&batch), world.pull_state(&agent)), ((vec![], 1), state));
        let run = world.engine.agents[&agent].row.runs;
        world.see(Observation::Sandbox(SandboxObservation::Down { agent: agent.clone(), run }));
        let late = world.pulled(&agent, ask);
        assert!(late.writes.is_empty() && late.after.is_empty(), "{late:?}");
        let late = world.pull_fails(&agent, ask);
        assert!(late.writes.is_empty() && late.after.is_empty(), "{late:?}");
        assert_eq!(world.pull_state(&agent), state);
    }
}

#[test]
fn a_stop_of_an_agent_that_is_pulled_is_answered_when_nothing_of_it_is_left() {
    let mut world = EngineWorld::new();
    let (agent, _) = world.pulling();
    let batch = world.stop(&agent);
    assert!(
        acts(&batch)
            .iter()
            .any(|effect| matches!(effect, Effect::Sandbox { what: SandboxEffect::Down { .. }, .. }))
    );
    let down = world.see(Observation::Sandbox(SandboxObservation::Down { agent, run: 0 }));
    assert_eq!(reply(&down)["status"], "stopped");
}

#[test]
fn the_answer_to_an_earlier_order_or_a_second_one_changes_nothing() {
    let mut world = EngineWorld::new();
    let (agent, first) = world.pulling();
    let batch = world
        .ask(None, Command::Agent(AgentCommand::Restart { id: agent.clone(), jobs: RunningJobs::Cancel }));
    let (asks, dropped) = pulls(&batch);
    assert_eq!((asks.len(), dropped), (1, 0), "the newer order takes the place of the older one");
    assert!(world.pulled(&agent, first).writes.is_empty());
    assert!(world.pull_fails(&agent, first).writes.is_empty());
    assert_eq!(ups(&world.pulled(&agent, asks[0])).len(), 1);
    for late in [world.pulled(&agent, asks[0]), world.pull_fails(&agent, asks[0])] {
        assert!(late.writes.is_empty() && late.after.is_empty(), "{late:?}");
    }
    assert_eq!(world.pull_state(&agent), AgentState::Starting);
}

#[test]
fn a_pull_that_fails_is_tried_again_by_itself_after_doubling_pauses_until_somebody_stops_it() {
    let mut world = EngineWorld::new();
    let (agent, mut ask) = world.pulling();
    let mut pauses = Vec::new();
    for _ in 0..4 {
        let batch = world.pull_fails(&agent, ask);
        assert_eq!(world.pull_state(&agent), AgentState::Failed(FailReason::Pull));
        assert_eq!(world.engine.agents[&agent].row.failure_detail.as_deref(), Some("no such host"));
        let later = acts(&batch).iter().find_map(|effect| match effect {
            Effect::Agent(AgentEffect::RetryTimer { run, delay_ms, .. }) => Some((*run, *delay_ms)),
            _ => None,
        });
        let (run, delay_ms) = later.expect("it is tried again");
        pauses.push(delay_ms);
        let again = world.see(Observation::Agent(AgentObservation::RetryDue { agent: agent.clone(), run }));
        ask = pulls(&again).0[0];
        assert_eq!(world.pull_state(&agent), AgentState::Pulling);
    }
    assert_eq!(pauses, [1_000, 2_000, 4_000, 8_000]);
    world.pull_fails(&agent, ask);
    world.stop(&agent);
    let run = world.engine.agents[&agent].row.runs;
    let due = world.see(Observation::Agent(AgentObservation::RetryDue { agent: agent.clone(), run }));
    assert!(due.writes.is_empty() && pulls(&due).0.is_empty());
    let start = world.ask(None, Command::Agent(AgentCommand::Start { id: agent.clone() }));
    let ask = pulls(&start).0[0];
    world.pulled(&agent, ask);
    world.ready(&agent);
    assert_eq!(world.engine.agents[&agent].row.retry.failures, 0);
}

#[test]
fn what_can_never_be_pulled_is_not_tried_again_until_somebody_starts_it() {
    let mut world = EngineWorld::new();
    let (agent, ask) = world.pulling();
    world.pull_fails(&agent, ask);
    let again = world.see(Observation::Agent(AgentObservation::RetryDue { agent: agent.clone(), run: 0 }));
    let (ask, detail, again) = (pulls(&again).0[0], "no program for this host".to_owned(), AutoRetry::Never);
    let batch =
        world.see(Observation::Pull(PullObservation::Failed { agent: agent.clone(), ask, detail, again }));
    assert_eq!(world.pull_state(&agent), AgentState::Failed(FailReason::Pull));
    assert_eq!(pulls(&batch).1, 1, "whoever pulled lets go");
    assert!(
        !acts(&batch).iter().any(|effect| matches!(effect, Effect::Agent(AgentEffect::RetryTimer { .. })))
    );
    let row = &world.engine.agents[&agent].row;
    assert_eq!((row.retry.at, row.retry.failures), (None, 0));
    assert_eq!(row.failure_detail.as_deref(), Some("no program for this host"));
    let due = world.see(Observation::Agent(AgentObservation::RetryDue { agent: agent.clone(), run: 0 }));
    assert!(due.writes.is_empty() && pulls(&due).0.is_empty(), "a timer of before changes nothing");
    let (_, boot) = Engine::boot(world.as_stored(), host(), IdSource::new(2), "0", NOW);
    assert!(pulls(&boot).0.is_empty(), "nor does a new daemon");
    let start = world.ask(None, Command::Agent(AgentCommand::Start { id: agent.clone() }));
    world.pulled(&agent, pulls(&start).0[0]);
    world.ready(&agent);
    assert_eq!(world.pull_state(&agent), AgentState::Ready);
}

#[test]
fn turns_wait_while_their_agent_is_pulled_and_while_it_waits_for_its_next_try() {
    let mut world = EngineWorld::new();
    let (agent, ask) = world.pulling();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    assert_eq!(world.state(&turn), TurnState::Queued);
    let batch = world.pull_fails(&agent, ask);
    assert!(!kinds(&batch).contains(&EventKind::TurnFailed));
    let again = world.see(Observation::Agent(AgentObservation::RetryDue { agent: agent.clone(), run: 0 }));
    world.pulled(&agent, pulls(&again).0[0]);
    world.ready(&agent);
    assert_eq!(world.state(&turn), TurnState::Running);
}

#[test]
fn a_revived_agent_is_pulled_and_its_turns_go_on() {
    let mut world = EngineWorld::new();
    let agent = world.pulled_agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    let died = Observation::Agent(AgentObservation::Died {
        agent: agent.clone(),
        run: 1,
        part: AgentComponent::Sandbox,
        detail: "signal 9".into(),
    });
    let batch = world.see(died);
    assert_eq!((pulls(&batch), ups(&batch).len()), ((vec![2], 0), 0));
    let batch = world.pull_ended(&agent, 2, Vec::new(), vec![found_rg()]);
    assert_eq!(ups(&batch)[0].run, 2);
    world.ready(&agent);
    assert_eq!(world.state(&turn), TurnState::Running);
}

#[test]
fn a_new_daemon_asks_again_for_what_the_last_one_was_pulling() {
    let mut world = EngineWorld::new();
    let (agent, _) = world.pulling();
    let (engine, batch) = Engine::boot(world.as_stored(), host(), IdSource::new(2), "0", NOW);
    assert_eq!((pulls(&batch), ups(&batch).len()), ((vec![1], 0), 0));
    world.engine = engine;
    assert_eq!(ups(&world.pulled(&agent, 1)).len(), 1);
}

#[test]
fn a_rebuilt_engine_asks_again_and_takes_no_answer_to_what_it_asked_before() {
    let mut world = EngineWorld::new();
    let (agent, first) = world.pulling();
    let stored = world.as_stored();
    world.pulled(&agent, first);
    // The result of the pull could not be recorded on the full disk.
    let (engine, batch) = world.engine.rebuild(stored, &HashSet::new(), NOW);
    let (asks, _) = pulls(&batch);
    assert!(asks.len() == 1 && asks[0] > first, "{asks:?}");
    world.engine = engine;
    assert!(world.pulled(&agent, first).writes.is_empty());
    assert_eq!(ups(&world.pulled(&agent, asks[0])).len(), 1);
}
