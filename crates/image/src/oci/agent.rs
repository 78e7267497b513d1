//! Agents as images.

use std::collections::BTreeMap;
use std::io;

use super::manifest::{Descriptor, Manifest, ManifestDocument, MediaDialect, TITLE};
use super::{BadImage, Blob, LAYERS_MAX, PackedImage, agree, config, foreign};
use crate::agentfile::{
    ADD_MAX, AddedFile, CONTEXT_MAX, ContextSection, ContextSource, ContextText, FILE_MAX, LOAD_TOTAL_MAX,
    LoadedAgentfile, shown,
};

pub const AGENT: &str = "application/vnd.lodge.agent.v1";
pub const AGENT_CONFIG: &str = "application/vnd.lodge.agent.config.v1+json";
pub const AGENTFILE: &str = "application/vnd.lodge.agentfile";
pub const CONTEXT: &str = "application/vnd.lodge.context.v1";
pub const ADDED: &str = "application/octet-stream";

pub(super) const AGENTFILE_TITLE: &str = "Agentfile";
pub(super) const CONTEXT_END: &str = ".md";

/// An agent's image without the contents of its layers.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentImageHead {
    /// Everything but the source, the texts of contexts and the bytes of files, which are empty.
    pub loaded: LoadedAgentfile,
    /// Where each file of `loaded.files` is, in the same order.
    pub files: Vec<Descriptor>,
    /// Whether a foreign image has to be read whole before anything of it is known; see [`super::unpack_foreign`].
    pub whole: bool,
}

/// Whose agents an image holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentKind {
    Own,
    /// OpenOtters': its config is not flattened, so its Agentfile is loaded again.
    Foreign,
}

impl AgentKind {
    /// What a manifest says that it is; `None` when it is no agent's.
    pub fn of(manifest: &Manifest) -> Option<AgentKind> {
        let said = (manifest.config.media_type.as_str(), manifest.artifact_type.as_deref());
        match said {
            (AGENT_CONFIG, Some(AGENT) | None) => Some(AgentKind::Own),
            (foreign::AGENT_CONFIG, Some(foreign::AGENT) | None) => Some(AgentKind::Foreign),
            _other => None,
        }
    }
}

/// Makes an image of an agent: the same agent is the same image, whenever and wherever it is made.
pub fn pack_agent(loaded: &LoadedAgentfile) -> Result<PackedImage, BadImage> {
    config::check_loaded(loaded)?;
    check_parts(loaded)?;
    let mut blobs = vec![Blob::new(AGENT_CONFIG, config::write(loaded)?)];
    let mut layers = Vec::new();
    let mut add = |media_type: &str, title: String, bytes: &[u8]| {
        let blob = Blob::new(media_type, bytes.to_owned());
        layers.push(Descriptor {
            annotations: BTreeMap::from([(TITLE.to_owned(), title)]),
            ..blob.descriptor()
        });
        // Two parts with the same contents are one blob, that two layers name.
        if !blobs.iter().any(|there: &Blob| there.digest == blob.digest) {
            blobs.push(blob);
        }
    };
    add(AGENTFILE, AGENTFILE_TITLE.to_owned(), &loaded.source);
    for context in &loaded.contexts {
        add(CONTEXT, format!("{}{CONTEXT_END}", context.name), context.text.as_bytes());
    }
    for file in &loaded.files {
        add(ADDED, file.name.clone(), &file.bytes);
    }
    let manifest = ManifestDocument::Manifest(Manifest {
        dialect: MediaDialect::Oci,
        artifact_type: Some(AGENT.to_owned()),
        config: blobs[0].descriptor(),
        layers,
        annotations: annotations(loaded),
    });
    let manifest = Blob::new(manifest.media_type(), manifest.write()?);
    let digest = manifest.digest;
    blobs.push(manifest);
    Ok(PackedImage { digest, blobs })
}

/// What the config of an agent's image says by itself.
pub fn read_agent_head(manifest: &Manifest, config: &[u8]) -> Result<AgentImageHead, BadImage> {
    match AgentKind::of(manifest) {
        Some(AgentKind::Own) => {}
        Some(AgentKind::Foreign) => {
            return Ok(AgentImageHead { loaded: LoadedAgentfile::default(), files: Vec::new(), whole: true });
        }
        None => return Err(BadImage::new("it is not the image of an agent")),
    }
    let mut loaded = config::read(config)?;
    let (contexts, files) = layers(manifest, &loaded)?;
    loaded.contexts =
        loaded.agentfile.contexts.iter().map(|context| text_of(context, String::new())).collect();
    loaded.files = loaded
        .agentfile
        .adds
        .iter()
        .map(|add| AddedFile { name: add.name.clone(), bytes: Vec::new() })
        .collect();
    let total: u64 = contexts.iter().chain(&files).map(|layer| layer.size).sum();
    total_fits(total)?;
    Ok(AgentImageHead { loaded, files: files.into_iter().cloned().collect(), whole: false })
}

/// Reads a whole image of an agent. `blob` gives contents that were checked against their descriptor.
///
/// An image whose config contradicts its Agentfile is refused.
///
/// A foreign one is refused: it has to be unpacked and loaded, because its parents are not in it.
pub fn read_agent(
    manifest: &Manifest,
    config: &[u8],
    blob: &mut dyn FnMut(&Descriptor) -> io::Result<Vec<u8>>,
) -> Result<LoadedAgentfile, BadImage> {
    let AgentImageHead { mut loaded, files, whole } = read_agent_head(manifest, config)?;
    if whole {
        return Err(BadImage::new("it is an agent whose parents are not in it"));
    }
    let (contexts, _) = layers(manifest, &loaded)?;
    loaded.source = contents(&manifest.layers[0], blob)?;
    text(&manifest.layers[0], loaded.source.clone())?;
    for ((layer, context), there) in
        contexts.into_iter().zip(&mut loaded.contexts).zip(&mut loaded.agentfile.contexts)
    {
        context.text = text(layer, contents(layer, blob)?)?;
        if let ContextSource::Inline(inline) = &mut there.source {
            inline.clone_from(&context.text);
        }
    }
    for (layer, file) in files.iter().zip(&mut loaded.files) {
        file.bytes = contents(layer, blob)?;
    }
    config::check_loaded(&loaded)?;
    agree::check(&loaded)?;
    Ok(loaded)
}

/// The layers of the contexts and of the files, as the config names them. Each layer is one of them, or the source.
fn layers<'a>(
    manifest: &'a Manifest,
    loaded: &LoadedAgentfile,
) -> Result<(Vec<&'a Descriptor>, Vec<&'a Descriptor>), BadImage> {
    let (contexts, adds) = (&loaded.agentfile.contexts, &loaded.agentfile.adds);
    let wanted = 1 + contexts.len() + adds.len();
    if manifest.layers.len() != wanted {
        let found = manifest.layers.len();
        return Err(BadImage::new(format!("it has {found} layers, and its config names {wanted}")));
    }
    let mut rest = manifest.layers.iter();
    let mut next = |media_type: &str, title: &str, max: u64| match rest.next() {
        Some(layer) if layer.media_type == media_type && layer.title() == Some(title) => {
            small_enough(layer, title, max)?;
            Ok(layer)
        }
        Some(_) | None => Err(BadImage::new(format!("it has no layer `{}` in its place", shown(title)))),
    };
    next(AGENTFILE, AGENTFILE_TITLE, FILE_MAX as u64)?;
    let contexts = contexts
        .iter()
        .map(|context| next(CONTEXT, &format!("{}{CONTEXT_END}", context.name), CONTEXT_MAX))
        .collect::<Result<_, _>>()?;
    let files = adds.iter().map(|add| next(ADDED, &add.name, ADD_MAX)).collect::<Result<_, _>>()?;
    Ok((contexts, files))
}

/// What would not be read again is not written.
fn check_parts(loaded: &LoadedAgentfile) -> Result<(), BadImage> {
    let (contexts, adds) = (&loaded.agentfile.contexts, &loaded.agentfile.adds);
    let same = contexts.iter().map(|context| &context.name).eq(loaded.contexts.iter().map(|text| &text.name))
        && adds.iter().map(|add| &add.name).eq(loaded.files.iter().map(|file| &file.name));
    if !same {
        return Err(BadImage::new("its contexts and files are not those that it names"));
    }
    let layers = 1 + contexts.len() + adds.len();
    if layers > LAYERS_MAX {
        return Err(BadImage::new(format!(
            "it would have {layers} contexts and files, and at most {LAYERS_MAX} are in an image"
        )));
    }
    let mut total = 0;
    let texts = loaded.contexts.iter().map(|text| (&text.name, text.text.len(), CONTEXT_MAX));
    let files = loaded.files.iter().map(|file| (&file.name, file.bytes.len(), ADD_MAX));
    for (name, bytes, max) in texts.chain(files) {
        if bytes as u64 > max {
            return Err(too_large(name, bytes as u64, max));
        }
        total += bytes as u64;
    }
    if loaded.source.len() > FILE_MAX {
        return Err(too_large(AGENTFILE_TITLE, loaded.source.len() as u64, FILE_MAX as u64));
    }
    total_fits(total)
}

/// The annotations that common tools show. No time: it would change the digest of an equal image.
fn annotations(loaded: &LoadedAgentfile) -> BTreeMap<String, String> {
    let labels = loaded.agentfile.labels.iter().map(|label| (label.key.clone(), label.value.clone()));
    let title = loaded.agentfile.name.iter().map(|name| (TITLE.to_owned(), name.value.clone()));
    labels.chain(title).collect()
}

fn text_of(context: &ContextSection, text: String) -> ContextText {
    ContextText { name: context.name.clone(), description: context.description.clone(), text }
}

pub(super) fn small_enough(layer: &Descriptor, title: &str, max: u64) -> Result<(), BadImage> {
    if layer.size <= max { Ok(()) } else { Err(too_large(title, layer.size, max)) }
}

pub(super) fn total_fits(total: u64) -> Result<(), BadImage> {
    if total <= LOAD_TOTAL_MAX {
        return Ok(());
    }
    Err(BadImage::new(format!(
        "its contexts and files have {total} bytes together, and at most {LOAD_TOTAL_MAX} are taken"
    )))
}

fn too_large(title: &str, bytes: u64, max: u64) -> BadImage {
    BadImage::new(format!("`{}` has {bytes} bytes, and at most {max} are taken", shown(title)))
}

pub(super) fn contents(
    layer: &Descriptor,
    blob: &mut dyn FnMut(&Descriptor) -> io::Result<Vec<u8>>,
) -> Result<Vec<u8>, BadImage> {
    let bytes =
        blob(layer).map_err(|cause| BadImage::new(format!("{} cannot be read: {cause}", layer.digest)))?;
    if bytes.len() as u64 == layer.size {
        return Ok(bytes);
    }
    Err(BadImage::new(format!("{} has {} bytes, not {}", layer.digest, bytes.len(), layer.size)))
}

pub(super) fn text(layer: &Descriptor, bytes: Vec<u8>) -> Result<String, BadImage> {
    String::from_utf8(bytes)
        .map_err(|_| BadImage::new(format!("`{}` is not UTF-8", shown(layer.title().unwrap_or_default()))))
}
