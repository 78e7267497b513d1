//! Images as one file: the tar of an OCI layout, as other tools read and write it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use super::manifest::{Descriptor, INDEX, ManifestDocument};
use super::stream::{SourceReader, StreamError, TarEntry, TarEntryKind, copy, shown_name, walk};
use super::{BadImage, LAYER_MAX, MANIFEST_MAX, json};
use crate::agentfile::shown;
use crate::{BlobError, Blobs, Digest, Hasher, Pins, TaggedName};

/// Bytes of one archive, unpacked.
pub const ARCHIVE_MAX: u64 = 16 << 30;
/// Images of one archive.
pub const ARCHIVE_IMAGES_MAX: usize = 1_024;
/// Blobs of one archive.
const BLOBS_MAX: usize = 100_000;
const LAYOUT_FILE: &str = "oci-layout";
const LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;
const LAYOUT_MAX: u64 = 4 << 10;
const INDEX_FILE: &str = "index.json";
const BLOBS_DIR: &str = "blobs/sha256";
/// What `docker save` writes instead of an index, and newer ones beside it.
const DOCKER_FILE: &str = "manifest.json";
const REF_NAME: &str = "org.opencontainers.image.ref.name";
const FULL_NAME: &str = "io.containerd.image.name";

/// The contents of an archive, now in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedArchive {
    /// Each with the name that the archive gives it, if any that can be one here.
    pub images: Vec<(Descriptor, Option<String>)>,
}

/// Writes images with everything that they name: the same images are the same archive.
///
/// An image with several names occurs several times. If this fails, the output is incomplete and must be dropped.
pub fn write_archive(
    blobs: &Blobs,
    images: &[(Descriptor, Option<String>)],
    to: &mut dyn Write,
) -> Result<(), StreamError> {
    if images.len() > ARCHIVE_IMAGES_MAX {
        return Err(BadImage::new(format!("an archive holds at most {ARCHIVE_IMAGES_MAX} images")).into());
    }
    let mut graph = ImageGraph::default();
    for (image, _) in images {
        graph.gather(blobs, image, DocumentDepth::Image)?;
    }
    let mut tar = tar::Builder::new(to);
    directory(&mut tar, "blobs/")?;
    directory(&mut tar, "blobs/sha256/")?;
    for (digest, size) in graph.parts {
        let mut checked = blobs.open_checked(&digest)?;
        if checked.size() != size {
            return Err(BlobError::Damaged { digest }.into());
        }
        let mut failed = None;
        let mut reader = BlobErrorReader { from: &mut checked, failed: &mut failed };
        let written = file(&mut tar, &format!("{BLOBS_DIR}/{}", digest.hex()), size, &mut reader);
        match (failed, written) {
            (Some(error), _) => return Err(error.into()),
            (None, written) => written?,
        }
        // The last byte of a blob may have been read, and not its end, where it is checked.
        checked.drain()?;
    }
    let index = index_of(images)?;
    file(&mut tar, INDEX_FILE, index.len() as u64, &mut index.as_slice())?;
    file(&mut tar, LAYOUT_FILE, LAYOUT.len() as u64, &mut &*LAYOUT)?;
    tar.into_inner().and_then(Write::flush).map_err(StreamError::io)
}

/// How far below an image of an archive a document is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DocumentDepth {
    Image,
    Platform,
}

/// Everything that images name, themselves included.
#[derive(Default)]
struct ImageGraph {
    /// With its size.
    parts: BTreeMap<Digest, u64>,
    /// Each is read once, however often it is named.
    documents: BTreeSet<(Digest, DocumentDepth)>,
}

impl ImageGraph {
    fn gather(&mut self, blobs: &Blobs, named: &Descriptor, depth: DocumentDepth) -> Result<(), StreamError> {
        if !self.documents.insert((named.digest, depth)) {
            return self.note(named.digest, named.size);
        }
        let bytes = blobs.read(&named.digest, MANIFEST_MAX)?;
        self.note(named.digest, bytes.len() as u64)?;
        self.note(named.digest, named.size)?;
        match (ManifestDocument::read(&bytes)?, depth) {
            (ManifestDocument::Index(index), DocumentDepth::Image) => index
                .manifests
                .iter()
                .try_for_each(|named| self.gather(blobs, named, DocumentDepth::Platform)),
            (ManifestDocument::Index(_), DocumentDepth::Platform) => {
                Err(BadImage::new(format!("{} is an index in an index", named.digest)).into())
            }
            (document @ ManifestDocument::Manifest(_), DocumentDepth::Image | DocumentDepth::Platform) => {
                document.parts().into_iter().try_for_each(|part| self.note(part.digest, part.size))
            }
        }
    }

    fn note(&mut self, digest: Digest, size: u64) -> Result<(), StreamError> {
        if self.parts.insert(digest, size).is_some_and(|before| before != size) {
            return Err(BadImage::new(format!("{digest} is said to have two sizes")).into());
        }
        if self.parts.len() > BLOBS_MAX {
            return Err(BadImage::new(format!("an archive holds at most {BLOBS_MAX} blobs")).into());
        }
        Ok(())
    }
}

/// Keeps the error of a blob, which is not an error of the writer.
struct BlobErrorReader<'a, R> {
    from: R,
    failed: &'a mut Option<BlobError>,
}

impl<R: Read> Read for BlobErrorReader<'_, R> {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        self.from.read(piece).map_err(|error| match error.downcast::<BlobError>() {
            Ok(error) => {
                *self.failed = Some(error);
                io::ErrorKind::InvalidData.into()
            }
            Err(error) => error,
        })
    }
}

fn header(size: u64, mode: u32, kind: tar::EntryType) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn directory<W: Write>(tar: &mut tar::Builder<W>, name: &str) -> Result<(), StreamError> {
    let mut header = header(0, 0o755, tar::EntryType::Directory);
    tar.append_data(&mut header, name, io::empty()).map_err(StreamError::io)
}

fn file<W: Write>(
    tar: &mut tar::Builder<W>,
    name: &str,
    size: u64,
    contents: &mut dyn Read,
) -> Result<(), StreamError> {
    let mut header = header(size, 0o644, tar::EntryType::Regular);
    tar.append_data(&mut header, name, contents.take(size)).map_err(StreamError::io)
}

/// The list of images, with the whole name where others have a tag: an archive of many would have `latest` many times.
fn index_of(images: &[(Descriptor, Option<String>)]) -> Result<Vec<u8>, StreamError> {
    let manifests: Vec<Descriptor> = images
        .iter()
        .map(|(image, name)| {
            let mut named = Descriptor::new(image.media_type.clone(), image.digest, image.size);
            named.artifact_type.clone_from(&image.artifact_type);
            for key in name.iter().flat_map(|_| [REF_NAME, FULL_NAME]) {
                named.annotations.insert(key.to_owned(), name.clone().unwrap_or_default());
            }
            named
        })
        .collect();
    Ok(json::write(INDEX_FILE, &OciLayout { schema_version: 2, media_type: INDEX, manifests })?)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OciLayout {
    schema_version: u64,
    media_type: &'static str,
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArchiveVersion {
    image_layout_version: String,
}

#[derive(Deserialize)]
struct ArchiveIndex {
    #[serde(default)]
    manifests: Option<Vec<ArchiveImage>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArchiveImage {
    media_type: String,
    digest: Digest,
    size: u64,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

/// Takes the blobs of an archive into the store, each checked and pinned, and says which images they are. All of them are
/// whole.
///
/// It may be packed with gzip. When this fails, blobs that came before are in the store, and go with the next collection.
pub fn read_archive(blobs: &Blobs, pins: &Pins, from: &mut dyn Read) -> Result<ImportedArchive, StreamError> {
    let (mut held, mut left) = (ArchiveFiles::default(), ARCHIVE_MAX);
    walk(&mut SourceReader(from), &mut left, &mut |entry, contents| held.take(blobs, pins, entry, contents))?;
    let images = held.images()?;
    let archive = ImportedArchive { images: images.into_iter().map(ArchiveImage::named).collect() };
    check_whole(blobs, pins, &archive.images)?;
    Ok(archive)
}

/// The parts of an archive that are not blobs.
#[derive(Default)]
struct ArchiveFiles {
    layout: Option<Vec<u8>>,
    index: Option<Vec<u8>>,
    is_docker: bool,
    /// The first that an archive of images has no use for.
    odd: Option<String>,
}

impl ArchiveFiles {
    fn take(
        &mut self,
        blobs: &Blobs,
        pins: &Pins,
        entry: &TarEntry<'_>,
        contents: &mut dyn Read,
    ) -> Result<(), StreamError> {
        match entry.kind {
            TarEntryKind::Directory => return Ok(()),
            TarEntryKind::File => {}
            TarEntryKind::Odd(what) => {
                // Reported at the end: archives of `docker save` contain links, and have a better error.
                self.odd.get_or_insert_with(|| format!("`{}` is {what}", shown_name(entry.name)));
                return Ok(());
            }
        }
        let name = std::str::from_utf8(entry.name).unwrap_or_default();
        if let Some(hex) = name.strip_prefix(BLOBS_DIR).and_then(|rest| rest.strip_prefix('/')) {
            return take_blob(blobs, pins, hex, entry.size, contents);
        }
        match name {
            LAYOUT_FILE => once(&mut self.layout, entry, LAYOUT_MAX, contents),
            INDEX_FILE => once(&mut self.index, entry, MANIFEST_MAX, contents),
            other => {
                self.is_docker |= other == DOCKER_FILE;
                Ok(())
            }
        }
    }

    fn images(self) -> Result<Vec<ArchiveImage>, StreamError> {
        let (Some(layout), Some(index)) = (self.layout, self.index) else {
            return Err(BadImage::new(if self.is_docker {
                "it is an archive of `docker save`: make one of images with `skopeo copy docker-archive:… oci-archive:…`"
            } else {
                "it is no archive of images: it has no `oci-layout` or no `index.json`"
            })
            .into());
        };
        if let Some(odd) = self.odd {
            return Err(BadImage::new(odd).into());
        }
        let version: ArchiveVersion = json::read(LAYOUT_FILE, &layout)?;
        if version.image_layout_version.split('.').next() != Some("1") {
            let version = shown(&version.image_layout_version);
            return Err(
                BadImage::new(format!("its layout is of version {version}, and only 1 is read")).into()
            );
        }
        let images = json::read::<ArchiveIndex>(INDEX_FILE, &index)?.manifests.unwrap_or_default();
        match images.len() {
            0 => Err(BadImage::new("there is no image in it").into()),
            1..=ARCHIVE_IMAGES_MAX => Ok(images),
            more => {
                Err(BadImage::new(format!("it has {more} images, and at most {ARCHIVE_IMAGES_MAX} are read"))
                    .into())
            }
        }
    }
}

impl ArchiveImage {
    fn named(self) -> (Descriptor, Option<String>) {
        let annotations = self.annotations.unwrap_or_default();
        let name = [FULL_NAME, REF_NAME].iter().find_map(|key| annotations.get(*key));
        let name = name.filter(|name| TaggedName::read(name).is_ok()).cloned();
        (Descriptor::new(self.media_type, self.digest, self.size), name)
    }
}

fn once(
    slot: &mut Option<Vec<u8>>,
    entry: &TarEntry<'_>,
    max: u64,
    contents: &mut dyn Read,
) -> Result<(), StreamError> {
    let name = || shown_name(entry.name);
    if entry.size > max {
        return Err(
            BadImage::new(format!("`{}` is larger than the {max} bytes that are read", name())).into()
        );
    }
    let mut bytes = Vec::new();
    copy(contents, &mut |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    })?;
    match slot.replace(bytes) {
        None => Ok(()),
        Some(_) => Err(BadImage::new(format!("`{}` occurs in it twice", name())).into()),
    }
}

fn take_blob(
    blobs: &Blobs,
    pins: &Pins,
    hex: &str,
    size: u64,
    contents: &mut dyn Read,
) -> Result<(), StreamError> {
    let digest: Digest = format!("sha256:{hex}")
        .parse()
        .map_err(|_| BadImage::new(format!("`{}` is no digest", shown(hex))))?;
    if size > LAYER_MAX {
        return Err(
            BadImage::new(format!("{digest} has {size} bytes, and at most {LAYER_MAX} are taken")).into()
        );
    }
    let taken = if blobs.has(pins, &digest, size)? {
        // Nothing is written, and yet the archive has to be right.
        let mut hasher = Hasher::default();
        copy(contents, &mut |piece| {
            hasher.update(piece);
            Ok(())
        })?;
        match hasher.finish() {
            found if found == digest => Ok(()),
            found => Err(StreamError::Blob(BlobError::Wrong { wanted: digest, found })),
        }
    } else {
        blobs.take(pins, &digest, |write| copy(contents, &mut |piece| Ok(write(piece)?)).map(drop))
    };
    match taken {
        Err(StreamError::Blob(BlobError::Wrong { wanted, found })) => {
            Err(BadImage::new(format!("the content of {wanted} has the digest {found}")).into())
        }
        taken => taken,
    }
}

/// Everything that images name is there and of the right size, from this archive or from before.
fn check_whole(
    blobs: &Blobs,
    pins: &Pins,
    images: &[(Descriptor, Option<String>)],
) -> Result<(), StreamError> {
    let lacks = |digest: &Digest| BadImage::new(format!("it lacks {digest}"));
    let mut graph = ImageGraph::default();
    for (image, _) in images {
        match graph.gather(blobs, image, DocumentDepth::Image) {
            Err(StreamError::Blob(BlobError::Missing { digest })) => return Err(lacks(&digest).into()),
            gathered => gathered?,
        }
    }
    for (digest, size) in &graph.parts {
        if !blobs.has(pins, digest, *size)? {
            return Err(lacks(digest).into());
        }
    }
    Ok(())
}
