//! Errors that stop a run.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use lodge_proto::client::ClientError;

#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    #[error("`{}` cannot be run", program.display())]
    NoProgram {
        program: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("could not {what}")]
    System {
        what: &'static str,
        #[source]
        cause: io::Error,
    },
    #[error("the daemon ended with {status}")]
    Ended { status: ExitStatus, log: String },
    #[error("the daemon does not answer after {waited_s} s")]
    Silent { waited_s: u64, log: String },
    #[error("the daemon did not {what}")]
    Refused {
        what: &'static str,
        #[source]
        cause: ClientError,
    },
    #[error("{agent} is not ready after {waited_s} s")]
    NotReady { agent: String, waited_s: u64, last: String },
}

impl Trouble {
    pub fn hint(&self) -> Option<String> {
        match self {
            Trouble::NoProgram { .. } => Some("put `lodged` beside `lodge` or on the PATH".to_owned()),
            Trouble::Refused { cause: ClientError::Refused(body), .. } => body.data.hint.clone(),
            Trouble::System { .. } => Some(format!(
                "it works in {}; set TMPDIR to another directory if that one cannot be used",
                std::env::temp_dir().display()
            )),
            Trouble::Ended { .. }
            | Trouble::Silent { .. }
            | Trouble::Refused { .. }
            | Trouble::NotReady { .. } => None,
        }
    }

    /// Everything there is to say, on several lines.
    pub fn whole(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(deeper) = cause {
            text.push_str(&format!("\n  because: {deeper}"));
            cause = deeper.source();
        }
        match self {
            Trouble::Ended { log, .. } | Trouble::Silent { log, .. } => text + "\n" + log,
            Trouble::NotReady { last, .. } => format!("{text}: {last}"),
            Trouble::NoProgram { .. } | Trouble::System { .. } | Trouble::Refused { .. } => text,
        }
    }
}

/// Names what was tried when the system refuses.
pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Trouble {
    move |cause| Trouble::System { what, cause }
}

/// Names the request that the daemon refused.
pub(crate) fn refused(what: &'static str) -> impl FnOnce(ClientError) -> Trouble {
    move |cause| Trouble::Refused { what, cause }
}
