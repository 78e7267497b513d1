//! Reads files of execs as untrusted input.
//!
//! Every file is opened beneath its sandbox's directory without following a link, without blocking, and must be a
//! plain file with one name, within a size limit.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use lodge_link::{EXEC_DIR, EXIT_FILE, ExitRecord, is_valid_id, limits};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::SystemExecutor;
use crate::error::SandboxReadError;
use crate::output::{CapturedStream, Evidence, ExecStream};

impl SystemExecutor {
    pub(super) fn read_evidence(&self, sandbox: &str, exec: &str) -> Evidence {
        if let Err(error) = check_ids(sandbox, exec) {
            return Evidence::Unreadable(error);
        }
        let dir = self.run.join(sandbox);
        let claim = format!("{EXEC_DIR}/{exec}");
        match open_beneath(&dir, claim.as_ref(), OFlags::DIRECTORY | OFlags::RDONLY) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Evidence::NoClaim,
            Err(cause) => return Evidence::Unreadable(SandboxReadError::Open { what: "claim", cause }),
        }
        let path = format!("{claim}/{EXIT_FILE}");
        let read = read_small(&dir, path.as_ref(), EXIT_RECORD, limits::RECORD_MAX);
        // A directory that was forgotten meanwhile may be another exec's by now, with what was read from it.
        if !is_there(&dir, &claim) {
            return Evidence::NoClaim;
        }
        match read {
            // A crash of the machine can leave a torn record. A torn record proves no outcome.
            Ok(bytes) => match ExitRecord::unseal(&bytes, exec) {
                Ok((record, _kind)) => Evidence::Exited(record),
                Err(_) => Evidence::Claimed,
            },
            Err(SandboxReadError::Absent { .. }) => Evidence::Claimed,
            Err(error) => Evidence::Unreadable(error),
        }
    }

    pub(super) fn read_captured(
        &self,
        sandbox: &str,
        exec: &str,
        stream: ExecStream,
        head_max: usize,
        tail_max: usize,
    ) -> Result<CapturedStream, SandboxReadError> {
        let file = self.output(sandbox, exec, stream)?;
        let total = file.metadata().map_err(read_failed)?.len();
        let head = read_at(&file, OUTPUT, 0, head_max as u64, total)?;
        let tail_from = total.saturating_sub(tail_max as u64).max(head.len() as u64);
        let tail = read_at(&file, OUTPUT, tail_from, total - tail_from, total)?;
        Ok(CapturedStream { head, tail, total })
    }

    pub(crate) fn output(
        &self,
        sandbox: &str,
        exec: &str,
        stream: ExecStream,
    ) -> Result<File, SandboxReadError> {
        check_ids(sandbox, exec)?;
        let name = stream.file_name();
        open_plain(&self.run.join(sandbox), format!("{EXEC_DIR}/{exec}/{name}").as_ref(), OUTPUT)
    }
}

const EXIT_RECORD: &str = "exit record";
const OUTPUT: &str = "captured output";

pub(crate) fn check_ids(sandbox: &str, exec: &str) -> Result<(), SandboxReadError> {
    match [sandbox, exec].into_iter().find(|id| !is_valid_id(id)) {
        None => Ok(()),
        Some(id) => Err(SandboxReadError::BadId { id: id.to_owned() }),
    }
}

/// Whether a name is still there. Those of execs do not come back.
pub(crate) fn is_there(dir: &Path, path: &str) -> bool {
    open_beneath(dir, path.as_ref(), OFlags::DIRECTORY | OFlags::PATH).is_ok()
}

/// The whole of a small file.
pub(crate) fn read_small(
    dir: &Path,
    path: &Path,
    what: &'static str,
    len_max: usize,
) -> Result<Vec<u8>, SandboxReadError> {
    let file = open_plain(dir, path, what)?;
    let len = file.metadata().map_err(|cause| SandboxReadError::Read { what, cause })?.len();
    if len > len_max as u64 {
        return Err(SandboxReadError::TooLong { what, len, len_max: len_max as u64 });
    }
    read_at(&file, what, 0, len, len)
}

fn open_plain(dir: &Path, path: &Path, what: &'static str) -> Result<File, SandboxReadError> {
    plain(open_beneath(dir, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY), what)
}

/// As `open_plain`, of a directory that is open.
pub(crate) fn open_plain_at(
    dir: &File,
    name: &str,
    what: &'static str,
    access: OFlags,
) -> Result<File, SandboxReadError> {
    let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY;
    plain(open_beneath_at(dir, name.as_ref(), flags), what)
}

fn plain(opened: io::Result<File>, what: &'static str) -> Result<File, SandboxReadError> {
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(SandboxReadError::Absent { what });
        }
        // A link, where none may be.
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return Err(SandboxReadError::NotPlain { what });
        }
        Err(cause) => return Err(SandboxReadError::Open { what, cause }),
    };
    let meta = file.metadata().map_err(|cause| SandboxReadError::Open { what, cause })?;
    match meta.nlink() {
        // Removed since it was opened.
        0 => Err(SandboxReadError::Absent { what }),
        1 if meta.is_file() => Ok(file),
        _several => Err(SandboxReadError::NotPlain { what }),
    }
}

pub(crate) fn open_beneath(dir: &Path, path: &Path, flags: OFlags) -> io::Result<File> {
    let dir = rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    open_beneath_at(&dir, path, flags)
}

fn open_beneath_at(dir: impl AsFd, path: &Path, flags: OFlags) -> io::Result<File> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let mode = if flags.contains(OFlags::CREATE) { Mode::RUSR | Mode::WUSR } else { Mode::empty() };
    let fd = rustix::fs::openat2(dir, path, flags | OFlags::CLOEXEC, mode, resolve)?;
    Ok(File::from(fd))
}

fn read_failed(cause: io::Error) -> SandboxReadError {
    SandboxReadError::Read { what: OUTPUT, cause }
}

/// At most `len` bytes from `offset`, and none beyond `total`, which the file had when it was opened.
pub(crate) fn read_at(
    file: &File,
    what: &'static str,
    offset: u64,
    len: u64,
    total: u64,
) -> Result<Vec<u8>, SandboxReadError> {
    let len = len.min(total.saturating_sub(offset));
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            // It was cut since: what is there is what there is.
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(SandboxReadError::Read { what, cause }),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}
