//! What layers and archives have in common: tar files of strangers, read in one pass within bounds.
//!
//! Owns: that a tar file means the same to every reader, or is refused. Never: writes a file.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

use super::BadImage;
use crate::BlobError;
use crate::agentfile::shown;

/// Headers in one tar file, those that only describe the next one included.
const ENTRIES_MAX: u64 = 200_000;
/// Bytes of one header that describes the next one.
const EXTENSION_MAX: u64 = 1 << 20;
/// Bytes of all of these in one tar file.
const EXTENSIONS_MAX: u64 = 64 << 20;
/// Zeros after the end of a tar file: some writers pad their output, and nothing else is unbounded.
const PADDING_MAX: u64 = 16 << 20;
/// What a file is called whose contents are only those parts of it that are not zero.
const HOLES: &str = "a file with holes";
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Why contents did not get from one place to another.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error(transparent)]
    Bad(#[from] BadImage),
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// Of the side that is not the store.
    #[error("could not continue to read or write an image")]
    Io {
        #[source]
        cause: io::Error,
    },
}

impl StreamError {
    pub(super) fn io(cause: io::Error) -> StreamError {
        StreamError::Io { cause }
    }

    /// What an error of writing says: that of a blob, or of the side that is written to.
    pub(super) fn of_writing(error: io::Error) -> StreamError {
        match error.downcast::<BlobError>() {
            Ok(error) => StreamError::Blob(error),
            Err(cause) => StreamError::Io { cause },
        }
    }

    /// What an error of reading says: that of a blob, of the side that is read from, or of what was read.
    fn of_reading(error: io::Error) -> StreamError {
        StreamError::of_reading_as(error, |cause| format!("it cannot be read: {}", shown(&cause.to_string())))
    }

    /// The same, in other words for what was read.
    fn of_reading_as(error: io::Error, unreadable: impl FnOnce(io::Error) -> String) -> StreamError {
        let error = match error.downcast::<BlobError>() {
            Ok(error) => return StreamError::Blob(error),
            Err(error) => error,
        };
        let error = match error.downcast::<BadImage>() {
            Ok(error) => return StreamError::Bad(error),
            Err(error) => error,
        };
        match error.downcast::<SourceFailed>() {
            Ok(SourceFailed(cause)) => StreamError::Io { cause },
            Err(error) => bad(unreadable(error)),
        }
    }
}

fn bad(why: String) -> StreamError {
    StreamError::Bad(BadImage::new(why))
}

/// Marks the errors of the source, to distinguish them from errors of the format.
pub(super) struct SourceReader<R>(pub(super) R);

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct SourceFailed(io::Error);

impl<R: Read> Read for SourceReader<R> {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        self.0.read(piece).map_err(|error| match error.downcast::<BlobError>() {
            Ok(error) => io::Error::other(error),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => error,
            Err(error) => io::Error::other(SourceFailed(error)),
        })
    }
}

/// What is unpacked from a source, up to a bound.
struct BoundedReader<R> {
    from: R,
    left: u64,
    max: u64,
}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        let got = self.from.read(piece)?;
        self.left = self.left.checked_sub(got as u64).ok_or_else(|| {
            io::Error::other(BadImage::new(format!(
                "it unpacks to more than the {} bytes that are read",
                self.max
            )))
        })?;
        Ok(got)
    }
}

/// What an entry of a tar file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TarEntryKind {
    File,
    Directory,
    /// Anything else, in words.
    Odd(&'static str),
}

/// One entry. Its name is spelled in one way only: `name` for `./name` and `/name`, and nothing for the top.
pub(super) struct TarEntry<'a> {
    pub(super) name: &'a [u8],
    pub(super) kind: TarEntryKind,
    pub(super) size: u64,
}

/// Goes over all entries of a tar file, packed with gzip or not, to its very end. `left` is what may be unpacked, and then
/// what is left of it.
pub(super) fn walk(
    from: &mut dyn Read,
    left: &mut u64,
    each: &mut dyn FnMut(&TarEntry<'_>, &mut dyn Read) -> Result<(), StreamError>,
) -> Result<(), StreamError> {
    let mut from = BufReader::new(from);
    let begin = from.fill_buf().map_err(StreamError::of_reading)?;
    if begin.starts_with(&ZSTD) {
        return Err(bad("it is packed with zstd, and only gzip is unpacked here".to_owned()));
    }
    let unpacked: Box<dyn Read + '_> =
        if begin.starts_with(&GZIP) { Box::new(MultiGzDecoder::new(from)) } else { Box::new(from) };
    let mut archive = tar::Archive::new(BoundedReader { from: unpacked, left: *left, max: *left });
    let mut next = TarEntryState::default();
    for entry in archive.entries().map_err(StreamError::of_reading)?.raw(true) {
        let mut entry = entry.map_err(|error| next.unreadable(error))?;
        next.take(&mut entry, each)?;
    }
    if !next.is_plain() {
        return Err(bad("it ends where a file was to follow".to_owned()));
    }
    let mut rest = archive.into_inner();
    only_zeros(&mut rest)?;
    *left = rest.left;
    Ok(())
}

/// Behind the end of a tar file there is nothing that another reader could take for a file.
fn only_zeros(rest: &mut dyn Read) -> Result<(), StreamError> {
    let (mut piece, mut zeros) = (vec![0; 64 << 10], 0);
    loop {
        match rest.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(_) if zeros > PADDING_MAX => {
                return Err(bad(format!("behind its end there are more than {PADDING_MAX} zeros")));
            }
            Ok(got) if piece[..got].iter().all(|byte| *byte == 0) => zeros += got as u64,
            Ok(_) => return Err(bad("there is data after its end".to_owned())),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(StreamError::of_reading(error)),
        }
    }
}

/// The headers of the next entry, and the position in the stream.
#[derive(Default)]
struct TarEntryState {
    gnu_name: Option<Vec<u8>>,
    has_gnu_link: bool,
    pax: Option<PaxHeader>,
    entries: u64,
    extensions: u64,
}

impl TarEntryState {
    fn is_plain(&self) -> bool {
        self.gnu_name.is_none() && !self.has_gnu_link && self.pax.is_none()
    }

    /// The error for an invalid header: for the first one, that this is not a tar file at all.
    fn unreadable(&self, error: io::Error) -> StreamError {
        match self.entries {
            0 => StreamError::of_reading_as(error, |_| "it is no tar archive".to_owned()),
            _more => StreamError::of_reading(error),
        }
    }

    fn take<R: Read>(
        &mut self,
        entry: &mut tar::Entry<'_, R>,
        each: &mut dyn FnMut(&TarEntry<'_>, &mut dyn Read) -> Result<(), StreamError>,
    ) -> Result<(), StreamError> {
        self.entries += 1;
        if self.entries > ENTRIES_MAX {
            return Err(bad(format!("it has more than the {ENTRIES_MAX} entries that are read")));
        }
        let kind = entry.header().entry_type();
        if kind.is_gnu_longname() {
            let mut name = self.extension(entry)?;
            name.truncate(name.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
            if self.gnu_name.replace(name).is_some() {
                return Err(bad("an entry has two names".to_owned()));
            }
        } else if kind.is_gnu_longlink() {
            self.extension(entry)?;
            self.has_gnu_link = true;
        } else if kind.is_pax_local_extensions() {
            let pax = PaxHeader::read(&self.extension(entry)?)?;
            if self.pax.replace(pax).is_some() {
                return Err(bad("an entry is described twice".to_owned()));
            }
        } else if kind.is_pax_global_extensions() {
            // Writers put no names and sizes here, and readers interpret them differently.
            if PaxHeader::read(&self.extension(entry)?)? != PaxHeader::default() {
                return Err(bad("it describes all its entries at once".to_owned()));
            }
        } else {
            return self.file(entry, each);
        }
        Ok(())
    }

    fn extension<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>) -> Result<Vec<u8>, StreamError> {
        let size = entry.size();
        self.extensions = self.extensions.saturating_add(size);
        if size > EXTENSION_MAX || self.extensions > EXTENSIONS_MAX {
            return Err(bad("its headers are larger than what is read of them".to_owned()));
        }
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(StreamError::of_reading)?;
        if bytes.len() as u64 == size { Ok(bytes) } else { Err(bad("it ends in a header".to_owned())) }
    }

    fn file<R: Read>(
        &mut self,
        entry: &mut tar::Entry<'_, R>,
        each: &mut dyn FnMut(&TarEntry<'_>, &mut dyn Read) -> Result<(), StreamError>,
    ) -> Result<(), StreamError> {
        let described =
            TarEntryState { entries: self.entries, extensions: self.extensions, ..TarEntryState::default() };
        let described = std::mem::replace(self, described);
        let (pax, size) = (described.pax.unwrap_or_default(), entry.size());
        if pax.size.is_some_and(|said| said != size) {
            return Err(bad("an entry has two sizes".to_owned()));
        }
        let name = match (pax.path, described.gnu_name) {
            (Some(_), Some(_)) => return Err(bad("an entry has two names".to_owned())),
            (Some(name), None) | (None, Some(name)) => name,
            (None, None) => entry.header().path_bytes().into_owned(),
        };
        let (name, is_for_directory) = plain(&pax.sparse_name.unwrap_or(name))?;
        let kind = match kind(entry.header().entry_type()) {
            TarEntryKind::File if pax.is_sparse => TarEntryKind::Odd(HOLES),
            TarEntryKind::File if is_for_directory => TarEntryKind::Directory,
            other => other,
        };
        // Some readers skip what follows these, others read it as the next entry.
        if kind != TarEntryKind::File && kind != TarEntryKind::Odd(HOLES) && size != 0 {
            return Err(bad(format!("`{}` is no file and has contents", shown_name(&name))));
        }
        let mut contents = TarContents { from: entry, left: size };
        each(&TarEntry { name: &name, kind, size }, &mut contents)?;
        Ok(())
    }
}

/// The contents of one entry: all of them, or an error.
struct TarContents<R> {
    from: R,
    left: u64,
}

impl<R: Read> Read for TarContents<R> {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        let got = self.from.read(piece)?;
        self.left = self.left.saturating_sub(got as u64);
        if got == 0 && self.left > 0 && !piece.is_empty() {
            return Err(io::Error::other(BadImage::new("it ends in the middle of a file")));
        }
        Ok(got)
    }
}

/// Copies the contents of an entry. Errors of both sides stay what they are.
pub(super) fn copy(
    from: &mut dyn Read,
    to: &mut dyn FnMut(&[u8]) -> Result<(), StreamError>,
) -> Result<u64, StreamError> {
    let (mut piece, mut len) = (vec![0; 64 << 10], 0);
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(len),
            Ok(got) => {
                to(&piece[..got])?;
                len += got as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(StreamError::of_reading(error)),
        }
    }
}

fn kind(kind: tar::EntryType) -> TarEntryKind {
    use tar::EntryType as T;
    match kind {
        T::Regular => TarEntryKind::File,
        T::Directory => TarEntryKind::Directory,
        T::Link => TarEntryKind::Odd("a hard link"),
        T::Symlink => TarEntryKind::Odd("a symbolic link"),
        T::Char | T::Block => TarEntryKind::Odd("a device"),
        T::Fifo => TarEntryKind::Odd("a pipe"),
        T::GNUSparse => TarEntryKind::Odd(HOLES),
        // It cannot be used here in any case.
        _ => TarEntryKind::Odd("of an unknown kind"),
    }
}

/// The one spelling of a name, and whether it was that of a directory.
fn plain(name: &[u8]) -> Result<(Vec<u8>, bool), StreamError> {
    let parts: Vec<&[u8]> =
        name.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
    if name.contains(&0) || parts.contains(&b"..".as_slice()) {
        return Err(bad(format!("`{}` is no name of a file in an image", shown_name(name))));
    }
    Ok((parts.join(b"/".as_slice()), name.ends_with(b"/") || name.ends_with(b"/.")))
}

pub(super) fn shown_name(name: &[u8]) -> String {
    shown(&String::from_utf8_lossy(name)).to_string()
}

/// What a header of POSIX says of the next entry, as far as it matters.
#[derive(Default, PartialEq, Eq)]
struct PaxHeader {
    path: Option<Vec<u8>>,
    size: Option<u64>,
    is_sparse: bool,
    sparse_name: Option<Vec<u8>>,
}

impl PaxHeader {
    /// Reads records `length key=value\n`, in which each key occurs once.
    fn read(mut bytes: &[u8]) -> Result<PaxHeader, StreamError> {
        let broken = || bad("one of its headers cannot be read".to_owned());
        let mut pax = PaxHeader::default();
        while !bytes.is_empty() {
            let space = bytes.iter().take(8).position(|byte| *byte == b' ').ok_or_else(broken)?;
            let digits = std::str::from_utf8(&bytes[..space]).map_err(|_| broken())?;
            let len: usize = digits.parse().map_err(|_| broken())?;
            let record = bytes.get(space + 1..len).and_then(|record| record.strip_suffix(b"\n"));
            let record = record.ok_or_else(broken)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(broken)?;
            pax.note(&record[..equals], &record[equals + 1..]).ok_or_else(broken)?;
            bytes = &bytes[len..];
        }
        Ok(pax)
    }

    /// `None` if a record repeats a key, or is empty.
    fn note(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let fresh = match key {
            b"path" => !value.is_empty() && self.path.replace(value.to_vec()).is_none(),
            b"size" => {
                let size = std::str::from_utf8(value).ok()?.parse().ok()?;
                self.size.replace(size).is_none()
            }
            b"GNU.sparse.name" => {
                self.is_sparse = true;
                self.sparse_name.replace(value.to_vec()).is_none()
            }
            other => {
                self.is_sparse |= other.starts_with(b"GNU.sparse.");
                true
            }
        };
        fresh.then_some(())
    }
}
