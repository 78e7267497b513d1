//! The daemon's own log. Its level may be another while the daemon runs; its form may not.

use tracing_subscriber::Registry;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{Handle, Layer};
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::Config;

/// What of the log is written.
#[derive(Debug)]
pub struct LogLevel(Handle<Targets, Registry>);

impl LogLevel {
    pub fn set(&self, filter: &str) {
        // A log that nobody writes any more has no level.
        if let Err(error) = self.0.reload(targets(filter)) {
            tracing::warn!(event = "log.level_kept", error = %error);
        }
    }
}

/// Starts the log, once in a process.
pub fn start(config: &Config) -> LogLevel {
    let (filter, handle) = Layer::new(targets(&config.text("log-level")));
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let wanted = tracing_subscriber::registry().with(filter);
    if config.text("log-format") == "json" {
        wanted.with(log.json().flatten_event(true)).init();
    } else {
        wanted.with(log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))).init();
    }
    LogLevel(handle)
}

fn targets(filter: &str) -> Targets {
    filter.parse().unwrap_or_else(|_| Targets::new().with_default(LevelFilter::INFO))
}
