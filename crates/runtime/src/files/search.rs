//! `search`: the lines of files that match a pattern.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use regex_lite::{Regex, RegexBuilder};

use super::lines::Line;
use super::options::Arguments;
use super::walk::{EntryKind, Walk};
use super::{FileError, OUTPUT_BYTES_MAX, PROBE_BYTES, is_binary, open_file, put};

const USAGE: &str = "{\"args\": [\"PATTERN\", \"PATH\"]}; options: --literal, --ignore-case, --files, --name \"*.rs\", --limit N";
const MATCHES: u64 = 200;
const MATCHES_MAX: u64 = 2000;
const LINE_CHARS_MAX: usize = 400;
/// Files and directories that one search looks at.
const ENTRIES_MAX: usize = 200_000;
/// The memory of a compiled pattern.
const PATTERN_BYTES_MAX: usize = 1024 * 1024;

/// A search and what it printed so far.
struct Search<'o> {
    pattern: Regex,
    name: Option<String>,
    only_files: bool,
    limit: u64,
    matches: u64,
    bytes: usize,
    files: u64,
    out: &'o mut dyn Write,
}

/// Whether to look further.
#[derive(PartialEq)]
enum SearchProgress {
    Continues,
    LimitReached,
}

pub(super) fn search(args: Vec<OsString>, out: &mut dyn Write) -> Result<(), FileError> {
    let flags = ["--literal", "--ignore-case", "--files"];
    let mut args = Arguments::split(args, USAGE, &flags, &["--name", "--limit"])?;
    let pattern = args.word("the pattern")?;
    let Some(pattern) = pattern.to_str().filter(|pattern| !pattern.is_empty()) else {
        return Err(args.wrong("the pattern is empty, or not UTF-8".to_owned()));
    };
    let pattern = if args.has("--literal") { regex_lite::escape(pattern) } else { pattern.to_owned() };
    let pattern = RegexBuilder::new(&pattern)
        .case_insensitive(args.has("--ignore-case"))
        .size_limit(PATTERN_BYTES_MAX)
        .build()
        .map_err(|cause| FileError::Pattern { cause })?;
    let mut search = Search {
        pattern,
        name: args.value("--name").map(|name| name.to_string_lossy().into_owned()),
        only_files: args.has("--files"),
        limit: args.number("--limit")?.unwrap_or(MATCHES).min(MATCHES_MAX),
        matches: 0,
        bytes: 0,
        files: 0,
        out,
    };
    let mut paths: Vec<PathBuf> = args.words.drain(..).map(PathBuf::from).collect();
    if paths.is_empty() {
        paths.push(PathBuf::from("."));
    }
    for path in paths {
        if search.path(&path)? == SearchProgress::LimitReached {
            return Ok(());
        }
    }
    match search.matches {
        0 => put(search.out, &format!("[no match in {} files]\n", search.files)),
        _ => Ok(()),
    }
}

impl Search<'_> {
    fn path(&mut self, path: &Path) -> Result<SearchProgress, FileError> {
        let failed = |cause| FileError::Io { what: "search", path: path.to_owned(), cause };
        if !path.metadata().map_err(failed)?.is_dir() {
            return self.file(path);
        }
        for (seen, found) in Walk::of(path, usize::MAX).map_err(failed)?.enumerate() {
            if seen == ENTRIES_MAX {
                put(self.out, "[there are too many files; search a directory below]\n")?;
                return Ok(SearchProgress::LimitReached);
            }
            if found.kind != EntryKind::File || !self.has_name(&found.path) {
                continue;
            }
            match self.file(&found.path) {
                Ok(SearchProgress::Continues) => {}
                Ok(SearchProgress::LimitReached) => return Ok(SearchProgress::LimitReached),
                Err(error @ FileError::Output { .. }) => return Err(error),
                // A file that cannot be read does not keep the others from being searched.
                Err(error) => put(self.out, &format!("[{error}]\n"))?,
            }
        }
        Ok(SearchProgress::Continues)
    }

    fn has_name(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.name.as_deref().is_none_or(|pattern| fits(pattern.as_bytes(), name.as_bytes()))
    }

    fn file(&mut self, path: &Path) -> Result<SearchProgress, FileError> {
        let failed = |cause| FileError::Io { what: "read", path: path.to_owned(), cause };
        let mut file = BufReader::with_capacity(PROBE_BYTES, open_file(path)?);
        if is_binary(file.fill_buf().map_err(failed)?) {
            return Ok(SearchProgress::Continues);
        }
        self.files += 1;
        let mut line = Line::default();
        let mut number = 0_u64;
        while line.read(&mut file).map_err(failed)? {
            number += 1;
            if !self.pattern.is_match(&line.text()) {
                continue;
            }
            let path = path.display();
            let text = if self.only_files {
                format!("{path}\n")
            } else {
                format!("{path}:{number}:{}\n", line.shown(LINE_CHARS_MAX))
            };
            self.bytes += text.len();
            if self.matches == self.limit || self.bytes > OUTPUT_BYTES_MAX {
                put(
                    self.out,
                    "[more matches follow; search for something rarer, or in a directory below]\n",
                )?;
                return Ok(SearchProgress::LimitReached);
            }
            put(self.out, &text)?;
            self.matches += 1;
            if self.only_files {
                break;
            }
        }
        Ok(SearchProgress::Continues)
    }
}

/// Whether a name is what a pattern with `*` and `?` describes.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[n] => (p, n) = (p + 1, n + 1),
            Some(_) | None => match star {
                Some((at, taken)) => {
                    (p, n) = (at + 1, taken + 1);
                    star = Some((at, taken + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_fits_a_pattern_with_stars_and_question_marks() {
        for (pattern, name, expected) in [
            ("*.rs", "main.rs", true),
            ("*.rs", "main.rs.bak", false),
            ("*", "", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbY", false),
            ("?.c", "x.c", true),
            ("?.c", ".c", false),
            ("", "x", false),
        ] {
            assert_eq!(fits(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }
}
