//! What was said in a session: its path, or everything, page after page.

use lodge_core::SessionId;
use lodge_core::epoch::EpochRow;
use lodge_core::record::{MessageRow, StepRow};
use lodge_core::summary::TurnFull;

use super::Result;

/// TurnScope turns of a session are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnScope {
    /// Those on its path.
    Path,
    /// Those that left it too.
    All,
}

/// A message, and whether its turn is on the path.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionMessage {
    pub row: MessageRow,
    pub active: bool,
}

/// A message with what is known of its turn or its tool call.
#[derive(Debug, Clone)]
pub struct MessageExport {
    pub told: SessionMessage,
    /// With the message that began it: its turn.
    pub turn: Option<TurnFull>,
    /// With a tool's result: the call's outcome.
    pub outcome: Option<StepRow>,
}

/// After which turn a page goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TurnCursor {
    pub number: u32,
    /// Turns of one number are told apart by their ids.
    pub id: String,
}

/// An epoch with its place among the messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochPlacement {
    pub row: EpochRow,
    /// The sequence of the first message of the turn that began it.
    pub seq: u64,
}

pub trait ConversationReads {
    /// The sequence of the newest message of a session; 0 if there is none.
    fn newest_message(&self, session: &SessionId) -> Result<u64>;
    /// What a model reads: the messages of turns `from..=upto`, turn after turn.
    fn context(&self, session: &SessionId, from: u32, upto: u32) -> Result<Vec<MessageRow>>;
    /// The newest messages before a sequence, oldest first. A page ends with the message that reaches one of its bounds;
    /// whether there may be more comes with it.
    fn messages(
        &self,
        session: &SessionId,
        which: TurnScope,
        before: Option<u64>,
        limit: u32,
    ) -> Result<(Vec<SessionMessage>, bool)>;
    /// Turns of a session in order; those of one number in the order in which they were accepted. Bounded as
    /// [`Reader::messages`] is.
    fn turns(
        &self,
        session: &SessionId,
        which: TurnScope,
        after: &TurnCursor,
        limit: u32,
    ) -> Result<(Vec<TurnFull>, bool)>;
    /// Everything that was said after a sequence, on and off the path, in the order in which it was recorded. A page
    /// ends with the message that reaches one of the bounds; whether there is more comes with it.
    fn exported(
        &self,
        session: &SessionId,
        after: u64,
        messages_max: u32,
        bytes_max: usize,
    ) -> Result<(Vec<MessageExport>, bool)>;
    /// What stands before the messages of an epoch.
    fn summary(&self, session: &SessionId, epoch: u32) -> Result<Option<String>>;
    /// The epochs that turns `from..=upto` began.
    fn epochs(&self, session: &SessionId, from: u32, upto: u32) -> Result<Vec<EpochPlacement>>;
}
