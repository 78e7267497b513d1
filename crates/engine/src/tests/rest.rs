//! Agents at rest leave memory, and return when a command names them.

use lodge_core::record::{AgentWrite, ImageWrite};

use super::*;

impl EngineWorld {
    fn stopped(&mut self) -> AgentId {
        let id = self.agent();
        self.bring_to_rest(&id);
        id
    }

    fn bring_to_rest(&mut self, id: &AgentId) {
        let stop = AgentCommand::Stop { id: id.clone(), jobs: RunningJobs::Cancel };
        self.ask(None, Command::Agent(stop));
        let run = self.engine.agents[id].row.runs;
        self.see(Observation::Sandbox(SandboxObservation::Down { agent: id.clone(), run }));
    }

    fn start_again(&mut self, id: &AgentId) -> Batch {
        self.ask(None, Command::Agent(AgentCommand::Start { id: id.clone() }))
    }

    fn holds(&self, id: &AgentId) -> bool {
        self.engine.agents.contains_key(id)
    }
}

fn create(name: NameChoice) -> Command {
    Command::Agent(AgentCommand::Create(Box::new(NewAgent {
        name,
        called: "a:latest".into(),
        image: new_image("sha256:0", Vec::new()),
        spec: AgentSpec::default(),
    })))
}

#[test]
fn an_agent_leaves_memory_when_its_end_is_on_disk_and_not_before() {
    let mut world = EngineWorld::new();
    let id = world.stopped();
    let last = world.engine.seq;
    world.see(Observation::Settled { requests: 0, seq: last - 1, rest: true });
    assert!(world.holds(&id), "its last event may not be readable yet");
    world.flush();
    assert!(!world.holds(&id));
    assert_eq!(world.engine.facts().agents.len(), 0);
}

#[test]
fn an_agent_stays_while_it_lives_while_somebody_waits_and_while_it_tries_again() {
    let mut world = EngineWorld::new();
    let (alive, ending) = (world.agent(), world.agent());
    let stop = AgentCommand::Stop { id: ending.clone(), jobs: RunningJobs::Cancel };
    world.ask(None, Command::Agent(stop));
    world.flush();
    assert!(world.holds(&alive) && world.holds(&ending), "who asked for the stop has no answer");
    let run = world.engine.agents[&alive].row.runs;
    let lack = (StartRequirement::Model, "no such model".to_owned());
    world.ask(None, Command::Agent(AgentCommand::Restart { id: alive.clone(), jobs: RunningJobs::Cancel }));
    let run = run + 1;
    world.see(Observation::Agent(AgentObservation::Lacks {
        agent: alive.clone(),
        run,
        lack: lack.0,
        detail: lack.1,
    }));
    world.flush();
    assert!(world.holds(&alive), "it is tried again");
}

#[test]
fn a_command_brings_its_agent_back_and_its_stream_goes_on() {
    let mut world = EngineWorld::new();
    let id = world.stopped();
    let head = heads(&world.engine)[id.as_str()];
    world.flush();
    let batch = world.start_again(&id);
    assert_eq!(reply(&batch)["id"], id.as_str());
    let of_agent = batch.events().filter(|row| row.stream == id.as_str());
    let numbers: Vec<u64> = of_agent.map(|row| row.stream_seq).collect();
    assert_eq!(numbers, (head + 1..=head + numbers.len() as u64).collect::<Vec<_>>());
    assert!(!numbers.is_empty());
}

#[test]
fn commands_wait_for_one_lookup_in_their_order_and_others_do_not_wait() {
    let mut world = EngineWorld::new();
    let id = world.stopped();
    world.flush();
    let api = |ticket, command| Input::Api { ticket, request: None, command };
    let start = || Command::Agent(AgentCommand::Start { id: id.clone() });
    let remove = Command::Agent(AgentCommand::Remove { id: id.clone(), force: false });
    let inputs = [api(71, start()), api(72, remove), api(73, create(NameChoice::Like("b".into())))];
    let batch = world.engine.step(inputs, NOW);
    let [Effect::Agent(AgentEffect::LookUp { agent, ask })] = &batch.early[..] else {
        panic!("{:?}", batch.early)
    };
    let answered = |batch: &Batch| -> Vec<u64> {
        let replies = batch.after.iter().filter_map(|out| match out {
            BatchOutput::Reply { ticket, .. } => Some(*ticket),
            BatchOutput::Act(_) => None,
        });
        replies.collect()
    };
    assert_eq!(answered(&batch), [73]);
    let (agent, ask, fact) = (agent.clone(), *ask, world.stored[&id].clone());
    let found = |fact| AgentLookup::Found(Box::new(fact));
    let late = AgentObservation::LookedUp { agent: agent.clone(), ask: ask - 1, found: found(fact.clone()) };
    assert_eq!(answered(&world.see(Observation::Agent(late))), [0; 0], "the answer to an earlier order");
    let batch = world.see(Observation::Agent(AgentObservation::LookedUp { agent, ask, found: found(fact) }));
    assert_eq!(answered(&batch), [71, 72], "started, and then not removed because it lives");
    assert_eq!(refusal(&batch), "agent.wrong_state");
}

#[test]
fn the_name_of_an_agent_at_rest_is_taken_until_it_is_removed() {
    let mut world = EngineWorld::new();
    let id = world.stopped();
    let name = world.engine.agents[&id].row.name.clone();
    world.flush();
    let exactly = || create(NameChoice::Exactly(name.clone()));
    assert_eq!(refusal(&world.ask(None, exactly())), "agent.name_taken");
    world.ask(None, Command::Agent(AgentCommand::Remove { id: id.clone(), force: false }));
    world.see(Observation::Sandbox(SandboxObservation::Cleared { agent: id.clone() }));
    assert_ne!(reply(&world.ask(None, exactly()))["id"], id.as_str());
    // The store may not show the removal yet. The row that it returns is ignored.
    let mut removing = world.stored[&id].clone();
    removing.row.state = AgentState::Removing;
    world.stored.insert(id.clone(), removing);
    assert_eq!(refusal(&world.start_again(&id)), "agent.not_found");
}

#[test]
fn the_image_of_an_agent_at_rest_is_kept_and_told() {
    let mut world = EngineWorld::new();
    let new = NewAgent {
        name: NameChoice::Exactly("sleeper".into()),
        called: "a:latest".into(),
        image: new_image("sha256:9", vec!["a:latest".into()]),
        spec: AgentSpec::default(),
    };
    let batch = world.ask(None, Command::Agent(AgentCommand::Create(Box::new(new))));
    let id: AgentId = reply(&batch)["id"].as_str().unwrap().parse().unwrap();
    world.bring_to_rest(&id);
    world.flush();
    assert!(!world.holds(&id));
    let given = ImageSelector::Digest("sha256:9".into());
    let remove = ImageCommand::Remove { given, used_by: vec!["sleeper".into()] };
    let batch = world.ask(None, Command::Image(remove));
    assert_eq!(refusal(&batch), "image.in_use");
    assert!(format!("{:?}", batch.after).contains("sleeper"));
    let move_name = ImageCommand::Add(Box::new(new_image("sha256:8", vec!["a:latest".into()])));
    let batch = world.ask(None, Command::Image(move_name));
    let goes = |batch: &Batch| {
        batch
            .writes
            .iter()
            .any(|write| matches!(write, Write::Image(ImageWrite::Gone { digest }) if digest == "sha256:9"))
    };
    assert!(!goes(&batch), "an agent at rest has it");
    world.ask(None, Command::Agent(AgentCommand::Remove { id: id.clone(), force: false }));
    assert!(goes(&world.see(Observation::Sandbox(SandboxObservation::Cleared { agent: id }))));
}

#[test]
fn a_lookup_that_fails_refuses_and_changes_nothing() {
    let mut world = EngineWorld::new();
    let id = world.stopped();
    world.flush();
    let command = Command::Agent(AgentCommand::Start { id: id.clone() });
    let batch = world.engine.step([Input::Api { ticket: 7, request: None, command }], NOW);
    let [Effect::Agent(AgentEffect::LookUp { agent, ask })] = &batch.early[..] else {
        panic!("{:?}", batch.early)
    };
    let seen = AgentObservation::LookedUp { agent: agent.clone(), ask: *ask, found: AgentLookup::Unreadable };
    let batch = world.see(Observation::Agent(seen));
    assert_eq!(refusal(&batch), "daemon.busy");
    assert!(!batch.writes.iter().any(|write| matches!(write, Write::Agent(AgentWrite::State { .. }))));
    assert_eq!(world.engine.sizes().lookups, 0);
}
