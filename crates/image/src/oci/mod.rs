//! OCI images: manifests and indexes, checked when they are read and written in one form only.
//!
//! Owns: the formats of agents and tools. Never: talks to a network or knows where blobs lie.

mod agent;
mod agree;
mod archive;
mod bin;
mod config;
mod foreign;
mod json;
mod layer;
mod manifest;
mod stream;

pub use agent::{
    ADDED, AGENT, AGENT_CONFIG, AGENTFILE, AgentImageHead, AgentKind, CONTEXT, pack_agent, read_agent,
    read_agent_head,
};
pub use archive::{ImportedArchive, read_archive, write_archive};
pub use bin::{BIN, BinImage, BinPlatform, NewBin, pack_bin, read_bin};
pub use foreign::{ForeignImage, unpack_foreign};
pub use layer::{ProgramLayer, extract_program};
pub use manifest::{
    DOCKER_INDEX, DOCKER_MANIFEST, Descriptor, INDEX, Index, MANIFEST, Manifest, ManifestDocument,
    MediaDialect, Platform, TITLE,
};
pub use stream::StreamError;

use crate::Digest;

/// Bytes of a manifest or an index, and of a config.
pub const MANIFEST_MAX: u64 = 4 << 20;
/// Layers of one manifest.
pub const LAYERS_MAX: usize = 1_024;
/// Manifests of one index.
pub const PLATFORMS_MAX: usize = 64;
/// Bytes of one layer of a tool, as it travels.
pub const LAYER_MAX: u64 = 1 << 30;
/// Bytes of one program, unpacked.
pub const PROGRAM_MAX: u64 = 1 << 30;

/// Why an image is none, or none that is run here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct BadImage {
    pub why: String,
    kind: BadImageKind,
}

/// The fault of an image, as far as callers distinguish it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadImageKind {
    Invalid,
    /// Its config and its Agentfile differ.
    Mismatch,
}

impl BadImageKind {
    /// Stable, documented, never reused.
    pub fn code(self) -> &'static str {
        match self {
            BadImageKind::Invalid => "image.invalid",
            BadImageKind::Mismatch => "image.mismatch",
        }
    }
}

impl BadImage {
    pub const HINT: &'static str = "ask its author; nothing in it was run";

    pub fn new(why: impl Into<String>) -> BadImage {
        BadImage { why: why.into(), kind: BadImageKind::Invalid }
    }

    /// Of an image whose config and Agentfile differ.
    pub fn mismatch(why: impl Into<String>) -> BadImage {
        BadImage { why: why.into(), kind: BadImageKind::Mismatch }
    }

    pub fn kind(&self) -> BadImageKind {
        self.kind
    }

    pub fn code(&self) -> &'static str {
        self.kind.code()
    }
}

/// Some bytes that go by their digest, which is not to be changed apart from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    pub media_type: String,
    pub digest: Digest,
    pub bytes: Vec<u8>,
}

impl Blob {
    pub fn new(media_type: impl Into<String>, bytes: Vec<u8>) -> Blob {
        Blob { media_type: media_type.into(), digest: Digest::of(&bytes), bytes }
    }

    /// How a manifest names it.
    pub fn descriptor(&self) -> Descriptor {
        Descriptor::new(self.media_type.clone(), self.digest, self.bytes.len() as u64)
    }
}

/// An image that was just made. Its blobs are all in memory, but for the layers of programs: those are in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedImage {
    /// Of the last of the blobs, which is its manifest or index.
    pub digest: Digest,
    /// Each blob follows the blobs that it names.
    pub blobs: Vec<Blob>,
}
