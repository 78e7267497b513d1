//! The paths of sessions in the simulated store: cuts, copies, deletions, and the plans of changes.

use std::collections::{HashMap, HashSet};

use lodge_core::epoch::{Epoch, EpochRow, Summary};
use lodge_core::record::SessionFact;
use lodge_core::session::{Fork, ForkPlan, PathChange, PathPlan, TurnLinks};
use lodge_core::{SessionId, TurnId};
use lodge_engine::TurnContinuation;

use super::{SimDisk, StoredTurn};
use crate::laws::LawViolation;

impl SimDisk {
    /// Stores an epoch. If it keeps the earlier summary, that summary is copied.
    pub(super) fn keep_epoch(&mut self, row: &EpochRow) {
        let epochs = self.epochs.entry(row.session.clone()).or_default();
        let mut row = row.clone();
        if row.summary == Summary::Kept {
            let before = epochs.iter().filter(|(_, dropped)| *dropped == 0).max_by_key(|(row, _)| row.number);
            row.summary = before.map_or(Summary::Nothing, |(before, _)| before.summary.clone());
        }
        epochs.push((row, 0));
    }

    pub(super) fn change_path(&mut self, change: &PathChange) -> Result<(), LawViolation> {
        self.has_rest(&change.session)?;
        let epoch = self.epoch_after(&change.session, change.from, &change.restored);
        for id in self.turns_of.get(&change.session).into_iter().flatten() {
            let row = self.turns.get_mut(id).map(|kept| &mut kept.row);
            if let Some(row) = row.filter(|row| row.place.dropped == 0 && row.number >= change.from) {
                row.place.dropped = change.cut;
            }
        }
        let mut back = HashSet::new();
        for (number, id) in (change.from..).zip(&change.restored) {
            let kept = self.turns.get_mut(id).ok_or_else(|| format!("{id} is not stored"))?;
            let fits = kept.row.session == change.session && kept.row.number == number;
            if !fits || kept.row.place.dropped == 0 {
                return Err(format!("{id} comes back as turn {number} of {}", change.session));
            }
            back.insert((kept.row.place.dropped, number));
            kept.row.place.dropped = 0;
        }
        for (row, dropped) in self.epochs.entry(change.session.clone()).or_default() {
            match *dropped {
                0 if row.turn >= change.from => *dropped = change.cut,
                cut if cut > 0 && back.contains(&(cut, row.turn)) => *dropped = 0,
                _ => {}
            }
        }
        let path = self.path(&change.session);
        self.is_path(&path)?;
        let session = self.sessions.get_mut(&change.session);
        let session = session.ok_or_else(|| format!("{} is not stored", change.session))?;
        if change.cut != session.cuts + 1 {
            return Err(format!("cut {} of {} follows {}", change.cut, change.session, session.cuts));
        }
        session.cuts = change.cut;
        session.turns = u32::try_from(path.len()).unwrap_or(u32::MAX);
        (session.tip, session.epoch) = (path.last().cloned(), epoch);
        Ok(())
    }

    pub(super) fn copy_session(&mut self, fork: &Fork) -> Result<(), LawViolation> {
        let Some(point) = &fork.row.forked else { return Err(format!("{fork:?} is a copy of nothing")) };
        self.has_rest(&point.session)?;
        let path = self.path(&point.session);
        let copied: Vec<&TurnId> = fork.turns.iter().map(|(id, _)| id).collect();
        if path.iter().take(point.turn as usize).ne(copied.iter().copied()) {
            return Err(format!("{fork:?} does not copy the path {path:?}"));
        }
        let mut epoch = self.epoch_after(&point.session, point.turn + 1, &[]);
        epoch.newest = epoch.number;
        self.insert_session(&fork.row)?;
        let epochs = self.epochs.get(&point.session).cloned().unwrap_or_default();
        let kept = epochs.into_iter().filter(|(row, dropped)| *dropped == 0 && row.turn <= point.turn);
        let copied = |(row, dropped)| (EpochRow { session: fork.row.id.clone(), ..row }, dropped);
        self.epochs.insert(fork.row.id.clone(), kept.map(copied).collect());
        let (mut seq, mut parent) = (0, None);
        for (id, copy) in &fork.turns {
            let StoredTurn { mut row, messages, .. } =
                self.turns.get(id).cloned().ok_or_else(|| format!("{id} is not stored"))?;
            let origin = row.place.origin.take().unwrap_or_else(|| id.clone());
            row.place = TurnLinks { parent, origin: Some(origin), ..TurnLinks::default() };
            (row.id, row.session) = (copy.clone(), fork.row.id.clone());
            (row.first_message, row.usage) = (seq + 1, lodge_core::record::Usage::default());
            let copies = messages.into_iter().map(|mut message| {
                seq += 1;
                (message.session, message.turn) = (fork.row.id.clone(), copy.clone());
                message.seq = seq;
                message
            });
            let messages = copies.collect();
            self.keep_turn(StoredTurn { row, steps: Vec::new(), messages })?;
            parent = Some(copy.clone());
        }
        if let Some(session) = self.sessions.get_mut(&fork.row.id) {
            (session.turns, session.messages) = (point.turn, seq);
            (session.tip, session.epoch) = (parent, epoch);
        }
        Ok(())
    }

    pub(super) fn delete_session(&mut self, id: &SessionId) -> Result<(), LawViolation> {
        self.has_rest(id)?;
        for turn in self.turns_of.remove(id).unwrap_or_default() {
            self.turns.remove(&turn);
            self.deleted.insert(turn);
        }
        self.epochs.remove(id);
        self.sessions.remove(id).map(drop).ok_or_else(|| format!("{id} is deleted and was not stored"))
    }

    /// A session that is changed has no live turn.
    fn has_rest(&self, id: &SessionId) -> Result<(), LawViolation> {
        match self.live.iter().find(|(session, _, _)| session == id) {
            Some((_, _, turn)) => Err(format!("{id} changes, and {turn} is live")),
            None => Ok(()),
        }
    }

    /// A path has one turn of every number, each after its predecessor.
    fn is_path(&self, path: &[TurnId]) -> Result<(), LawViolation> {
        let mut parent = None;
        for (number, id) in (1..).zip(path) {
            let row = self.turns.get(id).map(|kept| &kept.row);
            if row.is_none_or(|row| row.number != number || row.place.parent.as_ref() != parent) {
                return Err(format!("{id} has no place behind {parent:?}: {row:?}"));
            }
            parent = Some(id);
        }
        Ok(())
    }

    pub fn all_turns(&self, id: &SessionId) -> impl Iterator<Item = &StoredTurn> {
        self.turns_of.get(id).into_iter().flatten().filter_map(|turn| self.turns.get(turn))
    }

    /// Whether the summary of an epoch is readable for the model.
    pub fn has_summary(&self, id: &SessionId, number: u32) -> bool {
        let epochs = self.epochs.get(id).map(Vec::as_slice).unwrap_or_default();
        epochs.iter().any(|(row, dropped)| row.number == number && *dropped == 0)
    }

    /// The turns on the path of a session, in order.
    pub fn path(&self, id: &SessionId) -> Vec<TurnId> {
        let on_path = |kept: &&StoredTurn| kept.row.place.dropped == 0;
        let mut path: Vec<(u32, TurnId)> =
            self.all_turns(id).filter(on_path).map(|kept| (kept.row.number, kept.row.id.clone())).collect();
        path.sort();
        path.into_iter().map(|(_, id)| id).collect()
    }

    /// The turns that left the path of a session.
    pub fn branches(&self, id: &SessionId) -> Vec<TurnId> {
        let off_path = |kept: &&StoredTurn| kept.row.place.dropped > 0;
        let mut turns: Vec<TurnId> =
            self.all_turns(id).filter(off_path).map(|kept| kept.row.id.clone()).collect();
        turns.sort();
        turns
    }

    /// The plan of a rewind that keeps this many turns.
    pub fn rewind_plan(&self, id: &SessionId, turns: u32) -> Option<(SessionFact, PathPlan)> {
        let fact = self.sessions.get(id)?.clone();
        let tip = (turns as usize).checked_sub(1).and_then(|at| self.path(id).get(at).cloned());
        let epoch = self.epoch_after(id, turns + 1, &[]);
        Some((fact, PathPlan { from: turns + 1, restored: Vec::new(), turns, tip, epoch }))
    }

    /// The plan that makes the branch of a turn the path.
    pub fn branch_plan(&self, id: &SessionId, turn: &TurnId) -> Option<(SessionFact, PathPlan)> {
        let fact = self.sessions.get(id)?.clone();
        let kept = self.turns.get(turn).filter(|kept| kept.row.session == *id)?;
        if kept.row.place.dropped == 0 {
            return self.rewind_plan(id, fact.turns);
        }
        let (mut from, mut at, mut restored) = (1, Some(kept), Vec::new());
        while let Some(kept) = at {
            if kept.row.place.dropped == 0 {
                from = kept.row.number + 1;
                break;
            }
            restored.push(kept.row.id.clone());
            at = kept.row.place.parent.as_ref().and_then(|parent| self.turns.get(parent));
        }
        restored.reverse();
        let after = |other: &&StoredTurn| {
            other.row.place.dropped == kept.row.place.dropped && other.row.number > kept.row.number
        };
        let mut followers: Vec<(u32, TurnId)> =
            self.all_turns(id).filter(after).map(|kept| (kept.row.number, kept.row.id.clone())).collect();
        followers.sort();
        restored.extend(followers.into_iter().map(|(_, id)| id));
        let turns = from - 1 + u32::try_from(restored.len()).unwrap_or(u32::MAX);
        let epoch = self.epoch_after(id, from, &restored);
        Some((fact, PathPlan { from, tip: restored.last().cloned(), restored, turns, epoch }))
    }

    /// The plan of a copy of this many turns.
    pub fn fork_plan(&self, id: &SessionId, turns: u32) -> Option<(SessionFact, ForkPlan)> {
        let fact = self.sessions.get(id)?.clone();
        let turns: Vec<TurnId> = self.path(id).into_iter().take(turns as usize).collect();
        let messages = || turns.iter().filter_map(|id| self.turns.get(id)).flat_map(|kept| &kept.messages);
        let bytes = messages().map(|message| message.body.weight()).sum();
        let mut epoch = self.epoch_after(id, u32::try_from(turns.len()).unwrap_or(u32::MAX) + 1, &[]);
        epoch.newest = epoch.number;
        Some((fact, ForkPlan { messages: messages().count() as u64, bytes, epoch, turns }))
    }

    /// What a continuation of the last turn of a path takes over.
    pub fn retry_plan(&self, id: &SessionId, turn: &TurnId) -> Option<TurnContinuation> {
        let kept = self.turns.get(turn)?;
        let number = kept.row.number;
        // A copy has no steps of its own.
        let ran = kept.row.place.origin.as_ref().unwrap_or(turn);
        let epochs = self.epochs.get(id).map(Vec::as_slice).unwrap_or_default();
        let began = epochs.iter().filter(|(row, dropped)| *dropped == 0 && row.turn == number);
        Some(TurnContinuation {
            turn: kept.row.clone(),
            steps: self.turns.get(ran).map(|ran| ran.steps.clone()).unwrap_or_default(),
            messages: kept.messages.clone(),
            epoch: began.max_by_key(|(row, _)| row.number).map(|(row, _)| row.clone()),
            plan: self.rewind_plan(id, number - 1)?.1,
        })
    }

    /// The epoch of a session whose path is cut before a number and continues with `restored`.
    fn epoch_after(&self, id: &SessionId, from: u32, restored: &[TurnId]) -> Epoch {
        let back: HashMap<&TurnId, (u32, u32)> = restored
            .iter()
            .filter_map(|id| self.turns.get(id))
            .map(|kept| (&kept.row.id, (kept.row.place.dropped, kept.row.number)))
            .collect();
        let epochs = self.epochs.get(id).map(Vec::as_slice).unwrap_or_default();
        let newest = epochs.iter().map(|(row, _)| row.number).max().unwrap_or(1);
        let stays = epochs.iter().filter(|(row, dropped)| match dropped {
            0 => row.turn < from,
            cut => back.values().any(|place| *place == (*cut, row.turn)),
        });
        let current = stays.max_by_key(|(row, _)| row.number);
        let mut epoch = current.map_or_else(Epoch::default, |(row, _)| Epoch::recorded(row, newest));
        epoch.newest = newest;
        let mut weights: Vec<(u32, u64)> = self
            .all_turns(id)
            .filter(|kept| match kept.row.place.dropped {
                0 => kept.row.number < from,
                _ => back.contains_key(&kept.row.id),
            })
            .flat_map(|kept| kept.messages.iter().map(|message| (message.number, message.body.weight())))
            .collect();
        weights.sort_unstable_by_key(|(number, _)| *number);
        weights.into_iter().for_each(|(number, bytes)| epoch.add(number, bytes));
        epoch
    }
}
