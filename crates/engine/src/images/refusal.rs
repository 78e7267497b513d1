//! Refusals of requests about images and tools.

use lodge_core::record::ImageKind;

/// Agents, images and names that a refusal lists.
const SHOWN_MAX: usize = 5;

/// Where an image with a given name could come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageOrigin {
    /// The name contains no registry.
    Local,
    Registry,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageRefusal {
    #[error("no image `{given}`")]
    NotFound { given: String, origin: ImageOrigin },
    #[error("there are {names} names of images")]
    TooMany { names: usize },
    #[error("`{reference}` is the name of {}", match kind { ImageKind::Agent => "an agent's image", ImageKind::Bin => "a tool" })]
    NameTaken { reference: String, kind: ImageKind },
    #[error("the archive has {} another image here: {}", if names.len() == 1 { "a name that means" } else { "names that mean" }, quoted(names))]
    NamesMove { names: Vec<String> },
    #[error("the image `{shown}` is {}", users(agents, images))]
    InUse { shown: String, agents: Vec<String>, images: Vec<String> },
}

impl ImageRefusal {
    pub(crate) fn code(&self) -> &'static str {
        match self {
            ImageRefusal::NotFound { .. } => "image.not_found",
            ImageRefusal::TooMany { .. } => "image.too_many",
            ImageRefusal::NameTaken { .. } => "image.name_taken",
            ImageRefusal::NamesMove { .. } => "image.name_moves",
            ImageRefusal::InUse { .. } => "image.in_use",
        }
    }

    pub(crate) fn hint(&self) -> String {
        match self {
            ImageRefusal::NotFound { given, origin: ImageOrigin::Registry } => format!(
                "pull it first: `lodge image pull {given}`; `lodge image ls` lists those that are here"
            ),
            ImageRefusal::NotFound { origin: ImageOrigin::Local, .. } => {
                "`lodge image ls` lists all images; `lodge image build DIR -t NAME` makes one".to_owned()
            }
            ImageRefusal::TooMany { .. } => "remove some with `lodge image rm`".to_owned(),
            ImageRefusal::NameTaken { reference, kind } => {
                let noun = match kind {
                    ImageKind::Agent => "image",
                    ImageKind::Bin => "bin",
                };
                format!("choose another name, or remove that one first: `lodge {noun} rm {reference}`")
            }
            ImageRefusal::NamesMove { .. } => {
                "nothing was imported; `lodge image import --move` lets the names mean the images of the archive"
                    .to_owned()
            }
            ImageRefusal::InUse { agents, images, .. } => {
                let first = match (agents.is_empty(), images.is_empty()) {
                    (false, false) => {
                        return "remove these agents and images first, with `lodge rm` and `lodge image rm`"
                            .to_owned();
                    }
                    (true, _) => "remove these images first, with `lodge image rm`",
                    (false, true) => "remove these agents first, with `lodge rm`",
                };
                format!("{first}; a name alone can go when the image has another")
            }
        }
    }
}

fn users(agents: &[String], images: &[String]) -> String {
    match (agents.is_empty(), images.is_empty()) {
        (false, false) => format!("in use by {}, and needed by {}", listed(agents), listed(images)),
        (true, _) => format!("needed by {}", listed(images)),
        (false, true) => format!("in use by {}", listed(agents)),
    }
}

/// The first few of these names, in order.
fn listed(names: &[String]) -> String {
    let mut names = names.to_vec();
    names.sort_unstable();
    quoted(&names)
}

/// As many names as a refusal lists.
pub fn quoted(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(SHOWN_MAX).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(SHOWN_MAX) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
