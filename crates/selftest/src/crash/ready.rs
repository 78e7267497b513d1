//! Agents that are there and answer: after a start, after a death, after every restart.

use std::time::{Duration, Instant};

use lodge_proto::{AgentDetail, AgentView, EventKind};

use super::agents::{CrashAgent, ExpectedKeeper};
use super::report::BrokenPromise;
use super::world::{CrashWorld, LOOK};
use crate::lodge::PATIENCE;
use crate::processes::{self, KeeperProcess};
use crate::trouble::Trouble;

/// Between two looks while the time is taken.
const LOOK_CLOSELY: Duration = Duration::from_millis(1);

impl CrashWorld {
    /// Waits until an agent is ready and its keeper is connected.
    pub async fn wait_ready(&self, id: &str) -> Result<CrashAgent, Trouble> {
        let until = Instant::now() + PATIENCE;
        loop {
            let seen = self.agent(id).await;
            if let Ok(AgentDetail { agent: view, .. }) = &seen
                && let Some(agent) = self.there(view)
            {
                return Ok(agent);
            }
            if Instant::now() >= until {
                let (agent, waited_s) = (id.to_owned(), PATIENCE.as_secs());
                return Err(Trouble::NotReady { agent, waited_s, last: format!("{seen:?}") });
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The agent, if it is ready and the keeper that the daemon names is the living one.
    fn there(&self, view: &AgentView) -> Option<CrashAgent> {
        let ("ready" | "working", Some(pid)) = (view.status.as_str(), view.pid) else { return None };
        let keeper = processes::keeper(&self.lodge.home(), &view.sandbox)?;
        (u32::try_from(keeper.pid) == Ok(pid)).then(|| CrashAgent::new(&view.id, &view.sandbox, keeper))
    }

    /// Starts the next daemon and takes the time until every agent is there and its runtime has answered.
    pub async fn start_again(&mut self) -> Result<(), Trouble> {
        let (began, from) = (Instant::now(), self.follower.count());
        self.lodge.start().await?;
        let mut missing: Vec<String> = self.agents.iter().map(|agent| agent.id.clone()).collect();
        while let Some(id) = missing.last() {
            let seen = self.agent(id).await;
            let is_there = seen.as_ref().is_ok_and(|detail| self.there(&detail.agent).is_some());
            if is_there && self.has_answered(id, from) {
                missing.pop();
            } else if began.elapsed() >= PATIENCE {
                let (agent, waited_s) = (id.clone(), PATIENCE.as_secs());
                return Err(Trouble::NotReady { agent, waited_s, last: format!("{seen:?}") });
            } else {
                tokio::time::sleep(LOOK_CLOSELY).await;
            }
        }
        self.report.recovery_us.push(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX));
        self.check_adoption().await?;
        self.check_some_jobs().await
    }

    /// Whether an agent's runtime has answered the daemon that started after the first `from` events.
    fn has_answered(&self, id: &str, from: usize) -> bool {
        self.follower.with(|events| {
            let started = events.iter().rposition(|event| event.is(EventKind::DaemonStarted));
            let since = started.filter(|at| *at >= from).and_then(|at| events.get(at..)).unwrap_or_default();
            since.iter().any(|event| {
                event.stream == id && event.is_any(&[EventKind::LineageAdopted, EventKind::AgentReady])
            })
        })
    }

    /// Every agent has the keeper it had before, and another one only where that was killed.
    pub async fn check_adoption(&mut self) -> Result<(), Trouble> {
        for at in 0..self.agents.len() {
            let now = self.wait_ready(&self.agents[at].id).await?.keeper;
            let agent = &mut self.agents[at];
            let before = std::mem::replace(&mut agent.keeper, now);
            match (agent.expect, now == before) {
                (ExpectedKeeper::Same | ExpectedKeeper::Either, true) => self.report.adoptions += 1,
                (ExpectedKeeper::Another | ExpectedKeeper::Either, false) => self.report.replaced += 1,
                (ExpectedKeeper::Same, false) | (ExpectedKeeper::Another, true) => {
                    let what = format!("{} had the keeper {before:?} and has {now:?}", agent.id);
                    self.report.add(BrokenPromise::Keeper, what);
                }
            }
            // One that is being replaced may be looked at before and after.
            agent.expect = match agent.expect {
                ExpectedKeeper::Same | ExpectedKeeper::Another => ExpectedKeeper::Same,
                ExpectedKeeper::Either => ExpectedKeeper::Either,
            };
        }
        Ok(())
    }

    /// Waits until an agent has another keeper than this, and the variable that it was given.
    pub async fn expect_replaced(
        &mut self,
        at: usize,
        keeper: KeeperProcess,
        variable: Option<&str>,
    ) -> Result<(), Trouble> {
        let (id, until) = (self.agents[at].id.clone(), Instant::now() + PATIENCE);
        loop {
            self.check_adoption().await?;
            let detail = self.agent(&id).await;
            let given = |key: &str| {
                let keys = detail.as_ref().map(|detail| detail.env_keys.as_slice()).unwrap_or_default();
                keys.iter().any(|known| known == key)
            };
            if self.agents[at].keeper != keeper && variable.is_none_or(given) {
                break;
            }
            if Instant::now() >= until {
                let what = format!("{id} should be another ({variable:?}) than {keeper:?}: {detail:?}");
                self.report.add(BrokenPromise::Lost, what);
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        self.agents[at].expect = ExpectedKeeper::Same;
        Ok(())
    }

    /// Waits until there are this many keepers in the state directory.
    pub async fn expect_keepers(&mut self, wanted: usize) {
        let until = Instant::now() + PATIENCE;
        loop {
            let found = processes::named(&self.lodge.home());
            let keepers = processes::keepers_in(&found);
            if keepers == wanted {
                return;
            }
            if Instant::now() >= until {
                let what = format!("{keepers} keepers instead of {wanted}: {found:?}");
                return self.report.add(BrokenPromise::Keeper, what);
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
