//! An Agentfile together with everything it names: its parents, and the files of all of them.
//!
//! Owns: the chain of parents and what of it is flattened. Never: decides which images there are, or what of the
//! language is carried out (see [`Builder`]).

mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use self::files::{Directory, Found, Identity, NamedBy};
use super::bounds::{ADD_MAX, ERRORS_MAX, LOAD_TOTAL_MAX, PARENTS_MAX};
use super::document::{Agentfile, At, ContextSource, Keyed, Parent, put_all};
use super::error::{Error, Errors, shown};
use super::merge::merge;
use super::mistake::{BoundMistake, FileMistake, FormMistake, Mistake};
use super::parse::parse;

const STDIN_NAME: &str = "stdin";

/// Everything an image is made of, parents included; nothing in it has to be read again.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Loaded {
    /// Flattened.
    pub agentfile: Agentfile,
    /// The Agentfile as it was written, without its parents.
    pub source: Vec<u8>,
    /// What its FROM said; `None` for `scratch`.
    pub from: Option<String>,
    /// The NAME that stands in it, and not in a parent.
    pub own_name: Option<String>,
    /// How many parents were flattened into it.
    pub parents: usize,
    /// Every CONTEXT with its text, in the order of the prompt.
    pub contexts: Vec<ContextText>,
    /// Every ADD file.
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

/// What a build asks of whoever wants it.
pub trait Builder {
    /// The local image of that name; `None` when there is none.
    fn image(&self, reference: &str) -> Result<Option<Loaded>, Box<dyn std::error::Error + Send + Sync>>;

    /// What of one Agentfile is not carried out: its lines, and what stands there.
    fn refuses(&self, agentfile: &Agentfile) -> Vec<(u32, &'static str)>;
}

/// Why an Agentfile could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The Agentfile itself cannot be had.
    #[error("{0}")]
    Source(FileMistake),
    /// Every mistake of it, and of its parents on disk.
    #[error(transparent)]
    Mistakes(#[from] Errors),
    #[error("no ARG declares {}", listed(unknown))]
    UndeclaredArgs { unknown: Vec<String>, declared: Vec<String> },
}

impl LoadError {
    /// The code; that of the first mistake when the Agentfile itself is wrong.
    pub fn code(&self) -> &'static str {
        match self {
            LoadError::Source(mistake) => mistake.code(),
            LoadError::Mistakes(errors) => errors.first().code(),
            LoadError::UndeclaredArgs { .. } => "agentfile.undeclared_arg",
        }
    }

    pub fn hint(&self) -> String {
        match self {
            LoadError::Source(FileMistake::NoAgentfile { .. }) => {
                format!("name a directory with a file called `{}`, or the file itself", files::FILE_NAME)
            }
            LoadError::Source(FileMistake::NotRegular { .. }) => {
                "name a plain file; to read an Agentfile from a pipe, pass `-`".to_owned()
            }
            LoadError::Source(mistake) => mistake.hint(),
            LoadError::Mistakes(errors) => errors.first().hint(),
            LoadError::UndeclaredArgs { declared, .. } if declared.is_empty() => {
                "the Agentfile has no ARG: add `ARG key=default`, or leave the build argument out".to_owned()
            }
            LoadError::UndeclaredArgs { declared, .. } => {
                format!("these are declared: {}", listed(declared))
            }
        }
    }
}

/// Loads the Agentfile at `path`, a directory that has one or the file itself, with its parents and every file that
/// they name.
///
/// Paths in a file are relative to the directory it stands in. Those of CONTEXT and ADD cannot leave it; FROM may name
/// a parent anywhere.
pub fn load_dir(
    path: &Path,
    args: &BTreeMap<String, String>,
    builder: &dyn Builder,
) -> Result<Loaded, LoadError> {
    let found = files::find(path, &path.to_string_lossy()).map_err(LoadError::Source)?;
    let place = tidy(match found.by {
        NamedBy::Directory => path,
        NamedBy::File => path.parent().unwrap_or(Path::new("")),
    });
    let level = Level {
        name: place.join(&found.name).to_string_lossy().into_owned(),
        source: found.source,
        identity: Some(found.identity),
        directory: Some(found.directory),
        place,
    };
    Loader::new(args, builder).load(level)
}

/// Loads an Agentfile that came without a directory, such as from stdin. It can name no files.
pub fn load_inline(
    source: &[u8],
    args: &BTreeMap<String, String>,
    builder: &dyn Builder,
) -> Result<Loaded, LoadError> {
    let level = Level {
        name: STDIN_NAME.to_owned(),
        source: source.to_owned(),
        identity: None,
        directory: None,
        place: PathBuf::new(),
    };
    Loader::new(args, builder).load(level)
}

/// Loads and checks a chain from the child upwards.
struct Loader<'a> {
    args: &'a BTreeMap<String, String>,
    builder: &'a dyn Builder,
    /// How many more bytes of files may be read.
    budget: u64,
    /// The chain so far: how each Agentfile is called, and which file it is.
    chain: Vec<(String, Option<Identity>)>,
    declared: BTreeSet<String>,
    /// Of every file that was read, one list after the other.
    errors: Vec<Error>,
}

/// One Agentfile of a chain, before it is parsed.
struct Level {
    /// How messages call it.
    name: String,
    source: Vec<u8>,
    identity: Option<Identity>,
    directory: Option<Directory>,
    /// The directory as it was named, for the names of parents.
    place: PathBuf,
}

/// What stands above an Agentfile.
enum Above {
    Nothing,
    Level(Level),
    Image(Box<Loaded>),
}

impl<'a> Loader<'a> {
    fn new(args: &'a BTreeMap<String, String>, builder: &'a dyn Builder) -> Self {
        Loader {
            args,
            builder,
            budget: LOAD_TOTAL_MAX,
            chain: Vec::new(),
            declared: BTreeSet::new(),
            errors: Vec::new(),
        }
    }

    fn load(mut self, child: Level) -> Result<Loaded, LoadError> {
        let source = child.source.clone();
        let mut levels: Vec<Loaded> = Vec::new();
        let mut next = Some(child);
        while let Some(level) = next.take() {
            self.chain.push((level.name.clone(), level.identity));
            let agentfile = match parse(&level.name, &level.source, self.args) {
                Ok(agentfile) => agentfile,
                Err(mistakes) => {
                    self.errors.extend(mistakes.iter().cloned());
                    break;
                }
            };
            self.declared.extend(agentfile.args.iter().map(|arg| arg.key.clone()));
            let mut faults = Faults::new(&level.name);
            for (line, what) in self.builder.refuses(&agentfile) {
                faults.add(line, 1, FormMistake::Unsupported { what });
            }
            let (contexts, files) = self.files(&agentfile, level.directory.as_ref(), &mut faults);
            match self.above(&level, &agentfile.from) {
                Ok(Above::Nothing) => {}
                Ok(Above::Level(parent)) => next = Some(parent),
                Ok(Above::Image(image)) => {
                    levels.push(Loaded { agentfile, contexts, files, ..Loaded::default() });
                    levels.push(*image);
                    self.errors.extend(faults.sorted());
                    break;
                }
                Err(mistake) => faults.add(agentfile.from.line, agentfile.from.column, mistake),
            }
            self.errors.extend(faults.sorted());
            levels.push(Loaded { agentfile, contexts, files, ..Loaded::default() });
        }
        if let Some(errors) = Errors::of(self.errors) {
            return Err(LoadError::Mistakes(errors));
        }
        let unknown: Vec<String> =
            self.args.keys().filter(|key| !self.declared.contains(*key)).cloned().collect();
        if !unknown.is_empty() {
            return Err(LoadError::UndeclaredArgs { unknown, declared: self.declared.into_iter().collect() });
        }
        Ok(flatten(levels, source))
    }

    /// The texts and files of one Agentfile. What cannot be had is a fault, and the rest is still looked at.
    fn files(
        &mut self,
        agentfile: &Agentfile,
        directory: Option<&Directory>,
        faults: &mut Faults,
    ) -> (Vec<ContextText>, Vec<AddedFile>) {
        let mut contexts = Vec::new();
        for context in &agentfile.contexts {
            let text = match (&context.source, directory) {
                (ContextSource::Inline(text), _) => Ok(text.clone()),
                (ContextSource::File(path), Some(directory)) => directory
                    .read_text(&path.value, &mut self.budget)
                    .map_err(|mistake| (path.line, path.column, mistake)),
                (ContextSource::File(path), None) => Err(no_directory(path)),
            };
            let (name, description) = (context.name.clone(), context.description.clone());
            match text {
                Ok(text) => contexts.push(ContextText { name, description, text }),
                Err((line, column, mistake)) => faults.add(line, column, mistake),
            }
        }
        let mut files = Vec::new();
        for add in &agentfile.adds {
            let bytes = match directory {
                Some(directory) => directory
                    .read_within(&add.src.value, ADD_MAX, &mut self.budget)
                    .map_err(|mistake| (add.src.line, add.src.column, mistake)),
                None => Err(no_directory(&add.src)),
            };
            match bytes {
                Ok(bytes) => files.push(AddedFile { name: add.name.clone(), bytes }),
                Err((line, column, mistake)) => faults.add(line, column, mistake),
            }
        }
        (contexts, files)
    }

    fn above(&mut self, level: &Level, from: &At<Parent>) -> Result<Above, FileMistake> {
        match &from.value {
            Parent::Scratch => Ok(Above::Nothing),
            Parent::Path(path) => {
                let directory =
                    level.directory.as_ref().ok_or(FileMistake::NoDirectory { path: path.clone() })?;
                let found = files::find(&directory.join(path), path)?;
                self.parent_on_disk(level, path, found).map(Above::Level)
            }
            Parent::Image(reference) => {
                self.parent_image(reference).map(|image| Above::Image(Box::new(image)))
            }
        }
    }

    fn parent_on_disk(&self, level: &Level, path: &str, found: Found) -> Result<Level, FileMistake> {
        let path = level.place.join(path);
        let place = tidy(match found.by {
            NamedBy::Directory => &path,
            NamedBy::File => path.parent().unwrap_or(Path::new("")),
        });
        let name = place.join(&found.name).to_string_lossy().into_owned();
        if let Some(first) = self.chain.iter().position(|(_, id)| *id == Some(found.identity)) {
            let mut names: Vec<String> = self.chain[first..].iter().map(|(name, _)| name.clone()).collect();
            names.push(name);
            return Err(FileMistake::Cycle { names });
        }
        self.check_depth(&name, 0)?;
        let directory = Some(found.directory);
        Ok(Level { name, source: found.source, identity: Some(found.identity), directory, place })
    }

    fn parent_image(&mut self, reference: &str) -> Result<Loaded, FileMistake> {
        let image = || reference.to_owned();
        let found = self
            .builder
            .image(reference)
            .map_err(|cause| FileMistake::ImageUnreadable { image: image(), why: cause.to_string() })?
            .ok_or_else(|| FileMistake::NoImage { image: image() })?;
        self.check_depth(reference, found.parents)?;
        let files: usize = found.files.iter().map(|file| file.bytes.len()).sum();
        let texts: usize = found.contexts.iter().map(|context| context.text.len()).sum();
        self.budget = self
            .budget
            .checked_sub((files + texts) as u64)
            .ok_or_else(|| FileMistake::TotalTooLarge { path: image(), max: LOAD_TOTAL_MAX })?;
        Ok(found)
    }

    /// Refuses a parent that would make the chain too long; `above` are those it has itself.
    fn check_depth(&self, name: &str, above: usize) -> Result<(), FileMistake> {
        if self.chain.len() + above <= PARENTS_MAX {
            return Ok(());
        }
        let mut names: Vec<String> = self.chain.iter().map(|(name, _)| name.clone()).collect();
        names.push(name.to_owned());
        if above > 0 {
            names.push(format!("{above} more"));
        }
        Err(FileMistake::TooDeep { names, max: PARENTS_MAX })
    }
}

/// The mistakes of one file, which are told in the order of its lines.
struct Faults {
    file: String,
    found: Vec<Error>,
}

impl Faults {
    fn new(file: &str) -> Self {
        Faults { file: file.to_owned(), found: Vec::new() }
    }

    fn add(&mut self, line: u32, column: u32, mistake: impl Into<Mistake>) {
        let mistake = match self.found.len() {
            ..ERRORS_MAX => mistake.into(),
            ERRORS_MAX => BoundMistake::Errors { max: ERRORS_MAX }.into(),
            _ => return,
        };
        self.found.push(Error { file: self.file.clone(), line, column, mistake });
    }

    fn sorted(mut self) -> Vec<Error> {
        self.found.sort_by_key(|error| (error.line, error.column));
        self.found
    }
}

fn no_directory(path: &At<String>) -> (u32, u32, FileMistake) {
    (path.line, path.column, FileMistake::NoDirectory { path: path.value.clone() })
}

/// The chain as one, the newest over the oldest.
fn flatten(levels: Vec<Loaded>, source: Vec<u8>) -> Loaded {
    let from = levels.first().and_then(|child| match &child.agentfile.from.value {
        Parent::Scratch => None,
        Parent::Path(from) | Parent::Image(from) => Some(from.clone()),
    });
    let own_name = levels.first().and_then(|child| child.agentfile.name.clone()).map(|name| name.value);
    let parents = levels.len().saturating_sub(1) + levels.last().map_or(0, |oldest| oldest.parents);
    let mut chain = levels.into_iter().rev();
    let mut flat = chain.next().unwrap_or_default();
    for child in chain {
        flat.agentfile = merge(flat.agentfile, child.agentfile);
        put_all(&mut flat.contexts, child.contexts);
        put_all(&mut flat.files, child.files);
    }
    Loaded { source, from, own_name, parents, ..flat }
}

impl Keyed for ContextText {
    fn key(&self) -> &str {
        &self.name
    }
}

impl Keyed for AddedFile {
    fn key(&self) -> &str {
        &self.name
    }
}

/// A path as short as its text allows, for people.
fn tidy(path: &Path) -> PathBuf {
    let mut short = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(short.components().next_back(), Some(Component::Normal(_))) => {
                short.pop();
            }
            Component::ParentDir | Component::Normal(_) | Component::RootDir | Component::Prefix(_) => {
                short.push(part);
            }
        }
    }
    short
}

fn listed(words: &[String]) -> String {
    words.iter().map(|word| format!("`{}`", shown(word))).collect::<Vec<_>>().join(", ")
}
