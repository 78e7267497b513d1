//! An archive in blocks. A block is identified by the digest of all bytes up to its end, so it is recognized when the
//! same archive is sent again. Everything that is computed after a block arrived is marked as work of that block. So an
//! archive that kills the daemon is refused at that block, and another archive with the same beginning is not.

use axum::body::Bytes;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use crate::crash;
use crate::suspects::{Mark, SuspectWatch};

/// Bytes of a block: few enough that an archive is read while it comes, enough that marking costs nothing beside reading.
const BLOCK: usize = 64 * 1024;

/// The block is set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QuarantinedBlock;

/// Watches the work of a block, known by the digest of everything up to its end.
pub(super) type WatchBlock<'a> = dyn Fn(&[u8]) -> Result<SuspectWatch, QuarantinedBlock> + 'a;

pub(super) struct Blocks<'a> {
    pieces: mpsc::Receiver<Bytes>,
    /// The bytes of the next block so far.
    rest: Bytes,
    so_far: Sha256,
    watch: &'a WatchBlock<'a>,
    watched: Option<SuspectWatch>,
    mark: Option<Mark>,
}

impl<'a> Blocks<'a> {
    pub fn new(pieces: mpsc::Receiver<Bytes>, watch: &'a WatchBlock<'a>) -> Blocks<'a> {
        let (rest, so_far) = (Bytes::new(), Sha256::new());
        Blocks { pieces, rest, so_far, watch, watched: None, mark: None }
    }

    /// The next block; none at the archive's end. To be called on one thread only, as marks are of a thread.
    pub fn next_block(&mut self) -> Result<Option<Bytes>, QuarantinedBlock> {
        // Waiting is not computing.
        self.mark = None;
        let block = self.gather();
        if !block.is_empty() {
            self.so_far.update(&block);
            self.watched = Some((self.watch)(&self.so_far.clone().finalize())?);
        }
        self.mark = self.watched.as_ref().map(SuspectWatch::mark);
        if crash::has_pill("import") {
            crash::pill_at("import", &String::from_utf8_lossy(&block));
        }
        Ok((!block.is_empty()).then_some(block))
    }

    /// Where a block ends depends on the archive alone, not on the pieces that it comes in.
    fn gather(&mut self) -> Bytes {
        if self.rest.len() >= BLOCK {
            return self.rest.split_to(BLOCK);
        }
        let mut block = Vec::from(std::mem::take(&mut self.rest));
        while block.len() < BLOCK {
            let Some(mut piece) = self.pieces.blocking_recv() else { break };
            let taken = piece.split_to(piece.len().min(BLOCK - block.len()));
            block.extend_from_slice(&taken);
            self.rest = piece;
        }
        Bytes::from(block)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use lodge_core::quarantine::WorkKind;

    use super::*;
    use crate::suspects::Suspects;

    /// The digests of the blocks of an archive that arrives in pieces of this size.
    fn digests(archive: &[u8], piece: usize) -> Vec<Vec<u8>> {
        let dir = tempfile::tempdir().unwrap();
        let (suspects, _) = Suspects::open(dir.path(), "boot");
        let (sender, pieces) = mpsc::channel(archive.len() / piece + 1);
        archive.chunks(piece).for_each(|piece| sender.try_send(Bytes::copy_from_slice(piece)).unwrap());
        drop(sender);
        let seen = RefCell::new(Vec::new());
        let watch = |digest: &[u8]| {
            seen.borrow_mut().push(digest.to_vec());
            Ok(suspects.begin(WorkKind::Request, "subject", ""))
        };
        let mut blocks = Blocks::new(pieces, &watch);
        let mut all = Vec::new();
        while let Some(block) = blocks.next_block().unwrap() {
            all.extend_from_slice(&block);
        }
        assert!(all == archive);
        drop(blocks);
        seen.into_inner()
    }

    #[test]
    fn blocks_are_the_same_whatever_pieces_they_come_in_and_differ_from_where_archives_do() {
        let mut archive: Vec<u8> = (0..200_000_u32).flat_map(|number| number.to_le_bytes()).collect();
        let expected = digests(&archive, 4_096);
        assert_eq!(expected.len(), archive.len().div_ceil(BLOCK));
        for piece in [1_000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, archive.len()] {
            assert_eq!(digests(&archive, piece), expected, "{piece}");
        }
        archive[5 * BLOCK] ^= 1;
        let other = digests(&archive, 4_096);
        assert_eq!(other[..5], expected[..5]);
        assert!(other.iter().skip(5).all(|digest| !expected.contains(digest)));
    }

    #[test]
    fn a_block_that_is_set_aside_is_not_handed_out() {
        let (sender, pieces) = mpsc::channel(1);
        sender.try_send(Bytes::from_static(b"bitter")).unwrap();
        drop(sender);
        let mut blocks = Blocks::new(pieces, &|_| Err(QuarantinedBlock));
        assert_eq!(blocks.next_block(), Err(QuarantinedBlock));
    }
}
