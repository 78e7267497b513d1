//! Changes of records, by aggregate.

use super::{
    AgentRow, AgentSpec, EventRow, FailureRecord, ImageRefRow, ImageRow, LineageRow, MessageRow, NextSpec,
    RequestRow, SessionRow, StartRetry, StepRow, TurnRow, Usage,
};
use crate::Timestamp;
use crate::agent::AgentState;
use crate::cause::Cause;
use crate::epoch::EpochRow;
use crate::id::{AgentId, LineageId, SessionId, TurnId, WorkId};
use crate::job::JobWrite;
use crate::park::ParkReason;
use crate::quarantine::QuarantineRow;
use crate::sandbox::SandboxWrite;
use crate::session::{Fork, PathChange};
use crate::token::TokenRow;
use crate::turn::{StepState, TurnState};

/// One change of the stored state. Batches of them are applied in one transaction, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Write {
    Agent(AgentWrite),
    Session(SessionWrite),
    Turn(TurnWrite),
    Image(ImageWrite),
    Job(JobWrite),
    Sandbox(SandboxWrite),
    /// The whole row, new or existing. A revoked token stays revoked.
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
        retry: StartRetry,
    },
    /// The settings of an agent changed, now or as a pending update.
    Spec {
        id: AgentId,
        image: String,
        image_digest: String,
        spec: Box<AgentSpec>,
        next: Option<Box<NextSpec>>,
    },
    /// The whole row, new or existing.
    Lineage(LineageRow),
}

#[derive(Debug, Clone, PartialEq)]
pub enum SessionWrite {
    New(SessionRow),
    Path(PathChange),
    Fork(Box<Fork>),
    /// With everything that belongs to it, except its events.
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
    /// Why the turn is parked, as a whole, or that it is not.
    Park {
        turn: TurnId,
        park: Option<ParkReason>,
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
    /// The note before a turn's user message, as a whole, when the turn starts.
    Note {
        turn: TurnId,
        note: String,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub enum ImageWrite {
    /// An image is recorded, or became more complete.
    Here(Box<ImageRow>),
    /// The name refers to this image from now on.
    Named(ImageRefRow),
    Unnamed {
        reference: String,
    },
    /// No name and no agent uses it.
    Gone {
        digest: String,
    },
}

/// Changes of the quarantine.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkWrite {
    /// Work is set aside.
    Quarantined(QuarantineRow),
    /// The work is released.
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
    SandboxWrite => Sandbox,
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
