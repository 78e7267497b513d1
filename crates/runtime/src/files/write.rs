//! `write`: all of a file, at once or not at all.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::lock::LockedFile;
use super::options::Arguments;
use super::{FileError, put};

const USAGE: &str = "{\"args\": [\"PATH\"], \"stdin\": \"TEXT\"} or {\"args\": [\"PATH\", \"TEXT\"]}";
/// More than a call can carry.
const TEXT_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// The bits of a mode that are kept.
const MODE_KEPT: u32 = 0o777;
/// Names that are tried for the temporary file.
const ATTEMPTS: u32 = 100;

pub(super) fn write(args: Vec<OsString>, stdin: &mut dyn Read, out: &mut dyn Write) -> Result<(), FileError> {
    // The text may begin with `--`.
    let args = std::iter::once(OsString::from("--")).chain(args).collect();
    let mut args = Arguments::split(args, USAGE, &[], &[])?;
    let path = PathBuf::from(args.word("the path")?);
    let given = args.words.pop_front();
    args.end()?;
    let text = match given {
        Some(text) => std::os::unix::ffi::OsStringExt::into_vec(text),
        None => match input(stdin)? {
            text if text.is_empty() => return Err(FileError::NoContent),
            text => text,
        },
    };
    let _old = LockedFile::open_old(&path)?;
    let was = path.metadata().ok().map(|found| found.len());
    store(&path, &text)?;
    let lines = text.split_inclusive(|byte| *byte == b'\n').count();
    let was = match was {
        Some(bytes) => format!("replaced {bytes} bytes"),
        None => "a new file".to_owned(),
    };
    put(out, &format!("wrote {}: {lines} lines, {} bytes ({was})\n", path.display(), text.len()))
}

/// All of stdin.
pub(super) fn input(stdin: &mut dyn Read) -> Result<Vec<u8>, FileError> {
    let mut text = Vec::new();
    stdin.take(TEXT_BYTES_MAX + 1).read_to_end(&mut text).map_err(|cause| FileError::Input { cause })?;
    if text.len() as u64 > TEXT_BYTES_MAX {
        let (path, bytes) = (PathBuf::from("stdin"), text.len() as u64);
        return Err(FileError::TooLarge { path, bytes, bytes_max: TEXT_BYTES_MAX });
    }
    Ok(text)
}

/// Gives a file new contents: a reader sees the old ones or the new ones. Links are followed, and the mode is kept.
pub(super) fn store(path: &Path, text: &[u8]) -> Result<(), FileError> {
    let failed = |cause| FileError::Io { what: "write", path: path.to_owned(), cause };
    let place = match fs::symlink_metadata(path) {
        Ok(_) => fs::canonicalize(path).map_err(failed)?,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => path.to_owned(),
        Err(cause) => return Err(failed(cause)),
    };
    let mode = match place.metadata() {
        Ok(found) if found.is_dir() => return Err(FileError::IsDirectory { path: path.to_owned() }),
        Ok(found) if !found.is_file() => return Err(FileError::NotRegular { path: path.to_owned() }),
        Ok(found) => {
            // The directory may allow what the file does not.
            OpenOptions::new().write(true).open(&place).map_err(failed)?;
            Some(found.permissions().mode() & MODE_KEPT)
        }
        Err(_) => None,
    };
    let dir = place.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(dir).map_err(failed)?;
    match replace_file(dir, &place, text, mode) {
        // A file that is mounted by itself, or whose directory is not writable, can only be written in place.
        Err(cause) if mode.is_some() && is_fixed(&cause) => fs::write(&place, text).map_err(failed),
        ended => ended.map_err(failed),
    }
}

fn is_fixed(cause: &io::Error) -> bool {
    matches!(cause.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EBUSY | libc::EROFS | libc::EXDEV))
}

fn replace_file(dir: &Path, place: &Path, text: &[u8], mode: Option<u32>) -> io::Result<()> {
    let (temporary, mut file) = create_beside(dir)?;
    let written = (|| {
        file.write_all(text)?;
        if let Some(mode) = mode {
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        file.sync_data()?;
        fs::rename(&temporary, place)
    })();
    if written.is_err() {
        // The first error is the one to report.
        drop(fs::remove_file(&temporary));
    }
    written
}

/// A new file that no other call uses.
fn create_beside(dir: &Path) -> io::Result<(PathBuf, File)> {
    let pid = std::process::id();
    for attempt in 0..ATTEMPTS {
        let path = dir.join(format!(".lodge-write-{pid}-{attempt}"));
        match OpenOptions::new().write(true).create_new(true).mode(0o666).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {}
            Err(cause) => return Err(cause),
        }
    }
    Err(io::Error::from(io::ErrorKind::AlreadyExists))
}
