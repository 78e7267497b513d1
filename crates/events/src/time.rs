//! Wall-clock time as people see it: milliseconds since 1970, printed as RFC 3339 UTC.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    pub const fn from_ms(ms: i64) -> Self {
        Timestamp(ms)
    }

    pub const fn ms(self) -> i64 {
        self.0
    }

    #[must_use]
    pub const fn plus_ms(self, ms: i64) -> Self {
        Timestamp(self.0.saturating_add(ms))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.0.div_euclid(86_400_000);
        let in_day = self.0.rem_euclid(86_400_000);
        let (year, month, day) = civil(days);
        let (hour, minute) = (in_day / 3_600_000, in_day / 60_000 % 60);
        let (second, ms) = (in_day / 1_000 % 60, in_day % 1_000);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
    }
}

/// Year, month and day of a day number, by counting eras of 400 years from March.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// Reads what [`Timestamp`] prints.
impl std::str::FromStr for Timestamp {
    type Err = NotATime;

    fn from_str(text: &str) -> Result<Self, NotATime> {
        let number = |from: usize, to: usize| -> Option<i64> { text.get(from..to)?.parse().ok() };
        let marks = [(4, "-"), (7, "-"), (10, "T"), (13, ":"), (16, ":"), (19, "."), (23, "Z")];
        if text.len() != 24 || marks.iter().any(|(at, mark)| text.get(*at..*at + 1) != Some(mark)) {
            return Err(NotATime);
        }
        let read = || {
            let days = day_number(number(0, 4)?, number(5, 7)?, number(8, 10)?);
            let minutes = number(11, 13)? * 60 + number(14, 16)?;
            Some(days * 86_400_000 + minutes * 60_000 + number(17, 19)? * 1_000 + number(20, 23)?)
        };
        read().map(Timestamp).ok_or(NotATime)
    }
}

/// A text that is no time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotATime;

impl fmt::Display for NotATime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a time such as 2026-11-15T07:57:17.005Z")
    }
}

impl std::error::Error for NotATime {}

/// The inverse of [`civil`].
fn day_number(year: i64, month: i64, day: i64) -> i64 {
    let march_year = year - i64::from(month <= 2);
    let era = march_year.div_euclid(400);
    let march_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * march_month + 2) / 5 + day - 1;
    let year_of_era = march_year.rem_euclid(400);
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// A stored time in milliseconds, shown as text.
pub(crate) mod shown {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Timestamp;

    pub fn serialize<S: Serializer>(ms: &Option<i64>, serializer: S) -> Result<S::Ok, S::Error> {
        match ms {
            Some(ms) => serializer.collect_str(&Timestamp::from_ms(*ms)),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        let time = text.map(|text| text.parse::<Timestamp>()).transpose();
        time.map(|time| time.map(Timestamp::ms)).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_print_as_rfc_3339_with_milliseconds() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_123, "2000-02-29T00:00:00.123Z"),
            (1_794_729_437_005, "2026-11-15T07:57:17.005Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(Timestamp::from_ms(ms).to_string(), text);
            assert_eq!(text.parse(), Ok(Timestamp::from_ms(ms)));
        }
    }
}
