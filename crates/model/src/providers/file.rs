//! Reads `providers.yaml`: its permissions, its contents, and the position of a mistake.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::{NewProvider, PROVIDERS_MAX};
use crate::pause::{RetryFor, ScriptPause};
use crate::prices::Price;
use crate::provider::{ProviderEntry, ProviderKind, ProviderSettings, Timeouts};
use crate::secret::Secret;
use crate::yaml::{self, YamlFault, YamlProblem};

pub(crate) const FILE_BYTES_MAX: u64 = 1 << 20;
/// A file changed this recently may change again without its times telling.
const CLOCK_GRAIN: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("could not read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("{} can be read by others (mode {mode:04o})", path.display())]
    Mode { path: PathBuf, mode: u32 },
    #[error("{} is not a regular file", path.display())]
    NotRegular { path: PathBuf },
    #[error("{} is larger than {FILE_BYTES_MAX} bytes", path.display())]
    TooLarge { path: PathBuf },
    #[error("{}:{line}:{column}: {problem}", path.display())]
    Invalid { path: PathBuf, line: u64, column: u64, problem: YamlProblem },
}

impl FileError {
    pub fn code(&self) -> &'static str {
        match self {
            Self::Read { .. } => "providers.unreadable",
            Self::Mode { .. } => "providers.mode",
            Self::NotRegular { .. } => "providers.not_regular",
            Self::TooLarge { .. } => "providers.too_large",
            Self::Invalid { .. } => "providers.invalid",
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Mode { path, .. } => Some(format!("run `chmod 600 {}`", path.display())),
            Self::Invalid { problem: YamlProblem::Syntax | YamlProblem::Misaligned { .. }, .. } => Some(
                "align the keys of one provider below each other, with spaces and not tabs: \
                 `  - name: work`, and below `name` its `kind`, `api-key` and other keys"
                    .to_owned(),
            ),
            Self::Read { .. } | Self::NotRegular { .. } | Self::TooLarge { .. } | Self::Invalid { .. } => {
                None
            }
        }
    }
}

/// A provider as the file has it.
#[derive(Debug, Clone)]
pub(crate) struct FileEntry {
    pub(crate) name: String,
    pub(crate) kind: ProviderKind,
    pub(crate) base_url: Option<String>,
    pub(crate) api_key: Option<Secret>,
    pub(crate) models: Vec<String>,
    pub(crate) settings: ProviderSettings,
    /// Where it begins, counted from 1; 0 when it is not in a file.
    pub(crate) line: u64,
}

impl PartialEq for FileEntry {
    /// The place in the file is not part of what an entry says.
    fn eq(&self, other: &Self) -> bool {
        let what = |entry: &Self| (entry.name.clone(), entry.base_url.clone(), entry.models.clone());
        self.kind == other.kind
            && self.api_key == other.api_key
            && self.settings == other.settings
            && what(self) == what(other)
    }
}

impl FileEntry {
    pub(crate) fn blank(kind: ProviderKind) -> Self {
        Self {
            name: String::new(),
            kind,
            base_url: None,
            api_key: None,
            models: Vec::new(),
            settings: ProviderSettings::default(),
            line: 0,
        }
    }

    pub(crate) fn written(&self) -> ProviderEntry<'_> {
        ProviderEntry {
            name: &self.name,
            kind: self.kind,
            base_url: self.base_url.as_deref(),
            api_key: self.api_key.as_ref(),
            models: &self.models,
            settings: &self.settings,
        }
    }
}

impl From<&NewProvider> for FileEntry {
    fn from(new: &NewProvider) -> Self {
        Self {
            name: new.name.clone(),
            kind: new.kind,
            base_url: new.base_url.clone(),
            api_key: new.api_key.clone(),
            models: new.models.clone(),
            settings: ProviderSettings { retry_for: new.retry_for, ..ProviderSettings::default() },
            line: 0,
        }
    }
}

/// Distinguishes versions of a file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileVersion {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    /// Also moves when the mode is repaired.
    changed: (i64, i64),
}

impl FileVersion {
    pub(crate) fn of(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().map(|metadata| Self::from(&metadata))
    }

    fn is_settled(self, now: SystemTime) -> bool {
        let changed =
            UNIX_EPOCH + Duration::new(self.changed.0.max(0).unsigned_abs(), self.changed.1.max(0) as u32);
        now.duration_since(changed).is_ok_and(|age| age > CLOCK_GRAIN)
    }
}

impl From<&Metadata> for FileVersion {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// A file that was read.
#[derive(Debug)]
pub(crate) struct ProviderFile {
    pub(crate) text: String,
    pub(crate) entries: Vec<FileEntry>,
    /// Absent when the file is so young that it must be read again next time.
    pub(crate) seen: Option<FileVersion>,
}

/// The file's entries; `None` when there is no file.
pub(crate) fn read(path: &Path) -> Result<Option<ProviderFile>, FileError> {
    let failed = |cause| FileError::Read { path: path.to_owned(), cause };
    let mut file = match open(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(failed(cause)),
    };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(FileError::NotRegular { path: path.to_owned() });
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(FileError::Mode { path: path.to_owned(), mode });
    }
    let mut text = Vec::new();
    file.by_ref().take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(FileError::TooLarge { path: path.to_owned() });
    }
    let text = String::from_utf8(text)
        .map_err(|_| failed(io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text")))?;
    let entries = parse(&text).map_err(|YamlFault { line, column, problem }| FileError::Invalid {
        path: path.to_owned(),
        line,
        column,
        problem,
    })?;
    let seen = Some(FileVersion::from(&metadata)).filter(|seen| seen.is_settled(SystemTime::now()));
    Ok(Some(ProviderFile { text, entries, seen }))
}

/// Opens without blocking: if the path is a pipe, the daemon must not block.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(path)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawProviderFile {
    providers: Option<Vec<Spanned<RawProvider>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawProvider {
    name: Spanned<String>,
    kind: Spanned<String>,
    base_url: Option<String>,
    api_key: Option<Secret>,
    models: Option<Vec<String>>,
    connect_timeout: Option<Spanned<ScriptPause>>,
    first_byte_timeout: Option<Spanned<ScriptPause>>,
    idle_timeout: Option<Spanned<ScriptPause>>,
    retry_for: Option<RetryFor>,
    prices: Option<BTreeMap<String, Spanned<RawPrice>>>,
    context_windows: Option<BTreeMap<String, Spanned<u64>>>,
}

/// Dollars for a million tokens.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawPrice {
    input: f64,
    output: f64,
    /// The default is the price of other input.
    cached: Option<f64>,
    cache_write: Option<f64>,
}

pub(crate) fn parse(text: &str) -> Result<Vec<FileEntry>, YamlFault> {
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(Vec::new());
    }
    let raw: RawProviderFile =
        yaml::parse(text).map_err(|fault| misaligned(text, &fault).unwrap_or(fault))?;
    let mut entries: Vec<FileEntry> = Vec::new();
    for item in raw.providers.unwrap_or_default() {
        let line = item.referenced.line();
        let entry = entry(item.value, line)?;
        if entries.iter().any(|earlier| earlier.name == entry.name) {
            return Err(unusable(line, 0, format!("there are two providers `{}`", entry.name)));
        }
        if entries.len() >= PROVIDERS_MAX {
            return Err(unusable(line, 0, format!("more than {PROVIDERS_MAX} providers")));
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// A key that a provider lacks because it is indented less or more than the provider's other keys.
fn misaligned(text: &str, fault: &YamlFault) -> Option<YamlFault> {
    let YamlProblem::MissingKey { key } = fault.problem else { return None };
    let entry = usize::try_from(fault.line).ok()?;
    let is_key = |line: &str| line.trim_start().strip_prefix(key).is_some_and(|rest| rest.starts_with(':'));
    let of_entry =
        text.lines().enumerate().skip(entry).take_while(|(_, line)| !line.trim_start().starts_with('-'));
    let (at, line) = of_entry.into_iter().find(|(_, line)| is_key(line))?;
    let column = line.len() - line.trim_start().len() + 1;
    Some(YamlFault {
        line: at as u64 + 1,
        column: column as u64,
        problem: YamlProblem::Misaligned { key, entry: fault.line },
    })
}

fn entry(raw: RawProvider, line: u64) -> Result<FileEntry, YamlFault> {
    let at = raw.kind.referenced;
    let kind = ProviderKind::named(&raw.kind.value).ok_or_else(|| YamlFault {
        line: at.line(),
        column: at.column(),
        problem: YamlProblem::unknown_word(
            Some("kind"),
            &raw.kind.value,
            ProviderKind::ALL.map(ProviderKind::as_str).to_vec(),
        ),
    })?;
    let at = raw.name.referenced;
    if !is_provider_name(&raw.name.value) {
        return Err(unusable(at.line(), at.column(), "this cannot be the name of a provider".to_owned()));
    }
    let settings = ProviderSettings {
        timeouts: Timeouts {
            connect: timeout(raw.connect_timeout)?,
            first_byte: timeout(raw.first_byte_timeout)?,
            idle: timeout(raw.idle_timeout)?,
        },
        retry_for: raw.retry_for,
        prices: each(raw.prices, price)?,
        context_windows: each(raw.context_windows, |tokens: &u64| (*tokens > 0).then_some(*tokens))?,
    };
    Ok(FileEntry {
        name: raw.name.value,
        kind,
        base_url: raw.base_url,
        api_key: raw.api_key,
        models: raw.models.unwrap_or_default(),
        settings,
        line,
    })
}

fn timeout(raw: Option<Spanned<ScriptPause>>) -> Result<Option<Duration>, YamlFault> {
    match raw {
        Some(raw) if raw.value.0.is_zero() => {
            let at = raw.referenced;
            Err(unusable(at.line(), at.column(), "a time limit of nothing lets nothing through".to_owned()))
        }
        raw => Ok(raw.map(|raw| raw.value.0)),
    }
}

/// Every value of a map by model, checked.
fn each<R, T>(
    raw: Option<BTreeMap<String, Spanned<R>>>,
    checked: impl Fn(&R) -> Option<T>,
) -> Result<BTreeMap<String, T>, YamlFault> {
    raw.unwrap_or_default()
        .into_iter()
        .map(|(model, raw)| match checked(&raw.value) {
            Some(value) => Ok((model, value)),
            None => {
                let at = raw.referenced;
                let why = "expected amounts from 0 to 1000000, and windows of at least one token";
                Err(unusable(at.line(), at.column(), why.to_owned()))
            }
        })
        .collect()
}

fn price(raw: &RawPrice) -> Option<Price> {
    const DOLLARS_MAX: f64 = 1e6;
    let micro = |dollars: f64| (0.0..=DOLLARS_MAX).contains(&dollars).then(|| (dollars * 1e6).round() as u64);
    let input = micro(raw.input)?;
    Some(Price {
        input,
        output: micro(raw.output)?,
        cached: raw.cached.map_or(Some(input), micro)?,
        cache_write: raw.cache_write.map_or(Some(input), micro)?,
    })
}

fn unusable(line: u64, column: u64, why: String) -> YamlFault {
    YamlFault { line, column, problem: YamlProblem::Unusable { why } }
}

pub(crate) fn is_provider_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}
