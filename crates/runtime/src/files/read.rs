//! `read`: the lines of a text file with their numbers.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;

use super::lines::Line;
use super::options::Arguments;
use super::{FileError, OUTPUT_BYTES_MAX, PROBE_BYTES, is_binary, open_file, put};

const USAGE: &str = "{\"args\": [\"PATH\", \"--offset\", \"FIRST LINE\", \"--limit\", \"LINES\"]}; the options may be left out";
const LINES_MAX: u64 = 2000;
const LINE_CHARS_MAX: usize = 2000;

pub(super) fn read(args: Vec<OsString>, out: &mut dyn Write) -> Result<(), FileError> {
    let mut args = Arguments::split(args, USAGE, &[], &["--offset", "--limit"])?;
    let first = args.number("--offset")?.unwrap_or(1);
    let limit = args.number("--limit")?.unwrap_or(LINES_MAX).min(LINES_MAX);
    let path = PathBuf::from(args.word("the path")?);
    args.end()?;
    let failed = |cause| FileError::Io { what: "read", path: path.clone(), cause };
    let mut file = BufReader::with_capacity(PROBE_BYTES, open_file(&path)?);
    if is_binary(file.fill_buf().map_err(failed)?) {
        return Err(FileError::NotText { path });
    }
    let mut line = Line::default();
    let mut number = 0;
    while number + 1 < first && line.read(&mut file).map_err(failed)? {
        number += 1;
    }
    let (mut printed, mut bytes) = (0, 0);
    while line.read(&mut file).map_err(failed)? {
        let text = format!("{:>6}\t{}\n", number + 1, line.shown(LINE_CHARS_MAX));
        bytes += text.len();
        if printed == limit || bytes > OUTPUT_BYTES_MAX {
            let next = number + 1;
            return put(
                out,
                &format!(
                    "[more lines follow; read on with {{\"args\": [\"{}\", \"--offset\", \"{next}\"]}}]\n",
                    path.display()
                ),
            );
        }
        put(out, &text)?;
        (number, printed) = (number + 1, printed + 1);
    }
    match (printed, number) {
        (0, 0) => put(out, "[the file is empty]\n"),
        (0, lines) => Err(FileError::BeyondEnd { path, lines }),
        (_, _) => Ok(()),
    }
}
