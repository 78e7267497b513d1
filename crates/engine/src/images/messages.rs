//! What the engine is asked and told about images, and the pulls it orders.

use lodge_core::AgentId;
use lodge_core::record::{AgentRow, ImageRow, RuntimeRecord, ToolRecord};

use crate::Again;

#[derive(Debug)]
pub enum ImageCommand {
    /// Records an image that is in the store, and gives it names.
    Add(Box<NewImage>),
    /// As [`ImageCommand::Add`], unless one of its names means another image.
    AddNew(Box<NewImage>),
    /// Gives an image that is recorded more names.
    Tag { digest: String, tags: Vec<String> },
    Remove {
        given: ImageGiven,
        /// The names of agents that have it, from the store: of agents at rest the engine knows only how many have it.
        used_by: Vec<String>,
    },
}

/// An image that was built or came from elsewhere, and the names it gets. It is kept while a name, an agent or another
/// image has it, and so is what came with it. The sender of `complete` keeps its contents until this is recorded; of
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

/// How a pull ended.
#[derive(Debug)]
pub enum PullSeen {
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
        again: Again,
    },
}

/// Something to do in the store of images.
#[derive(Debug, Clone, PartialEq)]
pub enum PullEffect {
    /// Find or pull everything that an agent needs from images, and report it. It takes the place of an earlier one for
    /// the same agent; `ask` tells the answers to this order from those to earlier ones.
    Begin { row: Box<AgentRow>, ask: u64 },
    /// What was pulled for this agent is recorded, or nobody waits for it any more: break it off, and hold nothing.
    Drop { agent: AgentId },
    /// An image is gone: remove the contents that nobody needs.
    Collect,
}
