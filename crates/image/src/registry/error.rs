//! Errors of registries, and whether a retry may help.

use std::error::Error;
use std::time::Duration;

use crate::BlobError;
use crate::oci::BadImage;

#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("`{host}` could not be reached")]
    Unreachable {
        host: String,
        #[source]
        cause: Box<dyn Error + Send + Sync>,
    },
    #[error("`{host}` was silent for {waited_s} s")]
    Stalled { host: String, waited_s: u64 },
    #[error("`{reference}` is not in its registry")]
    NotFound { reference: String },
    #[error("`{host}` does not allow that: {why}")]
    Denied { host: String, why: String },
    #[error("could not get a login for `{host}`: {why}")]
    Login { host: String, why: String },
    #[error("`{host}` violated the registry protocol: {why}")]
    Lies { host: String, why: String },
    #[error("`{host}` answered {status}: {why}")]
    Refused { host: String, status: u16, why: String },
    #[error(transparent)]
    Image(#[from] BadImage),
    #[error(transparent)]
    Blob(#[from] BlobError),
}

impl RegistryError {
    pub fn code(&self) -> &'static str {
        match self {
            RegistryError::Unreachable { .. } => "registry.unreachable",
            RegistryError::Stalled { .. } => "registry.stalled",
            RegistryError::NotFound { .. } => "registry.not_found",
            RegistryError::Denied { .. } => "registry.denied",
            RegistryError::Login { .. } => "registry.login",
            RegistryError::Lies { .. } => "registry.lies",
            RegistryError::Refused { .. } => "registry.refused",
            RegistryError::Image(error) => error.code(),
            RegistryError::Blob(error) => error.code(),
        }
    }

    /// What to do next.
    pub fn hint(&self) -> String {
        match self {
            RegistryError::Unreachable { .. } => {
                "check its name, the network and the proxy, and that it runs".to_owned()
            }
            RegistryError::Stalled { .. } => "try again: what came so far is gone on with".to_owned(),
            RegistryError::NotFound { .. } => {
                "check the name and the tag; a private one may need a login".to_owned()
            }
            RegistryError::Denied { host, .. } => {
                format!("run `docker login {host}` as the user of the daemon, then try again")
            }
            RegistryError::Login { host, .. } => {
                format!("run `docker login {host}` as the user of the daemon, or fix its `config.json`")
            }
            RegistryError::Lies { .. } => "nothing was kept: tell the operator of the registry".to_owned(),
            RegistryError::Refused { .. } => {
                "try again later, or ask the operator of the registry".to_owned()
            }
            RegistryError::Image(_) => BadImage::HINT.to_owned(),
            RegistryError::Blob(error) => error.hint().to_owned(),
        }
    }
}

/// An error of one try.
#[derive(Debug)]
pub(super) struct AttemptError {
    pub(super) error: RegistryError,
    pub(super) again: RetryAdvice,
}

/// Whether another try may end better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryAdvice {
    Never,
    /// Once at most: the connection was refused at the first attempt.
    Once,
    Soon,
    /// The registry named the delay.
    After(Duration),
}

impl AttemptError {
    pub(super) fn passing(error: RegistryError) -> AttemptError {
        AttemptError { error, again: RetryAdvice::Soon }
    }

    pub(super) fn contradiction(host: &str, why: impl Into<String>) -> AttemptError {
        RegistryError::Lies { host: host.to_owned(), why: why.into() }.into()
    }
}

/// What is not known to pass is final.
impl<E: Into<RegistryError>> From<E> for AttemptError {
    fn from(error: E) -> AttemptError {
        AttemptError { error: error.into(), again: RetryAdvice::Never }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_disk_without_room_is_reported_as_that_and_not_as_trouble_with_the_registry() {
        let full = BlobError::Io { path: "x".into(), cause: io::ErrorKind::StorageFull.into() };
        let trouble = AttemptError::from(full);
        assert_eq!((trouble.error.code(), trouble.again), ("image.no_room", RetryAdvice::Never));
        assert!(trouble.error.hint().contains("make room"));
        let broken = BlobError::Io { path: "x".into(), cause: io::ErrorKind::PermissionDenied.into() };
        assert_eq!(RegistryError::from(broken).code(), "daemon.internal");
    }
}
