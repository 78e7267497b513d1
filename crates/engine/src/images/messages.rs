//! Commands and observations about images, pull orders, and answers.

use lodge_core::record::{AgentRow, BinImageRecord, ImageRow, RuntimeRecord, ToolRecord};
use lodge_core::{AgentId, Timestamp};

use crate::AutoRetry;

#[derive(Debug)]
pub enum ImageCommand {
    /// Records an image that is in the store, and gives it names.
    Add(Box<NewImage>),
    /// As [`ImageCommand::Add`], unless one of its names refers to another image.
    AddNew(Box<NewImage>),
    /// Adds names to a recorded image.
    Tag { digest: String, tags: Vec<String> },
    Remove {
        given: ImageSelector,
        /// The names of agents that use it, from the store: for agents at rest the engine knows only their number.
        used_by: Vec<String>,
    },
}

/// An image that was built or imported, and its new names. It is kept while a name, an agent or another image uses it,
/// and so are the images that it needs. The sender of a `complete` image keeps its contents until this is recorded. The
/// row of an image that was only looked up says `announced`, which changes nothing if the image is recorded.
#[derive(Debug)]
pub struct NewImage {
    pub row: ImageRow,
    /// The images that it needs, as far as they came with it.
    pub with: Vec<ImageRow>,
    pub tags: Vec<String>,
}

/// How a request names an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageSelector {
    /// `name:tag`.
    Ref(String),
    /// The full digest of an existing image.
    Digest(String),
}

/// How a pull ended.
#[derive(Debug)]
pub enum PullObservation {
    /// Everything that an agent needs is in the store of images.
    Pulled {
        agent: AgentId,
        /// Of the [`PullEffect::Begin`] that this answers.
        ask: u64,
        /// Images that are not recorded yet, or were only announced.
        rows: Vec<ImageRow>,
        /// All of its tools, those of the host unchanged.
        tools: Vec<ToolRecord>,
        runtime: Option<RuntimeRecord>,
    },
    Failed {
        agent: AgentId,
        ask: u64,
        detail: String,
        again: AutoRetry,
    },
}

/// Work in the store of images.
#[derive(Debug, Clone, PartialEq)]
pub enum PullEffect {
    /// Find or pull everything that an agent needs from images, and report the result. This replaces an earlier order
    /// for the same agent. `ask` distinguishes the answers to this order from answers to earlier ones.
    Begin { row: Box<AgentRow>, ask: u64 },
    /// The pulled images are recorded, or the agent no longer waits for them: cancel the pull and release the contents.
    Drop { agent: AgentId },
    /// An image was removed: remove contents that no image needs.
    Collect,
}

#[derive(Debug, Clone)]
pub enum ImageAnswer {
    Image(Box<ImageSnapshot>),
    Removed(ImageRemoval),
}

/// An image as it is when a request is answered.
#[derive(Debug, Clone)]
pub struct ImageSnapshot {
    pub digest: String,
    pub refs: Vec<String>,
    /// The names that this request added.
    pub named: Vec<String>,
    pub bytes: u64,
    /// How many agents use it.
    pub agents: u64,
    pub named_at: Timestamp,
    pub complete: bool,
    /// For a tool image.
    pub bin: Option<BinSnapshot>,
}

#[derive(Debug, Clone)]
pub struct BinSnapshot {
    pub record: BinImageRecord,
    /// How many agents and images use it.
    pub users: u64,
}

#[derive(Debug, Clone)]
pub struct ImageRemoval {
    pub digest: String,
    pub untagged: Vec<String>,
    /// The image was removed with its last name.
    pub removed: bool,
}
