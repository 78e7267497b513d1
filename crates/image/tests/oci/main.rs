//! Manifests and the images of agents, tested from outside.
//!
//! Owns: the helpers every test uses. Never: reaches into the crate.

mod agents;
mod agreement;
mod diffs;
mod documents;
mod foreign;
mod generate;
mod hostile;
mod smuggled;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use lodge_image::agentfile::{Agentfile, Builder, ContextSource, LoadedAgentfile, load_dir, load_inline};
use lodge_image::oci::{BadImage, Descriptor, Manifest, ManifestDocument, PackedImage, read_agent};
use lodge_image::{Digest, Reference, TaggedName};

type TestError = Box<dyn std::error::Error + Send + Sync>;

/// The images there are, by name; every tool is there, and is called after its own name.
#[derive(Default)]
pub(crate) struct PackedImages(pub(crate) BTreeMap<String, LoadedAgentfile>);

impl Builder for PackedImages {
    fn image(&self, reference: &str) -> Result<Option<LoadedAgentfile>, TestError> {
        Ok(self.0.get(reference).cloned())
    }

    fn pin(&self, reference: &str) -> Result<Option<String>, TestError> {
        if let Some((name, digest)) = Reference::pinned(reference)? {
            return Ok(Some(name.pin(&digest)));
        }
        Ok(Some(TaggedName::read(reference)?.pin(&Digest::of(reference.as_bytes()))))
    }

    fn refuses(&self, _: &Agentfile) -> Vec<(u32, &'static str)> {
        Vec::new()
    }
}

#[track_caller]
pub(crate) fn inline(source: &str) -> LoadedAgentfile {
    match load_inline(source.as_bytes(), &BTreeMap::new(), &PackedImages::default()) {
        Ok(loaded) => loaded,
        Err(error) => panic!("{error}"),
    }
}

#[track_caller]
pub(crate) fn on_disk(path: &Path) -> LoadedAgentfile {
    match load_dir(path, &BTreeMap::new(), &PackedImages::default()) {
        Ok(loaded) => loaded,
        Err(error) => panic!("{error}"),
    }
}

/// The contents of a packed image: its manifest and its config.
pub(crate) fn opened(packed: &PackedImage) -> (Manifest, Vec<u8>) {
    let manifest = match ManifestDocument::read(&packed.blobs.last().expect("a manifest").bytes) {
        Ok(ManifestDocument::Manifest(manifest)) => manifest,
        other => panic!("{other:?}"),
    };
    let config = bytes_of(packed, &manifest.config).expect("a config");
    (manifest, config)
}

pub(crate) fn bytes_of(packed: &PackedImage, part: &Descriptor) -> io::Result<Vec<u8>> {
    let blob = packed.blobs.iter().find(|blob| blob.digest == part.digest);
    blob.map(|blob| blob.bytes.clone()).ok_or_else(|| io::ErrorKind::NotFound.into())
}

pub(crate) fn read(packed: &PackedImage) -> Result<LoadedAgentfile, BadImage> {
    let (manifest, config) = opened(packed);
    read_agent(&manifest, &config, &mut |part| bytes_of(packed, part))
}

/// Without the places in the source, which an image does not keep.
pub(crate) fn placeless(mut loaded: LoadedAgentfile) -> LoadedAgentfile {
    macro_rules! nowhere {
        ($($list:ident),*) => { $(for item in &mut loaded.agentfile.$list { item.line = 0; })* };
    }
    macro_rules! at {
        ($($field:ident),*) => { $(for at in loaded.agentfile.$field.iter_mut() { (at.line, at.column) = (0, 0); })* };
    }
    nowhere!(contexts, configs, envs, bins, adds, labels, args, mcps, services, schedules, ons);
    at!(runtime, model, name, exec, network, capabilities, limits, skills);
    (loaded.agentfile.from.line, loaded.agentfile.from.column) = (0, 0);
    for context in &mut loaded.agentfile.contexts {
        if let ContextSource::File(path) = &mut context.source {
            (path.line, path.column) = (0, 0);
        }
    }
    for add in &mut loaded.agentfile.adds {
        (add.src.line, add.src.column) = (0, 0);
    }
    loaded
}

/// A small generator whose every run is the same.
pub(crate) struct OciRandom(pub(crate) u64);

impl OciRandom {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        items[self.below(items.len())]
    }
}
