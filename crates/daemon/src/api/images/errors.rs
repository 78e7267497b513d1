//! Why an image was not found, or not obtained.

use lodge_core::record::ImageKind;
use lodge_image::{BadReference, RemoteImage, stock_hint};
use lodge_proto::ErrorBody;
use lodge_store::ReadError;

use crate::images::ImageError;
use crate::read_view::{ReadFailure, read_cause, read_code, read_hint};
use crate::view::{client_errors, image_not_found};

/// Why no image of the store was found.
#[derive(Debug, thiserror::Error)]
pub(in crate::api) enum LookupError {
    /// Nothing has this name or digest; these names differ only in their tag.
    #[error("{}", image_not_found(given))]
    NoImage { given: String, tags: Vec<String> },
    #[error("no tool `{given}`")]
    NoTool { given: String, tags: Vec<String> },
    #[error("{}", match wanted {
        ImageKind::Agent => format!("`{given}` is a tool, and no agent"),
        ImageKind::Bin => format!("`{given}` is an agent, and no tool"),
    })]
    WrongKind { wanted: ImageKind, given: String },
    #[error("several images begin with `{given}`")]
    Ambiguous { given: String, digests: Vec<String> },
    #[error(transparent)]
    BadReference(#[from] BadReference),
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl ReadFailure for LookupError {
    fn of_store(error: ReadError) -> LookupError {
        error.into()
    }
}

impl LookupError {
    /// Stable, documented, never reused.
    fn code(&self) -> &'static str {
        match self {
            LookupError::NoImage { given, .. } => image_not_found(given).code(),
            LookupError::NoTool { .. } => "bin.not_found",
            LookupError::WrongKind { wanted: ImageKind::Agent, .. } => "image.not_an_agent",
            LookupError::WrongKind { wanted: ImageKind::Bin, .. } => "bin.not_a_bin",
            LookupError::Ambiguous { .. } => "image.ambiguous",
            LookupError::BadReference(_) => "image.bad_ref",
            LookupError::Read(error) => read_code(error),
        }
    }

    fn cause(&self) -> Option<String> {
        match self {
            LookupError::Read(error) => read_cause(error),
            LookupError::NoImage { .. }
            | LookupError::NoTool { .. }
            | LookupError::WrongKind { .. }
            | LookupError::Ambiguous { .. }
            | LookupError::BadReference(_) => None,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            LookupError::NoImage { tags, .. } | LookupError::NoTool { tags, .. } if !tags.is_empty() => {
                let tags: Vec<String> = tags.iter().map(|tag| format!("`{tag}`")).collect();
                Some(format!("there is {}", tags.join(", ")))
            }
            LookupError::NoImage { given, .. } => image_not_found(given).hint(),
            LookupError::NoTool { given, .. } => Some(no_tool_hint(given)),
            LookupError::WrongKind { wanted: ImageKind::Agent, .. } => Some(
                "tools are the business of `lodge bin`: `lodge bin pull`, `lodge bin push`, `lodge bin inspect`, `lodge bin rm`"
                    .to_owned(),
            ),
            LookupError::WrongKind { wanted: ImageKind::Bin, .. } => Some(
                "agents are the business of `lodge image`: `lodge image pull`, `lodge image push`, `lodge image inspect`, `lodge image rm`"
                    .to_owned(),
            ),
            LookupError::Ambiguous { digests, .. } => {
                Some(format!("give more of the digest: {}", digests.join(", ")))
            }
            LookupError::BadReference(error) => Some(error.hint().to_owned()),
            LookupError::Read(error) => read_hint(error),
        }
    }
}

fn no_tool_hint(given: &str) -> String {
    match (RemoteImage::read(given), stock_hint(given)) {
        (Ok(Some(_)), _) => {
            format!("pull it first: `lodge bin pull {given}`; `lodge bin ls` lists those that are here")
        }
        (Ok(None) | Err(_), Some(hint)) => hint.to_owned(),
        (Ok(None) | Err(_), None) => {
            "`lodge bin ls` lists all tools; `lodge bin build` and `lodge bin pull` add one".to_owned()
        }
    }
}

client_errors!(LookupError);

/// Why an image is neither here nor could be fetched and recorded.
#[derive(Debug, thiserror::Error)]
pub(in crate::api) enum ObtainError {
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error(transparent)]
    Image(#[from] ImageError),
    /// It was fetched, and its record was refused.
    #[error("{}", .0.message)]
    NotRecorded(ErrorBody),
}

impl ObtainError {
    /// Whether there is no such image, here or where its name leads.
    pub fn is_absent(&self, kind: ImageKind) -> bool {
        match (self, kind) {
            (ObtainError::Lookup(LookupError::NoImage { .. }), ImageKind::Agent)
            | (
                ObtainError::Lookup(LookupError::NoTool { .. })
                | ObtainError::Image(ImageError::ToolNotFound { .. }),
                ImageKind::Bin,
            ) => true,
            (ObtainError::Lookup(_) | ObtainError::Image(_) | ObtainError::NotRecorded(_), _) => false,
        }
    }
}

impl From<ObtainError> for ErrorBody {
    fn from(error: ObtainError) -> ErrorBody {
        match error {
            ObtainError::Lookup(error) => error.into(),
            ObtainError::Image(error) => error.into(),
            ObtainError::NotRecorded(body) => body,
        }
    }
}
