//! Everything that the daemon lists, page by page: agents, sessions and turns are the requested ones.

use std::collections::BTreeSet;

use lodge_proto::client::{Client, ClientError};
use lodge_proto::{
    AgentListParams, ListAgents, ListSessions, ListTurns, PAGE_MAX, SessionListParams, TurnListParams,
};

use super::edited::EditedSessions;
use super::report::BrokenPromise;
use super::world::CrashWorld;

impl CrashWorld {
    /// Every listed agent, session and turn was requested, and none is lost. Returns the sessions.
    pub async fn check_sessions(&mut self, client: &mut Client) -> BTreeSet<String> {
        let mut listed = BTreeSet::new();
        match all_agents(client).await {
            Ok(agents) => {
                let known = self.agents.iter().map(|agent| agent.id.clone()).collect();
                self.report.broken.extend(differ("agent", &agents, &known));
            }
            Err(error) => self.report.add(BrokenPromise::Lost, format!("the agents: {error}")),
        }
        for at in 0..self.agents.len() {
            let agent = self.agents[at].id.clone();
            match all_sessions(client, &agent).await {
                Ok(sessions) => listed.extend(sessions),
                Err(error) => {
                    self.report.add(BrokenPromise::Lost, format!("the sessions of {agent}: {error}"))
                }
            }
        }
        let mut turns = BTreeSet::new();
        for session in listed.iter().filter(|session| !EditedSessions::is_one(session)) {
            match all_turns(client, session).await {
                Ok(found) => turns.extend(found),
                Err(error) => {
                    self.report.add(BrokenPromise::Lost, format!("the turns of {session}: {error}"))
                }
            }
        }
        let sent = self.sent.iter().filter_map(|sent| sent.turn.clone());
        let known = sent.chain(self.settled.iter().cloned()).collect();
        self.report.broken.extend(differ("turn", &turns, &known));
        listed
    }

    /// No agent had more runtimes than the first one and one for each that was killed, or whose keeper was.
    pub async fn check_runs(&mut self) {
        for at in 0..self.agents.len() {
            let (id, killed) = (self.agents[at].id.clone(), self.agents[at].killed);
            match self.agent(&id).await {
                Ok(detail) => self.report.broken.extend(replaced_needlessly(&id, detail.runs, killed)),
                Err(error) => self.report.add(BrokenPromise::Lost, format!("agent {id}: {error}")),
            }
        }
    }
}

/// Unrequested entries that are listed, and acknowledged entries that are not.
fn differ(what: &str, listed: &BTreeSet<String>, known: &BTreeSet<String>) -> Vec<(BrokenPromise, String)> {
    let strange = listed
        .difference(known)
        .map(|id| (BrokenPromise::Duplicated, format!("{what} {id} was not created by the test")));
    let lost = known.difference(listed).map(|id| (BrokenPromise::Lost, format!("{what} {id} is not listed")));
    strange.chain(lost).collect()
}

/// One death may be answered by one new runtime; two that come together, by one as well.
fn replaced_needlessly(id: &str, runs: u32, killed: u32) -> Option<(BrokenPromise, String)> {
    let what =
        || (BrokenPromise::Keeper, format!("{id} had {runs} runtimes, and {killed} of them were killed"));
    (runs > killed + 1).then(what)
}

async fn all_agents(client: &mut Client) -> Result<BTreeSet<String>, ClientError> {
    let mut params = AgentListParams { all: true, limit: Some(PAGE_MAX), ..AgentListParams::default() };
    let mut found = BTreeSet::new();
    loop {
        let page = client.call::<ListAgents>(&params).await?;
        found.extend(page.agents.into_iter().map(|view| view.id));
        params.after = page.next;
        if params.after.is_none() {
            return Ok(found);
        }
    }
}

async fn all_sessions(client: &mut Client, agent: &str) -> Result<Vec<String>, ClientError> {
    let mut params = SessionListParams { agent: Some(agent.to_owned()), after: None, limit: Some(PAGE_MAX) };
    let mut found = Vec::new();
    loop {
        let page = client.call::<ListSessions>(&params).await?;
        found.extend(page.sessions.into_iter().map(|view| view.id));
        params.after = page.next;
        if params.after.is_none() {
            return Ok(found);
        }
    }
}

pub async fn all_turns(client: &mut Client, session: &str) -> Result<Vec<String>, ClientError> {
    let mut params =
        TurnListParams { session: session.to_owned(), limit: Some(PAGE_MAX), ..TurnListParams::default() };
    let mut found = Vec::new();
    loop {
        let page = client.call::<ListTurns>(&params).await?;
        found.extend(page.turns.into_iter().map(|view| view.id));
        params.after = page.next;
        if params.after.is_none() {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn a_turn_that_nobody_sent_and_one_that_is_in_no_session_are_noticed() {
        let found = |listed: &[&str]| -> Vec<BrokenPromise> {
            differ("turn", &set(listed), &set(&["a", "b"])).into_iter().map(|(broken, _)| broken).collect()
        };
        assert_eq!(found(&["a", "b"]), []);
        assert_eq!(found(&["a", "b", "twin of b"]), [BrokenPromise::Duplicated]);
        assert_eq!(found(&["a"]), [BrokenPromise::Lost]);
    }

    #[test]
    fn a_runtime_that_was_replaced_although_nobody_killed_it_is_noticed() {
        assert_eq!(replaced_needlessly("agt_1", 3, 2), None);
        assert_eq!(replaced_needlessly("agt_1", 2, 2), None);
        assert!(
            replaced_needlessly("agt_1", 2, 0).is_some_and(|(broken, _)| broken == BrokenPromise::Keeper)
        );
    }
}
