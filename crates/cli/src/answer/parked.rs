//! How a parked turn is shown: one line with the reason and the next attempt.

use lodge_proto::event::{Timestamp, TurnWaiting};

use crate::render;

/// `at` is when the turn was parked, by the clock of the daemon.
pub(super) fn waiting_line(wait: &TurnWaiting, at: &str) -> String {
    let what = match &wait.provider {
        Some(provider) => format!("provider `{}`", render::one_line(provider)),
        None => render::one_line(&wait.reason),
    };
    let mut line = format!("waiting for {what}: {}", render::one_line(&wait.message));
    if let (Some(next_ms), Ok(at)) = (wait.next_at_ms, at.parse::<Timestamp>()) {
        line.push_str(&format!("; next try in {}", seconds(next_ms - at.ms())));
    }
    if let Some(until_ms) = wait.until_ms {
        let until = Timestamp::from_ms(until_ms).to_string();
        line.push_str(&format!(" (gives up at {} UTC)", until.get(11..16).unwrap_or(&until)));
    }
    line
}

/// Rounded up: less than a second is one.
fn seconds(ms: i64) -> String {
    match u64::try_from(ms).unwrap_or(0).div_ceil(1_000).max(1) {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ 120.. => format!("{} min", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parked_turn_is_shown_with_its_reason_the_next_attempt_and_the_last_one() {
        let at = Timestamp::from_ms(1_794_729_437_005);
        let wait = TurnWaiting {
            reason: "provider".into(),
            provider: Some("work".into()),
            message: "status 503 sorry".into(),
            next_at_ms: Some(at.ms() + 3_100),
            until_ms: Some(at.ms() + 600_000),
            ..TurnWaiting::default()
        };
        let line = "waiting for provider `work`: status 503 sorry; next try in 4 s (gives up at 08:07 UTC)";
        assert_eq!(waiting_line(&wait, &at.to_string()), line);
        let wait = TurnWaiting { reason: "budget".into(), message: "spent".into(), ..TurnWaiting::default() };
        assert_eq!(waiting_line(&wait, &at.to_string()), "waiting for budget: spent");
        assert_eq!(
            ["1 s", "119 s", "2 min", "10 min"],
            [-5, 119_000, 120_000, 599_001].map(seconds).each_ref().map(String::as_str)
        );
    }
}
