//! What went wrong with an image, as clients are told it.

use lodge_image::oci::BadImage;
use lodge_image::registry::RegistryError;
use lodge_image::{BlobError, NO_ROOM_HINT};
use lodge_proto::ErrorBody;

pub(crate) fn bad_image(error: &BadImage) -> ErrorBody {
    ErrorBody::new(error.code(), format!("this image cannot be used: {error}")).hint(BadImage::HINT)
}

pub(crate) fn blob(error: &BlobError) -> ErrorBody {
    match error {
        BlobError::Missing { .. } | BlobError::Damaged { .. } => {
            ErrorBody::new(error.code(), error.to_string()).hint(error.hint())
        }
        BlobError::Io { .. } if error.is_full() => no_room(crate::chain(error)),
        BlobError::Io { .. } | BlobError::Busy { .. } => {
            ErrorBody::new(error.code(), "the store of images could not be used")
                .because(crate::chain(error))
                .hint(error.hint())
        }
        BlobError::Wrong { .. }
        | BlobError::TooLarge { .. }
        | BlobError::Short { .. }
        | BlobError::TooLong { .. }
        | BlobError::Name { .. } => bad_image(&BadImage::new(error.to_string())),
    }
}

pub(crate) fn no_room(because: String) -> ErrorBody {
    ErrorBody::new("image.no_room", "there is too little room on the disk for this image")
        .because(because)
        .hint(NO_ROOM_HINT)
}

pub(crate) fn registry(error: &RegistryError) -> ErrorBody {
    match error {
        RegistryError::Image(error) => bad_image(error),
        RegistryError::Blob(error) => blob(error),
        RegistryError::Unreachable { .. }
        | RegistryError::Stalled { .. }
        | RegistryError::NotFound { .. }
        | RegistryError::Denied { .. }
        | RegistryError::Login { .. }
        | RegistryError::Lies { .. }
        | RegistryError::Refused { .. } => {
            let body = ErrorBody::new(error.code(), error.to_string()).hint(error.hint());
            match std::error::Error::source(error) {
                Some(cause) => body.because(innermost(cause)),
                None => body,
            }
        }
    }
}

/// The end of a chain of causes: what stands before it in one of a connection says no more than that there was none.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let last = std::iter::successors(Some(error), |error| error.source()).last().unwrap_or(error);
    let words = last.to_string();
    // The number of the system is for programs.
    match words.rsplit_once(" (os error ") {
        Some((words, _)) => words.to_owned(),
        None => words,
    }
}

/// Whether a pull that failed so is worth the room of what it brought: the next try of it goes on from there.
pub(crate) fn is_gone_on_with(error: &ErrorBody) -> bool {
    matches!(error.data.code.as_str(), "registry.unreachable" | "registry.stalled")
}

/// The daemon's own database or a thread of its failed.
pub(crate) fn internal(error: &dyn std::error::Error) -> ErrorBody {
    ErrorBody::new("daemon.internal", crate::chain(error))
}
