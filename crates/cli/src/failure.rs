//! Failures of commands, and their exit codes.
//!
//! Owns: the exit codes, the translation of the client's errors. Never: printing (see `render`).

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use lodge_proto::client::{ClientError, Target, Unverified};
use lodge_proto::tls::TlsError;
use lodge_proto::{ErrorBody, KnownCode, error_code};

use crate::connect::token_from_env;

/// The exit codes that scripts rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandExit {
    Done,
    Refused,
    Usage,
    NoDaemon,
    Interrupted,
    /// Of a program that was waited for.
    Program(u8),
}

impl CommandExit {
    pub(crate) fn code(self) -> i32 {
        match self {
            CommandExit::Done => 0,
            CommandExit::Refused => 1,
            CommandExit::Usage => 2,
            CommandExit::NoDaemon => 3,
            CommandExit::Interrupted => 130,
            CommandExit::Program(code) => i32::from(code),
        }
    }
}

/// Why a command ends early.
#[derive(Debug)]
pub(crate) enum CommandFailure {
    /// To be printed: what failed, why, and the next step.
    Told(Box<FailureReport>),
    /// Everything is printed already; only the exit code is left.
    Silent(CommandExit),
    /// The reader closed the pipe, which is not an error.
    PipeClosed,
}

#[derive(Debug)]
pub(crate) struct FailureReport {
    pub exit: CommandExit,
    pub what: String,
    pub because: Vec<String>,
    pub hint: Option<String>,
    /// The daemon's dotted code, when the daemon refused.
    pub code: Option<String>,
}

impl CommandFailure {
    pub(crate) fn new(exit: CommandExit, what: impl Into<String>) -> Self {
        CommandFailure::Told(Box::new(FailureReport {
            exit,
            what: what.into(),
            because: Vec::new(),
            hint: None,
            code: None,
        }))
    }

    pub(crate) fn refused(what: impl Into<String>) -> Self {
        CommandFailure::new(CommandExit::Refused, what)
    }

    pub(crate) fn usage(what: impl Into<String>) -> Self {
        CommandFailure::new(CommandExit::Usage, what)
    }

    /// Adds causes, one for each line of `cause`.
    #[must_use]
    pub(crate) fn because(mut self, cause: impl ToString) -> Self {
        if let CommandFailure::Told(report) = &mut self {
            let cause = cause.to_string();
            report.because.extend(cause.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned));
        }
        self
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        if let CommandFailure::Told(report) = &mut self {
            report.hint = Some(hint.into());
        }
        self
    }

    /// Adds another way out.
    #[must_use]
    pub(crate) fn and_hint(mut self, hint: &str) -> Self {
        if let CommandFailure::Told(report) = &mut self {
            report.hint = Some(match report.hint.take() {
                Some(first) => format!("{first}; {hint}"),
                None => hint.to_owned(),
            });
        }
        self
    }

    #[must_use]
    pub(crate) fn with_code(mut self, code: &str) -> Self {
        if let CommandFailure::Told(report) = &mut self {
            report.code = Some(code.to_owned());
        }
        self
    }

    /// What failed, without causes and the next step.
    pub(crate) fn one_line(&self) -> String {
        match self {
            CommandFailure::Told(report) => report.what.clone(),
            CommandFailure::Silent(_) | CommandFailure::PipeClosed => "it could not be asked".to_owned(),
        }
    }

    /// With this exit code in place of that of a refusal, for a command that exits with the codes of programs.
    #[must_use]
    pub(crate) fn exiting(mut self, code: u8) -> Self {
        if let CommandFailure::Told(report) = &mut self
            && report.exit == CommandExit::Refused
        {
            report.exit = CommandExit::Program(code);
        }
        self
    }

    /// Whether it names the next step.
    pub(crate) fn has_hint(&self) -> bool {
        matches!(self, CommandFailure::Told(report) if report.hint.is_some())
    }

    /// Whether the daemon refused with this code.
    pub(crate) fn is(&self, code: KnownCode) -> bool {
        matches!(self, CommandFailure::Told(report) if report.code.as_deref() == Some(code.as_str()))
    }

    pub(crate) fn exit(&self) -> CommandExit {
        match self {
            CommandFailure::Told(report) => report.exit,
            CommandFailure::Silent(exit) => *exit,
            CommandFailure::PipeClosed => CommandExit::Done,
        }
    }

    /// A failure to write the output.
    pub(crate) fn output(cause: io::Error) -> Self {
        match cause.kind() {
            io::ErrorKind::BrokenPipe => CommandFailure::PipeClosed,
            _ => CommandFailure::refused("could not write the output").because(cause),
        }
    }

    fn from_body(body: ErrorBody) -> Self {
        CommandFailure::Told(Box::new(FailureReport {
            exit: CommandExit::Refused,
            what: body.message,
            because: body.data.cause.iter().flat_map(|cause| cause.lines()).map(str::to_owned).collect(),
            hint: body.data.hint,
            code: Some(body.data.code),
        }))
    }
}

impl From<ClientError> for CommandFailure {
    fn from(error: ClientError) -> Self {
        let what = error.to_string();
        match error {
            ClientError::NoDaemon { target: Target::Unix(path), cause } => no_socket(what, &path, &cause),
            ClientError::NoDaemon { target: Target::Tcp(_) | Target::Tls(_), cause } => {
                let hint = "check the address given by `--daemon` or `LODGE_DAEMON`";
                CommandFailure::new(CommandExit::NoDaemon, what).because(io_words(&cause)).hint(hint)
            }
            ClientError::Handshake { target, body: Some(body), .. } if body.data.code == error_code!("auth.missing").as_str() => {
                no_token(&target, "the state directory has no token for that address")
            }
            ClientError::Handshake { target, body: Some(body), .. }
                if body.data.code == error_code!("auth.invalid").as_str() && token_from_env().is_none() =>
            {
                no_token(&target, "the token in the state directory is not one of that daemon's")
            }
            ClientError::Handshake { body: Some(body), .. } => CommandFailure::from_body(*body),
            ClientError::Handshake { body: None, detail, status, .. } => {
                let (exit, hint) = match status {
                    Some(401 | 403) => (CommandExit::Refused, "set `LODGE_TOKEN`, or use the state directory of that daemon"),
                    Some(_) => (CommandExit::Refused, "perhaps another program listens there"),
                    None => (CommandExit::NoDaemon, "perhaps another program listens there"),
                };
                CommandFailure::new(exit, what).because(detail).hint(hint)
            }
            ClientError::Unverified { why: Unverified::Tls(TlsError::CaFile { path, detail }), .. } => {
                CommandFailure::refused(format!("the file given by LODGE_CA_FILE cannot be used: {}", path.display()))
                    .because(detail)
                    .hint(
                        "set LODGE_CA_FILE to a PEM file with at least one certificate, or unset it to trust the \
                         system's authorities",
                    )
                    .with_code("auth.unverified")
            }
            ClientError::Unverified { target, why: why @ Unverified::Peer { uid, .. } } => {
                CommandFailure::refused(format!("the token was not sent: another user listens on the socket {target}"))
                    .because(&why)
                    .hint(format!(
                        "if it is the daemon of user {uid}, run this as that user; otherwise check the path of the \
                         socket"
                    ))
                    .with_code("auth.unverified")
            }
            ClientError::Unverified { why, .. } => {
                CommandFailure::refused(what).because(&why).hint(why.hint()).with_code("auth.unverified")
            }
            ClientError::Lost => CommandFailure::new(CommandExit::NoDaemon, what).hint("run the command again"),
            ClientError::Refused(body) => CommandFailure::from_body(*body),
            ClientError::Garbled { cause } => CommandFailure::refused(what)
                .because(cause)
                .hint("`lodge` and `lodged` may be of different versions: compare `lodge --version` and `lodge info`"),
        }
    }
}

/// The user has no token for this daemon, which needs one.
fn no_token(target: &Target, state_dir: &str) -> CommandFailure {
    let hint = match target {
        Target::Unix(_) => {
            "set LODGE_HOME to the daemon's state directory, or LODGE_TOKEN to what `lodge token issue` printed"
        }
        Target::Tcp(_) | Target::Tls(_) => {
            "run `lodge token issue` on the daemon's machine, and set LODGE_TOKEN to what it prints"
        }
    };
    CommandFailure::refused(format!("there is no token for the daemon at {target}"))
        .because(format!("LODGE_TOKEN is not set, and {state_dir}"))
        .hint(hint)
        .with_code("auth.missing")
}

/// Why a socket does not answer.
fn no_socket(what: String, path: &Path, cause: &io::Error) -> CommandFailure {
    if cause.kind() == io::ErrorKind::PermissionDenied {
        let failure = CommandFailure::new(
            CommandExit::NoDaemon,
            format!("could not connect to the socket {}", path.display()),
        )
        .because(io_words(cause));
        // What keeps us out is the socket, or the directory beyond which we cannot see.
        let seen = path.ancestors().find_map(|path| Some((path, path.symlink_metadata().ok()?.uid())));
        return match seen {
            Some((path, owner)) => failure.hint(format!(
                "{} belongs to user {owner}: run this as that user, or set LODGE_HOME to a directory of your own",
                path.display()
            )),
            None => failure,
        };
    }
    let failure = CommandFailure::new(CommandExit::NoDaemon, what);
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => failure.because("it is a directory").hint(format!(
            "name the socket in it, such as `--socket {}`, or set LODGE_HOME to the directory",
            path.join("lodge.sock").display()
        )),
        Ok(found) if found.is_file() => failure
            .because("it is a file, not a socket")
            .hint("check the path given by `--socket` or LODGE_SOCKET"),
        Ok(_) | Err(_) => failure.because(io_words(cause)).hint("start one with `lodged serve`"),
    }
}

/// The reason in words, without the system's number.
pub(crate) fn io_words(cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::ReadOnlyFilesystem => "the file system is read-only".to_owned(),
        io::ErrorKind::StorageFull => "the disk is full".to_owned(),
        io::ErrorKind::NotADirectory => "a part of the path is not a directory".to_owned(),
        io::ErrorKind::TimedOut => "it did not answer in time".to_owned(),
        _ => cause.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemons_refusal_keeps_its_message_cause_hint_and_code() {
        let body =
            ErrorBody::new("agent.not_found", "no agent `x`").because("one\ntwo").hint("run `lodge ps -a`");
        let failure = CommandFailure::from(ClientError::Refused(Box::new(body)));
        assert!(failure.is(error_code!("agent.not_found")));
        let CommandFailure::Told(report) = failure else { panic!("not told") };
        assert_eq!(report.what, "no agent `x`");
        assert_eq!(report.because, ["one", "two"]);
        assert_eq!(report.hint.as_deref(), Some("run `lodge ps -a`"));
        assert_eq!(report.exit, CommandExit::Refused);
    }

    #[test]
    fn an_absent_daemon_ends_with_three_and_a_closed_pipe_with_zero() {
        let cause = io::Error::from(io::ErrorKind::NotFound);
        let absent = ClientError::NoDaemon { target: Target::Unix("/x".into()), cause };
        assert_eq!(CommandFailure::from(absent).exit(), CommandExit::NoDaemon);
        assert_eq!(
            CommandFailure::output(io::Error::from(io::ErrorKind::BrokenPipe)).exit(),
            CommandExit::Done
        );
    }
}
