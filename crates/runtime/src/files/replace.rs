//! `replace`: one exact text of a file by another, or several changes at once.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::lock::LockedFile;
use super::options::Arguments;
use super::write::{input, store};
use super::{FileError, is_binary, put};

const USAGE: &str = "{\"args\": [\"PATH\", \"OLD TEXT\", \"NEW TEXT\"]}, with \"--all\" as the first argument to replace every occurrence";
const ALL: &str = "--all";
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
const SEARCH: &[u8] = b"<<<<<<< SEARCH";
const DIVIDER: &[u8] = b"=======";
const REPLACE: &[u8] = b">>>>>>> REPLACE";

/// One text for another.
#[derive(Debug, PartialEq, Eq)]
struct TextChange {
    old: Vec<u8>,
    new: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Occurrences {
    One,
    All,
}

pub(super) fn replace(
    mut args: Vec<OsString>,
    stdin: &mut dyn Read,
    out: &mut dyn Write,
) -> Result<(), FileError> {
    // The texts may begin with `--`, so options are only before the path and after the texts.
    let mut occurrences = Occurrences::One;
    if args.first().is_some_and(|first| first == ALL) {
        args.remove(0);
        occurrences = Occurrences::All;
    } else if args.len() == 4 && args[3] == ALL {
        args.pop();
        occurrences = Occurrences::All;
    }
    args.insert(0, "--".into());
    let mut args = Arguments::split(args, USAGE, &[], &[])?;
    let path = PathBuf::from(args.word("the path")?);
    let changes = match args.words.pop_front() {
        Some(old) => {
            let new = args.word("the new text")?;
            vec![TextChange { old: old.into_vec(), new: new.into_vec() }]
        }
        None => blocks(&input(stdin)?)?,
    };
    args.end()?;
    if changes.is_empty() {
        return Err(args.wrong("the old and the new text are missing".to_owned()));
    }
    // Until the end: another call may change the same file.
    let mut file = LockedFile::open(&path)?;
    let mut text = contents(&path, &mut file)?;
    let is_crlf = text.windows(2).filter(|pair| pair == b"\r\n").count() * 2 > count_lines(&text);
    let mut done = Vec::new();
    for (index, change) in changes.iter().enumerate() {
        let number = (changes.len() > 1).then_some(index + 1);
        let applied = if is_crlf {
            apply(&path, &text, &change.with_crlf(), occurrences, number)
        } else {
            apply(&path, &text, change, occurrences, number)
        }?;
        text = applied.text;
        done.extend(applied.lines);
    }
    store(&path, &text)?;
    let lines: Vec<String> = done.iter().take(20).map(u64::to_string).collect();
    let word = if done.len() == 1 { "occurrence" } else { "occurrences" };
    put(out, &format!("replaced {} {word} in {} (line {})\n", done.len(), path.display(), lines.join(", ")))
}

impl TextChange {
    /// The same for a file with other line breaks than a model writes.
    fn with_crlf(&self) -> TextChange {
        let convert = |text: &[u8]| {
            let mut converted = Vec::with_capacity(text.len());
            for (at, byte) in text.iter().enumerate() {
                if *byte == b'\n' && (at == 0 || text[at - 1] != b'\r') {
                    converted.push(b'\r');
                }
                converted.push(*byte);
            }
            converted
        };
        TextChange { old: convert(&self.old), new: convert(&self.new) }
    }
}

fn contents(path: &Path, LockedFile(file): &mut LockedFile) -> Result<Vec<u8>, FileError> {
    let failed = |cause| FileError::Io { what: "read", path: path.to_owned(), cause };
    let bytes = file.metadata().map_err(failed)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(FileError::TooLarge { path: path.to_owned(), bytes, bytes_max: FILE_BYTES_MAX });
    }
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(failed)?;
    if is_binary(&text) {
        return Err(FileError::NotText { path: path.to_owned() });
    }
    Ok(text)
}

struct ReplacedText {
    text: Vec<u8>,
    /// Where it was changed.
    lines: Vec<u64>,
}

fn apply(
    path: &Path,
    text: &[u8],
    change: &TextChange,
    occurrences: Occurrences,
    number: Option<usize>,
) -> Result<ReplacedText, FileError> {
    let TextChange { old, new } = change;
    if old.is_empty() {
        return Err(FileError::NothingToFind);
    }
    if old == new {
        return Err(FileError::NothingToChange);
    }
    let places = find_all(text, old);
    let lines = lines_of(text, &places);
    match (places.len(), occurrences) {
        (0, _) => {
            let near = near(text, old);
            return Err(FileError::NoSuchText { path: path.to_owned(), near, change: number });
        }
        (1, _) | (_, Occurrences::All) => {}
        (_, Occurrences::One) => {
            return Err(FileError::NotUnique { path: path.to_owned(), lines, change: number });
        }
    }
    let mut changed = Vec::with_capacity(text.len() + new.len());
    let mut since = 0;
    for at in places {
        changed.extend_from_slice(&text[since..at]);
        changed.extend_from_slice(new);
        since = at + old.len();
    }
    changed.extend_from_slice(&text[since..]);
    Ok(ReplacedText { text: changed, lines })
}

/// Where a text occurs, without overlaps.
fn find_all(text: &[u8], old: &[u8]) -> Vec<usize> {
    let mut places = Vec::new();
    let mut at = 0;
    while at + old.len() <= text.len() {
        // The first byte first: comparing everywhere would be slow for long texts.
        let Some(next) = text[at..=text.len() - old.len()].iter().position(|byte| *byte == old[0]) else {
            break;
        };
        at += next;
        if text[at..].starts_with(old) {
            places.push(at);
            at += old.len();
        } else {
            at += 1;
        }
    }
    places
}

/// The lines of places, which are in order. Each is counted from the one before.
fn lines_of(text: &[u8], places: &[usize]) -> Vec<u64> {
    let (mut line, mut since) = (1, 0);
    let mut lines = Vec::with_capacity(places.len());
    for at in places {
        line += count_lines(&text[since..*at]) as u64;
        since = *at;
        lines.push(line);
    }
    lines
}

fn count_lines(text: &[u8]) -> usize {
    text.iter().filter(|byte| **byte == b'\n').count()
}

/// The first line of a text that is `old` but for spaces at the ends of its lines.
fn near(text: &[u8], old: &[u8]) -> Option<u64> {
    let trimmed = |text: &'_ [u8]| -> Vec<Vec<u8>> {
        text.split(|byte| *byte == b'\n').map(|line| line.trim_ascii().to_owned()).collect()
    };
    let mut old = trimmed(old);
    while old.last().is_some_and(Vec::is_empty) {
        old.pop();
    }
    if old.is_empty() {
        return None;
    }
    let lines = trimmed(text);
    lines.windows(old.len()).position(|window| window == old.as_slice()).map(|at| at as u64 + 1)
}

/// The changes in blocks of `<<<<<<< SEARCH`, `=======` and `>>>>>>> REPLACE`.
fn blocks(text: &[u8]) -> Result<Vec<TextChange>, FileError> {
    #[derive(PartialEq)]
    enum BlockPart {
        Nothing,
        Old,
        New,
    }
    let mut changes = Vec::new();
    let (mut old, mut new) = (Vec::new(), Vec::new());
    let mut within = BlockPart::Nothing;
    let mut number = 0;
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        number += 1;
        let bare = line.trim_ascii_end();
        within = match within {
            BlockPart::Nothing if bare == SEARCH => BlockPart::Old,
            BlockPart::Nothing if bare.is_empty() => BlockPart::Nothing,
            BlockPart::Nothing => {
                return Err(FileError::BadBlocks { line: number, expected: "`<<<<<<< SEARCH`" });
            }
            BlockPart::Old if bare == DIVIDER => BlockPart::New,
            BlockPart::Old => {
                old.extend_from_slice(line);
                BlockPart::Old
            }
            BlockPart::New if bare == REPLACE => {
                changes.push(TextChange { old: std::mem::take(&mut old), new: std::mem::take(&mut new) });
                BlockPart::Nothing
            }
            BlockPart::New => {
                new.extend_from_slice(line);
                BlockPart::New
            }
        };
    }
    match within {
        BlockPart::Nothing => Ok(changes),
        BlockPart::Old => Err(FileError::BadBlocks { line: number + 1, expected: "`=======`" }),
        BlockPart::New => Err(FileError::BadBlocks { line: number + 1, expected: "`>>>>>>> REPLACE`" }),
    }
}
