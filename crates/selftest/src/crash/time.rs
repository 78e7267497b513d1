//! Times in the format of the API.

/// Of a time such as `2026-01-31T12:00:00.123Z`.
pub fn ms_since_1970(at: &str) -> Option<u64> {
    let numbers: Vec<u64> =
        at.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect();
    let [year, month, day, hour, minute, second, ms] = numbers.try_into().ok()?;
    // Years that begin in March, so that the leap day is the last one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1;
    Some((((days.checked_sub(719_468)? * 24 + hour) * 60 + minute) * 60 + second) * 1_000 + ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_to_the_millisecond() {
        assert_eq!(ms_since_1970("1970-01-01T00:00:00.001Z"), Some(1));
        assert_eq!(ms_since_1970("2000-02-29T12:30:01.000Z"), Some(951_827_401_000));
        assert_eq!(ms_since_1970("2026-08-04T00:00:00.500Z"), Some(1_785_801_600_500));
    }
}
