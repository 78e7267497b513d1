//! Images, from Agentfiles and from registries: files and answers of strangers.
//!
//! Owns: turning untrusted bytes into checked, plain data, the store of their contents, and the way to registries and
//! back. Never: runs anything, or writes a file outside that store.

pub mod agentfile;
mod blobs;
pub mod diff;
mod digest;
pub mod oci;
mod reference;
pub mod registry;

pub use blobs::{BlobError, Blobs, CheckedBlob, CollectionTotals, IncomingBlob, NO_ROOM_HINT, NewBlob, Pins};
pub use digest::{BadDigest, Digest, Hasher};
pub use reference::{BadReference, ImageVersion, Reference, RemoteImage, TaggedName, stock_hint};
