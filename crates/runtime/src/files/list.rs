//! `list`: the entries of a directory.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::options::Arguments;
use super::walk::{EntryKind, Walk, WalkEntry};
use super::{FileError, OUTPUT_BYTES_MAX, put};

const USAGE: &str = "{\"args\": [\"PATH\", \"--depth\", \"LEVELS\"]}; both may be left out";
const ENTRIES_MAX: usize = 1000;

pub(super) fn list(args: Vec<OsString>, out: &mut dyn Write) -> Result<(), FileError> {
    let mut args = Arguments::split(args, USAGE, &[], &["--depth", "--limit"])?;
    let depth = args.number("--depth")?.unwrap_or(1);
    let limit = args.number("--limit")?.map_or(ENTRIES_MAX, |limit| limit.min(ENTRIES_MAX as u64) as usize);
    let path =
        args.words.pop_front().filter(|path| !path.is_empty()).map_or(PathBuf::from("."), PathBuf::from);
    args.end()?;
    let failed = |cause| FileError::Io { what: "list", path: path.clone(), cause };
    if path.metadata().map_err(failed)?.is_file() {
        return Err(args.wrong(format!("`{}` is a file, not a directory", path.display())));
    }
    let mut bytes = 0;
    let mut entries = 0;
    for found in Walk::of(&path, depth.try_into().unwrap_or(usize::MAX)).map_err(failed)? {
        let line = line_of(&path, &found);
        bytes += line.len();
        if entries == limit || bytes > OUTPUT_BYTES_MAX {
            return put(out, "[more entries follow; list a directory below, or a smaller depth]\n");
        }
        put(out, &line)?;
        entries += 1;
    }
    if entries == 0 { put(out, "[the directory is empty]\n") } else { Ok(()) }
}

fn line_of(start: &Path, found: &WalkEntry) -> String {
    let path = found.path.strip_prefix(start).unwrap_or(&found.path).display().to_string();
    match found.kind {
        EntryKind::File => match found.path.symlink_metadata() {
            Ok(file) => format!("{path} ({} bytes)\n", file.len()),
            Err(_) => format!("{path}\n"),
        },
        EntryKind::Directory => format!("{path}/\n"),
        EntryKind::Skipped => format!("{path}/ (not entered)\n"),
        EntryKind::Link => match std::fs::read_link(&found.path) {
            Ok(to) => format!("{path} -> {}\n", to.display()),
            Err(_) => format!("{path} (a link)\n"),
        },
        EntryKind::Other => format!("{path} (not a regular file)\n"),
        EntryKind::Unreadable => format!("{path}/ (cannot be listed)\n"),
    }
}
