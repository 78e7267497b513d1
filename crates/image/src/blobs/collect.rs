//! Removes blobs that are no longer needed.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::dirs::{self, BlobDirs};
use super::{BlobError, Blobs};
use crate::Digest;

/// An interrupted transfer is dropped after this time.
const PARTIAL_KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// What a collection removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CollectionTotals {
    pub blobs: u64,
    /// Of blobs and of what was made from them.
    pub bytes: u64,
}

impl Blobs {
    /// Removes everything that is neither wanted nor pinned. `wanted` is called after the listing of the files.
    ///
    /// A blob that is pinned at any time during the collection stays: it may have been recorded after the call of
    /// `wanted`. Collections wait for each other.
    pub fn collect(
        &self,
        wanted: &mut dyn FnMut() -> Result<BTreeSet<Digest>, BlobError>,
    ) -> Result<CollectionTotals, BlobError> {
        let _alone = self.shared.collection.lock().unwrap_or_else(PoisonError::into_inner);
        let _sparing = self.shared.spare();
        let failed = |cause| BlobError::Io { path: self.dir.clone(), cause };
        let blobs = listed(&self.dirs.blobs).map_err(failed)?;
        let owners = listed(&self.dirs.programs).map_err(failed)?;
        let wanted = wanted()?;
        let mut collected = CollectionTotals::default();
        for digest in owners.iter().filter(|digest| !wanted.contains(digest)) {
            self.drop_programs(digest, &mut collected).map_err(failed)?;
        }
        for digest in blobs.iter().filter(|digest| !wanted.contains(digest)) {
            self.drop_blob(digest, &mut collected).map_err(failed)?;
        }
        Ok(collected)
    }

    fn drop_blob(&self, digest: &Digest, collected: &mut CollectionTotals) -> io::Result<()> {
        let name = digest.hex();
        // A later pin finds that it is removed.
        let held = self.shared.lock_pins();
        let Some(found) = dirs::stat(&self.dirs.blobs, name.as_str())? else { return Ok(()) };
        if held.is_spared(digest) || dirs::is_dir(&found) {
            return Ok(());
        }
        dirs::remove(&self.dirs.blobs, name.as_str())?;
        collected.blobs += 1;
        collected.bytes += found.st_size.unsigned_abs();
        Ok(())
    }

    fn drop_programs(&self, owner: &Digest, collected: &mut CollectionTotals) -> io::Result<()> {
        let name = owner.hex();
        let held = self.shared.lock_pins();
        let Some(found) = dirs::stat(&self.dirs.programs, name.as_str())? else { return Ok(()) };
        if held.is_spared(owner) {
            return Ok(());
        }
        if !dirs::is_dir(&found) {
            return dirs::remove(&self.dirs.programs, name.as_str());
        }
        collected.bytes += dirs::remove_dir(&self.dirs.programs, &name)?;
        Ok(())
    }
}

/// What was begun and never gone on with, and what cannot have been begun.
pub(super) fn drop_stale_partials(dirs: &BlobDirs, now: SystemTime) -> io::Result<()> {
    let oldest = now.checked_sub(PARTIAL_KEPT).and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let oldest = oldest.map_or(0, |since| since.as_secs());
    for name in dirs::names(&dirs.partial)? {
        let Some(found) = dirs::stat(&dirs.partial, name.as_c_str())? else { continue };
        let is_fresh = u64::try_from(found.st_mtime).is_ok_and(|changed| changed >= oldest);
        if !(dirs::is_dir(&found) || dirs::is_file(&found) && is_fresh && digest_of(&name).is_some()) {
            dirs::remove(&dirs.partial, name.as_c_str())?;
        }
    }
    Ok(())
}

fn listed(dir: &std::os::fd::OwnedFd) -> io::Result<Vec<Digest>> {
    Ok(dirs::names(dir)?.iter().filter_map(|name| digest_of(name)).collect())
}

/// Files with foreign names are ignored.
fn digest_of(name: &CStr) -> Option<Digest> {
    format!("sha256:{}", name.to_str().ok()?).parse().ok()
}
