//! The daemon's program is replaced while its agents work: clients notice only a reconnect.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use lodge_testkit::lodge::{Lodge, PATIENCE, until};
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::follow::{FollowTarget, OutliveFollower};
use crate::load::{AcceptedMessage, LoadTalker};
use crate::processes::{command_line, events, pid, runtime_of, workspace};
use crate::release::{ProgramDir, stored};
use crate::world::{ApiWorld, kill};

const AGENTS: usize = 3;
const SESSIONS: usize = 2;
/// Turns that every agent finishes between two restarts.
const TURNS_BETWEEN: usize = 3;

#[derive(Debug, Clone, Copy)]
enum DaemonExit {
    Asked,
    Killed,
}

/// The first is the upgrade; after that releases come one after the other.
const ENDS: [DaemonExit; 6] = [
    DaemonExit::Asked,
    DaemonExit::Killed,
    DaemonExit::Killed,
    DaemonExit::Asked,
    DaemonExit::Asked,
    DaemonExit::Killed,
];

fn end(world: &mut ApiWorld, how: DaemonExit) {
    match how {
        DaemonExit::Asked => {
            world.lodge.terminate();
            assert_eq!(world.lodge.wait_killed(PATIENCE), Some(false), "it was not its own end");
        }
        DaemonExit::Killed => world.lodge.kill9(),
    }
}

/// A daemon whose program can be replaced, and agents.
async fn furnish(place: &ProgramDir) -> (ApiWorld, CheckedClient, Vec<String>) {
    let mut world = ApiWorld::with(Lodge::of(place.lodged()));
    world.lodge.start();
    let mut api = world.checked().await;
    let mut agents = Vec::new();
    for number in 0..AGENTS {
        agents.push(world.agent(&mut api, &format!("a{number}")).await);
    }
    (world, api, agents)
}

fn keepers(world: &ApiWorld) -> Vec<i32> {
    let mut keepers = world.lodge.keepers();
    keepers.sort_unstable();
    keepers
}

/// How many turns of an agent a client saw finished.
fn finished(follower: &OutliveFollower, agent: &str) -> usize {
    let of = |event: &&Value| event["kind"] == "turn.finished" && event["stream"] == agent;
    follower.with(|events| events.iter().filter(of).count())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_is_replaced_and_restarted_under_load_loses_no_event_and_no_turn_and_repeats_no_tool() {
    let place = ProgramDir::new();
    let (mut world, api, agents) = furnish(&place).await;
    let before = keepers(&world);
    let (target, token) = (world.lodge.target(), world.lodge.bearer());
    let follow = |what| Arc::new(OutliveFollower::start(target.clone(), token.clone(), what));
    let (all, sent) = (follow(FollowTarget::All), follow(FollowTarget::ServerSent));
    let each: Vec<_> = agents.iter().map(|agent| follow(FollowTarget::Agent(agent.clone()))).collect();
    let mut talkers = Vec::new();
    for (agent, follower) in agents.iter().zip(&each) {
        for number in 0..SESSIONS {
            let session = format!("s{}n{number}", talkers.len());
            let follower = follower.clone();
            talkers.push(LoadTalker::start(target.clone(), token.clone(), agent, &session, follower));
        }
    }
    let work_on = |turns: usize| {
        let done: Vec<usize> = agents.iter().map(|agent| finished(&all, agent)).collect();
        until("every agent works", || {
            assert!(talkers.iter().all(LoadTalker::is_talking), "somebody gave up");
            let came = |(agent, done): (&String, &usize)| finished(&all, agent) >= done + turns;
            agents.iter().zip(&done).all(came).then_some(())
        });
    };
    for (number, how) in (1..).zip(ENDS) {
        work_on(TURNS_BETWEEN);
        place.install(number, &world.lodge.home());
        end(&mut world, how);
        world.lodge.start();
    }
    work_on(TURNS_BETWEEN);
    let mut api = api.again(&world.lodge).await;
    let mut effects: BTreeMap<String, usize> = BTreeMap::new();
    for talker in talkers {
        let session = talker.session.clone();
        let said = talker.finish().await;
        check_session(&mut api, &session, said, &mut effects).await;
    }
    let mut ran: BTreeMap<String, usize> = BTreeMap::new();
    for agent in &agents {
        for line in fs::read_to_string(workspace(&world, agent).join("ran")).expect("effects").lines() {
            *ran.entry(line.to_owned()).or_default() += 1;
        }
    }
    assert_eq!(ran, effects, "a tool ran twice, or not at all");
    assert_eq!(keepers(&world), before, "a keeper was replaced");
    for agent in &agents {
        api.agent_is(agent, "ready").await;
    }
    let log = api.log().await;
    let own = |agent: &str| -> Vec<Value> {
        log.iter().filter(|event| event["stream"] == agent).cloned().collect()
    };
    saw(&all, &log);
    saw(&sent, &log);
    agents.iter().zip(&each).for_each(|(agent, follower)| saw(follower, &own(agent)));
    nothing_was_lost(&log);
}

/// Every message of a session is one turn, done, with its answer.
async fn check_session(
    api: &mut CheckedClient,
    session: &str,
    said: Vec<AcceptedMessage>,
    effects: &mut BTreeMap<String, usize>,
) {
    assert!(said.len() > ENDS.len(), "{session} hardly spoke");
    let listed = api.ok("turn/list", json!({"session": session, "limit": 500})).await;
    let listed = listed["turns"].as_array().expect("turns");
    let mut turns: Vec<&str> = listed.iter().map(|turn| turn["id"].as_str().expect("an id")).collect();
    let mut sent: Vec<&str> = said.iter().map(|said| said.turn.as_str()).collect();
    turns.sort_unstable();
    sent.sort_unstable();
    assert_eq!(turns, sent, "a message of {session} is two turns, or none");
    for said in said {
        let turn = api.ok("turn/get", json!({"turn": said.turn})).await;
        let (status, text) = (&turn["status"], &turn["text"]);
        assert_eq!((status, text), (&json!("done"), &json!(said.answer)), "{turn:#}");
        effects.extend(said.effects.into_iter().map(|effect| (effect, 1)));
    }
}

/// A client saw these events, each once and in order, from every daemon.
#[track_caller]
fn saw(follower: &OutliveFollower, events: &[Value]) {
    let has_all = || follower.with(|seen| (seen.len() >= events.len()).then_some(()));
    until("the client has seen the log", has_all);
    follower.with(|seen| assert_eq!(seen, events));
    assert!(follower.connections() > ENDS.len(), "a client did not come back to every daemon");
}

#[track_caller]
fn nothing_was_lost(log: &[Value]) {
    let of = |kind: &str| log.iter().filter(|event| event["kind"] == kind).count();
    for kind in ["turn.failed", "turn.interrupted", "agent.failed", "lineage.orphaned", "lineage.revived"] {
        assert_eq!(of(kind), 0, "{kind}");
    }
    assert_eq!((of("daemon.started"), of("lineage.adopted")), (ENDS.len() + 1, ENDS.len() * AGENTS));
}

#[tokio::test]
async fn a_newer_keeper_is_for_agents_that_are_started_afterwards_and_the_older_ones_keep_theirs() {
    let place = ProgramDir::new();
    let (mut world, api, agents) = furnish(&place).await;
    let program = |view: &Value| command_line(pid(view)).split(' ').next().map(str::to_owned);
    let first = stored(&world.lodge.home(), "keeper");
    let old = Some(first[0].to_str().expect("a path").to_owned());
    place.install(1, &world.lodge.home());
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    for agent in &agents {
        assert_eq!(api.answer(agent, agent, "[[reply:still here]]").await, "still here");
        let view = api.ok("agent/get", json!({"agent": agent})).await;
        assert_eq!((program(&view), &view["incarnation"]), (old.clone(), &json!(1)), "{view:#}");
    }
    // A runtime that dies is replaced in the sandbox that the earlier release made.
    let view = api.agent_is(&agents[0], "ready").await;
    kill(runtime_of(pid(&view)), libc::SIGKILL);
    let replaced = |view: &Value| view["runs"] == 2 && view["status"] == "ready";
    let again = api.until("agent/get", json!({"agent": agents[0]}), replaced).await;
    assert_eq!((program(&again), pid(&again)), (old.clone(), pid(&view)));
    let created = world.agent(&mut api, "later").await;
    let view = api.ok("agent/get", json!({"agent": created})).await;
    let programs = stored(&world.lodge.home(), "keeper");
    let new = programs.iter().find(|path| !first.contains(path)).expect("a second keeper");
    let new = Some(new.to_str().expect("a path").to_owned());
    assert_eq!(program(&view), new, "the daemon carries another keeper and did not use it");
    assert_eq!(stored(&world.lodge.home(), "runtime").len(), 2);
    api.ok("agent/stop", json!({"agent": agents[1]})).await;
    api.ok("agent/start", json!({"agent": agents[1]})).await;
    let view = api.agent_is(&agents[1], "ready").await;
    assert_eq!(program(&view), new, "a restart did not bring the newer keeper");
    for agent in agents.iter().chain([&created]) {
        assert_eq!(api.answer(agent, agent, "[[reply:fine]]").await, "fine");
    }
    let view = api.ok("agent/get", json!({"agent": agents[2]})).await;
    assert_eq!(program(&view), old);
    assert_eq!(events(&mut api, "lineage.adopted").await.len(), AGENTS);
}
