//! Agents of OpenOtters, which are read and never made.
//!
//! Owns: what of such an image is used. Its config is not: it is not flattened, and says nothing that the Agentfile in
//! it does not.

use std::io;

use super::BadImage;
use super::agent::{AGENTFILE_TITLE, AgentKind, CONTEXT_END, contents, small_enough, text, total_fits};
use super::manifest::{Descriptor, Manifest};
use crate::agentfile::{ADD_MAX, CONTEXT_MAX, FILE_MAX, PackedFiles, names, shown};

pub(super) const AGENT: &str = "application/vnd.openotters.agent.v1";
pub(super) const AGENT_CONFIG: &str = "application/vnd.openotters.agent.config.v1+json";
const AGENTFILE: &str = "application/vnd.openotters.agentfile";
const CONTEXT: &str = "application/vnd.openotters.context.v1";
const ADDED: &str = "application/octet-stream";

/// What is in a foreign image, to be loaded with [`crate::agentfile::load_packed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignImage {
    pub source: Vec<u8>,
    pub files: PackedFiles,
}

/// Takes a foreign image apart. `blob` gives contents that were checked against their descriptor.
///
/// Layers of unknown kinds are skipped.
pub fn unpack_foreign(
    manifest: &Manifest,
    blob: &mut dyn FnMut(&Descriptor) -> io::Result<Vec<u8>>,
) -> Result<ForeignImage, BadImage> {
    if AgentKind::of(manifest) != Some(AgentKind::Foreign) {
        return Err(BadImage::new("it is not the image of a foreign agent"));
    }
    let mut source = None;
    let mut parts = Vec::new();
    for layer in &manifest.layers {
        let title = layer.title().unwrap_or_default();
        match layer.media_type.as_str() {
            AGENTFILE if source.is_some() => return Err(BadImage::new("it has two Agentfiles")),
            AGENTFILE => {
                small_enough(layer, AGENTFILE_TITLE, FILE_MAX as u64)?;
                source = Some(layer);
            }
            CONTEXT => {
                let name = title.strip_suffix(CONTEXT_END).ok_or_else(|| bad_title(title))?;
                small_enough(layer, title, CONTEXT_MAX)?;
                parts.push((layer, name));
            }
            ADDED => {
                small_enough(layer, title, ADD_MAX)?;
                parts.push((layer, title));
            }
            _unknown => {}
        }
    }
    let source = source.ok_or_else(|| BadImage::new("it has no Agentfile"))?;
    total_fits(parts.iter().map(|(layer, _)| layer.size).sum())?;
    let mut files = PackedFiles::default();
    for (layer, name) in parts {
        if !names::path_name(name) {
            return Err(bad_title(name));
        }
        let bytes = contents(layer, blob)?;
        let is_new = if layer.media_type == CONTEXT {
            files.contexts.insert(name.to_owned(), text(layer, bytes)?).is_none()
        } else {
            files.files.insert(name.to_owned(), bytes).is_none()
        };
        if !is_new {
            return Err(BadImage::new(format!("its layer `{}` occurs twice", shown(name))));
        }
    }
    Ok(ForeignImage { source: contents(source, blob)?, files })
}

fn bad_title(title: &str) -> BadImage {
    BadImage::new(format!("its layer `{}` cannot be a file", shown(title)))
}
