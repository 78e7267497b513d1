//! Building an image: an Agentfile with its parents, checked and flattened.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use lodge_core::record::{ImageKind, ImageRecord, ImageRow, ImageState};
use lodge_image::agentfile::{self, Agentfile, Builder, LoadError, LoadedAgentfile};
use lodge_image::oci::pack_agent;
use lodge_image::registry::TransferWatch;
use lodge_image::{Pins, Reference, RemoteImage};
use lodge_proto::ErrorBody;
use tokio::runtime::Handle;

use super::tools::missing_program;
use crate::api::images::{self, LookupError, ObtainError, fetch_image, find_bin, name_of};
use crate::crash;
use crate::images::record::record_of;
use crate::images::{ImageError, unsupported};
use crate::shell::Shell;

/// As NAME has it.
const NAME_MAX: usize = 63;

/// Where an Agentfile is.
pub(in crate::api) enum AgentfileSource<'a> {
    /// A directory or a file of this host.
    Path(&'a str),
    /// Its text, without a directory.
    Content(&'a str),
}

/// An image that lies in the store and may be recorded. Its digest is that of everything in it.
#[derive(Debug)]
pub(in crate::api) struct BuiltImage {
    pub row: ImageRow,
    pub record: ImageRecord,
    /// The tools that it needs.
    pub with: Vec<ImageRow>,
    pub pins: Pins,
    /// Its default name: its own NAME, or that of its directory. Never the NAME of a parent, which would then refer to
    /// its child.
    pub called: Option<String>,
}

/// What an image is built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::api) enum BuildPurpose {
    /// Any host: the programs of `host:` may be missing here.
    Image,
    /// An agent of this host.
    Agent,
}

/// Builds an image. All mistakes are reported together. Call it where blocking is allowed.
pub(in crate::api) fn build(
    shell: &Shell,
    source: &AgentfileSource<'_>,
    args: &BTreeMap<String, String>,
    purpose: BuildPurpose,
    watch: Arc<dyn TransferWatch>,
) -> Result<BuiltImage, ErrorBody> {
    let shelf = ImageResolver { purpose, ..ImageResolver::new(shell, watch)? };
    let loaded = match source {
        AgentfileSource::Path(path) => agentfile::load_dir(Path::new(path), args, &shelf),
        AgentfileSource::Content(content) => agentfile::load_inline(content.as_bytes(), args, &shelf),
    };
    let loaded = loaded.map_err(|error| load_error(&error))?;
    let called = loaded.own_name.clone().or_else(|| match source {
        AgentfileSource::Path(path) => directory_name(Path::new(path)),
        AgentfileSource::Content(_) => None,
    });
    crash::pill_at("build", called.as_deref().unwrap_or_default());
    let packed = pack_agent(&loaded).map_err(ImageError::from)?;
    let (with, pins) = shelf.taken();
    shell.images.store_packed(&pins, &packed)?;
    let record = record_of(loaded);
    let digest = packed.digest.to_string();
    let bytes = packed.blobs.iter().map(|blob| blob.bytes.len() as u64).sum();
    let name = called.clone().unwrap_or_else(|| digest.clone());
    let row = ImageRow::agent(digest, name, bytes, record.clone());
    Ok(BuiltImage { row, record, with, pins, called })
}

/// The name of the directory of an Agentfile, made one that NAME allows.
fn directory_name(path: &Path) -> Option<String> {
    let real = path.canonicalize().ok()?;
    let directory = if real.is_dir() { real.as_path() } else { real.parent()? };
    plain_name(&directory.file_name()?.to_string_lossy())
}

fn plain_name(text: &str) -> Option<String> {
    let plain = text.chars().map(|letter| match letter {
        letter if letter.is_ascii_alphanumeric() => letter,
        '.' | '_' | '-' => letter,
        _other => '-',
    });
    let name: String = plain.skip_while(|letter| !letter.is_ascii_alphanumeric()).take(NAME_MAX).collect();
    (!name.is_empty()).then_some(name)
}

/// Resolves parents and tools: from the local store, or pulled from the registries that they name.
pub(in crate::api) struct ImageResolver<'a> {
    shell: &'a Shell,
    watch: Arc<dyn TransferWatch>,
    purpose: BuildPurpose,
    /// Pins the resolved tools, even if their names change meanwhile.
    pins: Pins,
    bins: RefCell<BTreeMap<String, ImageRow>>,
}

impl<'a> ImageResolver<'a> {
    pub fn new(shell: &'a Shell, watch: Arc<dyn TransferWatch>) -> Result<ImageResolver<'a>, ImageError> {
        let (pins, purpose) = (shell.images.blobs()?.pins(), BuildPurpose::Image);
        Ok(ImageResolver { shell, watch, purpose, pins, bins: RefCell::default() })
    }

    /// The tools that the image needs.
    pub fn taken(self) -> (Vec<ImageRow>, Pins) {
        (self.bins.into_inner().into_values().collect(), self.pins)
    }

    /// The tool that a reference means now, as `name:tag@sha256:…`.
    pub fn bin(&self, reference: &str) -> Result<String, ObtainError> {
        let found = match self.shell.read_here(|at| find_bin(at, reference)) {
            Err(error @ LookupError::NoTool { .. }) => {
                let Some(remote) = remote(reference)? else { return Err(error.into()) };
                self.fetch(ImageKind::Bin, reference, &remote)?;
                {
                    let name = name_of(reference, &remote)?;
                    self.shell.read_here(|at| find_bin(at, &name))?
                }
            }
            found => found?,
        };
        let pinned = match Reference::read(reference).map_err(LookupError::from)? {
            Reference::Name(tagged) if found.named.is_some() => {
                format!("{}@{}", tagged.as_str(), found.digest)
            }
            Reference::Digest(_) if reference.contains('@') => reference.to_owned(),
            // Only its digest was given: what it is called by itself is the same everywhere.
            Reference::Name(_) | Reference::Digest(_) => format!("{}@{}", found.record.name, found.digest),
        };
        let row = self.shell.images.load_row(&self.pins, &found.digest, found.record.name)?;
        self.bins.borrow_mut().insert(found.digest, row);
        Ok(pinned)
    }

    fn parent(&self, reference: &str) -> Result<LoadedAgentfile, ObtainError> {
        let found = match self.shell.read_here(|at| images::find(at, reference)) {
            Err(error @ LookupError::NoImage { .. }) => {
                let Some(remote) = remote(reference)? else { return Err(error.into()) };
                self.fetch(ImageKind::Agent, reference, &remote)?;
                {
                    let name = name_of(reference, &remote)?;
                    self.shell.read_here(|at| images::find(at, &name))?
                }
            }
            found => found?,
        };
        let summary =
            self.shell.reader.here(|store| store.image_summary(&found.digest)).map_err(LookupError::from)?;
        let announced = summary.is_some_and(|summary| summary.state == ImageState::Announced);
        if announced && let Some(remote) = remote(&found.named)? {
            self.fetch(ImageKind::Agent, &found.named, &remote)?;
        }
        self.keep_tools(&found.record)?;
        Ok(self.shell.images.load_agentfile(found.record)?)
    }

    /// The tools of a parent are those of its child, too.
    fn keep_tools(&self, record: &ImageRecord) -> Result<(), ObtainError> {
        record.images().try_for_each(|image| self.bin(image).map(drop))
    }

    fn fetch(&self, kind: ImageKind, reference: &str, remote: &RemoteImage) -> Result<(), ObtainError> {
        let tags = vec![name_of(reference, remote)?];
        let fetched = fetch_image(self.shell, None, kind, (reference, remote), tags, self.watch.clone());
        Handle::current().block_on(fetched).map(drop)
    }
}

/// Where a name leads, if it names a registry.
fn remote(reference: &str) -> Result<Option<RemoteImage>, LookupError> {
    Ok(RemoteImage::read(reference)?)
}

type BuildError = Box<dyn std::error::Error + Send + Sync>;

impl Builder for ImageResolver<'_> {
    fn image(&self, reference: &str) -> Result<Option<LoadedAgentfile>, BuildError> {
        match self.parent(reference) {
            Ok(loaded) => Ok(Some(loaded)),
            Err(error) if error.is_absent(ImageKind::Agent) => Ok(None),
            Err(error) => Err(error.to_string().into()),
        }
    }

    fn pin(&self, reference: &str) -> Result<Option<String>, BuildError> {
        match self.bin(reference) {
            Ok(pinned) => Ok(Some(pinned)),
            Err(error) if error.is_absent(ImageKind::Bin) => Ok(None),
            Err(error) => Err(error.to_string().into()),
        }
    }

    fn refuses(&self, file: &Agentfile) -> Vec<(u32, &'static str)> {
        unsupported::instructions(file)
    }

    fn missing_program(&self, program: &str) -> Option<String> {
        match self.purpose {
            BuildPurpose::Agent => missing_program(program),
            BuildPurpose::Image => None,
        }
    }
}

fn load_error(error: &LoadError) -> ErrorBody {
    let (code, hint) = match error {
        LoadError::Mistakes(_) if unsupported::is_all(error) => {
            (unsupported::CODE, "remove these lines, and run it again".to_owned())
        }
        // They are listed with a hint each.
        LoadError::Mistakes(_) => ("agentfile.invalid", "fix these lines and try again".to_owned()),
        LoadError::Source(_) => ("agentfile.unreadable", error.hint()),
        LoadError::UndeclaredArgs { .. } => ("agentfile.undeclared_arg", error.hint()),
    };
    ErrorBody::new(code, error.to_string()).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_directory_is_made_one_that_an_image_can_have() {
        for (text, name) in [
            ("coder", Some("coder")),
            ("My Agent (2)", Some("My-Agent--2-")),
            (".hidden", Some("hidden")),
            ("-_-", None),
            ("ü", None),
        ] {
            assert_eq!(plain_name(text).as_deref(), name, "{text}");
        }
        let long = plain_name(&"a".repeat(200)).unwrap();
        assert_eq!(
            lodge_image::TaggedName::read(&long).unwrap().as_str(),
            format!("{}:latest", "a".repeat(NAME_MAX))
        );
    }
}
