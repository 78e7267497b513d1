//! An Agentfile together with everything it names: its parents, and the files of all of them.
//!
//! Owns: the chain of parents and what of it is flattened. Never: decides which images there are, or what of the
//! language is carried out (see [`Builder`]).

mod error;
mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use self::error::FileFaults;
pub use self::error::LoadError;
use self::files::{FileId, NamedBy, OpenedAgentfile, SourceDirectory};
use super::bounds::{ADD_MAX, CONTEXT_MAX, LOAD_TOTAL_MAX, PARENTS_MAX};
use super::document::{Agentfile, BinSource, ContextSource, Keyed, Located, Parent, put_all};
use super::error::{AgentfileError, AgentfileErrors};
use super::merge::merge;
use super::mistake::{FileMistake, FormMistake};
use super::parse::{ParsedAgentfile, parse_all};

const STDIN_NAME: &str = "stdin";

/// Everything an image is made of, parents included; nothing in it has to be read again.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoadedAgentfile {
    /// Flattened.
    pub agentfile: Agentfile,
    /// The Agentfile as it was written, without its parents.
    pub source: Vec<u8>,
    /// The value of FROM; `None` for `scratch`.
    pub from: Option<String>,
    /// The NAME of this file, not of a parent.
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

/// What an image of others holds beside its Agentfile, by the names in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PackedFiles {
    pub contexts: BTreeMap<String, String>,
    pub files: BTreeMap<String, Vec<u8>>,
}

/// What a build needs from its caller.
pub trait Builder {
    /// The image of that name; `None` when there is none.
    fn image(
        &self,
        reference: &str,
    ) -> Result<Option<LoadedAgentfile>, Box<dyn std::error::Error + Send + Sync>>;

    /// The tool that a BIN or RUNTIME names, as that very one from now on: `name:tag@sha256:…`. `None` when there is none.
    fn pin(&self, reference: &str) -> Result<Option<String>, Box<dyn std::error::Error + Send + Sync>>;

    /// The instructions of one Agentfile that have no effect: their lines and keywords.
    fn refuses(&self, agentfile: &Agentfile) -> Vec<(u32, &'static str)>;

    /// Why a program of the host cannot be used. `None` if it can, or if the image is built for other hosts.
    fn missing_program(&self, _program: &str) -> Option<String> {
        None
    }
}

/// Loads the Agentfile at `path`, a directory that has one or the file itself, with its parents and every file that
/// they name.
///
/// Paths in a file are relative to its directory. Those of CONTEXT and ADD cannot leave it; FROM may name a parent
/// anywhere.
pub fn load_dir(
    path: &Path,
    args: &BTreeMap<String, String>,
    builder: &dyn Builder,
) -> Result<LoadedAgentfile, LoadError> {
    let found = files::find(path, &path.to_string_lossy()).map_err(LoadError::Source)?;
    let place = shorten_path(match found.by {
        NamedBy::Directory => path,
        NamedBy::File => path.parent().unwrap_or(Path::new("")),
    });
    let level = ChainLevel {
        name: place.join(&found.name).to_string_lossy().into_owned(),
        source: found.source,
        identity: Some(found.identity),
        files: ChainFiles::Directory(found.directory),
        place,
    };
    Loader::new(args, builder).load(level)
}

/// Loads an Agentfile that came without a directory, such as from stdin. It can name no files.
pub fn load_inline(
    source: &[u8],
    args: &BTreeMap<String, String>,
    builder: &dyn Builder,
) -> Result<LoadedAgentfile, LoadError> {
    let level = ChainLevel {
        name: STDIN_NAME.to_owned(),
        source: source.to_owned(),
        identity: None,
        files: ChainFiles::Nowhere,
        place: PathBuf::new(),
    };
    Loader::new(args, builder).load(level)
}

/// Loads an Agentfile out of an image that was not flattened, with the files that the image holds.
pub fn load_packed(
    source: &[u8],
    files: PackedFiles,
    builder: &dyn Builder,
) -> Result<LoadedAgentfile, LoadError> {
    let level = ChainLevel {
        name: files::FILE_NAME.to_owned(),
        source: source.to_owned(),
        identity: None,
        files: ChainFiles::Packed(files),
        place: PathBuf::new(),
    };
    Loader::new(&BTreeMap::new(), builder).load(level)
}

/// Loads and checks a chain from the child upwards.
struct Loader<'a> {
    args: &'a BTreeMap<String, String>,
    builder: &'a dyn Builder,
    /// How many more bytes of files may be read.
    budget: u64,
    /// The chain so far: how each Agentfile is called, and which file it is.
    chain: Vec<(String, Option<FileId>)>,
    declared: BTreeSet<String>,
    /// Of every file that was read, one list after the other.
    errors: Vec<AgentfileError>,
    /// The lines whose programs this host lacks. They are mistakes only beside others: an image without other mistakes is
    /// built, and may run on another host.
    missing: Vec<AgentfileError>,
}

/// One Agentfile of a chain, before it is parsed.
struct ChainLevel {
    /// How messages call it.
    name: String,
    source: Vec<u8>,
    identity: Option<FileId>,
    files: ChainFiles,
    /// The directory as it was named, for the names of parents.
    place: PathBuf,
}

/// Where the files are that an Agentfile names.
enum ChainFiles {
    Nowhere,
    Directory(SourceDirectory),
    Packed(PackedFiles),
}

/// The parent of an Agentfile.
enum ChainParent {
    Nothing,
    Level(ChainLevel),
    Image(Box<LoadedAgentfile>),
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
            missing: Vec::new(),
        }
    }

    fn load(mut self, child: ChainLevel) -> Result<LoadedAgentfile, LoadError> {
        let source = child.source.clone();
        let mut levels: Vec<LoadedAgentfile> = Vec::new();
        let mut next = Some(child);
        while let Some(level) = next.take() {
            self.chain.push((level.name.clone(), level.identity));
            let ParsedAgentfile { mut agentfile, errors } = parse_all(&level.name, &level.source, self.args);
            self.find_missing_programs(&level.name, &agentfile);
            if let Some(mistakes) = errors {
                self.errors.extend(mistakes.iter().cloned());
                break;
            }
            self.declared.extend(agentfile.args.iter().map(|arg| arg.key.clone()));
            let mut faults = FileFaults::new(&level.name);
            for (line, what) in self.builder.refuses(&agentfile) {
                faults.add(line, 1, FormMistake::Unsupported { what });
            }
            self.pin(&mut agentfile, &mut faults);
            let (contexts, files) = self.files(&agentfile, &level.files, &mut faults);
            match self.above(&level, &agentfile.from) {
                Ok(ChainParent::Nothing) => {}
                Ok(ChainParent::Level(parent)) => next = Some(parent),
                Ok(ChainParent::Image(image)) => {
                    levels.push(LoadedAgentfile { agentfile, contexts, files, ..LoadedAgentfile::default() });
                    levels.push(*image);
                    self.errors.extend(faults.sorted());
                    break;
                }
                Err(mistake) => faults.add(agentfile.from.line, agentfile.from.column, mistake),
            }
            self.errors.extend(faults.sorted());
            levels.push(LoadedAgentfile { agentfile, contexts, files, ..LoadedAgentfile::default() });
        }
        if let Some(errors) = AgentfileErrors::of(self.all_mistakes()) {
            return Err(LoadError::Mistakes(errors));
        }
        let unknown: Vec<String> =
            self.args.keys().filter(|key| !self.declared.contains(*key)).cloned().collect();
        if !unknown.is_empty() {
            return Err(LoadError::UndeclaredArgs { unknown, declared: self.declared.into_iter().collect() });
        }
        Ok(flatten(levels, source))
    }

    fn find_missing_programs(&mut self, file: &str, agentfile: &Agentfile) {
        for bin in &agentfile.bins {
            let BinSource::Host(program) = &bin.source else { continue };
            let Some(why) = self.builder.missing_program(program) else { continue };
            let why = format!("BIN {}: {why}", bin.name);
            let mistake = FileMistake::NoProgram { why }.into();
            self.missing.push(AgentfileError { file: file.to_owned(), line: bin.line, column: 1, mistake });
        }
    }

    /// Every mistake, in the order of the chain and of the lines.
    fn all_mistakes(&mut self) -> Vec<AgentfileError> {
        let mut errors = std::mem::take(&mut self.errors);
        if errors.is_empty() || self.missing.is_empty() {
            return errors;
        }
        errors.append(&mut self.missing);
        let place = |file: &str| self.chain.iter().position(|(name, _)| name == file);
        errors.sort_by_key(|error| (place(&error.file), error.line, error.column));
        errors
    }

    /// Lets the tools of one Agentfile be those that their names mean now.
    fn pin(&self, agentfile: &mut Agentfile, faults: &mut FileFaults) {
        let runtime = agentfile.runtime.iter_mut().map(|at| (at.line, at.column, &mut at.value));
        let bins = agentfile.bins.iter_mut().map(|bin| (bin.line, 1, &mut bin.source));
        for (line, column, source) in runtime.chain(bins) {
            let BinSource::Image(reference) = source else { continue };
            let image = reference.clone();
            match self.builder.pin(&image) {
                Ok(Some(pinned)) => *reference = pinned,
                Ok(None) => faults.add(line, column, FileMistake::NoBin { image }),
                Err(cause) => {
                    faults.add(line, column, FileMistake::BinUnreadable { image, why: cause.to_string() });
                }
            }
        }
    }

    /// The texts and files of one Agentfile. A missing one is a fault, and the others are still checked.
    fn files(
        &mut self,
        agentfile: &Agentfile,
        from: &ChainFiles,
        faults: &mut FileFaults,
    ) -> (Vec<ContextText>, Vec<AddedFile>) {
        let mut contexts = Vec::new();
        for context in &agentfile.contexts {
            let text = match &context.source {
                ContextSource::Inline(text) => Ok(text.clone()),
                ContextSource::File(path) => {
                    let read = from.text(&context.name, &path.value, &mut self.budget);
                    read.map_err(|mistake| (path.line, path.column, mistake))
                }
            };
            let (name, description) = (context.name.clone(), context.description.clone());
            match text {
                Ok(text) => contexts.push(ContextText { name, description, text }),
                Err((line, column, mistake)) => faults.add(line, column, mistake),
            }
        }
        let mut files = Vec::new();
        for add in &agentfile.adds {
            let bytes = from
                .bytes(&add.name, &add.src.value, &mut self.budget)
                .map_err(|mistake| (add.src.line, add.src.column, mistake));
            match bytes {
                Ok(bytes) => files.push(AddedFile { name: add.name.clone(), bytes }),
                Err((line, column, mistake)) => faults.add(line, column, mistake),
            }
        }
        (contexts, files)
    }

    fn above(&mut self, level: &ChainLevel, from: &Located<Parent>) -> Result<ChainParent, FileMistake> {
        match &from.value {
            Parent::Scratch => Ok(ChainParent::Nothing),
            Parent::Path(path) => {
                let ChainFiles::Directory(directory) = &level.files else {
                    return Err(FileMistake::NoDirectory { path: path.clone() });
                };
                let found = files::find(&directory.join(path), path)?;
                self.parent_on_disk(level, path, found).map(ChainParent::Level)
            }
            Parent::Image(reference) => {
                self.parent_image(reference).map(|image| ChainParent::Image(Box::new(image)))
            }
        }
    }

    fn parent_on_disk(
        &self,
        level: &ChainLevel,
        path: &str,
        found: OpenedAgentfile,
    ) -> Result<ChainLevel, FileMistake> {
        let path = level.place.join(path);
        let place = shorten_path(match found.by {
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
        let files = ChainFiles::Directory(found.directory);
        Ok(ChainLevel { name, source: found.source, identity: Some(found.identity), files, place })
    }

    fn parent_image(&mut self, reference: &str) -> Result<LoadedAgentfile, FileMistake> {
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

impl ChainFiles {
    /// The text of a CONTEXT, which is in the file at `path`.
    fn text(&self, context: &str, path: &str, budget: &mut u64) -> Result<String, FileMistake> {
        match self {
            ChainFiles::Nowhere => Err(FileMistake::NoDirectory { path: path.to_owned() }),
            ChainFiles::Directory(directory) => directory.read_text(path, budget),
            ChainFiles::Packed(packed) => {
                let text = packed.contexts.get(context).ok_or_else(|| not_packed(path))?;
                spend(text.len(), path, CONTEXT_MAX, budget)?;
                Ok(text.clone())
            }
        }
    }

    /// The file that ADD calls `name`, which is the one at `path`.
    fn bytes(&self, name: &str, path: &str, budget: &mut u64) -> Result<Vec<u8>, FileMistake> {
        match self {
            ChainFiles::Nowhere => Err(FileMistake::NoDirectory { path: path.to_owned() }),
            ChainFiles::Directory(directory) => directory.read_within(path, ADD_MAX, budget),
            ChainFiles::Packed(packed) => {
                let bytes = packed.files.get(name).ok_or_else(|| not_packed(path))?;
                spend(bytes.len(), path, ADD_MAX, budget)?;
                Ok(bytes.clone())
            }
        }
    }
}

fn not_packed(path: &str) -> FileMistake {
    FileMistake::Unreadable { path: path.to_owned(), why: "the image has no layer for it".to_owned() }
}

/// Takes the size of a file from what may be read, unless it is too large by itself.
fn spend(bytes: usize, path: &str, max: u64, budget: &mut u64) -> Result<(), FileMistake> {
    let (path, bytes) = (path.to_owned(), bytes as u64);
    if bytes > max {
        return Err(FileMistake::TooLarge { path, max });
    }
    *budget = budget.checked_sub(bytes).ok_or(FileMistake::TotalTooLarge { path, max: LOAD_TOTAL_MAX })?;
    Ok(())
}

/// The chain as one, the newest over the oldest.
fn flatten(levels: Vec<LoadedAgentfile>, source: Vec<u8>) -> LoadedAgentfile {
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
    LoadedAgentfile { source, from, own_name, parents, ..flat }
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
fn shorten_path(path: &Path) -> PathBuf {
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
