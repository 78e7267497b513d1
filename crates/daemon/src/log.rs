//! The daemon's own log. Its level may be another while the daemon runs; its form may not.

use std::io::{self, IsTerminal, Write};

use lodge_proto::visible::{ColourFilter, Colours};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{Handle, Layer};
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{Config, LogFormat};

/// What of the log is written.
#[derive(Debug)]
pub struct LogLevel(Handle<Targets, Registry>);

impl LogLevel {
    pub fn set(&self, filter: &str) {
        // A log without a writer has no level.
        if let Err(error) = self.0.reload(targets(filter)) {
            tracing::warn!(event = "log.level_kept", error = %error);
        }
    }
}

/// Starts the log, once in a process.
pub fn start(config: &Config) -> LogLevel {
    let (filter, handle) = Layer::new(targets(&config.settings().log_level));
    let is_terminal = io::stderr().is_terminal();
    let log = tracing_subscriber::fmt::layer().with_writer(move || Stderr { is_terminal }).with_target(false);
    let wanted = tracing_subscriber::registry().with(filter);
    if config.settings().log_format == LogFormat::Json {
        wanted.with(log.json().flatten_event(true)).init();
    } else {
        wanted.with(log.with_ansi(is_terminal)).init();
    }
    LogLevel(handle)
}

fn targets(filter: &str) -> Targets {
    filter.parse().unwrap_or_else(|_| Targets::new().with_default(LevelFilter::INFO))
}

/// The output of the log. It may contain untrusted text, so a terminal gets colours and no other control sequence.
struct Stderr {
    is_terminal: bool,
}

impl Write for Stderr {
    /// Takes all of it: an event comes whole.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr().lock();
        if self.is_terminal {
            let mut shown = ColourFilter::new(Colours::Pass);
            let text = shown.feed(&String::from_utf8_lossy(bytes)) + &shown.finish();
            stderr.write_all(text.as_bytes())?;
        } else {
            stderr.write_all(bytes)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
