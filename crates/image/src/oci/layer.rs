//! Layers of tools: creates layers of one file, and finds programs and texts in layers.

use std::io::{Read, Write};

use flate2::{Compression, GzBuilder};

use super::manifest::Descriptor;
use super::stream::{SourceReader, StreamError, TarEntryKind, copy, shown_name, walk};
use super::{BadImage, Blob, PROGRAM_MAX};
use crate::agentfile::shown;
use crate::{Blobs, Digest, Hasher, Pins};

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// Fixed, or the same program would be another image.
const LEVEL: u32 = 6;
/// What the parts of a tar file are multiples of.
const TAR_BLOCK: usize = 512;

/// Bytes of all layers of one image together, unpacked.
const UNPACKED_MAX: u64 = 2 << 30;
const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// A new layer of one file. The same file always gives the same layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramLayer {
    pub(super) descriptor: Descriptor,
    /// Of what it unpacks to.
    pub(super) diff_id: Digest,
}

impl ProgramLayer {
    /// Makes a small layer.
    pub(super) fn of(name: &str, mode: u32, contents: &[u8]) -> Result<(ProgramLayer, Blob), StreamError> {
        let (packed, diff_id) = pack(name, mode, contents.len() as u64, &mut { contents }, Vec::new())?;
        let blob = Blob::new(LAYER, packed);
        Ok((ProgramLayer { descriptor: blob.descriptor(), diff_id }, blob))
    }

    /// Creates the layer of a program in the store while the program is read. The program must have exactly `size`
    /// bytes.
    pub(super) fn of_program(
        blobs: &Blobs,
        pins: &Pins,
        name: &str,
        size: u64,
        contents: &mut dyn Read,
    ) -> Result<ProgramLayer, StreamError> {
        if size == 0 || size > PROGRAM_MAX {
            let why = format!("it has {size} bytes, and programs have up to {PROGRAM_MAX}");
            return Err(BadImage::new(why).into());
        }
        let (fresh, diff_id) = pack(name, 0o755, size, contents, blobs.begin(pins)?)?;
        let (digest, packed) = fresh.finish()?;
        Ok(ProgramLayer { descriptor: Descriptor::new(LAYER, digest, packed), diff_id })
    }
}

/// Packs a tar file of one file. Returns where it went, and the digest of the tar file.
fn pack<W: Write>(
    name: &str,
    mode: u32,
    size: u64,
    contents: &mut dyn Read,
    to: W,
) -> Result<(W, Digest), StreamError> {
    let mut header = tar::Header::new_ustar();
    header.set_path(name).map_err(|cause| BadImage::new(format!("it was not packed: {cause}")))?;
    header.set_size(size);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    // Neither a name nor a time nor whose file it was.
    let mut packed = GzBuilder::new().mtime(0).operating_system(255).write(to, Compression::new(LEVEL));
    let mut hasher = Hasher::default();
    let mut write = |piece: &[u8]| {
        hasher.update(piece);
        packed.write_all(piece).map_err(StreamError::of_writing)
    };
    write(header.as_bytes())?;
    // One byte more shows that it grew.
    let len = copy(&mut SourceReader(contents.take(size.saturating_add(1))), &mut write)?;
    if len != size {
        return Err(BadImage::new("it changed while it was read").into());
    }
    let filled = usize::try_from(size % TAR_BLOCK as u64).unwrap_or(0);
    write(&[0; TAR_BLOCK][..(TAR_BLOCK - filled) % TAR_BLOCK])?;
    write(&[0; 2 * TAR_BLOCK])?;
    Ok((packed.finish().map_err(StreamError::of_writing)?, hasher.finish()))
}

/// Whether a layer is applied to a file system, in any compression.
pub(super) fn is_tar(media_type: &str) -> bool {
    let bare = media_type.split(';').next().unwrap_or_default().trim_end();
    bare.starts_with("application/vnd.oci.image.layer.")
        || bare.starts_with("application/vnd.docker.image.rootfs.")
}

/// The contents of the file at `path` in a small layer, which unpacks to `max` bytes at most.
pub(super) fn read_file(mut layer: &[u8], path: &str, max: u64) -> Result<Vec<u8>, BadImage> {
    let (mut left, mut found) = (max, None);
    let walked = walk(&mut layer, &mut left, &mut |entry, contents| {
        if entry.name != path.as_bytes() {
            return Ok(());
        }
        match entry.kind {
            TarEntryKind::File if found.is_some() => {
                return Err(BadImage::new(format!("`{}` occurs in it twice", shown(path))).into());
            }
            TarEntryKind::File => {}
            TarEntryKind::Directory | TarEntryKind::Odd(_) => {
                return Err(BadImage::new(format!("`{}` is no plain file", shown(path))).into());
            }
        }
        let mut bytes = Vec::new();
        copy(contents, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        found = Some(bytes);
        Ok(())
    });
    walked.map_err(|error| BadImage::new(error.to_string()))?;
    found.ok_or_else(|| BadImage::new(format!("there is no `{}` in it", shown(path))))
}

/// Copies the program at `path` out of layers, of which later ones go before earlier ones. Returns its size.
///
/// Other entries of the layers are read only if they would change the program, and only `to` is written. Use the result
/// only if this returns it completely: every layer that was read was read to its end and matched its digest, and the
/// lower ones are covered.
pub fn extract_program(
    blobs: &Blobs,
    layers: &[Descriptor],
    path: &str,
    to: &mut dyn Write,
) -> Result<u64, StreamError> {
    let mut left = UNPACKED_MAX;
    for layer in layers.iter().rev() {
        if layer.media_type.ends_with("+zstd") || layer.media_type.ends_with(".zstd") {
            return Err(in_layer(layer, "it is packed with zstd, and only gzip is unpacked here"));
        }
        match look(blobs, layer, path, &mut left, to)? {
            LayerMatch { size: Some(size), .. } => return Ok(size),
            LayerMatch { is_covered: true, .. } => {
                return Err(in_layer(layer, &format!("it removes `{}`", shown(path))));
            }
            LayerMatch { size: None, is_covered: false } => {}
        }
    }
    Err(BadImage::new(format!("there is no `{}` in its layers", shown(path))).into())
}

/// What one layer has of the program.
#[derive(Default)]
struct LayerMatch {
    size: Option<u64>,
    /// Everything in the layers below is removed.
    is_covered: bool,
}

fn look(
    blobs: &Blobs,
    layer: &Descriptor,
    path: &str,
    left: &mut u64,
    to: &mut dyn Write,
) -> Result<LayerMatch, StreamError> {
    let mut checked = blobs.open_checked(&layer.digest)?;
    let mut found = LayerMatch::default();
    let walked = walk(&mut SourceReader(&mut checked), left, &mut |entry, contents| {
        let Some(part) = LayerEntryRole::of(entry.name, path.as_bytes()) else { return Ok(()) };
        match (part, entry.kind) {
            (LayerEntryRole::Removed, _) => found.is_covered = true,
            (LayerEntryRole::Above, TarEntryKind::Directory) => {}
            (LayerEntryRole::Program, TarEntryKind::File) if found.size.is_some() => {
                return Err(BadImage::new(format!("`{}` occurs in it twice", shown(path))).into());
            }
            (LayerEntryRole::Program, TarEntryKind::File) if entry.size > PROGRAM_MAX => {
                return Err(BadImage::new(format!(
                    "`{}` is larger than the {PROGRAM_MAX} bytes that a program may have",
                    shown(path)
                ))
                .into());
            }
            (LayerEntryRole::Program, TarEntryKind::File) => {
                let write = &mut |piece: &[u8]| to.write_all(piece).map_err(StreamError::io);
                found.size = Some(copy(contents, write)?);
            }
            (LayerEntryRole::Above, TarEntryKind::File) => return Err(no_program(entry.name, "a file")),
            (LayerEntryRole::Program, TarEntryKind::Directory) => {
                return Err(no_program(entry.name, "a directory"));
            }
            (LayerEntryRole::Above | LayerEntryRole::Program, TarEntryKind::Odd(what)) => {
                return Err(no_program(entry.name, what));
            }
        }
        Ok(())
    });
    // Local damage is reported as such, regardless of the parser's error.
    checked.drain()?;
    match walked {
        Ok(()) => Ok(found),
        Err(StreamError::Bad(BadImage { why, .. })) => Err(in_layer(layer, &why)),
        Err(error) => Err(error),
    }
}

fn in_layer(layer: &Descriptor, why: &str) -> StreamError {
    BadImage::new(format!("layer {}: {why}", layer.digest)).into()
}

fn no_program(name: &[u8], what: &str) -> StreamError {
    BadImage::new(format!("`{}` is {what}, and programs are plain files", shown_name(name))).into()
}

/// What an entry has to do with the program.
enum LayerEntryRole {
    Program,
    /// One of the directories that it is in.
    Above,
    /// A sign that it or a directory around it is removed from the layers below.
    Removed,
}

impl LayerEntryRole {
    fn of(name: &[u8], path: &[u8]) -> Option<LayerEntryRole> {
        if name == path {
            return Some(LayerEntryRole::Program);
        }
        let is_in = |dir: &[u8]| {
            dir.is_empty() || path.strip_prefix(dir).is_some_and(|below| below.starts_with(b"/"))
        };
        let (dir, last) = match name.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&name[..slash], &name[slash + 1..]),
            None => (&name[..0], name),
        };
        if last == OPAQUE && is_in(dir) {
            return Some(LayerEntryRole::Removed);
        }
        if let Some(gone) = last.strip_prefix(WHITEOUT) {
            let gone = if dir.is_empty() { gone.to_vec() } else { [dir, gone].join(b"/".as_slice()) };
            return (gone == path || !gone.is_empty() && is_in(&gone)).then_some(LayerEntryRole::Removed);
        }
        (!name.is_empty() && is_in(name)).then_some(LayerEntryRole::Above)
    }
}
