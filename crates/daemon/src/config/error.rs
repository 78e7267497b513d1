//! What can be wrong with settings, and the way out.

use std::path::PathBuf;

use lodge_proto::state_dir::StateDirError;

use super::place;
use super::table::SETTINGS;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("unknown key `{key}` in {}:{line}", file.display())]
    UnknownKey { file: PathBuf, line: u64, key: String, near: Option<&'static str> },
    #[error("`{key}` is at the top level of {}:{line}", file.display())]
    AtTop { file: PathBuf, line: u64, key: String },
    #[error("could not read {}", file.display())]
    Unreadable {
        file: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("{} is not valid YAML", place(file, *line))]
    BadYaml { file: PathBuf, line: u64, detail: &'static str },
    #[error("`{given}` does not fit {name} ({from})")]
    BadValue { name: &'static str, given: String, wanted: String, from: String },
    #[error("no home directory: neither --data-dir, LODGED_DATA_DIR, LODGE_HOME nor HOME is set")]
    NoHome,
    /// Nothing in the state directory is read, the configuration file included.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// Each with its own way out.
    #[error("{}", listed(mistakes))]
    Several { mistakes: Vec<ConfigError> },
}

impl ConfigError {
    pub(super) fn of(mut mistakes: Vec<ConfigError>) -> Option<ConfigError> {
        match mistakes.len() {
            0 | 1 => mistakes.pop(),
            _ => Some(ConfigError::Several { mistakes }),
        }
    }

    /// A wrong setting is bad usage; a directory that is not trusted is a refusal.
    pub fn exit_code(&self) -> u8 {
        if matches!(self, ConfigError::StateDir(_)) { 1 } else { 2 }
    }

    pub fn hint(&self) -> String {
        match self {
            ConfigError::UnknownKey { near: Some(near), .. } => format!("did you mean `{near}`?"),
            ConfigError::UnknownKey { near: None, .. } => {
                let known: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
                format!("keys below `serve:` are {}", known.join(", "))
            }
            ConfigError::AtTop { .. } => "put it under `serve:`".to_owned(),
            ConfigError::Several { .. } => "fix these and try again".to_owned(),
            ConfigError::Unreadable { .. } => "check the path given with --config".to_owned(),
            ConfigError::BadYaml { detail, .. } => (*detail).to_owned(),
            ConfigError::BadValue { wanted, .. } => format!("expected {wanted}"),
            ConfigError::StateDir(error) => error.hint(),
            ConfigError::NoHome => "set LODGE_HOME to a directory for Lodge's state".to_owned(),
        }
    }
}

fn listed(mistakes: &[ConfigError]) -> String {
    let told = mistakes.iter().map(|mistake| format!("{mistake}: {}", mistake.hint()));
    told.collect::<Vec<_>>().join("\n")
}
