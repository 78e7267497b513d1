//! What the parked turns of an agent wait for, as `ps` and `inspect` show it.

use lodge_proto::AgentWaitView;

use crate::render::until;

/// For a status: how many turns wait for what, and when that is tried again.
pub(super) fn status_note(wait: &AgentWaitView, now_s: i64) -> String {
    let turns = match wait.turns {
        1 => "a turn waits".to_owned(),
        several => format!("{several} turns wait"),
    };
    let what = match &wait.provider {
        Some(provider) => format!("{} {provider}", wait.reason),
        None => wait.reason.clone(),
    };
    let next = wait.next_at.as_ref().map(|at| format!(", next try {}", until(at, now_s)));
    format!("{turns} for {what}{}", next.unwrap_or_default())
}

/// With the newest failure, and the end of the wait.
pub(super) fn detail(wait: &AgentWaitView, now_s: i64) -> String {
    let end = wait.until.as_ref().map(|at| format!("; gives up at {at}")).unwrap_or_default();
    format!("{}: {} (failure {}){end}", status_note(wait, now_s), wait.message, wait.attempt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lodge_proto::event::Timestamp;

    #[test]
    fn parked_turns_are_counted_with_the_reason_and_the_next_attempt() {
        let now_ms = 1_794_729_437_000;
        let at = |ms: i64| Timestamp::from_ms(now_ms + ms).to_string();
        let wait = AgentWaitView {
            reason: "provider".into(),
            provider: Some("work".into()),
            turns: 1,
            code: "model.status".into(),
            message: "the provider answered with status 503".into(),
            hint: None,
            attempt: 4,
            since: at(-10_000),
            next_at: Some(at(30_000)),
            until: Some(at(590_000)),
        };
        let now_s = now_ms / 1_000;
        assert_eq!(status_note(&wait, now_s), "a turn waits for provider work, next try in 30 s");
        assert_eq!(
            detail(&wait, now_s),
            format!(
                "a turn waits for provider work, next try in 30 s: the provider answered with status 503 (failure 4); \
                 gives up at {}",
                at(590_000)
            )
        );
        let several = AgentWaitView { turns: 3, provider: None, next_at: None, ..wait };
        assert_eq!(status_note(&several, now_s), "3 turns wait for provider");
    }
}
