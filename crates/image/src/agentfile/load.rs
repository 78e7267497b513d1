//! An Agentfile together with the files it names, read from a directory nobody vouches for.
//!
//! Owns: opening those files and how much of them is read. Never: follows a link out of the directory, opens
//! anything but a regular file, or writes.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::bounds::{ADD_MAX, CONTEXT_MAX, FILE_MAX, LOAD_TOTAL_MAX};
use super::document::{Agentfile, ContextSource};
use super::error::{Errors, shown};
use super::keyword::Keyword;
use super::parse::parse;

const FILE_NAME: &str = "Agentfile";
const STDIN_NAME: &str = "stdin";

/// Keeps `open` from waiting for the other end, should a pipe have taken the place of a file.
#[cfg(any(target_os = "linux", target_os = "android"))]
const O_NONBLOCK: i32 = 0o4000;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const O_NONBLOCK: i32 = 0x0004;

/// Everything a build needs; nothing in it has to be read again.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    pub agentfile: Agentfile,
    /// The Agentfile as it was written.
    pub source: Vec<u8>,
    /// Every CONTEXT with its text, in the order of the file.
    pub contexts: Vec<ContextText>,
    /// Every ADD file, in the order of the file.
    pub files: Vec<AddedFile>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextText {
    pub name: String,
    pub description: Option<String>,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedFile {
    pub name: String,
    pub bytes: Vec<u8>,
}

/// Why an Agentfile could not be loaded. `path` is as the person or the Agentfile wrote it.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("there is no {FILE_NAME} in {}", shown_path(path))]
    NoAgentfile { path: PathBuf },
    #[error("could not read {}", shown_path(path))]
    Read {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("{} is not a regular file", shown_path(path))]
    NotRegular { path: PathBuf },
    #[error("{} leads out of {} to {}", shown_path(path), shown_path(directory), shown_path(target))]
    Escapes { path: PathBuf, directory: PathBuf, target: PathBuf },
    #[error("{} was exchanged while it was read", shown_path(path))]
    Exchanged { path: PathBuf },
    #[error("{} has more than {max} bytes", shown_path(path))]
    TooLarge { path: PathBuf, max: u64 },
    #[error("the files of this agent have more than {max} bytes together, {} included", shown_path(path))]
    TotalTooLarge { path: PathBuf, max: u64 },
    #[error("the context {} is not UTF-8", shown_path(path))]
    ContextNotUtf8 { path: PathBuf },
    #[error(
        "{STDIN_NAME}:{line}: {keyword} names the file {}, and an Agentfile without a directory has none",
        shown_path(path)
    )]
    NoDirectory { path: PathBuf, line: u32, keyword: Keyword },
    #[error("{}:{line}: {keyword} could not be loaded", shown(file))]
    Instruction {
        file: String,
        line: u32,
        keyword: Keyword,
        #[source]
        cause: Box<LoadError>,
    },
    #[error(transparent)]
    Parse(#[from] Errors),
}

impl LoadError {
    /// The code; that of the first mistake when the Agentfile itself is wrong.
    pub fn code(&self) -> &'static str {
        match self {
            LoadError::NoAgentfile { .. } => "agentfile.not_found",
            LoadError::Read { .. } => "agentfile.file_unreadable",
            LoadError::NotRegular { .. } => "agentfile.file_not_regular",
            LoadError::Escapes { .. } => "agentfile.file_outside",
            LoadError::Exchanged { .. } => "agentfile.file_exchanged",
            LoadError::TooLarge { .. } => "agentfile.added_file_too_large",
            LoadError::TotalTooLarge { .. } => "agentfile.files_too_large",
            LoadError::ContextNotUtf8 { .. } => "agentfile.context_not_utf8",
            LoadError::NoDirectory { .. } => "agentfile.no_directory",
            LoadError::Instruction { cause, .. } => cause.code(),
            LoadError::Parse(errors) => errors.first().code(),
        }
    }

    pub fn hint(&self) -> String {
        match self {
            LoadError::NoAgentfile { .. } => {
                format!("name a directory with a file called `{FILE_NAME}`, or the file itself")
            }
            LoadError::Read { path, .. } => format!("check that {} is there and readable", shown_path(path)),
            LoadError::NotRegular { .. } => {
                "name a plain file; to read an Agentfile from a pipe, pass `-`".to_owned()
            }
            LoadError::Escapes { directory, .. } => {
                format!("copy the file into {} instead of linking to it", shown_path(directory))
            }
            LoadError::Exchanged { .. } => "build again when nothing changes the directory".to_owned(),
            LoadError::TooLarge { .. } | LoadError::TotalTooLarge { .. } => {
                "make it smaller, or mount it with `lodge run -v HOST:TARGET`".to_owned()
            }
            LoadError::ContextNotUtf8 { .. } => "save it as UTF-8, or bring it with ADD".to_owned(),
            LoadError::NoDirectory { .. } => {
                "write the text as a heredoc, or build from the directory instead of stdin".to_owned()
            }
            LoadError::Instruction { cause, .. } => cause.hint(),
            LoadError::Parse(errors) => errors.first().hint(),
        }
    }
}

/// Loads the Agentfile at `path`, a directory that has one or the file itself, and every file it names.
///
/// Paths in the file are relative to the directory it stands in and cannot leave it.
pub fn load_dir(path: &Path, args: &BTreeMap<String, String>) -> Result<Loaded, LoadError> {
    let read = |cause| LoadError::Read { path: path.to_owned(), cause };
    let (directory, source) = if fs::metadata(path).map_err(read)?.is_dir() {
        let directory = Directory::open(path)?;
        let source = match directory.read(Path::new(FILE_NAME), FILE_MAX as u64 + 1) {
            Err(LoadError::Read { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {
                return Err(LoadError::NoAgentfile { path: path.to_owned() });
            }
            other => other?,
        };
        (directory, source)
    } else {
        // The person named this very file, so a link is followed; what it names is still held to the directory.
        let source = read_file(open(path).map_err(read)?, path, FILE_MAX as u64 + 1)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        (Directory::open(parent)?, source)
    };
    let name =
        path.file_name().filter(|_| path.is_file()).map_or(FILE_NAME.into(), |name| name.to_string_lossy());
    let agentfile = parse(&name, &source, args)?;
    let mut budget = LOAD_TOTAL_MAX;
    let mut contexts = Vec::new();
    for context in &agentfile.contexts {
        let text = match &context.source {
            ContextSource::Inline(text) => text.clone(),
            ContextSource::File(relative) => directory
                .read_text(Path::new(relative), &mut budget)
                .map_err(|cause| at_instruction(&name, context.line, Keyword::Context, cause))?,
        };
        contexts.push(ContextText {
            name: context.name.clone(),
            description: context.description.clone(),
            text,
        });
    }
    let mut files = Vec::new();
    for add in &agentfile.adds {
        let bytes = directory
            .read_within(Path::new(&add.src), ADD_MAX, &mut budget)
            .map_err(|cause| at_instruction(&name, add.line, Keyword::Add, cause))?;
        files.push(AddedFile { name: add.name.clone(), bytes });
    }
    Ok(Loaded { agentfile, source, contexts, files })
}

/// Loads an Agentfile that came without a directory, such as from stdin. It can name no files.
pub fn load_inline(source: &[u8], args: &BTreeMap<String, String>) -> Result<Loaded, LoadError> {
    let agentfile = parse(STDIN_NAME, source, args)?;
    let no_directory =
        |path: &str, line, keyword| LoadError::NoDirectory { path: path.into(), line, keyword };
    let mut contexts = Vec::new();
    for context in &agentfile.contexts {
        let text = match &context.source {
            ContextSource::Inline(text) => text.clone(),
            ContextSource::File(path) => return Err(no_directory(path, context.line, Keyword::Context)),
        };
        contexts.push(ContextText {
            name: context.name.clone(),
            description: context.description.clone(),
            text,
        });
    }
    if let Some(add) = agentfile.adds.first() {
        return Err(no_directory(&add.src, add.line, Keyword::Add));
    }
    Ok(Loaded { agentfile, source: source.to_owned(), contexts, files: Vec::new() })
}

/// A directory whose files may be read, and no others.
struct Directory {
    /// As the person wrote it, for messages.
    named: PathBuf,
    root: PathBuf,
}

impl Directory {
    fn open(path: &Path) -> Result<Self, LoadError> {
        let root =
            fs::canonicalize(path).map_err(|cause| LoadError::Read { path: path.to_owned(), cause })?;
        Ok(Self { named: path.to_owned(), root })
    }

    fn read_text(&self, relative: &Path, budget: &mut u64) -> Result<String, LoadError> {
        String::from_utf8(self.read_within(relative, CONTEXT_MAX, budget)?)
            .map_err(|_| LoadError::ContextNotUtf8 { path: relative.to_owned() })
    }

    /// Reads a file of at most `max` bytes and takes its size from the budget.
    fn read_within(&self, relative: &Path, max: u64, budget: &mut u64) -> Result<Vec<u8>, LoadError> {
        let bytes = self.read(relative, max.min(*budget) + 1)?;
        let size = bytes.len() as u64;
        if size > max {
            return Err(LoadError::TooLarge { path: relative.to_owned(), max });
        }
        *budget = budget
            .checked_sub(size)
            .ok_or_else(|| LoadError::TotalTooLarge { path: relative.to_owned(), max: LOAD_TOTAL_MAX })?;
        Ok(bytes)
    }

    /// Reads at most `max` bytes of a file below the directory.
    fn read(&self, relative: &Path, max: u64) -> Result<Vec<u8>, LoadError> {
        read_file(self.open_file(relative, || {})?, relative, max)
    }

    /// Opens a file below the directory. `between` runs after it was looked at and before it is opened.
    fn open_file(&self, relative: &Path, between: impl FnOnce()) -> Result<File, LoadError> {
        let failed = |cause| LoadError::Read { path: relative.to_owned(), cause };
        let real = self.resolve(relative)?;
        if !fs::symlink_metadata(&real).map_err(failed)?.is_file() {
            return Err(LoadError::NotRegular { path: relative.to_owned() });
        }
        between();
        let file = open(&real).map_err(failed)?;
        // Meanwhile a directory on the way may have become a link. What was opened must be what the name
        // leads to now, still inside.
        let again = self.resolve(relative)?;
        let (seen, opened) =
            (fs::symlink_metadata(&again).map_err(failed)?, file.metadata().map_err(failed)?);
        if (seen.dev(), seen.ino()) != (opened.dev(), opened.ino()) {
            return Err(LoadError::Exchanged { path: relative.to_owned() });
        }
        Ok(file)
    }

    fn resolve(&self, relative: &Path) -> Result<PathBuf, LoadError> {
        let real = fs::canonicalize(self.root.join(relative))
            .map_err(|cause| LoadError::Read { path: relative.to_owned(), cause })?;
        if real.starts_with(&self.root) {
            return Ok(real);
        }
        Err(LoadError::Escapes { path: relative.to_owned(), directory: self.named.clone(), target: real })
    }
}

fn at_instruction(file: &str, line: u32, keyword: Keyword, cause: LoadError) -> LoadError {
    LoadError::Instruction { file: file.to_owned(), line, keyword, cause: Box::new(cause) }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)
}

fn read_file(file: File, path: &Path, max: u64) -> Result<Vec<u8>, LoadError> {
    let failed = |cause| LoadError::Read { path: path.to_owned(), cause };
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(LoadError::NotRegular { path: path.to_owned() });
    }
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn shown_path(path: &Path) -> String {
    format!("`{}`", shown(&path.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_turned_into_a_link_while_loading_leads_nowhere_outside() {
        let base = std::env::temp_dir().join(format!("lodge-image-door-{}", std::process::id()));
        for place in ["root/door", "outside"] {
            fs::create_dir_all(base.join(place)).expect("create");
            fs::write(base.join(place).join("x"), b"x").expect("write");
        }
        let directory = Directory::open(&base.join("root")).expect("open");
        let opened = directory.open_file(Path::new("door/x"), || {
            fs::rename(base.join("root/door"), base.join("root/was-door")).expect("rename");
            std::os::unix::fs::symlink(base.join("outside"), base.join("root/door")).expect("link");
        });
        fs::remove_dir_all(&base).expect("remove");
        assert_eq!(opened.expect_err("refused").code(), "agentfile.file_outside");
    }

    #[test]
    fn a_file_exchanged_while_loading_is_noticed() {
        let base = std::env::temp_dir().join(format!("lodge-image-exchange-{}", std::process::id()));
        fs::create_dir_all(&base).expect("create");
        fs::write(base.join("real"), b"1").expect("write");
        std::os::unix::fs::symlink("real", base.join("x")).expect("link");
        let directory = Directory::open(&base).expect("open");
        let opened = directory.open_file(Path::new("x"), || {
            fs::write(base.join("new"), b"2").expect("write");
            fs::remove_file(base.join("x")).expect("unlink");
            std::os::unix::fs::symlink("new", base.join("x")).expect("link");
        });
        fs::remove_dir_all(&base).expect("remove");
        assert_eq!(opened.expect_err("refused").code(), "agentfile.file_exchanged");
    }
}
