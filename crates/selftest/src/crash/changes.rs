//! Changes while the daemon dies: of sessions, agents and tokens. An acknowledged change is present, and a repeated
//! request is one change.

use std::process::ExitStatus;
use std::time::Instant;

use lodge_proto::client::{Client, ClientError};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::CrashSetup;
use super::agents::ExpectedKeeper;
use super::edited::{EditedSession, EditedTurn};
use super::plan::{TurnPlan, TurnShape};
use super::report::{BrokenPromise, CrashReport};
use super::talk::{answer_of, is_absence};
use super::tokens::IssuedToken;
use super::world::{CrashWorld, LOOK, through};
use crate::lodge::{DaemonStatus, PATIENCE};
use crate::processes::KeeperProcess;
use crate::trouble::{Trouble, refused};

/// The agent whose conversations are changed: the one that forgets nothing, so that no two summaries are the same.
pub const EDITOR: usize = 2;
/// The longest wait of a kill after a change was requested: within the commit, within the answer, later.
const KILL_US: [u64; 3] = [2_000, 8_000, 60_000];
/// Conversations that are changed at the same time, and turns in one.
const CONVERSATIONS_MAX: usize = 3;
const TURNS_MAX: usize = 5;
/// Earlier changes that are requested again at the end.
const ASKED_AGAIN_MAX: usize = 12;
/// Changes that are made undisturbed before one is not; one less at most.
const QUIET_MAX: u64 = 4;
/// The percentage of changes that go to a daemon that dies when it is about to write.
const ARMED_PERCENT: u64 = 30;
const ARMED: &str = "before_commit";

/// A change, and what has to be true once it is acknowledged.
#[derive(Debug)]
pub struct RequestedChange {
    pub method: &'static str,
    params: Value,
    what: ChangeKind,
}

#[derive(Debug)]
enum ChangeKind {
    /// `at` is the place of the conversation; none: it is new.
    Send {
        at: Option<usize>,
        session: String,
        plan: TurnPlan,
    },
    Fork {
        at: usize,
        turns: usize,
        to: String,
    },
    Rewind {
        at: usize,
        turns: usize,
    },
    Regenerate {
        at: usize,
        place: usize,
    },
    Activate {
        at: usize,
        tip: String,
    },
    Delete {
        at: usize,
    },
    Label {
        agent: usize,
        key: String,
    },
    /// Of its environment: with another runtime than this.
    Variable {
        agent: usize,
        key: String,
        keeper: KeeperProcess,
    },
    Restart {
        agent: usize,
        keeper: KeeperProcess,
    },
    Issue {
        agent: Option<usize>,
        name: String,
    },
    Revoke {
        at: usize,
    },
}

/// A change that was acknowledged, and how.
#[derive(Debug)]
pub struct AcknowledgedChange {
    method: &'static str,
    params: Value,
    answer: Value,
}

/// Makes one change after the other, with a kill during each or before it.
pub async fn changes(setup: &CrashSetup, kills: u64) -> CrashReport {
    through(setup, EDITOR + 1, async |world| {
        while world.report.kills < kills && world.report.is_clean() {
            world.change_and_die().await?;
        }
        Ok(())
    })
    .await
    .unwrap_or_else(CrashReport::from)
}

impl CrashWorld {
    /// Makes one change and kills the daemon meanwhile: at a moment, or where it is about to write.
    pub async fn change_and_die(&mut self) -> Result<(), Trouble> {
        self.send_some();
        for _ in 0..self.rng.below(QUIET_MAX) {
            let change = self.plan_change().await?;
            self.change_alone(change).await?;
        }
        let change = self.plan_change().await?;
        let stands = if self.rng.percent(ARMED_PERCENT) { self.arm().await? } else { DaemonStatus::Answers };
        let answer = match stands {
            DaemonStatus::Ended(_) => {
                self.note_armed();
                Err(ClientError::Lost)
            }
            DaemonStatus::Starting | DaemonStatus::Answers => {
                let mut asking = JoinSet::new();
                asking.spawn(self.ask(change.method, &change.params));
                let within_us = *self.rng.pick(&KILL_US);
                self.delay(within_us).await;
                match self.lodge.ended()? {
                    Some(_) => self.note_armed(),
                    None => self.kill(&format!("during {}", change.method))?,
                }
                answer_of(asking).await
            }
        };
        self.gather().await;
        self.start_again().await?;
        self.send_again();
        self.gather().await;
        self.finish_change(change, answer).await
    }

    /// Starts a daemon that dies when it is about to write for the n-th time, and waits until it answers or has.
    async fn arm(&mut self) -> Result<DaemonStatus, Trouble> {
        let nth = 2 + self.rng.below(4);
        self.kill("to arm a point")?;
        self.lodge.set_env("LODGED_CRASH_AT", &format!("{ARMED}:{nth}"));
        self.lodge.spawn()?;
        self.lodge.unset_env("LODGED_CRASH_AT");
        let until = Instant::now() + PATIENCE;
        loop {
            match self.lodge.look()? {
                DaemonStatus::Starting if Instant::now() < until => tokio::time::sleep(LOOK).await,
                stands => return Ok(stands),
            }
        }
    }

    fn note_armed(&mut self) {
        self.note_kill("daemon");
        *self.report.points.entry(ARMED.to_owned()).or_default() += 1;
    }

    pub fn ask(
        &self,
        method: &'static str,
        params: &Value,
    ) -> impl Future<Output = Result<Value, ClientError>> + use<> {
        let (target, token, params) = (self.lodge.target(), self.lodge.bearer(), params.clone());
        async move { Client::connect(&target, &token).await?.call_value(method, params).await }
    }

    /// Asks for something until there is an answer to it.
    pub async fn ask_until_answered(
        &self,
        method: &'static str,
        params: &Value,
        mut answer: Result<Value, ClientError>,
    ) -> Result<Value, ClientError> {
        let until = Instant::now() + PATIENCE;
        while answer.as_ref().is_err_and(is_absence) && Instant::now() < until {
            answer = self.ask(method, params).await;
        }
        answer
    }

    /// Something to change, once and undisturbed.
    pub async fn begin_conversation(&mut self) -> Result<(), Trouble> {
        if self.edited.live.is_empty() {
            let (method, params, what) = self.plan_send(None);
            let change = self.numbered(method, params, what);
            self.change_alone(change).await?;
        }
        Ok(())
    }

    async fn change_alone(&mut self, change: RequestedChange) -> Result<(), Trouble> {
        let answer = self.ask(change.method, &change.params).await;
        self.finish_change(change, answer).await
    }

    /// Requests a change that kills a daemon after the write and before the answer.
    pub async fn change_to_death(&mut self) -> Result<Option<ExitStatus>, Trouble> {
        self.lodge.wait_ready().await?;
        let change = self.plan_recorded();
        let answer = self.ask(change.method, &change.params).await;
        let died = self.lodge.wait_ended(PATIENCE).await?;
        if let Ok(answer) = answer {
            self.report.add(BrokenPromise::Wrong, format!("{} was answered: {answer}", change.method));
        }
        self.pending = Some(change);
        Ok(died)
    }

    pub async fn check_changed(&mut self) -> Result<(), Trouble> {
        let Some(change) = self.pending.take() else { return Ok(()) };
        self.finish_change(change, Err(ClientError::Lost)).await
    }

    /// Asks until a change is acknowledged, and sees that it is there, and there once.
    pub async fn finish_change(
        &mut self,
        change: RequestedChange,
        answer: Result<Value, ClientError>,
    ) -> Result<(), Trouble> {
        let (method, params) = (change.method, change.params.clone());
        let answer = match self.ask_until_answered(method, &params, answer).await {
            Ok(answer) => answer,
            Err(error) => {
                let what = format!("{method} {params}, asked until it was answered: {error:?}");
                self.report.add(BrokenPromise::Wrong, what);
                return Ok(());
            }
        };
        let at = self.take_change(change.what, &answer).await?;
        if self.rng.percent(50) {
            self.repeat_request(method, &params, &answer).await;
            if let Some(at) = at {
                self.check_path(at).await?;
            }
            self.check_adoption().await?;
        }
        self.answered.push(AcknowledgedChange { method, params, answer });
        Ok(())
    }

    /// The same request again has the same answer.
    async fn repeat_request(&mut self, method: &'static str, params: &Value, answer: &Value) {
        match self.ask(method, params).await {
            Ok(again) if again == *answer => {}
            other => {
                let what = format!("{method} {params} was answered with {answer}, and again: {other:?}");
                self.report.add(BrokenPromise::Duplicated, what);
            }
        }
    }

    /// At the end, some old changes are requested again: nothing changes.
    pub async fn ask_for_old_changes(&mut self) {
        let mut answered = std::mem::take(&mut self.answered);
        while answered.len() > ASKED_AGAIN_MAX {
            let at = usize::try_from(self.rng.below(answered.len() as u64)).unwrap_or(0);
            answered.swap_remove(at);
        }
        for AcknowledgedChange { method, params, answer } in answered {
            self.repeat_request(method, &params, &answer).await;
        }
    }

    async fn plan_change(&mut self) -> Result<RequestedChange, Trouble> {
        let (method, params, what) = match self.rng.below(10) {
            0..6 => self.plan_edit(),
            6..8 => self.plan_agent().await?,
            _ => self.plan_token(),
        };
        Ok(self.numbered(method, params, what))
    }

    /// A change that is recorded immediately, regardless of other work.
    fn plan_recorded(&mut self) -> RequestedChange {
        let (method, params, what) = match self.plan_edit() {
            (_, _, ChangeKind::Send { .. }) => self.plan_token(),
            edit => edit,
        };
        self.numbered(method, params, what)
    }

    fn numbered(&mut self, method: &'static str, mut params: Value, what: ChangeKind) -> RequestedChange {
        params["request_id"] = format!("change-{}-{:x}", self.report.kills, self.rng.next()).into();
        RequestedChange { method, params, what }
    }

    fn plan_edit(&mut self) -> (&'static str, Value, ChangeKind) {
        let count = self.edited.live.len();
        let at = usize::try_from(self.rng.below(count as u64)).unwrap_or(0);
        let Some(edited) = self.edited.live.get(at) else { return self.plan_send(None) };
        let (session, turns) = (edited.session.clone(), edited.path.len());
        let (branches, last) = (edited.branches(), edited.path.last().map(|said| said.turn.clone()));
        let place = usize::try_from(self.rng.below(turns as u64)).unwrap_or(0);
        match self.rng.below(10) {
            0 if count < CONVERSATIONS_MAX => self.plan_send(None),
            1..3 if turns > 0 => {
                let params = json!({"session": session, "turn": place.to_string()});
                ("session/rewind", params, ChangeKind::Rewind { at, turns: place })
            }
            3..5 if turns > 0 => {
                let (turn, place) = match last.filter(|_| self.rng.percent(70)) {
                    Some(last) => (last, turns - 1),
                    None => ((place + 1).to_string(), place),
                };
                let params = json!({"session": session, "turn": turn});
                ("session/regenerate", params, ChangeKind::Regenerate { at, place })
            }
            5 | 6 if turns > 0 && count < CONVERSATIONS_MAX => {
                let (to, turns) = (self.edited.name(), place + 1);
                let params = json!({"session": session, "turn": turns.to_string(), "to": to});
                ("session/fork", params, ChangeKind::Fork { at, turns, to })
            }
            7 | 8 if !branches.is_empty() => {
                let tip = self.rng.pick(&branches).clone();
                let params = json!({"session": session, "turn": tip});
                ("session/branches/activate", params, ChangeKind::Activate { at, tip })
            }
            9 => ("session/delete", json!({"session": session}), ChangeKind::Delete { at }),
            _ if turns < TURNS_MAX => self.plan_send(Some(at)),
            _ => {
                let params = json!({"session": session, "turn": "1"});
                ("session/rewind", params, ChangeKind::Rewind { at, turns: 1 })
            }
        }
    }

    fn plan_send(&mut self, at: Option<usize>) -> (&'static str, Value, ChangeKind) {
        let known = at.and_then(|at| self.edited.live.get(at)).map(|edited| edited.session.clone());
        let session = known.unwrap_or_else(|| self.edited.name());
        let token = format!("E{}x{:06x}", self.edited.turns.len(), self.rng.next() & 0xff_ffff);
        let lines = self.lines();
        let plan = TurnPlan::new(self.setup.model, TurnShape::Plain, &token, &lines, &mut self.rng);
        let agent = &self.agents[EDITOR].id;
        let params = json!({"agent": agent, "session": session, "text": plan.text});
        ("turn/send", params, ChangeKind::Send { at, session, plan })
    }

    async fn plan_agent(&mut self) -> Result<(&'static str, Value, ChangeKind), Trouble> {
        let at = usize::try_from(self.rng.below(self.agents.len() as u64)).unwrap_or(0);
        let key = format!("CHANGE_{:X}", self.rng.next());
        let kind = self.rng.below(3);
        if kind > 0 {
            // A restart interrupts running work; an update waits for it, and may find nothing to do.
            if kind == 2 || self.rng.percent(50) {
                self.settle().await?;
            }
            self.check_adoption().await?;
            self.agents[at].expect = ExpectedKeeper::Either;
            // Its place may be taken by another, and once more when that one's start is cut short.
            self.agents[at].killed += 1;
        }
        let (agent, keeper) = (self.agents[at].id.clone(), self.agents[at].keeper);
        Ok(match kind {
            0 => {
                let params = json!({"agent": agent, "labels": {key.as_str(): "x"}});
                ("agent/update", params, ChangeKind::Label { agent: at, key })
            }
            1 => {
                let params = json!({"agent": agent, "env": {key.as_str(): "x"}});
                ("agent/update", params, ChangeKind::Variable { agent: at, key, keeper })
            }
            _ => ("agent/restart", json!({"agent": agent}), ChangeKind::Restart { agent: at, keeper }),
        })
    }

    fn plan_token(&mut self) -> (&'static str, Value, ChangeKind) {
        let at = usize::try_from(self.rng.below(self.tokens.len() as u64)).unwrap_or(0);
        if let Some(token) = self.tokens.get(at).filter(|_| self.rng.percent(50)) {
            return ("token/revoke", json!({"token": token.id}), ChangeKind::Revoke { at });
        }
        let name = format!("token {:x}", self.rng.next());
        let agent = self.rng.percent(50).then_some(EDITOR);
        let holder = agent.map(|agent| self.agents[agent].id.clone());
        ("token/issue", json!({"agent": holder, "name": name}), ChangeKind::Issue { agent, name })
    }

    /// Takes in what was acknowledged, and looks whether it is so. Returns the conversation that it is about.
    async fn take_change(&mut self, what: ChangeKind, answer: &Value) -> Result<Option<usize>, Trouble> {
        let id = answer["id"].as_str().unwrap_or_default().to_owned();
        match what {
            ChangeKind::Send { .. }
            | ChangeKind::Fork { .. }
            | ChangeKind::Rewind { .. }
            | ChangeKind::Regenerate { .. }
            | ChangeKind::Activate { .. }
            | ChangeKind::Delete { .. } => self.take_edit(what, id).await,
            ChangeKind::Label { agent, key } => {
                match self.agent(&self.agents[agent].id).await {
                    Ok(detail) if detail.agent.labels.contains_key(&key) => {}
                    other => self.report.add(BrokenPromise::Lost, format!("the label {key} of {other:?}")),
                }
                Ok(None)
            }
            ChangeKind::Variable { agent, key, keeper } => {
                self.expect_replaced(agent, keeper, Some(&key)).await?;
                Ok(None)
            }
            ChangeKind::Restart { agent, keeper } => {
                self.expect_replaced(agent, keeper, None).await?;
                Ok(None)
            }
            ChangeKind::Issue { agent, name } => {
                let value = answer["token"].as_str().unwrap_or_default().to_owned();
                let token = IssuedToken { id, value, agent };
                self.expect_open(&token).await;
                self.expect_one_token(&token.id, &name).await?;
                self.tokens.push(token);
                Ok(None)
            }
            ChangeKind::Revoke { at } => {
                let token = self.tokens.swap_remove(at);
                self.expect_closed(&token).await;
                self.revoked.push(token);
                Ok(None)
            }
        }
    }

    async fn take_edit(&mut self, what: ChangeKind, id: String) -> Result<Option<usize>, Trouble> {
        let at = match what {
            ChangeKind::Send { at, session, plan } => {
                let said = EditedTurn { turn: id, plan };
                self.wait_for_turn(&said).await?;
                let at = at.unwrap_or_else(|| {
                    self.edited.live.push(EditedSession::new(&session, Vec::new()));
                    self.edited.live.len() - 1
                });
                self.edited.live[at].path.push(said);
                at
            }
            ChangeKind::Regenerate { at, place } => {
                let plan = self.edited.live[at].path[place].plan.clone();
                let said = EditedTurn { turn: id, plan };
                self.wait_for_turn(&said).await?;
                self.edited.live[at].rewind(place);
                self.edited.live[at].path.push(said);
                at
            }
            ChangeKind::Rewind { at, turns } => {
                self.edited.live[at].rewind(turns);
                at
            }
            ChangeKind::Activate { at, tip } => {
                self.edited.live[at].activate(&tip);
                at
            }
            ChangeKind::Fork { at, turns, to } => {
                let path = self.copied(at, turns, &to).await?;
                self.edited.live.push(EditedSession::new(&to, path));
                self.check_path(at).await?;
                self.edited.live.len() - 1
            }
            ChangeKind::Delete { at } => {
                let edited = self.edited.live.remove(at);
                self.expect_deleted(&edited.session).await?;
                self.edited.deleted.push(edited.session);
                return Ok(None);
            }
            ChangeKind::Label { .. }
            | ChangeKind::Variable { .. }
            | ChangeKind::Restart { .. }
            | ChangeKind::Issue { .. }
            | ChangeKind::Revoke { .. } => return Ok(None),
        };
        self.check_path(at).await?;
        Ok(Some(at))
    }

    /// The turns of a copy: their ids are new, their words are those of the original.
    async fn copied(&mut self, at: usize, turns: usize, to: &str) -> Result<Vec<EditedTurn>, Trouble> {
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        let ids = super::listings::all_turns(&mut client, to).await.unwrap_or_default();
        let original = self.edited.live[at].path.iter().take(turns);
        let copies = ids.into_iter().zip(original.map(|said| said.plan.clone()));
        Ok(copies.map(|(turn, plan)| EditedTurn { turn, plan }).collect())
    }
}
