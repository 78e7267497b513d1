//! A temporary directory that is removed on drop, unless it is kept for inspection.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct ThrowAway {
    path: PathBuf,
    kept: bool,
}

impl ThrowAway {
    /// A new directory, for this user alone, where temporary files go.
    pub(crate) fn new(prefix: &str) -> io::Result<ThrowAway> {
        let template = std::env::temp_dir().join(format!("{prefix}XXXXXX"));
        let template = std::path::absolute(template)?;
        let mut bytes = CString::new(template.as_os_str().as_bytes())?.into_bytes_with_nul();
        // SAFETY: the bytes end with a zero and are ours; the kernel's library overwrites the six letters in place.
        if unsafe { libc::mkdtemp(bytes.as_mut_ptr().cast()) }.is_null() {
            return Err(io::Error::last_os_error());
        }
        bytes.pop();
        Ok(ThrowAway { path: PathBuf::from(std::ffi::OsString::from_vec(bytes)), kept: false })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// From now on it stays.
    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for ThrowAway {
    fn drop(&mut self) {
        if !self.kept {
            // Files that cannot be removed are left for the cleanup of temporary files.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_with_its_owner_unless_it_is_kept() {
        let first = ThrowAway::new("lodge-throw-away-").unwrap();
        let mut second = ThrowAway::new("lodge-throw-away-").unwrap();
        let (gone, kept) = (first.path().to_owned(), second.path().to_owned());
        fs::write(gone.join("file"), "x").unwrap();
        second.keep();
        drop((first, second));
        assert!(!gone.exists() && kept.exists());
        fs::remove_dir(kept).unwrap();
    }
}
