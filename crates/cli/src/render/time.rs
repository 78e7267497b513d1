//! Times as text for people: how long ago, when, how long.

use std::time::{SystemTime, UNIX_EPOCH};

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
}
