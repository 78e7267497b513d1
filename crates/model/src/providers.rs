//! `providers.yaml`: read when it changed, kept when it broke, rewritten without expanding it.
//!
//! Owns: the file, its last good copy and the last thing that was wrong with it. Never: an expanded value on
//! disk, or a value of the file in an error.

mod edit;
mod file;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::file::{FileEntry, FileVersion};
use crate::pause::RetryFor;
use crate::provider::{Provider, ProviderEntry, ProviderKind, ProviderProblem, is_variable_name};
use crate::redact::Redactor;
use crate::secret::Secret;

pub use self::file::FileError;

/// The provider that exists without being listed.
const SCRIPT: &str = "script";
pub(crate) const PROVIDERS_MAX: usize = 1000;

type EnvLookup = dyn Fn(&str) -> Option<String> + Send + Sync;

/// The configured providers. All methods look at the file first and block while they do.
pub struct Providers {
    path: PathBuf,
    lookup: Box<EnvLookup>,
    state: Mutex<LoadedProviders>,
}

#[derive(Default)]
struct LoadedProviders {
    /// What the file looked like when it was last read, if that can be relied on.
    seen: Option<FileVersion>,
    good: Option<Vec<LoadedProvider>>,
    error: Option<Arc<FileError>>,
    /// For the keys of the last good copy.
    redactor: Arc<Redactor>,
}

impl LoadedProviders {
    fn of(seen: Option<FileVersion>, loaded: Vec<LoadedProvider>) -> LoadedProviders {
        let providers = loaded.iter().filter_map(|loaded| loaded.provider.as_ref().ok());
        let keys = providers.filter_map(|provider| provider.api_key.as_ref()).map(Secret::expose);
        LoadedProviders { seen, redactor: Arc::new(Redactor::new(keys)), good: Some(loaded), error: None }
    }
}

#[derive(Clone)]
struct LoadedProvider {
    view: ProviderSummary,
    provider: Result<Arc<Provider>, ProviderProblem>,
}

/// What people may see of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderSummary {
    pub name: String,
    pub kind: ProviderKind,
    /// As written, variables not expanded.
    pub base_url: Option<String>,
    /// `${NAME}` as written, or a mask; `None` when there is no key.
    pub key: Option<String>,
    pub models: Vec<String>,
    /// None: the default.
    pub retry_for: Option<RetryFor>,
    /// It is there without standing in the file.
    pub implicit: bool,
    /// Why it cannot be called.
    pub problem: Option<ProviderProblem>,
}

/// A provider to add; values may hold `${NAME}` and are written as they are.
#[derive(Debug, Clone)]
pub struct NewProvider {
    pub name: String,
    pub kind: ProviderKind,
    pub base_url: Option<String>,
    pub api_key: Option<Secret>,
    pub models: Vec<String>,
    /// None: the default.
    pub retry_for: Option<RetryFor>,
}

/// A `<provider>/<model>` that was found.
#[derive(Debug, Clone)]
pub struct ResolvedModel {
    pub provider: Arc<Provider>,
    pub model: String,
    /// For the keys of the file that the provider was read from, its own among them.
    pub redactor: Arc<Redactor>,
}

#[derive(Debug, thiserror::Error)]
pub enum ProvidersError {
    #[error(transparent)]
    File(Arc<FileError>),
    #[error(transparent)]
    Problem(ProviderProblem),
    #[error("`{model}` does not name a model")]
    BadModelName { model: String },
    #[error("there is no provider `{name}`")]
    NotFound { name: String, known: Vec<String> },
    #[error("provider `{provider}` does not list the model `{model}`")]
    ModelNotListed { provider: String, model: String, listed: Vec<String> },
    #[error("there is a provider `{name}` already")]
    Exists { name: String },
    #[error("`{name}` cannot be the name of a provider")]
    BadName { name: String },
    #[error("there are {PROVIDERS_MAX} providers already")]
    TooMany,
    #[error("could not write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
}

impl ProvidersError {
    pub fn code(&self) -> &'static str {
        match self {
            Self::File(error) => error.code(),
            Self::Problem(problem) => problem.code(),
            Self::BadModelName { .. } => "model.bad_name",
            Self::NotFound { .. } => "provider.not_found",
            Self::ModelNotListed { .. } => "model.not_listed",
            Self::Exists { .. } => "provider.exists",
            Self::BadName { .. } => "provider.bad_name",
            Self::TooMany => "provider.too_many",
            Self::Write { .. } => "provider.write_failed",
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::File(error) => error.hint(),
            Self::Problem(problem) => problem.hint(),
            Self::BadModelName { .. } => Some("write `<provider>/<model>`".to_owned()),
            Self::NotFound { known, .. } => Some(format!("known providers: {}", known.join(", "))),
            Self::ModelNotListed { listed, .. } => Some(format!("it lists: {}", listed.join(", "))),
            Self::Exists { name } => Some(format!("run `lodge provider rm {name}` first")),
            Self::BadName { .. } => Some(
                "up to 64 letters, digits, `.`, `_` and `-`, beginning with a letter or digit".to_owned(),
            ),
            Self::TooMany => Some("remove one first".to_owned()),
            Self::Write { .. } => None,
        }
    }
}

impl Providers {
    /// Reads nothing yet. Variables come from this process's environment.
    pub fn open(path: impl Into<PathBuf>) -> Self {
        Self::with_variables(path, |name| std::env::var(name).ok())
    }

    pub fn with_variables(
        path: impl Into<PathBuf>,
        lookup: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self { path: path.into(), lookup: Box::new(lookup), state: Mutex::default() }
    }

    /// Finds `<provider>/<model>`; only the first `/` splits.
    pub fn resolve(&self, model: &str) -> Result<ResolvedModel, ProvidersError> {
        let (name, model) = model
            .split_once('/')
            .filter(|(name, model)| !name.is_empty() && !model.is_empty())
            .ok_or_else(|| ProvidersError::BadModelName { model: model.to_owned() })?;
        let state = self.refreshed();
        let provider = state.provider(name)?;
        if !provider.models.is_empty() && !provider.models.iter().any(|listed| listed == model) {
            return Err(ProvidersError::ModelNotListed {
                provider: name.to_owned(),
                model: model.to_owned(),
                listed: provider.models.clone(),
            });
        }
        Ok(ResolvedModel { provider, model: model.to_owned(), redactor: state.redactor.clone() })
    }

    pub fn get(&self, name: &str) -> Result<Arc<Provider>, ProvidersError> {
        self.refreshed().provider(name)
    }

    /// All providers in the order of the file, from the last good copy if the file is broken now.
    pub fn list(&self) -> Result<Vec<ProviderSummary>, ProvidersError> {
        let state = self.refreshed();
        Ok(state.current()?.iter().map(|loaded| loaded.view.clone()).collect())
    }

    /// What is wrong with the file now, although the last good copy may be in use.
    pub fn last_error(&self) -> Option<Arc<FileError>> {
        self.refreshed().error.clone()
    }

    /// Finds the keys of all providers in texts.
    pub fn redactor(&self) -> Arc<Redactor> {
        self.refreshed().redactor.clone()
    }

    /// Writes a provider to the file; it is on disk when this returns.
    pub fn add(&self, new: &NewProvider) -> Result<(), ProvidersError> {
        if !file::is_provider_name(&new.name) {
            return Err(ProvidersError::BadName { name: new.name.clone() });
        }
        let entry = FileEntry::from(new);
        let written = entry.written();
        // One by one, so that a variable which is set later does not hide a mistake that would stay.
        for part in [ProviderEntry { api_key: None, ..written }, ProviderEntry { base_url: None, ..written }]
        {
            match Provider::expand(part, &self.lookup) {
                Ok(_) | Err(ProviderProblem::VariableUnset { .. }) => {}
                Err(problem) => return Err(ProvidersError::Problem(problem)),
            }
        }
        self.rewrite(|text, entries| {
            if entries.iter().any(|entry| entry.name == new.name) {
                return Err(ProvidersError::Exists { name: new.name.clone() });
            }
            if entries.len() >= PROVIDERS_MAX {
                return Err(ProvidersError::TooMany);
            }
            Ok(edit::with_added(text, entries, entry))
        })
    }

    /// Takes a provider out of the file; that is on disk when this returns.
    pub fn remove(&self, name: &str) -> Result<(), ProvidersError> {
        let known = self.refreshed().current()?.to_vec();
        self.rewrite(|text, entries| match entries.iter().position(|entry| entry.name == name) {
            Some(place) => Ok(edit::with_removed(text, entries, place)),
            None => Err(not_found(name, &known)),
        })
    }

    /// Reads the file again, refuses an invalid one, and replaces it with the result of `change`.
    fn rewrite(
        &self,
        change: impl FnOnce(&str, &[FileEntry]) -> Result<String, ProvidersError>,
    ) -> Result<(), ProvidersError> {
        let mut state = self.locked();
        let read = file::read(&self.path).map_err(|error| ProvidersError::File(Arc::new(error)))?;
        let (text, entries) = read.map_or_else(Default::default, |read| (read.text, read.entries));
        let text = change(&text, &entries)?;
        if text.len() as u64 > file::FILE_BYTES_MAX {
            return Err(ProvidersError::File(Arc::new(FileError::TooLarge { path: self.path.clone() })));
        }
        state.seen = None;
        edit::replace(&self.path, &text)
            .map_err(|cause| ProvidersError::Write { path: self.path.clone(), cause })?;
        drop(state);
        // What was written is the last good copy from now on, also if the next use finds the file broken.
        drop(self.refreshed());
        Ok(())
    }

    fn locked(&self) -> MutexGuard<'_, LoadedProviders> {
        // The state is replaced field by field with whole values; after a panic it is at worst out of date.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refreshed(&self) -> MutexGuard<'_, LoadedProviders> {
        let mut state = self.locked();
        if state.seen.is_some() && state.seen == FileVersion::of(&self.path) {
            return state;
        }
        match file::read(&self.path) {
            Ok(None) => {
                let loaded = self.load(&[]);
                *state = LoadedProviders::of(None, loaded);
            }
            Ok(Some(read)) => {
                let loaded = self.load(&read.entries);
                *state = LoadedProviders::of(read.seen, loaded);
            }
            // The last good copy stays, and the next use looks again.
            Err(error) => {
                state.seen = None;
                state.error = Some(Arc::new(error));
            }
        }
        state
    }

    fn load(&self, entries: &[FileEntry]) -> Vec<LoadedProvider> {
        let mut loaded: Vec<_> = entries.iter().map(|entry| self.load_one(entry, false)).collect();
        if !entries.iter().any(|entry| entry.name == SCRIPT) {
            let implicit = FileEntry { name: SCRIPT.to_owned(), ..FileEntry::blank(ProviderKind::Script) };
            loaded.push(self.load_one(&implicit, true));
        }
        loaded
    }

    fn load_one(&self, entry: &FileEntry, implicit: bool) -> LoadedProvider {
        let provider = Provider::expand(entry.written(), &self.lookup);
        let view = ProviderSummary {
            name: entry.name.clone(),
            kind: entry.kind,
            base_url: entry.base_url.clone(),
            key: entry.api_key.as_ref().map(mask),
            models: entry.models.clone(),
            retry_for: entry.settings.retry_for,
            implicit,
            problem: provider.as_ref().err().cloned(),
        };
        LoadedProvider { view, provider: provider.map(Arc::new) }
    }
}

impl std::fmt::Debug for Providers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Providers").field("path", &self.path).finish_non_exhaustive()
    }
}

impl LoadedProviders {
    fn current(&self) -> Result<&[LoadedProvider], ProvidersError> {
        match (&self.good, &self.error) {
            (Some(good), _) => Ok(good),
            (None, Some(error)) => Err(ProvidersError::File(Arc::clone(error))),
            (None, None) => Ok(&[]),
        }
    }

    fn provider(&self, name: &str) -> Result<Arc<Provider>, ProvidersError> {
        let loaded = self.current()?;
        match loaded.iter().find(|loaded| loaded.view.name == name) {
            Some(found) => found.provider.clone().map_err(ProvidersError::Problem),
            None => Err(not_found(name, loaded)),
        }
    }
}

fn not_found(name: &str, loaded: &[LoadedProvider]) -> ProvidersError {
    let known = loaded.iter().map(|loaded| loaded.view.name.clone()).collect();
    ProvidersError::NotFound { name: name.to_owned(), known }
}

/// The name of a variable is not secret. For a key in the file, the end of a long key helps to identify it.
fn mask(key: &Secret) -> String {
    const SHOWN_WHEN_LONGER_THAN: usize = 20;
    let text = key.expose();
    let variable = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    if variable.is_some_and(is_variable_name) {
        return text.to_owned();
    }
    let length = text.chars().count();
    if length <= SHOWN_WHEN_LONGER_THAN || text.contains("${") {
        return "…".to_owned();
    }
    format!("…{}", text.chars().skip(length - 4).collect::<String>())
}
