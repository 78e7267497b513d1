//! What clients ask of the engine, and what each request is decided on.

use std::collections::BTreeMap;

use lodge_core::lineage::Policy;
use lodge_core::record::{AgentSpec, ImageRow, LimitsRecord, MountRecord, SessionFact};
use lodge_core::session::{ForkPlan, PathPlan};
use lodge_core::token::TokenRow;
use lodge_core::{AgentId, JobId, LineageId, SessionId, Timestamp, TurnId, WorkId};

use crate::Rendered;
use crate::jobs::NewJob;
use crate::quarantine::Release;

/// What a client asks for.
#[derive(Debug)]
pub enum Command {
    CreateAgent(Box<NewAgent>),
    StartAgent {
        id: AgentId,
    },
    /// A new process in place of whatever there is; turns in flight are broken off.
    RestartAgent {
        id: AgentId,
        jobs: RunningJobs,
    },
    UpdateAgent(Box<Update>),
    StopAgent {
        id: AgentId,
        jobs: RunningJobs,
    },
    /// Ends the agent and its lineage with it: its work is never taken up again.
    KillAgent {
        id: AgentId,
    },
    RemoveAgent {
        id: AgentId,
        force: bool,
    },
    SendTurn(Box<NewTurn>),
    InterruptTurn {
        id: TurnId,
    },
    SettleLineage(Box<Settlement>),
    ChangeSession(Box<SessionChange>),
    IssueToken(Box<NewToken>),
    RevokeToken {
        /// As the store has it.
        row: Box<TokenRow>,
    },
    SubmitJob(Box<NewJob>),
    CancelJob {
        id: JobId,
    },
    /// Work that is set aside is computed again, or given up.
    ReleaseWork {
        id: WorkId,
        how: Release,
    },
    /// Records an image that is in the store, and gives it names.
    AddImage(Box<NewImage>),
    /// As [`Command::AddImage`], unless one of its names means another image.
    AddImageBesides(Box<NewImage>),
    /// Gives an image that there is more names.
    TagImage {
        digest: String,
        tags: Vec<String>,
    },
    RemoveImage(ImageGiven),
    /// A request that was decided before, with its recorded answer: its caller hears that now, or when what was decided
    /// has come about.
    Again {
        /// The agent that the answer is about.
        agent: Option<AgentId>,
        answer: Rendered,
    },
    /// The settings were read anew, and those differ. They count once this is recorded.
    Reloaded {
        keys: Vec<String>,
        answer: Rendered,
    },
    /// Keeps the answer to a change that was made elsewhere with the id of its request.
    Keep {
        answer: Rendered,
    },
}

/// What becomes of a request that would end jobs which run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunningJobs {
    Cancel,
    /// It is refused.
    Refuse,
}

/// A change of a session, and what it is decided on.
#[derive(Debug)]
pub struct SessionChange {
    /// As the store had it when the rest was read.
    pub fact: SessionFact,
    /// For the answer: its agent, which may be removed.
    pub agent_name: String,
    pub agent_removed: bool,
    pub what: SessionWhat,
}

#[derive(Debug)]
pub enum SessionWhat {
    Rewind(PathPlan),
    /// Make the branch of a turn the path.
    Activate {
        turn: TurnId,
        plan: PathPlan,
    },
    Fork {
        /// None: a new id.
        to: Option<SessionId>,
        plan: ForkPlan,
    },
    Regenerate(Box<TurnAgain>),
    Delete,
}

/// A turn that shall be done again.
#[derive(Debug)]
pub struct TurnAgain {
    pub turn: TurnId,
    pub text: String,
    pub schema: Option<String>,
    /// What the model was told before it.
    pub note: Option<String>,
    /// The path without it.
    pub plan: PathPlan,
}

/// What an operator decides about a lineage that waits for it.
#[derive(Debug)]
pub struct Settlement {
    pub agent: AgentId,
    pub lineage: LineageId,
    pub policy: Policy,
    /// For the answer: the newest turn of the lineage.
    pub last_turn: Option<TurnId>,
}

/// An image that was built or came from elsewhere, and the names it gets. It is kept while a name, an agent or another
/// image has it, and so is what came with it. Whoever says that it is whole holds its contents until this is recorded; of
/// one that was only looked up the row says that it is announced, which changes nothing while it is recorded.
#[derive(Debug)]
pub struct NewImage {
    pub row: ImageRow,
    /// The images that it cannot do without, as far as they came with it.
    pub with: Vec<ImageRow>,
    pub tags: Vec<String>,
}

/// How somebody names an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageGiven {
    /// `name:tag`.
    Ref(String),
    /// The whole digest of one that there is.
    Digest(String),
}

/// A token that somebody wants.
#[derive(Debug)]
pub struct NewToken {
    pub holder: TokenFor,
    pub name: Option<String>,
    pub expires_at: Timestamp,
}

#[derive(Debug)]
pub enum TokenFor {
    Operator,
    Agent(AgentId),
    /// The operator of this machine: the one before it is over.
    Credentials,
}

#[derive(Debug)]
pub struct NewAgent {
    pub name: NameChoice,
    /// What its image is called.
    pub called: String,
    pub image: NewImage,
    pub spec: AgentSpec,
}

/// What of an agent is to be another.
#[derive(Debug)]
pub struct Update {
    pub agent: AgentId,
    pub change: Change,
    /// The image that it names, which the store may not have.
    pub image: Option<NewImage>,
}

/// A value that is `None` is taken away.
#[derive(Debug, Default)]
pub struct Change {
    pub image: Option<ImageChange>,
    pub model: Option<String>,
    pub env: BTreeMap<String, Option<String>>,
    pub configs: BTreeMap<String, Option<String>>,
    pub labels: BTreeMap<String, Option<String>>,
    /// Each replaces the one at the same target.
    pub mounts: Vec<MountRecord>,
    /// Targets.
    pub unmounts: Vec<String>,
    pub limits: Option<LimitsRecord>,
    pub revival_policy: Option<Policy>,
}

/// Another image, and what an agent of either is when nobody chooses anything for it.
#[derive(Debug)]
pub struct ImageChange {
    pub name: String,
    pub digest: String,
    pub old: Box<AgentSpec>,
    pub new: Box<AgentSpec>,
}

#[derive(Debug)]
pub enum NameChoice {
    /// Exactly this one, or refuse.
    Exactly(String),
    /// This one, or the next free with a number.
    Like(String),
}

#[derive(Debug)]
pub struct NewTurn {
    pub agent: AgentId,
    pub session: SessionChoice,
    pub sender: Option<String>,
    pub text: String,
    /// The JSON schema that the answer must fit.
    pub schema: Option<String>,
}

#[derive(Debug)]
pub enum SessionChoice {
    /// A new one with a generated id.
    Fresh,
    /// This one; `fact` is what the store knows of it, and the engine's own memory goes before it.
    Named { id: SessionId, fact: Option<SessionFact> },
}
