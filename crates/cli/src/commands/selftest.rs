//! `selftest`: tests that nothing is lost and nothing happens twice, on a temporary state directory.
//!
//! Owns: the output of a run. Never: the user's own daemon or state directory; see the crate `lodge-selftest`.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use lodge_selftest::crash::{BrokenPromise, CrashModel, CrashProgress, CrashReport, CrashSetup, rounds};
use lodge_selftest::{Programs, Trouble};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::SelftestArgs;
use crate::autostart::{find_lodged, on_path};
use crate::failure::{CommandExit, CommandFailure};
use crate::render::{cut, pairs};
use crate::screen::{ScreenOp, TerminalStream, draw};
use crate::words::{Words, print_message, put};

/// Between two looks at the progress, for a person who watches and for a log.
const WATCHED_EVERY: Duration = Duration::from_millis(200);
const LOGGED_EVERY: Duration = Duration::from_secs(10);
/// Broken promises that are described; the rest is counted.
const TOLD_MAX: usize = 10;
const TOLD_CHARS_MAX: usize = 2_000;

pub(crate) async fn selftest(words: &Words, args: SelftestArgs) -> Result<(), CommandFailure> {
    let could_not =
        |cause: io::Error| CommandFailure::refused("could not start the self-test").because(cause);
    let seed = match args.seed {
        Some(seed) => seed,
        None => new_seed().map_err(could_not)?,
    };
    let programs = Programs {
        lodge: std::env::current_exe().map_err(could_not)?,
        lodged: on_path(find_lodged(), std::env::var_os("PATH").as_deref()),
    };
    let setup = CrashSetup::new(programs, CrashModel::OpenAi, seed);
    let began = Instant::now();
    words.print_note(&format!("killing {} times, seed {seed}", args.crash));
    let report = watched(words, &setup, args.crash).await?;
    print_report(words, &report, seed, args.crash, began.elapsed())
}

/// What `lodge selftest-role` does: it counts, for another process of this program, outside of Lodge.
pub(crate) fn selftest_role(role: &str, arguments: &[String]) -> Result<(), CommandFailure> {
    lodge_selftest::take_role(role, arguments).map_err(|cause| match cause.kind() {
        io::ErrorKind::InvalidInput => CommandFailure::usage(cause.to_string()),
        _ => CommandFailure::refused("could not run the effect counter of the self-test").because(cause),
    })
}

/// The run and its progress, until it ends or is interrupted.
async fn watched(words: &Words, setup: &CrashSetup, kills: u64) -> Result<CrashReport, CommandFailure> {
    let could_not = |cause: io::Error| CommandFailure::refused("could not listen for signals").because(cause);
    let mut terminate = signal(SignalKind::terminate()).map_err(could_not)?;
    let mut hang_up = signal(SignalKind::hangup()).map_err(could_not)?;
    let ended = tokio::select! {
        ended = rounds(setup, kills) => Some(ended),
        never = show_progress(words, &setup.progress, kills) => match never {},
        _ = tokio::signal::ctrl_c() => None,
        _ = terminate.recv() => None,
        _ = hang_up.recv() => None,
    };
    if words.watched() {
        draw(TerminalStream::Stderr, &[ScreenOp::Return, ScreenOp::ClearLine]);
    }
    match ended {
        Some(Ok(report)) => Ok(report),
        Some(Err(trouble)) => Err(could_not_begin(&trouble)),
        None => {
            // What ran was dropped above, and everything that it had started went with it.
            print_message(&format!(
                "interrupted after {} kills; nothing is left behind",
                setup.progress.kills()
            ));
            Err(CommandFailure::Silent(CommandExit::Interrupted))
        }
    }
}

fn could_not_begin(trouble: &Trouble) -> CommandFailure {
    let cause = trouble.whole().replace("\n  because: ", ": ");
    let failure = CommandFailure::refused("the self-test could not start").because(cause);
    match trouble.hint() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// A line that is kept up to date on a terminal, and now and then a line elsewhere.
async fn show_progress(words: &Words, progress: &CrashProgress, kills: u64) -> std::convert::Infallible {
    let began = Instant::now();
    let every = if words.watched() { WATCHED_EVERY } else { LOGGED_EVERY };
    loop {
        tokio::time::sleep(every).await;
        let (done, acknowledged) = (progress.kills(), progress.acknowledged());
        let line =
            format!("{done} of {kills} kills, {acknowledged} messages, {} s", began.elapsed().as_secs());
        if words.watched() {
            draw(TerminalStream::Stderr, &[ScreenOp::Return, ScreenOp::ClearLine, ScreenOp::Text(&line)]);
        } else {
            words.print_note(&line);
        }
    }
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct SelftestJson<'a> {
    ok: bool,
    seed: u64,
    asked: u64,
    kills: u64,
    victims: &'a BTreeMap<&'static str, u64>,
    points: &'a BTreeMap<String, u64>,
    restarts: u64,
    acknowledged: u64,
    lost: usize,
    duplicated: usize,
    /// All of them, and those that no killed keeper explains.
    unknown: u64,
    unknown_unexplained: usize,
    events_missed: usize,
    events_doubled: usize,
    leftover_processes: usize,
    keepers_not_adopted: usize,
    ended_wrongly: usize,
    effects: u64,
    effects_repeated: u64,
    requests: u64,
    events: u64,
    jobs: u64,
    jobs_cut: u64,
    job_bytes: u64,
    job_notes: u64,
    adopted: u64,
    replaced: u64,
    recovery_ms: RecoveryTimes,
    took_ms: u64,
    broken: Vec<String>,
    kept: Vec<KeptRun<'a>>,
}

#[derive(Debug, Serialize)]
struct RecoveryTimes {
    p50: f64,
    p99: f64,
}

#[derive(Debug, Serialize)]
struct KeptRun<'a> {
    seed: u64,
    kills: u64,
    dir: &'a Path,
}

impl<'a> SelftestJson<'a> {
    fn of(report: &'a CrashReport, seed: u64, asked: u64, took: Duration) -> SelftestJson<'a> {
        let unexplained = report.count(BrokenPromise::Unknown);
        SelftestJson {
            ok: report.is_clean(),
            seed,
            asked,
            kills: report.kills,
            victims: &report.victims,
            points: &report.points,
            restarts: report.restarts,
            acknowledged: report.acknowledged,
            lost: report.count(BrokenPromise::Lost),
            duplicated: report.count(BrokenPromise::Duplicated),
            unknown: report.unknown + unexplained as u64,
            unknown_unexplained: unexplained,
            events_missed: report.count(BrokenPromise::EventMissed),
            events_doubled: report.count(BrokenPromise::EventDoubled),
            leftover_processes: report.count(BrokenPromise::LeftBehind),
            keepers_not_adopted: report.count(BrokenPromise::Keeper),
            ended_wrongly: report.count(BrokenPromise::Wrong),
            effects: report.effects,
            effects_repeated: report.repeated,
            requests: report.requests,
            events: report.events,
            jobs: report.jobs,
            jobs_cut: report.jobs_cut,
            job_bytes: report.job_bytes,
            job_notes: report.job_notes,
            adopted: report.adoptions,
            replaced: report.replaced,
            recovery_ms: RecoveryTimes { p50: report.recovery_ms(50), p99: report.recovery_ms(99) },
            took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            broken: report.broken.iter().map(|(kind, what)| format!("{}: {what}", kind.words())).collect(),
            kept: report
                .failed
                .iter()
                .map(|failed| KeptRun { seed: failed.seed, kills: failed.kills, dir: &failed.kept })
                .collect(),
        }
    }
}

fn print_report(
    words: &Words,
    report: &CrashReport,
    seed: u64,
    asked: u64,
    took: Duration,
) -> Result<(), CommandFailure> {
    if words.json {
        words.json(&SelftestJson::of(report, seed, asked, took))?;
    } else {
        put(&table(report, took))?;
        words.print_note(&format!("to repeat: {}", command(asked, seed)));
        if report.kills > asked {
            words.print_note(&format!(
                "{} kills for {asked}: the last blow of a round may end two processes",
                report.kills
            ));
        }
        put(&verdict(report))?;
    }
    if report.is_clean() { Ok(()) } else { Err(failure(report)) }
}

/// The last line: whether the promise was kept.
fn verdict(report: &CrashReport) -> String {
    if report.is_clean() {
        return format!("passed: {} kills, nothing lost, nothing twice, nothing left behind\n", report.kills);
    }
    let broken = BrokenPromise::ALL.into_iter().map(|kind| (report.count(kind), kind.words()));
    let told: Vec<String> =
        broken.filter(|(count, _)| *count > 0).map(|(count, words)| format!("{count} {words}")).collect();
    format!("FAILED: {} kills, {}\n", report.kills, told.join(", "))
}

fn table(report: &CrashReport, took: Duration) -> String {
    let counts = report.counts();
    let mut rows: Vec<(&str, String)> =
        counts.iter().map(|(name, count)| (name.as_str(), count.to_string())).collect();
    let must_be_0 = rows.split_off(rows.len().saturating_sub(BrokenPromise::ALL.len()));
    rows.extend([
        ("recovery, half within", format!("{} ms", report.recovery_ms(50))),
        ("recovery, 99 of 100 within", format!("{} ms", report.recovery_ms(99))),
        ("took", format!("{} s", took.as_secs())),
    ]);
    rows.push(("", String::new()));
    rows.push(("must be 0", String::new()));
    rows.extend(must_be_0);
    pairs(&rows)
}

fn command(kills: u64, seed: u64) -> String {
    format!("lodge selftest --crash {kills} --seed {seed}")
}

fn failure(report: &CrashReport) -> CommandFailure {
    let count = report.broken.len();
    let promises =
        if count == 1 { "a broken promise".to_owned() } else { format!("{count} broken promises") };
    let mut failure = CommandFailure::refused(format!("the self-test found {promises}"));
    for (kind, what) in report.broken.iter().take(TOLD_MAX) {
        failure = failure.because(format!("{}: {}", kind.words(), cut(what, TOLD_CHARS_MAX)));
    }
    match report.failed.first() {
        Some(failed) => failure.hint(format!(
            "its state directory is {}; run `{}` to reproduce it",
            failed.kept.display(),
            command(failed.kills, failed.seed)
        )),
        None => failure,
    }
}

/// Four bytes of chance: enough, and short enough to be copied.
fn new_seed() -> io::Result<u64> {
    lodge_proto::random_bytes().map(|bytes| u32::from_le_bytes(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clean_run_is_reported_with_what_the_contract_names() {
        let report =
            CrashReport { kills: 3, acknowledged: 5, recovery_us: vec![12_345], ..CrashReport::default() };
        let told = serde_json::to_value(SelftestJson::of(&report, 9, 2, Duration::from_secs(1))).unwrap();
        for key in ["lost", "duplicated", "unknown", "events_missed", "events_doubled", "leftover_processes"]
        {
            assert_eq!(told[key], 0, "{key}");
        }
        assert_eq!((&told["kills"], &told["acknowledged"], &told["seed"]), (&3.into(), &5.into(), &9.into()));
        assert_eq!(
            (&told["recovery_ms"]["p50"], &told["recovery_ms"]["p99"]),
            (&12.34.into(), &12.34.into())
        );
        assert!(print_report(&Words::new(true, false), &report, 9, 2, Duration::ZERO).is_ok());
    }

    #[test]
    fn every_kind_of_broken_promise_ends_with_one_and_says_where_to_look() {
        for broken in BrokenPromise::ALL {
            let mut report = CrashReport::default();
            report.add(broken, "this");
            let failed = lodge_selftest::crash::FailedRun { seed: 14, kills: 25, kept: "/tmp/kept".into() };
            report.failed.push(failed);
            let CommandFailure::Told(told) = failure(&report) else { panic!("not told") };
            assert_eq!(told.exit, CommandExit::Refused);
            assert_eq!(told.because, [format!("{}: this", broken.words())]);
            let hint = told.hint.unwrap();
            assert!(hint.contains("/tmp/kept") && hint.contains("--crash 25 --seed 14"), "{hint}");
            assert_eq!(verdict(&report), format!("FAILED: 0 kills, 1 {}\n", broken.words()));
            let (counted, must_be_0) = table(&report, Duration::ZERO)
                .split_once("\n\nmust be 0\n")
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
                .unwrap();
            assert!(counted.contains("messages acknowledged"), "{counted}");
            assert!(
                must_be_0.lines().any(|line| line.starts_with(broken.words()) && line.ends_with(" 1")),
                "{must_be_0}"
            );
            assert_eq!(must_be_0.lines().count(), BrokenPromise::ALL.len());
        }
    }

    #[test]
    fn a_bare_name_is_looked_up_and_a_path_is_taken_as_it_is() {
        let path = std::ffi::OsString::from("/no-such-dir:/usr/bin:/bin");
        assert!(on_path("env".into(), Some(&path)).is_absolute());
        assert_eq!(on_path("/x/lodged".into(), Some(&path)), Path::new("/x/lodged"));
        assert_eq!(on_path("no-such-program-here".into(), None), Path::new("no-such-program-here"));
    }
}
