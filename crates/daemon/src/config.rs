//! Settings: flag, then environment, then YAML, then default; and where each value came from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lodge_core::lineage::Policy;
use lodge_core::liveness::Thresholds;
use lodge_proto::ConfigValue;
use serde_json::Value;

/// The shortest silence that can mean anything.
const STALE_MIN: Duration = Duration::from_millis(30);

/// One setting of `lodged serve`.
struct Setting {
    /// The flag without dashes, and the YAML key below `serve:`.
    name: &'static str,
    default: &'static str,
    shape: Shape,
    help: &'static str,
}

#[derive(Clone, Copy)]
enum Shape {
    Text,
    Path,
    Flag,
    Count,
    Span,
    OneOf(&'static [&'static str]),
    List,
    LogFilter,
}

const SETTINGS: &[Setting] = &[
    Setting {
        name: "executor",
        default: "system",
        shape: Shape::OneOf(&["system", "docker"]),
        help: "how agents are run",
    },
    Setting {
        name: "socket-path",
        default: "lodge.sock",
        shape: Shape::Path,
        help: "the Unix socket; relative to the state directory",
    },
    Setting {
        name: "http-addr",
        default: "127.0.0.1:5500",
        shape: Shape::Text,
        help: "the TCP listener; port 0 picks a free one",
    },
    Setting { name: "no-http", default: "false", shape: Shape::Flag, help: "no TCP listener" },
    Setting { name: "no-ui", default: "false", shape: Shape::Flag, help: "no dashboard (not used yet)" },
    Setting {
        name: "max-concurrent",
        default: "10",
        shape: Shape::Count,
        help: "agents doing work at the same time (not used yet)",
    },
    Setting {
        name: "max-jobs",
        default: "10",
        shape: Shape::Count,
        help: "jobs at the same time (not used yet)",
    },
    Setting { name: "backoff-base", default: "1s", shape: Shape::Span, help: "first pause before a restart" },
    Setting {
        name: "backoff-cap",
        default: "30s",
        shape: Shape::Span,
        help: "longest pause before a restart",
    },
    Setting {
        name: "shutdown-timeout",
        default: "5s",
        shape: Shape::Span,
        help: "how long requests may finish at shutdown",
    },
    Setting {
        name: "readiness-timeout",
        default: "60s",
        shape: Shape::Span,
        help: "how long a runtime may take to get ready",
    },
    Setting {
        name: "revival-policy",
        default: "revive",
        shape: Shape::OneOf(&["revive", "reap", "ask"]),
        help: "what happens to work whose process died",
    },
    Setting {
        name: "heartbeat-stale",
        default: "30s",
        shape: Shape::Span,
        help: "silence from which on a working process is stale",
    },
    Setting {
        name: "heartbeat-crashed",
        default: "90s",
        shape: Shape::Span,
        help: "silence beyond which it is killed and its work taken over",
    },
    Setting {
        name: "allowed-origins",
        default: "",
        shape: Shape::List,
        help: "browser origins that may call, comma-separated",
    },
    Setting {
        name: "log-format",
        default: "text",
        shape: Shape::OneOf(&["text", "json"]),
        help: "of the daemon's own log",
    },
    Setting {
        name: "log-level",
        default: "info",
        shape: Shape::LogFilter,
        help: "error, warn, info, debug, trace, or a filter",
    },
];

/// What is in effect.
#[derive(Debug, Clone)]
pub struct Config {
    pub data_dir: PathBuf,
    pub file: Option<PathBuf>,
    values: BTreeMap<&'static str, (Value, Source)>,
    data_dir_source: Source,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Flag,
    Env,
    File,
    Default,
}

impl Source {
    fn word(self) -> &'static str {
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
    #[error("unknown key `{key}` in {}", file.display())]
    UnknownKey { file: PathBuf, key: String, near: Option<&'static str> },
    #[error("could not read {}", file.display())]
    Unreadable {
        file: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("{} is not valid YAML", file.display())]
    BadYaml { file: PathBuf, detail: String },
    #[error("`{given}` does not fit {name} ({from})")]
    BadValue { name: &'static str, given: String, wanted: String, from: String },
    #[error("no home directory: neither --data-dir, LODGED_DATA_DIR, LODGE_HOME nor HOME is set")]
    NoHome,
}

impl ConfigError {
    pub fn hint(&self) -> String {
        match self {
            ConfigError::UnknownKey { near: Some(near), .. } => format!("did you mean `{near}`?"),
            ConfigError::UnknownKey { near: None, .. } => {
                let known: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
                format!("keys below `serve:` are {}", known.join(", "))
            }
            ConfigError::Unreadable { .. } => "check the path given with --config".to_owned(),
            ConfigError::BadYaml { detail, .. } => detail.clone(),
            ConfigError::BadValue { wanted, .. } => format!("expected {wanted}"),
            ConfigError::NoHome => "set LODGE_HOME to a directory for Lodge's state".to_owned(),
        }
    }
}

/// The flags of `lodged serve`, made from the table of settings.
pub fn command() -> clap::Command {
    let mut serve = clap::Command::new("serve")
        .about("Run the daemon (the default command)")
        .arg(
            clap::Arg::new("config")
                .short('c')
                .long("config")
                .value_name("FILE")
                .help("the configuration file"),
        )
        .arg(clap::Arg::new("data-dir").long("data-dir").value_name("DIR").help("the state directory"));
    for setting in SETTINGS {
        let env = env_name(setting.name);
        let help = format!("{} [default: {}] [env: {env}]", setting.help, setting.default);
        let arg = clap::Arg::new(setting.name).long(setting.name).help(help);
        serve = serve.arg(match setting.shape {
            Shape::Flag => arg.num_args(0..=1).default_missing_value("true").require_equals(true),
            Shape::Text
            | Shape::Path
            | Shape::Count
            | Shape::Span
            | Shape::OneOf(_)
            | Shape::List
            | Shape::LogFilter => arg.num_args(1),
        });
    }
    serve
}

fn env_name(name: &str) -> String {
    format!("LODGED_{}", name.to_ascii_uppercase().replace('-', "_"))
}

impl Config {
    /// Resolves every setting. `env` is the process environment, as an argument for tests.
    pub fn resolve(
        flags: &clap::ArgMatches,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Config, ConfigError> {
        let flag = |name: &str| flags.get_one::<String>(name).cloned();
        let home = env("LODGE_HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        let early = flag("data-dir")
            .map(|dir| (PathBuf::from(dir), Source::Flag))
            .or_else(|| {
                env("LODGED_DATA_DIR")
                    .filter(|dir| !dir.is_empty())
                    .map(|dir| (PathBuf::from(dir), Source::Env))
            })
            .or_else(|| home.map(|dir| (dir, Source::Env)));
        let default_home =
            env("HOME").filter(|home| !home.is_empty()).map(|home| Path::new(&home).join(".lodge"));
        let searched = early.clone().map(|(dir, _)| dir).or_else(|| default_home.clone());
        let file = find_file(flag("config").or_else(|| env("LODGED_CONFIG")), searched.as_deref());
        let yaml = file.as_deref().map(read_file).transpose()?.unwrap_or_default();
        let (data_dir, data_dir_source) = match (early, yaml.get("data-dir")) {
            (Some(early), _) => early,
            (None, Some(Value::String(dir))) => (PathBuf::from(dir), Source::File),
            (None, Some(other)) => {
                let from = file.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
                let wanted = "the path of a directory".to_owned();
                return Err(ConfigError::BadValue {
                    name: "data-dir",
                    given: other.to_string(),
                    wanted,
                    from,
                });
            }
            (None, None) => (default_home.ok_or(ConfigError::NoHome)?, Source::Default),
        };
        let mut values = BTreeMap::new();
        for setting in SETTINGS {
            let name = env_name(setting.name);
            let (given, source, from) = if let Some(given) = flag(setting.name) {
                (Value::from(given), Source::Flag, format!("--{}", setting.name))
            } else if let Some(given) = env(&name) {
                (Value::from(given), Source::Env, name)
            } else if let Some(given) = yaml.get(setting.name) {
                let from = file.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
                (given.clone(), Source::File, from)
            } else {
                (Value::from(setting.default), Source::Default, "default".to_owned())
            };
            values.insert(setting.name, (check(setting, &given, from)?, source));
        }
        let data_dir = std::path::absolute(&data_dir).unwrap_or(data_dir);
        let config = Config { data_dir, file, values, data_dir_source };
        let (stale, crashed) = (config.text("heartbeat-stale"), config.text("heartbeat-crashed"));
        if config.span("heartbeat-crashed") < config.span("heartbeat-stale") {
            return Err(ConfigError::BadValue {
                name: "heartbeat-crashed",
                given: crashed.to_owned(),
                wanted: format!("no less than heartbeat-stale, which is {stale}"),
                from: "settings that contradict each other".to_owned(),
            });
        }
        Ok(config)
    }

    fn get(&self, name: &str) -> &Value {
        self.values.get(name).map_or(&Value::Null, |(value, _)| value)
    }

    pub fn text(&self, name: &str) -> &str {
        self.get(name).as_str().unwrap_or_default()
    }

    pub fn flag(&self, name: &str) -> bool {
        self.get(name).as_bool().unwrap_or_default()
    }

    pub fn span(&self, name: &str) -> Duration {
        parse_span(self.text(name)).unwrap_or_default()
    }

    /// What happens to the work of a process that died, where its agent does not say.
    pub fn policy(&self) -> Policy {
        Policy::from_word(self.text("revival-policy")).unwrap_or(Policy::Revive)
    }

    /// From which silence on a working process is stale, and beyond which it is killed. Never so short that looking
    /// would be all that is done.
    pub fn thresholds(&self) -> Thresholds {
        let stale = self.span("heartbeat-stale").max(STALE_MIN);
        Thresholds { stale, crashed: self.span("heartbeat-crashed").max(stale) }
    }

    pub fn list(&self, name: &str) -> Vec<String> {
        let items = self.get(name).as_array().into_iter().flatten();
        items.filter_map(|item| item.as_str().map(str::to_owned)).collect()
    }

    /// A path setting, resolved against the state directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.data_dir.join(self.text(name))
    }

    /// What `info` shows.
    pub fn shown(&self) -> BTreeMap<String, ConfigValue> {
        let mut shown: BTreeMap<String, ConfigValue> = self
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

fn find_file(named: Option<String>, home: Option<&Path>) -> Option<PathBuf> {
    if let Some(named) = named {
        return Some(PathBuf::from(named));
    }
    let user = home.map(|home| home.join("lodged.yaml"));
    [user, Some(PathBuf::from("/etc/lodge/lodged.yaml"))].into_iter().flatten().find(|path| path.exists())
}

/// The keys below `serve:`, and `data-dir`.
fn read_file(file: &Path) -> Result<BTreeMap<String, Value>, ConfigError> {
    let text = std::fs::read_to_string(file)
        .map_err(|cause| ConfigError::Unreadable { file: file.to_owned(), cause })?;
    let bad = |detail: String| ConfigError::BadYaml { file: file.to_owned(), detail };
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(BTreeMap::new());
    }
    let whole: Value = serde_saphyr::from_str(&text).map_err(|error| bad(error.to_string()))?;
    let Value::Object(top) = whole else {
        return Err(bad("expected `serve:` with keys below it".to_owned()));
    };
    let unknown = |key: &str| ConfigError::UnknownKey {
        file: file.to_owned(),
        key: key.to_owned(),
        near: nearest(key),
    };
    let mut values = BTreeMap::new();
    for (key, value) in top {
        match (key.as_str(), value) {
            ("serve", Value::Object(serve)) => {
                for (key, value) in serve {
                    let known = key == "data-dir" || SETTINGS.iter().any(|setting| setting.name == key);
                    if !known {
                        return Err(unknown(&key));
                    }
                    values.insert(key, value);
                }
            }
            ("serve", Value::Null) => {}
            ("serve", _) => return Err(bad("expected keys below `serve:`".to_owned())),
            ("data-dir", value) => {
                values.insert("data-dir".to_owned(), value);
            }
            (key, _) => return Err(unknown(key)),
        }
    }
    Ok(values)
}

fn check(setting: &'static Setting, given: &Value, from: String) -> Result<Value, ConfigError> {
    let words = |items: &[Value]| {
        items.iter().map(Value::as_str).collect::<Option<Vec<&str>>>().map(|words| words.join(","))
    };
    let (text, scalar) = match (given, setting.shape) {
        (Value::String(text), _) => (text.clone(), true),
        (Value::Bool(_) | Value::Number(_), _) => (given.to_string(), true),
        (Value::Array(items), Shape::List) => {
            words(items).map_or((given.to_string(), false), |text| (text, true))
        }
        (Value::Null | Value::Object(_) | Value::Array(_), _) => (given.to_string(), false),
    };
    let bad = |wanted: String| ConfigError::BadValue {
        name: setting.name,
        given: text.clone(),
        wanted,
        from: from.clone(),
    };
    if !scalar {
        return Err(bad("a plain value".to_owned()));
    }
    match setting.shape {
        Shape::Text | Shape::Path => Ok(Value::from(text)),
        Shape::Flag => match text.as_str() {
            "true" | "1" | "yes" | "on" => Ok(Value::from(true)),
            "false" | "0" | "no" | "off" | "" => Ok(Value::from(false)),
            _ => Err(bad("true or false".to_owned())),
        },
        Shape::Count => match text.parse::<u32>() {
            Ok(count) if count > 0 => Ok(Value::from(count)),
            Ok(_) | Err(_) => Err(bad("a whole number from 1".to_owned())),
        },
        Shape::Span => match parse_span(&text) {
            Some(_) => Ok(Value::from(text)),
            None => Err(bad("a duration such as 500ms, 5s or 2m".to_owned())),
        },
        Shape::OneOf(words) => {
            if words.contains(&text.as_str()) {
                Ok(Value::from(text))
            } else {
                Err(bad(words.join(" or ")))
            }
        }
        // A lone word that is no level would be taken for the name of a module, and everything else be silent.
        Shape::LogFilter => {
            let level = text.parse::<tracing_subscriber::filter::LevelFilter>().is_ok();
            let filter = text.contains('=') && text.parse::<tracing_subscriber::filter::Targets>().is_ok();
            if level || filter {
                Ok(Value::from(text))
            } else {
                Err(bad(
                    "error, warn, info, debug, trace, off, or a filter such as info,hyper=warn".to_owned()
                ))
            }
        }
        Shape::List => {
            Ok(text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(Value::from).collect())
        }
    }
}

/// `500ms`, `5s`, `2m`, `1h`.
fn parse_span(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let ms = match unit {
        "ms" => number,
        "s" => number.checked_mul(1_000)?,
        "m" => number.checked_mul(60_000)?,
        "h" => number.checked_mul(3_600_000)?,
        _ => return None,
    };
    Some(Duration::from_millis(ms))
}

/// The known key that differs from this one by little.
fn nearest(key: &str) -> Option<&'static str> {
    let folded = key.to_ascii_lowercase().replace('_', "-");
    SETTINGS
        .iter()
        .map(|setting| setting.name)
        .find(|name| *name == folded || (name.len().abs_diff(folded.len()) <= 2 && edits(name, &folded) <= 2))
}

/// Levenshtein's distance, for words of a few letters.
pub(crate) fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let kept = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = kept.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
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
            ("serve:\n  socket-path:\n", "a plain value"),
            ("serve:\n  heartbeat-stale: 2m\n", "no less than heartbeat-stale, which is 2m"),
            ("serve:\n  allowed-origins: [1, {}]\n", "a plain value"),
            ("serve: [\n", "not valid YAML"),
            ("servers: {}\n", "unknown key `servers`"),
        ] {
            let error = resolve(&[], &[], Some(yaml)).unwrap_err();
            assert!(error.contains(wanted), "{yaml:?} gave: {error}");
        }
    }

    #[test]
    fn a_flag_names_the_state_directory_before_every_other_place() {
        let env = [("LODGED_DATA_DIR", "/b"), ("LODGE_HOME", "/c")];
        assert_eq!(resolve(&["--data-dir", "/a"], &env, None).unwrap().data_dir, Path::new("/a"));
        assert_eq!(resolve(&[], &env, None).unwrap().data_dir, Path::new("/b"));
        assert_eq!(resolve(&[], &env[1..], None).unwrap().data_dir, Path::new("/c"));
    }
}
