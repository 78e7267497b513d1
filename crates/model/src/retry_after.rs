//! `Retry-After`, in the three spellings servers use.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::header::HeaderMap;

/// The longest pause that a header can request.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// The pause that the server requests, if its header is readable.
pub(crate) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let wait = match text("retry-after-ms").and_then(|ms| ms.parse::<u64>().ok()) {
        Some(ms) => Duration::from_millis(ms),
        None => {
            let value = text("retry-after")?;
            match value.parse::<f64>() {
                Ok(seconds) => Duration::try_from_secs_f64(seconds).ok()?,
                Err(_) => http_date(value)?.duration_since(now).unwrap_or_default(),
            }
        }
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

/// `Wed, 21 Oct 2015 07:28:00 GMT`; the two older forms of the standard are not worth reading.
fn http_date(text: &str) -> Option<SystemTime> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (_, rest) = text.split_once(", ")?;
    let mut parts = rest.split(' ');
    let day: u64 = parts.next()?.parse().ok()?;
    let month = parts.next()?;
    let month = 1 + MONTHS.iter().position(|name| *name == month)? as u64;
    let year: u64 = parts.next()?.parse().ok()?;
    let mut clock = parts.next()?.split(':');
    let mut number = || clock.next()?.parse::<u64>().ok();
    let (hour, minute, second) = (number()?, number()?, number()?);
    let in_range = parts.next() == Some("GMT")
        && (1970..=9999).contains(&year)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    if !in_range {
        return None;
    }
    let seconds = days_since_epoch(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// Days of the proleptic Gregorian calendar; a year here begins in March, so that a leap day comes last.
fn days_since_epoch(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    const MARCH_0000_TO_EPOCH: u64 = 719_468;
    year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - MARCH_0000_TO_EPOCH
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &'static str, value: &str, expected: Option<Duration>) {
        let now = UNIX_EPOCH + Duration::from_secs(1_445_412_480);
        let headers = HeaderMap::from_iter([(
            reqwest::header::HeaderName::from_static(name),
            value.parse().expect("a header value"),
        )]);
        assert_eq!(retry_after(&headers, now), expected, "{name}: {value}");
    }

    #[test]
    fn seconds_milliseconds_and_dates_are_understood() {
        check("retry-after", "7", Some(Duration::from_secs(7)));
        check("retry-after", "0.5", Some(Duration::from_millis(500)));
        check("retry-after-ms", "250", Some(Duration::from_millis(250)));
        check("retry-after", "Wed, 21 Oct 2015 07:29:00 GMT", Some(Duration::from_secs(60)));
        check("retry-after", "Thu, 01 Jan 1970 00:00:00 GMT", Some(Duration::ZERO));
    }

    #[test]
    fn nonsense_is_no_advice_and_a_year_is_cut_to_a_day() {
        for value in
            ["soon", "-1", "NaN", "inf", "Wed, 99 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 1066 07:28:00 GMT"]
        {
            check("retry-after", value, None);
        }
        check("retry-after", "31536000", Some(RETRY_AFTER_MAX));
        check("retry-after", "Sat, 29 Feb 2020 00:00:00 GMT", Some(RETRY_AFTER_MAX));
    }
}
