//! Every setting of `lodged serve`, in one table: flags, variables, keys of the file and defaults are made from it.

use lodge_core::limits::{JOB_OUTPUT_BYTES_MAX, JOB_OUTPUT_BYTES_MIN};

/// One setting of `lodged serve`.
pub(super) struct Setting {
    /// The flag without dashes, and the YAML key below `serve:`.
    pub name: &'static str,
    pub default: &'static str,
    pub shape: Shape,
    pub change: Change,
    help: &'static str,
}

/// When another value counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// For whatever is begun after a reload.
    Reload,
    /// It is read once, when the daemon starts.
    Restart,
}

#[derive(Clone, Copy)]
pub(super) enum Shape {
    /// Where to listen: a host and a port.
    Address,
    Path,
    /// A path, or nothing.
    PathOrNone,
    Flag,
    Count,
    Span,
    /// A duration, or `off`.
    SpanOrOff,
    /// A number of bytes.
    Size,
    /// A number of bytes, from the first to the second.
    SizeWithin(u64, u64),
    SizeOrOff,
    OneOf(&'static [&'static str]),
    List,
    LogFilter,
}

pub(super) const SETTINGS: &[Setting] = &[
    Setting {
        name: "executor",
        default: "system",
        shape: Shape::OneOf(&["system", "docker"]),
        change: Change::Restart,
        help: "how agents are run",
    },
    Setting {
        name: "socket-path",
        default: "lodge.sock",
        shape: Shape::Path,
        change: Change::Restart,
        help: "the Unix socket; relative to the state directory",
    },
    Setting {
        name: "http-addr",
        default: "127.0.0.1:5500",
        shape: Shape::Address,
        change: Change::Restart,
        help: "the TCP listener; port 0 picks a free one",
    },
    Setting {
        name: "no-http",
        default: "false",
        shape: Shape::Flag,
        change: Change::Restart,
        help: "no TCP listener",
    },
    Setting {
        name: "tls-cert",
        default: "",
        shape: Shape::PathOrNone,
        change: Change::Restart,
        help: "the certificate of the TCP listener (PEM), which then speaks TLS only; relative to the state directory",
    },
    Setting {
        name: "tls-key",
        default: "",
        shape: Shape::PathOrNone,
        change: Change::Restart,
        help: "the private key of tls-cert (PEM), which nobody else may read; relative to the state directory",
    },
    Setting {
        name: "no-ui",
        default: "false",
        shape: Shape::Flag,
        change: Change::Restart,
        help: "no dashboard (not used yet)",
    },
    Setting {
        name: "max-concurrent",
        default: "10",
        shape: Shape::Count,
        change: Change::Reload,
        help: "agents whose turns run at the same time",
    },
    Setting {
        name: "max-jobs",
        default: "10",
        shape: Shape::Count,
        change: Change::Reload,
        help: "jobs that run at the same time",
    },
    Setting {
        name: "job-output",
        default: "64m",
        shape: Shape::SizeWithin(JOB_OUTPUT_BYTES_MIN, JOB_OUTPUT_BYTES_MAX),
        change: Change::Reload,
        help: "what is kept of each stream of a job: most of it from the start, the rest from the end",
    },
    Setting {
        name: "job-keep-free",
        default: "256m",
        shape: Shape::Size,
        change: Change::Reload,
        help: "free disk below which no job is taken and no more output of jobs is kept",
    },
    Setting {
        name: "job-retention-age",
        default: "off",
        shape: Shape::SpanOrOff,
        change: Change::Reload,
        help: "jobs that ended longer ago are removed, with their output",
    },
    Setting {
        name: "job-retention-bytes",
        default: "off",
        shape: Shape::SizeOrOff,
        change: Change::Reload,
        help: "beyond so much output of ended jobs the oldest is removed",
    },
    Setting {
        name: "backoff-base",
        default: "1s",
        shape: Shape::Span,
        change: Change::Reload,
        help: "first pause before a restart",
    },
    Setting {
        name: "backoff-cap",
        default: "30s",
        shape: Shape::Span,
        change: Change::Reload,
        help: "longest pause before a restart",
    },
    Setting {
        name: "shutdown-timeout",
        default: "5s",
        shape: Shape::Span,
        change: Change::Reload,
        help: "how long requests may finish at shutdown",
    },
    Setting {
        name: "readiness-timeout",
        default: "60s",
        shape: Shape::Span,
        change: Change::Reload,
        help: "how long a runtime may take to get ready",
    },
    Setting {
        name: "revival-policy",
        default: "revive",
        shape: Shape::OneOf(&["revive", "reap", "ask"]),
        change: Change::Reload,
        help: "what happens to work whose process died",
    },
    Setting {
        name: "heartbeat-stale",
        default: "30s",
        shape: Shape::Span,
        change: Change::Reload,
        help: "silence from which on a working process is stale",
    },
    Setting {
        name: "heartbeat-crashed",
        default: "90s",
        shape: Shape::Span,
        change: Change::Reload,
        help: "silence beyond which it is killed and its work taken over",
    },
    Setting {
        name: "allowed-origins",
        default: "",
        shape: Shape::List,
        change: Change::Reload,
        help: "browser origins that may call, comma-separated",
    },
    Setting {
        name: "log-format",
        default: "text",
        shape: Shape::OneOf(&["text", "json"]),
        change: Change::Restart,
        help: "of the daemon's own log",
    },
    Setting {
        name: "log-level",
        default: "info",
        shape: Shape::LogFilter,
        change: Change::Reload,
        help: "error, warn, info, debug, trace, or a filter",
    },
];

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
            Shape::Address
            | Shape::Path
            | Shape::PathOrNone
            | Shape::Count
            | Shape::Span
            | Shape::SpanOrOff
            | Shape::Size
            | Shape::SizeWithin(..)
            | Shape::SizeOrOff
            | Shape::OneOf(_)
            | Shape::List
            | Shape::LogFilter => arg.num_args(1),
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
