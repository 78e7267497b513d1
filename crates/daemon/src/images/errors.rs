//! Errors of images. Decisions match on the type; clients read its code, cause and hint.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use lodge_engine::AutoRetry;
use lodge_image::agentfile::LoadError;
use lodge_image::oci::{BadImage, BadImageKind, Platform};
use lodge_image::registry::RegistryError;
use lodge_image::{BadDigest, BlobError, Digest, NO_ROOM_HINT, stock_hint};
use lodge_store::ReadError;
use tokio::task::JoinError;

use super::needs::name_of;
use super::unsupported;
use crate::chain;
use crate::room::RoomRefusal;

/// Cloned for each caller that waits for the same transfer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ImageError {
    #[error("{}", BlobError::Missing { digest: *digest })]
    Missing { digest: Digest },
    #[error("{}", BlobError::Damaged { digest: *digest })]
    Damaged { digest: Digest },
    #[error("the store of images could not be used")]
    Store(#[source] Arc<BlobError>),
    #[error("there is too little room on the disk for this image")]
    NoRoom { why: String },
    #[error(transparent)]
    Room(#[from] RoomRefusal),
    #[error("this image cannot be used: {0}")]
    Invalid(BadImage),
    #[error("this image has what this release does not do: {}", instructions.join(", "))]
    Unsupported { instructions: Vec<&'static str> },
    #[error("the Agentfile in this image cannot be used: {0}")]
    Agentfile(Arc<LoadError>),
    #[error("this image comes from outside, and names `{named}`, which is inside this network")]
    NamesInside { named: String },
    #[error("`{reference}` is no agent")]
    NotAnAgent { reference: String },
    #[error("`{reference}` is an agent, and no tool")]
    AgentAsTool { reference: String },
    #[error("{digest} is no tool: {why}")]
    NotATool { digest: Digest, why: BadImage },
    #[error("the tool `{tool}` has no program for {host}")]
    NoPlatform { tool: String, host: Platform, made_for: Vec<String> },
    #[error("the tool `{reference}` is nowhere to be found")]
    ToolNotFound { reference: String, why: String },
    #[error("the program {} was changed since it was unpacked", path.display())]
    ProgramChanged { path: PathBuf },
    #[error("the program {} cannot be read", path.display())]
    ProgramUnreadable {
        path: PathBuf,
        #[source]
        cause: Arc<io::Error>,
    },
    #[error("the program of the tool `{tool}` could not be unpacked")]
    NotUnpacked {
        tool: String,
        #[source]
        cause: Arc<BlobError>,
    },
    #[error("{digest} was built by an earlier release: its contents are not in the store")]
    NotPacked { digest: String },
    #[error("`{text}` names no contents: {why}")]
    BadDigest { text: String, why: BadDigest },
    /// Any error of a registry except an invalid image or a store error, which have their own variants.
    #[error(transparent)]
    Registry(Arc<RegistryError>),
    #[error("{} is not written in UTF-8", path.display())]
    PathNotText { path: PathBuf },
    /// The daemon's own database failed.
    #[error("{}", chain(&**.0))]
    Read(Arc<ReadError>),
    /// A thread of the daemon failed.
    #[error("{}", chain(&**.0))]
    Thread(Arc<JoinError>),
}

impl ImageError {
    /// Stable, documented, never reused.
    pub fn code(&self) -> &'static str {
        match self {
            ImageError::Missing { .. }
            | ImageError::Damaged { .. }
            | ImageError::ProgramChanged { .. }
            | ImageError::ProgramUnreadable { .. } => "image.damaged",
            ImageError::Store(error) | ImageError::NotUnpacked { cause: error, .. } => error.code(),
            ImageError::NoRoom { .. } => "image.no_room",
            ImageError::Room(refusal) => refusal.code(),
            ImageError::Invalid(error) => error.code(),
            ImageError::Unsupported { .. } => unsupported::CODE,
            ImageError::Agentfile(error) if unsupported::is_all(error) => unsupported::CODE,
            ImageError::Agentfile(_) | ImageError::NamesInside { .. } => BadImageKind::Invalid.code(),
            ImageError::NotAnAgent { .. } => "image.not_an_agent",
            ImageError::AgentAsTool { .. } | ImageError::NotATool { .. } => "bin.not_a_bin",
            ImageError::NoPlatform { .. } => "bin.no_platform",
            ImageError::ToolNotFound { .. } => "bin.not_found",
            ImageError::NotPacked { .. } => "image.not_packed",
            ImageError::BadDigest { .. } => "image.bad_ref",
            ImageError::Registry(error) => error.code(),
            ImageError::PathNotText { .. } | ImageError::Read(_) | ImageError::Thread(_) => "daemon.internal",
        }
    }

    /// The underlying cause, if there is one.
    pub fn cause(&self) -> Option<String> {
        match self {
            ImageError::Store(error) => Some(chain(&**error)),
            ImageError::NoRoom { why } | ImageError::ToolNotFound { why, .. } => Some(why.clone()),
            ImageError::Room(refusal) => refusal.cause(),
            ImageError::NoPlatform { made_for, .. } => {
                let made_for = if made_for.is_empty() { "nothing".to_owned() } else { made_for.join(", ") };
                Some(format!("it was made for {made_for}"))
            }
            ImageError::ProgramUnreadable { cause, .. } => Some(cause.to_string()),
            ImageError::NotUnpacked { cause, .. } => {
                Some(std::error::Error::source(&**cause).map(ToString::to_string).unwrap_or_default())
            }
            ImageError::Registry(error) => std::error::Error::source(&**error).map(innermost),
            ImageError::Missing { .. }
            | ImageError::Damaged { .. }
            | ImageError::Invalid(_)
            | ImageError::Unsupported { .. }
            | ImageError::Agentfile(_)
            | ImageError::NamesInside { .. }
            | ImageError::NotAnAgent { .. }
            | ImageError::AgentAsTool { .. }
            | ImageError::NotATool { .. }
            | ImageError::ProgramChanged { .. }
            | ImageError::NotPacked { .. }
            | ImageError::BadDigest { .. }
            | ImageError::PathNotText { .. }
            | ImageError::Read(_)
            | ImageError::Thread(_) => None,
        }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            ImageError::Missing { digest } => BlobError::Missing { digest: *digest }.hint().to_owned(),
            ImageError::Damaged { digest } => BlobError::Damaged { digest: *digest }.hint().to_owned(),
            ImageError::Store(error) | ImageError::NotUnpacked { cause: error, .. } => {
                error.hint().to_owned()
            }
            ImageError::NoRoom { .. } => NO_ROOM_HINT.to_owned(),
            ImageError::Room(refusal) => return refusal.hint(),
            ImageError::Invalid(_) => BadImage::HINT.to_owned(),
            ImageError::Unsupported { .. } => unsupported::HINT.to_owned(),
            ImageError::Agentfile(error) if unsupported::is_all(error) => unsupported::HINT.to_owned(),
            ImageError::Agentfile(_) => "ask its author, or build it here from its source".to_owned(),
            ImageError::NamesInside { .. } => {
                "if that is intended, pull what it names first with `lodge bin pull` or `lodge image pull`"
                    .to_owned()
            }
            ImageError::NotAnAgent { .. } => "`lodge bin pull` pulls tools".to_owned(),
            ImageError::AgentAsTool { .. } => {
                "ask the author of the image that names it as a tool".to_owned()
            }
            ImageError::NotATool { .. } => "tools are made with `lodge bin build`".to_owned(),
            ImageError::NoPlatform { tool, host, .. } => format!(
                "build it for {host} too (`lodge bin build {tool} {host}:PATH …`), then the agent's image again, which keeps \
                 the tools it was built with, and give it to the agent: `lodge update AGENT --image …`"
            ),
            ImageError::ToolNotFound { reference, .. } => {
                let stock = stock_hint(reference).map(|hint| format!("{hint}; or ")).unwrap_or_default();
                format!(
                    "{stock}pull it with `lodge bin pull`, build it again as `{}`, or push the agent again from where it has it",
                    name_of(reference)
                )
            }
            ImageError::ProgramChanged { .. } | ImageError::ProgramUnreadable { .. } => {
                "start the agent again: the tool is unpacked again".to_owned()
            }
            ImageError::NotPacked { .. } => "build it again".to_owned(),
            ImageError::BadDigest { .. } => "build the image again".to_owned(),
            ImageError::Registry(error) => error.hint(),
            ImageError::PathNotText { .. } | ImageError::Read(_) | ImageError::Thread(_) => return None,
        })
    }

    /// The error with its cause and its hint, in one line.
    pub fn in_one_line(&self) -> String {
        let cause = self.cause().map(|cause| format!(": {cause}")).unwrap_or_default();
        let hint = self.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
        format!("{self}{cause}{hint}")
    }

    /// Whether another pull may succeed. The contents of an image never change, so an invalid image stays invalid.
    pub fn again(&self) -> AutoRetry {
        match self {
            ImageError::Invalid(error) => match error.kind() {
                BadImageKind::Invalid => AutoRetry::Never,
                BadImageKind::Mismatch => AutoRetry::Later,
            },
            ImageError::Unsupported { .. }
            | ImageError::Agentfile(_)
            | ImageError::NamesInside { .. }
            | ImageError::NotAnAgent { .. }
            | ImageError::AgentAsTool { .. }
            | ImageError::NotATool { .. }
            | ImageError::NoPlatform { .. } => AutoRetry::Never,
            ImageError::Missing { .. }
            | ImageError::Damaged { .. }
            | ImageError::Store(_)
            | ImageError::NoRoom { .. }
            | ImageError::Room(_)
            | ImageError::ToolNotFound { .. }
            | ImageError::ProgramChanged { .. }
            | ImageError::ProgramUnreadable { .. }
            | ImageError::NotUnpacked { .. }
            | ImageError::NotPacked { .. }
            | ImageError::BadDigest { .. }
            | ImageError::Registry(_)
            | ImageError::PathNotText { .. }
            | ImageError::Read(_)
            | ImageError::Thread(_) => AutoRetry::Later,
        }
    }

    /// Whether the received bytes are worth keeping: the next pull resumes them.
    pub fn is_resumable(&self) -> bool {
        matches!(self, ImageError::Registry(error)
            if matches!(**error, RegistryError::Unreachable { .. } | RegistryError::Stalled { .. }))
    }

    /// Whether contents that were recorded are missing or changed, so that fetching them again may help.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            ImageError::Missing { .. }
                | ImageError::Damaged { .. }
                | ImageError::ProgramChanged { .. }
                | ImageError::ProgramUnreadable { .. }
        )
    }

    /// Whether the registry has no such image.
    pub fn is_not_in_registry(&self) -> bool {
        matches!(self, ImageError::Registry(error) if matches!(**error, RegistryError::NotFound { .. }))
    }
}

impl From<BlobError> for ImageError {
    fn from(error: BlobError) -> ImageError {
        match error {
            BlobError::Missing { digest } => ImageError::Missing { digest },
            BlobError::Damaged { digest } => ImageError::Damaged { digest },
            BlobError::Io { .. } if error.is_full() => ImageError::NoRoom { why: chain(&error) },
            BlobError::Io { .. } | BlobError::Busy { .. } => ImageError::Store(Arc::new(error)),
            BlobError::Wrong { .. }
            | BlobError::TooLarge { .. }
            | BlobError::Short { .. }
            | BlobError::TooLong { .. }
            | BlobError::Name { .. } => ImageError::Invalid(BadImage::new(error.to_string())),
        }
    }
}

impl From<BadImage> for ImageError {
    fn from(error: BadImage) -> ImageError {
        ImageError::Invalid(error)
    }
}

impl From<RegistryError> for ImageError {
    fn from(error: RegistryError) -> ImageError {
        match error {
            RegistryError::Image(error) => error.into(),
            RegistryError::Blob(error) => error.into(),
            RegistryError::Unreachable { .. }
            | RegistryError::Stalled { .. }
            | RegistryError::NotFound { .. }
            | RegistryError::Denied { .. }
            | RegistryError::Login { .. }
            | RegistryError::Lies { .. }
            | RegistryError::Refused { .. } => ImageError::Registry(Arc::new(error)),
        }
    }
}

impl From<LoadError> for ImageError {
    fn from(error: LoadError) -> ImageError {
        ImageError::Agentfile(Arc::new(error))
    }
}

impl From<ReadError> for ImageError {
    fn from(error: ReadError) -> ImageError {
        ImageError::Read(Arc::new(error))
    }
}

impl From<JoinError> for ImageError {
    fn from(error: JoinError) -> ImageError {
        ImageError::Thread(Arc::new(error))
    }
}

/// The last cause of a chain. The causes before it only say that a connection failed.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let last = std::iter::successors(Some(error), |error| error.source()).last().unwrap_or(error);
    let words = last.to_string();
    // Readers do not need the error number.
    match words.rsplit_once(" (os error ") {
        Some((words, _)) => words.to_owned(),
        None => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreachable() -> RegistryError {
        RegistryError::Unreachable { host: "r.example".to_owned(), cause: "connection refused".into() }
    }

    fn not_found() -> RegistryError {
        RegistryError::NotFound { reference: "r.example/a:v1".to_owned() }
    }

    #[test]
    fn only_errors_in_the_contents_of_an_image_are_never_retried() {
        let digest = Digest::of(b"x");
        let wrong = BlobError::Wrong { wanted: digest, found: Digest::of(b"y") };
        for (error, again) in [
            (ImageError::from(wrong), AutoRetry::Never),
            (ImageError::NotAnAgent { reference: "a".to_owned() }, AutoRetry::Never),
            (RegistryError::from(BadImage::new("x")).into(), AutoRetry::Never),
            (BlobError::Missing { digest }.into(), AutoRetry::Later),
            (unreachable().into(), AutoRetry::Later),
            (not_found().into(), AutoRetry::Later),
            (RoomRefusal::ReadOnly.into(), AutoRetry::Later),
        ] {
            assert_eq!(error.again(), again, "{error:?}");
        }
    }

    #[test]
    fn received_bytes_are_kept_only_if_the_next_pull_can_resume_them() {
        assert!(ImageError::from(unreachable()).is_resumable());
        assert!(!ImageError::from(not_found()).is_resumable());
        assert!(!ImageError::from(BadImage::new("x")).is_resumable());
    }

    #[test]
    fn one_line_has_the_innermost_cause_and_the_hint() {
        assert_eq!(
            ImageError::from(unreachable()).in_one_line(),
            "`r.example` could not be reached: connection refused (check its name, the network and the proxy, and that it runs)"
        );
    }
}
