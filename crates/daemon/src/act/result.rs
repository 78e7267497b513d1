//! What a model is told about a program that ran.

use lodge_exec::{Captured, Ended, ExitRecord};

use crate::engine::{ExecEnd, ExecHow};

/// Told with the output of a program that ended before the machine was restarted.
pub(super) const OTHER_BOOT: &str =
    "\n[the machine was restarted after this ended: parts of its output may be missing or empty]";

/// The end of an exec as the engine takes it, from its record and what was captured.
pub(super) fn ended(record: &ExitRecord, stdout: &Captured, stderr: &Captured) -> ExecEnd {
    let (how, head) = match &record.ended {
        Ended::Code(0) => (ExecHow::Exited { code: 0 }, None),
        Ended::Code(code) => (ExecHow::Exited { code: *code }, Some(format!("[exit code {code}]"))),
        Ended::Signal(signal) => {
            (ExecHow::Killed { signal: *signal }, Some(format!("[ended by signal {signal}]")))
        }
        Ended::NotStarted { why, .. } => {
            (ExecHow::NotStarted, Some(format!("[could not be started: {why}]")))
        }
    };
    let mut parts: Vec<String> = head.into_iter().collect();
    // What was seen counts, not what is there: a full disk keeps nothing.
    if record.stdout.seen > 0 {
        parts.push(text(stdout, record.stdout.seen));
    }
    if record.stderr.seen > 0 {
        parts.push(format!("[stderr]\n{}", text(stderr, record.stderr.seen)));
    }
    if !record.note.is_empty() {
        parts.push(format!("[{}]", record.note));
    }
    if parts.is_empty() {
        parts.push("[exit code 0, no output]".to_owned());
    }
    ExecEnd {
        how,
        text: parts.join("\n"),
        stdout_bytes: record.stdout.seen,
        stderr_bytes: record.stderr.seen,
    }
}

/// An exec of which nobody knows how it ended, with what evidence there is.
pub(super) fn lost(stdout: &Captured, stderr: &Captured) -> ExecEnd {
    let mut parts = vec![
        "[outcome unknown: the sandbox died while this ran. It may or may not have had its effect; check before \
         doing it again]"
            .to_owned(),
    ];
    if stdout.total > 0 {
        parts.push(format!("[captured before that]\n{}", text(stdout, stdout.total)));
    }
    if stderr.total > 0 {
        parts.push(format!("[stderr captured before that]\n{}", text(stderr, stderr.total)));
    }
    ExecEnd {
        how: ExecHow::Lost,
        text: parts.join("\n"),
        stdout_bytes: stdout.total,
        stderr_bytes: stderr.total,
    }
}

/// An exec that the keeper refused before anything of it existed.
pub(super) fn refused(why: &str) -> ExecEnd {
    ExecEnd {
        how: ExecHow::NotStarted,
        text: format!("[could not be started: {why}]"),
        stdout_bytes: 0,
        stderr_bytes: 0,
    }
}

fn text(captured: &Captured, seen: u64) -> String {
    let left_out = seen.saturating_sub((captured.head.len() + captured.tail.len()) as u64);
    let head = String::from_utf8_lossy(&captured.head);
    if left_out == 0 {
        let mut all = head.into_owned();
        all.push_str(&String::from_utf8_lossy(&captured.tail));
        return all;
    }
    let tail = String::from_utf8_lossy(&captured.tail);
    format!("{head}\n[… {left_out} bytes left out …]\n{tail}")
}
