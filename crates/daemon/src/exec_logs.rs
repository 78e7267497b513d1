//! The output of execs in standalone sandboxes: files that their keepers write, and that programs of the sandbox can read.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use lodge_core::{ExecId, SandboxId};
use lodge_exec::{ExecStream, stderr_log, stdout_log};

/// The directory of a sandbox with the output of its execs.
pub fn dir_of(data_dir: &Path, sandbox: &SandboxId) -> PathBuf {
    data_dir.join("sandboxes").join(sandbox.as_str()).join("logs")
}

pub fn path_of(data_dir: &Path, sandbox: &SandboxId, exec: &ExecId, stream: ExecStream) -> PathBuf {
    let name = match stream {
        ExecStream::Stdout => stdout_log(exec.as_str()),
        ExecStream::Stderr => stderr_log(exec.as_str()),
    };
    dir_of(data_dir, sandbox).join(name)
}

/// How much there is of a stream. A file that does not exist is empty.
pub fn length(data_dir: &Path, sandbox: &SandboxId, exec: &ExecId, stream: ExecStream) -> io::Result<u64> {
    let file = open(&path_of(data_dir, sandbox, exec, stream))?;
    file.map_or(Ok(0), |file| Ok(file.metadata()?.len()))
}

/// At most `len_max` bytes of a stream from `offset` on.
pub fn read(path: &Path, offset: u64, len_max: usize) -> io::Result<Vec<u8>> {
    let Some(file) = open(path)? else { return Ok(Vec::new()) };
    let left = usize::try_from(file.metadata()?.len().saturating_sub(offset)).unwrap_or(usize::MAX);
    let mut bytes = vec![0; left.min(len_max)];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Opens a plain file with one name, without following a link.
fn open(path: &Path) -> io::Result<Option<File>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = match File::options().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let meta = file.metadata()?;
    if !meta.is_file() || meta.nlink() != 1 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the output is not a plain file"));
    }
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_read_from_plain_files_only() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("a"), dir.path().join("link"));
        std::fs::write(&file, "0123456789").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for (offset, len_max, expected) in [(0, 4, "0123"), (8, 9, "89"), (10, 9, ""), (99, 9, "")] {
            assert_eq!(read(&file, offset, len_max).unwrap(), expected.as_bytes());
        }
        assert_eq!(read(&dir.path().join("none"), 0, 9).unwrap(), b"");
        assert!(read(&link, 0, 9).is_err() && read(dir.path(), 0, 9).is_err());
    }
}
