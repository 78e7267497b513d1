//! The path of a session: the turns that the model reads, and changes of the path.
//!
//! Turns of one session have numbers along its path. A cut takes turns off the path and deletes nothing: they are
//! branches, and a later cut can put them back. Messages belong to their turn and are on the path with it.

use crate::Timestamp;
use crate::epoch::Epoch;
use crate::id::{SessionId, TurnId};
use crate::record::SessionRow;

/// The origin of a copied session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkPoint {
    pub session: SessionId,
    /// The number of the last turn that was copied.
    pub turn: u32,
}

/// The relations of a turn to other turns of its session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TurnLinks {
    /// 0 on the path; else the number of the cut that removed it. The turns that one cut removed formed one path.
    pub dropped: u32,
    /// The turn before it when it was accepted.
    pub parent: Option<TurnId>,
    /// The turn that it regenerates or continues.
    pub replaces: Option<TurnId>,
    /// In a fork: the original turn.
    pub origin: Option<TurnId>,
}

/// A cut: turns from a number on leave the path, and others replace them.
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
    /// Its `forked` names the origin.
    pub row: SessionRow,
    /// Each turn of the path and the id of its copy, from the first turn on.
    pub turns: Vec<(TurnId, TurnId)>,
}

/// A change of a session's path, planned from a snapshot of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPlan {
    /// The first number that leaves the path.
    pub from: u32,
    /// The turns that replace them.
    pub restored: Vec<TurnId>,
    /// The length of the new path, and its last turn.
    pub turns: u32,
    pub tip: Option<TurnId>,
    /// The epoch after the change.
    pub epoch: Epoch,
}

/// A copy of a session's path, planned from a snapshot of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkPlan {
    /// From the first one on.
    pub turns: Vec<TurnId>,
    pub messages: u64,
    pub bytes: u64,
    /// The epoch of the copy.
    pub epoch: Epoch,
}
