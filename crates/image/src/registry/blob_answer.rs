//! The answer to a request for a blob: where in the blob it begins, and whether it comes fast enough.

use std::time::Duration;

use reqwest::header::{CONTENT_RANGE, HeaderMap};
use reqwest::{Response, StatusCode};

use super::RegistryTerms;
use super::error::AttemptError;
use super::net::shown_host;

/// How long a registry has been waited for since enough came. The time that our own disk takes is not counted.
#[derive(Debug)]
pub(super) struct PullPace {
    pub(super) silence: Duration,
    /// What is enough.
    wanted: u64,
    came: u64,
    waited: Duration,
}

impl PullPace {
    pub(super) fn new(terms: &RegistryTerms) -> PullPace {
        PullPace { silence: terms.silence, wanted: terms.pace, came: 0, waited: Duration::ZERO }
    }

    /// How much longer it is waited for.
    pub(super) fn time_left(&self) -> Duration {
        self.silence.saturating_sub(self.waited)
    }

    pub(super) fn count_bytes(&mut self, bytes: u64, waited: Duration) {
        self.came += bytes;
        self.waited += waited;
        if self.came >= self.wanted {
            (self.came, self.waited) = (0, Duration::ZERO);
        }
    }
}

/// Where in the blob an answer begins, when it can be what is missing of it.
pub(super) fn begins_at(answer: &Response, at: u64, size: u64) -> Result<u64, AttemptError> {
    let host = shown_host(answer.url());
    let lies = |why: String| Err(AttemptError::contradiction(&host, why));
    let length = answer.content_length();
    match answer.status() {
        StatusCode::OK => match length {
            Some(length) if length != size => lies(format!("it has {length} bytes of a blob of {size}")),
            Some(_) | None => Ok(0),
        },
        StatusCode::PARTIAL_CONTENT => match content_range(answer.headers()) {
            Some((begin, total)) if begin == at && total.is_none_or(|total| total == size) => Ok(at),
            Some(_) | None => lies(format!("it sends another part of a blob than the one from {at} on")),
        },
        other => lies(format!("it answers {} where there should be a blob", other.as_u16())),
    }
}

/// Reads `bytes BEGIN-END/TOTAL`.
fn content_range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?.trim().strip_prefix("bytes")?.trim_start();
    let (range, total) = text.split_once('/')?;
    let begin = range.split_once('-')?.0.trim().parse().ok()?;
    let total = match total.trim() {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    Some((begin, total))
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    #[test]
    fn a_trickle_uses_up_the_time_that_a_stream_gets_anew() {
        let terms = RegistryTerms { silence: Duration::from_secs(30), pace: 10, ..RegistryTerms::default() };
        let mut pace = PullPace::new(&terms);
        for _ in 0..9 {
            pace.count_bytes(1, Duration::from_secs(3));
        }
        assert_eq!(pace.time_left(), Duration::from_secs(3));
        pace.count_bytes(1, Duration::from_secs(2));
        assert_eq!(pace.time_left(), terms.silence, "enough came in time");
        pace.count_bytes(9, Duration::from_secs(31));
        assert_eq!(pace.time_left(), Duration::ZERO);
    }

    #[test]
    fn the_range_of_an_answer_is_read_with_its_total_or_without() {
        let read = |text: &'static str| {
            content_range(&HeaderMap::from_iter([(CONTENT_RANGE, HeaderValue::from_static(text))]))
        };
        assert_eq!(read("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(read("bytes 5-9/*"), Some((5, None)));
        for bad in
            ["", "bytes", "bytes 5/10", "bytes -9/10", "bytes 5-9", "5-9/10", "bytes 5-9/x", "bytes */10"]
        {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(content_range(&HeaderMap::new()), None);
    }
}
