//! The results of tool calls, as a model reads them.

use lodge_exec::{CapturedStream, ExecStream, ExitOutcome, ExitRecord};

use crate::excerpt::both_ends;
use crate::limits;
use lodge_engine::{ExecEnd, ExecOutcome};

/// Appended to the output of a program that ended before the machine was restarted.
pub(super) const OTHER_BOOT: &str =
    "\n[the machine was restarted after this ended: parts of its output may be missing or empty]";

/// The end of an exec, from its exit record and its captured output. `kept` returns the path of a stream that is too long for
/// the result.
pub(super) fn exec_end(
    record: &ExitRecord,
    stdout: &CapturedStream,
    stderr: &CapturedStream,
    kept: impl Fn(ExecStream) -> String,
) -> ExecEnd {
    let mut parts = vec![head(record)];
    parts.retain(|part| !part.is_empty());
    // Test the bytes that were seen, not those in the file: on a full disk, the file is empty.
    if record.stdout.seen > 0 {
        parts.push(text(stdout, record.stdout.seen, || kept(ExecStream::Stdout)));
    }
    if record.stderr.seen > 0 {
        parts.push(format!("[stderr]\n{}", text(stderr, record.stderr.seen, || kept(ExecStream::Stderr))));
    }
    if !record.note.is_empty() {
        parts.push(format!("[{}]", record.note));
    }
    if parts.is_empty() {
        parts.push("[exit code 0, no output]".to_owned());
    }
    let how = match record.ended {
        ExitOutcome::Code(code) => ExecOutcome::Exited { code },
        ExitOutcome::Signal(signal) => ExecOutcome::Killed { signal },
        ExitOutcome::NotStarted { .. } => ExecOutcome::NotStarted,
    };
    ExecEnd {
        how,
        cause: record.cause.as_ref().map(limits::recorded),
        text: parts.join("\n"),
        stdout_bytes: record.stdout.seen,
        stderr_bytes: record.stderr.seen,
    }
}

/// A line that says how the exec ended; empty after a normal end.
fn head(record: &ExitRecord) -> String {
    let cause = record.cause.as_ref().map(limits::words);
    match (&record.ended, cause) {
        (ExitOutcome::Code(0), None) => String::new(),
        (ExitOutcome::Code(code), None) => format!("[exit code {code}]"),
        (ExitOutcome::Code(code), Some(cause)) => format!("[stopped by a limit: {cause}; exit code {code}]"),
        (ExitOutcome::Signal(signal), None) => format!("[ended by signal {signal}]"),
        (ExitOutcome::Signal(_), Some(cause)) => format!("[killed: {cause}]"),
        (ExitOutcome::NotStarted { why, .. }, None) => format!("[could not be started: {why}]"),
        (ExitOutcome::NotStarted { why, .. }, Some(cause)) => {
            format!(
                "[could not be started: {why}: {cause}. The operator can raise the limit or remove files]"
            )
        }
    }
}

/// The end of an exec with an unknown outcome, with its captured output.
pub(super) fn lost_exec_end(
    stdout: &CapturedStream,
    stderr: &CapturedStream,
    kept: impl Fn(ExecStream) -> String,
) -> ExecEnd {
    let mut parts = vec![
        "[outcome unknown: the sandbox died while this ran. It may or may not have had its effect; check before \
         doing it again]"
            .to_owned(),
    ];
    if stdout.total > 0 {
        parts.push(format!(
            "[captured before that]\n{}",
            text(stdout, stdout.total, || kept(ExecStream::Stdout))
        ));
    }
    if stderr.total > 0 {
        parts.push(format!(
            "[stderr captured before that]\n{}",
            text(stderr, stderr.total, || kept(ExecStream::Stderr))
        ));
    }
    ExecEnd {
        how: ExecOutcome::Lost,
        cause: None,
        text: parts.join("\n"),
        stdout_bytes: stdout.total,
        stderr_bytes: stderr.total,
    }
}

/// The end of an exec that the keeper refused to start.
pub(super) fn refused_exec_end(why: &str) -> ExecEnd {
    ExecEnd {
        how: ExecOutcome::NotStarted,
        cause: None,
        text: format!("[could not be started: {why}]"),
        stdout_bytes: 0,
        stderr_bytes: 0,
    }
}

fn text(captured: &CapturedStream, seen: u64, kept: impl Fn() -> String) -> String {
    let (head, tail, total) = (&captured.head, &captured.tail, captured.total);
    let whole = if total <= (head.len() + tail.len()) as u64 {
        String::new()
    } else if total >= seen {
        format!("; all of it is in {}", kept())
    } else {
        format!("; the first {total} bytes are in {}", kept())
    };
    both_ends(head, tail, seen, &whole)
}
