//! `lodged.yaml`: where it is, and which keys it has.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_saphyr::Spanned;

use super::ConfigError;
use super::table::{SETTINGS, nearest};

/// A value of the file, and its line.
#[derive(Debug, Clone)]
pub(super) struct FileValue {
    pub value: Value,
    pub line: u64,
}

/// The keys below `serve:`, and `data-dir`.
pub(super) type Keys = BTreeMap<String, FileValue>;

#[derive(Deserialize)]
struct Sections {
    serve: Option<BTreeMap<String, Spanned<Value>>>,
}

pub(super) fn find_file(named: Option<String>, home: Option<&Path>) -> Option<PathBuf> {
    if let Some(named) = named {
        return Some(PathBuf::from(named));
    }
    let user = home.map(|home| home.join("lodged.yaml"));
    [user, Some(PathBuf::from("/etc/lodge/lodged.yaml"))].into_iter().flatten().find(|path| path.exists())
}

/// The contents of the file. Unknown keys are returned too, so that they are reported with all other mistakes.
pub(super) fn read_file(file: &Path) -> Result<(Keys, Vec<ConfigError>), ConfigError> {
    let text = std::fs::read_to_string(file)
        .map_err(|cause| ConfigError::Unreadable { file: file.to_owned(), cause })?;
    let (mut keys, mut mistakes) = (Keys::new(), Vec::new());
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok((keys, mistakes));
    }
    if !parse::<Value>(file, &text)?.is_object() {
        return Err(bad_shape(file, 1, "expected `serve:` with keys below it"));
    }
    let top: BTreeMap<String, Spanned<Value>> = parse(file, &text)?;
    for (key, written) in top {
        let line = written.referenced.line();
        match (key.as_str(), written.value) {
            ("serve", Value::Object(_) | Value::Null) => {}
            ("serve", _) => return Err(bad_shape(file, line, "expected keys below `serve:`")),
            ("data-dir", value) => drop(keys.insert(key, FileValue { value, line })),
            (name, _) if is_setting(name) => {
                mistakes.push(ConfigError::AtTop { file: file.to_owned(), line, key });
            }
            (_, _) => mistakes.push(unknown(file, line, key)),
        }
    }
    let Sections { serve } = parse(file, &text)?;
    for (key, written) in serve.unwrap_or_default() {
        let line = written.referenced.line();
        if key == "data-dir" || is_setting(&key) {
            keys.insert(key, FileValue { value: written.value, line });
        } else {
            mistakes.push(unknown(file, line, key));
        }
    }
    Ok((keys, mistakes))
}

fn is_setting(key: &str) -> bool {
    SETTINGS.iter().any(|setting| setting.name == key)
}

fn unknown(file: &Path, line: u64, key: String) -> ConfigError {
    let near = nearest(&key);
    ConfigError::UnknownKey { file: file.to_owned(), line, key, near }
}

fn bad_shape(file: &Path, line: u64, detail: &'static str) -> ConfigError {
    ConfigError::BadYaml { file: file.to_owned(), line, detail }
}

fn parse<T: DeserializeOwned>(file: &Path, text: &str) -> Result<T, ConfigError> {
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let line = error.location().map_or(0, |at| at.line());
        let detail = match error {
            serde_saphyr::Error::DuplicateMappingKey { .. } => "a key is there twice",
            // The library's list is open, and its words are for programmers.
            _ => "look at the indentation, the quotes and the brackets on that line and before it",
        };
        bad_shape(file, line, detail)
    })
}
