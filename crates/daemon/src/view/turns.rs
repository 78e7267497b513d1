//! Turns, as clients see them.

use lodge_core::TurnId;
use lodge_core::park::ParkReason;
use lodge_core::record::{StepRow, TurnRow, Usage};
use lodge_core::summary::TurnDetail;
use lodge_core::turn::TurnState;
use lodge_proto::{StepView, TurnError, TurnView, TurnWaitView, UsageView};

use super::at;
use super::quarantine::quarantined;

pub fn turn(row: &TurnRow, steps: &[StepRow], text: String, partial: bool) -> TurnView {
    TurnView {
        id: row.id.to_string(),
        session: row.session.to_string(),
        agent: row.agent.to_string(),
        number: row.number,
        active: row.place.dropped == 0,
        replaces: row.place.replaces.as_ref().map(TurnId::to_string),
        status: row.state.word().to_owned(),
        waits_for: None,
        quarantine: None,
        message: None,
        since: None,
        waiting: wait(row),
        text,
        partial,
        steps: steps.iter().map(step).collect(),
        usage: usage(row.usage),
        error: row.failure.as_ref().map(|failure| TurnError {
            code: failure.code.clone(),
            message: failure.message.clone(),
            hint: failure.hint.clone(),
        }),
        created_at: row.created_at.to_string(),
        ended_at: row.ended_at.map(|at| at.to_string()),
    }
}

/// What a waiting turn waits for, apart from its agent and its slot.
fn wait(row: &TurnRow) -> Option<TurnWaitView> {
    let park = row.park.as_ref().filter(|_| row.state == TurnState::Waiting)?;
    match park {
        ParkReason::Provider(wait) if wait.is_held() => Some(TurnWaitView {
            reason: park.word().to_owned(),
            provider: Some(wait.provider.clone()),
            code: wait.failure.code.clone(),
            message: wait.failure.message.clone(),
            hint: wait.failure.hint.clone(),
            attempt: wait.failures,
            since: at(wait.first_at()),
            next_at: wait.next_at().map(at),
            until: Some(at(wait.until())),
        }),
        ParkReason::Provider(_) => None,
    }
}

pub fn usage(usage: Usage) -> UsageView {
    UsageView {
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
        cached_tokens: usage.cached_tokens,
        cost_usd: usage.micro_usd.map(dollars),
    }
}

fn dollars(micro_usd: u64) -> f64 {
    // Beyond 2^53 millionths, nine billion dollars, the last digit is lost.
    micro_usd as f64 / 1e6
}

pub fn full_turn(full: TurnDetail) -> TurnView {
    let waits_for =
        full.wait_reasons.as_ref().map(|wait_reasons| wait_reasons.waits_for(&full.row.id).to_owned());
    let quarantine = full.wait_reasons.and_then(|wait_reasons| wait_reasons.quarantine);
    TurnView {
        waits_for,
        quarantine: quarantine.map(|row| quarantined(&row, "quarantined")),
        message: full.extras.message,
        since: full.extras.since,
        ..turn(&full.row, &full.steps, full.text, full.partial)
    }
}

fn step(row: &StepRow) -> StepView {
    StepView {
        id: row.id.to_string(),
        kind: row.kind().word().to_owned(),
        name: row.name.clone(),
        status: row.state.word().to_owned(),
        attempt: row.attempt,
        exit_code: row.exit_code,
        signal: row.signal,
        cause: row.cause.map(|cause| cause.word().to_owned()),
        started_at: row.started_at.to_string(),
        ended_at: row.ended_at.map(|at| at.to_string()),
    }
}
