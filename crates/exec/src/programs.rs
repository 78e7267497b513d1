//! Programs in `bin/`: written once under the name of their content, never overwritten.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use crate::error::HostError;

/// Bytes of the digest that go into a name: enough that no two programs ever share one.
const DIGEST_BYTES: usize = 12;

/// Puts a program into `bin`, unless it is there, and tells its path.
pub(crate) fn put(bin: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf, HostError> {
    if !lodge_link::is_valid_id(name) {
        return Err(HostError::BadName { name: name.to_owned() });
    }
    let digest = Sha256::digest(bytes);
    let hex: String = digest.iter().take(DIGEST_BYTES).map(|byte| format!("{byte:02x}")).collect();
    let path = bin.join(format!("{name}-{hex}"));
    let is_there =
        path.symlink_metadata().is_ok_and(|meta| meta.is_file() && meta.len() == bytes.len() as u64);
    if is_there {
        return Ok(path);
    }
    write(bin, &path, bytes).map_err(|cause| HostError::StoreProgram { path: path.clone(), cause })?;
    Ok(path)
}

fn write(bin: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let unique = format!(".new-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let temporary = bin.join(unique);
    let written = (|| {
        let mut file = File::options().write(true).create_new(true).mode(0o700).open(&temporary)?;
        file.write_all(bytes)?;
        // The mode is set apart from creation, where the umask could narrow it.
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(bin)?.sync_all()
    })();
    if written.is_err() && fs::remove_file(&temporary).is_err() {
        // A stray temporary file costs room and nothing else; the first error is the one to tell.
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_program_is_written_once_and_another_content_gets_another_name() {
        let dir = tempfile::tempdir().unwrap();
        let first = put(dir.path(), "keeper", b"one").unwrap();
        let inode = first.metadata().unwrap().ino();
        assert_eq!(put(dir.path(), "keeper", b"one").unwrap(), first);
        assert_eq!(first.metadata().unwrap().ino(), inode);
        assert_eq!(first.metadata().unwrap().mode() & 0o777, 0o755);
        let second = put(dir.path(), "keeper", b"two").unwrap();
        assert_ne!(first, second);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_name_that_is_a_path_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let refused = put(dir.path(), "../keeper", b"one").unwrap_err();
        assert_eq!(refused.code(), "host.bad_program_name");
    }
}
