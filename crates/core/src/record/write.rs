//! Changes to what is recorded, by aggregate.

use super::{
    AgentRow, AgentSpec, EventRow, FailureRecord, ImageRefRow, ImageRow, LineageRow, MessageRow, NextSpec,
    RequestRow, Retry, SessionRow, StepRow, TurnRow, Usage,
};
use crate::Timestamp;
use crate::agent::AgentState;
use crate::cause::Cause;
use crate::epoch::EpochRow;
use crate::id::{AgentId, LineageId, SessionId, TurnId, WorkId};
use crate::job::JobWrite;
use crate::quarantine::QuarantineRow;
use crate::session::{Fork, PathChange};
use crate::token::TokenRow;
use crate::turn::{StepState, TurnState};

/// One change to what is stored. Batches of them are applied in one transaction, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Write {
    Agent(AgentWrite),
    Session(SessionWrite),
    Turn(TurnWrite),
    Image(ImageWrite),
    Job(JobWrite),
    /// Whole, whether or not it is there; one that is revoked stays so.
    Token(TokenRow),
    Work(WorkWrite),
    Event(EventRow),
    Request(RequestRow),
}

#[derive(Debug, Clone, PartialEq)]
pub enum AgentWrite {
    New(Box<AgentRow>),
    State {
        id: AgentId,
        state: AgentState,
        detail: Option<String>,
        lineage: LineageId,
        incarnation: u32,
        runs: u32,
        started_at: Option<Timestamp>,
        retry: Retry,
    },
    /// What an agent is made of was changed, or will be.
    Spec {
        id: AgentId,
        image: String,
        image_digest: String,
        spec: Box<AgentSpec>,
        next: Option<Box<NextSpec>>,
    },
    /// Whole, whether or not it is there.
    Lineage(LineageRow),
}

#[derive(Debug, Clone, PartialEq)]
pub enum SessionWrite {
    New(SessionRow),
    Path(PathChange),
    Fork(Box<Fork>),
    /// With everything that belongs to it, its events excepted.
    Deleted {
        id: SessionId,
    },
    /// A new epoch of a session.
    Epoch(EpochRow),
}

/// Changes to turns, their steps and their messages.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnWrite {
    New(TurnRow),
    State {
        id: TurnId,
        state: TurnState,
        ended_at: Option<Timestamp>,
        usage: Usage,
        failure: Option<FailureRecord>,
    },
    Step(StepRow),
    StepState {
        turn: TurnId,
        step: u32,
        ordinal: u32,
        state: StepState,
        attempt: u32,
        exit_code: Option<i32>,
        signal: Option<i32>,
        cause: Option<Cause>,
        ended_at: Option<Timestamp>,
    },
    Message(MessageRow),
    /// What a turn is told before its user's message, as a whole, when it begins.
    Note {
        turn: TurnId,
        note: String,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub enum ImageWrite {
    /// An image is here, or more of it than before.
    Here(Box<ImageRow>),
    /// The name means this image from now on, whatever it meant before.
    Named(ImageRefRow),
    Unnamed {
        reference: String,
    },
    /// Neither a name nor an agent has it any more.
    Gone {
        digest: String,
    },
}

/// Changes to what is in quarantine.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkWrite {
    /// Work is set aside.
    Quarantined(QuarantineRow),
    /// It is not any more.
    Released { id: WorkId },
}

macro_rules! write_of {
    ($($part:ident => $aggregate:ident),* $(,)?) => {$(
        impl From<$part> for Write {
            fn from(write: $part) -> Write {
                Write::$aggregate(write)
            }
        }
    )*};
}

write_of! {
    AgentWrite => Agent,
    SessionWrite => Session,
    TurnWrite => Turn,
    ImageWrite => Image,
    JobWrite => Job,
    TokenRow => Token,
    WorkWrite => Work,
    EventRow => Event,
    RequestRow => Request,
}

impl Write {
    pub fn event(&self) -> Option<&EventRow> {
        if let Write::Event(event) = self { Some(event) } else { None }
    }

    pub fn request(&self) -> Option<&RequestRow> {
        if let Write::Request(request) = self { Some(request) } else { None }
    }
}
