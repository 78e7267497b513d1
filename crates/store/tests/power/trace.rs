//! What `strace` wrote, read as changes to files.
//!
//! All names and bytes come in hexadecimal (`-xx`), so none of them contains a comma, a quote or a bracket.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// One change, or one note of the program under test, in the order in which they count.
#[derive(Debug, Clone)]
pub struct Op {
    /// The line on which it began: from here on it may be on the disk.
    pub began: usize,
    /// The line on which it ended: a sync that began before does not cover it.
    pub ended: usize,
    pub what: OpKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpKind {
    /// Opened so that it is there afterwards.
    Create(PathBuf),
    MakeDir(PathBuf),
    Write {
        path: PathBuf,
        at: u64,
        bytes: Vec<u8>,
    },
    SetLen {
        path: PathBuf,
        len: u64,
    },
    /// Of a file or of a directory.
    Sync(PathBuf),
    Remove(PathBuf),
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    /// A line that the program wrote to its file of notes.
    Note(String),
}

#[derive(Debug)]
pub struct TraceError {
    line: usize,
    text: String,
}

impl std::fmt::Display for TraceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {} of the trace is not understood: {}", self.line, self.text)
    }
}

impl std::error::Error for TraceError {}

/// Everything that happened beneath one directory.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    pub ops: Vec<Op>,
}

impl Trace {
    /// Reads a trace. `root` is the directory that counts, `notes` the file of notes, which may lie outside.
    pub fn parse(text: &str, root: &Path, notes: &Path) -> Result<Trace, TraceError> {
        let mut reader = TraceReader::new(root, notes);
        for (number, line) in text.lines().enumerate() {
            let understood = reader.line(number, line);
            understood
                .ok_or_else(|| TraceError { line: number + 1, text: line.chars().take(300).collect() })?;
        }
        let mut ops = reader.ops;
        // A change may be on the disk as soon as it begins; a sync is certain only once it ended.
        ops.sort_by_key(|op| match op.what {
            OpKind::Sync(_) => op.ended,
            OpKind::Create(_)
            | OpKind::MakeDir(_)
            | OpKind::Write { .. }
            | OpKind::SetLen { .. }
            | OpKind::Remove(_)
            | OpKind::Rename { .. }
            | OpKind::Note(_) => op.began,
        });
        Ok(Trace { ops })
    }

    /// The same run of a program that syncs `path` only the first `first` times.
    pub fn without_syncs_of(&self, path: &Path, first: usize) -> Trace {
        let mut synced = 0;
        let mut ops = self.ops.clone();
        ops.retain(|op| {
            let is_one = matches!(&op.what, OpKind::Sync(one) if one == path);
            synced += usize::from(is_one);
            !is_one || synced <= first
        });
        Trace { ops }
    }
}

/// A call whose end was not on its line.
struct UnfinishedCall {
    line: usize,
    text: String,
}

struct TraceReader<'a> {
    root: &'a Path,
    notes: &'a Path,
    ops: Vec<Op>,
    begun: BTreeMap<u32, UnfinishedCall>,
}

impl<'a> TraceReader<'a> {
    fn new(root: &'a Path, notes: &'a Path) -> TraceReader<'a> {
        TraceReader { root, notes, ops: Vec::new(), begun: BTreeMap::new() }
    }

    /// `None`: not understood.
    fn line(&mut self, number: usize, line: &str) -> Option<()> {
        let (pid, rest) = line.split_once(' ')?;
        let (pid, rest): (u32, &str) = (pid.parse().ok()?, rest.trim_start());
        if rest.starts_with("+++") || rest.starts_with("---") {
            return Some(());
        }
        if let Some(text) = rest.strip_suffix(" <unfinished ...>") {
            self.begun.insert(pid, UnfinishedCall { line: number, text: text.to_owned() });
            return Some(());
        }
        if let Some(resumed) = rest.strip_prefix("<... ") {
            let (_, end) = resumed.split_once(" resumed>")?;
            // The first lines of a process that was followed late may be missing.
            let Some(begun) = self.begun.remove(&pid) else { return Some(()) };
            return self.call(&format!("{}{end}", begun.text), begun.line, number);
        }
        self.call(rest, number, number)
    }

    fn call(&mut self, text: &str, began: usize, ended: usize) -> Option<()> {
        let (name, rest) = text.split_once('(')?;
        let (args, result) = rest.rsplit_once(" = ")?;
        let args = args.trim_end().strip_suffix(')')?;
        if result.starts_with("-1 ") || result.starts_with('?') {
            return Some(());
        }
        let args: Vec<&str> = args.split(", ").collect();
        for what in self.understand(name, &args, result)? {
            self.ops.push(Op { began, ended, what });
        }
        Some(())
    }

    fn understand(&self, name: &str, args: &[&str], result: &str) -> Option<Vec<OpKind>> {
        Some(match name {
            "openat" => self.open(args, result)?,
            "pwrite64" => {
                let path = fd_path(args.first()?)?;
                let (bytes, at) = (wrote(args.get(1)?, result)?, args.get(3)?.parse().ok()?);
                self.one(OpKind::Write { path: path.clone(), at, bytes }, &path)
            }
            "write" => {
                let path = fd_path(args.first()?)?;
                let is_note = path == self.notes;
                // The offset of a plain write is no argument. The store makes no plain writes.
                if self.wanted(&path) {
                    return None;
                }
                let text = if is_note { wrote(args.get(1)?, result)? } else { Vec::new() };
                String::from_utf8(text).ok()?.lines().map(|line| OpKind::Note(line.to_owned())).collect()
            }
            "ftruncate" => {
                let path = fd_path(args.first()?)?;
                self.one(OpKind::SetLen { len: args.get(1)?.parse().ok()?, path: path.clone() }, &path)
            }
            "fsync" | "fdatasync" => {
                let path = fd_path(args.first()?)?;
                self.one(OpKind::Sync(path.clone()), &path)
            }
            "mkdir" | "mkdirat" => {
                let path = if name == "mkdir" { text(args.first()?)? } else { at(args, 0)? };
                self.one(OpKind::MakeDir(path.clone()), &path)
            }
            "unlink" | "rmdir" => {
                let path = text(args.first()?)?;
                self.one(OpKind::Remove(path.clone()), &path)
            }
            "unlinkat" => {
                let path = at(args, 0)?;
                self.one(OpKind::Remove(path.clone()), &path)
            }
            "rename" => self.rename(text(args.first()?)?, text(args.get(1)?)?),
            "renameat" | "renameat2" => self.rename(at(args, 0)?, at(args, 2)?),
            _ => return None,
        })
    }

    fn wanted(&self, path: &Path) -> bool {
        path.starts_with(self.root)
    }

    fn one(&self, what: OpKind, path: &Path) -> Vec<OpKind> {
        if self.wanted(path) { vec![what] } else { Vec::new() }
    }

    fn open(&self, args: &[&str], result: &str) -> Option<Vec<OpKind>> {
        let path = fd_path(result)?;
        let has = |flag: &str| args.get(2).is_some_and(|flags| flags.split('|').any(|one| one == flag));
        let mut made = Vec::new();
        if has("O_CREAT") {
            made.extend(self.one(OpKind::Create(path.clone()), &path));
        }
        if has("O_TRUNC") {
            made.extend(self.one(OpKind::SetLen { path: path.clone(), len: 0 }, &path));
        }
        Some(made)
    }

    fn rename(&self, from: PathBuf, to: PathBuf) -> Vec<OpKind> {
        if self.wanted(&to) { vec![OpKind::Rename { from, to }] } else { Vec::new() }
    }
}

/// The bytes of a buffer that were really written. `None` when the trace holds only a part of them.
fn wrote(arg: &str, result: &str) -> Option<Vec<u8>> {
    let mut bytes = unhex(arg.strip_prefix('"')?.strip_suffix('"')?)?;
    let len: usize = result.parse().ok()?;
    if bytes.len() < len {
        return None;
    }
    bytes.truncate(len);
    Some(bytes)
}

/// `3<path>`, as a call or its result names a descriptor.
fn fd_path(arg: &str) -> Option<PathBuf> {
    let (_, path) = arg.split_once('<')?;
    let path = path.split_once('>')?.0;
    as_path(path)
}

fn text(arg: &str) -> Option<PathBuf> {
    as_path(arg.strip_prefix('"')?.strip_suffix('"')?)
}

/// A name in a directory: two arguments, of which the first is a descriptor.
fn at(args: &[&str], first: usize) -> Option<PathBuf> {
    let name = text(args.get(first + 1)?)?;
    Some(if name.is_absolute() { name } else { fd_path(args.get(first)?)?.join(name) })
}

fn as_path(hex: &str) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    Some(std::ffi::OsString::from_vec(unhex(hex)?).into())
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut bytes = Vec::with_capacity(text.len() / 4);
    let mut rest = text.as_bytes();
    while let [b'\\', b'x', high, low, after @ ..] = rest {
        bytes.push(digits(*high)? << 4 | digits(*low)?);
        rest = after;
    }
    rest.is_empty().then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> String {
        text.bytes().map(|byte| format!("\\x{byte:02x}")).collect()
    }

    #[test]
    fn a_change_counts_from_its_beginning_and_a_sync_from_its_end() {
        let (file, name) = (format!("3<{}>", hex("/d/f")), hex("/d/f"));
        let text = format!(
            "1 openat(AT_FDCWD<{}>, \"{name}\", O_RDWR|O_CREAT, 0644) = {file}\n\
             1 fdatasync({file} <unfinished ...>\n\
             2 pwrite64({file}, \"{}\", 2, 512) = 2\n\
             1 <... fdatasync resumed>)          = 0\n\
             2 write(1<{}>, \"{}\", 6) = 6\n\
             2 +++ exited with 0 +++\n",
            hex("/"),
            hex("ab"),
            hex("/notes"),
            hex("ack 1\n"),
        );
        let trace = Trace::parse(&text, Path::new("/d"), Path::new("/notes")).unwrap();
        let whats: Vec<OpKind> = trace.ops.iter().map(|op| op.what.clone()).collect();
        let path = PathBuf::from("/d/f");
        assert_eq!(
            whats,
            [
                OpKind::Create(path.clone()),
                OpKind::Write { path: path.clone(), at: 512, bytes: b"ab".to_vec() },
                OpKind::Sync(path),
                OpKind::Note("ack 1".into()),
            ]
        );
        assert!(trace.ops[2].began < trace.ops[1].ended, "the write is not covered by the sync");
    }

    #[test]
    fn a_buffer_that_the_trace_cut_short_is_an_error() {
        let text = format!("1 pwrite64(3<{}>, \"{}\"..., 9, 0) = 9\n", hex("/d/f"), hex("ab"));
        assert!(Trace::parse(&text, Path::new("/d"), Path::new("/notes")).is_err());
    }
}
