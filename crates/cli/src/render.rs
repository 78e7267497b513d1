//! Tables, times and errors as text for people.
//!
//! Owns: formatting. Never: where the data comes from.

use std::time::{SystemTime, UNIX_EPOCH};

use lodge_proto::QuarantineView;
use lodge_proto::visible::{visible, visible_line};
use serde_json::Value;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::failure::FailureReport;
use crate::screen::{Ink, painted};
use crate::words::print_message;

/// Columns are this far apart.
const COLUMN_GAP: usize = 3;
/// The same where there is little room.
const COLUMN_GAP_NARROW: usize = 2;
/// Columns that are shown at any width.
const COLUMNS_MIN: usize = 2;
/// A column is not cut to less than this.
const COLUMN_WIDTH_MIN: usize = 8;
/// The longest one-line summary of a tool call or an event.
pub(crate) const SUMMARY_CHARS_MAX: usize = 160;

/// The error, its causes, and the way out, on stderr.
pub(crate) fn error(report: &FailureReport) {
    print_message(&error_text(report));
}

fn error_text(report: &FailureReport) -> String {
    let mut text = format!("error: {}", indent_following_lines(&report.what));
    for cause in &report.because {
        text.push_str(&format!("\n  because: {}", visible_line(cause)));
    }
    if let Some(hint) = &report.hint {
        text.push_str(&format!("\n\nhint: {}", indent_following_lines(hint)));
    }
    text
}

/// With all lines but the first set back, so that none looks like one of ours.
fn indent_following_lines(text: &str) -> String {
    visible(text).trim_end().replace('\n', "\n  ")
}

/// How a decision about a lineage is made.
pub(crate) fn next_step(lineage: &str) -> String {
    format!("`lodge lineage resolve {lineage} --revive` continues it, `--reap` drops it")
}

/// How a decision about work in quarantine is made.
pub(crate) fn quarantine_step(work: &str) -> String {
    format!("`lodge quarantine retry {work}` tries again, `lodge quarantine drop {work}` drops it")
}

/// Work in quarantine, with what it is of and why it is there.
pub(crate) fn quarantined(work: &QuarantineView) -> String {
    let of = match (&work.turn, &work.detail) {
        (Some(turn), _) => format!(" of {}", one_line(turn)),
        (None, Some(detail)) => format!(" of {}", one_line(detail)),
        (None, None) => String::new(),
    };
    format!("{}: the {}{of} killed the daemon {}", work.id, work_kind(&work.kind), in_a_row(work.deaths))
}

/// A kind of work in words.
pub(crate) fn work_kind(kind: &str) -> String {
    one_line(kind).replace('_', " ")
}

pub(crate) fn in_a_row(times: u32) -> String {
    if times == 1 { "once".to_owned() } else { format!("{times} times in a row") }
}

/// Aligned columns under a header. No trailing spaces.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let cells = cells(header, rows);
    let widths = widths(&cells, header.len());
    laid_out(&cells, &widths, COLUMN_GAP, StatusColours::Off)
}

/// The same within this many columns of a terminal: the widest cells are cut, except those of the first column, which
/// names the item. If that is not enough, the last columns are left out, except the first two.
pub(crate) fn fitted(
    header: &[&str],
    rows: &[Vec<String>],
    columns: usize,
    colours: StatusColours,
) -> String {
    let cells = cells(header, rows);
    let all = widths(&cells, header.len());
    let total = |widths: &[usize], gap: usize| widths.iter().sum::<usize>() + gap * (widths.len() - 1);
    if total(&all, COLUMN_GAP) <= columns {
        return laid_out(&cells, &all, COLUMN_GAP, colours);
    }
    // A column that is left out leaves its room to the others.
    let (mut shown, mut widths) = (all.len(), all.clone());
    while total(&widths, COLUMN_GAP_NARROW) > columns {
        let can_give = |place: &usize| widths[*place] > header[*place].width().max(COLUMN_WIDTH_MIN);
        // The second column is often a name that people type: it is cut last.
        let widest = |from: usize, to: usize| (from..to).filter(can_give).max_by_key(|place| widths[*place]);
        match widest(2, widths.len()).or_else(|| widest(1, widths.len().min(2))) {
            Some(widest) => widths[widest] -= 1,
            None if shown > COLUMNS_MIN => {
                shown -= 1;
                widths = all[..shown].to_vec();
            }
            None => break,
        }
    }
    laid_out(&cells, &widths, COLUMN_GAP_NARROW, colours)
}

fn cells(header: &[&str], rows: &[Vec<String>]) -> Vec<Vec<String>> {
    let head = header.iter().map(|title| (*title).to_owned()).collect();
    let cleaned = rows.iter().map(|row| row.iter().map(|cell| one_line(cell)).collect());
    std::iter::once(head).chain(cleaned).collect()
}

fn widths(cells: &[Vec<String>], columns: usize) -> Vec<usize> {
    let width = |column: usize| cells.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max();
    (0..columns).map(|column| width(column).unwrap_or(0)).collect()
}

fn laid_out(cells: &[Vec<String>], widths: &[usize], gap: usize, colours: StatusColours) -> String {
    let mut text = String::new();
    let status = cells.first().and_then(|head| head.iter().position(|title| title == "STATUS"));
    for (number, row) in cells.iter().enumerate() {
        let mut line = String::new();
        for (place, (cell, width)) in row.iter().zip(widths).enumerate() {
            let cell = within(cell, *width);
            match status_ink(&cell).filter(|_| number > 0 && status == Some(place)) {
                Some(ink) if colours == StatusColours::On => line.push_str(&painted(ink, &cell)),
                Some(_) | None => line.push_str(&cell),
            }
            line.extend(std::iter::repeat_n(' ', (width + gap).saturating_sub(cell.width())));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Whether the column STATUS is coloured. The words alone say everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatusColours {
    On,
    Off,
}

/// The colour of a status, by its first word.
fn status_ink(status: &str) -> Option<Ink> {
    let word = status.split([' ', '(']).next().unwrap_or_default();
    match word {
        "ready" | "working" | "running" | "active" | "done" => Some(Ink::Green),
        "failed" | "error" | "orphaned" | "ask_pending" | "unknown" => Some(Ink::Red),
        "pulling" | "starting" | "waiting" | "queued" | "pending" | "interrupted" | "removing" => {
            Some(Ink::Yellow)
        }
        "stopped" | "cancelled" | "removed" | "ended" | "reaped" | "revoked" | "expired" => Some(Ink::Dim),
        _ => None,
    }
}

/// At most this many columns of the text, with a mark where it was cut.
pub(crate) fn within(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut cut = String::new();
    for letter in text.chars() {
        if cut.width() + letter.width().unwrap_or(0) + 1 > columns {
            break;
        }
        cut.push(letter);
    }
    cut + "…"
}

/// `key  value` lines, aligned.
pub(crate) fn pairs(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0);
    let line = |(key, value): &(&str, String)| {
        format!("{key:<fill$}{}", one_line(value), fill = width + COLUMN_GAP).trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// A dash for nothing.
pub(crate) fn or_dash(text: Option<&str>) -> String {
    text.filter(|text| !text.is_empty()).unwrap_or("-").to_owned()
}

/// On one line, with hidden characters written out, also where it goes to no terminal.
pub(crate) fn one_line(text: &str) -> String {
    visible_line(text).into_owned()
}

/// At most `chars_max` letters, with a mark where it was cut.
pub(crate) fn cut(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// A tool call as one would type it, or with its arguments as JSON when they are not a list of words.
pub(crate) fn tool_call(name: &str, arguments: &Value) -> String {
    let parsed = match arguments {
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| arguments.clone()),
        other => other.clone(),
    };
    let words: Option<Vec<String>> = parsed
        .get("args")
        .and_then(Value::as_array)
        .and_then(|args| args.iter().map(|arg| arg.as_str().map(quoted)).collect());
    // Of the tools for jobs: the program, or which job is meant.
    let subject = ["bin", "job_id"].into_iter().filter(|_| name.starts_with("job_"));
    let subject = subject.filter_map(|field| parsed.get(field)?.as_str()).map(quoted).next();
    let words = match (subject, words) {
        (Some(subject), words) => Some([vec![subject], words.unwrap_or_default()].concat()),
        (None, words) => words,
    };
    let shown = match (words, &parsed) {
        (Some(words), _) => words.join(" "),
        (None, Value::String(text)) => text.clone(),
        (None, Value::Null) => String::new(),
        (None, Value::Object(fields)) if fields.is_empty() => String::new(),
        (None, other) => other.to_string(),
    };
    cut(&one_line(format!("{name} {shown}").trim_end()), SUMMARY_CHARS_MAX)
}

pub(crate) fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,@%+~".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) { word.to_owned() } else { format!("{word:?}") }
}

/// How a tool's run ended, in a few words.
pub(crate) fn tool_result(status: Option<&str>, exit_code: Option<i64>, bytes: Option<u64>) -> String {
    let ended = match (exit_code, status) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(status)) => one_line(status),
        (None, None) => "done".to_owned(),
    };
    match bytes {
        Some(1) => format!("{ended}, 1 byte"),
        Some(bytes) => format!("{ended}, {bytes} bytes"),
        None => ended,
    }
}

/// Seconds since 1970, now.
pub(crate) fn now_s() -> i64 {
    now_ms() / 1000
}

/// Milliseconds since 1970, now.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// `2 min ago`; the text itself when it is no time.
pub(crate) fn ago(at: &str, now_s: i64) -> String {
    let Some(then_s) = seconds(at) else { return at.to_owned() };
    match now_s - then_s {
        ..5 => "just now".to_owned(),
        passed => format!("{} ago", span(passed, UnitRounding::Begun)),
    }
}

/// How a fraction of a unit is shown.
#[derive(Debug, Clone, Copy)]
enum UnitRounding {
    /// A unit counts when it is over.
    Begun,
    /// A token of 90 days is one also a second later.
    Nearest,
}

/// A time in the largest unit that fits.
fn span(seconds: i64, part: UnitRounding) -> String {
    let whole = |unit: i64| match part {
        UnitRounding::Begun => seconds / unit,
        UnitRounding::Nearest => (seconds + unit / 2) / unit,
    };
    match seconds {
        ..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", whole(60)),
        7200..172_800 => format!("{} h", whole(3600)),
        172_800.. => format!("{} days", whole(86_400)),
    }
}

/// A length of time, short ones with a part of a second.
pub(crate) fn length(ms: i64) -> String {
    match ms {
        ..0 => length(0),
        0..10_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        10_000.. => span(ms / 1000, UnitRounding::Begun),
    }
}

/// Bytes in the largest unit that fits, large ones with a tenth: there it is much.
pub(crate) fn size(bytes: u64) -> String {
    let tenths = |unit: u64| {
        let tenths = u128::from(bytes) * 10 / u128::from(unit);
        match tenths % 10 {
            0 => format!("{}", tenths / 10),
            tenth => format!("{}.{tenth}", tenths / 10),
        }
    };
    match bytes {
        ..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", tenths(1 << 20)),
        1_073_741_824.. => format!("{} GiB", tenths(1 << 30)),
    }
}

/// Why an agent failed, in one line: the word of the state in words for people, and what is known beside.
pub(crate) fn why_failed(reason: Option<&str>, detail: Option<&str>) -> Option<String> {
    let words = reason.map(|reason| match reason {
        "pull" => "its image or one of its tools could not be pulled",
        "init" => "it could not be started",
        "model" => "its model cannot be used",
        "readiness_timeout" => "it did not answer in time",
        "crashed" => "it crashed",
        "config" => "a setting is missing or invalid",
        "oom" => "it ran out of memory",
        // Of a later release.
        other => other,
    });
    match (words, detail) {
        (Some(words), Some(detail)) => Some(format!("{words}: {detail}")),
        (Some(one), None) | (None, Some(one)) => Some(one.to_owned()),
        (None, None) => None,
    }
}

/// The time of a moment without its date, if that is today's.
pub(crate) fn time_of_day(at: &str, now_s: i64) -> &str {
    const DAY_S: i64 = 86_400;
    let is_today = seconds(at).is_some_and(|then_s| then_s.div_euclid(DAY_S) == now_s.div_euclid(DAY_S));
    at.split_once('T').filter(|_| is_today).map_or(at, |(_, time)| time)
}

/// `in 12 s`, `in 3 days`; the text itself when it is no time.
pub(crate) fn until(at: &str, now_s: i64) -> String {
    let Some(then_s) = seconds(at) else { return at.to_owned() };
    match then_s - now_s {
        ..=0 => "now".to_owned(),
        left => format!("in {}", span(left, UnitRounding::Nearest)),
    }
}

/// A count of tokens, large ones in thousands or millions.
pub(crate) fn tokens(count: u64) -> String {
    let tenths = |unit: u64, name: &str| format!("{}.{}{name}", count / unit, count % unit * 10 / unit);
    match count {
        ..10_000 => count.to_string(),
        10_000..1_000_000 => tenths(1_000, "k"),
        1_000_000.. => tenths(1_000_000, "M"),
    }
}

/// An amount of money, small ones with more digits; a dash when a price is not known.
pub(crate) fn dollars(usd: Option<f64>) -> String {
    match usd {
        None => "-".to_owned(),
        Some(usd) if usd <= 0.0 => "$0".to_owned(),
        Some(usd) if usd < 0.0001 => "<$0.0001".to_owned(),
        Some(usd) if usd < 0.1 => format!("${usd:.4}"),
        Some(usd) => format!("${usd:.2}"),
    }
}

/// What model calls used, in one line. Nothing if they used nothing, as scripted models do.
pub(crate) fn usage(input_tokens: u64, output_tokens: u64, cost_usd: Option<f64>) -> Option<String> {
    if input_tokens == 0 && output_tokens == 0 {
        return None;
    }
    let cost = cost_usd.map(|usd| format!(", {}", dollars(Some(usd)))).unwrap_or_default();
    Some(format!("{} tokens in, {} out{cost}", tokens(input_tokens), tokens(output_tokens)))
}

/// `1 turn`, `2 turns`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Milliseconds since 1970 of an RFC 3339 time in UTC.
pub(crate) fn moment_ms(at: &str) -> Option<i64> {
    let part = at.strip_suffix('Z')?.split_once('.').map_or("0", |(_, part)| part);
    let part = format!("{part:0<3}");
    Some(seconds(at)? * 1000 + part.get(..3)?.parse::<i64>().ok()?)
}

/// Seconds since 1970 of an RFC 3339 time in UTC.
fn seconds(at: &str) -> Option<i64> {
    let (date, time) = at.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let mut time = time.split('.').next()?.splitn(3, ':').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    // Years are counted from March, so that the leap day is the last of its year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days = year * 365 + leap_days + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::CommandFailure;
    use serde_json::json;

    #[test]
    fn usage_is_short_and_costs_are_shown_only_when_they_are_known() {
        assert_eq!(usage(0, 0, Some(0.0)), None);
        assert_eq!(usage(1_234, 56, None).as_deref(), Some("1234 tokens in, 56 out"));
        assert_eq!(usage(12_345, 1_234_567, Some(1.5)).as_deref(), Some("12.3k tokens in, 1.2M out, $1.50"));
        assert_eq!(
            [None, Some(0.0), Some(0.00001), Some(0.01234), Some(0.456)].map(dollars),
            ["-", "$0", "<$0.0001", "$0.0123", "$0.46"]
        );
    }

    #[test]
    fn columns_stand_under_their_titles_and_lines_end_without_spaces() {
        let rows = vec![
            vec!["a".into(), "é-long".into(), "x".into()],
            vec!["bbbb".into(), "c".into(), String::new()],
        ];
        assert_eq!(table(&["ID", "NAME", "Z"], &rows), "ID     NAME     Z\na      é-long   x\nbbbb   c\n");
    }

    #[test]
    fn a_narrow_terminal_gets_the_widest_cells_cut_and_the_names_of_things_whole() {
        let rows = vec![vec![
            "agt_0123456789".into(),
            "a rather long name".into(),
            "日本語日本語日本語".into(),
            "x".into(),
        ]];
        let narrow = fitted(&["ID", "NAME", "IMAGE", "Z"], &rows, 42, StatusColours::Off);
        assert_eq!(
            narrow,
            "ID              NAME           IMAGE     Z\nagt_0123456789  a rather lon…  日本語…   x\n"
        );
        assert_eq!(
            fitted(&["ID", "NAME", "IMAGE", "Z"], &rows, 80, StatusColours::Off),
            table(&["ID", "NAME", "IMAGE", "Z"], &rows)
        );
        // No room at all is no reason to say nothing.
        assert!(
            fitted(&["ID", "NAME", "IMAGE", "Z"], &rows, 8, StatusColours::Off)
                .ends_with("\nagt_0123456789  a rathe…\n")
        );
        // What can be cut no more goes, the last first.
        assert_eq!(
            fitted(&["ID", "NAME", "IMAGE", "Z"], &rows, 34, StatusColours::Off),
            "ID              NAME      IMAGE\nagt_0123456789  a rathe…  日本語…\n"
        );
    }

    #[test]
    fn what_is_to_come_is_reported_in_the_largest_fitting_unit() {
        let check = |at: &str, expected: &str| assert_eq!(until(at, 0), expected, "{at}");
        check("1970-01-01T00:00:00Z", "now");
        check("1970-01-01T00:01:30Z", "in 90 s");
        check("1970-01-01T00:02:00Z", "in 2 min");
        check("1970-01-01T05:00:00Z", "in 5 h");
        check("1970-04-01T00:00:00Z", "in 90 days");
        check("1970-03-31T23:59:58Z", "in 90 days");
        check("1970-01-01T01:59:59Z", "in 120 min");
        check("soon", "soon");
    }

    #[test]
    fn an_error_tells_each_cause_and_then_the_way_out() {
        let failure =
            CommandFailure::refused("could not start x").because("one\ntwo").hint("run `lodge logs x`");
        let CommandFailure::Told(report) = failure else { panic!("not told") };
        let expected = "error: could not start x\n  because: one\n  because: two\n\nhint: run `lodge logs x`";
        assert_eq!(error_text(&report), expected);
    }

    #[test]
    fn a_failure_is_one_line_of_words_with_what_is_known_beside() {
        let told = |reason, detail| why_failed(reason, detail).unwrap_or_default();
        assert_eq!(told(Some("model"), Some("no provider `x`")), "its model cannot be used: no provider `x`");
        assert_eq!(told(Some("crashed"), None), "it crashed");
        assert_eq!(told(Some("bored"), Some("of it all")), "bored: of it all");
        assert_eq!((told(None, Some("x")), told(None, None)), ("x".to_owned(), String::new()));
    }

    #[test]
    fn times_are_reported_in_the_largest_fitting_unit() {
        let now = seconds("2025-03-01T00:00:00.000Z").unwrap();
        assert_eq!(now, 1_740_787_200);
        let check = |at: &str, expected: &str| assert_eq!(ago(at, now), expected, "{at}");
        check("2025-02-28T23:59:58.500Z", "just now");
        check("2025-02-28T23:59:30.000Z", "30 s ago");
        check("2025-02-28T23:58:59.000Z", "61 s ago");
        check("2025-02-28T23:57:59.000Z", "2 min ago");
        check("2025-02-28T21:00:00.000Z", "3 h ago");
        check("2024-02-29T00:00:00.000Z", "366 days ago");
        check("2025-03-01T00:00:09.000Z", "just now");
        check("nonsense", "nonsense");
        assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(time_of_day("2025-03-01T00:00:09.000Z", now), "00:00:09.000Z");
        assert_eq!(time_of_day("2025-02-28T23:59:58.500Z", now), "2025-02-28T23:59:58.500Z");
    }

    #[test]
    fn a_tool_call_reads_as_one_would_type_it() {
        let check = |arguments: Value, expected: &str| assert_eq!(tool_call("sh", &arguments), expected);
        check(json!({"args": ["-c", "date"]}), "sh -c date");
        check(json!("{\"args\": [\"-c\", \"date -u\"]}"), "sh -c \"date -u\"");
        check(json!({"path": "/x"}), "sh {\"path\":\"/x\"}");
        check(json!({}), "sh");
        check(json!("not\njson"), "sh not json");
        check(json!({"bin": "x", "more": 1}), "sh {\"bin\":\"x\",\"more\":1}");
        let submit = json!({"bin": "make", "args": ["two words"], "stdin": "x"});
        assert_eq!(tool_call("job_submit", &submit), "job_submit make \"two words\"");
        assert_eq!(tool_call("job_wait", &json!({"job_id": "job_1"})), "job_wait job_1");
        assert_eq!(tool_call("job_list", &json!({"status": "done"})), "job_list {\"status\":\"done\"}");
    }

    #[test]
    fn a_tool_result_tells_the_code_or_else_the_status() {
        assert_eq!(tool_result(Some("done"), Some(0), Some(29)), "exit 0, 29 bytes");
        assert_eq!(tool_result(Some("unknown"), None, None), "unknown");
        assert_eq!(tool_result(None, Some(1), Some(1)), "exit 1, 1 byte");
    }
}
