use std::io;
use std::path::PathBuf;

use crate::Digest;
use crate::oci::{BadImage, BadImageKind};

/// The hint for a disk without enough space.
pub const NO_ROOM_HINT: &str =
    "make room, or remove images with `lodge image rm`; what came so far is gone on with";

#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    #[error("{digest} is not in the store")]
    Missing { digest: Digest },
    #[error("{digest} is damaged in the store: its contents have another digest")]
    Damaged { digest: Digest },
    #[error("the contents are {found}, not {wanted}")]
    Wrong { wanted: Digest, found: Digest },
    #[error("more came than the {size} bytes that were announced")]
    TooLarge { size: u64 },
    #[error("only {len} of the {size} bytes of {digest} came")]
    Short { digest: Digest, len: u64, size: u64 },
    #[error("{digest} is larger than the {max} bytes that can be read at once")]
    TooLong { digest: Digest, max: u64 },
    #[error("{digest} is already being received")]
    Busy { digest: Digest },
    #[error("`{}` cannot be the name of a program", crate::agentfile::shown(name))]
    Name { name: String },
    #[error("could not use the store of images at {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
}

impl BlobError {
    /// Whether it is for want of room. What was begun can be gone on with once there is some.
    pub fn is_full(&self) -> bool {
        match self {
            BlobError::Io { cause, .. } => matches!(
                cause.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
            ),
            BlobError::Missing { .. }
            | BlobError::Damaged { .. }
            | BlobError::Wrong { .. }
            | BlobError::TooLarge { .. }
            | BlobError::Short { .. }
            | BlobError::TooLong { .. }
            | BlobError::Busy { .. }
            | BlobError::Name { .. } => false,
        }
    }

    pub fn code(&self) -> &'static str {
        match self {
            BlobError::Missing { .. } | BlobError::Damaged { .. } => "image.damaged",
            BlobError::Io { .. } if self.is_full() => "image.no_room",
            BlobError::Io { .. } | BlobError::Busy { .. } => "daemon.internal",
            BlobError::Wrong { .. }
            | BlobError::TooLarge { .. }
            | BlobError::Short { .. }
            | BlobError::TooLong { .. }
            | BlobError::Name { .. } => BadImageKind::Invalid.code(),
        }
    }

    pub fn hint(&self) -> &'static str {
        match self {
            BlobError::Missing { .. } | BlobError::Damaged { .. } => {
                "pull it again, or build it again where it came from"
            }
            BlobError::Io { .. } if self.is_full() => NO_ROOM_HINT,
            BlobError::Io { .. } => "look at that directory and its disk, then try again",
            BlobError::Busy { .. } => "try again: another transfer is about to fetch it",
            BlobError::Wrong { .. }
            | BlobError::TooLarge { .. }
            | BlobError::Short { .. }
            | BlobError::TooLong { .. }
            | BlobError::Name { .. } => BadImage::HINT,
        }
    }
}
