//! The checks after the last kill: everything is present, once, and correct.

use std::collections::BTreeMap;

use lodge_proto::client::{Client, ClientError};
use lodge_proto::{
    GetTurn, ListMessages, MessageView, PAGE_MAX, SessionMessagesParams, ShutDownDaemon, ShutdownParams,
    TurnRef,
};

use super::job_check::JobViews;
use super::report::BrokenPromise;
use super::turns::{ExpectedEffects, JudgedTurn};
use super::world::CrashWorld;
use crate::lodge::PATIENCE;
use crate::processes::{self, StateDirCgroups};
use crate::trouble::{Trouble, refused};

impl CrashWorld {
    /// Lets everything come to its end, checks it against what was planned, and takes it down.
    pub async fn check(&mut self) -> Result<(), Trouble> {
        self.settle().await?;
        self.prompt_for_notes().await?;
        self.check_adoption().await?;
        self.expect_no_quarantine().await?;
        // One keeper for each agent, and no other.
        self.expect_keepers(self.agents.len()).await;
        self.ask_for_old_changes().await;
        self.check_tokens().await;
        let mut expected = ExpectedEffects::default();
        let jobs = self.check_jobs(&mut expected).await?;
        self.check_conversations(&jobs, &mut expected).await?;
        self.check_effects(expected);
        self.check_runs().await;
        self.stop_agents().await?;
        self.expect_nothing_left();
        self.check_events(&jobs).await?;
        self.check_requests();
        self.take_down().await
    }

    /// Looks at every turn that was sent, and adds how often each effect may have happened.
    async fn check_conversations(
        &mut self,
        jobs: &JobViews,
        expected: &mut ExpectedEffects,
    ) -> Result<(), Trouble> {
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        let sessions = self.check_sessions(&mut client).await;
        self.check_edited(&sessions).await?;
        let mut messages: BTreeMap<String, Vec<MessageView>> = BTreeMap::new();
        for session in sessions {
            match all_messages(&mut client, &session).await {
                Ok(found) => drop(messages.insert(session, found)),
                Err(error) => self.report.add(BrokenPromise::Lost, format!("session {session}: {error}")),
            }
        }
        self.check_notes(jobs, &messages);
        for sent in &self.sent {
            let Some(turn) = &sent.turn else {
                self.report
                    .add(BrokenPromise::Wrong, format!("message {} was never answered", sent.plan.token));
                continue;
            };
            let view = match client.call::<GetTurn>(&TurnRef { turn: turn.clone() }).await {
                Ok(view) => view,
                Err(error) => {
                    let what = format!("turn {turn} ({}): {error}", sent.plan.token);
                    self.report.add(BrokenPromise::Lost, what);
                    expected.once(sent);
                    continue;
                }
            };
            let session = sent.session.as_ref().and_then(|session| messages.get(session));
            let session = session.map_or(&[][..], Vec::as_slice);
            let turn = JudgedTurn { sent, view: &view, session, falls: &self.falls, jobs };
            turn.check(&mut self.report, expected);
        }
        Ok(())
    }

    /// Each effect as often as it may have happened, and no unrequested effect.
    fn check_effects(&mut self, expected: ExpectedEffects) {
        let mut seen: BTreeMap<String, u64> = BTreeMap::new();
        for effect in self.effects.seen() {
            *seen.entry(effect).or_default() += 1;
            self.report.effects += 1;
        }
        for (effect, range) in expected.effects {
            let count = seen.remove(&effect).unwrap_or(0);
            if count < *range.start() {
                self.report.add(BrokenPromise::Lost, format!("effect {effect} never happened"));
            } else if count > *range.end() {
                let what = format!("effect {effect} happened {count} times, and may have {}", range.end());
                self.report.add(BrokenPromise::Duplicated, what);
            }
            self.report.repeated += count.saturating_sub(1);
        }
        for effect in seen.into_keys().filter(|effect| !self.unasked.contains(effect)) {
            self.report.add(BrokenPromise::Wrong, format!("effect {effect} was never asked for"));
        }
    }

    /// Ends the daemon in the ordinary way. Nothing of this state directory lives on.
    async fn take_down(&mut self) -> Result<(), Trouble> {
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        let ended = client
            .call::<ShutDownDaemon>(&ShutdownParams { agents: true, ..ShutdownParams::default() })
            .await;
        if let Err(error) = ended {
            self.report.add(BrokenPromise::Wrong, format!("the daemon did not take its leave: {error}"));
        }
        drop(client);
        let ended = self.lodge.wait_ended(PATIENCE).await?;
        if ended.is_none_or(|status| !status.success()) {
            self.report
                .add(BrokenPromise::Wrong, format!("the daemon did not exit normally, but with {ended:?}"));
        }
        self.expect_nothing_left();
        Ok(())
    }

    /// No process and no cgroup of this state directory. What ended something has waited until it was gone.
    fn expect_nothing_left(&mut self) {
        for (pid, line) in processes::of(&self.lodge.home()) {
            self.report.add(BrokenPromise::LeftBehind, format!("process {pid}: {line}"));
        }
        for path in self.cgroups.iter().flat_map(StateDirCgroups::left) {
            self.report.add(BrokenPromise::LeftBehind, format!("cgroup {}", path.display()));
        }
    }
}

pub async fn all_messages(client: &mut Client, session: &str) -> Result<Vec<MessageView>, ClientError> {
    let mut found: Vec<MessageView> = Vec::new();
    let mut before = None;
    loop {
        let params = SessionMessagesParams {
            session: session.to_owned(),
            before,
            limit: Some(PAGE_MAX),
            ..SessionMessagesParams::default()
        };
        let page = client.call::<ListMessages>(&params).await?;
        found.splice(0..0, page.messages);
        before = page.next;
        if before.is_none() {
            return Ok(found);
        }
    }
}
