//! Every setting of `lodged serve`, declared once.
//!
//! The flags, the variables, the keys of the file, the defaults and the fields of `ServeSettings` are made from the
//! declarations below, so a misspelt key does not compile.

use serde_json::Value;

use super::formats::{
    AddressFormat, CountFormat, ExecutorFormat, JobOutputFormat, ListFormat, LogFilterFormat,
    LogFormatFormat, OptionalPathFormat, OptionalSizeFormat, OptionalSpanFormat, PathFormat, PolicyFormat,
    SettingFormat, SizeFormat, SpanFormat, SwitchFormat,
};
use super::{ConfigError, SettingInEffect, SettingSource, Values};

/// One setting of `lodged serve`.
pub(super) struct Setting {
    /// The flag without dashes, and the YAML key below `serve:`.
    pub name: &'static str,
    pub default: &'static str,
    pub change: WhenApplied,
    is_list: bool,
    is_switch: bool,
    help: &'static str,
    /// The value as `info` shows it, or what was expected instead.
    check: fn(&str) -> Result<Value, String>,
}

impl Setting {
    /// Checks what was given at the place `from`.
    pub(super) fn check(
        &'static self,
        given: &Value,
        from: String,
        source: SettingSource,
    ) -> Result<SettingInEffect, ConfigError> {
        let words = |items: &[Value]| {
            items.iter().map(Value::as_str).collect::<Option<Vec<&str>>>().map(|words| words.join(","))
        };
        let text = match given {
            Value::String(text) => Ok(text.clone()),
            Value::Bool(_) | Value::Number(_) => Ok(given.to_string()),
            Value::Array(items) if self.is_list => words(items).ok_or_else(|| given.to_string()),
            Value::Null | Value::Object(_) | Value::Array(_) => Err(given.to_string()),
        };
        let bad = |given: &str, wanted: String| ConfigError::BadValue {
            name: self.name,
            given: given.to_owned(),
            wanted,
            from: from.clone(),
        };
        let text = text.map_err(|given| bad(&given, "a plain value".to_owned()))?;
        match (self.check)(&text) {
            Ok(shown) => Ok(SettingInEffect { text, shown, source }),
            Err(expected) => Err(bad(&text, expected)),
        }
    }
}

/// When a new value takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WhenApplied {
    /// For everything that begins after a reload.
    Reload,
    /// It is read once, when the daemon starts.
    Restart,
}

/// Declares each setting once: its documentation, its key (with `_` for `-`), its format, its default, and when a new
/// value takes effect.
macro_rules! settings {
    ($(#[doc = $help:literal] $field:ident: $format:ident = $default:literal, $change:ident;)*) => {
        /// Every setting that is in effect.
        #[derive(Debug, Clone)]
        pub struct ServeSettings {
            $(#[doc = $help] pub $field: <$format as SettingFormat>::Value,)*
        }

        pub(super) const SETTINGS: &[Setting] = &[$(
            Setting {
                name: {
                    const KEY: [u8; stringify!($field).len()] = dashed(stringify!($field));
                    match std::str::from_utf8(&KEY) {
                        Ok(key) => key,
                        Err(_) => panic!("the name of a field is ASCII"),
                    }
                },
                default: $default,
                change: WhenApplied::$change,
                is_list: $format::IS_LIST,
                is_switch: $format::IS_SWITCH,
                help: $help.trim_ascii(),
                check: check::<$format>,
            },
        )*];

        impl ServeSettings {
            /// `values` must have every setting, checked. Otherwise the answer is the name of one that is missing.
            pub(super) fn from_values(values: &Values) -> Result<ServeSettings, &'static str> {
                let mut settings = SETTINGS.iter();
                $(
                    let name = settings.next().map_or("", |setting| setting.name);
                    let value = values.get(name).and_then(|value| $format::parse(&value.text));
                    let $field = value.ok_or(name)?;
                )*
                Ok(ServeSettings { $($field,)* })
            }
        }
    };
}

settings! {
    /// how agents are run
    executor: ExecutorFormat = "system", Restart;
    /// the Unix socket; relative to the state directory
    socket_path: PathFormat = "lodge.sock", Restart;
    /// the TCP listener; port 0 picks a free one
    http_addr: AddressFormat = "127.0.0.1:5500", Restart;
    /// no TCP listener
    no_http: SwitchFormat = "false", Restart;
    /// the certificate of the TCP listener (PEM), which then speaks TLS only; relative to the state directory
    tls_cert: OptionalPathFormat = "", Restart;
    /// the private key of tls-cert (PEM), which nobody else may read; relative to the state directory
    tls_key: OptionalPathFormat = "", Restart;
    /// no dashboard (not used yet)
    no_ui: SwitchFormat = "false", Restart;
    /// agents whose turns run at the same time
    max_concurrent: CountFormat = "10", Reload;
    /// jobs that run at the same time
    max_jobs: CountFormat = "10", Reload;
    /// what is kept of each stream of a job: most of it from the start, the rest from the end
    job_output: JobOutputFormat = "64m", Reload;
    /// free disk below which no job is taken and no more output of jobs is kept
    job_keep_free: SizeFormat = "256m", Reload;
    /// jobs that ended longer ago are removed, with their output
    job_retention_age: OptionalSpanFormat = "off", Reload;
    /// beyond so much output of ended jobs the oldest is removed
    job_retention_bytes: OptionalSizeFormat = "off", Reload;
    /// first pause before a restart
    backoff_base: SpanFormat = "1s", Reload;
    /// longest pause before a restart
    backoff_cap: SpanFormat = "30s", Reload;
    /// how long requests may finish at shutdown
    shutdown_timeout: SpanFormat = "5s", Reload;
    /// how long a runtime may take to get ready
    readiness_timeout: SpanFormat = "60s", Reload;
    /// what happens to work whose process died
    revival_policy: PolicyFormat = "revive", Reload;
    /// silence from which on a working process is stale
    heartbeat_stale: SpanFormat = "30s", Reload;
    /// silence beyond which it is killed and its work taken over
    heartbeat_crashed: SpanFormat = "90s", Reload;
    /// browser origins that may call, comma-separated
    allowed_origins: ListFormat = "", Reload;
    /// of the daemon's own log
    log_format: LogFormatFormat = "text", Restart;
    /// error, warn, info, debug, trace, or a filter
    log_level: LogFilterFormat = "info", Reload;
}

const fn dashed<const LENGTH: usize>(name: &str) -> [u8; LENGTH] {
    let (name, mut key, mut at) = (name.as_bytes(), [0; LENGTH], 0);
    while at < LENGTH {
        key[at] = if name[at] == b'_' { b'-' } else { name[at] };
        at += 1;
    }
    key
}

fn check<F: SettingFormat>(text: &str) -> Result<Value, String> {
    F::parse(text).map(|value| F::shown(&value, text)).ok_or_else(F::expected)
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
        serve = serve.arg(if setting.is_switch {
            arg.num_args(0..=1).default_missing_value("true").require_equals(true)
        } else {
            arg.num_args(1)
        });
    }
    serve
}

pub(super) fn env_name(name: &str) -> String {
    format!("LODGED_{}", name.to_ascii_uppercase().replace('-', "_"))
}

/// The known key that differs from this one by little.
pub(super) fn nearest(key: &str) -> Option<&'static str> {
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

/// Variables that look like settings and are none, each with what was probably meant.
pub fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    const OTHERS: [&str; 6] = ["DATA_DIR", "CONFIG", "CRASH_AT", "KEEPER_CRASH_AT", "MUTATION", "PILL"];
    let unknown = names.filter(|name| {
        let Some(rest) = name.strip_prefix("LODGED_") else { return false };
        !OTHERS.contains(&rest) && !SETTINGS.iter().any(|setting| env_name(setting.name) == *name)
    });
    let told = unknown.map(|name| match nearest(&name["LODGED_".len()..]) {
        Some(near) => format!("{name} is no setting; did you mean {}?", env_name(near)),
        None => format!("{name} is no setting"),
    });
    let mut told: Vec<String> = told.collect();
    told.sort();
    told
}
