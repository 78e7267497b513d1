//! Settings: flag, then environment, then YAML, then default; and where each value came from.
//!
//! Flags and environment are what the daemon was started with. The file may be read again: see `reload`.

mod error;
mod file;
mod formats;
mod reload;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use lodge_core::liveness::Thresholds;
use lodge_core::retry::Backoff;
use lodge_proto::ConfigValue;
use lodge_proto::state_dir::check_state_dir;
use serde_json::Value;

pub use error::ConfigError;
use file::{FileValue, Keys};
pub use formats::{ExecutorKind, LogFormat};
use lodge_engine::Settings;
pub use reload::ReloadPlan;
pub(crate) use table::edits;
use table::{SETTINGS, env_name};
pub use table::{ServeSettings, command, unknown_variables};

/// The shortest silence that can mean anything.
const STALE_MIN: Duration = Duration::from_millis(30);

/// What is in effect. A reload may change values: read those that belong together from one `settings()`.
#[derive(Debug)]
pub struct Config {
    pub data_dir: PathBuf,
    data_dir_source: SettingSource,
    given: StartArguments,
    in_effect: RwLock<Arc<AppliedSettings>>,
    /// Invalid settings of the start that were ignored.
    passed_over: Vec<String>,
}

/// What the daemon was started with.
#[derive(Debug)]
struct StartArguments {
    flags: BTreeMap<String, String>,
    /// Of the variables that are settings, or say where they are.
    env: BTreeMap<String, String>,
}

#[derive(Debug, Clone)]
struct AppliedSettings {
    file: Option<PathBuf>,
    values: Values,
    settings: Arc<ServeSettings>,
    /// Values of the file that need a restart to take effect.
    waiting: BTreeMap<&'static str, Value>,
}

/// Each setting by its name.
type Values = BTreeMap<&'static str, SettingInEffect>;

/// The value of a setting that was checked.
#[derive(Debug, Clone)]
struct SettingInEffect {
    text: String,
    /// As `info` shows it.
    shown: Value,
    source: SettingSource,
}

impl AppliedSettings {
    fn new(file: Option<PathBuf>, values: Values, waiting: BTreeMap<&'static str, Value>) -> AppliedSettings {
        let settings = ServeSettings::from_values(&values)
            .unwrap_or_else(|name| panic!("the setting {name} was checked and is here"));
        AppliedSettings { file, values, settings: Arc::new(settings), waiting }
    }

    /// Refuses settings that contradict each other.
    fn check_together(&self) -> Result<(), ConfigError> {
        if self.settings.heartbeat_crashed >= self.settings.heartbeat_stale {
            return Ok(());
        }
        let text = |name: &str| self.values.get(name).map(|setting| setting.text.clone()).unwrap_or_default();
        Err(ConfigError::BadValue {
            name: "heartbeat-crashed",
            given: text("heartbeat-crashed"),
            wanted: format!("no less than heartbeat-stale, which is {}", text("heartbeat-stale")),
            from: "settings that contradict each other".to_owned(),
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingSource {
    Flag,
    Env,
    File,
    Default,
}

impl SettingSource {
    pub(crate) fn word(self) -> &'static str {
        match self {
            SettingSource::Flag => "flag",
            SettingSource::Env => "env",
            SettingSource::File => "file",
            SettingSource::Default => "default",
        }
    }
}

impl StartArguments {
    fn new(flags: &clap::ArgMatches, env: &dyn Fn(&str) -> Option<String>) -> StartArguments {
        let flag = |name: &str| Some((name.to_owned(), flags.get_one::<String>(name)?.clone()));
        let names = SETTINGS.iter().map(|setting| setting.name);
        let places = ["LODGED_DATA_DIR", "LODGED_CONFIG", "LODGE_HOME", "HOME"].map(str::to_owned);
        let variables = names.clone().map(env_name).chain(places);
        StartArguments {
            flags: names.chain(["data-dir", "config"]).filter_map(flag).collect(),
            env: variables.filter_map(|name| Some((name.clone(), env(&name)?))).collect(),
        }
    }

    fn flag(&self, name: &str) -> Option<&String> {
        self.flags.get(name)
    }

    fn place(&self, name: &str) -> Option<PathBuf> {
        self.env.get(name).filter(|dir| !dir.is_empty()).map(PathBuf::from)
    }

    fn data_dir(&self) -> Option<(PathBuf, SettingSource)> {
        let flag = self.flag("data-dir").map(|dir| (PathBuf::from(dir), SettingSource::Flag));
        let env = || self.place("LODGED_DATA_DIR").or_else(|| self.place("LODGE_HOME"));
        flag.or_else(|| env().map(|dir| (dir, SettingSource::Env)))
    }

    /// Checks the directory where the configuration file is looked for, before one in it is read.
    fn check_place(&self) -> Result<(), ConfigError> {
        let named = self.flag("config").or_else(|| self.env.get("LODGED_CONFIG"));
        let searched = self.data_dir().map(|(dir, _)| dir).or_else(|| self.default_home());
        if let (None, Some(dir)) = (named, searched) {
            check_state_dir(&dir)?;
        }
        Ok(())
    }

    fn default_home(&self) -> Option<PathBuf> {
        self.place("HOME").map(|home| home.join(".lodge"))
    }

    /// The file as it is now, and what is in it.
    fn file(&self) -> Result<(Option<PathBuf>, Keys, Vec<ConfigError>), ConfigError> {
        let searched = self.data_dir().map(|(dir, _)| dir).or_else(|| self.default_home());
        let named = self.flag("config").or_else(|| self.env.get("LODGED_CONFIG"));
        let file = file::find_file(named.cloned(), searched.as_deref());
        let (yaml, mistakes) = file.as_deref().map(file::read_file).transpose()?.unwrap_or_default();
        Ok((file, yaml, mistakes))
    }

    /// Every setting, checked separately and together. Mistakes are reported together, with those that were found
    /// before.
    fn values(
        &self,
        file: Option<&Path>,
        yaml: &Keys,
        mut mistakes: Vec<ConfigError>,
    ) -> Result<Values, ConfigError> {
        let mut values = BTreeMap::new();
        let written_at = |written: &FileValue| file.map(|file| place(file, written.line)).unwrap_or_default();
        for setting in SETTINGS {
            let variable = env_name(setting.name);
            // Also where it does not count: it would as soon as the flag or the variable is gone.
            let written = yaml.get(setting.name);
            if let Some(written) = written
                && let Err(mistake) = setting.check(&written.value, written_at(written), SettingSource::File)
            {
                mistakes.push(mistake);
                continue;
            }
            let (given, source, from) = if let Some(given) = self.flag(setting.name) {
                (Value::from(given.clone()), SettingSource::Flag, format!("--{}", setting.name))
            } else if let Some(given) = self.env.get(&variable) {
                (Value::from(given.clone()), SettingSource::Env, variable)
            } else if let Some(written) = written {
                (written.value.clone(), SettingSource::File, written_at(written))
            } else {
                (Value::from(setting.default), SettingSource::Default, "default".to_owned())
            };
            match setting.check(&given, from, source) {
                Ok(value) => drop(values.insert(setting.name, value)),
                Err(mistake) => mistakes.push(mistake),
            }
        }
        match ConfigError::of(mistakes) {
            Some(error) => Err(error),
            None => Ok(values),
        }
    }
}

impl Config {
    /// Resolves every setting. `env` is the process environment, as an argument for tests.
    pub fn resolve(
        flags: &clap::ArgMatches,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Config, ConfigError> {
        let given = StartArguments::new(flags, env);
        given.check_place()?;
        let (file, yaml, mistakes) = given.file()?;
        let (data_dir, data_dir_source) =
            match (given.data_dir(), yaml.get("data-dir").map(|written| &written.value)) {
                (Some(early), _) => early,
                (None, Some(Value::String(dir))) => (PathBuf::from(dir), SettingSource::File),
                (None, Some(other)) => {
                    return Err(ConfigError::BadValue {
                        name: "data-dir",
                        given: other.to_string(),
                        wanted: "the path of a directory".to_owned(),
                        from: shown_path(file.as_deref()),
                    });
                }
                (None, None) => (given.default_home().ok_or(ConfigError::NoHome)?, SettingSource::Default),
            };
        let values = given.values(file.as_deref(), &yaml, mistakes)?;
        let data_dir = std::path::absolute(&data_dir).unwrap_or(data_dir);
        let in_effect = AppliedSettings::new(file, values, BTreeMap::new());
        in_effect.check_together()?;
        let in_effect = RwLock::new(Arc::new(in_effect));
        Ok(Config { data_dir, data_dir_source, given, in_effect, passed_over: Vec::new() })
    }

    /// Keeps in mind what `info` warns of.
    #[must_use]
    pub fn with_warnings(mut self, warnings: Vec<String>) -> Config {
        self.passed_over = warnings;
        self
    }

    fn in_effect(&self) -> Arc<AppliedSettings> {
        self.in_effect.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The file that is read, when there is one.
    pub fn file(&self) -> Option<PathBuf> {
        self.in_effect().file.clone()
    }

    /// Every setting that is in effect now.
    pub fn settings(&self) -> Arc<ServeSettings> {
        self.in_effect().settings.clone()
    }

    /// The settings of the engine.
    pub fn engine_settings(&self) -> Settings {
        let settings = self.settings();
        Settings {
            policy: settings.revival_policy,
            backoff: Backoff { base: settings.backoff_base, cap: settings.backoff_cap },
            max_concurrent: settings.max_concurrent,
            max_jobs: settings.max_jobs,
            job_output: settings.job_output,
        }
    }

    /// The silence after which a working process is stale, and the one after which it is killed. Never so short that
    /// checking would be the only work.
    pub fn thresholds(&self) -> Thresholds {
        let settings = self.settings();
        let stale = settings.heartbeat_stale.max(STALE_MIN);
        Thresholds { stale, crashed: settings.heartbeat_crashed.max(stale) }
    }

    pub fn socket_path(&self) -> PathBuf {
        self.data_dir.join(&self.settings().socket_path)
    }

    /// What `info` shows.
    pub fn shown(&self) -> BTreeMap<String, ConfigValue> {
        let in_effect = self.in_effect();
        let mut shown: BTreeMap<String, ConfigValue> = in_effect
            .values
            .iter()
            .map(|(name, setting)| {
                let (value, source) = (setting.shown.clone(), setting.source.word().to_owned());
                ((*name).to_owned(), ConfigValue { value, source })
            })
            .collect();
        let data_dir = Value::from(self.data_dir.display().to_string());
        let source = self.data_dir_source.word().to_owned();
        shown.insert("data-dir".to_owned(), ConfigValue { value: data_dir, source });
        shown
    }
}

/// A line of a file. None is known by 0.
fn place(file: &Path, line: u64) -> String {
    match line {
        0 => file.display().to_string(),
        line => format!("{}:{line}", file.display()),
    }
}

fn shown_path(file: Option<&Path>) -> String {
    file.map(|file| file.display().to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
