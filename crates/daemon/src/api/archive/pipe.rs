//! Between a connection, which is never waited for by a thread of its own, and the archive's code, which knows nothing of
//! connections.

use std::io::{self, Read, Write};
use std::time::Duration;

use axum::body::Bytes;
use lodge_proto::ErrorBody;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::blocks::{Blocks, QuarantinedBlock};
use crate::api::quarantine;
use crate::images::ImageError;

/// Pieces that wait between the two.
pub(super) const PIECES_MAX: usize = 4;
/// How long a client may take or send nothing.
pub(super) const STALLED_AFTER: Duration = Duration::from_secs(60);
/// Bytes of one piece of an export.
const PIECE: usize = 128 * 1024;
/// After this many bytes of an import, which may be compressed, the free disk space is checked.
const LOOK_EVERY: u64 = 8 << 10;
/// What it has to spare then: gzip packs no better than 1032 to one, and a reader takes at most as much again at once.
const UNPACKED_MAX: u64 = 2 * 1_032 * LOOK_EVERY;

/// What is written goes to a client, in pieces.
pub(super) struct ExportWriter {
    pieces: mpsc::Sender<io::Result<Bytes>>,
    end: CancellationToken,
    piece: Vec<u8>,
}

impl ExportWriter {
    pub fn new(pieces: mpsc::Sender<io::Result<Bytes>>, end: CancellationToken) -> ExportWriter {
        ExportWriter { pieces, end, piece: Vec::with_capacity(PIECE) }
    }

    /// Sends the rest. After a failure, the client must not take the output for the whole.
    pub fn over(mut self, written: Result<(), String>) {
        let last = match written {
            Ok(()) => Ok(Bytes::from(std::mem::take(&mut self.piece))),
            Err(why) => {
                tracing::warn!(event = "images.export_cut", why);
                Err(io::Error::other(why))
            }
        };
        // The client may be gone.
        drop(self.send(last));
    }

    fn send(&self, piece: io::Result<Bytes>) -> io::Result<()> {
        let sent = Handle::current().block_on(async {
            tokio::select! {
                () = self.end.cancelled() => Err("the daemon is shutting down"),
                sent = tokio::time::timeout(STALLED_AFTER, self.pieces.send(piece)) => match sent {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(_)) => Err("the client went away"),
                    Err(_) => Err("the client took nothing for too long"),
                },
            }
        });
        sent.map_err(|why| io::Error::new(io::ErrorKind::BrokenPipe, why))
    }
}

impl Write for ExportWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(PIECE - self.piece.len());
        self.piece.extend_from_slice(&bytes[..taken]);
        if self.piece.len() == PIECE {
            let full = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
            self.send(Ok(Bytes::from(full)))?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Why an archive did not come to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ArchiveCut {
    Stalled,
    Broken(String),
    NoRoom,
    Quarantined,
}

impl ArchiveCut {
    pub fn told(self) -> ErrorBody {
        let invalid = |what: &str, hint: &str| ErrorBody::new("image.invalid", what).hint(hint);
        match self {
            ArchiveCut::Stalled => invalid("nothing more came of the archive", "send it again"),
            ArchiveCut::Broken(why) => invalid("the archive broke off", "send it again").because(why),
            ArchiveCut::Quarantined => quarantine::refused("image/import"),
            ArchiveCut::NoRoom => {
                let why = "the archive needs more than the disk can spare".to_owned();
                ImageError::NoRoom { why }.into()
            }
        }
    }
}

/// What a client sends, to be read.
pub(super) struct ImportReader<'a> {
    blocks: Blocks<'a>,
    /// Whether the disk has this many bytes to spare.
    room: &'a dyn Fn(u64) -> bool,
    block: Bytes,
    read: u64,
    look_at: u64,
    cut: Option<ArchiveCut>,
}

impl<'a> ImportReader<'a> {
    pub fn new(blocks: Blocks<'a>, room: &'a dyn Fn(u64) -> bool) -> ImportReader<'a> {
        ImportReader { blocks, room, block: Bytes::new(), read: 0, look_at: 0, cut: None }
    }

    /// Why nothing more could be read, if it was not the archive's end.
    pub fn cut(&self) -> Option<ArchiveCut> {
        self.cut.clone()
    }
}

impl Read for ImportReader<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.block.is_empty() && self.cut.is_none() {
            match self.blocks.next_block() {
                Ok(Some(block)) => self.block = block,
                Ok(None) => return Ok(0),
                Err(QuarantinedBlock) => self.cut = Some(ArchiveCut::Quarantined),
            }
        }
        if self.cut.is_none() && self.read >= self.look_at {
            self.look_at = self.read + LOOK_EVERY;
            if !(self.room)(UNPACKED_MAX) {
                self.cut = Some(ArchiveCut::NoRoom);
            }
        }
        if self.cut.is_some() {
            return Err(io::Error::other("the archive is not read any further"));
        }
        // No more than up to the next look and as much again.
        let most = usize::try_from(LOOK_EVERY).unwrap_or(usize::MAX);
        let taken = to.len().min(self.block.len()).min(most);
        to[..taken].copy_from_slice(&self.block.split_to(taken));
        self.read += taken as u64;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Reads pieces that may expand a thousandfold, with disk space for this many checks.
    fn read_with(looks: u64) -> (u64, Option<ArchiveCut>) {
        let (pieces, waiting) = mpsc::channel(PIECES_MAX);
        for _ in 0..PIECES_MAX {
            pieces.try_send(Bytes::from(vec![0; PIECE])).unwrap();
        }
        drop(pieces);
        let left = Cell::new(looks);
        let room = |bytes: u64| {
            assert_eq!(bytes, UNPACKED_MAX);
            left.replace(left.get().saturating_sub(1)) > 0
        };
        let dir = tempfile::tempdir().unwrap();
        let (suspects, _) = crate::suspects::Suspects::open(dir.path(), "boot");
        let watch = |_: &[u8]| Ok(suspects.begin(lodge_core::quarantine::WorkKind::Request, "subject", ""));
        let mut arriving = ImportReader::new(Blocks::new(waiting, &watch), &room);
        let read = io::copy(&mut io::BufReader::with_capacity(PIECE, &mut arriving), &mut io::sink());
        assert_eq!(read.is_err(), arriving.cut().is_some());
        (arriving.read, arriving.cut())
    }

    #[test]
    fn an_archive_is_read_no_further_than_what_it_may_unpack_to_can_be_spared() {
        let whole = (PIECES_MAX * PIECE) as u64;
        assert_eq!(read_with(u64::MAX), (whole, None));
        for looks in 0..4 {
            let (read, cut) = read_with(looks);
            assert_eq!(cut, Some(ArchiveCut::NoRoom));
            assert!(read * 1_032 <= looks * UNPACKED_MAX, "{read} bytes after {looks} looks");
        }
    }
}
