//! Settings: flag, then environment, then YAML, then default; and where each value came from.
//!
//! Flags and environment are what the daemon was started with. The file may be read again: see `reload`.

mod file;
mod reload;
mod table;
mod values;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use lodge_core::limits::JOB_OUTPUT_BYTES;
use lodge_core::lineage::Policy;
use lodge_core::liveness::Thresholds;
use lodge_core::retry::Backoff;
use lodge_proto::ConfigValue;
use lodge_proto::state_dir::{StateDirError, check_state_dir};
use serde_json::Value;

use file::{Keys, Written};
use lodge_engine::Settings;
pub use reload::Reread;
pub(crate) use table::edits;
use table::{SETTINGS, env_name};
pub use table::{command, unknown_variables};

/// The shortest silence that can mean anything.
const STALE_MIN: Duration = Duration::from_millis(30);

/// What is in effect. Values may be another after a reload: whoever needs several that belong together asks at once.
#[derive(Debug)]
pub struct Config {
    pub data_dir: PathBuf,
    data_dir_source: Source,
    given: Given,
    in_effect: RwLock<Arc<InEffect>>,
    /// What was wrong with what it was started with, and was passed over.
    passed_over: Vec<String>,
}

/// What the daemon was started with.
#[derive(Debug)]
struct Given {
    flags: BTreeMap<String, String>,
    /// Of the variables that are settings, or say where they are.
    env: BTreeMap<String, String>,
}

#[derive(Debug, Clone)]
struct InEffect {
    file: Option<PathBuf>,
    values: Values,
    /// What the file says and only a restart brings.
    waiting: BTreeMap<&'static str, Value>,
}

/// Each value with its source.
type Values = BTreeMap<&'static str, (Value, Source)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Flag,
    Env,
    File,
    Default,
}

impl Source {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Source::Flag => "flag",
            Source::Env => "env",
            Source::File => "file",
            Source::Default => "default",
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("unknown key `{key}` in {}:{line}", file.display())]
    UnknownKey { file: PathBuf, line: u64, key: String, near: Option<&'static str> },
    #[error("`{key}` stands at the top of {}:{line}", file.display())]
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
    fn of(mut mistakes: Vec<ConfigError>) -> Option<ConfigError> {
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
            ConfigError::Several { .. } => "mend these, and try again".to_owned(),
            ConfigError::Unreadable { .. } => "check the path given with --config".to_owned(),
            ConfigError::BadYaml { detail, .. } => (*detail).to_owned(),
            ConfigError::BadValue { wanted, .. } => format!("expected {wanted}"),
            ConfigError::StateDir(error) => error.hint(),
            ConfigError::NoHome => "set LODGE_HOME to a directory for Lodge's state".to_owned(),
        }
    }
}

impl Given {
    fn new(flags: &clap::ArgMatches, env: &dyn Fn(&str) -> Option<String>) -> Given {
        let flag = |name: &str| Some((name.to_owned(), flags.get_one::<String>(name)?.clone()));
        let names = SETTINGS.iter().map(|setting| setting.name);
        let places = ["LODGED_DATA_DIR", "LODGED_CONFIG", "LODGE_HOME", "HOME"].map(str::to_owned);
        let variables = names.clone().map(env_name).chain(places);
        Given {
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

    fn data_dir(&self) -> Option<(PathBuf, Source)> {
        let flag = self.flag("data-dir").map(|dir| (PathBuf::from(dir), Source::Flag));
        let env = || self.place("LODGED_DATA_DIR").or_else(|| self.place("LODGE_HOME"));
        flag.or_else(|| env().map(|dir| (dir, Source::Env)))
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

    /// Every setting, checked one by one and together. What is wrong is told at once, with what was found before.
    fn values(
        &self,
        file: Option<&Path>,
        yaml: &Keys,
        mut mistakes: Vec<ConfigError>,
    ) -> Result<Values, ConfigError> {
        let mut values = BTreeMap::new();
        let written_at = |written: &Written| file.map(|file| place(file, written.line)).unwrap_or_default();
        for setting in SETTINGS {
            let variable = env_name(setting.name);
            // Also where it does not count: it would as soon as the flag or the variable is gone.
            let written = yaml.get(setting.name);
            if let Some(written) = written
                && let Err(mistake) = values::check(setting, &written.value, written_at(written))
            {
                mistakes.push(mistake);
                continue;
            }
            let (given, source, from) = if let Some(given) = self.flag(setting.name) {
                (Value::from(given.clone()), Source::Flag, format!("--{}", setting.name))
            } else if let Some(given) = self.env.get(&variable) {
                (Value::from(given.clone()), Source::Env, variable)
            } else if let Some(written) = written {
                (written.value.clone(), Source::File, written_at(written))
            } else {
                (Value::from(setting.default), Source::Default, "default".to_owned())
            };
            match values::check(setting, &given, from) {
                Ok(value) => drop(values.insert(setting.name, (value, source))),
                Err(mistake) => mistakes.push(mistake),
            }
        }
        if let Some(error) = ConfigError::of(mistakes) {
            return Err(error);
        }
        let text = |name| text_of(&values, name);
        if span_of(&values, "heartbeat-crashed") < span_of(&values, "heartbeat-stale") {
            return Err(ConfigError::BadValue {
                name: "heartbeat-crashed",
                given: text("heartbeat-crashed"),
                wanted: format!("no less than heartbeat-stale, which is {}", text("heartbeat-stale")),
                from: "settings that contradict each other".to_owned(),
            });
        }
        Ok(values)
    }
}

impl Config {
    /// Resolves every setting. `env` is the process environment, as an argument for tests.
    pub fn resolve(
        flags: &clap::ArgMatches,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Config, ConfigError> {
        let given = Given::new(flags, env);
        given.check_place()?;
        let (file, yaml, mistakes) = given.file()?;
        let (data_dir, data_dir_source) =
            match (given.data_dir(), yaml.get("data-dir").map(|written| &written.value)) {
                (Some(early), _) => early,
                (None, Some(Value::String(dir))) => (PathBuf::from(dir), Source::File),
                (None, Some(other)) => {
                    return Err(ConfigError::BadValue {
                        name: "data-dir",
                        given: other.to_string(),
                        wanted: "the path of a directory".to_owned(),
                        from: shown_path(file.as_deref()),
                    });
                }
                (None, None) => (given.default_home().ok_or(ConfigError::NoHome)?, Source::Default),
            };
        let values = given.values(file.as_deref(), &yaml, mistakes)?;
        let data_dir = std::path::absolute(&data_dir).unwrap_or(data_dir);
        let in_effect = RwLock::new(Arc::new(InEffect { file, values, waiting: BTreeMap::new() }));
        Ok(Config { data_dir, data_dir_source, given, in_effect, passed_over: Vec::new() })
    }

    /// Keeps in mind what `info` warns of.
    #[must_use]
    pub fn with_warnings(mut self, warnings: Vec<String>) -> Config {
        self.passed_over = warnings;
        self
    }

    fn in_effect(&self) -> Arc<InEffect> {
        self.in_effect.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The file that is read, when there is one.
    pub fn file(&self) -> Option<PathBuf> {
        self.in_effect().file.clone()
    }

    pub fn text(&self, name: &str) -> String {
        text_of(&self.in_effect().values, name)
    }

    pub fn flag(&self, name: &str) -> bool {
        value_of(&self.in_effect().values, name).as_bool().unwrap_or_default()
    }

    pub fn span(&self, name: &str) -> Duration {
        span_of(&self.in_effect().values, name)
    }

    /// A number of bytes; none when it is off.
    pub fn size(&self, name: &str) -> Option<u64> {
        values::parse_size(&self.text(name))
    }

    /// A duration; none when it is off.
    pub fn span_unless_off(&self, name: &str) -> Option<Duration> {
        values::parse_span(&self.text(name))
    }

    fn count(&self, name: &str) -> usize {
        let count = value_of(&self.in_effect().values, name).as_u64();
        count.and_then(|count| usize::try_from(count).ok()).unwrap_or(1)
    }

    /// What the engine is told.
    pub fn settings(&self) -> Settings {
        let backoff = Backoff { base: self.span("backoff-base"), cap: self.span("backoff-cap") };
        Settings {
            policy: self.policy(),
            backoff,
            max_concurrent: self.count("max-concurrent"),
            max_jobs: self.count("max-jobs"),
            job_output: self.size("job-output").unwrap_or(JOB_OUTPUT_BYTES),
        }
    }

    /// What happens to the work of a process that died, where its agent does not say.
    pub fn policy(&self) -> Policy {
        Policy::from_word(&self.text("revival-policy")).unwrap_or(Policy::Revive)
    }

    /// From which silence on a working process is stale, and beyond which it is killed. Never so short that looking
    /// would be all that is done.
    pub fn thresholds(&self) -> Thresholds {
        let values = &self.in_effect().values;
        let stale = span_of(values, "heartbeat-stale").max(STALE_MIN);
        Thresholds { stale, crashed: span_of(values, "heartbeat-crashed").max(stale) }
    }

    pub fn list(&self, name: &str) -> Vec<String> {
        let in_effect = self.in_effect();
        let items = value_of(&in_effect.values, name).as_array().into_iter().flatten();
        items.filter_map(|item| item.as_str().map(str::to_owned)).collect()
    }

    /// A path setting, resolved against the state directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.data_dir.join(self.text(name))
    }

    /// What `info` shows.
    pub fn shown(&self) -> BTreeMap<String, ConfigValue> {
        let in_effect = self.in_effect();
        let mut shown: BTreeMap<String, ConfigValue> = in_effect
            .values
            .iter()
            .map(|(name, (value, source))| {
                ((*name).to_owned(), ConfigValue { value: value.clone(), source: source.word().to_owned() })
            })
            .collect();
        let data_dir = Value::from(self.data_dir.display().to_string());
        let source = self.data_dir_source.word().to_owned();
        shown.insert("data-dir".to_owned(), ConfigValue { value: data_dir, source });
        shown
    }
}

fn value_of<'v>(values: &'v Values, name: &str) -> &'v Value {
    values.get(name).map_or(&Value::Null, |(value, _)| value)
}

fn text_of(values: &Values, name: &str) -> String {
    value_of(values, name).as_str().unwrap_or_default().to_owned()
}

fn span_of(values: &Values, name: &str) -> Duration {
    values::parse_span(&text_of(values, name)).unwrap_or_default()
}

/// A line of a file. None is known by 0.
fn place(file: &Path, line: u64) -> String {
    match line {
        0 => file.display().to_string(),
        line => format!("{}:{line}", file.display()),
    }
}

fn listed(mistakes: &[ConfigError]) -> String {
    let told = mistakes.iter().map(|mistake| format!("{mistake}: {}", mistake.hint()));
    told.collect::<Vec<_>>().join("\n")
}

fn shown_path(file: Option<&Path>) -> String {
    file.map(|file| file.display().to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(flags: &[&str], env: &[(&str, &str)], yaml: Option<&str>) -> Result<Config, String> {
        let dir = tempfile::tempdir().unwrap();
        if let Some(yaml) = yaml {
            std::fs::write(dir.path().join("lodged.yaml"), yaml).unwrap();
        }
        let mut words = vec!["serve"];
        words.extend(flags);
        let matches = command().try_get_matches_from(words).map_err(|error| error.to_string())?;
        let mut env: BTreeMap<String, String> = env.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        env.entry("LODGE_HOME".into()).or_insert_with(|| dir.path().display().to_string());
        Config::resolve(&matches, &|name| env.get(name).cloned())
            .map_err(|error| format!("{error}; {}", error.hint()))
    }

    #[test]
    fn a_flag_beats_the_environment_beats_the_file_beats_the_default() {
        let yaml = Some("serve:\n  shutdown-timeout: 7s\n  backoff-base: 3s\n  max-jobs: 4\n");
        let env = [("LODGED_SHUTDOWN_TIMEOUT", "8s"), ("LODGED_BACKOFF_BASE", "2s")];
        let config = resolve(&["--shutdown-timeout", "9s"], &env, yaml).unwrap();
        let shown = config.shown();
        let of = |name: &str| (shown[name].value.to_string(), shown[name].source.clone());
        assert_eq!(of("shutdown-timeout"), ("\"9s\"".into(), "flag".into()));
        assert_eq!(of("backoff-base"), ("\"2s\"".into(), "env".into()));
        assert_eq!(of("max-jobs"), ("4".into(), "file".into()));
        assert_eq!(of("backoff-cap"), ("\"30s\"".into(), "default".into()));
    }

    #[test]
    fn every_mistake_names_what_was_expected() {
        for (yaml, wanted) in [
            ("serve:\n  shutdown-timeuot: 1s\n", "did you mean `shutdown-timeout`?"),
            ("serve:\n  executor: podman\n", "expected system or docker"),
            ("serve:\n  max-jobs: none\n", "a whole number from 1"),
            ("serve:\n  backoff-base: soon\n", "a duration such as"),
            ("serve:\n  job-output: large\n", "a size such as"),
            ("serve:\n  job-retention-age: 0s\n", "off, or a duration"),
            ("serve:\n  job-retention-bytes: 0\n", "off, or a size"),
            ("serve:\n  socket-path:\n", "a plain value"),
            ("serve:\n  socket-path: \"\"\n", "a path"),
            ("serve:\n  http-addr: nonsense\n", "ADDRESS:PORT, such as"),
            ("serve:\n  http-addr: :5500\n", "ADDRESS:PORT, such as"),
            ("serve:\n  http-addr: localhost:70000\n", "ADDRESS:PORT, such as"),
            ("serve:\n  heartbeat-stale: 2m\n", "no less than heartbeat-stale, which is 2m"),
            ("serve:\n  allowed-origins: [1, {}]\n", "a plain value"),
            ("serve: [\n", "not valid YAML"),
            ("servers: {}\n", "unknown key `servers`"),
            ("serve:\n  max-jobs: 1\nmax-concurrent: 4\n", "lodged.yaml:3; put it under `serve:`"),
            ("serve:\n  no-ui: yes\n  executor: podman\n", "lodged.yaml:3); expected system"),
            ("serve:\n  executor: \"system\n\n  no-ui: true\n", "look at the indentation"),
            ("serve:\n  max-jobs: 1\n  max-jobs: 2\n", "a key is there twice"),
        ] {
            let error = resolve(&[], &[], Some(yaml)).unwrap_err();
            assert!(error.contains(wanted), "{yaml:?} gave: {error}");
        }
    }

    #[test]
    fn every_mistake_of_the_file_is_told_at_once_with_its_line_and_its_way_out() {
        let yaml = "serve:\n  max-jobs: many\n  flavour: x\n  executor: podman\nlog-level: info\n";
        let error = resolve(&[], &[], Some(yaml)).unwrap_err();
        for told in [
            "lodged.yaml:2): expected a whole number from 1",
            "unknown key `flavour` in",
            "lodged.yaml:3: keys below",
            "lodged.yaml:4): expected system or docker",
            "lodged.yaml:5: put it under `serve:`",
        ] {
            assert!(error.contains(told), "{told} is missing: {error}");
        }
    }

    #[test]
    fn sizes_are_powers_of_1024_and_retention_may_be_off() {
        let yaml = "serve:\n  job-output: 512k\n  job-keep-free: 2g\n  job-retention-age: 30d\n";
        let config = resolve(&[], &[], Some(yaml)).unwrap();
        assert_eq!(config.settings().job_output, 512 << 10);
        assert_eq!(config.size("job-keep-free"), Some(2 << 30));
        assert_eq!(config.span_unless_off("job-retention-age"), Some(Duration::from_secs(30 * 86_400)));
        assert_eq!(config.size("job-retention-bytes"), None);
    }

    #[test]
    fn a_flag_names_the_state_directory_before_every_other_place() {
        let env = [("LODGED_DATA_DIR", "/b"), ("LODGE_HOME", "/c")];
        assert_eq!(resolve(&["--data-dir", "/a"], &env, None).unwrap().data_dir, Path::new("/a"));
        assert_eq!(resolve(&[], &env, None).unwrap().data_dir, Path::new("/b"));
        assert_eq!(resolve(&[], &env[1..], None).unwrap().data_dir, Path::new("/c"));
    }

    #[test]
    fn what_is_read_again_counts_only_once_it_is_swapped_and_a_restart_is_named_where_it_is_needed() {
        let dir = tempfile::tempdir().unwrap();
        let put = |yaml: &str| std::fs::write(dir.path().join("lodged.yaml"), yaml).unwrap();
        let home = dir.path().display().to_string();
        let matches = command().try_get_matches_from(["serve", "--max-jobs", "3"]).unwrap();
        let config = Config::resolve(&matches, &|name| (name == "LODGE_HOME").then(|| home.clone())).unwrap();
        assert_eq!((config.settings().max_concurrent, config.file()), (10, None));
        put("serve:\n  max-concurrent: 4\n  max-jobs: 9\n  http-addr: 127.0.0.1:1\n");
        let reread = config.reread().unwrap();
        assert_eq!(config.settings().max_concurrent, 10);
        let keys = |list: &[lodge_proto::SettingChange]| -> Vec<String> {
            list.iter().map(|change| change.key.clone()).collect()
        };
        assert_eq!(keys(&reread.told.changed), ["max-concurrent"]);
        assert_eq!(keys(&reread.told.needs_restart), ["http-addr"]);
        assert_eq!(
            (reread.told.overridden[0].key.as_str(), reread.told.overridden[0].by.as_str()),
            ("max-jobs", "flag")
        );
        config.swap(reread);
        assert_eq!(config.settings().max_concurrent, 4);
        assert_eq!(config.text("http-addr"), "127.0.0.1:5500", "it is bound");
        assert!(config.warnings()[0].contains("http-addr"), "{:?}", config.warnings());
        put("serve:\n  max-concurrent: 5\n  max-jobs: many\n");
        assert!(config.reread().is_err(), "a mistake counts also where a flag goes before it");
        assert_eq!(config.settings().max_concurrent, 4);
    }

    #[test]
    fn a_variable_that_is_no_setting_is_told_with_what_was_meant() {
        let names =
            ["LODGED_MAX_JOB", "LODGED_CRASH_AT", "LODGED_MAX_JOBS", "LODGE_HOME", "LODGED_X", "PATH"];
        let told = unknown_variables(names.map(str::to_owned).into_iter());
        let words = ["LODGED_MAX_JOB is no setting; did you mean LODGED_MAX_JOBS?", "LODGED_X is no setting"];
        assert_eq!(told, words);
    }
}
