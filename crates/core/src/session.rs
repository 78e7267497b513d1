//! The path of a session: which of its turns are told to the model, and how that changes.
//!
//! Turns of one session have numbers along its path. A cut takes turns off the path and deletes nothing: they are
//! branches, and a later cut can put them back. Messages belong to their turn and are on the path with it.

use crate::Timestamp;
use crate::epoch::Epoch;
use crate::id::{SessionId, TurnId};
use crate::record::SessionRow;

/// Where a session was copied from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkPoint {
    pub session: SessionId,
    /// The number of the last turn that was copied.
    pub turn: u32,
}

/// How a turn stands to the others of its session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TurnPlace {
    /// 0 on the path; else the number of the cut that took it off. What one cut took off was one path.
    pub dropped: u32,
    /// The turn before it when it was accepted.
    pub parent: Option<TurnId>,
    /// The turn that it was asked to do better than.
    pub replaces: Option<TurnId>,
    /// In a fork: the turn that it is a copy of.
    pub origin: Option<TurnId>,
}

/// A cut: turns from a number on leave the path, and others come back in their place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathChange {
    pub session: SessionId,
    /// Cuts of a session are numbered from 1.
    pub cut: u32,
    /// The first number that leaves.
    pub from: u32,
    /// With the numbers `from`, `from + 1` and so on.
    pub restored: Vec<TurnId>,
    pub at: Timestamp,
}

/// A new session with copies of another's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fork {
    /// Its `forked` says from where.
    pub row: SessionRow,
    /// Each turn of the path and the id of its copy, from the first turn on.
    pub turns: Vec<(TurnId, TurnId)>,
}

/// What becomes of a session's path, as it was read of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPlan {
    /// The first number that leaves the path.
    pub from: u32,
    /// What comes in its place.
    pub restored: Vec<TurnId>,
    /// How many turns the path has then, and the last of them.
    pub turns: u32,
    pub tip: Option<TurnId>,
    /// The epoch it is in then.
    pub epoch: Epoch,
}

/// What a copy of a session's path would be, as it was read of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkPlan {
    /// From the first one on.
    pub turns: Vec<TurnId>,
    pub messages: u64,
    pub bytes: u64,
    /// The epoch that the copy is in.
    pub epoch: Epoch,
}
