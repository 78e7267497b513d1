//! Tables, times and errors as people read them.
//!
//! Owns: how things look. Never: where they come from.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::failure::Report;
use crate::words::{printable, tell};

/// Columns are this far apart.
const COLUMN_GAP: usize = 3;
/// The longest one-line summary of a tool call or an event.
pub(crate) const SUMMARY_CHARS_MAX: usize = 160;

/// The error, its causes, and the way out, on stderr.
pub(crate) fn error(report: &Report) {
    tell(&error_text(report));
}

fn error_text(report: &Report) -> String {
    let mut text = format!("error: {}", printable(&report.what));
    for cause in &report.because {
        text.push_str(&format!("\n  because: {}", printable(cause)));
    }
    if let Some(hint) = &report.hint {
        text.push_str(&format!("\n\nhint: {}", printable(hint)));
    }
    text
}

/// How a decision about a lineage is made.
pub(crate) fn next_step(lineage: &str) -> String {
    format!("`lodge lineage resolve {lineage} --revive` goes on with it, `--reap` drops it")
}

/// Aligned columns under a header. No trailing spaces.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = header.iter().map(|title| (*title).to_owned()).collect();
    let cleaned: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| one_line(cell)).collect()).collect();
    let all: Vec<&Vec<String>> = std::iter::once(&head).chain(&cleaned).collect();
    let width = |column: usize| {
        all.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut text = String::new();
    for row in all {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<fill$}", fill = width + COLUMN_GAP));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
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

/// On one line, without control characters.
pub(crate) fn one_line(text: &str) -> String {
    let flat = if text.contains(['\n', '\t']) { text.replace(['\n', '\t'], " ") } else { text.to_owned() };
    printable(&flat).into_owned()
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
    let shown = match (words, &parsed) {
        (Some(words), _) => words.join(" "),
        (None, Value::String(text)) => text.clone(),
        (None, Value::Null) => String::new(),
        (None, Value::Object(fields)) if fields.is_empty() => String::new(),
        (None, other) => other.to_string(),
    };
    cut(&one_line(format!("{name} {shown}").trim_end()), SUMMARY_CHARS_MAX)
}

fn quoted(word: &str) -> String {
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
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// `2 minutes ago`; the text itself when it is no time.
pub(crate) fn ago(at: &str, now_s: i64) -> String {
    let Some(then_s) = seconds(at) else { return at.to_owned() };
    let (count, unit) = match now_s - then_s {
        ..5 => return "just now".to_owned(),
        passed @ 5..60 => (passed, "second"),
        passed @ 60..3600 => (passed / 60, "minute"),
        passed @ 3600..86_400 => (passed / 3600, "hour"),
        passed => (passed / 86_400, "day"),
    };
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {unit}{plural} ago")
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
    use crate::failure::Failure;
    use serde_json::json;

    #[test]
    fn columns_stand_under_their_titles_and_lines_end_without_spaces() {
        let rows = vec![
            vec!["a".into(), "é-long".into(), "x".into()],
            vec!["bbbb".into(), "c".into(), String::new()],
        ];
        assert_eq!(table(&["ID", "NAME", "Z"], &rows), "ID     NAME     Z\na      é-long   x\nbbbb   c\n");
    }

    #[test]
    fn an_error_tells_each_cause_and_then_the_way_out() {
        let failure = Failure::refused("could not start x").because("one\ntwo").hint("run `lodge logs x`");
        let Failure::Told(report) = failure else { panic!("not told") };
        let expected = "error: could not start x\n  because: one\n  because: two\n\nhint: run `lodge logs x`";
        assert_eq!(error_text(&report), expected);
    }

    #[test]
    fn times_are_told_in_the_largest_fitting_unit() {
        let now = seconds("2025-03-01T00:00:00.000Z").unwrap();
        assert_eq!(now, 1_740_787_200);
        let check = |at: &str, expected: &str| assert_eq!(ago(at, now), expected, "{at}");
        check("2025-02-28T23:59:58.500Z", "just now");
        check("2025-02-28T23:59:30.000Z", "30 seconds ago");
        check("2025-02-28T23:58:59.000Z", "1 minute ago");
        check("2025-02-28T21:00:00.000Z", "3 hours ago");
        check("2024-02-29T00:00:00.000Z", "366 days ago");
        check("2025-03-01T00:00:09.000Z", "just now");
        check("nonsense", "nonsense");
        assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0));
    }

    #[test]
    fn a_tool_call_reads_as_one_would_type_it() {
        let check = |arguments: Value, expected: &str| assert_eq!(tool_call("sh", &arguments), expected);
        check(json!({"args": ["-c", "date"]}), "sh -c date");
        check(json!("{\"args\": [\"-c\", \"date -u\"]}"), "sh -c \"date -u\"");
        check(json!({"path": "/x"}), "sh {\"path\":\"/x\"}");
        check(json!({}), "sh");
        check(json!("not\njson"), "sh not json");
    }

    #[test]
    fn a_tool_result_tells_the_code_or_else_the_status() {
        assert_eq!(tool_result(Some("done"), Some(0), Some(29)), "exit 0, 29 bytes");
        assert_eq!(tool_result(Some("unknown"), None, None), "unknown");
        assert_eq!(tool_result(None, Some(1), Some(1)), "exit 1, 1 byte");
    }
}
