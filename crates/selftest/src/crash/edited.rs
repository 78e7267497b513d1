//! Conversations that are rewound, copied, done again and deleted, as they are known from outside.
//!
//! Every turn of them is a plain one whose answer is known. Turns outside them were never requested.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use lodge_proto::client::{Client, ClientError};
use lodge_proto::{GetSession, GetTurn, MessageView, SessionRef, TurnRef, error_code};

use super::check::all_messages;
use super::listings::all_turns;
use super::plan::TurnPlan;
use super::report::BrokenPromise;
use super::world::{CrashWorld, LOOK};
use crate::lodge::PATIENCE;
use crate::trouble::{Trouble, refused};

/// What their names begin with.
const EDITED: &str = "edit-";

/// One turn, and its message.
#[derive(Debug, Clone)]
pub struct EditedTurn {
    pub turn: String,
    pub plan: TurnPlan,
}

#[derive(Debug)]
pub struct EditedSession {
    pub session: String,
    pub path: Vec<EditedTurn>,
    /// The paths that were left, by their last turn.
    left: BTreeMap<String, Vec<EditedTurn>>,
}

impl EditedSession {
    pub fn new(session: &str, path: Vec<EditedTurn>) -> EditedSession {
        EditedSession { session: session.to_owned(), path, left: BTreeMap::new() }
    }

    /// The last turn of a path that is not there now.
    pub fn branches(&self) -> Vec<String> {
        self.left.keys().cloned().collect()
    }

    /// Keeps this many turns.
    pub fn rewind(&mut self, turns: usize) {
        let before = self.path.clone();
        self.path.truncate(turns);
        // Branches at these turns now start from the new path.
        self.left.retain(|tip, _| !before.iter().any(|said| said.turn == *tip));
        if let Some(tip) = before.last().filter(|_| before.len() > turns) {
            self.left.insert(tip.turn.clone(), before);
        }
    }

    pub fn activate(&mut self, tip: &str) {
        let Some(path) = self.left.remove(tip) else { return };
        let shared = self.path.iter().zip(&path).take_while(|(now, then)| now.turn == then.turn).count();
        self.rewind(shared);
        self.path = path;
    }
}

/// All of them, and their changes.
#[derive(Debug, Default)]
pub struct EditedSessions {
    pub live: Vec<EditedSession>,
    pub deleted: Vec<String>,
    /// Every turn that was ever run in one of them, with the text that was sent.
    pub turns: BTreeMap<String, String>,
    pub made: u64,
}

impl EditedSessions {
    pub fn name(&mut self) -> String {
        self.made += 1;
        format!("{EDITED}{}", self.made)
    }

    pub fn is_one(session: &str) -> bool {
        session.starts_with(EDITED)
    }

    /// How many turns have this text; none: it belongs to no turn here.
    pub fn texts(&self) -> BTreeMap<&str, usize> {
        let mut texts: BTreeMap<&str, usize> = BTreeMap::new();
        for text in self.turns.values() {
            *texts.entry(text).or_default() += 1;
        }
        texts
    }
}

impl CrashWorld {
    /// Waits for the end of a turn, and for the right one.
    pub async fn wait_for_turn(&mut self, said: &EditedTurn) -> Result<(), Trouble> {
        self.edited.turns.insert(said.turn.clone(), said.plan.text.clone());
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        let until = Instant::now() + PATIENCE;
        loop {
            let view = client.call::<GetTurn>(&TurnRef { turn: said.turn.clone() }).await;
            let live = view.as_ref().is_ok_and(|view| is_live(&view.status));
            match view {
                Ok(view) if view.status == "done" && view.text == said.plan.answer("", None) => return Ok(()),
                _ if live && Instant::now() < until => tokio::time::sleep(LOOK).await,
                other => {
                    // It was acknowledged: a missing turn is lost.
                    let broken = if other.is_err() { BrokenPromise::Lost } else { BrokenPromise::Wrong };
                    let what = format!("the turn of {} in a changed session: {other:?}", said.plan.token);
                    self.report.add(broken, what);
                    return Ok(());
                }
            }
        }
    }

    /// Every changed conversation is what was acknowledged, and there is no other.
    pub async fn check_edited(&mut self, listed: &BTreeSet<String>) -> Result<(), Trouble> {
        let known: BTreeSet<String> = self.edited.live.iter().map(|edited| edited.session.clone()).collect();
        let found: BTreeSet<String> =
            listed.iter().filter(|session| EditedSessions::is_one(session)).cloned().collect();
        for session in found.difference(&known) {
            self.report
                .add(BrokenPromise::Duplicated, format!("session {session} was not created by the test"));
        }
        for session in known.difference(&found) {
            self.report.add(BrokenPromise::Lost, format!("session {session} is not listed"));
        }
        for at in 0..self.edited.live.len() {
            self.check_path(at).await?;
        }
        for session in self.edited.deleted.clone() {
            self.expect_deleted(&session).await?;
        }
        Ok(())
    }

    /// A conversation is the path that was acknowledged, turn by turn.
    pub async fn check_path(&mut self, at: usize) -> Result<(), Trouble> {
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        let Some(edited) = self.edited.live.get(at) else { return Ok(()) };
        let session = &edited.session;
        let told = match conversation(&mut client, session).await {
            Ok(told) => told,
            Err(error) => {
                self.report.add(BrokenPromise::Lost, format!("session {session}: {error}"));
                return Ok(());
            }
        };
        let wanted: Vec<[String; 3]> = edited
            .path
            .iter()
            .map(|said| [said.turn.clone(), said.plan.text.clone(), said.plan.answer("", None)])
            .collect();
        if told != wanted {
            let broken =
                if told.len() < wanted.len() { BrokenPromise::Lost } else { BrokenPromise::Duplicated };
            self.report.add(broken, format!("session {session} should be {wanted:?} and is {told:?}"));
        }
        Ok(())
    }

    pub async fn expect_deleted(&mut self, session: &str) -> Result<(), Trouble> {
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        match client.call::<GetSession>(&SessionRef { session: session.to_owned() }).await {
            Err(error) if error.is(error_code!("session.not_found")) => {}
            other => self.report.add(BrokenPromise::Wrong, format!("deleted session {session} is {other:?}")),
        }
        Ok(())
    }
}

fn is_live(status: &str) -> bool {
    matches!(status, "queued" | "running" | "waiting")
}

/// Every turn of a path with its message and answer; the path may contain nothing else.
pub async fn conversation(client: &mut Client, session: &str) -> Result<Vec<[String; 3]>, ClientError> {
    let turns = all_turns(client, session).await?;
    let messages: Vec<MessageView> = all_messages(client, session).await?;
    let mut told: Vec<[String; 3]> = messages
        .chunks(2)
        .map(|pair| {
            let text = |at: usize, role: &str| {
                let message = pair.get(at).filter(|message| message.role == role && message.active);
                message.map(|message| message.text.clone()).unwrap_or_default()
            };
            [pair[0].turn.clone(), text(0, "user"), text(1, "assistant")]
        })
        .collect();
    // Where the two lists differ, the turn is reported without its text.
    for (at, turn) in turns.into_iter().enumerate() {
        match told.get_mut(at) {
            Some(pair) if pair[0] == turn => {}
            Some(pair) => *pair = [turn, String::new(), String::new()],
            None => told.push([turn, String::new(), String::new()]),
        }
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::super::plan::{CrashModel, TurnShape};
    use super::super::rng::CrashRng;
    use super::*;

    fn said(turn: &str) -> EditedTurn {
        let lines = crate::crash::plan::ToolScripts { tool: String::new(), job: String::new() };
        let plan = TurnPlan::new(CrashModel::Script, TurnShape::Plain, turn, &lines, &mut CrashRng::new(1));
        EditedTurn { turn: turn.to_owned(), plan }
    }

    fn turns(edited: &EditedSession) -> Vec<&str> {
        edited.path.iter().map(|said| said.turn.as_str()).collect()
    }

    #[test]
    fn a_path_that_was_left_comes_back_whole_and_the_other_is_left_then() {
        let mut edited = EditedSession::new("s", vec![said("a"), said("b"), said("c")]);
        edited.rewind(1);
        edited.path.push(said("d"));
        edited.activate("c");
        assert_eq!((turns(&edited), edited.branches()), (vec!["a", "b", "c"], vec!["d".to_owned()]));
        edited.activate("d");
        assert_eq!((turns(&edited), edited.branches()), (vec!["a", "d"], vec!["c".to_owned()]));
    }

    #[test]
    fn a_turn_that_was_gone_on_from_is_the_end_of_no_path() {
        let mut edited = EditedSession::new("s", vec![said("a"), said("b")]);
        edited.rewind(1);
        edited.activate("b");
        edited.path.push(said("c"));
        edited.rewind(0);
        assert_eq!((turns(&edited), edited.branches()), (Vec::new(), vec!["c".to_owned()]));
    }
}
