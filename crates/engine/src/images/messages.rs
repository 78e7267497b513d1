//! Commands and observations about images, and pull orders.

use lodge_core::AgentId;
use lodge_core::record::{AgentRow, ImageRow, RuntimeRecord, ToolRecord};

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
