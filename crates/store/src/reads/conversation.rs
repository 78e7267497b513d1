//! The messages of a session: its path, or all of them, in pages.

use lodge_core::SessionId;
use lodge_core::epoch::EpochRow;
use lodge_core::record::{MessageRow, StepRow};
use lodge_core::summary::TurnDetail;

use super::Result;

/// Which turns of a session are read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TurnScope {
    /// Those on its path.
    #[default]
    Path,
    /// Turns off the path as well.
    All,
}

/// A message, and whether its turn is on the path.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionMessage {
    pub row: MessageRow,
    pub active: bool,
}

/// A message with the facts of its turn or its tool call.
#[derive(Debug, Clone)]
pub struct MessageExport {
    pub told: SessionMessage,
    /// With the first message of a turn: that turn.
    pub turn: Option<TurnDetail>,
    /// With a tool's result: the call's outcome.
    pub outcome: Option<StepRow>,
}

/// The turn after which a page continues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TurnCursor {
    pub number: u32,
    /// Orders turns of the same number.
    pub id: String,
}

/// An epoch with its position among the messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochPlacement {
    pub row: EpochRow,
    /// The sequence of the first message of the turn that began it.
    pub seq: u64,
}

pub trait ConversationReads {
    /// The sequence of the newest message of a session; 0 if there is none.
    fn newest_message(&self, session: &SessionId) -> Result<u64>;
    /// The messages that a model reads: those of turns `from..=upto`, in order.
    fn context(&self, session: &SessionId, from: u32, upto: u32) -> Result<Vec<MessageRow>>;
    /// The newest messages before a sequence, oldest first. A page ends with the message that reaches one of its
    /// bounds. The result says whether there may be more.
    fn messages(
        &self,
        session: &SessionId,
        which: TurnScope,
        before: Option<u64>,
        limit: u32,
    ) -> Result<(Vec<SessionMessage>, bool)>;
    /// Turns of a session in order; turns of one number in the order of acceptance. Bounded as [`Reader::messages`] is.
    fn turns(
        &self,
        session: &SessionId,
        which: TurnScope,
        after: &TurnCursor,
        limit: u32,
    ) -> Result<(Vec<TurnDetail>, bool)>;
    /// All messages after a sequence, on and off the path, in the order of recording. A page ends with the message that
    /// reaches one of the bounds. The result says whether more follow.
    fn exported(
        &self,
        session: &SessionId,
        after: u64,
        messages_max: u32,
        bytes_max: usize,
    ) -> Result<(Vec<MessageExport>, bool)>;
    /// The text before the messages of an epoch.
    fn summary(&self, session: &SessionId, epoch: u32) -> Result<Option<String>>;
    /// The epochs that turns `from..=upto` began.
    fn epochs(&self, session: &SessionId, from: u32, upto: u32) -> Result<Vec<EpochPlacement>>;
}
