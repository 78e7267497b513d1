//! Jobs as text for people. Pure.
//!
//! Owns: the words and cells of a job, and its exit code. Never: calling the daemon.

use lodge_proto::JobView;

use crate::failure::CommandExit;
use crate::render::{self, moment_ms, quoted, size};

/// The longest command line in a listing.
const COMMAND_CHARS_MAX: usize = 60;
/// The shell's exit code for a signal starts here.
const SIGNAL_BASE: i32 = 128;

/// Whether it waits or runs.
pub(crate) fn is_open(job: &JobView) -> bool {
    matches!(job.status.as_str(), "pending" | "running")
}

/// What was typed to start it, as far as it fits.
pub(crate) fn command(job: &JobView) -> String {
    let words = std::iter::once(&job.bin).chain(&job.args).map(|word| quoted(word));
    render::cut(&render::one_line(&words.collect::<Vec<_>>().join(" ")), COMMAND_CHARS_MAX)
}

/// The state, and in brackets what a person should know of it.
pub(crate) fn status(job: &JobView) -> String {
    let aside = if job.cancelling { Some("being cancelled") } else { job.cause.as_deref() };
    match aside {
        Some(aside) => format!("{} ({aside})", job.status),
        None => job.status.clone(),
    }
}

/// How its program ended; a dash if it has not, or if the outcome is unknown.
pub(crate) fn ended_with(job: &JobView) -> String {
    match (job.exit_code, job.signal) {
        (Some(code), _) => code.to_string(),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "-".to_owned(),
    }
}

/// How long it ran, or has been running.
pub(crate) fn run_time(job: &JobView, now_ms: i64) -> String {
    let began = job.started_at.as_deref().and_then(moment_ms);
    let ended = job.finished_at.as_deref().and_then(moment_ms).or(is_open(job).then_some(now_ms));
    match (began, ended) {
        (Some(began), Some(ended)) => render::length(ended - began),
        (Some(_) | None, _) => "-".to_owned(),
    }
}

/// What it wrote, and whether all of it is there.
pub(crate) fn output(job: &JobView) -> String {
    let written = size(job.stdout_bytes + job.stderr_bytes);
    match (job.output_removed, job.dropped_bytes) {
        (true, _) => format!("{written} gone"),
        (false, 0) => written,
        (false, _) => format!("{written} cut"),
    }
}

/// Its state, in a few words.
pub(crate) fn standing(job: &JobView, now_ms: i64) -> String {
    let ran = job.started_at.is_some().then(|| run_time(job, now_ms));
    let after = ran.as_ref().map(|ran| format!(" after {ran}")).unwrap_or_default();
    let why = job.error.as_ref().map(|why| format!(": {}", render::one_line(why))).unwrap_or_default();
    match job.status.as_str() {
        "done" => {
            let how = match (job.exit_code, job.signal) {
                (Some(code), _) => format!("exit {code}"),
                (None, Some(signal)) => format!("ended by signal {signal}"),
                (None, None) => "done".to_owned(),
            };
            let cause = job.cause.as_ref().map(|cause| format!(" ({cause})")).unwrap_or_default();
            format!("{how}{cause}{after}")
        }
        "error" => format!("error{after}{why}"),
        "cancelled" => format!("cancelled{after}{why}"),
        "running" => format!("{}{}", status(job), ran.map(|ran| format!(" for {ran}")).unwrap_or_default()),
        _ => status(job),
    }
}

/// The exit code for a command that waited for it: its own, or the shell's code for a signal.
pub(crate) fn exit(job: &JobView) -> CommandExit {
    let code = job.exit_code.or(job.signal.map(|signal| SIGNAL_BASE + signal));
    match (job.status.as_str(), code) {
        ("done", Some(0)) => CommandExit::Done,
        ("done", Some(code)) => u8::try_from(code).map_or(CommandExit::Refused, CommandExit::Program),
        (_, _) => CommandExit::Refused,
    }
}

/// One row of `TITLES`.
pub(crate) fn row(job: &JobView, now_ms: i64) -> Vec<String> {
    vec![
        job.id.clone(),
        job.agent_name.clone(),
        command(job),
        job.status.clone(),
        ended_with(job),
        render::ago(&job.created_at, now_ms / 1000),
        run_time(job, now_ms),
        output(job),
        render::or_dash(job.session.as_deref()),
    ]
}

pub(crate) const TITLES: [&str; 9] =
    ["ID", "AGENT", "BIN", "STATUS", "EXIT", "AGE", "TIME", "OUTPUT", "SESSION"];

/// Everything about it.
pub(crate) fn detail(job: &JobView, now_ms: i64) -> String {
    let labels: Vec<String> = job.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let words: Vec<String> = std::iter::once(&job.bin).chain(&job.args).map(|word| quoted(word)).collect();
    let limit = job.timeout_ms.and_then(|ms| i64::try_from(ms).ok()).map(render::length);
    let mut rows = vec![
        ("id", job.id.clone()),
        ("agent", format!("{} ({})", job.agent_name, job.agent)),
        ("session", job.session.clone().unwrap_or_default()),
        ("command", words.join(" ")),
        ("status", status(job)),
        ("exit", Some(ended_with(job)).filter(|exit| exit != "-").unwrap_or_default()),
        ("why", job.error.clone().unwrap_or_default()),
        ("created", job.created_at.clone()),
        ("started", job.started_at.clone().unwrap_or_default()),
        ("finished", job.finished_at.clone().unwrap_or_default()),
        ("time", Some(run_time(job, now_ms)).filter(|time| time != "-").unwrap_or_default()),
        ("timeout", limit.unwrap_or_default()),
        (
            "priority",
            Some(job.priority).filter(|priority| *priority != 0).map(|at| at.to_string()).unwrap_or_default(),
        ),
        ("stdout", format!("{} bytes", job.stdout_bytes)),
        ("stderr", format!("{} bytes", job.stderr_bytes)),
        (
            "not kept",
            Some(job.dropped_bytes)
                .filter(|bytes| *bytes > 0)
                .map(|bytes| format!("{bytes} bytes"))
                .unwrap_or_default(),
        ),
        (
            "removed",
            if job.output_removed {
                "its output, by the retention settings".to_owned()
            } else {
                String::new()
            },
        ),
        ("labels", labels.join(" ")),
    ];
    rows.retain(|(_, value)| !value.is_empty());
    render::pairs(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(status: &str, exit_code: Option<i32>, signal: Option<i32>) -> JobView {
        JobView {
            id: "job_1".into(),
            agent: "agt_1".into(),
            agent_name: "coder".into(),
            session: None,
            bin: "make".into(),
            args: vec!["-j".into(), "two words".into()],
            status: status.into(),
            exit_code,
            signal,
            cause: None,
            error: None,
            priority: 0,
            timeout_ms: None,
            created_at: "2026-01-01T00:00:00.000Z".into(),
            started_at: Some("2026-01-01T00:00:01.000Z".into()),
            finished_at: Some("2026-01-01T00:00:02.250Z".into()),
            stdout_bytes: 10,
            stderr_bytes: 2,
            truncated: false,
            dropped_bytes: 0,
            output_removed: false,
            cancelling: false,
            labels: Default::default(),
        }
    }

    #[test]
    fn a_waiting_client_exits_as_the_job_did() {
        let check = |status, code, signal, expected: i32| {
            assert_eq!(exit(&job(status, code, signal)).code(), expected, "{status} {code:?} {signal:?}");
        };
        check("done", Some(0), None, 0);
        check("done", Some(3), None, 3);
        check("done", Some(255), None, 255);
        check("done", None, Some(9), 137);
        check("done", None, None, 1);
        check("done", Some(-1), None, 1);
        check("error", Some(0), None, 1);
        check("error", None, Some(9), 1);
        check("cancelled", None, Some(9), 1);
    }

    #[test]
    fn an_end_is_reported_in_a_few_words() {
        let now = moment_ms("2026-01-01T00:01:01.000Z").unwrap();
        assert_eq!(standing(&job("done", Some(0), None), now), "exit 0 after 1.2 s");
        let oom = JobView { cause: Some("oom".into()), ..job("done", None, Some(9)) };
        assert_eq!(standing(&oom, now), "ended by signal 9 (oom) after 1.2 s");
        let lost = JobView { error: Some("lost: its\nkeeper died".into()), ..job("error", None, None) };
        assert_eq!(standing(&lost, now), "error after 1.2 s: lost: its keeper died");
        let running = JobView { finished_at: None, ..job("running", None, None) };
        assert_eq!(standing(&running, now), "running for 60 s");
        let pending = JobView { started_at: None, finished_at: None, ..job("pending", None, None) };
        assert_eq!(standing(&pending, now), "pending");
        let cancelled = JobView { started_at: None, finished_at: None, ..job("cancelled", None, None) };
        assert_eq!(standing(&cancelled, now), "cancelled");
    }

    #[test]
    fn a_row_has_a_cell_for_each_title_and_says_what_was_not_kept() {
        let cut = JobView { dropped_bytes: 2048, stdout_bytes: 5 << 20, ..job("done", Some(0), None) };
        let row = row(&cut, moment_ms("2026-01-01T00:10:00.000Z").unwrap());
        assert_eq!(row.len(), TITLES.len());
        assert_eq!(row[2], "make -j \"two words\"");
        assert_eq!(row[5..8], ["10 min ago", "1.2 s", "5 MiB cut"]);
    }
}
