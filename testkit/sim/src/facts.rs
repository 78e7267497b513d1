//! Compares an engine's memory with its own indexes and with a restart.

use std::collections::{BTreeMap, BTreeSet};

use lodge_core::AgentId;
use lodge_core::agent::AgentState;
use lodge_core::limits::AGENT_TURNS_MAX;
use lodge_core::turn::TurnState;
use lodge_engine::{Engine, Facts};

use crate::jobs::jobs_agree;

/// All indexes of the engine's memory are consistent.
pub(crate) fn check_indexes(facts: &Facts) -> Result<(), String> {
    let mut running = BTreeMap::new();
    let mut open = BTreeSet::new();
    for (id, turn) in &facts.turns {
        let session = facts.sessions.get(&turn.row.session);
        if session.is_none_or(|session| !session.live.contains(id)) {
            return Err(format!("{id} is live, and its session does not know"));
        }
        match turn.row.state {
            TurnState::Running | TurnState::Waiting => {
                let runs = usize::from(turn.row.state == TurnState::Running);
                *running.entry(&turn.row.agent).or_insert(0) += runs;
                if session.and_then(|session| session.live.first()) != Some(id) {
                    return Err(format!("{id} runs out of order"));
                }
            }
            TurnState::Queued => {}
            TurnState::Done | TurnState::Interrupted | TurnState::Failed => {
                return Err(format!("{id} is over, and the engine holds it"));
            }
        }
        open.extend(turn.open.iter().filter_map(|(_, exec)| Some((exec.clone()?, id.clone()))));
    }
    if !open.iter().map(|(exec, turn)| (exec, turn)).eq(facts.execs.iter()) {
        return Err(format!("open calls are {open:?}, and known execs {:?}", facts.execs));
    }
    for (id, agent) in &facts.agents {
        let count = running.get(id).copied().unwrap_or(0);
        if agent.running != count || !facts.names.contains(&agent.row.name) {
            return Err(format!("{id} counts {} running turns, and has {count}", agent.running));
        }
    }
    let live: usize = facts.sessions.values().map(|session| session.live.len()).sum();
    if live != facts.turns.len() {
        return Err("sessions hold something that is not there".to_owned());
    }
    Ok(())
}

/// An agent that has a slot and only waits for a job.
fn find_sleeper(facts: &Facts) -> Option<&AgentId> {
    let sleeps = |id: &AgentId| {
        let mut runs =
            facts.turns.values().filter(|turn| turn.row.agent == *id && turn.row.state == TurnState::Running);
        runs.all(|turn| facts.asleep.contains(&turn.row.id))
    };
    let mut rests = facts.agents.iter().filter(|(_, agent)| {
        agent.running > 0 && agent.row.next.is_none() && agent.row.state == AgentState::Ready
    });
    rests.find(|(id, _)| sleeps(id)).map(|(id, _)| id)
}

/// Slots are counted correctly, and a turn that waits for its provider has none. While an agent waits for a slot, none is free or occupied by an agent that only waits for jobs.
pub(crate) fn check_slots(engine: &Engine) -> Result<(), String> {
    let (facts, sizes) = (engine.facts(), engine.sizes());
    jobs_agree(&facts, &sizes)?;
    let working = facts.agents.values().filter(|agent| agent.running > 0).count();
    if working != sizes.working {
        return Err(format!("{working} agents work, and {} are counted", sizes.working));
    }
    let held = engine.held_turns();
    for (id, turn) in &facts.turns {
        if held.contains(id) && turn.row.state == TurnState::Running {
            return Err(format!("{id} waits for its provider, and has a slot"));
        }
        let (Some(agent), Some(session)) =
            (facts.agents.get(&turn.row.agent), facts.sessions.get(&turn.row.session))
        else {
            return Err(format!("{id} has no agent or no session"));
        };
        let could = turn.row.state != TurnState::Running
            && session.live.first() == Some(id)
            && !held.contains(id)
            && !facts.quarantine.values().any(|row| row.work.subject == id.as_str())
            && agent.row.state == AgentState::Ready
            && agent.row.next.is_none()
            && agent.running < AGENT_TURNS_MAX;
        if could && (agent.running > 0 || working < sizes.max_concurrent) {
            return Err(format!("{id} waits, and {working} of {} slots are taken", sizes.max_concurrent));
        }
        if could
            && !facts.asleep.contains(id)
            && let Some(other) = find_sleeper(&facts)
        {
            return Err(format!("{id} waits, and {other} has a slot and waits for jobs"));
        }
    }
    for (id, agent) in facts.agents.iter().filter(|(_, agent)| agent.running > 0) {
        if !agent.row.state.takes_turns() {
            return Err(format!("{id} is {} and has a slot", agent.row.state));
        }
    }
    Ok(())
}

/// A short description of the difference between an engine and its restart.
pub(crate) fn describe_difference(memory: &Facts, found: &Facts) -> String {
    let mut words = vec!["a restart would find something else".to_owned()];
    for (id, turn) in &memory.turns {
        if found.turns.get(id) != Some(turn) {
            words.push(format!("held {turn:?}, found {:?}", found.turns.get(id)));
        }
    }
    for id in found.turns.keys().filter(|id| !memory.turns.contains_key(id)) {
        words.push(format!("{id} is not held"));
    }
    for (id, agent) in &memory.agents {
        if found.agents.get(id) != Some(agent) {
            words.push(format!("held {agent:?}, found {:?}", found.agents.get(id)));
        }
    }
    for (id, session) in &memory.sessions {
        if found.sessions.get(id) != Some(session) {
            words.push(format!("held {session:?}, found {:?}", found.sessions.get(id)));
        }
    }
    if memory.streams != found.streams || memory.seq != found.seq {
        words.push(format!(
            "held {} {:?}, found {} {:?}",
            memory.seq, memory.streams, found.seq, found.streams
        ));
    }
    if memory.names != found.names || memory.image_users != found.image_users {
        let (memory, found) = ((&memory.names, &memory.image_users), (&found.names, &found.image_users));
        words.push(format!("held {memory:?}, found {found:?}"));
    }
    if memory.tokens != found.tokens || memory.image_refs != found.image_refs {
        let (memory, found) = ((&memory.tokens, &memory.image_refs), (&found.tokens, &found.image_refs));
        words.push(format!("held {memory:?}, found {found:?}"));
    }
    if memory.images != found.images {
        words.push(format!("held {:?}, found {:?}", memory.images, found.images));
    }
    for (id, job) in &memory.jobs {
        if found.jobs.get(id) != Some(job) {
            words.push(format!("held {job:?}, found {:?}", found.jobs.get(id)));
        }
    }
    for id in found.jobs.keys().filter(|id| !memory.jobs.contains_key(id)) {
        words.push(format!("{id} is not held"));
    }
    if memory.execs != found.execs {
        words.push(format!("held {:?}, found {:?}", memory.execs, found.execs));
    }
    words.join("\n  ")
}
